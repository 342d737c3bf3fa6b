package api

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// unsupported are calls that no hardware type can carry out: the answer is the one that clients know from drivers without the
// feature, which tells them more than that the address does not exist.
func (s *Server) unsupported() []route {
	const get, put = http.MethodGet, http.MethodPut
	var rs []route
	for _, u := range []struct {
		method, path, feature string
		since                 rest.Version
		hidden                bool
	}{
		{get, "states/console", "console", 1, false},
		{put, "states/console", "console", 1, false},
		{put, "states/raid", "raid", 12, false},
		{put, "states/boot_mode", "set_boot_mode", 76, true},
		{put, "states/secure_boot", "set_secure_boot_state", 76, true},
		{put, "management/inject_nmi", "inject_nmi", 29, true},
		{get, "management/indicators", "get_supported_indicators", 63, true},
	} {
		access := Write
		if u.method == get {
			access = Read
		}
		rs = append(rs, route{Method: u.method, Path: "/v1/nodes/{node}/" + u.path, Access: access, Since: u.since, Hidden: u.hidden,
			handle: func(ctx context.Context, c *call) (*reply, error) {
				n, err := s.node(ctx, c)
				if err != nil {
					return nil, err
				}
				return nil, rest.BadRequest("Driver %s does not support %s (disabled or not implemented).", n.Driver, u.feature)
			}})
	}
	ofNode := func(handle func(n *node.Node, c *call) (*reply, error)) func(context.Context, *call) (*reply, error) {
		return func(ctx context.Context, c *call) (*reply, error) {
			n, err := s.node(ctx, c)
			if err != nil {
				return nil, err
			}
			return handle(n, c)
		}
	}
	ofDriver := func(handle func(c *call) (*reply, error)) func(context.Context, *call) (*reply, error) {
		return func(_ context.Context, c *call) (*reply, error) {
			if _, ok := driver.ByName(c.path["driver"]); !ok {
				return nil, rest.NotFound("The driver '%s' is unknown.", c.path["driver"])
			}
			return handle(c)
		}
	}
	noMethods := func(*call) (*reply, error) { return &reply{status: http.StatusOK, body: rest.Object{}}, nil }
	rs = append(rs,
		route{Method: get, Path: "/v1/nodes/{node}/vendor_passthru/methods", Access: Read,
			handle: ofNode(func(_ *node.Node, c *call) (*reply, error) { return noMethods(c) })},
		route{Method: get, Path: "/v1/drivers/{driver}/vendor_passthru/methods", Access: Read, handle: ofDriver(noMethods)},
		route{Method: get, Path: "/v1/drivers/{driver}/raid/logical_disk_properties", Access: Read, Since: 12, Hidden: true, handle: ofDriver(func(c *call) (*reply, error) {
			return nil, rest.BadRequest("Driver %s does not support raid (disabled or not implemented).", c.path["driver"])
		})},
		route{Method: get, Path: "/v1/nodes/{node}/bios", Access: Read, Since: 40, Hidden: true,
			handle: ofNode(func(*node.Node, *call) (*reply, error) { return list("bios", nil, ""), nil })},
		route{Method: get, Path: "/v1/nodes/{node}/bios/{setting}", Access: Read, Since: 40, Hidden: true, handle: ofNode(func(n *node.Node, c *call) (*reply, error) {
			return nil, rest.NotFound("Node %s doesn't have a BIOS setting '%s'", n.UUID, c.path["setting"])
		})},
		route{Method: get, Path: "/v1/shards", Access: Read, Since: rest.VersionShards, Hidden: true, handle: s.listShards},
	)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		access := Write
		if method == http.MethodGet {
			access = Read
		}
		rs = append(rs,
			route{Method: method, Path: "/v1/nodes/{node}/vendor_passthru", Access: access,
				handle: ofNode(func(_ *node.Node, c *call) (*reply, error) { return noHandler(c) })},
			route{Method: method, Path: "/v1/drivers/{driver}/vendor_passthru", Access: access, handle: ofDriver(noHandler)},
		)
	}
	return rs
}

// noHandler refuses a vendor's method: no driver has any.
func noHandler(c *call) (*reply, error) {
	method := c.text("method")
	if method == nil {
		return nil, rest.BadRequest("Missing mandatory parameter: method")
	}
	return nil, rest.BadRequest("No handler for method %s", *method)
}

// listShards counts the nodes of each shard. Those of none are listed under "None", as clients expect.
func (s *Server) listShards(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
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
		name := n.Shard
		if name == "" {
			name = "None"
		}
		items = append(items, rest.Object{{Name: "name", Value: name}, {Name: "count", Value: count}})
		count = 0
	}
	return list("shards", items, ""), nil
}
