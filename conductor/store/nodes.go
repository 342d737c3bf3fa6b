package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// HiddenConfigDrive stands for a config drive in what Nodes returns, because they can be large. Node returns the real
// thing.
const HiddenConfigDrive = redact.Stars

// sealedPart is the encrypted part of a node, config drive apart.
type sealedPart struct {
	DriverInfo   map[string]any `json:"driver_info,omitempty"`
	InstanceInfo map[string]any `json:"instance_info,omitempty"`
	Job          *node.Job      `json:"job,omitempty"`
	// Past is sealed with it: results of steps must not be readable in a stolen database.
	Past map[node.Phase]*node.Job `json:"past,omitempty"`
}

// row is a node as the tables hold it, not yet sealed. UUID, version and time of the last change are not in doc: they
// have columns.
type row struct {
	doc, secret, drive []byte
	columns            []any // values of nodeColumns
	guids              []string
}

// encode splits a node. The drive is nil when there is none.
func encode(n *node.Node) (row, error) {
	var r row
	part := sealedPart{n.DriverInfo, n.InstanceInfo, n.Job, n.Past}
	if d, ok := n.InstanceInfo["configdrive"]; ok && d != nil {
		part.InstanceInfo = maps.Clone(n.InstanceInfo)
		delete(part.InstanceInfo, "configdrive")
		b, err := json.Marshal(d)
		if err != nil {
			return r, fmt.Errorf("encode config drive: %w", err)
		}
		r.drive = b
	}
	c := *n
	c.DriverInfo, c.InstanceInfo, c.Job, c.Past = nil, nil, nil, nil
	c.UUID, c.Version, c.UpdatedAt = "", 0, time.Time{}
	r.columns, r.guids = columns(n), slices.Clone(n.SystemGUIDs)
	var err error
	if r.doc, err = json.Marshal(&c); err != nil {
		return r, fmt.Errorf("encode node: %w", err)
	}
	if r.secret, err = json.Marshal(part); err != nil {
		return r, fmt.Errorf("encode node: %w", err)
	}
	return r, nil
}

func decode(r row, n *node.Node) error {
	if err := exact.Unmarshal(r.doc, n); err != nil {
		return fmt.Errorf("decode node: %w", err)
	}
	var part sealedPart
	if err := exact.Unmarshal(r.secret, &part); err != nil {
		return fmt.Errorf("decode node: %w", err)
	}
	n.DriverInfo, n.InstanceInfo, n.Job, n.Past = part.DriverInfo, part.InstanceInfo, part.Job, part.Past
	if r.drive != nil {
		var d any
		if err := exact.Unmarshal(r.drive, &d); err != nil {
			return fmt.Errorf("decode config drive: %w", err)
		}
		n.InstanceInfo = node.With(n.InstanceInfo, "configdrive", d)
	}
	return nil
}

// fullNode is the query for scanNode: a node with its config drive.
const fullNode = `SELECT n.uuid, n.version, n.updated_at, n.doc, n.sealed, d.sealed
	FROM nodes n LEFT JOIN config_drives d ON d.node_uuid = n.uuid `

// listedNode leaves the config drive where it is.
const listedNode = `SELECT n.uuid, n.version, n.updated_at, n.doc, n.sealed, CASE WHEN d.node_uuid IS NULL THEN NULL ELSE '' END
	FROM nodes n LEFT JOIN config_drives d ON d.node_uuid = n.uuid `

// scanNode turns the current row into a node; an empty config drive is one that was left where it is.
func (s *Store) scanNode(scan scanner) (*node.Node, error) {
	var (
		id                    string
		version               uint64
		updated               time.Time
		doc, sealed, sealedCD []byte
	)
	if err := scan(&id, &version, timeColumn{&updated}, &doc, &sealed, &sealedCD); err != nil {
		return nil, notFound(err)
	}
	r := row{doc: doc}
	var err error
	if r.secret, err = s.sealer.Open("node "+id, sealed); err != nil {
		return nil, s.broken(err)
	}
	switch {
	case sealedCD == nil:
	case len(sealedCD) == 0:
		r.drive = []byte(`"` + HiddenConfigDrive + `"`)
	default:
		if r.drive, err = s.sealer.Open("config drive "+id, sealedCD); err != nil {
			return nil, s.broken(err)
		}
	}
	n := new(node.Node)
	if err := decode(r, n); err != nil {
		return nil, err
	}
	n.UUID, n.Version, n.UpdatedAt = id, version, updated
	return n, nil
}

