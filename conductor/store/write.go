package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ingot-metal/ingot/conductor/node"
)

// txn is the transaction that the writes of a group share. Those of database/sql start a goroutine each, and one more
// for each of their queries, to watch a context; this one is never cancelled.
type txn struct {
	c   *sql.Conn
	ctx context.Context // of a server that may never answer; else Background
}

// Exec runs a statement.
func (t *txn) Exec(query string, args ...any) (sql.Result, error) {
	return t.c.ExecContext(t.ctx, query, args...)
}

// QueryRow runs a query of one row.
func (t *txn) QueryRow(query string, args ...any) *sql.Row {
	return t.c.QueryRowContext(t.ctx, query, args...)
}

// QueryContext makes it a queryer.
//
//nolint:contextcheck a transaction is for several callers, and ends with none of them
func (t *txn) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.c.QueryContext(t.ctx, query, args...)
}

// QueryRowContext makes it a queryer.
//
//nolint:contextcheck a transaction is for several callers, and ends with none of them
func (t *txn) QueryRowContext(_ context.Context, query string, args ...any) *sql.Row {
	return t.c.QueryRowContext(t.ctx, query, args...)
}

// queue is where writes wait for each other. The one that finds no other at work leads: it commits itself, without
// handing its write to another goroutine and waiting to be woken, which costs as much as a small write. Those that
// arrive meanwhile wait, and the first of them leads next, with all of them in its group. No write waits for a group to
// grow.
type queue struct {
	mu      sync.Mutex
	waiting []*op
	led     bool // a write leads
	closed  bool
	idle    sync.Cond
}

// op is one caller's write. Moving taken from false to true acquires it: a leader does so to run it or to make it lead,
// the caller to give it up.
type op struct {
	run   func(tx *txn) error
	by    node.Requester
	asked bool // requested by a client right now
	taken atomic.Bool
	err   error
	ended chan bool // of those that wait: err is set, or else it is their turn to lead
}

// maxGroup is how many writes share one transaction at most.
const maxGroup = 64

// write runs f in a transaction and returns when that is on disk. It is not run at all if ctx ends while it waits its
// turn.
func (s *Store) write(ctx context.Context, f func(tx *txn) error) error {
	if err := errors.Join(ctx.Err(), s.Fault(), s.Away()); err != nil {
		return err
	}
	if e := node.ExpectedOf(ctx); e != nil {
		f = s.expecting(ctx, e, f)
	}
	o := &op{run: f, by: node.RequesterOf(ctx), asked: node.Asked(ctx)}
	q := &s.queue
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return ErrClosed
	}
	leads := !q.led
	if leads {
		q.led = true
		o.taken.Store(true)
	} else {
		o.ended = make(chan bool, 1)
		q.waiting = append(q.waiting, o)
	}
	q.mu.Unlock()
	if leads {
		s.lead(o)
		return o.err
	}
	ended := false
	select {
	case ended = <-o.ended:
	case <-ctx.Done():
		if o.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		ended = <-o.ended
	case <-s.stop:
		if o.taken.CompareAndSwap(false, true) {
			return ErrClosed
		}
		ended = <-o.ended
	}
	if !ended {
		s.lead(o)
	}
	return o.err
}

// lead commits a write together with those that wait, and lets the next one lead.
func (s *Store) lead(o *op) {
	q := &s.queue
	group := []*op{o}
	q.mu.Lock()
	for len(q.waiting) > 0 && len(group) < maxGroup {
		if next := q.next(); next != nil {
			group = append(group, next)
		}
	}
	q.mu.Unlock()

	s.commit(group)
	for _, other := range group[1:] {
		other.ended <- true
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 && !q.closed {
		if next := q.next(); next != nil {
			next.ended <- false
			return
		}
	}
	q.led = false
	q.idle.Broadcast()
}

// next takes the first of those that wait, with mu held. It is nil if that has given up.
func (q *queue) next() *op {
	o := q.waiting[0]
	q.waiting[0] = nil
	if q.waiting = q.waiting[1:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	if o.taken.CompareAndSwap(false, true) {
		return o
	}
	return nil
}

// close refuses further writes, and waits for the leader.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for q.led {
		q.idle.Wait()
	}
}

// commit runs a group of writes in one transaction and sets their outcome after the journal is on disk.
func (s *Store) commit(group []*op) {
	s.meter.Group(len(group))
	err := s.transact(group)
	s.endNotes(err == nil)
	for _, o := range group {
		o.err = s.cut(cmp.Or(o.err, err))
		switch {
		case s.d.full(o.err):
			o.err = fmt.Errorf("%w: %w", ErrFull, o.err)
		case s.d.damaged(o.err):
			o.err = fmt.Errorf("%w: %w", ErrDamaged, o.err)
		}
	}
}

// errAlone means that the only write of a group has failed, and nothing was written.
var errAlone = errors.New("the write failed")

//nolint:contextcheck a transaction is for several callers, and ends with none of them
func (s *Store) transact(group []*op) error {
	ctx, cancel := s.bounded()
	defer cancel()
	conn, err := s.w.Conn(ctx)
	if err != nil {
		return s.failed("begin transaction", err)
	}
	defer conn.Close()
	tx := &txn{conn, ctx}
	id, err := s.begin(tx)
	if err != nil {
		return s.failed("begin transaction", err)
	}
	if err := s.runGroup(tx, group); err != nil {
		if _, rerr := tx.Exec(`ROLLBACK`); rerr != nil {
			s.dropConn(conn)
		}
		return err
	}
	s.cache.settling(s.fresh)
	_, err = tx.Exec(`COMMIT`)
	if err != nil {
		if _, rerr := tx.Exec(`ROLLBACK`); rerr != nil { // there may be nothing left to roll back
			s.dropConn(conn)
		}
		if err = s.outcome(id, err); err != nil {
			s.cache.settled(nil)
			return fmt.Errorf("commit: %w", err)
		}
	}
	s.cache.settled(s.fresh)
	clear(s.fresh)
	return nil
}

// dropConn closes a connection whose transaction could not be ended, so that no other write continues in it.
func (s *Store) dropConn(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
}

// runGroup runs the writes of a group, each in a savepoint of its own unless it is the only one, and stores their
// notes.
func (s *Store) runGroup(tx *txn, group []*op) error {
	s.fresh = s.fresh[:0]
	if len(group) == 1 { // the transaction is its savepoint
		s.beginNotes(group[0].by, group[0].asked)
		if group[0].err = runOp(group[0], tx); group[0].err != nil {
			return errAlone
		}
		return s.endGroup(tx)
	}
	savepoint := `SAVEPOINT one` // the next one ends the one before in the same message: each costs a server's answer
	for _, o := range group {
		s.beginNotes(o.by, o.asked)
		kept := len(s.fresh)
		if _, err := tx.Exec(savepoint); err != nil {
			return fmt.Errorf("begin savepoint: %w", err)
		}
		savepoint = `RELEASE one; SAVEPOINT one`
		if o.err = runOp(o, tx); o.err != nil {
			s.fresh = s.fresh[:kept]
			s.dropNotes()
			if _, err := tx.Exec(`ROLLBACK TO one`); err != nil {
				// a full disk has ended the transaction of all
				return fmt.Errorf("roll back savepoint: %w", errors.Join(err, o.err))
			}
		}
	}
	if _, err := tx.Exec(`RELEASE one`); err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	return s.endGroup(tx)
}

// runOp turns a panic in a caller's change into that caller's error: the other writes of the group are not to blame for
// it.
func runOp(o *op, tx *txn) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("change panicked: %v", p)
		}
	}()
	return o.run(tx)
}
