package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// PortQuery says which ports, in which order. The zero value is all of them in the order they were made.
type PortQuery struct {
	NodeUUID, Address, PortgroupUUID, Name *string
	PXEEnabled                             *bool
	Project                                *string  // that owns or leases the port's node
	DescriptionContains                    *string  // without regard to case (ASCII)
	Shards                                 []string // of their nodes; nil: all
	ConductorGroups                        []string // of their nodes; nil: all

	Sort   string // one of PortSortKeys; "": the order they were made
	Desc   bool
	Marker string
	Limit  int
}

// PortSortKeys are the fields ports can be sorted by.
func PortSortKeys() []string {
	keys := []string{"uuid", "node_uuid", "address", "name", "pxe_enabled", "physical_network", "portgroup_uuid",
		"created_at", "updated_at"}
	return slices.AppendSeq(keys, maps.Keys(portDocKeys))
}

// portDocKeys are the sort keys that have no column of their own: ports are rarely sorted by them.
var portDocKeys = map[string]string{
	"available_for_dynamic_portgroup": "doc ->> '$.NoDynamicPortgroup' IS NOT TRUE", // false is left out of documents
	"category":                        "doc ->> '$.Category'", "description": "doc ->> '$.Description'",
	"is_smartnic": "doc ->> '$.IsSmartNIC'", "vendor": "doc ->> '$.Vendor'",
}

func scanPort(scan func(...any) error) (*node.Port, error) {
	var doc []byte
	if err := scan(&doc); err != nil {
		return nil, notFound(err)
	}
	p := new(node.Port)
	if err := exact.Unmarshal(doc, p); err != nil {
		return nil, fmt.Errorf("decode port: %w", err)
	}
	return p, nil
}

// CreatePort stores a new port and fills in what is empty: UUID, times.
func (s *Store) CreatePort(ctx context.Context, p *node.Port) error {
	c := *p
	err := s.write(ctx, func(tx *txn) error { return s.createPort(tx, &c) })
	if err != nil {
		return fmt.Errorf("create port: %w", err)
	}
	*p = c
	return nil
}

func portHead(p *node.Port) node.Head {
	return node.Head{UUID: p.UUID, Name: p.Name, NodeUUID: p.NodeUUID}
}

func (s *Store) createPort(tx *txn, p *node.Port) error {
	if p.UUID == "" {
		p.UUID = uuid.NewString()
	}
	p.UUID = strings.ToLower(p.UUID)
	if _, err := uuid.Parse(p.UUID); err != nil {
		return fmt.Errorf("uuid %q: %w", p.UUID, err)
	}
	var id string
	err := tx.QueryRow(`SELECT node_uuid FROM ports WHERE uuid = ?`, p.UUID).Scan(&id)
	if err == nil {
		return &DuplicateError{Field: "port uuid", Value: p.UUID, NodeUUID: id}
	} else if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	p.CreatedAt = s.now()
	p.UpdatedAt = p.CreatedAt
	if err := oneNetwork(tx, p); err != nil {
		return err
	}
	if err := s.putPort(tx, p); err != nil {
		return err
	}
	return s.notePart(tx, "port", "create", portHead(p), nil)
}

func (s *Store) putPort(tx *txn, p *node.Port) error {
	p.Address = strings.ToLower(p.Address)
	p.NodeUUID = strings.ToLower(p.NodeUUID)
	var id string
	err := tx.QueryRow(`SELECT uuid FROM nodes WHERE uuid = ?`, p.NodeUUID).Scan(&id)
	if err != nil {
		return fmt.Errorf("node %s of the port: %w", p.NodeUUID, notFound(err))
	}
	if err := groupOf(tx, p); err != nil {
		return err
	}
	for _, u := range []struct{ column, value string }{{"address", p.Address}, {"name", p.Name}} {
		if u.value == "" {
			continue
		}
		err := tx.QueryRow(`SELECT node_uuid FROM ports WHERE `+u.column+` = ? AND uuid <> ?`, u.value, p.UUID).Scan(
			&id)
		if err == nil {
			return &DuplicateError{Field: "port " + u.column, Value: u.value, NodeUUID: id}
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	p.Revision++
	doc, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode port: %w", err)
	}
	_, err = tx.Exec(`INSERT INTO ports (uuid, node_uuid, address, name, pxe_enabled, physical_network, portgroup_uuid, created_at, updated_at, doc)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (uuid) DO UPDATE SET node_uuid = excluded.node_uuid, address = excluded.address, name = excluded.name,
			pxe_enabled = excluded.pxe_enabled, physical_network = excluded.physical_network,
			portgroup_uuid = excluded.portgroup_uuid, updated_at = excluded.updated_at, doc = excluded.doc`,
		p.UUID, p.NodeUUID, p.Address, null(p.Name), bit(p.PXEEnabled), p.PhysicalNetwork, p.PortgroupUUID,
		micros(p.CreatedAt), micros(p.UpdatedAt), string(doc))
	if err != nil {
		return fmt.Errorf("write port: %w", err)
	}
	return nil
}

// Port returns a port by UUID.
func (s *Store) Port(ctx context.Context, uuid string) (*node.Port, error) {
	p, err := scanPort(s.r.QueryRowContext(ctx, `SELECT doc FROM ports WHERE uuid = ?`, strings.ToLower(uuid)).Scan)
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", uuid, err)
	}
	return p, nil
}

