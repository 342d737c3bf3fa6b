package disk

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

// TestPartitioningStaysInItsPlan commits thousands of random tables to random disks: writes are in the image's head, in
// its withheld tail, or in the backup table's sectors at the disk's end, and never in a reserved partition or in the
// body of the image.
func TestPartitioningStaysInItsPlan(t *testing.T) {
	count := 800 // ten thousand with INGOT_FULL
	if os.Getenv("INGOT_FULL") != "" {
		count = 10_000
	}
	rng := rand.New(rand.NewPCG(7, 2026))
	const mib = 1 << 20
	m := fake.NewDisks(t.TempDir())
	committed, reserved := 0, 0
	for i := range count {
		sector := []int{512, 512, 4096}[rng.IntN(3)]
		ss := int64(sector)
		image := (3*mib + rng.Int64N(6*mib)) / ss * ss
		size := image + rng.Int64N(12*mib)/ss*ss
		m.Remove("vda")
		f := m.Add(fake.DiskSpec{Name: "vda", Serial: "one", Size: size, SectorSize: sector, Fill: 0xa5})
		disks, err := List(t.Context(), m.Root())
		if err != nil {
			t.Fatal(err)
		}
		d := disks[0]

		// An image whose head and tail are all there is of it.
		img := sparseImage{size: image, head: make([]byte, mib), tail: make([]byte, 40*ss)}
		gptTable := rng.IntN(3) > 0
		var parts []testPart
		for at, end := uint64(2+16384/ss)+rng.Uint64N(64), uint64(image/ss)-uint64(2+16384/ss); at+4 < end &&
			len(parts) < 4; {
			n := 1 + rng.Uint64N(end-at)
			parts = append(parts, testPart{"p", at, n})
			at += n + rng.Uint64N(500)
		}
		img.put(t, gptTable, sector, parts)
		tailOff := max(mib, image-TailSectors*ss)
		tail := img.tail[int64(len(img.tail))-(image-tailOff):]
		facts := &step.Facts{}
		p, err := NewPending(d, img.head, tail, tailOff, image)
		if err != nil {
			continue // a table that does not fit, or that nothing boots from
		}
		SetPending(facts, p)
		var mine []Partition
		if rng.IntN(2) == 0 {
			if part, err := p.Reserve("config-2", 1+rng.Int64N(3*mib), mib/2); err == nil {
				mine = append(mine, part)
				reserved++
			}
		}
		put := make([]byte, mib)
		if _, err := f.WriteAt(put, 0); err != nil { // as write_image leaves the head
			t.Fatal(err)
		}
		if _, err := Commit(t.Context(), facts, m, nil); err != nil {
			t.Fatalf("disk %d: %v (image of %d, disk of %d, sectors of %d, %v)", i, err, image, size, sector, parts)
		}
		committed++
		_, backupLBA := p.table.backup()
		allowed := []span{{0, mib}, {tailOff, image - tailOff}}
		if backup, _ := p.table.backup(); backup != nil {
			allowed = append(allowed, span{int64(backupLBA) * ss, int64(len(backup))})
		}
		for _, op := range f.History() {
			if op.Kind == "sync" {
				continue
			}
			left := []piece{{op.Off, make([]byte, op.Len)}}
			for _, a := range allowed {
				var next []piece
				for _, l := range left {
					next = append(next, l.without(a)...)
				}
				left = next
			}
			for _, l := range left {
				t.Fatalf("disk %d: bytes %d to %d were written, outside of the plan %v", i, l.off,
					l.off+int64(len(l.data)), allowed)
			}
			for _, r := range mine {
				if op.Off < r.Start+r.Size && r.Start < op.Off+op.Len {
					t.Fatalf("disk %d: bytes %d to %d were written, in the reserved partition at %d+%d", i, op.Off,
						op.Off+op.Len, r.Start, r.Size)
				}
			}
		}
		if i%50 == 0 { // and what a reader sees: everything else is as it was
			got := contents(t, f, size)
			for _, a := range allowed {
				for off := a.off; off < min(a.off+a.n, size); off++ {
					got[off] = 0xa5
				}
			}
			if len(bytes.Trim(got, "\xa5")) > 0 {
				t.Fatalf("disk %d: something else changed", i)
			}
		}
	}
	if committed < count/2 || reserved < count/10 {
		t.Errorf("only %d of %d tables were committed, %d with a reserved partition", committed, count, reserved)
	}
}

// sparseImage is the two ends of an image.
type sparseImage struct {
	size       int64
	head, tail []byte
}

func (s *sparseImage) put(t *testing.T, isGPT bool, sector int, parts []testPart) {
	if !isGPT {
		b := makeMBR(1<<20, parts[:min(len(parts), 4)]...)
		copy(s.head, b)
		return
	}
	g := makeGPTTable(t, s.size, sector, parts)
	g.apply(s.head)
	b, start := g.backup()
	if off := int64(start)*int64(sector) - (s.size - int64(len(s.tail))); off >= 0 {
		copy(s.tail[off:], b)
	}
}
