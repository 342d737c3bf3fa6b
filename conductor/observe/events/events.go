// Package events lets any number of readers follow the stored events, each at its own pace.
//
// A Hub gets events after they are on disk (store.Announce), keeps the newest in memory, and wakes the readers. It
// holds nothing per reader but a place to wake it: a reader that is slow, or comes back after a while, reads events
// that memory no longer has from the store, and events that the store no longer has are reported as a gap. So no writer
// waits for a reader, and no reader misses events unnoticed. IDs rise by one from event to event, over restarts too.
package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// log is where events are that memory no longer has.
type log interface {
	Events(ctx context.Context, after int64, limit int) ([]node.Event, error)
}

// Limits of a Hub.
const (
	kept   = 4096 // events in memory
	atOnce = 500  // events that Next returns at most
)

// ErrClosed means that the hub has been closed: the program stops.
var ErrClosed = errors.New("the conductor stops")

// TooManyError says that there are too many readers already.
type TooManyError struct {
	Limit int
	User  string // who has too many readers; empty: all users together
}

func (e *TooManyError) Error() string {
	if e.User == "" {
		return fmt.Sprintf("%d readers follow the events already, which is the limit: try again later", e.Limit)
	}
	return fmt.Sprintf("%s has %d readers that follow the events already, which is the limit: close some of them",
		e.User, e.Limit)
}

// Hub spreads events. It is safe for concurrent use.
type Hub struct {
	log log

	mu      sync.Mutex
	ring    []node.Event // the newest, oldest first
	last    int64        // ID of the newest event there is
	readers map[*Reader]struct{}
	users   map[string]int
	closed  bool
}

// New makes a hub over a log. Start sets where the log ends.
func New(l log) *Hub {
	return &Hub{log: l, readers: map[*Reader]struct{}{}, users: map[string]int{}}
}

// Start sets the ID of the newest event, once, before Publish is first called or at the same time.
func (h *Hub) Start(last int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = max(h.last, last)
}

// Publish wakes the readers for events that are on disk, in the order of their IDs. It does not wait for anybody.
func (h *Hub) Publish(events []node.Event) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) > 0 && events[0].ID != h.ring[len(h.ring)-1].ID+1 {
		h.ring = nil // another program wrote in between: those events are in the log
	}
	h.ring = append(h.ring, events...)
	if over := len(h.ring) - kept; over > kept/4 { // not for each event
		h.ring = append(make([]node.Event, 0, 2*kept), h.ring[over:]...)
	}
	h.last = events[len(events)-1].ID
	for r := range h.readers {
		r.poke()
	}
}

// Close ends all readers.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for r := range h.readers {
		r.poke()
	}
}

// Last is the ID of the newest event.
func (h *Hub) Last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// Watched returns how many readers there are, and how many events the slowest of them has not read.
func (h *Hub) Watched() (readers int, lag int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		lag = max(lag, h.last-r.after.Load())
	}
	return len(h.readers), lag
}

// Reader is one that follows the events. It is not safe for concurrent use.
type Reader struct {
	h     *Hub
	user  string
	after atomic.Int64 // written by the reader alone
	wake  chan struct{}
}

// Follow makes a reader of all events after an ID; negative: of those from now on. user is the user by whom it is
// counted. An error is ErrClosed or a *TooManyError.
func (h *Hub) Follow(user string, after int64) (*Reader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, ErrClosed
	case len(h.readers) >= limit.EventReaders:
		return nil, &TooManyError{Limit: limit.EventReaders}
	case h.users[user] >= limit.EventReadersPerUser:
		return nil, &TooManyError{Limit: limit.EventReadersPerUser, User: user}
	}
	if after < 0 {
		after = h.last
	}
	r := &Reader{h: h, user: user, wake: make(chan struct{}, 1)}
	r.after.Store(after)
	h.readers[r] = struct{}{}
	h.users[user]++
	return r, nil
}

// Close releases the reader's place. It may be called twice.
func (r *Reader) Close() {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if _, ok := r.h.readers[r]; !ok {
		return
	}
	delete(r.h.readers, r)
	if r.h.users[r.user]--; r.h.users[r.user] == 0 {
		delete(r.h.users, r.user)
	}
}

func (r *Reader) poke() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyhow
	}
}

// Gap is a range of events that are not kept any more; both ends are missing.
type Gap struct{ From, To int64 }

// Wake is ready when Next may have something; also when the hub is closed.
func (r *Reader) Wake() <-chan struct{} { return r.wake }

// After is the ID of the event that was read last.
func (r *Reader) After() int64 { return r.after.Load() }

// Next returns the next events without waiting; none when there are none yet. gap describes the events missing before
// them. After Next has returned something it should be called again before Wake is waited for. After the hub is closed
// it returns ErrClosed.
func (r *Reader) Next(ctx context.Context) (events []node.Event, gap *Gap, err error) {
	after := r.after.Load()
	r.h.mu.Lock()
	last, closed := r.h.last, r.h.closed
	if ring := r.h.ring; len(ring) > 0 && after+1 >= ring[0].ID && after < last {
		from := int(after + 1 - ring[0].ID)
		events = append(events, ring[from:min(len(ring), from+atOnce)]...)
	}
	r.h.mu.Unlock()
	switch {
	case closed:
		return nil, nil, ErrClosed
	case after > last:
		// The reader comes from another conductor, which knew of later events already, or from another life: the
		// database was replaced by an older one.
		its, err := r.h.log.Events(ctx, after-1, 1)
		if err != nil || len(its) > 0 && its[0].ID == after {
			return nil, nil, err
		}
		gap = &Gap{From: last + 1, To: after}
		r.after.Store(last)
		return nil, gap, nil
	case after == last:
		return nil, nil, nil
	case events == nil:
		if events, err = r.h.log.Events(ctx, after, atOnce); err != nil {
			return nil, nil, err
		}
		if len(events) == 0 { // removed altogether
			gap = &Gap{From: after + 1, To: last}
			r.after.Store(last)
			return nil, gap, nil
		}
	}
	if first := events[0].ID; first > after+1 {
		gap = &Gap{From: after + 1, To: first - 1}
	}
	r.after.Store(events[len(events)-1].ID)
	return events, gap, nil
}
