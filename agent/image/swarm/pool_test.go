package swarm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

const mib = 1 << 20

// clear drops the kept chunks, as if other chunks had arrived.
func (p *pool) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all, p.kept = nil, 0
}

// add keeps a chunk of n bytes that has come.
func (p *pool) add(t *testing.T, chunk, n int) []byte {
	t.Helper()
	if err := p.reserve(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	b := p.take(n)
	p.keep(chunk, published, b, n, false)
	return b
}

// mustBeIdle fails the test if anything is reserved or lent.
func (p *pool) mustBeIdle(t *testing.T) {
	t.Helper()
	if p.reserved != 0 || p.lent != 0 {
		t.Errorf("%d bytes are reserved, %d lent", p.reserved, p.lent)
	}
}

// TestRoom holds that memory of chunks that are thrown out is used again, that of about the right size, and that little
// of it is kept.
func TestRoom(t *testing.T) {
	p := newPool(1)
	first := p.add(t, 1, mib)
	sending := p.pin(1)
	for i := range p.toKeep / mib {
		p.add(t, 10+i, mib)
	}
	for range p.unused / mib {
		if got := p.take(mib); &got[0] == &first[0] {
			t.Fatal("memory that is being sent was used again")
		}
	}
	p.unpin(sending)
	again := false
	for i := range 2 * p.toKeep / mib {
		got := p.add(t, 30+i, mib-1000)
		again = again || &got[0] == &first[0] && len(got) == mib-1000
	}
	if !again {
		t.Error("memory was not used again")
	}

	p = newPool(1)
	large := p.take(mostSpare)
	p.free(large)
	small := p.take(1000)
	if &small[0] == &large[0] {
		t.Error("all of a large piece for a small one")
	}
	p.free(small)
	p.free(p.take(mostSpare - mib))
	if p.unused > mostSpare {
		t.Errorf("%d bytes are kept unused", p.unused)
	}
	p.mustBeIdle(t)
}

// TestKeep holds that memory is bounded, and that chunks being sent stay.
func TestKeep(t *testing.T) {
	p := newPool(1)
	n := p.toKeep / 4 / grain * grain
	for i := range 10 {
		p.add(t, i, n)
	}
	if p.kept > p.toKeep || len(p.all) != 4 || p.pin(0) != nil {
		t.Errorf("%d bytes, %d chunks", p.kept, len(p.all))
	}
	var held []*packed
	for i := 6; i < 10; i++ {
		held = append(held, p.pin(i))
	}
	p.add(t, 20, n)
	if p.kept > p.toKeep || len(p.all) != 4 || p.reserveNow(n) {
		t.Errorf("something that is being sent was thrown out: %d bytes", p.kept)
	}
	p.unpin(held[0])
	if !p.reserveNow(n) {
		t.Fatal("there is room")
	}
	if k := p.keep(21, repacked, p.take(n), n, true); k == nil || k.pins != 1 || p.pin(6) != nil {
		t.Error("there was room")
	}
	p.mustBeIdle(t)
}

// TestOnWay holds that incoming chunks have priority over kept ones, and wait for those being sent.
func TestOnWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1)
		for i := range 2 {
			p.add(t, i, index.MaxStored)
			p.pin(i)
		}
		got := make(chan error, 2)
		for range 2 {
			go func() { got <- p.reserve(t.Context(), index.MaxStored) }()
		}
		synctest.Wait()
		if len(got) != 1 {
			t.Fatalf("%d of two have memory beside what is being sent", len(got))
		}
		p.unpin(p.all[0])
		synctest.Wait()
		if len(got) != 2 || len(p.all) != 1 {
			t.Fatalf("%d of two, and %d chunks are kept", len(got), len(p.all))
		}
		p.unpin(p.all[1])
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.reserve(ctx, p.onWay-p.reserved+1); err == nil || len(p.all) != 1 {
			t.Error("more than chunks on their way may have")
		}
		if p.reserveNow(p.size - p.reserved + 1) {
			t.Error("more than there is")
		}
		for range 2 {
			if err := <-got; err != nil {
				t.Error(err)
			}
			p.release(index.MaxStored)
		}
		p.mustBeIdle(t)
	})
}