// CreateNode stores a new node and fills in empty fields: UUID, provision state (enroll), times, version.
func (s *Store) CreateNode(ctx context.Context, n *node.Node) error {
	c := *n
	if err := fillUUID(&c.UUID); err != nil {
		return fmt.Errorf("create node: %w", err)
	}
	c.Provision = cmp.Or(c.Provision, node.Enroll)
	c.CreatedAt, c.Version = s.now(), 1
	c.UpdatedAt = c.CreatedAt
	if c.ProvisionUpdatedAt.IsZero() {
		c.ProvisionUpdatedAt = c.CreatedAt
	}
	err := s.write(ctx, func(tx *txn) error { return s.putNode(tx, &c, nil) })
	if err != nil {
		return fmt.Errorf("create node: %w", err)
	}
	*n = c
	return nil
}

// Node returns the node with this UUID or, if there is none, this name.
func (s *Store) Node(ctx context.Context, ident string) (*node.Node, error) {
	n, err := s.nodeByIdent(ctx, s.r, ident)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", ident, err)
	}
	return n, nil
}

// AmbiguousError says that several nodes claim the same identity.
type AmbiguousError struct {
	GUID  string
	Nodes []string
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("system GUID %s is claimed by nodes %s: give each of them a port instead", e.GUID,
		strings.Join(e.Nodes, ", "))
}

// NodeByGUID returns the one node whose BMC reported this system GUID; an *AmbiguousError when there are several.
func (s *Store) NodeByGUID(ctx context.Context, guid string) (*node.Node, error) {
	guid = strings.ToLower(guid)
	ids, err := list(ctx, s.r, "node with GUID "+guid, into(text),
		`SELECT node_uuid FROM node_guids WHERE guid = ? ORDER BY node_uuid`, guid)
	switch {
	case err != nil:
		return nil, err
	case len(ids) == 0:
		return nil, fmt.Errorf("node with GUID %s: %w", guid, ErrNotFound)
	case len(ids) > 1:
		return nil, &AmbiguousError{guid, ids}
	}
	return s.Node(ctx, ids[0])
}

// UpdateNode reads a node by UUID, lets change modify it and stores it, in one transaction. An error from change leaves
// all as it was and comes back wrapped in nothing. A change that changes nothing is not written. The node as stored is
// returned. change must not write to the store (reading is fine, and does not see this transaction) and should be
// quick: other writers wait for it. The node it gets is its own.
func (s *Store) UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error) {
	return s.Change(ctx, uuid, func(n *node.Node, _ *node.SideEffects) error { return change(n) })
}

// Change is UpdateNode for a change with side effects: those that it puts into also are stored in the same transaction.
func (s *Store) Change(ctx context.Context, uuid string,
	change func(n *node.Node, effects *node.SideEffects) error) (*node.Node, error) {
	return writing(ctx, s, func(tx *txn) (*node.Node, error) { return s.changeNode(tx, uuid, change) })
}

// changeNode is Change inside a transaction. An allocation ends with its instance: a node that loses its instance, in
// whatever way, loses the allocation with it. An available node gets neither an instance nor a deployment while it is
// promised to a reservation (*PromisedError), other than by the reservation's allocation.
//
//nolint:contextcheck a transaction is for several callers, and ends with none of them
func (s *Store) changeNode(tx *txn, uuid string, change func(n *node.Node,
	effects *node.SideEffects) error) (*node.Node, error) {
	n, err := s.readNode(context.Background(), tx, strings.ToLower(uuid))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", uuid, err)
	}
	before, err := encode(n)
	if err != nil {
		return nil, err
	}
	id, version, created, free := n.UUID, n.Version, n.CreatedAt, n.Provision == node.Available
	instance := n.InstanceUUID
	var effects node.SideEffects
	if err := change(n, &effects); err != nil {
		return nil, err
	}
	n.UUID, n.Version, n.CreatedAt = id, version, created
	if n.AllocationUUID != "" && n.AllocationUUID != n.InstanceUUID {
		err := s.Allocations().delete(context.Background(), tx, n.AllocationUUID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		n.AllocationUUID = ""
	}
	used := n.Provision == node.Deploying || n.Provision == node.Active || n.InstanceUUID != "" && instance == ""
	if free && used && n.AllocationUUID == "" { // an allocation gets only what is promised to no other
		if err := s.notPromised(context.Background(), tx, id); err != nil {
			return nil, err
		}
	}
	if err := s.putNode(tx, n, &before); err != nil {
		return nil, err
	}
	s.noteUser(effects)
	return n, s.putAlso(tx, n, effects)
}

