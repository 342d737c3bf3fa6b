package fake

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestDiskHoldsWhatWasWritten compares a disk, its replays and its state after a power cut with plain memory, after many operations of any kind.
func TestDiskHoldsWhatWasWritten(t *testing.T) {
	const size, sector = 16 * pageSize, 512
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := NewDisks(t.TempDir())
		fill := byte(seed % 2 * 0xa5)
		d := m.Add(DiskSpec{Name: "vda", Size: size, Fill: fill, Record: true})
		h, err := m.OpenExclusive(t.Context(), "/dev/vda")
		if err != nil {
			t.Fatal(err)
		}
		now := bytes.Repeat([]byte{fill}, size)
		stable := bytes.Clone(now)
		var moments [][]byte // as the disk was after each operation
		for range 200 {
			off := r.Int64N(size/sector) * sector
			n := min(size-off, (1+r.Int64N(6*pageSize/sector))*sector)
			switch r.IntN(4) {
			case 0:
				clear(now[off : off+n])
				err = h.Punch(off, n)
			case 1:
				copy(stable, now)
				err = h.Sync()
			default:
				p := bytes.Repeat([]byte{byte(r.Uint32())}, int(n))
				copy(now[off:], p)
				_, err = h.WriteAt(p, off)
				clear(p) // the caller's again
			}
			if err != nil {
				t.Fatal(err)
			}
			moments = append(moments, bytes.Clone(now))
		}
		holds := func(d *Disk, want []byte) {
			t.Helper()
			got := make([]byte, size)
			if _, err := d.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("seed %d: the disk is not what was written to it", seed)
			}
		}
		holds(d, now)
		for range 50 {
			i, j := r.IntN(len(moments)), r.IntN(len(moments))
			a, b := d.Replay(d.History()[:i+1]), d.Replay(d.History()[:j+1])
			holds(a, moments[i])
			from := r.Int64N(size)
			to := from + r.Int64N(size-from)
			if got, want := a.Same(b, from, to), bytes.Equal(moments[i][from:to], moments[j][from:to]); got != want {
				t.Errorf("seed %d: after %d and %d operations Same(%d, %d) = %v, want %v", seed, i, j, from, to, got, want)
			}
		}
		d.PowerCut(nil)
		holds(d, stable)
	}
}
