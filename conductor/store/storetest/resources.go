package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

func resources(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{})
	groups := s.Portgroups()
	a := &node.Portgroup{Head: node.Head{Name: "bond0", NodeUUID: n.UUID}, Address: "52:54:00:00:00:01",
		Mode: "802.3ad"}
	must(t, groups.Create(ctx, a))
	for _, c := range []struct {
		field string
		g     node.Portgroup
	}{
		{"uuid", node.Portgroup{Head: node.Head{UUID: a.UUID}}},
		{"name", node.Portgroup{Head: node.Head{Name: "bond0"}}},
		{"address", node.Portgroup{Address: "52:54:00:00:00:01"}},
	} {
		var dup *store.DuplicateError
		if err := groups.Create(ctx, &c.g); !errors.As(err, &dup) || dup.Field != c.field || dup.Kind != "portgroup" {
			t.Errorf("a second portgroup with the same %s: %v", c.field, err)
		}
	}
	refused(t, "portgroup of a node that is not there", store.ErrNotFound, groups.Create(ctx,
		&node.Portgroup{Head: node.Head{NodeUUID: "00000000-0000-4000-8000-000000000000"}}))
	got := given(groups.Get(ctx, "bond0"))(t)
	same(t, "stored and read", a, got)
	refused(t, "a portgroup is found among chassis", store.ErrNotFound, second(s.Chassis().Get(ctx, a.UUID)))
	got, err := groups.Update(ctx, a.UUID, func(g *node.Portgroup) error {
		g.Address, g.Name = "",
			"bond1"
		return nil
	})
	if err != nil || got.UpdatedAt.IsZero() {
		t.Fatalf("update: %v, updated at %v", err, got.UpdatedAt)
	}
	b := &node.Portgroup{Head: node.Head{Name: "bond0"}, Address: "52:54:00:00:00:01"} // both are free again
	must(t, groups.Create(ctx, b))
	refuse := errors.New("no")
	refused(t, "a refused change", refuse, second(groups.Update(ctx, b.UUID,
		func(g *node.Portgroup) error { g.Name = "lost"; return refuse })))
	if all, err := groups.List(ctx, ""); err != nil || len(all) != 2 || all[1].Name != "bond0" {
		t.Errorf("list of all: %v, %v", all, err)
	}
	if own, err := groups.List(ctx, n.UUID); err != nil || len(own) != 1 || own[0].Name != "bond1" {
		t.Errorf("list of the node's: %v, %v", own, err)
	}
	must(t, groups.Delete(ctx, b.UUID))
	refused(t, "deleted twice", store.ErrNotFound, groups.Delete(ctx, b.UUID))
	must(t, s.DeleteNode(ctx, n.UUID))
	refused(t, "portgroup of a deleted node", store.ErrNotFound, second(groups.Get(ctx, a.UUID)))

	tpl := &node.DeployTemplate{Head: node.Head{Name: "CUSTOM_X"},
		Steps: []node.TemplateStep{
			{Interface: "deploy", Step: "x", Args: json.RawMessage(`{"password":"hidden"}`), Priority: 5}}}
	must(t, s.DeployTemplates().Create(ctx, tpl))
	back := given(s.DeployTemplates().Get(ctx, "CUSTOM_X"))(t)
	same(t, "sealed", tpl, back)
}

// references: a resource with dependents can't be deleted, and none can belong to a missing one.
func references(t *testing.T, ctx context.Context, s *store.Store) {
	n, other := create(t, s, &node.Node{}), create(t, s, &node.Node{})
	ch := &node.Chassis{Description: "rack"}
	must(t, s.Chassis().Create(ctx, ch))
	var ref *store.ReferenceError
	in := func(chassis string) error {
		_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.ChassisUUID = chassis; return nil })
		return err
	}
	if err := in("00000000-0000-4000-8000-000000000000"); !errors.As(err, &ref) || ref.Kind != "chassis" {
		t.Errorf("a node in a chassis that is not there: %v", err)
	}
	must(t, in(ch.UUID))
	if err := s.Chassis().Delete(ctx, ch.UUID); !errors.As(err, &ref) {
		t.Errorf("a chassis with a node was deleted: %v", err)
	}
	must(t, in(""))
	if err := s.Chassis().Delete(ctx, ch.UUID); err != nil {
		t.Errorf("an empty chassis: %v", err)
	}

	g := &node.Portgroup{Head: node.Head{NodeUUID: n.UUID}}
	must(t, s.Portgroups().Create(ctx, g))
	for _, p := range []node.Port{
		{NodeUUID: n.UUID, Address: "52:54:00:00:00:01", PortgroupUUID: "00000000-0000-4000-8000-000000000000"},
		{NodeUUID: other.UUID, Address: "52:54:00:00:00:01", PortgroupUUID: g.UUID},
	} {
		if err := s.CreatePort(ctx, &p); !errors.As(err, &ref) || ref.Kind != "portgroup" {
			t.Errorf("a port of node %s in group %s: %v", p.NodeUUID, p.PortgroupUUID, err)
		}
	}
	p := node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:01", PortgroupUUID: g.UUID}
	must(t, s.CreatePort(ctx, &p))
	if err := s.Portgroups().Delete(ctx, g.UUID); !errors.As(err, &ref) {
		t.Errorf("a port group with a port was deleted: %v", err)
	}
	q := node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:02", PortgroupUUID: g.UUID, PhysicalNetwork: "p1"}
	if err := s.CreatePort(ctx, &q); !errors.As(err, &ref) || !ref.Clash {
		t.Errorf("a port of another network became a member: %v", err)
	}
	q.PhysicalNetwork = ""
	must(t, s.CreatePort(ctx, &q))
	if _, err := s.UpdatePort(ctx, q.UUID, func(p *node.Port) error {
		p.PhysicalNetwork = "p1"
		return nil
	}); !errors.As(err, &ref) || !ref.Clash {
		t.Errorf("a member went to another network: %v", err)
	}
	must(t, second(s.UpdatePortgroup(ctx, g.UUID,
		func(g *node.Portgroup) error { g.PhysicalNetwork = "p1"; return nil })))
	for _, id := range []string{p.UUID, q.UUID} {
		if m, err := s.Port(ctx, id); err != nil || m.PhysicalNetwork != "p1" {
			t.Errorf("a member did not go with its group: %v, %v", m, err)
		}
	}
	must(t, s.DeletePort(ctx, q.UUID))
	if _, err := s.Portgroups().Update(ctx, g.UUID,
		func(g *node.Portgroup) error { g.NodeUUID = other.UUID; return nil }); !errors.As(err, &ref) {
		t.Errorf("a port group with a port went to another node: %v", err)
	}
	must(t, s.DeletePort(ctx, p.UUID))
	if err := s.Portgroups().Delete(ctx, g.UUID); err != nil {
		t.Errorf("an empty port group: %v", err)
	}
}
