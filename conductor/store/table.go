package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Table keeps the resources of one kind. T is a struct whose pointer is a node.Resource.
type Table[T any] struct {
	s      *Store
	kind   string
	sealed bool // its documents may hold secrets
}

// Chassis keeps chassis.
func (s *Store) Chassis() *Table[node.Chassis] { return &Table[node.Chassis]{s: s, kind: "chassis"} }

// Portgroups keeps portgroups.
func (s *Store) Portgroups() *Table[node.Portgroup] {
	return &Table[node.Portgroup]{s: s, kind: "portgroup"}
}

// VolumeConnectors keeps volume connectors.
func (s *Store) VolumeConnectors() *Table[node.VolumeConnector] {
	return &Table[node.VolumeConnector]{s: s, kind: "volume connector"}
}

// VolumeTargets keeps volume targets, sealed.
func (s *Store) VolumeTargets() *Table[node.VolumeTarget] {
	return &Table[node.VolumeTarget]{s: s, kind: "volume target", sealed: true}
}

// DeployTemplates keeps deploy templates, sealed: arguments of steps may be secrets.
func (s *Store) DeployTemplates() *Table[node.DeployTemplate] {
	return &Table[node.DeployTemplate]{s: s, kind: "deploy template", sealed: true}
}

// Runbooks keeps runbooks, sealed: arguments of steps may be secrets.
func (s *Store) Runbooks() *Table[node.Runbook] {
	return &Table[node.Runbook]{s: s, kind: "runbook", sealed: true}
}

// InspectionRules keeps inspection rules, sealed: a rule can be marked sensitive.
func (s *Store) InspectionRules() *Table[node.InspectionRule] {
	return &Table[node.InspectionRule]{s: s, kind: "inspection rule", sealed: true}
}

// Allocations keeps allocations.
func (s *Store) Allocations() *Table[node.Allocation] {
	return &Table[node.Allocation]{s: s, kind: "allocation"}
}

func meta[T any](v *T) node.Resource { return any(v).(node.Resource) }

const resourceColumns = `SELECT uuid, created_at, updated_at, doc FROM resources `

func (t *Table[T]) scan(scan scanner) (*T, error) {
	var (
		id               string
		created, updated time.Time
		doc              []byte
	)
	if err := scan(&id, timeColumn{&created}, timeColumn{&updated}, &doc); err != nil {
		return nil, notFound(err)
	}
	if t.sealed {
		var err error
		if doc, err = t.s.sealer.Open(t.kind+" "+id, doc); err != nil {
			return nil, t.s.broken(err)
		}
	}
	v := new(T)
	if err := exact.Unmarshal(doc, v); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", t.kind, id, err)
	}
	h := meta(v).Meta()
	h.UUID, h.CreatedAt, h.UpdatedAt = id, created, updated
	return v, nil
}

// Create stores a new resource and fills in empty fields: UUID, times. A taken value returns a *DuplicateError whose
// Field is "uuid", "name", or the name in Unique, and whose Kind is the table's.
func (t *Table[T]) Create(ctx context.Context, v *T) error {
	return t.s.write(ctx, func(tx *txn) error { return t.create(tx, v) })
}

func (t *Table[T]) create(tx *txn, v *T) error {
	h := meta(v).Meta()
	if err := fillUUID(&h.UUID); err != nil {
		return fmt.Errorf("create %s: %w", t.kind, err)
	}
	if err := tx.refuse(&DuplicateError{Kind: t.kind, Field: "uuid", Value: h.UUID},
		`SELECT 1 FROM resources WHERE kind = ? AND uuid = ?`, t.kind, h.UUID); err != nil {
		return err
	}
	h.CreatedAt, h.UpdatedAt = t.s.now(), time.Time{}
	if err := t.put(tx, v); err != nil {
		return err
	}
	return t.s.notePart(tx, t.kind, "create", *h, nil)
}

