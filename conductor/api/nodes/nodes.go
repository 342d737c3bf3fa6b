// Package nodes answers requests for nodes themselves: lists, create, get, PATCH and delete, and for chassis, which
// hold them.
//
// Actions on a node are in package states, its parts in package parts. Show makes the API's representation of a node,
// for all of them.
package nodes

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodes is where nodes and chassis are kept.
type nodes interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	CreateNode(ctx context.Context, n *node.Node) error
	UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error)
	DeleteNode(ctx context.Context, uuid string, allowed ...func(*node.Node) error) error
	Chassis() *store.Table[node.Chassis]
}

// machines is notified of deleted nodes.
type machines interface {
	PowerOffDeletedNode(ctx context.Context, nodeUUID string)
	Here(n *node.Node) error
}

// Handlers answer the requests.
type Handlers struct {
	store    nodes
	machines machines
	find     *finder.Finder
	drivers  *driver.Table
	hostname string
	several  bool
	newest   rest.Version
}

// New makes Handlers of the conductor hostname, for versions up to newest. Where several, others share the database.
func New(st nodes, en machines, find *finder.Finder, drivers *driver.Table, hostname string, several bool,
	newest rest.Version) *Handlers {
	return &Handlers{st, en, find, drivers, hostname, several, newest}
}

// ownerOf names the conductor that a node belongs to, or is to belong to; "" when none serves it.
func (s *Handlers) ownerOf(n *node.Node) string {
	if n.Conductor != "" {
		return n.Conductor
	}
	if other := (*engine.ElsewhereError)(nil); errors.As(s.machines.Here(n), &other) {
		return other.Conductor
	}
	return s.hostname
}

var faults = []string{"power failure", "clean failure", "rescue abort failure", "service failure"}

// schema is the body of POST nodes, which is not all that PATCH may change.
var schema = func() *rest.Schema {
	s := &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: []string{"driver"},
		Props: map[string]*rest.Schema{
			"automated_clean": document.OptionalFlag, "chassis_uuid": document.OptionalText,
			"conductor_group": document.OptionalText, "boot_mode": {Types: []string{"string", "null"}, MaxLen: 16},
			"secure_boot": document.OptionalFlag, "console_enabled": document.OptionalFlag,
			"disable_power_off": document.OptionalFlag,
			"description":       {Types: []string{"string", "null"}, MaxLen: 4096},
			"driver":            {Types: []string{"string"}}, "driver_info": document.SecretObject,
			"extra": document.OptionalObject, "instance_info": document.SecretObject,
			"instance_name": {Types: []string{"string", "null"}, MinLen: 1, MaxLen: 255},
			"parent_node":   {Types: []string{"string", "null"}, MaxLen: 255}, "instance_uuid": document.OptionalText,
			"lessee": document.OptionalText, "maintenance": document.OptionalFlag, "name": document.OptionalText,
			"network_data": document.OptionalObject, "owner": document.OptionalText,
			"properties": document.OptionalObject, "resource_class": {Types: []string{"string", "null"}, MaxLen: 80},
			"retired": document.OptionalFlag, "retired_reason": document.OptionalText,
			"shard": {Types: []string{"string", "null"}, MaxLen: 255}, "uuid": document.OptionalText,
		},
	}
	for _, kind := range kinds {
		s.Props[kind+"_interface"] = document.OptionalText
	}
	return s
}()

// deletable are the states in which a node may be deleted without maintenance.
var deletable = []node.State{node.Manageable, node.Enroll, node.AdoptFailed, node.Available}

