package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// node finds the node that the address names, by UUID or, in versions that have names, by name.
func (s *Server) node(ctx context.Context, c *call) (*node.Node, error) {
	return s.nodeByIdent(ctx, c, c.path["node"])
}

func (s *Server) nodeByIdent(ctx context.Context, c *call, ident string) (*node.Node, error) {
	if !isUUID(ident) {
		if !urlName.MatchString(ident) {
			return nil, rest.Routing(http.StatusBadRequest, "Expected UUID or name for node: "+ident)
		}
		if c.v < rest.VersionNames {
			return nil, rest.NotFound("Node %s could not be found.", ident)
		}
	}
	if n := c.known; n != nil && c.knownAs == ident {
		c.known = nil // whoever looks again wants to see what has changed
		return n, nil
	}
	n, err := s.visible(ctx, c, ident)
	if errors.Is(err, store.ErrNotFound) {
		// These versions take "x.json" for "x", as a wish for JSON.
		if stem, ok := strings.CutSuffix(ident, ".json"); ok && stem != "" && c.v < rest.VersionNoSuffix {
			if n, err2 := s.visible(ctx, c, stem); err2 == nil {
				return n, nil
			}
		}
		return nil, rest.NotFound("Node %s could not be found.", ident)
	}
	return n, err
}

func (s *Server) getNode(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow("fields"); err != nil {
		return nil, err
	}
	names, err := selected(c, rest.NodeFields)
	if err != nil {
		return nil, err
	}
	n, nerr := s.node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	shown := s.showNode(c, n, names...)
	return &reply{status: http.StatusOK, body: nodeItem(c, &shown, names)}, nil
}

// nodeItem encodes the fields named of a node; nil means all.
func nodeItem(c *call, shown *rest.Node, names []string) rest.Item {
	return func(b []byte) ([]byte, error) { return rest.NodeFields.Append(b, shown, c.v, names) }
}

// selected reads ?fields=; nil means all.
func selected[T any](c *call, fields rest.Fields[T]) ([]string, *rest.Error) {
	f := c.text("fields")
	if f == nil {
		return nil, nil
	}
	if c.v < rest.VersionSelectFields {
		return nil, rest.NotAcceptable()
	}
	return fields.Select(c.v, *f)
}

func (s *Server) listNodes(ctx context.Context, c *call) (*reply, error) {
	return s.nodeList(ctx, c, false, nil)
}

func (s *Server) listNodesDetail(ctx context.Context, c *call) (*reply, error) {
	return s.nodeList(ctx, c, true, nil)
}

var faults = []string{"power failure", "clean failure", "rescue abort failure", "service failure"}

// nodeList lists nodes: those of a chassis if in is not nil, else those that the filters name.
func (s *Server) nodeList(ctx context.Context, c *call, detail bool, in *node.Chassis) (*reply, error) {
	allowed := slices.Clone(pageArguments)
	for f, since := range rest.NodeFilters {
		if since <= s.cfg.MaxVersion {
			allowed = append(allowed, f)
		}
	}
	path := "nodes"
	if in != nil {
		path = "chassis/" + in.UUID + "/nodes"
	}
	if detail {
		path += "/detail"
	} else {
		allowed = append(allowed, "fields", "detail")
	}
	if err := c.allow(allowed...); err != nil {
		return nil, err
	}
	names := rest.NodeListFields
	if !detail {
		var err *rest.Error
		if names, detail, err = listFields(c, rest.NodeFields, rest.NodeListFields); err != nil {
			return nil, err
		}
	}
	if detail {
		names = nil
	}
	q, qerr := s.nodeQuery(ctx, c)
	if qerr != nil {
		return nil, qerr
	}
	if in != nil {
		q.ChassisUUID = &in.UUID
	}
	p, err := c.page(func(k string) bool { _, ok := rest.NodeFields.Since(k); return ok }, rest.NodeFields.Sortable)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Marker, q.Sort, q.Desc = p.limit, p.marker, p.sort, p.desc
	if project := c.scope(); project != nil {
		if q.Project != nil && *q.Project != *project {
			return nil, c.mayFor(access.NodeListAll, access.Object{})
		}
		q.Project = project
		if q.Marker != "" {
			if _, err := s.visible(ctx, c, q.Marker); errors.Is(err, store.ErrNotFound) {
				return nil, rest.NotFound("Node %s could not be found.", q.Marker)
			}
		}
	}
	var nodes []*node.Node
	var serr error
	if p.sort == "" || slices.Contains(store.SortKeys(), p.sort) {
		nodes, serr = s.store.Nodes(ctx, q)
	} else {
		nodes, serr = s.sortedHere(ctx, c, q)
	}
	if errors.Is(serr, store.ErrNotFound) {
		return nil, rest.NotFound("Node %s could not be found.", p.marker)
	}
	if serr != nil {
		return nil, serr
	}
	items := rest.List{Len: len(nodes), Item: func(b []byte, i int) ([]byte, error) {
		shown := s.showNode(c, nodes[i], names...)
		return rest.NodeFields.Append(b, &shown, c.v, names)
	}}
	next := ""
	if len(nodes) > 0 {
		next = c.next(p, path, len(nodes), nodes[len(nodes)-1].UUID)
	}
	return listOf("nodes", items, next), nil
}