// put writes a resource after it has checked that its unique fields are.
func (t *Table[T]) put(tx *txn, v *T) error {
	h := meta(v).Meta()
	h.NodeUUID = strings.ToLower(h.NodeUUID)
	if h.NodeUUID != "" {
		if _, err := nodeExists(tx, h.NodeUUID); err != nil {
			return err
		}
	}
	if err := together(tx, t.kind, h.UUID, h.NodeUUID); err != nil {
		return err
	}
	if h.Name != "" {
		if err := tx.refuse(&DuplicateError{Kind: t.kind, Field: "name", Value: h.Name},
			`SELECT 1 FROM resources WHERE kind = ? AND name = ? AND uuid <> ?`, t.kind, h.Name, h.UUID); err != nil {
			return err
		}
	}
	keys := meta(v).Unique()
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if err := tx.refuse(&DuplicateError{Kind: t.kind, Field: name, Value: keys[name]},
			`SELECT 1 FROM resource_keys WHERE kind = ? AND name = ? AND value = ? AND uuid <> ?`, t.kind, name,
			keys[name], h.UUID); err != nil {
			return err
		}
	}
	h.Revision++
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", t.kind, err)
	}
	if t.sealed {
		doc = t.s.sealer.Seal(t.kind+" "+h.UUID, doc)
	}
	err = tx.exec("write "+t.kind,
		`INSERT INTO resources (kind, uuid, name, node_uuid, created_at, updated_at, doc) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (kind, uuid) DO UPDATE SET name = excluded.name, node_uuid = excluded.node_uuid, updated_at = excluded.updated_at, doc = excluded.doc`,
		t.kind, h.UUID, null(h.Name), null(h.NodeUUID), micros(h.CreatedAt), micros(h.UpdatedAt), doc)
	if err != nil {
		return err
	}
	if err := tx.exec("write "+t.kind, `DELETE FROM resource_keys WHERE kind = ? AND uuid = ?`, t.kind,
		h.UUID); err != nil {
		return err
	}
	for name, value := range keys {
		if err := tx.exec("write "+t.kind, `INSERT INTO resource_keys (kind, name, value, uuid) VALUES (?, ?, ?, ?)`,
			t.kind, name, value, h.UUID); err != nil {
			return err
		}
	}
	return nil
}

// Get returns the resource with this UUID or, if there is none, this name; ErrNotFound.
func (t *Table[T]) Get(ctx context.Context, ident string) (*T, error) {
	return t.get(ctx, t.s.r, ident)
}

func (t *Table[T]) get(ctx context.Context, q queryer, ident string) (*T, error) {
	v, err := t.byUUID(ctx, q, ident)
	if errors.Is(err, ErrNotFound) && ident != "" {
		v, err = t.scan(q.QueryRowContext(ctx, resourceColumns+`WHERE kind = ? AND name = ?`, t.kind, ident).Scan)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.kind, ident, err)
	}
	return v, nil
}

func (t *Table[T]) byUUID(ctx context.Context, q queryer, uuid string) (*T, error) {
	return t.scan(
		q.QueryRowContext(ctx, resourceColumns+`WHERE kind = ? AND uuid = ?`, t.kind, strings.ToLower(uuid)).Scan)
}

// List returns all resources of the kind in the order they were made; those of one node if nodeUUID is not empty.
func (t *Table[T]) List(ctx context.Context, nodeUUID string) ([]*T, error) {
	return t.list(ctx, t.s.r, nodeUUID)
}

func (t *Table[T]) list(ctx context.Context, q queryer, nodeUUID string) ([]*T, error) {
	where, args := `WHERE kind = ?`, []any{t.kind}
	if nodeUUID != "" {
		where, args = where+` AND node_uuid = ?`, append(args, strings.ToLower(nodeUUID))
	}
	return list(ctx, q, "list "+t.kind, t.scan, resourceColumns+where+` ORDER BY seq`, args...)
}

// Update reads a resource by UUID, lets change modify it and stores it, in one transaction. An error from change leaves
// all as it was and comes back as it is. A change that changes nothing is not written. change must be quick and not
// write to the store.
func (t *Table[T]) Update(ctx context.Context, uuid string, change func(*T) error) (*T, error) {
	return writing(ctx, t.s, func(tx *txn) (*T, error) { return t.update(ctx, tx, uuid, change) })
}

func (t *Table[T]) update(ctx context.Context, tx *txn, uuid string, change func(*T) error) (*T, error) {
	v, err := t.byUUID(ctx, tx, uuid)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.kind, uuid, err)
	}
	h := meta(v).Meta()
	was := *h
	before, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.kind, err)
	}
	if err := change(v); err != nil {
		return nil, err
	}
	h.UUID, h.CreatedAt, h.UpdatedAt, h.Revision = was.UUID, was.CreatedAt, was.UpdatedAt, was.Revision
	after, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.kind, err)
	}
	if bytes.Equal(before, after) {
		return v, nil
	}
	h.UpdatedAt = t.s.now()
	if err := t.put(tx, v); err != nil {
		return v, err
	}
	return v, t.s.notePart(tx, t.kind, "update", *h, partFields(before, after))
}

// Delete removes a resource by UUID.
func (t *Table[T]) Delete(ctx context.Context, uuid string) error {
	return t.s.write(ctx, func(tx *txn) error { return t.delete(ctx, tx, uuid) })
}

func (t *Table[T]) delete(ctx context.Context, tx *txn, uuid string) error {
	if err := unused(tx, t.kind, strings.ToLower(uuid)); err != nil {
		return err
	}
	v, err := t.byUUID(ctx, tx, uuid)
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", t.kind, uuid, err)
	}
	h := meta(v).Meta()
	if err := t.s.notePart(tx, t.kind, "delete", *h, nil); err != nil {
		return err
	}
	return tx.exec("delete "+t.kind+" "+h.UUID, `DELETE FROM resources WHERE kind = ? AND uuid = ?`, t.kind, h.UUID)
}