// putAlso writes what came along with a change of a node.
func (s *Store) putAlso(tx *txn, n *node.Node, effects node.SideEffects) error {
	id := n.UUID
	for _, h := range effects.History {
		h.NodeUUID = id
		if err := s.addHistory(tx, h, n); err != nil {
			return err
		}
	}
	if err := s.addMarks(tx, id, effects.Marks); err != nil {
		return err
	}
	for _, p := range effects.Ports {
		p.NodeUUID = id
		var dup *DuplicateError
		if err := s.createPort(tx, &p); err != nil && !errors.As(err, &dup) {
			return fmt.Errorf("create port %s: %w", p.Address, err)
		}
	}
	if err := s.editPorts(tx, id, effects); err != nil {
		return err
	}
	for _, r := range effects.Results {
		if err := s.addResult(tx, id, r); err != nil {
			return err
		}
	}
	if effects.Inventory != nil {
		return s.setInventory(tx, id, effects.Inventory)
	}
	return nil
}

// SaveNode stores a node that was read before, or returns a *ConflictError if it was changed meanwhile.
func (s *Store) SaveNode(ctx context.Context, n *node.Node) error {
	out, err := s.UpdateNode(ctx, n.UUID, func(cur *node.Node) error {
		if cur.Version != n.Version {
			return &ConflictError{n.UUID, cur.Version, n.Version}
		}
		*cur = *n
		return nil
	})
	if err != nil {
		return err
	}
	*n = *out
	return nil
}

// putNode writes n. With before it writes what differs from that, raising the version, and nothing if nothing does.
func (s *Store) putNode(tx *txn, n *node.Node, before *row) error {
	n.LastError = sentence(n.LastError)
	if n.Job != nil {
		n.Job.Failure, n.Job.Detail = sentence(n.Job.Failure), sentence(n.Job.Detail)
	}
	if lessee := ""; before != nil {
		if lessee, _ = before.columns[colLessee].(string); lessee != n.Lessee {
			n.LeasedAt = s.now()
		}
	}
	r, err := encode(n)
	if err != nil {
		return err
	}
	if before != nil {
		if bytes.Equal(r.doc, before.doc) && bytes.Equal(r.secret, before.secret) &&
			bytes.Equal(r.drive, before.drive) {
			return nil
		}
		n.Version++
		n.UpdatedAt = s.now()
	}
	// else nothing happens between this and the write, which checks as well
	if before != nil || n.ChassisUUID != "" || n.ParentNode != "" {
		if err := uniqueNode(tx, n, before); err != nil {
			return err
		}
	}
	if err := chassisOf(tx, n); err != nil {
		return err
	}
	if err := parentOf(tx, n); err != nil {
		return err
	}
	if before == nil {
		err = s.insertNode(tx, n, r)
	} else {
		err = s.updateNode(tx, n, r, before)
	}
	if err != nil {
		return err
	}
	was := cmp.Or(before, &row{})
	if !bytes.Equal(r.drive, was.drive) {
		if err := s.putDrive(tx, n.UUID, r.drive); err != nil {
			return err
		}
	}
	if !slices.Equal(r.guids, was.guids) {
		if err := putGUIDs(tx, n); err != nil {
			return err
		}
	}
	s.fresh = append(s.fresh, written{n.UUID, n, len(r.doc) + len(r.secret)})
	s.noteNode(n, r, before)
	return nil
}

// insertStatement is the one for a new node.
var insertStatement = `INSERT INTO nodes (uuid, version, created_at, updated_at, doc, sealed, ` +
	strings.Join(nodeColumns, ", ") +
	`) VALUES (?, ?, ?, ?, ?, ?` + strings.Repeat(", ?", len(nodeColumns)) + `) ON CONFLICT DO NOTHING`

func (s *Store) insertNode(tx *txn, n *node.Node, r row) error {
	args := append([]any{n.UUID, n.Version, micros(n.CreatedAt), micros(n.UpdatedAt), string(r.doc),
		s.sealer.Seal("node "+n.UUID, r.secret)}, r.columns...)
	inserted, err := tx.changed(insertStatement, args...)
	if err != nil {
		return fmt.Errorf("write node: %w", err)
	}
	if inserted {
		return nil
	}
	if err := uniqueNode(tx, n, nil); err != nil {
		return err
	}
	return errors.New("write node: the database refused it as a duplicate of a node that can't be found")
}

