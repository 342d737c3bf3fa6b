package disk

import (
	"bytes"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
)

// turncoat is a device that punches only for a while, and afterwards returns the old content of punched ranges, or that
// punches less than requested. It counts.
type turncoat struct {
	Device
	raw                              *fake.Disk
	punches, lieAfter, reads, writes int
	punched                          []span
	short                            bool
}

func (d *turncoat) Punch(off, n int64) error {
	if d.punches++; d.lieAfter > 0 && d.punches > d.lieAfter {
		for _, s := range d.punched {
			d.raw.WriteAt(bytes.Repeat([]byte{0xa5}, int(s.n)), s.off)
		}
		return nil
	}
	d.punched = append(d.punched, span{off, n})
	return d.Device.Punch(off, n)
}

func (d *turncoat) ReadAt(p []byte, off int64) (int, error) {
	d.reads++
	return d.Device.ReadAt(p, off)
}

func (d *turncoat) WriteAt(p []byte, off int64) (int, error) {
	d.writes++
	if d.short {
		return len(p) - 512, nil
	}
	return d.Device.WriteAt(p, off)
}

func newTurncoat(t *testing.T, size int64) (*turncoat, *fake.Disk) {
	t.Helper()
	m, f, _ := oneDisk(t, fake.DiskSpec{Size: size})
	dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
	if err != nil {
		t.Fatal(err)
	}
	return &turncoat{Device: dev, raw: f}, f
}

// TestZeroerOfFragmentedImages: however many ranges there are, an honest device is not written to, and not read more
// than once for each.
func TestZeroerOfFragmentedImages(t *testing.T) {
	const ranges = 500
	dev, f := newTurncoat(t, ranges*2*grain)
	z := NewZeroer(dev)
	z.most = 100
	for i := range int64(ranges) {
		if err := z.Zero(t.Context(), i*2*grain, grain); err != nil {
			t.Fatal(err)
		}
	}
	if dev.writes != 0 || z.Written != 0 || z.Punched != ranges*grain {
		t.Errorf("%d writes, %d bytes written, %d punched", dev.writes, z.Written, z.Punched)
	}
	if most := 5*wellKnown + ranges - wellKnown; dev.reads > most || dev.reads < ranges {
		t.Errorf("%d reads, want %d to %d", dev.reads, ranges, most)
	}
	got := contents(t, f, ranges*2*grain)
	for i := 0; i < len(got); i += 512 {
		if zero := isZero(got[i : i+512]); zero != (i/grain%2 == 0) {
			t.Fatalf("byte %d and following are zero: %v", i, zero)
		}
	}
}

// TestZeroerFindsALieLate: a device that lies after many honest punches gets zeros in every range so far, also those
// that are remembered in grains, and in nothing else.
func TestZeroerFindsALieLate(t *testing.T) {
	const ranges, size = 300, 400 * 3 * grain
	dev, f := newTurncoat(t, size)
	dev.lieAfter = 200
	z := NewZeroer(dev)
	z.most = 100
	var want []span
	for i := range int64(ranges) {
		s := span{i*3*grain + i%3*512, grain + i%2*grain}
		if want = append(want, s); z.Zero(t.Context(), s.off, s.n) != nil {
			t.Fatal(s)
		}
	}
	if dev.punches > dev.lieAfter+1 {
		t.Errorf("%d punches of a device that lies after %d", dev.punches, dev.lieAfter)
	}
	if z.Punched != 0 || dev.writes < ranges {
		t.Errorf("punched %d, %d writes", z.Punched, dev.writes)
	}
	got := contents(t, f, size)
	for at, i := 0, 0; at < size; at += 512 {
		for i < len(want) && int64(at) >= want[i].off+want[i].n {
			i++
		}
		in := i < len(want) && int64(at) >= want[i].off
		if isZero(got[at:at+512]) != in {
			t.Fatalf("byte %d, of range %d (%v): zero %v", at, i, in, !in)
		}
	}
}

// TestZeroerBeyondMemory: a set of grains that would be too large is not begun.
func TestZeroerBeyondMemory(t *testing.T) {
	var g grains
	const leaf = leafSize * 8 * grain
	for i := range int64(maxLeafs) {
		if !g.add(i*leaf, grain) {
			t.Fatal(i)
		}
	}
	if !g.add(5*grain, 2*grain) || g.add((maxLeafs-1)*leaf, 2*leaf) || g.add(maxLeafs*leaf, grain) {
		t.Error("a set of the wrong size")
	}
	var got []span
	if err := g.each(func(off, n int64) error { got = append(got, span{off, n}); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != maxLeafs+1 || got[0] != (span{0, grain}) || got[1] != (span{5 * grain, 2 * grain}) ||
		got[maxLeafs] != (span{(maxLeafs - 1) * leaf, grain}) {
		t.Errorf("%d ranges, %v", len(got), got[:2])
	}
}

func TestZeroerOfADeviceThatTakesLess(t *testing.T) {
	dev, _ := newTurncoat(t, 8<<20)
	dev.short = true
	z := NewZeroer(dev)
	z.written = true
	if err := z.Zero(t.Context(), 0, 1<<20); err == nil {
		t.Error("a short write of zeros went through")
	}
}
