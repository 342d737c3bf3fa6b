package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage may gather, in per cent of what is in use: less than Go's 100, which saves a tenth of the memory of
// a conductor with thousands of nodes and costs a few per cent of its processor time (make bench-api); and less still
// where much is in use (make bench-fleet).
const (
	gcPercent      = 50
	gcPercentLarge = 25
	largeHeap      = 128 << 20
)

// saveMemory keeps garbage low. The environment's GOGC overrides it.
func saveMemory(ctx context.Context, env func(string) string) {
	if env("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	minute := time.Tick(time.Minute)
	for now := 0; ; {
		metrics.Read(live)
		want := gcPercent
		if live[0].Value.Uint64() > largeHeap {
			want = gcPercentLarge
		}
		if want != now {
			debug.SetGCPercent(want)
			now = want
		}
		select {
		case <-minute:
		case <-ctx.Done():
			return
		}
	}
}
