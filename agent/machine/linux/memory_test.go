package linux

import (
	"os"
	"testing"
)

// TestMemory: the region has the requested size, holds written data, and has an address if that is permitted.
func TestMemory(t *testing.T) {
	r, err := Machine{}.Memory(t.Context(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	w := r.Words()
	if len(w) != 1<<17 {
		t.Fatalf("%d words", len(w))
	}
	for i := range w {
		w[i] = uint64(i)
	}
	for i, got := range r.Words() {
		if got != uint64(i) {
			t.Fatalf("word %d is %d", i, got)
		}
	}
	a, ok := r.Physical(4096 + 8)
	if ok && a%4096 != 8 {
		t.Errorf("byte 4104 is at 0x%x", a)
	}
	t.Logf("as user %d: locked %v, address known %v", os.Getuid(), r.Locked(), ok)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
