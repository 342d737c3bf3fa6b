package turn

import (
	"context"
	"sync"
)

// Locks holds one lock per controller. A node that finds it taken waits in line and is called when it is handed over;
// workers don't wait for it, they leave the node and come back.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock    // by key
	mine map[string][]string // keys that a holder has, or has been handed
}

type lock struct {
	holder string
	line   []waiter
}

type waiter struct {
	id   string
	call func()
}

// NewLocks makes locks, all free.
func NewLocks() *Locks {
	return &Locks{held: map[string]*lock{}, mine: map[string][]string{}}
}

// Try takes the lock of key for id, or has call called when the lock has been handed to id.
func (t *Locks) Try(key, id string, call func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.held[key]
	if l == nil {
		t.held[key] = &lock{holder: id}
		t.mine[id] = append(t.mine[id], key)
		return true
	}
	if l.holder == id {
		return true
	}
	for _, w := range l.line {
		if w.id == id {
			return false
		}
	}
	l.line = append(l.line, waiter{id, call})
	return false
}

// TryNow takes the lock of key for id if it is free, and does not stand in line for it.
func (t *Locks) TryNow(key, id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[key] != nil {
		return false
	}
	t.held[key] = &lock{holder: id}
	t.mine[id] = append(t.mine[id], key)
	return true
}

// InLine is how many wait for a lock.
func (t *Locks) InLine() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.held {
		n += len(l.line)
	}
	return n
}

// Release hands all locks of id to the next in line, including any that was handed to it and not used.
func (t *Locks) Release(id string) {
	t.mu.Lock()
	var calls []func()
	for _, key := range t.mine[id] {
		l := t.held[key]
		if len(l.line) == 0 {
			delete(t.held, key)
			continue
		}
		w := l.line[0]
		l.line = l.line[1:]
		l.holder = w.id
		t.mine[w.id] = append(t.mine[w.id], key)
		calls = append(calls, w.call)
	}
	delete(t.mine, id)
	t.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// Wait takes the lock of key for id, waiting its turn. Callers use an id of their own, not a node's.
func (t *Locks) Wait(ctx context.Context, key, id string) error {
	ready := make(chan struct{})
	if t.Try(key, id, func() { close(ready) }) {
		return nil
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	if l := t.held[key]; l != nil {
		for i, w := range l.line {
			if w.id == id {
				l.line = append(l.line[:i:i], l.line[i+1:]...)
				break
			}
		}
	}
	t.mu.Unlock()
	t.Release(id) // in case it was handed over just now
	return ctx.Err()
}
