package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Gate lets a number of peers open their connections at a time; the others wait in the order in which they came. When
// thousands come at once, as after a restart, all of them together would take so long that each gives up and comes
// again, and the work done for it is lost.
//
// A place is held for a short time at most: who is slow goes on without one, so that it does not hold up the others. On
// a machine whose processors are busy all are slow: then it is held for longer, or ever more would go on beside each
// other until none of them comes to its end in time.
type Gate struct {
	places chan struct{}
	closed chan struct{}
	once   sync.Once
	usual  atomic.Int64 // how long those take that succeed, in nanoseconds
}

// NewGate makes a Gate for so many peers at a time.
func NewGate(places int) *Gate {
	return &Gate{places: make(chan struct{}, places), closed: make(chan struct{})}
}

// Enter waits for a place and holds it for at most hold, or three times as long as a success usually takes, but not
// for longer than most. It is nil if none became free within wait, or the gate was closed: then the peer is to be sent
// away.
func (g *Gate) Enter(wait, hold, most time.Duration) *Place {
	select {
	case g.places <- struct{}{}:
	default:
		patience, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		select {
		case g.places <- struct{}{}:
		case <-g.closed:
			return nil
		case <-patience.Done():
			return nil
		}
	}
	p := &Place{leave: sync.OnceFunc(func() { <-g.places })}
	p.timer = time.AfterFunc(min(max(3*time.Duration(g.usual.Load()), hold), most), p.leave)
	return p
}

// weight is how many of the newest successes the usual time is about.
const weight = 16

// Took notes how long a success took; longer ones than most count as that.
func (g *Gate) Took(d, most time.Duration) {
	was := g.usual.Load()
	g.usual.CompareAndSwap(was, was+(int64(min(d, most))-was)/weight) // one of two at the same time is enough
}

// Close sends all away who wait.
func (g *Gate) Close() { g.once.Do(func() { close(g.closed) }) }

// Place is one peer's place. The methods of a nil Place do nothing.
type Place struct {
	leave func()
	timer *time.Timer
}

// Stay holds the place for at most hold from now on, if it is still held.
func (p *Place) Stay(hold time.Duration) {
	if p != nil && p.timer.Stop() {
		p.timer.Reset(hold)
	}
}

// Leave gives the place to the next one.
func (p *Place) Leave() {
	if p != nil {
		p.timer.Stop()
		p.leave()
	}
}
