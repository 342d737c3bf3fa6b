package program

import (
	"context"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// shelf is a library of one runbook.
type shelf struct{ b *node.Runbook }

func (shelf) TemplatesNamed(context.Context, []string) ([]*node.DeployTemplate, error) {
	return nil, nil
}

func (s shelf) Runbook(_ context.Context, ident string) (*node.Runbook, error) {
	if s.b.Name != ident {
		return nil, node.ErrNotFound
	}
	return s.b, nil
}

func TestRunbookOrder(t *testing.T) {
	b := &node.Runbook{Head: node.Head{Name: "any-name"}, Traits: []string{"CUSTOM_T"}, DisableRamdisk: true,
		Steps: []node.TemplateStep{
			{Interface: "a", Step: "third", Order: 7}, {Interface: "a", Step: "first", Order: 0},
			{Interface: "a", Step: "second", Order: 7 - 1},
		}}
	m := Planner{Library: shelf{b}}
	r, err := m.WithRunbook(t.Context(), &node.Node{Traits: []string{"CUSTOM_T"}},
		Request{Verb: node.Service, Runbook: "any-name"})
	if err != nil || !r.DisableRamdisk || len(r.CleanSteps) != 0 || len(r.ServiceSteps) != 3 {
		t.Fatalf("WithRunbook = %+v, %v", r, err)
	}
	for i, name := range []string{"first", "second", "third"} {
		if r.ServiceSteps[i].Name != name {
			t.Errorf("step %d is %s, want %s", i, r.ServiceSteps[i].Name, name)
		}
	}
}

// TestRunbookSuitsNode: requests of older versions go by the trait of a runbook's name, newer ones by its traits;
// neither goes by the other.
func TestRunbookSuitsNode(t *testing.T) {
	const who = "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c"
	unnamed := "This runbook has not been approved for use on this node " + who +
		". Please ask an administrator to add it to your node traits."
	for _, c := range []struct {
		has, of []string // traits of the node, and of the runbook
		byName  bool
		want    string
	}{
		{[]string{"CUSTOM_R"}, nil, true, ""},
		{[]string{"CUSTOM_R"}, []string{"CUSTOM_X"}, true, ""},
		{[]string{"CUSTOM_X"}, []string{"CUSTOM_X"}, true, unnamed},
		{nil, nil, true, unnamed},
		{[]string{"CUSTOM_R"}, nil, false,
			"Runbook r1 has no traits configured. Please ask an administrator to add traits to the runbook."},
		{[]string{"CUSTOM_A", "CUSTOM_X"}, []string{"CUSTOM_Y", "CUSTOM_X"}, false, ""},
		{[]string{"CUSTOM_R"}, []string{"CUSTOM_Y", "CUSTOM_X"}, false,
			"This runbook has not been approved for use on this node " + who +
				". The node does not have any of the runbook's traits ['CUSTOM_X', 'CUSTOM_Y']. Please ask an administrator to add a matching trait to your node."},
	} {
		b := &node.Runbook{Head: node.Head{UUID: "r1", Name: "CUSTOM_R"}, Traits: c.of}
		_, err := Planner{Library: shelf{b}}.WithRunbook(t.Context(), &node.Node{UUID: who, Traits: c.has},
			Request{Verb: node.Clean, Runbook: "CUSTOM_R", RunbookByName: c.byName})
		if got := errorText(err); got != c.want {
			t.Errorf("node with %v, runbook with %v, by name %v: %q, want %q", c.has, c.of, c.byName, got, c.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
