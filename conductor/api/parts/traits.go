package parts

import (
	"context"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

const maxTraits = 50

func (s *Handlers) listTraits(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	traits := n.Traits
	if traits == nil {
		traits = []string{}
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "traits", Value: traits}}}, nil
}

func (s *Handlers) setTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Object("body")
	if err != nil {
		return nil, err
	}
	traits, ok, err := document.Traits(b)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, rest.BadRequest(
			"A single node trait may be added via PUT /v1/nodes/<node identifier>/traits/<trait> with no body, or all node traits may be replaced via PUT /v1/nodes/<node identifier>/traits with the list of traits specified in the request body.")
	}
	return s.changeTraits(ctx, c, func(*node.Node) ([]string, error) { return traits, nil })
}

func (s *Handlers) clearTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.changeTraits(ctx, c, func(*node.Node) ([]string, error) { return nil, nil })
}

func (s *Handlers) addTrait(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if _, err := c.Object("body"); err != nil {
		return nil, err
	}
	if fault := (&rest.Schema{Closed: true}).Check(c.Body); fault != "" {
		return nil, rest.BadRequest("Schema error for body: %s", fault)
	}
	t := c.Path["trait"]
	if err := document.CheckTrait(t); err != nil {
		return nil, err
	}
	rep, cerr := s.changeTraits(ctx, c, func(n *node.Node) ([]string, error) {
		if slices.Contains(n.Traits, t) {
			return n.Traits, nil
		}
		return append(slices.Clone(n.Traits), t), nil
	})
	if cerr != nil {
		return nil, cerr
	}
	rep.Location = c.Base + "/v1/nodes/" + c.Path["node"] + "/traits/" + t
	return rep, nil
}

func (s *Handlers) removeTrait(ctx context.Context, c *call.Call) (*call.Reply, error) {
	t := c.Path["trait"]
	return s.changeTraits(ctx, c, func(n *node.Node) ([]string, error) {
		i := slices.Index(n.Traits, t)
		if i < 0 {
			return nil, rest.NotFound("Node %s doesn't have a trait '%s'", n.UUID, t)
		}
		return slices.Delete(slices.Clone(n.Traits), i, i+1), nil
	})
}

func (s *Handlers) changeTraits(ctx context.Context, c *call.Call,
	change func(*node.Node) ([]string, error)) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	_, err = s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		if n.Reservation != "" {
			return finder.LockedBy(n)
		}
		traits, err := change(n)
		if err != nil {
			return err
		}
		if len(traits) > maxTraits {
			return rest.BadRequest(
				"Could not modify traits for node %s as it would exceed the maximum number of traits per node (%d vs. %d)", n.UUID, len(traits), maxTraits)
		}
		slices.Sort(traits)
		n.Traits = traits
		return nil
	})
	return call.NoContent(), err
}
