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
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// txn is the transaction that the writes of a group share. Those of database/sql start a goroutine each, and one more
// for each of their queries, to watch a context; this one is never cancelled.
//
// Each answer of a server that is waited for takes as long as its statement, and no other conductor can write
// meanwhile. So statements without a result are kept back there, and sent together before the next one that has a
// result, and at the end of each write.
type txn struct {
	c      *sql.Conn
	ctx    context.Context // of a server that may never answer; else Background
	server bool
	later  []postgres.Statement
	failed error // of one that was kept back
}

// Exec runs a statement.
func (t *txn) Exec(query string, args ...any) (sql.Result, error) {
	if err := t.flush(); err != nil {
		return nil, err
	}
	return t.c.ExecContext(t.ctx, query, args...)
}

// QueryRow runs a query of one row. If a statement that was kept back fails, the row's error does not say how.
func (t *txn) QueryRow(query string, args ...any) *sql.Row {
	_ = t.flush() // the server runs nothing more in this transaction, and failed is there
	return t.c.QueryRowContext(t.ctx, query, args...)
}

// flush runs the statements that were kept back, and more without a result.
func (t *txn) flush(more ...postgres.Statement) error {
	all := append(t.later, more...)
	t.later = nil
	if t.failed != nil || len(all) == 0 {
		return t.failed
	}
	if !t.server {
		for _, st := range all {
			if _, err := t.c.ExecContext(t.ctx, st.Query, st.Args...); err != nil {
				return fmt.Errorf("%s: %w", st.What, err)
			}
		}
		return nil
	}
	t.failed = t.c.Raw(func(c any) error { return postgres.Together(t.ctx, c, all) })
	return t.failed
}

// rollBack takes back what was done since a savepoint, or all, and what was kept back is forgotten.
func (t *txn) rollBack(how string) error {
	t.later, t.failed = nil, nil
	_, err := t.Exec(how)
	return err
}

// QueryContext makes it a queryer.
//
//nolint:contextcheck a transaction is for several callers, and ends with none of them
func (t *txn) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.flush(); err != nil {
		return nil, err
	}
	return t.c.QueryContext(t.ctx, query, args...)
}

// QueryRowContext makes it a queryer.
//
//nolint:contextcheck a transaction is for several callers, and ends with none of them
func (t *txn) QueryRowContext(_ context.Context, query string, args ...any) *sql.Row {
	return t.QueryRow(query, args...)
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
	run   func(tx *txn) error // more than once, if the first times are undone
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

// tries is how often a write is run at most that meets transactions of other clients of the database.
const tries = 4

// commit runs a group of writes in one transaction and sets their outcome after the journal is on disk. Those that have
// met another client's transaction, by which nothing of them is written, are run again.
func (s *Store) commit(group []*op) {
	s.meter.Group(len(group))
	for left := tries; len(group) > 0; left-- {
		err := s.transact(group)
		s.endNotes(err == nil)
		var again []*op
		for _, o := range group {
			if o.err = cmp.Or(o.err, err); left > 1 && postgres.Collided(o.err) {
				o.err, again = nil, append(again, o)
				continue
			}
			o.err = s.cut(o.err)
			switch {
			case s.d.full(o.err):
				o.err = fmt.Errorf("%w: %w", ErrFull, o.err)
			case s.d.damaged(o.err):
				o.err = fmt.Errorf("%w: %w", ErrDamaged, o.err)
			}
		}
		group = again
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
	tx := &txn{c: conn, ctx: ctx, server: s.hold != nil}
	id, err := s.begin(tx)
	if err != nil {
		return s.failed("begin transaction", err)
	}
	if err := s.runGroup(tx, group); err != nil {
		if rerr := tx.rollBack(`ROLLBACK`); rerr != nil {
			s.dropConn(conn)
		}
		return err
	}
	s.cache.settling(s.fresh)
	_, err = tx.Exec(`COMMIT`)
	if err != nil {
		if rerr := tx.rollBack(`ROLLBACK`); rerr != nil { // there may be nothing left to roll back
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

// The savepoint of each write in a group, from its begin until the next one's.
const savepoint = `SAVEPOINT one`

// nextSavepoint ends a write's savepoint and begins the next one's.
var nextSavepoint = []postgres.Statement{{What: "release savepoint", Query: `RELEASE one`},
	{What: "begin savepoint", Query: savepoint}}

// runGroup runs the writes of a group, each in a savepoint of its own unless it is the only one, and stores their
// notes.
func (s *Store) runGroup(tx *txn, group []*op) error {
	s.fresh = s.fresh[:0]
	if len(group) == 1 { // the transaction is its savepoint
		s.beginNotes(group[0].by, group[0].asked)
		if group[0].err = tx.run(group[0]); group[0].err != nil {
			return errAlone
		}
		return tx.done(s.endGroup(tx))
	}
	if _, err := tx.Exec(savepoint); err != nil {
		return fmt.Errorf("begin savepoint: %w", err)
	}
	for i, o := range group {
		s.beginNotes(o.by, o.asked)
		kept := len(s.fresh)
		next := nextSavepoint
		if i == len(group)-1 {
			next = nextSavepoint[:1]
		}
		if o.err = tx.run(o); o.err == nil {
			o.err = tx.flush(next...)
		}
		if o.err != nil {
			s.fresh = s.fresh[:kept]
			s.dropNotes()
			if err := tx.rollBack(`ROLLBACK TO one`); err != nil { // which leaves the savepoint
				// a full disk has ended the transaction of all
				return fmt.Errorf("roll back savepoint: %w", errors.Join(err, o.err))
			}
		}
	}
	return tx.done(s.endGroup(tx))
}

// run runs a write. Its error is that of the statement that failed.
func (t *txn) run(o *op) error {
	err := runOp(o, t)
	return cmp.Or(t.failed, err)
}

// done is the end of a group, whose error was err so far.
func (t *txn) done(err error) error {
	if err == nil {
		err = t.flush()
	}
	return cmp.Or(t.failed, err)
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
