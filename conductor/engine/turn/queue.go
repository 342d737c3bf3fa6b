// Package turn decides the order: which node is looked at next, and which node may use a controller.
//
// A Queue hands nodes out to workers, each when it is due and to one worker at a time. Locks hold a controller for one
// node at a time; the others wait in line. Both are in memory only: after a restart the lines form anew. Safe for
// concurrent use.
package turn

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Never is how long a node waits that only an event can move.
const Never = time.Duration(-1)

// Queue says which node is to be looked at next, and when. Every node is in it once at most, and a node that a worker
// has is not given out again before it is done, so the queue never holds more than there are nodes. Who is due first
// comes first.
type Queue struct {
	mu   sync.Mutex
	at   map[string]time.Time // when to look; the truth, of which heap may hold stale copies
	busy map[string]bool
	heap dueHeap
	poke chan struct{}
}

type due struct {
	id string
	at time.Time
}

// NewQueue makes an empty queue.
func NewQueue() *Queue {
	return &Queue{at: map[string]time.Time{}, busy: map[string]bool{}, poke: make(chan struct{}, 1)}
}

// Wake has id looked at by t, or earlier if that was planned already.
func (q *Queue) Wake(id string, t time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old, ok := q.at[id]; ok && !t.Before(old) {
		return
	}
	q.at[id] = t
	heap.Push(&q.heap, due{id, t})
	q.nudge()
}

func (q *Queue) nudge() {
	select {
	case q.poke <- struct{}{}:
	default:
	}
}

// Next waits until a node is due and hands it out, or returns false when ctx ends.
func (q *Queue) Next(ctx context.Context) (string, bool) {
	for {
		id, wait := q.take()
		if id != "" {
			return id, ctx.Err() == nil
		}
		var timer <-chan time.Time
		var t *time.Timer
		if wait >= 0 {
			t = time.NewTimer(wait)
			timer = t.C
		}
		select {
		case <-q.poke:
		case <-timer:
		case <-ctx.Done():
		}
		if t != nil {
			t.Stop()
		}
		if ctx.Err() != nil {
			return "", false
		}
	}
}

// take returns a node that is due, or how long until one is; negative: unknown.
func (q *Queue) take() (string, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.heap) > 0 {
		d := q.heap[0]
		if at, ok := q.at[d.id]; !ok || !at.Equal(d.at) || q.busy[d.id] {
			heap.Pop(&q.heap) // stale, or a worker has it: done puts it back
			continue
		}
		if d.at.After(now) {
			return "", d.at.Sub(now)
		}
		heap.Pop(&q.heap)
		delete(q.at, d.id)
		q.busy[d.id] = true
		return d.id, 0
	}
	return "", -1
}

// Take gives a node out of turn, to one that is no worker, and reports whether no worker has it. Done takes it back.
func (q *Queue) Take(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	free := !q.busy[id]
	q.busy[id] = true
	return free
}

// Done takes a node back, to be looked at after a while (negative: when it is woken).
func (q *Queue) Done(id string, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, id)
	at, woken := q.at[id]
	if after >= 0 {
		if t := time.Now().Add(after); !woken || t.Before(at) {
			at, woken = t, true
		}
	}
	if !woken {
		return
	}
	q.at[id] = at
	heap.Push(&q.heap, due{id, at})
	q.nudge()
}

// Load returns how many nodes are due now and wait for a worker, and how many a worker has.
func (q *Queue) Load() (due, working int) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, at := range q.at {
		if !q.busy[id] && !at.After(now) {
			due++
		}
	}
	return due, len(q.busy)
}

// Len is how many entries the queue holds in memory, stale ones among them.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.heap)
}

type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	old := *h
	d := old[len(old)-1]
	*h = old[:len(old)-1]
	return d
}
