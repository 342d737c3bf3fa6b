// Package allocations answers requests for allocations: a node that fits is looked for, and is the project's until the
// allocation is deleted.
package allocations

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/nodes"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/alloc"
	"github.com/ingot-metal/ingot/conductor/store"
)

// allocationStore is the part of the store that allocations need.
type allocationStore interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	Allocations() *store.Table[node.Allocation]
	Backfill(ctx context.Context, a *node.Allocation, nodeUUID string,
		fits func(a *node.Allocation, n *node.Node) error) error
	DeleteAllocation(ctx context.Context, uuid, user string,
		removable func(a *node.Allocation, n *node.Node) error) error
}

// Handlers answer the requests.
type Handlers struct {
	store    allocationStore
	find     *finder.Finder
	hostname string
	allocate func(uuid string)
}

// New makes Handlers of the conductor hostname. allocate has an allocation that was stored processed soon; with nil it
// waits for a conductor.
func New(st allocationStore, find *finder.Finder, hostname string, allocate func(uuid string)) *Handlers {
	return &Handlers{store: st, find: find, hostname: hostname, allocate: allocate}
}

func (s *Handlers) kind() *resource.Kind[node.Allocation, rest.Allocation] {
	k := &resource.Kind[node.Allocation, rest.Allocation]{
		Path: "allocations", Param: "allocation", Member: "allocations", Body: "allocation", Title: "Allocation",
		Expects: "allocation_ident", Since: rest.VersionAllocations, Named: rest.VersionAllocations, Write: call.Use,
		FoundFirst: true, Table: func() *store.Table[node.Allocation] { return s.store.Allocations() },
		Fields: rest.AllocationFields, Show: show,
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
			"candidate_nodes": document.TextList, "extra": document.OptionalObject, "name": document.OptionalText,
			"node": document.OptionalText, "owner": document.OptionalText,
			"resource_class": {Types: []string{"string", "null"}, MaxLen: 80}, "traits": document.TextList,
			"uuid": document.OptionalText,
		}},
		Sees: func(c *call.Call, a *node.Allocation) bool { return c.Actor.May(access.AllocationGet, ownedBy(a)) },
		May: func(c *call.Call, a *node.Allocation) error {
			return c.MayFor(access.AllocationUpdate, ownedBy(a))
		},
		Patchable: []string{"name", "extra"},
		Document: func(a *node.Allocation) map[string]any {
			return map[string]any{"name": document.Kept(a.Name, "name", a.Blank), "extra": rest.Clone(a.Extra)}
		},
		Check: func(_ context.Context, _ *call.Call, was *node.Allocation, d map[string]any) error {
			if name := document.Text(d, "name"); name != "" && name != was.Name &&
				!document.ValidLabel(rest.VersionURLNames, name) {
				return rest.BadRequest("Cannot update allocation with invalid name '%s'", name)
			}
			properties, err := alloc.Properties(document.Object(d, "extra"))
			if err != nil {
				return rest.BadRequest("%s", err)
			}
			if !reflect.DeepEqual(properties, was.Properties) {
				return rest.BadRequest(
					"extra's %s says what the node was chosen by and can't be changed: make a new allocation",
					alloc.PropertiesKey)
			}
			return nil
		},
		Assign: func(_ *call.Call, a *node.Allocation, d map[string]any) *rest.Error {
			a.Name, a.Extra = document.Text(d, "name"), document.Object(d, "extra")
			a.Blank = slices.DeleteFunc(a.Blank, func(name string) bool { return name == "name" })
			a.Blank = append(a.Blank, document.Blank(d, "name")...)
			return nil
		},
	}
	equal := func(name string, of func(*node.Allocation) string) resource.Filter[node.Allocation] {
		return resource.Filter[node.Allocation]{
			Name: name, Match: func(_ context.Context, _ *call.Call,
				value string) (func(*node.Allocation) bool, error) {
				return func(a *node.Allocation) bool { return of(a) == value }, nil
			}}
	}
	k.Filters = []resource.Filter[node.Allocation]{
		equal("resource_class", func(a *node.Allocation) string { return a.ResourceClass }),
		equal("state", func(a *node.Allocation) string { return a.State }),
		{Name: "owner", Since: rest.VersionAllocOwner,
			Match: func(_ context.Context, c *call.Call, value string) (func(*node.Allocation) bool, error) {
				if project := c.Scope(); project != nil && *project != value {
					return nil, c.MayFor(access.AllocationAny, access.Object{})
				}
				return func(a *node.Allocation) bool { return a.Owner == value }, nil
			}},
		{Name: "node", Match: func(ctx context.Context, c *call.Call,
			value string) (func(*node.Allocation) bool, error) {
			n, err := s.find.ByIdent(ctx, c, value)
			if err != nil {
				return nil, finder.AsBadRequest(err)
			}
			return func(a *node.Allocation) bool { return a.NodeUUID == n.UUID }, nil
		}},
	}
	return k
}

func ownedBy(a *node.Allocation) access.Object { return access.Object{Owner: a.Owner} }

