package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Deployment is the program of a deployment with the steps of the deploy templates merged in whose names are among the
// instance's traits. The request's own steps go before those of templates.
func (m Planner) Deployment(ctx context.Context, n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	traits, err := instance.Traits(n)
	if err != nil {
		return nil, err
	}
	found, err := m.Library.TemplatesNamed(ctx, traits)
	if err != nil {
		return nil, fmt.Errorf("read deploy templates: %w", err)
	}
	var steps []node.JobStep
	var names []string
	from := map[string]string{} // template by step
	for _, t := range found {
		if len(t.Drivers) > 0 && !slices.Contains(t.Drivers, n.Driver) {
			continue
		}
		names = append(names, t.Name)
		for _, st := range t.Steps {
			id := st.Interface + "." + st.Step
			if other := from[id]; other != "" {
				return nil, node.Invalidf(
					"deploy templates %s and %s both have step %s, and both match the instance's traits: take one of the traits away, or the step out of a template", other, t.Name, id)
			}
			from[id] = t.Name
			steps = append(steps,
				node.JobStep{Interface: st.Interface, Name: st.Step, Args: st.Args, Priority: st.Priority})
		}
	}
	merged := slices.DeleteFunc(slices.Clone(steps), func(s node.JobStep) bool {
		return slices.ContainsFunc(asked, func(a node.JobStep) bool {
			return a.Interface == s.Interface && a.Name == s.Name
		})
	})
	program, err := m.deploySteps(n, append(merged, asked...))
	var invalid *node.InvalidError
	if errors.As(err, &invalid) && len(merged) > 0 {
		// Find out whose fault it is: the user who deploys may not know that templates add steps.
		if _, terr := m.deploySteps(n, merged); errors.As(terr, &invalid) {
			if _, plain := m.deploySteps(n, nil); plain == nil {
				return nil, node.Invalidf(
					"the steps of the deploy templates that match the instance's traits (%s) don't fit this node: %s",
					strings.Join(names, ", "), invalid.Reason)
			}
		}
	}
	return program, err
}

// WithRunbook puts the steps of the runbook that a request names into it. Who may use the runbook is the API's to say;
// that it is meant for this node, the node's traits say.
func (m Planner) WithRunbook(ctx context.Context, n *node.Node, r Request) (Request, error) {
	if r.Runbook == "" {
		return r, nil
	}
	switch {
	case r.Verb != node.Clean && r.Verb != node.Service:
		return r, node.Invalidf(
			`"runbooks" is only valid when setting target provision state to any of ['clean', 'service']`)
	case len(r.CleanSteps)+len(r.ServiceSteps) > 0:
		return r, node.Invalidf("Please provide either \"%s_steps\" or a runbook, but not both.", r.Verb)
	}
	b, err := m.Library.Runbook(ctx, r.Runbook)
	if errors.Is(err, node.ErrNotFound) {
		return r, node.Invalidf("Runbook %s could not be found.", r.Runbook)
	}
	if err != nil {
		return r, fmt.Errorf("read runbook: %w", err)
	}
	has := func(trait string) bool { return slices.Contains(n.Traits, trait) }
	switch {
	case r.RunbookByName && has(b.Name) || !r.RunbookByName && slices.ContainsFunc(b.Traits, has):
	case !r.RunbookByName && len(b.Traits) == 0:
		return r, node.Invalidf(
			"Runbook %s has no traits configured. Please ask an administrator to add traits to the runbook.", b.UUID)
	case !r.RunbookByName:
		return r, node.Invalidf(
			"This runbook has not been approved for use on this node %s. The node does not have any of the runbook's traits ['%s']. Please ask an administrator to add a matching trait to your node.",
			n.UUID, strings.Join(slices.Sorted(slices.Values(b.Traits)), "', '"))
	default:
		return r, node.Invalidf(
			"This runbook has not been approved for use on this node %s. Please ask an administrator to add it to your node traits.", n.UUID)
	}
	ordered := slices.Clone(b.Steps)
	slices.SortStableFunc(ordered, func(x, y node.TemplateStep) int { return x.Order - y.Order })
	steps := make([]node.JobStep, len(ordered))
	for i, st := range ordered {
		steps[i] = node.JobStep{Interface: st.Interface, Name: st.Step, Args: st.Args}
	}
	if r.Verb == node.Clean {
		r.CleanSteps = steps
	} else {
		r.ServiceSteps = steps
	}
	r.DisableRamdisk = r.DisableRamdisk || b.DisableRamdisk
	return r, nil
}