// Routes are the routes of nodes and of chassis.
func (s *Handlers) Routes() []call.Route {
	const get, post, patch, del = http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete
	shape, page := rest.NodeFields.Schema(), listAnswers()
	return append(s.chassisRoutes(),
		call.Route{Method: get, Path: "/v1/nodes", Access: call.Read, Query: call.Named, Args: s.listArgs(false),
			Answers: page, Handle: s.listNodes},
		call.Route{Method: post, Path: "/v1/nodes", Access: call.Write, Takes: schema.Of(rest.NodeFields),
			Answers: call.Answers{http.StatusCreated: shape}, Handle: s.createNode},
		call.Route{Method: del, Path: "/v1/nodes", Access: call.Write, Answers: call.Answers{},
			Handle: missing("node_ident")},
		call.Route{Method: get, Path: "/v1/nodes/detail", Access: call.Read, Query: call.Named, Args: s.listArgs(true),
			Answers: page, Handle: s.listNodesDetail},
		call.Route{Method: get, Path: "/v1/nodes/{node}", Access: call.Read, Query: call.Named, Fields: true,
			Args: call.Args{"fields": call.Texts.From(rest.VersionSelectFields)}, Answers: call.OK(shape),
			Handle: s.getNode},
		call.Route{Method: patch, Path: "/v1/nodes/{node}", Access: call.Write, Query: call.Named,
			Args:  call.Args{"reset_interfaces": call.Truth.From(rest.VersionResetInterface)},
			Takes: rest.PatchOf(patchable, rest.NodeFields), Answers: call.OK(shape), Handle: s.patchNode},
		call.Route{Method: del, Path: "/v1/nodes/{node}", Access: call.Write, Answers: call.None(http.StatusNoContent),
			Handle: s.find.Named(s.deleteNode)},
	)
}

func (s *Handlers) getNode(ctx context.Context, c *call.Call) (*call.Reply, error) {
	names, err := call.Selected(c, rest.NodeSelectable)
	if err != nil && err.Status != http.StatusBadRequest { // unknown fields are found last
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusOK, Body: item(c, new(s.Show(c, n, names...)), names), ETag: n.Tag()}, nil
}

// listAnswers are those of lists of nodes, listArgs the arguments in the query of one. detail means that the address
// requests all fields.
func listAnswers() call.Answers { return call.OK(rest.Collection("nodes", rest.NodeFields.Schema())) }

func (s *Handlers) listArgs(detail bool) call.Args {
	args := call.PageArgs.With(
		call.Dated(rest.NodeFilters,
			call.Args{"associated": call.Truth, "maintenance": call.Truth, "retired": call.Truth,
				"sharded": call.Truth, "include_children": call.Truth, "shard": call.Texts}))
	maps.DeleteFunc(args, func(name string, _ *rest.Schema) bool { return rest.NodeFilters[name] > s.newest })
	if !detail {
		args["fields"], args["detail"] = call.Texts.From(rest.VersionSelectFields),
			call.Truth.From(rest.VersionDetailQuery)
	}
	return args
}

// item encodes the fields named of a node; nil means all.
func item(c *call.Call, shown *rest.Node, names []string) rest.Item {
	return func(b []byte) ([]byte, error) { return rest.NodeFields.Append(b, shown, c.Version, names) }
}

func (s *Handlers) listNodes(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.list(ctx, c, false, nil)
}

func (s *Handlers) listNodesDetail(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.list(ctx, c, true, nil)
}

// unsorted are the fields of nodes by which Ironic knows that it can't sort.
var unsorted = []string{"properties", "driver_info", "extra", "instance_info", "driver_internal_info", "clean_step",
	"deploy_step", "raid_config", "target_raid_config", "traits", "network_data"}

// list lists nodes: those of a chassis if in is not nil, else those that the filters name.
func (s *Handlers) list(ctx context.Context, c *call.Call, detail bool, in *node.Chassis) (*call.Reply, error) {
	path := "nodes"
	if in != nil {
		path = "chassis/" + in.UUID + "/nodes"
	}
	if detail {
		path += "/detail"
	}
	names := rest.NodeListFields
	if !detail {
		var err *rest.Error
		if names, detail, err = call.ListFields(c, rest.NodeSelectable, rest.NodeListFields); err != nil {
			return nil, err
		}
	}
	if detail {
		names = nil
	}
	q, qerr := s.query(ctx, c)
	if qerr != nil {
		return nil, qerr
	}
	if in != nil {
		q.ChassisUUID = &in.UUID
	}
	// A field that a list can't be sorted by is refused before the marker is looked up, what is no field after it.
	key := c.Query.Get("sort_key")
	p, perr := c.Page(rest.NodeFields, call.Marker{There: func(uuid string) error {
		if key == "" || rest.NodeFields.Sortable(key) || slices.Contains(unsorted, key) {
			return nil // the list itself finds out
		}
		return s.visible(ctx, c, uuid)
	}})
	if perr != nil {
		return nil, perr
	}
	q.Limit, q.Marker, q.Sort, q.Desc = p.Limit, p.Marker, p.Sort, p.Desc
	if project := c.Scope(); project != nil {
		if q.Project != nil && *q.Project != *project {
			return nil, c.MayFor(access.NodeListAll, access.Object{})
		}
		q.Project = project
		if q.Marker != "" {
			if err := s.visible(ctx, c, q.Marker); err != nil {
				return nil, err
			}
		}
	}
	var nodes []*node.Node
	var serr error
	if p.Sort == "" || slices.Contains(store.SortKeys(), p.Sort) {
		nodes, serr = s.store.Nodes(ctx, q)
	} else {
		nodes, serr = s.sortedHere(ctx, c, q)
	}
	if errors.Is(serr, store.ErrNotFound) {
		return nil, rest.NotFound("Node %s could not be found.", p.Marker)
	}
	if serr != nil {
		return nil, serr
	}
	items := rest.List{Len: len(nodes), Item: func(b []byte, i int) ([]byte, error) {
		return rest.NodeFields.Append(b, new(s.Show(c, nodes[i], names...)), c.Version, names)
	}}
	next := ""
	if len(nodes) > 0 {
		next = c.Next(p, path, len(nodes), nodes[len(nodes)-1].UUID, names)
	}
	return call.ListOf("nodes", items, next), nil
}

