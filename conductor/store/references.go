package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ingot-metal/ingot/conductor/node"
)

// ReferenceError says that a resource is not there for what was to belong to it, or has something that keeps it from
// being deleted. Its text is a whole sentence.
type ReferenceError struct {
	Kind, UUID string // "chassis", "portgroup"
	Why        string
	Clash      bool // it is there, but what was to belong to it does not fit
}

func (e *ReferenceError) Error() string { return e.Why }

// chassisOf makes sure that a node's chassis exists.
func chassisOf(tx *txn, n *node.Node) error {
	if n.ChassisUUID == "" {
		return nil
	}
	var one int
	err := tx.QueryRow(`SELECT 1 FROM resources WHERE kind = 'chassis' AND uuid = ?`, n.ChassisUUID).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return &ReferenceError{Kind: "chassis", UUID: n.ChassisUUID,
			Why: fmt.Sprintf("Chassis %s could not be found.", n.ChassisUUID)}
	}
	return err
}

// groupOf makes sure that a port's port group exists and belongs to the same node.
func groupOf(tx *txn, p *node.Port) error {
	if p.PortgroupUUID == "" {
		return nil
	}
	var owner string
	err := tx.QueryRow(`SELECT COALESCE(node_uuid, '') FROM resources WHERE kind = 'portgroup' AND uuid = ?`,
		p.PortgroupUUID).Scan(&owner)
	if errors.Is(err, sql.ErrNoRows) {
		return &ReferenceError{Kind: "portgroup", UUID: p.PortgroupUUID,
			Why: fmt.Sprintf("Portgroup %s could not be found.", p.PortgroupUUID)}
	}
	if err == nil && owner != p.NodeUUID {
		return &ReferenceError{Kind: "portgroup", UUID: p.PortgroupUUID,
			Why: fmt.Sprintf("Port can not be a member of portgroup %s: that belongs to node %s, the port to node %s.",
				p.PortgroupUUID, owner, p.NodeUUID)}
	}
	return err
}

// oneNetwork makes sure that a port's group has no ports in another physical network.
func oneNetwork(tx *txn, p *node.Port) error {
	if p.PortgroupUUID == "" {
		return nil
	}
	var other string
	err := tx.QueryRow(
		`SELECT physical_network FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> '' AND uuid <> ? AND physical_network <> ? LIMIT 1`,
		p.PortgroupUUID, p.UUID, p.PhysicalNetwork).Scan(&other)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		return &ReferenceError{Kind: "portgroup", UUID: p.PortgroupUUID, Clash: true,
			Why: fmt.Sprintf("Port group %s has ports in physical network %q, so a port in %q can not become a member.",
				p.PortgroupUUID, other, p.PhysicalNetwork)}
	}
	return err
}

// unused refuses to delete a chassis that has nodes and a port group that has ports.
func unused(tx *txn, kind, uuid string) error {
	var (
		query, holds string
		one          int
	)
	switch kind {
	case "chassis":
		query, holds = `SELECT 1 FROM nodes WHERE chassis_uuid = ? AND chassis_uuid <> '' LIMIT 1`, "nodes"
	case "portgroup":
		query, holds = `SELECT 1 FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> '' LIMIT 1`, "ports"
	default:
		return nil
	}
	err := tx.QueryRow(query, uuid).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		return &ReferenceError{
			Kind: kind, UUID: uuid,
			Why: fmt.Sprintf("Cannot complete the requested action because %s %s contains %s.", kind, uuid, holds)}
	}
	return err
}

// together refuses to give a port group to another node than its ports are of.
func together(tx *txn, kind, uuid, nodeUUID string) error {
	if kind != "portgroup" {
		return nil
	}
	var one int
	err := tx.QueryRow(
		`SELECT 1 FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> '' AND node_uuid <> ? LIMIT 1`, uuid,
		nodeUUID).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		return &ReferenceError{
			Kind: kind, UUID: uuid,
			Why: fmt.Sprintf("Portgroup %s can not be given to another node while it contains ports.", uuid)}
	}
	return err
}

// UpdatePortgroup is Update of the table of port groups; its ports go with a group to another physical network, in the
// same transaction.
func (s *Store) UpdatePortgroup(ctx context.Context, uuid string,
	change func(*node.Portgroup) error) (*node.Portgroup, error) {
	var out *node.Portgroup
	err := s.write(ctx, func(tx *txn) error {
		var was string
		g, err := s.Portgroups().update(ctx, tx, uuid, func(g *node.Portgroup) error {
			was = g.PhysicalNetwork
			return change(g)
		})
		if err != nil {
			return err
		}
		out = g
		if g.PhysicalNetwork == was {
			return nil
		}
		rows, err := tx.QueryContext(ctx, `SELECT doc FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> ''`,
			g.UUID)
		if err != nil {
			return fmt.Errorf("read ports of port group %s: %w", g.UUID, err)
		}
		ports, err := collect(rows, scanPort)
		if err != nil {
			return fmt.Errorf("read ports of port group %s: %w", g.UUID, err)
		}
		for _, p := range ports {
			p.PhysicalNetwork, p.UpdatedAt = g.PhysicalNetwork, s.now()
			if err := s.putPort(tx, p); err != nil {
				return err
			}
			if err := s.notePart(tx, "port", "update", portHead(p), []string{"physical_network"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
