package catalog

import (
	"cmp"
	"context"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// listShards counts the nodes of each shard. Those of none are listed under "None", as clients expect.
func (s *Handlers) listShards(ctx context.Context, c *call.Call) (*call.Reply, error) {
	nodes, err := s.store.Nodes(ctx, store.Query{Sort: "shard"})
	if err != nil {
		return nil, err
	}
	var items []rest.Object
	count := 0
	for i, n := range nodes {
		count++
		if i+1 < len(nodes) && nodes[i+1].Shard == n.Shard {
			continue
		}
		name := cmp.Or(n.Shard, "None")
		items = append(items, rest.Object{{Name: "name", Value: name}, {Name: "count", Value: count}})
		count = 0
	}
	return call.List("shards", items, ""), nil
}
