package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestRequestsExpectTheNode: what a request expects of a node is compared where the engine takes the request on, so
// that nothing comes in between.
func TestRequestsExpectTheNode(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.until(m, "idle", func(n *node.Node) bool { return n.Reservation == "" && n.Job == nil })
	eng := w.current().eng
	for _, r := range []struct {
		what string
		ask  func(ctx context.Context) error
	}{
		{"provide", func(ctx context.Context) error { return eng.Provision(ctx, m.id, Request{Verb: node.Provide}) }},
		{"power on", func(ctx context.Context) error { return eng.SetPower(ctx, m.id, "power on", 0, "") }},
		{"quarantine", func(ctx context.Context) error {
			_, err := eng.Quarantine(ctx, m.id, "broken", "")
			return err
		}},
	} {
		was := w.node(m)
		old := &node.Expected{Kind: "node", UUID: m.id, Holds: func(string) bool { return false }}
		var changed *node.ChangedError
		if err := r.ask(node.WithExpected(t.Context(), old)); !errors.As(err, &changed) {
			t.Errorf("%s of a node that has changed = %v", r.what, err)
		}
		if is := w.node(m); is.Tag() != was.Tag() || is.Job != nil || is.Reservation != "" {
			t.Errorf("%s was refused and changed the node: %s, %s", r.what, was.Tag(), is.Tag())
		}
	}
	was := w.node(m)
	as := &node.Expected{Kind: "node", UUID: m.id, Holds: func(tag string) bool { return tag == was.Tag() }}
	if err := eng.Provision(node.WithExpected(t.Context(), as), m.id, Request{Verb: node.Provide}); err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Available)
}
