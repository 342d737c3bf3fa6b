package disk

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/gpt"
)

// TestCheckRoom compares the check before an image is written with the result after it, for tables of all kinds: space
// that was denied never exists, and promised space always does, except if the image may have a partition of its own.
func TestCheckRoom(t *testing.T) {
	const mib = 1 << 20
	r := rand.New(rand.NewPCG(3, 14))
	seen := map[string]int{}
	head := make([]byte, HeadSize)
	const count = 3000
	for range count {
		sector := []int{512, 512, 4096}[r.IntN(3)]
		align := uint64(mib / sector)
		own := r.IntN(2) == 0
		at := align
		var parts []testPart
		for range 1 + r.IntN(4) {
			p := testPart{start: at + align*uint64(r.IntN(3)), size: align * uint64(1+r.IntN(90))}
			if own && r.IntN(3) == 0 {
				p.name = "config-2"
			}
			parts, at = append(parts, p), p.start+p.size
		}
		size := int64(at)*int64(sector) + mib
		d := Disk{Name: "/dev/vda", LogicalSectors: sector, Size: size + mib*[]int64{0, 0, 1, 2, 5, 66, 500}[r.IntN(7)]}
		clear(head)
		kind := "mbr"
		if sector == 4096 || r.IntN(2) == 0 {
			kind = "gpt"
			g := makeGPTTable(t, size, sector, parts)
			for i := range parts {
				if !own {
					e, _ := g.Partition(i + 1)
					e.Type = gpt.ESP
					g.Set(e)
				}
			}
			g.apply(head)
		} else {
			head[510], head[511] = 0x55, 0xaa
			for i, p := range parts {
				e := head[446+16*i:]
				e[4] = 0xa5
				if own {
					e[4] = 0x83
				}
				binary.LittleEndian.PutUint32(e[8:], uint32(p.start))
				binary.LittleEndian.PutUint32(e[12:], uint32(p.size))
			}
		}
		need := mib * int64(1+r.IntN(64))
		before := CheckRoom(head, size, d, "config-2", need)
		p, err := NewPending(d, head, nil, size, size)
		if err != nil {
			t.Fatal(err)
		}
		_, after := p.Reserve("config-2", 64*mib, need)
		switch {
		case before == nil && after == nil:
			seen[kind+" room"]++
		case before != nil && after != nil:
			seen[kind+" no room"]++
			var se *step.Error
			if !errors.As(before, &se) || se.Remedy == "" || before.Error() != after.Error() && !own {
				t.Fatalf("%v, and when the image is written: %v", before, after)
			}
		case before == nil && own:
			seen[kind+" doubt"]++
		default:
			t.Fatalf("%s, %d bytes needed on %d, image of %d, %+v: before %v, after %v", kind, need, d.Size, size,
				parts, before, after)
		}
	}
	for _, kind := range []string{"mbr", "gpt"} {
		for _, what := range []string{" room", " no room", " doubt"} {
			if seen[kind+what] < count/150 {
				t.Errorf("seldom seen: %v", seen)
			}
		}
	}
	// Faults of the image itself come first, in the same words.
	d := Disk{Name: "/dev/vda", LogicalSectors: 512, Size: 64 * mib}
	for _, head := range [][]byte{nil, make([]byte, HeadSize)} {
		if a, b := CheckHead(head, mib, d), CheckRoom(head, mib, d, "config-2", mib); a == nil || b == nil ||
			a.Error() != b.Error() {
			t.Errorf("%v, %v", a, b)
		}
	}
	if err := CheckRoom(make([]byte, HeadSize), 65*mib, d, "config-2", mib); err == nil ||
		!strings.Contains(err.Error(), "larger than the disk") {
		t.Error(err)
	}
}
