package chunked

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
)

// TestRoomLendsEachByteOnce has many borrowers mark what they hold, and look whether somebody else wrote over it.
func TestRoomLendsEachByteOnce(t *testing.T) {
	r := newBufferPool(1000)
	var all sync.WaitGroup
	for id := range 16 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(id), 1))
			for range 500 {
				n := 1 + rng.IntN(400)
				b, err := r.take(t.Context(), n)
				if err != nil || len(b) != n || cap(b) != n {
					t.Errorf("Take(%d) = %d bytes of %d, %v", n, len(b), cap(b), err)
					return
				}
				for i := range b {
					b[i] = byte(id)
				}
				for _, v := range b {
					if v != byte(id) {
						t.Errorf("somebody else's bytes")
						return
					}
				}
				r.give(b[:1+rng.IntN(n)])
			}
		})
	}
	all.Wait()
	if len(r.lent) != 0 || len(r.waiting) != 0 {
		t.Errorf("left: %v, %d waiting", r.lent, len(r.waiting))
	}
	if _, err := r.take(t.Context(), 1001); err == nil {
		t.Error("more than there is")
	}
}

func TestRoomServesInTheOrderOfAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBufferPool(10)
		first, err := r.take(t.Context(), 6)
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		ask := func(ctx context.Context, n int) {
			go func() {
				if b, err := r.take(ctx, n); err == nil {
					order = append(order, n)
					r.give(b)
				}
			}()
			synctest.Wait()
		}
		gone, leave := context.WithCancelCause(t.Context())
		ask(gone, 9)
		ask(t.Context(), 10)
		ask(t.Context(), 1) // there would be room
		leave(errors.New("enough"))
		synctest.Wait()
		if len(order) != 0 {
			t.Fatalf("served: %v", order)
		}
		r.give(first)
		synctest.Wait()
		if len(order) != 2 || order[0] != 10 || order[1] != 1 {
			t.Errorf("served: %v", order)
		}
	})
}