func show(c *call.Call, a *node.Allocation) rest.Allocation {
	return rest.Allocation{
		UUID: a.UUID, CreatedAt: rest.NullTime{Time: a.CreatedAt}, UpdatedAt: rest.NullTime{Time: a.UpdatedAt},
		CandidateNodes: a.CandidateNodes, Extra: a.Extra, LastError: rest.Null(a.LastError),
		Name: rest.Text(a.Name, "name", a.Blank), Owner: rest.Text(a.Owner, "owner", a.Blank),
		ResourceClass: rest.Null(a.ResourceClass), State: a.State, Traits: a.Traits,
		Links: rest.Links(c.Base, "allocations/"+a.UUID), NodeUUID: rest.Null(a.NodeUUID),
	}
}

// Routes are the routes of allocations. In versions that don't have one of their methods yet, that method is not
// allowed.
func (s *Handlers) Routes() []call.Route {
	k := s.kind()
	rs := k.Routes()
	for i := range rs {
		r := &rs[i]
		switch r.Method {
		case http.MethodPost:
			r.Handle = s.createAllocation
		case http.MethodDelete:
			r.Handle = func(ctx context.Context, c *call.Call) (*call.Reply, error) {
				a, err := k.ByIdent(ctx, c, c.Path[k.Param])
				if err != nil {
					return nil, err
				}
				return s.deleteAllocation(ctx, c, a, k.Missing(c.Path[k.Param]))
			}
		}
		if r.Barred = r.Method != http.MethodGet; r.Method == http.MethodPatch {
			r.Since = rest.VersionPatchAlloc
		}
	}
	of := func(ctx context.Context, c *call.Call) (call.Target, error) {
		a, err := s.allocationOf(ctx, c)
		if err != nil {
			return call.Target{}, err
		}
		return k.Target(a), nil
	}
	return append(rs,
		call.Route{Method: http.MethodGet, Path: "/v1/nodes/{node}/allocation", Access: call.Read, Query: call.Named,
			Since: k.Since, Hidden: true, Args: call.Args{"fields": call.Texts}, Answers: call.OK(k.Shape()),
			Target: of, Handle: func(ctx context.Context, c *call.Call) (*call.Reply, error) {
				a, aerr := s.allocationOf(ctx, c)
				if aerr != nil {
					return nil, aerr
				}
				names, err := call.Selected(c, k.Fields)
				if err != nil {
					return nil, err
				}
				return k.One(c, http.StatusOK, a, names), nil
			}},
		call.Route{Method: http.MethodDelete, Path: "/v1/nodes/{node}/allocation", Access: call.Use, Since: k.Since,
			Hidden: true, Target: of, Answers: call.None(http.StatusNoContent),
			Handle: func(ctx context.Context, c *call.Call) (*call.Reply, error) {
				a, err := s.allocationOf(ctx, c)
				if err != nil {
					return nil, err
				}
				return s.deleteAllocation(ctx, c, a, noAllocation(c))
			}},
	)
}

func noAllocation(c *call.Call) *rest.Error {
	return rest.NotFound("Allocation for node %s was not found", c.Path["node"])
}

// allocationOf finds the allocation of the node that the address names. The node shows that it has one, so a client
// that sees the node and not the allocation gets 403 and not 404.
func (s *Handlers) allocationOf(ctx context.Context, c *call.Call) (*node.Allocation, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	if n.AllocationUUID == "" {
		return nil, noAllocation(c)
	}
	a, err := s.store.Allocations().Get(ctx, n.AllocationUUID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noAllocation(c)
	}
	if err != nil {
		return nil, err
	}
	return a, c.MayFor(access.AllocationGet, ownedBy(a))
}

