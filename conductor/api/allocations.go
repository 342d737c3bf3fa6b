package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/alloc"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// allocations are what an allocation needs of the store beyond its table.
type allocations interface {
	Backfill(ctx context.Context, a *node.Allocation, nodeUUID string, fits func(a *node.Allocation, n *node.Node) error) error
	DeleteAllocation(ctx context.Context, uuid, user string, removable func(a *node.Allocation, n *node.Node) error) error
}

var textList = &rest.Schema{Types: []string{"array", "null"}, Items: &rest.Schema{Types: []string{"string"}}}

func (s *Server) allocations() *kind[node.Allocation, rest.Allocation] {
	k := &kind[node.Allocation, rest.Allocation]{
		path: "allocations", param: "allocation", list: "allocations", body: "allocation", title: "Allocation", expects: "allocation_ident",
		since: rest.VersionAllocations, named: rest.VersionAllocations, write: Use,
		table:  func() *store.Table[node.Allocation] { return s.store.Allocations() },
		fields: rest.AllocationFields, short: rest.AllocationListFields, show: showAllocation,
		schema: &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
			"candidate_nodes": textList, "extra": optionalObject, "name": optionalText, "node": optionalText, "owner": optionalText,
			"resource_class": {Types: []string{"string", "null"}, MaxLen: 80}, "traits": textList, "uuid": optionalText,
		}},
		sees:      func(c *call, a *node.Allocation) bool { return c.actor.May(access.AllocationGet, ownedBy(a)) },
		may:       func(c *call, a *node.Allocation) error { return c.mayFor(access.AllocationUpdate, ownedBy(a)) },
		patchable: []string{"name", "extra"},
		document: func(a *node.Allocation) map[string]any {
			return map[string]any{"name": textOrNull(a.Name), "extra": rest.Clone(a.Extra)}
		},
		check: func(_ context.Context, _ *call, was *node.Allocation, d map[string]any) error {
			if name := textIn(d, "name"); name != "" && name != was.Name && !validName(rest.VersionURLNames, name) {
				return rest.BadRequest("Cannot update allocation with invalid name '%s'", name)
			}
			properties, err := alloc.Properties(objectIn(d, "extra"))
			if err != nil {
				return rest.BadRequest("%s", err)
			}
			if !reflect.DeepEqual(properties, was.Properties) {
				return rest.BadRequest("extra's %s says what the node was chosen by and can't be changed: make a new allocation", alloc.PropertiesKey)
			}
			return nil
		},
		assign: func(_ *call, a *node.Allocation, d map[string]any) *rest.Error {
			a.Name, a.Extra = textIn(d, "name"), objectIn(d, "extra")
			return nil
		},
	}
	equal := func(name string, of func(*node.Allocation) string) filter[node.Allocation] {
		return filter[node.Allocation]{name: name, match: func(_ context.Context, _ *call, value string) (func(*node.Allocation) bool, error) {
			return func(a *node.Allocation) bool { return of(a) == value }, nil
		}}
	}
	k.filters = []filter[node.Allocation]{
		equal("resource_class", func(a *node.Allocation) string { return a.ResourceClass }),
		equal("state", func(a *node.Allocation) string { return a.State }),
		{name: "owner", since: rest.VersionAllocOwner, match: func(_ context.Context, c *call, value string) (func(*node.Allocation) bool, error) {
			if project := c.scope(); project != nil && *project != value {
				return nil, c.mayFor(access.AllocationAny, access.Object{})
			}
			return func(a *node.Allocation) bool { return a.Owner == value }, nil
		}},
		{name: "node", match: func(ctx context.Context, c *call, value string) (func(*node.Allocation) bool, error) {
			n, err := s.nodeByIdent(ctx, c, value)
			if err != nil {
				return nil, asBadRequest(err)
			}
			return func(a *node.Allocation) bool { return a.NodeUUID == n.UUID }, nil
		}},
	}
	return k
}

func ownedBy(a *node.Allocation) access.Object { return access.Object{Owner: a.Owner} }

// asBadRequest makes "not found" a fault of the request: what was not found is not what its address names.
func asBadRequest(err error) error {
	var e *rest.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		return rest.BadRequest("%s", e.Message)
	}
	return err
}

