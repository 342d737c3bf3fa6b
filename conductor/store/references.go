package store

import (
	"context"
	"fmt"

	"github.com/ingot-metal/ingot/conductor/node"
)

// ReferenceError says that a resource does not exist to which another was to belong, or has something that keeps it
// from being deleted. Its text is a whole sentence.
type ReferenceError struct {
	Kind, UUID string // "chassis", "portgroup"
	Why        string
	Clash      bool // it exists, but the other does not fit
}

func (e *ReferenceError) Error() string { return e.Why }

// chassisOf makes sure that a node's chassis exists.
func chassisOf(tx *txn, n *node.Node) error {
	if n.ChassisUUID == "" {
		return nil
	}
	found, err := tx.find([]any{new(int)}, `SELECT 1 FROM resources WHERE kind = 'chassis' AND uuid = ?`, n.ChassisUUID)
	if err != nil || found {
		return err
	}
	return &ReferenceError{Kind: "chassis", UUID: n.ChassisUUID,
		Why: fmt.Sprintf("Chassis %s could not be found.", n.ChassisUUID)}
}

// groupOf makes sure that a port's port group exists and belongs to the same node.
func groupOf(tx *txn, p *node.Port) error {
	if p.PortgroupUUID == "" {
		return nil
	}
	var owner string
	found, err := tx.find([]any{&owner},
		`SELECT COALESCE(node_uuid, '') FROM resources WHERE kind = 'portgroup' AND uuid = ?`, p.PortgroupUUID)
	if err != nil || owner == p.NodeUUID && found {
		return err
	}
	why := fmt.Sprintf("Portgroup %s could not be found.", p.PortgroupUUID)
	if found {
		why = fmt.Sprintf("Port can not be a member of portgroup %s: that belongs to node %s, the port to node %s.",
			p.PortgroupUUID, owner, p.NodeUUID)
	}
	return &ReferenceError{Kind: "portgroup", UUID: p.PortgroupUUID, Why: why}
}

// oneNetwork makes sure that a port's group has no ports in another physical network.
func oneNetwork(tx *txn, p *node.Port) error {
	if p.PortgroupUUID == "" {
		return nil
	}
	var other string
	found, err := tx.find([]any{&other},
		`SELECT physical_network FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> '' AND uuid <> ? AND physical_network <> ? LIMIT 1`,
		p.PortgroupUUID, p.UUID, p.PhysicalNetwork)
	if err != nil || !found {
		return err
	}
	return &ReferenceError{Kind: "portgroup", UUID: p.PortgroupUUID, Clash: true,
		Why: fmt.Sprintf("Port group %s has ports in physical network %q, so a port in %q can not become a member.",
			p.PortgroupUUID, other, p.PhysicalNetwork)}
}

// contents is which kind of resource holds what, and the query for it.
var contents = map[string]struct{ holds, query string }{
	"chassis":   {"nodes", `SELECT 1 FROM nodes WHERE chassis_uuid = ? AND chassis_uuid <> '' LIMIT 1`},
	"portgroup": {"ports", `SELECT 1 FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> '' LIMIT 1`},
}

// unused refuses to delete a chassis that has nodes and a port group that has ports.
func unused(tx *txn, kind, uuid string) error {
	c, ok := contents[kind]
	if !ok {
		return nil
	}
	return tx.refuse(&ReferenceError{Kind: kind, UUID: uuid, Why: fmt.Sprintf(
		"Cannot complete the requested action because %s %s contains %s.", kind, uuid, c.holds)}, c.query, uuid)
}

// together refuses to move a port group to another node than that of its ports.
func together(tx *txn, kind, uuid, nodeUUID string) error {
	if kind != "portgroup" {
		return nil
	}
	return tx.refuse(&ReferenceError{Kind: kind, UUID: uuid,
		Why: fmt.Sprintf("Portgroup %s can not be given to another node while it contains ports.", uuid)},
		`SELECT 1 FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> '' AND node_uuid <> ? LIMIT 1`, uuid,
		nodeUUID)
}

// UpdatePortgroup is Update of the table of port groups; its ports go with a group to another physical network, in the
// same transaction.
func (s *Store) UpdatePortgroup(ctx context.Context, uuid string,
	change func(*node.Portgroup) error) (*node.Portgroup, error) {
	return writing(ctx, s, func(tx *txn) (*node.Portgroup, error) {
		var was string
		g, err := s.Portgroups().update(ctx, tx, uuid, func(g *node.Portgroup) error {
			was = g.PhysicalNetwork
			return change(g)
		})
		if err != nil || g.PhysicalNetwork == was {
			return g, err
		}
		ports, err := list(ctx, tx, "read ports of port group "+g.UUID, scanPort,
			`SELECT doc FROM ports WHERE portgroup_uuid = ? AND portgroup_uuid <> ''`, g.UUID)
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			p.PhysicalNetwork, p.UpdatedAt = g.PhysicalNetwork, s.now()
			if err := s.putPort(tx, p); err != nil {
				return nil, err
			}
			if err := s.notePart(tx, "port", "update", portHead(p), []string{"physical_network"}); err != nil {
				return nil, err
			}
		}
		return g, nil
	})
}
