package disk

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
)

// TestView writes and reads at random in a partition that begins in the image's head and ends in its tail, on disks of
// both kinds of sectors: each read returns the written data, the head stays empty on the disk, and nothing outside of
// the partition changes.
func TestView(t *testing.T) {
	const mib = 1 << 20
	rng, noise := rand.New(rand.NewPCG(5, 2026)), rand.NewChaCha8([32]byte{5})
	for _, sector := range []int{512, 4096} {
		start, size := int64(7*sector), int64(3*mib)+mib/2
		img := makeMBR(start+size, testPart{"", 7, uint64(size) / 512})
		m, f, d := oneDisk(t, fake.DiskSpec{Size: 6 * mib, SectorSize: sector})
		tail := int64(len(img)) - TailSectors*int64(sector)
		p := &Pending{Disk: d, head: bytes.Clone(img[:HeadSize]), tail: bytes.Clone(img[tail:]), tailOff: tail,
			added: map[string]Partition{}}
		dev, err := p.Open(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dev.WriteAt(img[HeadSize:tail], HeadSize); err != nil {
			t.Fatal(err)
		}
		before := contents(t, f, 6*mib)
		part := Partition{Number: 1, Start: start, Size: size}
		v, err := p.View(dev, part)
		if err != nil {
			t.Fatal(err)
		}
		model := bytes.Clone(img[start:])
		for range 400 {
			n := 1 + rng.Int64N([]int64{10, 5000, mib}[rng.IntN(3)])
			off := rng.Int64N(size)
			switch rng.IntN(4) { // the borders are where it may go wrong
			case 0:
				off = max(0, HeadSize-start-rng.Int64N(n+1))
			case 1:
				off = max(0, tail-start-rng.Int64N(n+1))
			}
			n = min(n, size-off)
			b := make([]byte, n)
			if rng.IntN(2) == 0 {
				noise.Read(b)
				if _, err := v.WriteAt(b, off); err != nil {
					t.Fatalf("write %d bytes at %d: %v", n, off, err)
				}
				copy(model[off:], b)
			} else if _, err := v.ReadAt(b, off); err != nil || !bytes.Equal(b, model[off:off+n]) {
				t.Fatalf("sectors of %d: %d bytes at %d read wrong, %v", sector, n, off, err)
			}
		}
		b := make([]byte, 100)
		if n, err := v.ReadAt(b, size-10); n != 10 || !errors.Is(err, io.EOF) {
			t.Errorf("behind the end: %d, %v", n, err)
		}
		for _, off := range []int64{-1, size - 99, size + 1} {
			if _, err := v.WriteAt(b, off); err == nil {
				t.Errorf("100 bytes are written at %d of %d", off, size)
			}
		}
		after := contents(t, f, 6*mib)
		if !bytes.Equal(before[:HeadSize], after[:HeadSize]) || !bytes.Equal(before[tail:], after[tail:]) {
			t.Error("what is held back, or not the partition's, was written to the disk")
		}
		if !bytes.Equal(after[HeadSize:tail], model[HeadSize-start:tail-start]) ||
			!bytes.Equal(p.head[:start], img[:start]) {
			t.Error("the disk does not hold what was written, or the head's beginning has changed")
		}
		if _, err := p.View(dev, Partition{Start: 5 * mib, Size: 2 * mib}); err == nil {
			t.Error("a partition outside of the disk has a view")
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
