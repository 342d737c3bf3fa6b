package chunked

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/images/index"
)

// Comparisons of chunks of one list run concurrently: while one holds digests, others get theirs.
func TestListsAreShared(t *testing.T) {
	x, from := publish(full(1, 3*chunk))
	l := newLists(x, from, newBufferPool(2*index.MaxStored), 1)
	_, done, err := l.of(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, done, err := l.of(t.Context(), 1)
		if err == nil {
			done()
		}
		second <- err
	}()
	select {
	case err := <-second:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the digests of a second chunk are not given while the first one's are in use")
	}
	done()
	if n := from.asked[x.Lists[0].Sum]; n != 1 {
		t.Errorf("the list was fetched %d times", n)
	}
}

// A wrong block list is detected, even if it made the writer skip a block: one that it calls zeros, or one whose
// described content is on the disk.
func TestListsThatLieByOmission(t *testing.T) {
	img := full(1, 5*chunk)
	stale := bytes.Repeat([]byte{0xa5}, block) // what the disk holds
	for name, sum := range map[string]index.BlockSum{"zeros": {}, "kept": index.SumBlock(stale)} {
		x, s := publish(img)
		var list []byte
		for b := 0; b*block < len(img); b++ {
			of := index.SumBlock(img[b*block : (b+1)*block])
			if b == 3*64+5 {
				of = sum
			}
			list = append(list, of[:]...)
		}
		x.Lists[0] = s.add(list)
		m := newMachine(t, fake.DiskSpec{Size: 32 * mib})
		if _, err := m.raw.WriteAt(stale, (3*64+5)*block); err != nil {
			t.Fatal(err)
		}
		_, err := m.write(t.Context(), &Plan{Index: x, Objects: s, Difference: Always})
		if err == nil || !strings.Contains(err.Error(), "block list of the image does not fit its chunk 3") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
