package store

import (
	"context"
	"math/rand/v2"
	"strings"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
)

// KeepErasure keeps the signed report of an erased disk, as long as Options.Keep says. One that is there already stays
// as it is.
func (s *Store) KeepErasure(ctx context.Context, k erasure.Kept) error {
	return s.write(ctx, func(tx *txn) error {
		id := strings.ToLower(k.NodeUUID)
		err := tx.exec("write erasure",
			`INSERT INTO erasures (id, node_uuid, at, doc) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
			k.ID, id, micros(k.At), k.Document)
		if keep := s.kept.Erasures.PerNode; err == nil && keep > 0 && rand.N(64) == 0 { // as in trimHistory
			err = trim(tx, "erasures", id, keep)
		}
		return err
	})
}

// Erasures returns the signed reports of a node's erased disks, newest first.
func (s *Store) Erasures(ctx context.Context, nodeUUID string) ([]erasure.Kept, error) {
	return list(ctx, s.r, "erasures of node "+nodeUUID, into(func(k *erasure.Kept) []any {
		return []any{&k.ID, &k.NodeUUID, timeColumn{&k.At}, &k.Document}
	}), `SELECT id, node_uuid, at, doc FROM erasures WHERE node_uuid = ? ORDER BY seq DESC`, strings.ToLower(nodeUUID))
}
