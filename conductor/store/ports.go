package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// PortQuery says which ports, in which order. The zero value is all of them in the order they were made.
type PortQuery struct {
	NodeUUID, Address, PortgroupUUID, Name *string
	PXEEnabled                             *bool
	SwitchID                               *string  // in local_link_connection, in the form in which it is stored
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

// portDocKeys are the sort keys that have no column of their own: ports are rarely sorted by them. Flags are true where
// the member of the document is, but for the first, which is its opposite.
var portDocKeys = map[string]struct {
	member string
	flag   bool
	order  string // of a flag: what it is subtracted from
}{
	"available_for_dynamic_portgroup": {"NoDynamicPortgroup", true, "1 - "},
	"category":                        {member: "Category"},
	"description":                     {member: "Description"},
	"is_smartnic":                     {"IsSmartNIC", true, ""},
	"vendor":                          {member: "Vendor"},
}

// portOrder is the expression that a list of ports is sorted by.
func (s *Store) portOrder(key string) string {
	k, ok := portDocKeys[key]
	switch {
	case !ok:
		return sortColumn("p", key)
	case k.flag:
		return k.order + s.d.flag(k.member)
	}
	return s.d.member(k.member)
}

func scanPort(scan scanner) (*node.Port, error) {
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

// CreatePort stores a new port and fills in empty fields: UUID, times.
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
	if err := fillUUID(&p.UUID); err != nil {
		return err
	}
	taken := DuplicateError{Field: "port uuid", Value: p.UUID}
	if err := tx.unique(taken, `SELECT node_uuid FROM ports WHERE uuid = ?`, p.UUID); err != nil {
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
	if err := tx.QueryRow(`SELECT 1 FROM nodes WHERE uuid = ?`, p.NodeUUID).Scan(new(int)); err != nil {
		return fmt.Errorf("node %s of the port: %w", p.NodeUUID, notFound(err))
	}
	if err := groupOf(tx, p); err != nil {
		return err
	}
	for _, u := range []struct{ column, value string }{{"address", p.Address}, {"name", p.Name}} {
		if u.value == "" {
			continue
		}
		taken := DuplicateError{Field: "port " + u.column, Value: u.value}
		if err := tx.unique(taken, `SELECT node_uuid FROM ports WHERE `+u.column+` = ? AND uuid <> ?`, u.value,
			p.UUID); err != nil {
			return err
		}
	}
	p.Revision++
	doc, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode port: %w", err)
	}
	return tx.exec("write port", `INSERT INTO ports (uuid, node_uuid, address, name, pxe_enabled, physical_network, portgroup_uuid, created_at, updated_at, doc)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (uuid) DO UPDATE SET node_uuid = excluded.node_uuid, address = excluded.address, name = excluded.name,
			pxe_enabled = excluded.pxe_enabled, physical_network = excluded.physical_network,
			portgroup_uuid = excluded.portgroup_uuid, updated_at = excluded.updated_at, doc = excluded.doc`,
		p.UUID, p.NodeUUID, p.Address, null(p.Name), bit(p.PXEEnabled), p.PhysicalNetwork, p.PortgroupUUID,
		micros(p.CreatedAt), micros(p.UpdatedAt), string(doc))
}

// Port returns a port by UUID.
func (s *Store) Port(ctx context.Context, uuid string) (*node.Port, error) {
	return readPort(ctx, s.r, uuid)
}

func readPort(ctx context.Context, q queryer, uuid string) (*node.Port, error) {
	p, err := scanPort(q.QueryRowContext(ctx, `SELECT doc FROM ports WHERE uuid = ?`, strings.ToLower(uuid)).Scan)
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

// HasPorts reports whether a node has ports.
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
		w.add(s.d.find+"(LOWER("+s.d.member("Description")+"), ?) > 0", lowerASCII(*q.DescriptionContains))
	}
	if q.SwitchID != nil { // as it is in the document, so that both databases search the same way
		w.add(s.d.find+"(p.doc, ?) > 0", `"switch_id":"`+*q.SwitchID+`"`)
	}
	var owners where
	in(&owners, "shard", q.Shards)
	in(&owners, "conductor_group", q.ConductorGroups)
	if len(owners.conds) > 0 {
		w.add("p.node_uuid IN (SELECT uuid FROM nodes"+owners.sql()+")", owners.args...)
	}
	tail := w.page("ports p", "p", s.portOrder(q.Sort), q.Desc, marker, q.Limit)
	return list(ctx, s.r, "list ports", scanPort, `SELECT p.doc FROM ports p`+tail, w.args...)
}

func lower(s *string) *string {
	if s == nil {
		return nil
	}
	return new(strings.ToLower(*s))
}

// UpdatePort reads a port, lets change modify it and stores it, in one transaction, as UpdateNode does.
func (s *Store) UpdatePort(ctx context.Context, uuid string, change func(*node.Port) error) (*node.Port, error) {
	return writing(ctx, s, func(tx *txn) (*node.Port, error) {
		p, err := readPort(ctx, tx, uuid)
		if err != nil {
			return nil, err
		}
		was := *p
		before, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encode port: %w", err)
		}
		if err := change(p); err != nil {
			return nil, err
		}
		p.UUID, p.CreatedAt, p.UpdatedAt, p.Revision = was.UUID, was.CreatedAt, s.now(), was.Revision
		if p.PortgroupUUID != was.PortgroupUUID || p.PhysicalNetwork != was.PhysicalNetwork {
			if err := oneNetwork(tx, p); err != nil {
				return nil, err
			}
		}
		if err := s.putPort(tx, p); err != nil {
			return nil, err
		}
		after, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encode port: %w", err)
		}
		if fields := partFields(before, after); len(fields) > 0 {
			err = s.notePart(tx, "port", "update", portHead(p), fields)
		}
		return p, err
	})
}

// DeletePort removes a port.
func (s *Store) DeletePort(ctx context.Context, uuid string) error {
	return s.write(ctx, func(tx *txn) error {
		p, err := readPort(ctx, tx, uuid)
		if err != nil {
			return fmt.Errorf("delete %w", err)
		}
		return s.removePort(tx, p)
	})
}

func (s *Store) removePort(tx *txn, p *node.Port) error {
	if err := s.notePart(tx, "port", "delete", portHead(p), nil); err != nil {
		return err
	}
	return tx.exec("delete port "+p.UUID, `DELETE FROM ports WHERE uuid = ?`, p.UUID)
}
