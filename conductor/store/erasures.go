package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
)

// KeepErasure keeps the signed report of an erased disk. One that is there already stays as it is.
func (s *Store) KeepErasure(ctx context.Context, k erasure.Kept) error {
	return s.write(ctx, func(tx *txn) error {
		_, err := tx.Exec(
			`INSERT INTO erasures (id, node_uuid, at, doc) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
			k.ID, strings.ToLower(k.NodeUUID), micros(k.At), k.Document)
		if err != nil {
			return fmt.Errorf("write erasure: %w", err)
		}
		return nil
	})
}

// Erasures returns the signed reports of a node's erased disks, newest first.
func (s *Store) Erasures(ctx context.Context, nodeUUID string) ([]erasure.Kept, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT id, node_uuid, at, doc FROM erasures WHERE node_uuid = ? ORDER BY seq DESC`, strings.ToLower(nodeUUID))
	if err != nil {
		return nil, fmt.Errorf("erasures of node %s: %w", nodeUUID, err)
	}
	return collect(rows, func(scan func(...any) error) (erasure.Kept, error) {
		var (
			k  erasure.Kept
			at int64
		)
		err := scan(&k.ID, &k.NodeUUID, &at, &k.Document)
		k.At = fromMicros(at)
		return k, err
	})
}
