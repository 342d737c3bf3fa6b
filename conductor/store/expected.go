package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// expecting makes of a write one that is refused with a *node.ChangedError when the resource is not as expected. A
// resource that is not there is left to the write, which says so in its own words. The comparison is over once the
// write has changed the resource itself.
func (s *Store) expecting(ctx context.Context, e *node.Expected, f func(tx *txn) error) func(tx *txn) error {
	return func(tx *txn) error {
		if e.Over() {
			return f(tx)
		}
		was, err := s.tag(ctx, tx, e.Kind, e.UUID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err == nil && !e.Holds(was) {
			return &node.ChangedError{Kind: e.Kind, UUID: e.UUID}
		}
		if err := f(tx); err != nil {
			return err
		}
		is, err := s.tag(ctx, tx, e.Kind, e.UUID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if is != was {
			e.End()
		}
		return nil
	}
}

// tag reads the entity tag of a resource in a transaction.
func (s *Store) tag(ctx context.Context, tx *txn, kind, uuid string) (string, error) {
	id := strings.ToLower(uuid)
	switch kind {
	case "node":
		var n node.Node
		err := tx.QueryRow(`SELECT version, created_at, updated_at FROM nodes WHERE uuid = ?`, id).Scan(&n.Version,
			timeColumn{&n.CreatedAt}, timeColumn{&n.UpdatedAt})
		return n.Tag(), notFound(err)
	case "port":
		p, err := readPort(ctx, tx, id)
		if err != nil {
			return "", err
		}
		return p.Tag(), nil
	}
	for _, t := range []interface {
		Kind() string
		tag(ctx context.Context, tx *txn, id string) (string, error)
	}{s.Chassis(), s.Portgroups(), s.VolumeConnectors(), s.VolumeTargets(), s.DeployTemplates(), s.Runbooks(),
		s.InspectionRules(), s.Allocations()} {
		if t.Kind() == kind {
			return t.tag(ctx, tx, id)
		}
	}
	return "", fmt.Errorf("resources of kind %q have no entity tags", kind)
}

// Kind names the table's resources: "chassis", "volume target".
func (t *Table[T]) Kind() string { return t.kind }

func (t *Table[T]) tag(ctx context.Context, tx *txn, id string) (string, error) {
	v, err := t.byUUID(ctx, tx, id)
	if err != nil {
		return "", err
	}
	return meta(v).Meta().Tag(), nil
}
