package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Parts of documents: what a client may send is null, absent or of the type that the schema asks for.

func textIn(d map[string]any, name string) string {
	v, _ := d[name].(string)
	return v
}

func objectIn(d map[string]any, name string) map[string]any {
	m, _ := d[name].(map[string]any)
	return rest.Clone(m)
}

func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func numberIn(d map[string]any, name string) int {
	f, _ := d[name].(float64)
	return int(f)
}

// flagIn reads a boolean in any of its words; absent is what null and no value stand for.
func flagIn(d map[string]any, name string, absent bool) (bool, *rest.Error) {
	if d[name] == nil {
		return absent, nil
	}
	return boolean(name, d[name])
}

// macIn checks the MAC of a document and puts it as it is stored; null and no value are fine.
func macIn(d map[string]any, name string) *rest.Error {
	sent, ok := d[name].(string)
	if !ok {
		return nil
	}
	mac, ok := hardwareAddress(sent)
	if !ok {
		return rest.BadRequest("Expected valid MAC address for %s: %s", name, sent)
	}
	d[name] = mac
	return nil
}

// nodeIn finds the node that a document's node_uuid names, asks whether the actor may give it such a thing, and puts its UUID as it is
// stored. A node that is not there, or that the actor may not see, is the request's fault.
func (s *Server) nodeIn(ctx context.Context, c *call, d map[string]any, create access.Rule) (*node.Node, error) {
	id := textIn(d, "node_uuid")
	if !isUUID(id) {
		return nil, rest.BadRequest("Expected UUID for node_uuid: %s", id)
	}
	return s.nodeSent(ctx, c, d, id, create)
}

// nodeSent is nodeIn for a node that the body names otherwise, by UUID or name.
func (s *Server) nodeSent(ctx context.Context, c *call, d map[string]any, ident string, create access.Rule) (*node.Node, error) {
	n, err := s.nodeByIdent(ctx, c, ident)
	var e *rest.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		return nil, rest.BadRequest("%s", e.Message)
	}
	if err != nil {
		return nil, err
	}
	d["node_uuid"] = n.UUID
	return n, c.may(create, n)
}

// unlocked finds the node of a resource that is to be changed, and refuses while somebody else works on it.
func (s *Server) unlocked(ctx context.Context, uuid string) (*node.Node, error) {
	n, err := s.store.Node(ctx, uuid)
	if err != nil {
		return nil, err
	}
	if n.Reservation != "" {
		return nil, lockedBy(n)
	}
	return n, nil
}

// Filters of lists by what the node of a resource is.

// ofNode keeps the resources of one node.
func ofNode[T any](s *Server) filter[T] {
	return filter[T]{name: "node", match: func(ctx context.Context, c *call, ident string) (func(*T) bool, error) {
		n, err := s.nodeByIdent(ctx, c, ident)
		if err != nil {
			return nil, err
		}
		return func(v *T) bool { return head(v).NodeUUID == n.UUID }, nil
	}}
}

// ofNodes keeps the resources of the nodes that a query finds. Its argument is a list with commas.
func ofNodes[T any](s *Server, name string, since rest.Version, query func(values []string) []store.Query) filter[T] {
	return filter[T]{name: name, since: since, match: func(ctx context.Context, _ *call, value string) (func(*T) bool, error) {
		found := map[string]bool{}
		for _, q := range query(strings.Split(value, ",")) {
			nodes, err := s.store.Nodes(ctx, q)
			if err != nil {
				return nil, err
			}
			for _, n := range nodes {
				found[n.UUID] = true
			}
		}
		return func(v *T) bool { return found[head(v).NodeUUID] }, nil
	}}
}

func inShards(values []string) []store.Query { return []store.Query{{Shards: values}} }

func inConductorGroups(values []string) []store.Query {
	qs := make([]store.Query, len(values))
	for i, v := range values {
		group := strings.ToLower(v)
		qs[i].ConductorGroup = &group
	}
	return qs
}