// visible refuses a marker that the caller can't see.
func (s *Handlers) visible(ctx context.Context, c *call.Call, marker string) error {
	_, err := s.find.Visible(ctx, c, marker)
	if errors.Is(err, store.ErrNotFound) {
		return rest.NotFound("Node %s could not be found.", marker)
	}
	return err
}

// sortedHere is Nodes for an order that the store does not know.
func (s *Handlers) sortedHere(ctx context.Context, c *call.Call, q store.Query) ([]*node.Node, error) {
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
		all[i] = shown{n, s.Show(c, n, key)}
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

// query reads the filters of a list of nodes.
func (s *Handlers) query(ctx context.Context, c *call.Call) (q store.Query, qerr error) {
	var err *rest.Error
	for name, since := range rest.NodeFilters {
		if name == "description_contains" ||
			(name == "project" || name == "retired") && strings.HasSuffix(c.Request.URL.Path, "/detail") {
			continue // all versions know them
		}
		if c.Query.Has(name) && c.Version < since {
			return q, rest.Fault(http.StatusNotAcceptable,
				"Request not acceptable. The minimal required API version should be %s", since)
		}
	}
	for _, f := range []struct {
		name string
		to   **bool
	}{{"associated", &q.Associated}, {"maintenance", &q.Maintenance}, {"retired", &q.Retired},
		{"sharded", &q.Sharded}} {
		if *f.to, err = c.Flag(f.name); err != nil {
			return q, err
		}
	}
	q.Driver, q.ResourceClass, q.Owner, q.Lessee, q.Project = c.Text("driver"), c.Filter("resource_class"),
		c.Filter("owner"), c.Filter("lessee"), c.Filter("project")
	q.DescriptionContains = c.Text("description_contains")
	if g := c.Text("conductor_group"); g != nil {
		q.ConductorGroup = new(strings.ToLower(*g))
	}
	q.InstanceUUID = c.Text("instance_uuid")
	if st := c.Text("provision_state"); st != nil {
		if !knownState(*st) {
			return q, rest.BadRequest("Provision state %q is not valid", *st)
		}
		q.Provision = new(node.State(*st))
	}
	if f := c.Text("fault"); f != nil {
		allowed := faults
		if c.Version < rest.VersionService {
			allowed = faults[:3]
		}
		if !slices.Contains(allowed, *f) && *f != node.FaultQuarantined && *f != node.FaultHardware {
			return q, rest.BadRequest("Unrecognized fault %q is specified, allowed faults are ('%s')", *f,
				strings.Join(allowed, "', '"))
		}
		q.Fault = f
	}
	if sh := c.Filter("shard"); sh != nil {
		q.Shards = strings.Split(*sh, ",")
	}
	if ch := c.Text("chassis_uuid"); ch != nil {
		in, err := s.chassis().ByIdent(ctx, c, *ch)
		if err != nil {
			return q, err
		}
		q.ChassisUUID = &in.UUID
	}
	q.InstanceName = c.Text("instance_name")
	children, err := c.Flag("include_children")
	if err != nil {
		return q, err
	}
	switch parent := c.Text("parent_node"); {
	case parent != nil:
		// A missing one has no children, and callers who may not see it must not learn whether it exists.
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
	// Nodes that no conductor has taken yet belong to the only one.
	if h := c.Text("conductor"); h != nil && *h != "" && (s.several || *h != s.hostname) {
		q.Conductor = h
	}
	return q, nil
}

func knownState(s string) bool {
	return slices.ContainsFunc(node.Transitions(),
		func(t node.Transition) bool { return string(t.From) == s || string(t.To) == s })
}

func (s *Handlers) createNode(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Created("node", schema, rest.NodeFields)
	if err != nil {
		return nil, err
	}
	n := &node.Node{Provision: node.Enroll}
	if c.Version < rest.VersionEnroll {
		n.Provision = node.Available
	}
	if n.UUID, err = document.NewUUID(b); err != nil {
		return nil, err
	}
	delete(b, "uuid")
	if n.UUID == "" {
		n.UUID = uuid.NewString() // errors name it
	}
	if name, ok := b["name"].(string); ok {
		if slices.Contains(document.ReservedNames, name) {
			return nil, rest.BadRequest(
				"The word %q is reserved and can not be used as a node name. Reserved words are: %s.", name,
				strings.Join(document.ReservedNames, ", "))
		}
		if !document.ValidName(c.Version, name) {
			return nil, rest.BadRequest("Cannot create node with invalid name '%s'", name)
		}
	}
	if err := observed(n, b); err != nil {
		return nil, err
	}
	if err := s.assign(n, b); err != nil {
		return nil, err
	}
	// Of a new node these are null when they are empty.
	n.Blank = slices.DeleteFunc(n.Blank, func(name string) bool { return name == "owner" || name == "resource_class" })
	if err := checkNetworkData(n.NetworkData); err != nil {
		return nil, err
	}
	if err := own(c, n); err != nil {
		return nil, err
	}
	if err := s.parent(ctx, c, n); err != nil {
		return nil, err
	}
	if err := s.store.CreateNode(ctx, n); err != nil {
		return nil, err
	}
	return &call.Reply{
		Status: http.StatusCreated, Body: item(c, new(s.Show(c, n)), nil),
		Location: c.Base + "/v1/nodes/" + n.UUID, ETag: n.Tag(),
	}, nil
}

// observed removes attributes from the document of a new node that no PATCH can set, and that the machine will report.
func observed(n *node.Node, d map[string]any) (err *rest.Error) {
	if n.ConsoleEnabled, err = document.Flag(d, "console_enabled", false); err != nil {
		return err
	}
	n.BootMode = document.Text(d, "boot_mode")
	if d["secure_boot"] != nil {
		on, err := document.Boolean("secure_boot", d["secure_boot"])
		if err != nil {
			return err
		}
		n.SecureBoot = &on
	}
	for _, name := range []string{"boot_mode", "console_enabled", "secure_boot"} {
		delete(d, name)
	}
	return nil
}

func (s *Handlers) deleteNode(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	agent := false // runs on its machine, and waits
	err := s.store.DeleteNode(ctx, n.UUID, func(n *node.Node) error {
		agent = n.Boot != nil && n.Boot.Kept || n.Job.IsAhead()
		switch {
		case n.Reservation != "":
			return finder.LockedBy(n)
		case n.InstanceUUID != "" && !n.Maintenance:
			return rest.Conflict("Node %s is associated with instance %s.", n.UUID, n.InstanceUUID)
		case n.Protected:
			return &node.ProtectedError{UUID: n.UUID}
		case !slices.Contains(deletable, n.Provision) && !n.Maintenance:
			return rest.Conflict(
				`Can not delete node "%s" while it is in provision state "%s". Valid provision states to perform deletion are: "('manageable', 'enroll', 'adopt failed', 'available')", or set the node into maintenance mode`, n.UUID, n.Provision)
		case agent: // it has to be asked to turn its machine off
			return s.machines.Here(n)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if agent {
		s.machines.PowerOffDeletedNode(ctx, n.UUID)
	}
	return call.NoContent(), nil
}

// missing is the handler of a collection's address with a method that needs one of its members.
func missing(parameter string) func(context.Context, *call.Call) (*call.Reply, error) {
	return func(context.Context, *call.Call) (*call.Reply, error) {
		return nil, rest.BadRequest("Missing mandatory parameter: %s", parameter)
	}
}
