package fake

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestDiskHoldsWhatWasWritten compares a disk, its replays and its state after a power cut with plain memory, after
// many operations of any kind.
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
				t.Errorf("seed %d: after %d and %d operations Same(%d, %d) = %v, want %v", seed, i, j, from, to, got,
					want)
			}
		}
		d.PowerCut(nil)
		holds(d, stable)
	}
}

// TestLargeHoles: of a hole, whole MiB are kept otherwise than the rest, on disks with and without a fill.
func TestLargeHoles(t *testing.T) {
	const mib, size = blockPages * pageSize, 4 * blockPages * pageSize
	for _, fill := range []byte{0, 0xa5} {
		m := NewDisks(t.TempDir())
		d := m.Add(DiskSpec{Name: "vda", Size: size, Fill: fill, Record: true})
		h, err := m.OpenExclusive(t.Context(), "/dev/vda")
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte{fill}, size)
		before := d.Replay(nil)
		for i, op := range []struct {
			off, n int64
			data   byte // 0: a hole
		}{
			{mib - 512, 2*mib + 1024, 0}, {mib + 8192, 512, 'x'}, {2*mib + 4096, 4096, 'y'}, {3 * mib, mib, 'z'},
			{3*mib + 4096, mib - 4096, 0}, {2 * mib, mib, 0}, {0, size, 0}, {mib, 512, 'w'},
		} {
			if op.data == 0 {
				clear(want[op.off : op.off+op.n])
				err = h.Punch(op.off, op.n)
			} else {
				p := bytes.Repeat([]byte{op.data}, int(op.n))
				copy(want[op.off:], p)
				_, err = h.WriteAt(p, op.off)
			}
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, size)
			if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("fill %x, operation %d: the disk is not what was written to it (%v)", fill, i, err)
			}
			if at := d.Differs(want, 0); at != -1 {
				t.Fatalf("fill %x, operation %d: Differs of the disk's own bytes = %d, want -1", fill, i, at)
			}
			if at := d.Differs([]byte("something else"), op.off); at != 0 {
				t.Errorf("fill %x, operation %d: Differs of other bytes = %d, want 0", fill, i, at)
			}
			again := d.Replay(d.History())
			if !again.Same(d, 0, size) ||
				again.Same(before, 0, size) != bytes.Equal(want, bytes.Repeat([]byte{fill}, size)) {
				t.Errorf("fill %x, operation %d: Same is wrong", fill, i)
			}
		}
		d.PowerCut(nil)
		if !d.Same(before, 0, size) {
			t.Errorf("fill %x: what was not flushed outlived the power cut", fill)
		}
		if n := d.Differs(make([]byte, 8192), size-4096); n != map[byte]int64{0: 4096, 0xa5: 0}[fill] {
			t.Errorf("fill %x: over the end Differs = %d", fill, n)
		}
	}
}