func showAllocation(c *call, a *node.Allocation) rest.Allocation {
	return rest.Allocation{
		UUID: a.UUID, CreatedAt: rest.NullTime{Time: a.CreatedAt}, UpdatedAt: rest.NullTime{Time: a.UpdatedAt}, CandidateNodes: a.CandidateNodes,
		Extra: a.Extra, LastError: rest.Null(a.LastError), Name: rest.Null(a.Name), Owner: rest.Null(a.Owner), ResourceClass: rest.Null(a.ResourceClass),
		State: a.State, Traits: a.Traits, Links: rest.Links(c.base, "allocations/"+a.UUID), NodeUUID: rest.Null(a.NodeUUID),
	}
}

// allocationRoutes are the routes of allocations. In versions that don't have one of their methods yet, that method is not allowed.
func (s *Server) allocationRoutes() []route {
	k := s.allocations()
	rs := k.routes()
	for i := range rs {
		r := &rs[i]
		switch r.Method {
		case http.MethodPost:
			r.handle = s.createAllocation
		case http.MethodDelete:
			r.handle = func(ctx context.Context, c *call) (*reply, error) {
				if err := c.allow(); err != nil {
					return nil, err
				}
				a, err := k.byIdent(ctx, c, c.path[k.param])
				if err != nil {
					return nil, err
				}
				return s.deleteAllocation(ctx, c, a, k.missing(c.path[k.param]))
			}
		}
		if since := map[string]rest.Version{http.MethodPost: k.since, http.MethodDelete: k.since, http.MethodPatch: rest.VersionPatchAlloc}[r.Method]; since > 0 {
			handle := r.handle
			r.Since, r.Hidden = 0, false
			r.handle = func(ctx context.Context, c *call) (*reply, error) {
				if c.v < since {
					return nil, rest.Routing(http.StatusMethodNotAllowed, "")
				}
				return handle(ctx, c)
			}
		}
	}
	return append(rs,
		route{Method: http.MethodGet, Path: "/v1/nodes/{node}/allocation", Access: Read, Since: k.since, Hidden: true, handle: func(ctx context.Context, c *call) (*reply, error) {
			if err := c.allow("fields"); err != nil {
				return nil, err
			}
			names, err := selected(c, k.fields)
			if err != nil {
				return nil, err
			}
			a, aerr := s.allocationOf(ctx, c)
			if aerr != nil {
				return nil, aerr
			}
			return k.show1(c, http.StatusOK, a, names), nil
		}},
		route{Method: http.MethodDelete, Path: "/v1/nodes/{node}/allocation", Access: Use, Since: k.since, Hidden: true, handle: func(ctx context.Context, c *call) (*reply, error) {
			if err := c.allow(); err != nil {
				return nil, err
			}
			a, err := s.allocationOf(ctx, c)
			if err != nil {
				return nil, err
			}
			return s.deleteAllocation(ctx, c, a, noAllocation(c))
		}},
	)
}

func noAllocation(c *call) *rest.Error {
	return rest.NotFound("Allocation for node %s was not found", c.path["node"])
}

// allocationOf finds the allocation of the node that the address names.
func (s *Server) allocationOf(ctx context.Context, c *call) (*node.Allocation, error) {
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if n.AllocationUUID == "" {
		return nil, noAllocation(c)
	}
	a, err := s.store.Allocations().Get(ctx, n.AllocationUUID)
	if errors.Is(err, store.ErrNotFound) || err == nil && !c.actor.May(access.AllocationGet, ownedBy(a)) {
		return nil, noAllocation(c)
	}
	return a, err
}

