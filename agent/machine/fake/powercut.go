package fake

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
)

// PowerCuts replays the disk's history and yields every state that a power cut may have left, valid until the next:
// after each operation, with the volatile cache lost, kept, lost in part at random, and with writes torn at sectors.
// The disk must have been made with Record.
func (d *Disk) PowerCuts(seed uint64) iter.Seq2[string, *Disk] {
	return func(yield func(string, *Disk) bool) {
		rng := rand.New(rand.NewPCG(seed, 1))
		history := d.History()
		base := d.Replay(nil) // the durable content
		var cached []Op
		state := func(n int, what string, ops []Op) bool {
			cut := &Disk{spec: d.spec, minor: d.minor, now: pages{}, fill: base.fill, under: base.now}
			for _, op := range ops {
				cut.apply(cut.now, op)
			}
			cut.stable = cut.now
			return yield(fmt.Sprintf("power cut after operation %d of %d, cache %s", n, len(history), what), cut)
		}
		for n := 0; ; n++ {
			if !state(n, "lost", nil) {
				return
			}
			if len(cached) > 0 {
				if !state(n, "kept", cached) || !state(n, "torn", tear(rng, cached, int64(d.spec.SectorSize))) {
					return
				}
				for range 2 {
					some := slices.DeleteFunc(slices.Clone(cached), func(Op) bool { return rng.IntN(2) == 0 })
					if !state(n, "partly lost", some) {
						return
					}
				}
			}
			if n == len(history) {
				return
			}
			if op := history[n]; op.Kind != "sync" {
				cached = append(cached, op)
				continue
			}
			for _, op := range cached {
				base.apply(base.now, op)
			}
			cached = nil
		}
	}
}

// tear keeps a random part of each write.
func tear(rng *rand.Rand, ops []Op, sector int64) []Op {
	var out []Op
	for _, op := range ops {
		if op.Kind != "write" {
			continue
		}
		piece := max(sector, op.Len/16/sector*sector)
		for off := int64(0); off < op.Len; off += piece {
			if rng.IntN(2) == 0 {
				n := min(piece, op.Len-off)
				out = append(out, Op{Kind: "write", Off: op.Off + off, Len: n, Data: op.Data[off : off+n]})
			}
		}
	}
	return out
}
