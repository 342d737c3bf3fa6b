package resource

import (
	"context"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Filter is a query argument of a list. match is given its value and returns which resources to keep.
type Filter[T any] struct {
	Name  string
	Since rest.Version // below it the argument is not acceptable; 0: all versions
	Match func(ctx context.Context, c *call.Call, value string) (func(*T) bool, error)
}

// OfNode keeps the resources of one node.
func OfNode[T any](find *finder.Finder) Filter[T] {
	return Filter[T]{Name: "node", Match: func(ctx context.Context, c *call.Call, ident string) (func(*T) bool, error) {
		n, err := find.ByIdent(ctx, c, ident)
		if err != nil {
			return nil, err
		}
		return func(v *T) bool { return head(v).NodeUUID == n.UUID }, nil
	}}
}

// lister is where nodes are kept.
type lister interface {
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
}

// OfNodes keeps the resources of the nodes that a query finds. Its argument is a list with commas.
func OfNodes[T any](nodes lister, name string, since rest.Version,
	query func(values []string) []store.Query) Filter[T] {
	return Filter[T]{
		Name: name, Since: since, Match: func(ctx context.Context, _ *call.Call, value string) (func(*T) bool, error) {
			values := call.Split(value)
			if len(values) == 0 {
				return func(*T) bool { return true }, nil
			}
			wanted := map[string]bool{}
			for _, q := range query(values) {
				found, err := nodes.Nodes(ctx, q)
				if err != nil {
					return nil, err
				}
				for _, n := range found {
					wanted[n.UUID] = true
				}
			}
			return func(v *T) bool { return wanted[head(v).NodeUUID] }, nil
		}}
}

// InShards selects nodes of any of these shards.
func InShards(values []string) []store.Query { return []store.Query{{Shards: values}} }

// InConductorGroups selects nodes of any of these conductor groups.
func InConductorGroups(values []string) []store.Query {
	qs := make([]store.Query, len(values))
	for i, v := range values {
		qs[i].ConductorGroup = new(strings.ToLower(v))
	}
	return qs
}