// sortedHere is Nodes for an order that the store does not know.
func (s *Server) sortedHere(ctx context.Context, c *call, q store.Query) ([]*node.Node, error) {
	key, desc, limit, marker := q.Sort, q.Desc, q.Limit, strings.ToLower(q.Marker)
	q.Sort, q.Desc, q.Limit, q.Marker = "", false, 0, ""
	nodes, err := s.store.Nodes(ctx, q)
	if err != nil {
		return nil, err
	}
	type shown struct {
		n *node.Node
		r rest.Node
	}
	all := make([]shown, len(nodes))
	for i, n := range nodes {
		all[i] = shown{n, s.showNode(c, n, key)}
	}
	slices.SortStableFunc(all, func(a, b shown) int {
		if desc {
			a, b = b, a
		}
		return rest.NodeFields.Compare(&a.r, &b.r, key)
	})
	if marker != "" {
		i := slices.IndexFunc(all, func(x shown) bool { return x.n.UUID == marker })
		if i < 0 {
			return nil, store.ErrNotFound
		}
		all = all[i+1:]
	}
	nodes = nodes[:0]
	for _, x := range all[:min(limit, len(all))] {
		nodes = append(nodes, x.n)
	}
	return nodes, nil
}

// listFields reads ?fields= and ?detail= of a list, which exclude each other.
func listFields[T any](c *call, fields rest.Fields[T], short []string) (names []string, detail bool, err *rest.Error) {
	d, err := c.flag("detail")
	if err != nil {
		return nil, false, err
	}
	if d != nil && c.v < rest.VersionDetailQuery {
		return nil, false, rest.NotAcceptable()
	}
	names, err = selected(c, fields)
	if err != nil {
		return nil, false, err
	}
	detail = d != nil && *d
	if detail && names != nil {
		return nil, false, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	}
	if names == nil {
		names = short
	}
	return names, detail, nil
}

// nodeQuery reads the filters of a list of nodes.
func (s *Server) nodeQuery(ctx context.Context, c *call) (q store.Query, qerr error) {
	var err *rest.Error
	for name, since := range rest.NodeFilters {
		if c.query.Has(name) && c.v < since {
			return q, rest.Fault(http.StatusNotAcceptable, "Request not acceptable. The minimal required API version should be %s", since)
		}
	}
	for _, f := range []struct {
		name string
		to   **bool
	}{{"associated", &q.Associated}, {"maintenance", &q.Maintenance}, {"retired", &q.Retired}, {"sharded", &q.Sharded}} {
		if *f.to, err = c.flag(f.name); err != nil {
			return q, err
		}
	}
	q.Driver, q.ResourceClass, q.Owner, q.Lessee, q.Project = c.text("driver"), c.text("resource_class"), c.text("owner"), c.text("lessee"), c.text("project")
	q.DescriptionContains = c.text("description_contains")
	if g := c.text("conductor_group"); g != nil {
		folded := strings.ToLower(*g)
		q.ConductorGroup = &folded
	}
	if i := c.text("instance_uuid"); i != nil {
		if !isUUID(*i) {
			return q, rest.BadRequest("Expected UUID for instance_uuid: %s", *i)
		}
		q.InstanceUUID = i
	}
	if st := c.text("provision_state"); st != nil {
		if !knownState(*st) {
			return q, rest.BadRequest("Provision state %q is not valid", *st)
		}
		state := node.State(*st)
		q.Provision = &state
	}
	if f := c.text("fault"); f != nil {
		allowed := faults
		if c.v < rest.VersionService {
			allowed = faults[:3]
		}
		if !slices.Contains(allowed, *f) && *f != node.FaultQuarantined {
			return q, rest.BadRequest("Unrecognized fault %q is specified, allowed faults are ('%s')", *f, strings.Join(allowed, "', '"))
		}
		q.Fault = f
	}
	if sh := c.text("shard"); sh != nil {
		q.Shards = strings.Split(*sh, ",")
	}
	if ch := c.text("chassis_uuid"); ch != nil {
		in, err := s.chassis().byIdent(ctx, c, *ch)
		if err != nil {
			return q, err
		}
		q.ChassisUUID = &in.UUID
	}
	q.InstanceName = c.text("instance_name")
	children, err := c.flag("include_children")
	if err != nil {
		return q, err
	}
	switch parent := c.text("parent_node"); {
	case parent != nil:
		// One that is not there has no children, and whether it is there is not told to those who may not see it.
		id := strings.ToLower(*parent)
		if n, err := s.store.Node(ctx, *parent); err == nil {
			id = n.UUID
		} else if !errors.Is(err, store.ErrNotFound) {
			return q, err
		}
		q.ParentNode = &id
	case children == nil || !*children:
		q.ParentNode = new(string) // a child is part of its parent, not a machine of its own
	}
	// Nodes that no conductor has taken yet belong to this one.
	if h := c.text("conductor"); h != nil && *h != s.cfg.Hostname {
		q.Conductor = h
	}
	return q, nil
}

