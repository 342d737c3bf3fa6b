package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Keep bounds the stored past: requests of users, and reports of machines and the conductor, neither of which pushes
// out the other; and the signed reports of erased disks, which have no Total: a node's evidence does not make room for
// that of others.
type Keep struct {
	Requests, Reports, Erasures Kept
}

// Kept bounds one kind of lines. Older ones make room for newer ones. A zero does not bound them.
type Kept struct {
	PerNode int
	Total   int // of all nodes, those deleted included
	Age     time.Duration
}

// room bounds what no setting does, as conductor/guard/limit does; tests have less.
type room struct {
	marks, allocations int   // of a node; failed ones of all projects
	events             int64 // the newest
	every              int64 // events, after which what is too much is looked for: that costs more than the writing
	// Lines that are removed at once, which are many more than are written between two times. A log that has become
	// much too long, since its bounds were lowered, is shortened bit by bit: a change of a user waits for it, and would
	// fail if it took long.
	tooOld, tooMany int
}

// of returns the bounds of requests, or of the rest.
func (k Keep) of(asked bool) Kept {
	if asked {
		return k.Requests
	}
	return k.Reports
}

// trimHistory removes a node's oldest lines of one kind: now and then, since counting them costs more than the writing.
func (s *Store) trimHistory(tx *txn, nodeUUID string, asked bool) error {
	k := s.kept.of(asked)
	if k.PerNode == 0 || rand.N(64) != 0 {
		return nil
	}
	return tx.exec("trim history", `DELETE FROM history WHERE node_uuid = ? AND asked = ? AND seq <=
		(SELECT seq FROM history WHERE node_uuid = ? AND asked = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)`,
		nodeUUID, bit(asked), nodeUUID, bit(asked), k.PerNode)
}

// trimLog removes lines of all nodes that are too old, and, if they are to be counted, too many.
func (s *Store) trimLog(tx *txn, count bool) error {
	for _, asked := range []bool{false, true} {
		k := s.kept.of(asked)
		if k.Age > 0 {
			if err := tx.exec("trim log",
				`DELETE FROM history WHERE seq IN (SELECT seq FROM history WHERE asked = ? AND at < ? LIMIT ?)`,
				bit(asked), micros(s.now().Add(-k.Age)), s.room.tooOld); err != nil {
				return err
			}
		}
		if !count || k.Total == 0 {
			continue
		}
		var have int
		if err := tx.QueryRow(`SELECT COUNT(*) FROM history WHERE asked = ?`, bit(asked)).Scan(&have); err != nil {
			return fmt.Errorf("trim log: %w", err)
		}
		if have <= k.Total {
			continue
		}
		// The oldest are those that were written first: by their times they would be the newest ones if the clock was
		// set back. The + has the index of times read, in which seq is too, and not the whole table.
		if err := tx.exec("trim log",
			`DELETE FROM history WHERE seq IN (SELECT seq FROM history WHERE asked = ? ORDER BY +seq LIMIT ?)`,
			bit(asked), min(have-k.Total, s.room.tooMany)); err != nil {
			return err
		}
	}
	return nil
}

// trimErasures removes reports of erased disks that are too old. It looks at the first rows only, which were written
// first, so that the rest of a table with many large rows is not read.
func (s *Store) trimErasures(tx *txn) error {
	const atOnce = 1024
	if s.kept.Erasures.Age == 0 {
		return nil
	}
	return tx.exec("trim erasures", `DELETE FROM erasures WHERE seq < (SELECT MIN(seq) FROM erasures) + ? AND at < ?`,
		atOnce, micros(s.now().Add(-s.kept.Erasures.Age)))
}

// trimAllocations removes the oldest allocations that got no node, beyond those that are kept. Their users delete them
// as a rule; those who don't would make the table grow with each attempt, and each look for waiting ones longer.
func (s *Store) trimAllocations(ctx context.Context, tx *txn) error {
	if rand.N(64) != 0 {
		return nil
	}
	table := s.Allocations()
	all, err := list(ctx, tx, "list allocations", table.scan, withoutNode, table.kind)
	if err != nil {
		return err
	}
	failed := slices.DeleteFunc(all, func(a *node.Allocation) bool { return a.State != node.AllocationError })
	for _, a := range failed[:max(0, len(failed)-s.room.allocations)] {
		if err := table.delete(ctx, tx, a.UUID); err != nil {
			return err
		}
	}
	return nil
}
