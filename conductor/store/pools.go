package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Pools keeps the policies that keep nodes warm, sealed: the address of an image may hold a password.
func (s *Store) Pools() *Table[node.Pool] {
	return &Table[node.Pool]{s: s, kind: "pool", sealed: true}
}

// PoolMembers returns the pools' records of nodes, by the nodes' UUIDs.
func (s *Store) PoolMembers(ctx context.Context) (map[string]node.PoolMember, error) {
	out := map[string]node.PoolMember{}
	_, err := list(ctx, s.r, "list members of pools", func(scan scanner) (m node.PoolMember, err error) {
		var doc []byte
		if err := scan(&m.NodeUUID, &doc); err != nil {
			return m, err
		}
		if err := exact.Unmarshal(doc, &m); err != nil {
			return m, fmt.Errorf("decode what is remembered of node %s: %w", m.NodeUUID, err)
		}
		out[m.NodeUUID] = m
		return m, nil
	}, `SELECT node_uuid, doc FROM pool_members`)
	return out, err
}

// SetPoolMember stores the record of m's node, or deletes an empty one; ErrNotFound when the node does not exist.
func (s *Store) SetPoolMember(ctx context.Context, m node.PoolMember) error {
	doc, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode what is remembered of node %s: %w", m.NodeUUID, err)
	}
	return s.write(ctx, func(tx *txn) error {
		if !m.Touched() {
			_, err := tx.Exec(`DELETE FROM pool_members WHERE node_uuid = ?`, m.NodeUUID)
			return err
		}
		if _, err := nodeExists(tx, m.NodeUUID); err != nil {
			return err
		}
		_, err := tx.Exec(
			`INSERT INTO pool_members (node_uuid, doc) VALUES (?, ?) ON CONFLICT (node_uuid) DO UPDATE SET doc = excluded.doc`, m.NodeUUID, string(doc))
		return err
	})
}

// TakeDuty makes conductor the one that does what only one may do at a time, for a while from now, unless another is;
// it returns who it is, and until when. Less than half of the time being over, nothing is written.
func (s *Store) TakeDuty(ctx context.Context, name, conductor string,
	during time.Duration) (holder string, until time.Time, err error) {
	read := func(q queryer) error {
		err := q.QueryRowContext(ctx, `SELECT conductor, until FROM duties WHERE name = ?`, name).Scan(&holder,
			timeColumn{&until})
		if errors.Is(err, sql.ErrNoRows) {
			holder, until = "", time.Time{}
			return nil
		}
		return err
	}
	others := func(now time.Time) bool { return holder != "" && holder != conductor && now.Before(until) }
	if err := read(s.r); err != nil {
		return "", time.Time{}, fmt.Errorf("read duty %s: %w", name, err)
	}
	if now := s.now(); others(now) || holder == conductor && until.Sub(now) > during/2 {
		return holder, until, nil
	}
	err = s.write(ctx, func(tx *txn) error {
		if err := read(tx); err != nil {
			return err
		}
		now := s.now()
		if others(now) {
			return nil
		}
		holder, until = conductor, now.Add(during)
		_, err := tx.Exec(`INSERT INTO duties (name, conductor, until) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET conductor = excluded.conductor, until = excluded.until`, name, conductor, micros(until))
		return err
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("take duty %s: %w", name, err)
	}
	return holder, until, nil
}
