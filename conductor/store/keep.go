package store

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Keep bounds the stored past: requests of users, and reports of machines and the conductor. Neither pushes out the
// other.
type Keep struct {
	Requests, Reports Kept
}

// Kept bounds one kind of lines. Older ones make room for newer ones. A zero does not bound them.
type Kept struct {
	PerNode int
	Total   int // of all nodes, those deleted included
	Age     time.Duration
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
			if err := tx.exec("trim log", `DELETE FROM history WHERE asked = ? AND at < ?`, bit(asked),
				micros(s.now().Add(-k.Age))); err != nil {
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
			bit(asked), have-k.Total); err != nil {
			return err
		}
	}
	return nil
}
