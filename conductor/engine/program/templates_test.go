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
	b := &node.Runbook{Head: node.Head{Name: "any-name"}, Traits: []string{"CUSTOM_T"}, DisableRamdisk: true, Steps: []node.TemplateStep{
		{Interface: "a", Step: "third", Order: 7}, {Interface: "a", Step: "first", Order: 0}, {Interface: "a", Step: "second", Order: 7 - 1},
	}}
	m := Maker{Library: shelf{b}}
	r, err := m.WithRunbook(t.Context(), &node.Node{Traits: []string{"CUSTOM_T"}}, Wish{Verb: node.Service, Runbook: "any-name"})
	if err != nil || !r.DisableRamdisk || len(r.CleanSteps) != 0 || len(r.ServiceSteps) != 3 {
		t.Fatalf("WithRunbook = %+v, %v", r, err)
	}
	for i, name := range []string{"first", "second", "third"} {
		if r.ServiceSteps[i].Name != name {
			t.Errorf("step %d is %s, want %s", i, r.ServiceSteps[i].Name, name)
		}
	}
}