func knownState(s string) bool {
	for _, t := range node.Transitions() {
		if string(t.From) == s || string(t.To) == s {
			return true
		}
	}
	return false
}

var (
	optionalText   = &rest.Schema{Types: []string{"string", "null"}}
	optionalFlag   = &rest.Schema{Types: []string{"string", "boolean", "null"}}
	optionalObject = &rest.Schema{Types: []string{"object", "null"}}
)

// nodeSchema is the body of POST nodes, which is not all that PATCH may change.
var nodeSchema = func() *rest.Schema {
	s := &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: []string{"driver"},
		Props: map[string]*rest.Schema{
			"automated_clean": optionalFlag, "chassis_uuid": optionalText, "conductor_group": optionalText,
			"console_enabled": optionalFlag, "disable_power_off": optionalFlag, "description": {Types: []string{"string", "null"}, MaxLen: 4096},
			"driver": {Types: []string{"string"}}, "driver_info": optionalObject, "extra": optionalObject, "instance_info": optionalObject,
			"instance_name": {Types: []string{"string", "null"}, MinLen: 1, MaxLen: 255}, "parent_node": {Types: []string{"string", "null"}, MaxLen: 255},
			"instance_uuid": optionalText, "lessee": optionalText, "maintenance": optionalFlag, "name": optionalText,
			"network_data": optionalObject, "owner": optionalText, "properties": optionalObject,
			"resource_class": {Types: []string{"string", "null"}, MaxLen: 80}, "retired": optionalFlag, "retired_reason": optionalText,
			"shard": {Types: []string{"string", "null"}, MaxLen: 255}, "uuid": optionalText,
		},
	}
	for _, kind := range nodeKinds {
		s.Props[kind+"_interface"] = optionalText
	}
	return s
}()

func (s *Server) createNode(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, err := c.object("node")
	if err != nil {
		return nil, err
	}
	if fault := nodeSchema.Check(b); fault != "" {
		return nil, rest.BadRequest("Schema error for node: %s", fault)
	}
	for name := range b {
		if since, ok := rest.NodeFields.Since(name); ok && since > c.v {
			return nil, rest.NotAcceptable()
		}
	}
	n := &node.Node{Provision: node.Enroll}
	if c.v < rest.VersionEnroll {
		n.Provision = node.Available
	}
	if id, ok := b["uuid"].(string); ok {
		if !isUUID(id) {
			return nil, rest.BadRequest("Expected UUID for uuid: %s", id)
		}
		n.UUID = strings.ToLower(id)
	}
	delete(b, "uuid")
	if name, ok := b["name"].(string); ok && name != "" {
		if slices.Contains(reservedNames, name) {
			return nil, rest.BadRequest("The word %q is reserved and can not be used as a node name. Reserved words are: %s.", name, strings.Join(reservedNames, ", "))
		}
		if !validName(c.v, name) {
			return nil, rest.BadRequest("Cannot create node with invalid name '%s'", name)
		}
	}
	if v, ok := b["console_enabled"]; ok && v != nil {
		if _, err := boolean("console_enabled", v); err != nil {
			return nil, err
		}
		delete(b, "console_enabled") // consoles are switched on by their own call
	}
	if err := s.assign(n, b); err != nil {
		return nil, err
	}
	if !n.Retired {
		n.RetiredReason = ""
	}
	if err := c.own(n); err != nil {
		return nil, err
	}
	if err := s.parent(ctx, c, n); err != nil {
		return nil, err
	}
	if err := s.store.CreateNode(ctx, n); err != nil {
		return nil, err
	}
	shown := s.showNode(c, n)
	return &reply{
		status: http.StatusCreated, body: nodeItem(c, &shown, nil),
		location: c.base + "/v1/nodes/" + n.UUID,
	}, nil
}

// deletable are the states in which a node may be deleted without maintenance.
var deletable = []node.State{node.Manageable, node.Enroll, node.AdoptFailed, node.Available}

func (s *Server) deleteNode(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	err = s.store.DeleteNode(ctx, n.UUID, func(n *node.Node) error {
		switch {
		case n.Reservation != "":
			return lockedBy(n)
		case n.InstanceUUID != "" && !n.Maintenance:
			return rest.Conflict("Node %s is associated with instance %s.", n.UUID, n.InstanceUUID)
		case n.Protected:
			return rest.Fault(http.StatusForbidden, "Node %s is protected and cannot be undeployed, rebuilt or deleted", n.UUID)
		case !slices.Contains(deletable, n.Provision) && !n.Maintenance:
			return rest.Conflict(`Can not delete node "%s" while it is in provision state "%s". Valid provision states to perform deletion are: "('manageable', 'enroll', 'adopt failed', 'available')", or set the node into maintenance mode`, n.UUID, n.Provision)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusNoContent}, nil
}

// lockedBy is the answer while somebody else works on the node; clients try again.
func lockedBy(n *node.Node) *rest.Error {
	e := rest.Conflict("Node %s is locked by host %s, please retry after the current operation is completed.", n.UUID, n.Reservation)
	e.Again = true
	return e
}
