package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ingot-metal/ingot/conductor/node"
)

// op is one caller's write. Whoever moves taken from false to true owns it: the writer to run it, the caller to give it up.
type op struct {
	run   func(tx *sql.Tx) error
	by    node.Requester
	taken atomic.Bool
	err   chan error
}

// maxGroup is how many writes share one transaction at most.
const maxGroup = 64

// write runs f in a transaction and returns when that is on disk. It is not run at all if ctx ends while it waits its turn.
func (s *Store) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o := &op{run: f, by: node.RequesterOf(ctx), err: make(chan error, 1)}
	select {
	case s.ops <- o:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return ErrClosed
	}
	stop := s.stop
	for {
		select {
		case err := <-o.err:
			return err
		case <-ctx.Done():
			if o.taken.CompareAndSwap(false, true) {
				return ctx.Err()
			}
			return <-o.err
		case <-stop:
			if o.taken.CompareAndSwap(false, true) {
				return ErrClosed
			}
			return <-o.err
		}
	}
}

// writer carries out writes until the store closes.
func (s *Store) writer() {
	defer s.done.Done()
	for {
		var group []*op
		select {
		case <-s.stop:
			return
		case o := <-s.ops:
			group = append(group, o)
		}
	more:
		for len(group) < maxGroup {
			select {
			case o := <-s.ops:
				group = append(group, o)
			default:
				break more
			}
		}
		s.commit(group)
	}
}

// commit runs a group of writes in one transaction and tells each its outcome after the journal is on disk.
func (s *Store) commit(group []*op) {
	live := group[:0]
	for _, o := range group {
		if o.taken.CompareAndSwap(false, true) {
			live = append(live, o)
		}
	}
	if len(live) == 0 {
		return
	}
	errs := make([]error, len(live))
	committed := false
	err := func() error {
		tx, err := s.w.BeginTx(context.Background(), nil)
		if err != nil {
			return fmt.Errorf("begin transaction: %w", err)
		}
		defer tx.Rollback() // after Commit it does nothing
		s.fresh = s.fresh[:0]
		for i, o := range live {
			s.beginNotes(o.by)
			if len(live) == 1 { // the transaction is its savepoint
				if errs[i] = runOp(o, tx); errs[i] != nil {
					return nil
				}
				break
			}
			kept := len(s.fresh)
			if _, err := tx.Exec(`SAVEPOINT one`); err != nil {
				return fmt.Errorf("begin savepoint: %w", err)
			}
			if errs[i] = runOp(o, tx); errs[i] != nil {
				s.fresh = s.fresh[:kept]
				s.dropNotes()
				if _, err := tx.Exec(`ROLLBACK TO one`); err != nil {
					return fmt.Errorf("roll back savepoint: %w", err)
				}
			}
			if _, err := tx.Exec(`RELEASE one`); err != nil {
				return fmt.Errorf("release savepoint: %w", err)
			}
		}
		if err := s.storeNotes(tx); err != nil {
			return err
		}
		s.cache.settling(s.fresh)
		if err := tx.Commit(); err != nil {
			s.cache.settled(nil)
			return fmt.Errorf("commit: %w", err)
		}
		committed = true
		s.cache.settled(s.fresh)
		clear(s.fresh)
		return nil
	}()
	s.endNotes(committed)
	for i, o := range live {
		if err != nil && errs[i] == nil {
			errs[i] = err
		}
		o.err <- errs[i]
	}
}

// runOp turns a panic in a caller's change into that caller's error: the other writes of the group are not to blame for it.
func runOp(o *op, tx *sql.Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("change panicked: %v", p)
		}
	}()
	return o.run(tx)
}

// notFound translates the SQL package's word for it.
func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}
