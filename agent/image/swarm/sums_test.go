package swarm

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images/index"
)

// away is an origin that has gone before it gave the block list.
type away struct {
	list  index.Object
	asked chan struct{}
}

func (a away) Object(ctx context.Context, o index.Object, _ []byte) error {
	a.asked <- struct{}{}
	<-ctx.Done()
	return context.Cause(ctx)
}

// While a neighbour's request waits for an origin that is away, a write can still be given up, and one that is complete
// ends.
func TestOriginAwayDelaysNoMember(t *testing.T) {
	raw := make([]byte, index.ChunkSize)
	rand.Read(raw[:mib])
	z, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	stored := z.EncodeAll(raw, nil)
	list := index.Of([]byte("list"))
	x := &index.Index{Size: 2 * index.ChunkSize, Chunks: []index.Object{index.Of(stored), index.Of(stored)},
		Lists: []index.Object{list}}
	from := away{list, make(chan struct{}, 9)}
	m := newMember(New(nil, func() {}), x, Image{}, from, func(_ int, off int64, dst []byte) error {
		copy(dst, raw[off:])
		return nil
	})
	m.Have(0)
	packed := make(chan error, 1)
	go func() {
		_, err := m.pack(0)
		packed <- err
	}()
	<-from.asked

	why := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	ends(t, "the check of a chunk that a neighbour packed anew", func() {
		if err := m.sums.check(ctx, 1, raw); !errors.Is(err, why) {
			t.Error(err)
		}
	})
	ends(t, "Rest", m.Rest)
	m.shut()
	if err := <-packed; err == nil {
		t.Error("a chunk was packed that could not be verified")
	}
}

func ends(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s does not end", what)
	}
}
