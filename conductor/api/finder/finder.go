// Package finder finds the nodes that requests name, in addresses, queries and bodies.
//
// A caller who may not see a node gets the same answer as for a node that does not exist. Everything that belongs to a
// node is found through it.
package finder

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodes is where nodes are kept.
type nodes interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
}

// Finder finds nodes.
type Finder struct{ store nodes }

// New makes a Finder.
func New(st nodes) *Finder { return &Finder{store: st} }

// Visible returns a node by its UUID or, as for a missing one, store.ErrNotFound when the actor may not see it.
// Everything that belongs to a node is found with it: ports, portgroups, volumes.
func (f *Finder) Visible(ctx context.Context, c *call.Call, nodeUUID string) (*node.Node, error) {
	n, err := f.store.Node(ctx, nodeUUID)
	if err != nil {
		return nil, err
	}
	if !c.Actor.MaySee(n) {
		return nil, fmt.Errorf("node %s: %w", nodeUUID, store.ErrNotFound)
	}
	return n, nil
}

// Sees returns a function that reports whether the actor may see the node with a UUID: for lists of objects of nodes
// that the store does not filter. One query however long the list; none for those who see everything.
func (f *Finder) Sees(ctx context.Context, c *call.Call) (func(nodeUUID string) bool, error) {
	project := c.Scope()
	if project == nil {
		return func(string) bool { return true }, nil
	}
	ns, err := f.store.Nodes(ctx, store.Query{Project: project})
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(ns))
	for _, n := range ns {
		seen[n.UUID] = c.Actor.MaySee(n)
	}
	return func(nodeUUID string) bool { return seen[nodeUUID] }, nil
}

// AsBadRequest turns "not found" into a fault of the request, for objects that the address does not name.
func AsBadRequest(err error) error {
	var e *rest.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		return rest.BadRequest("%s", e.Message)
	}
	return err
}

// In finds the node that a document's node_uuid names, checks whether the actor may add such an object to it, and
// stores the UUID's stored form in the document. A node that is missing, or that the actor may not see, is the
// request's fault.
func (f *Finder) In(ctx context.Context, c *call.Call, d map[string]any, create access.Rule) (*node.Node, error) {
	id := document.Text(d, "node_uuid")
	if !document.IsUUID(id) {
		return nil, rest.BadRequest("Expected UUID for node_uuid: %s", id)
	}
	return f.Sent(ctx, c, d, id, create)
}

// Sent is In for a node that the body names otherwise, by UUID or name.
func (f *Finder) Sent(ctx context.Context, c *call.Call, d map[string]any, ident string,
	create access.Rule) (*node.Node, error) {
	n, err := f.ByIdent(ctx, c, ident)
	if err != nil {
		return nil, AsBadRequest(err)
	}
	d["node_uuid"] = n.UUID
	return n, c.May(create, n)
}

// Unlocked finds the node of a resource that is to be changed, and refuses while it is locked.
func (f *Finder) Unlocked(ctx context.Context, uuid string) (*node.Node, error) {
	n, err := f.store.Node(ctx, uuid)
	if err != nil {
		return nil, err
	}
	if n.Reservation != "" {
		return nil, LockedBy(n)
	}
	return n, nil
}

// Free finds the node that the address names, and refuses a locked one.
func (f *Finder) Free(ctx context.Context, c *call.Call) (*node.Node, error) {
	n, err := f.Node(ctx, c)
	if err == nil && n.Reservation != "" {
		return nil, LockedBy(n)
	}
	return n, err
}

// Node finds the node that the address names, by UUID or, in versions that have names, by name.
func (f *Finder) Node(ctx context.Context, c *call.Call) (*node.Node, error) {
	return f.ByIdent(ctx, c, c.Path["node"])
}

// Named makes the handler of a route below a node, which is found first.
func (f *Finder) Named(handle func(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error)) func(
	ctx context.Context, c *call.Call) (*call.Reply, error) {
	return func(ctx context.Context, c *call.Call) (*call.Reply, error) {
		n, err := f.Node(ctx, c)
		if err != nil {
			return nil, err
		}
		return handle(ctx, c, n)
	}
}

// ByIdent finds the node that a request names by UUID or, in versions that have names, by name.
func (f *Finder) ByIdent(ctx context.Context, c *call.Call, ident string) (*node.Node, error) {
	if !document.IsUUID(ident) {
		if !document.IsName(ident) {
			return nil, rest.BadRequest("Expected UUID or name for node_ident: %s", ident)
		}
		if c.Version < rest.VersionNames {
			return nil, rest.NotFound("Node %s could not be found.", ident)
		}
	}
	if n := c.Known(ident); n != nil {
		return n, nil
	}
	n, err := f.Visible(ctx, c, ident)
	if errors.Is(err, store.ErrNotFound) {
		if stem, ok := c.Stem(ident); ok {
			if n, err2 := f.Visible(ctx, c, stem); err2 == nil {
				return n, nil
			}
		}
		return nil, rest.NotFound("Node %s could not be found.", ident)
	}
	return n, err
}

// LockedBy is the answer while the node is locked; clients try again.
func LockedBy(n *node.Node) *rest.Error {
	e := rest.Conflict("Node %s is locked by host %s, please retry after the current operation is completed.", n.UUID,
		n.Reservation)
	e.Again = true
	return e
}
