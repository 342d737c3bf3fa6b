package chunked

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// All who compare chunks of one list do so at once: while one holds digests, others get theirs.
func TestListsAreShared(t *testing.T) {
	x, from := publish(full(1, 3*chunk))
	l := newLists(x, from, newRoom(2*index.MaxStored), 1)
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