func (s *Handlers) deleteAllocation(ctx context.Context, c *call.Call, a *node.Allocation,
	missing *rest.Error) (*call.Reply, error) {
	if err := c.MayFor(access.AllocationDelete, ownedBy(a)); err != nil {
		return nil, err
	}
	err := s.store.DeleteAllocation(ctx, a.UUID, c.User, func(a *node.Allocation, n *node.Node) error {
		if err := removable(a, n); err != nil {
			return err
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, missing
	}
	return call.NoContent(), err
}

// removable refuses to take a node from its allocation while another client uses it, unless the node is in maintenance.
func removable(a *node.Allocation, n *node.Node) *rest.Error {
	const text = "Cannot remove allocation %s for node %s, because the node is "
	switch {
	case n.AllocationUUID != a.UUID: // the node has nothing of it
		return nil
	case n.Reservation != "":
		return finder.LockedBy(n)
	case n.Maintenance:
		return nil
	case n.TargetProvision != node.None && !slices.Contains(nodes.PatchableIn, n.Provision):
		return rest.Conflict(text+"in state %s where updates are not allowed (and maintenance mode is off)", a.UUID,
			n.UUID, n.Provision)
	case n.Provision == node.Active:
		return rest.Conflict(text+"active (and maintenance mode is off)", a.UUID, n.UUID)
	}
	return nil
}

func (s *Handlers) createAllocation(ctx context.Context, c *call.Call) (*call.Reply, error) {
	k := s.kind()
	d, err := c.Object(k.Body)
	if err != nil {
		return nil, err
	}
	a, err := newAllocation(c, k, d)
	if err != nil {
		return nil, err
	}
	a.Conductor, a.Requester = s.hostname, c.User
	if !c.Actor.May(access.AllocationAny, access.Object{}) { // it is the project's own
		if a.Owner == "" {
			a.Owner = c.Actor.ProjectID
		}
		if a.Owner != c.Actor.ProjectID {
			return nil, c.MayFor(access.AllocationAny, access.Object{})
		}
		if err := c.MayFor(access.AllocationCreate, ownedBy(a)); err != nil {
			return nil, err
		}
	}
	target := document.Text(d, "node")
	if target == "" && a.ResourceClass == "" {
		return nil, rest.BadRequest("The resource_class field is mandatory when not backfilling")
	}
	var n *node.Node
	if target != "" {
		if c.Version < rest.VersionBackfill {
			return nil, rest.BadRequest("Cannot set node when creating an allocation in this API version")
		}
		var err error
		if n, err = s.find.ByIdent(ctx, c, target); err != nil {
			return nil, finder.AsBadRequest(err)
		}
	}
	if err := s.findCandidates(ctx, c, a); err != nil {
		return nil, err
	}
	if n != nil {
		err := s.store.Backfill(ctx, a, n.UUID, func(a *node.Allocation, n *node.Node) error {
			if why := alloc.Unfit(a, n); why != "" {
				return rest.Conflict("%s", why)
			}
			if n.InstanceUUID != "" && n.InstanceUUID != a.UUID {
				return rest.Conflict("Node %s is associated with instance %s.", n.UUID, n.InstanceUUID)
			}
			return nil
		})
		if errors.Is(err, store.ErrNotFound) {
			return nil, rest.BadRequest("Node %s could not be found.", target)
		}
		if err != nil {
			return nil, err
		}
	} else if err := k.Table().Create(ctx, a); err != nil {
		return nil, err
	}
	rep := k.One(c, http.StatusCreated, a, nil)
	rep.Location = c.Base + "/v1/allocations/" + a.UUID
	if n == nil && s.allocate != nil {
		s.allocate(a.UUID)
	}
	return rep, nil
}

// newAllocation checks the body of a POST and makes an allocation of it. Names of candidate nodes are yet to be looked
// up.
func newAllocation(c *call.Call, k *resource.Kind[node.Allocation, rest.Allocation],
	d map[string]any) (*node.Allocation, *rest.Error) {
	if fault := k.Schema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for allocation: %s", fault)
	}
	if err := rest.Oversized(d, nil, 0); err != nil {
		return nil, err
	}
	a := &node.Allocation{State: node.AllocationAllocating, ResourceClass: document.Text(d, "resource_class"),
		Extra: document.Object(d, "extra")}
	for _, t := range document.Texts(d["traits"]) {
		if fault := document.TraitFault(t); fault != "" {
			return nil, rest.BadRequest("Schema error for allocation: %s", fault)
		}
		if !slices.Contains(a.Traits, t) {
			a.Traits = append(a.Traits, t)
		}
	}
	var err *rest.Error
	if a.UUID, err = document.NewUUID(d); err != nil {
		return nil, err
	}
	if _, ok := d["owner"]; ok && c.Version < rest.VersionAllocOwner {
		return nil, rest.NotAcceptable()
	}
	a.Name, a.Owner, a.Blank = document.Text(d, "name"), document.Text(d, "owner"), document.Blank(d, "name", "owner")
	if a.Name != "" && !document.ValidLabel(rest.VersionURLNames, a.Name) {
		return nil, rest.BadRequest("Cannot create allocation with invalid name '%s'", a.Name)
	}
	var perr error
	if a.Properties, perr = alloc.Properties(a.Extra); perr != nil {
		return nil, rest.BadRequest("%s", perr)
	}
	if _, err := alloc.Image(a.Extra); err != nil {
		return nil, rest.BadRequest("%s", err)
	}
	a.CandidateNodes = document.Texts(d["candidate_nodes"])
	return a, nil
}

// findCandidates puts UUIDs where the client sent names, in the client's order.
func (s *Handlers) findCandidates(ctx context.Context, c *call.Call, a *node.Allocation) error {
	var found, missing []string
	seen := map[string]bool{}
	for _, ident := range a.CandidateNodes {
		n, err := s.store.Node(ctx, ident)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && !c.Actor.MaySee(n):
			missing = append(missing, ident)
		case err != nil:
			return err
		case !seen[n.UUID]:
			seen[n.UUID] = true
			found = append(found, n.UUID)
		}
	}
	if len(missing) > 0 {
		return rest.BadRequest("Nodes cannot be found: %s", strings.Join(missing, ", "))
	}
	a.CandidateNodes = found
	return nil
}