func (s *Server) deleteAllocation(ctx context.Context, c *call, a *node.Allocation, missing *rest.Error) (*reply, error) {
	if err := c.mayFor(access.AllocationDelete, ownedBy(a)); err != nil {
		return nil, err
	}
	err := s.store.DeleteAllocation(ctx, a.UUID, c.user, func(a *node.Allocation, n *node.Node) error {
		if err := removable(a, n); err != nil {
			return err
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusNoContent}, nil
}

// removable refuses to take a node from its allocation while somebody uses it, unless the node is in maintenance.
func removable(a *node.Allocation, n *node.Node) *rest.Error {
	const text = "Cannot remove allocation %s for node %s, because the node is "
	switch {
	case n.AllocationUUID != a.UUID: // the node has nothing of it
		return nil
	case n.Reservation != "":
		return lockedBy(n)
	case n.Maintenance:
		return nil
	case n.TargetProvision != node.None && !slices.Contains(patchableIn, n.Provision):
		return rest.Conflict(text+"in state %s where updates are not allowed (and maintenance mode is off)", a.UUID, n.UUID, n.Provision)
	case n.Provision == node.Active:
		return rest.Conflict(text+"active (and maintenance mode is off)", a.UUID, n.UUID)
	}
	return nil
}

func (s *Server) createAllocation(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	k := s.allocations()
	d, err := c.object(k.body)
	if err != nil {
		return nil, err
	}
	a, err := newAllocation(c, k, d)
	if err != nil {
		return nil, err
	}
	a.Conductor, a.Requester = s.cfg.Hostname, c.user
	if !c.actor.May(access.AllocationAny, access.Object{}) { // it is the project's own
		if a.Owner == "" {
			a.Owner = c.actor.ProjectID
		}
		if a.Owner != c.actor.ProjectID {
			return nil, c.mayFor(access.AllocationAny, access.Object{})
		}
		if err := c.mayFor(access.AllocationCreate, ownedBy(a)); err != nil {
			return nil, err
		}
	}
	target := textIn(d, "node")
	if target == "" && a.ResourceClass == "" {
		return nil, rest.BadRequest("The resource_class field is mandatory when not backfilling")
	}
	var n *node.Node
	if target != "" {
		if c.v < rest.VersionBackfill {
			return nil, rest.BadRequest("Cannot set node when creating an allocation in this API version")
		}
		var err error
		if n, err = s.nodeByIdent(ctx, c, target); err != nil {
			return nil, asBadRequest(err)
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
	} else if err := k.table().Create(ctx, a); err != nil {
		return nil, err
	}
	rep := k.show1(c, http.StatusCreated, a, nil)
	rep.location = c.base + "/v1/allocations/" + a.UUID
	if n == nil && s.cfg.Allocate != nil {
		s.cfg.Allocate(a.UUID)
	}
	return rep, nil
}

// newAllocation checks the body of a POST and makes an allocation of it. Names of candidate nodes are yet to be looked up.
func newAllocation(c *call, k *kind[node.Allocation, rest.Allocation], d map[string]any) (*node.Allocation, *rest.Error) {
	if fault := k.schema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for allocation: %s", fault)
	}
	a := &node.Allocation{State: node.AllocationAllocating, ResourceClass: textIn(d, "resource_class"), Extra: objectIn(d, "extra")}
	for _, t := range texts(d["traits"]) {
		if fault := traitFault(t); fault != "" {
			return nil, rest.BadRequest("Schema error for allocation: %s", fault)
		}
		if !slices.Contains(a.Traits, t) {
			a.Traits = append(a.Traits, t)
		}
	}
	if id, ok := d["uuid"].(string); ok {
		if !isUUID(id) {
			return nil, rest.BadRequest("Expected UUID for uuid: %s", id)
		}
		a.UUID = strings.ToLower(id)
	}
	if _, ok := d["owner"]; ok && c.v < rest.VersionAllocOwner {
		return nil, rest.NotAcceptable()
	}
	a.Name, a.Owner = textIn(d, "name"), textIn(d, "owner")
	if a.Name != "" && !validName(rest.VersionURLNames, a.Name) {
		return nil, rest.BadRequest("Cannot create allocation with invalid name '%s'", a.Name)
	}
	var err error
	if a.Properties, err = alloc.Properties(a.Extra); err != nil {
		return nil, rest.BadRequest("%s", err)
	}
	a.CandidateNodes = texts(d["candidate_nodes"])
	return a, nil
}

// findCandidates puts UUIDs where the client sent names, in the client's order.
func (s *Server) findCandidates(ctx context.Context, c *call, a *node.Allocation) error {
	var found, missing []string
	seen := map[string]bool{}
	for _, ident := range a.CandidateNodes {
		n, err := s.store.Node(ctx, ident)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && !c.actor.MaySee(n):
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

// texts gives the strings of a JSON list.
func texts(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, item := range list {
		if t, ok := item.(string); ok {
			out = append(out, t)
		}
	}
	return out
}
