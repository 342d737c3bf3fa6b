package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// TestExpected: whatever writes to a resource is refused when the resource is not as expected, and then nothing is
// changed.
func TestExpected(t *testing.T) { store.Engines(t, testExpected) }

func testExpected(t *testing.T, o store.Options) {
	ctx := t.Context()
	s := openOptions(t, o)
	n := &node.Node{Name: "n", Driver: "x"}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	p := &node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:01"}
	g := &node.Portgroup{Head: node.Head{NodeUUID: n.UUID}}
	a, ch := &node.Allocation{ResourceClass: "c"}, &node.Chassis{}
	vc := &node.VolumeConnector{Head: node.Head{NodeUUID: n.UUID}, Type: "iqn", ConnectorID: "i"}
	vt := &node.VolumeTarget{Head: node.Head{NodeUUID: n.UUID}}
	dt, rb, ir := &node.DeployTemplate{Head: node.Head{Name: "CUSTOM_A"}},
		&node.Runbook{Head: node.Head{Name: "CUSTOM_B"}}, &node.InspectionRule{}
	for _, err := range []error{s.CreatePort(ctx, p), s.Portgroups().Create(ctx, g), s.Allocations().Create(ctx, a),
		s.Chassis().Create(ctx, ch), s.VolumeConnectors().Create(ctx, vc), s.VolumeTargets().Create(ctx, vt),
		s.DeployTemplates().Create(ctx, dt), s.Runbooks().Create(ctx, rb), s.InspectionRules().Create(ctx, ir)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	nodeTag := func() (string, error) {
		n, err := s.Node(ctx, n.UUID)
		if err != nil {
			return "", err
		}
		return n.Tag(), nil
	}
	portTag := func() (string, error) {
		p, err := s.Port(ctx, p.UUID)
		if err != nil {
			return "", err
		}
		return p.Tag(), nil
	}
	type row struct {
		what, kind, uuid string
		tag              func() (string, error)
		write            func(ctx context.Context) error
	}
	rows := []row{
		{"UpdateNode", "node", n.UUID, nodeTag, func(ctx context.Context) error {
			_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Power = "power on"; return nil })
			return err
		}},
		{"Change", "node", n.UUID, nodeTag, func(ctx context.Context) error {
			_, err := s.Change(ctx, n.UUID,
				func(n *node.Node, _ *node.SideEffects) error { n.Provision = node.Manageable; return nil })
			return err
		}},
		{"UpdatePort", "port", p.UUID, portTag, func(ctx context.Context) error {
			_, err := s.UpdatePort(ctx, p.UUID, func(p *node.Port) error { p.Revision = 0; p.Name = "p"; return nil })
			return err
		}},
		{"DeletePort", "port", p.UUID, portTag, func(ctx context.Context) error { return s.DeletePort(ctx, p.UUID) }},
		{"UpdatePortgroup", "portgroup", g.UUID, tagIn(ctx, s.Portgroups(), g.UUID), func(ctx context.Context) error {
			_, err := s.UpdatePortgroup(ctx, g.UUID, func(g *node.Portgroup) error { g.Mode = "802.3ad"; return nil })
			return err
		}},
	}
	rows = append(rows,
		row{"DeleteAllocation", "allocation", a.UUID, tagIn(ctx, s.Allocations(), a.UUID),
			func(ctx context.Context) error { return s.DeleteAllocation(ctx, a.UUID, "", nil) }})
	add := func(kind, uuid string, tag func() (string, error), update, remove func(ctx context.Context) error) {
		rows = append(rows, row{"Update of " + kind, kind, uuid, tag, update},
			row{"Delete of " + kind, kind, uuid, tag, remove})
	}
	both(ctx, add, s.Portgroups(), g.UUID)
	both(ctx, add, s.Chassis(), ch.UUID)
	both(ctx, add, s.VolumeConnectors(), vc.UUID)
	both(ctx, add, s.VolumeTargets(), vt.UUID)
	both(ctx, add, s.DeployTemplates(), dt.UUID)
	both(ctx, add, s.Runbooks(), rb.UUID)
	both(ctx, add, s.InspectionRules(), ir.UUID)
	rows = append(rows,
		row{"DeleteNode", "node", n.UUID, nodeTag,
			func(ctx context.Context) error { return s.DeleteNode(ctx, n.UUID) }})
	for _, r := range rows {
		was, err := r.tag()
		if err != nil {
			t.Fatalf("%s: %v", r.what, err)
		}
		compared := ""
		old := &node.Expected{Kind: r.kind, UUID: r.uuid, Holds: func(tag string) bool { compared = tag; return false }}
		var changed *node.ChangedError
		if err := r.write(node.WithExpected(ctx, old)); !errors.As(err, &changed) || changed.Kind != r.kind ||
			changed.UUID != r.uuid {
			t.Errorf("%s of what has changed = %v", r.what, err)
		}
		if is, err := r.tag(); err != nil || is != was || compared != was {
			t.Errorf("%s: refused, tag %s, compared %s, then %s, %v", r.what, was, compared, is, err)
		}
		e := &node.Expected{Kind: r.kind, UUID: r.uuid, Holds: func(tag string) bool { return tag == was }}
		expecting := node.WithExpected(ctx, e)
		if err := r.write(expecting); err != nil {
			t.Fatalf("%s of what is as expected = %v", r.what, err)
		}
		if is, err := r.tag(); err == nil && is == was {
			t.Errorf("%s: tag %s stays", r.what, is)
		}
		if !e.Over() || node.ExpectedOf(expecting) != nil {
			t.Errorf("%s: its own change would stop what the request writes next", r.what)
		}
	}
	gone := &node.Expected{Kind: "node", UUID: n.UUID, Holds: func(string) bool { return true }}
	if _, err := s.UpdateNode(node.WithExpected(ctx, gone), n.UUID, func(*node.Node) error { return nil }); !errors.Is(
		err, store.ErrNotFound) {
		t.Errorf("a node that is gone = %v", err)
	}
}