// updateNode writes what differs: an index over a column that stays as it is need not be touched.
func (s *Store) updateNode(tx *txn, n *node.Node, r row, before *row) error {
	set := "UPDATE nodes SET version = ?, updated_at = ?, doc = ?"
	args := []any{n.Version, micros(n.UpdatedAt), string(r.doc)}
	if !bytes.Equal(r.secret, before.secret) {
		set, args = set+", sealed = ?", append(args, s.sealer.Seal("node "+n.UUID, r.secret))
	}
	for i, c := range nodeColumns {
		if r.columns[i] != before.columns[i] {
			set, args = set+", "+c+" = ?", append(args, r.columns[i])
		}
	}
	return tx.exec("write node", set+" WHERE uuid = ?", append(args, n.UUID)...)
}

func (s *Store) putDrive(tx *txn, id string, drive []byte) error {
	if drive == nil {
		return tx.exec("delete config drive", `DELETE FROM config_drives WHERE node_uuid = ?`, id)
	}
	return tx.exec("write config drive", `INSERT INTO config_drives (node_uuid, sealed) VALUES (?, ?)
		ON CONFLICT (node_uuid) DO UPDATE SET sealed = excluded.sealed`, id,
		s.sealer.Seal("config drive "+id, drive))
}

func putGUIDs(tx *txn, n *node.Node) error {
	if err := tx.exec("write system GUIDs", `DELETE FROM node_guids WHERE node_uuid = ?`, n.UUID); err != nil {
		return err
	}
	for _, g := range n.SystemGUIDs {
		if err := tx.exec("write system GUIDs",
			`INSERT INTO node_guids (guid, node_uuid) VALUES (?, ?) ON CONFLICT DO NOTHING`, strings.ToLower(g),
			n.UUID); err != nil {
			return err
		}
	}
	return nil
}

// uniqueNode finds who holds a UUID, name or instance already. The unique indexes would refuse too, but don't say who.
// What was n's before needs no look; before is nil for a new node.
func uniqueNode(tx *txn, n *node.Node, before *row) error {
	if before == nil {
		taken := DuplicateError{Field: "uuid", Value: n.UUID}
		if err := tx.unique(taken, `SELECT uuid FROM nodes WHERE uuid = ?`, n.UUID); err != nil {
			return err
		}
	}
	// as in nodeColumns
	for i, u := range []struct{ column, value string }{{"name", n.Name}, {"instance_uuid", n.InstanceUUID}} {
		if u.value == "" || before != nil && before.columns[i] == any(u.value) {
			continue
		}
		taken := DuplicateError{Field: u.column, Value: u.value}
		if err := tx.unique(taken, `SELECT uuid FROM nodes WHERE `+u.column+` = ? AND uuid <> ?`, u.value,
			n.UUID); err != nil {
			return err
		}
	}
	return nil
}

// DeleteNode removes a node with its ports, history, marks, inventory and leases, unless one of the functions given
// refuses: they see the node as it is in the transaction that deletes it. A node that has children returns a
// *ChildrenError.
func (s *Store) DeleteNode(ctx context.Context, uuid string, allowed ...func(*node.Node) error) error {
	return s.write(ctx, func(tx *txn) error {
		id := strings.ToLower(uuid)
		for _, check := range allowed {
			n, err := s.scanNode(tx.QueryRow(fullNode+`WHERE n.uuid = ?`, id).Scan)
			if err != nil {
				return fmt.Errorf("delete node %s: %w", uuid, err)
			}
			if err := check(n); err != nil {
				return err
			}
		}
		if err := childless(tx, id); err != nil {
			return err
		}
		if err := s.noteDeleted(tx, id); err != nil {
			return fmt.Errorf("delete node %s: %w", uuid, err)
		}
		if err := tx.exec("delete node "+uuid, `DELETE FROM nodes WHERE uuid = ?`, id); err != nil {
			return err
		}
		s.fresh = append(s.fresh, written{uuid: id})
		return tx.exec("delete leases of node "+uuid, `DELETE FROM leases WHERE node_uuid = ?`, id)
	})
}