// PortByMAC returns the port with this address.
func (s *Store) PortByMAC(ctx context.Context, mac string) (*node.Port, error) {
	p, err := scanPort(s.r.QueryRowContext(ctx, `SELECT doc FROM ports WHERE address = ?`, strings.ToLower(mac)).Scan)
	if err != nil {
		return nil, fmt.Errorf("port with address %s: %w", mac, err)
	}
	return p, nil
}

// HasPorts tells whether a node has ports.
func (s *Store) HasPorts(ctx context.Context, nodeUUID string) (has bool, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM ports WHERE node_uuid = ?)`,
		strings.ToLower(nodeUUID)).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for ports of node %s: %w", nodeUUID, err)
	}
	return has, nil
}

// Ports returns the ports that q describes.
func (s *Store) Ports(ctx context.Context, q PortQuery) ([]*node.Port, error) {
	if q.Sort != "" && !slices.Contains(PortSortKeys(), q.Sort) {
		return nil, &SortError{q.Sort}
	}
	marker := strings.ToLower(q.Marker)
	if err := s.markerExists(ctx, "ports", marker); err != nil {
		return nil, err
	}
	var w where
	w.equal("p.node_uuid", lower(q.NodeUUID))
	w.equal("p.address", lower(q.Address))
	w.equal("p.portgroup_uuid", lower(q.PortgroupUUID))
	w.equal("p.name", q.Name)
	w.flag("p.pxe_enabled", q.PXEEnabled)
	if q.Project != nil {
		w.add("p.node_uuid IN (SELECT uuid FROM nodes WHERE owner = ? OR lessee = ?)", *q.Project, *q.Project)
	}
	if q.DescriptionContains != nil {
		w.add(`INSTR(LOWER(COALESCE(p.doc ->> '$.Description', '')), LOWER(?)) > 0`, *q.DescriptionContains)
	}
	for column, values := range map[string][]string{"shard": q.Shards, "conductor_group": q.ConductorGroups} {
		if len(values) == 0 {
			continue
		}
		args := make([]any, len(values))
		for i, v := range values {
			args[i] = v
		}
		w.add("p.node_uuid IN (SELECT uuid FROM nodes WHERE "+column+" IN (?"+strings.Repeat(", ?", len(values)-1)+"))",
			args...)
	}
	sort := q.Sort
	if in, ok := portDocKeys[sort]; ok {
		sort = in
	}
	tail := w.page("ports", "p", sort, q.Desc, marker, q.Limit)
	rows, err := s.r.QueryContext(ctx, `SELECT p.doc FROM ports p`+tail, w.args...)
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	out, err := collect(rows, scanPort)
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	return out, nil
}

func lower(s *string) *string {
	if s == nil {
		return nil
	}
	l := strings.ToLower(*s)
	return &l
}

// UpdatePort reads a port, lets change modify it and stores it, in one transaction, as UpdateNode does.
func (s *Store) UpdatePort(ctx context.Context, uuid string, change func(*node.Port) error) (*node.Port, error) {
	var out *node.Port
	err := s.write(ctx, func(tx *txn) error {
		p, err := scanPort(tx.QueryRow(`SELECT doc FROM ports WHERE uuid = ?`, strings.ToLower(uuid)).Scan)
		if err != nil {
			return fmt.Errorf("port %s: %w", uuid, err)
		}
		id, created, revision, group, network := p.UUID, p.CreatedAt, p.Revision, p.PortgroupUUID, p.PhysicalNetwork
		was, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("encode port: %w", err)
		}
		if err := change(p); err != nil {
			return err
		}
		p.UUID, p.CreatedAt, p.UpdatedAt, p.Revision = id, created, s.now(), revision
		out = p
		if p.PortgroupUUID != group || p.PhysicalNetwork != network {
			if err := oneNetwork(tx, p); err != nil {
				return err
			}
		}
		if err := s.putPort(tx, p); err != nil {
			return err
		}
		is, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("encode port: %w", err)
		}
		if fields := partFields(was, is); len(fields) > 0 {
			return s.notePart(tx, "port", "update", portHead(p), fields)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DeletePort removes a port.
func (s *Store) DeletePort(ctx context.Context, uuid string) error {
	return s.write(ctx, func(tx *txn) error {
		p, err := scanPort(tx.QueryRow(`SELECT doc FROM ports WHERE uuid = ?`, strings.ToLower(uuid)).Scan)
		if err != nil {
			return fmt.Errorf("delete port %s: %w", uuid, err)
		}
		if err := s.notePart(tx, "port", "delete", portHead(p), nil); err != nil {
			return err
		}
		res, err := tx.Exec(`DELETE FROM ports WHERE uuid = ?`, strings.ToLower(uuid))
		if err != nil {
			return fmt.Errorf("delete port %s: %w", uuid, err)
		}
		if k, err := res.RowsAffected(); err != nil || k == 0 {
			return fmt.Errorf("delete port %s: %w", uuid, errors.Join(err, ErrNotFound))
		}
		return nil
	})
}