func tagIn[T any](ctx context.Context, table *store.Table[T], uuid string) func() (string, error) {
	return func() (string, error) {
		v, err := table.Get(ctx, uuid)
		if err != nil {
			return "", err
		}
		return any(v).(node.Resource).Meta().Tag(), nil
	}
}

func both[T any](ctx context.Context,
	add func(kind, uuid string, tag func() (string, error), update, remove func(ctx context.Context) error),
	table *store.Table[T], uuid string) {
	add(table.Kind(), uuid, tagIn(ctx, table, uuid), func(ctx context.Context) error {
		_, err := table.Update(ctx, uuid, func(v *T) error {
			h := any(v).(node.Resource).Meta()
			h.Revision, h.Owner = 0, h.Owner+"x"
			return nil
		})
		return err
	}, func(ctx context.Context) error { return table.Delete(ctx, uuid) })
}

// TestExpectedUntilOwnChange: what a request writes elsewhere first does not end the comparison.
func TestExpectedUntilOwnChange(t *testing.T) { store.Engines(t, testExpectedUntilOwnChange) }

func testExpectedUntilOwnChange(t *testing.T, o store.Options) {
	ctx := t.Context()
	s := openOptions(t, o)
	n := &node.Node{Name: "n", Driver: "x"}
	ch := &node.Chassis{}
	if err := errors.Join(s.CreateNode(ctx, n), s.Chassis().Create(ctx, ch)); err != nil {
		t.Fatal(err)
	}
	expecting := node.WithExpected(ctx,
		&node.Expected{Kind: "node", UUID: n.UUID, Holds: func(tag string) bool { return tag == n.Tag() }})
	if _, err := s.Chassis().Update(expecting, ch.UUID,
		func(c *node.Chassis) error { c.Description = "x"; return nil }); err != nil {
		t.Fatal(err)
	}
	power := func(ctx context.Context, to string) error {
		_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Power = to; return nil })
		return err
	}
	if err := power(ctx, "power on"); err != nil {
		t.Fatal(err)
	}
	var changed *node.ChangedError
	if err := power(expecting, "power off"); !errors.As(err, &changed) {
		t.Errorf("a node that somebody else has changed = %v", err)
	}
}
