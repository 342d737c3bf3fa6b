package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingot-metal/ingot/conductor/node"
)

// KeepReading keeps the newest reading of a node's health in place of the one before; ErrNotFound when the node does
// not exist. The node itself is not changed.
func (s *Store) KeepReading(ctx context.Context, r node.Reading) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the health of node %s: %w", r.NodeUUID, err)
	}
	return s.write(ctx, func(tx *txn) error {
		if _, err := nodeExists(tx, r.NodeUUID); err != nil {
			return err
		}
		return tx.exec("write health",
			`INSERT INTO readings (node_uuid, doc) VALUES (?, ?) ON CONFLICT (node_uuid) DO UPDATE SET doc = excluded.doc`,
			r.NodeUUID, string(doc))
	})
}

// Reading returns the newest reading of a node's health; one that is zero but for the node if there is none.
func (s *Store) Reading(ctx context.Context, nodeUUID string) (node.Reading, error) {
	r := node.Reading{NodeUUID: nodeUUID}
	var doc []byte
	err := s.r.QueryRowContext(ctx, `SELECT doc FROM readings WHERE node_uuid = ?`, nodeUUID).Scan(&doc)
	if errors.Is(err, sql.ErrNoRows) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(doc, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read the health of node %s: %w", nodeUUID, err)
	}
	return r, nil
}

// DropReading forgets the health of a node.
func (s *Store) DropReading(ctx context.Context, nodeUUID string) error {
	return s.write(ctx, func(tx *txn) error {
		return tx.exec("forget health", `DELETE FROM readings WHERE node_uuid = ?`, nodeUUID)
	})
}
