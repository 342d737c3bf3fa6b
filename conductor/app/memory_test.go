package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestSaveMemory holds that a conductor lets less garbage gather when it has much in use, and that the operator's own
// setting stays.
func TestSaveMemory(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	ended, end := context.WithCancel(t.Context())
	end()
	percent := func() int { return debug.SetGCPercent(100) }
	saveMemory(ended, func(string) string { return "80" })
	if p := percent(); p != 100 {
		t.Errorf("beside GOGC it is %d", p)
	}
	large := make([]byte, 2*largeHeap)
	runtime.GC()
	saveMemory(ended, func(string) string { return "" })
	if p := percent(); p != gcPercentLarge {
		t.Errorf("with a large heap it is %d", p)
	}
	runtime.KeepAlive(large)
	large = nil
	runtime.GC()
	saveMemory(ended, func(string) string { return "" })
	if p := percent(); p != gcPercent {
		t.Errorf("with a small heap it is %d", p)
	}
}
