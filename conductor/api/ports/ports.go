// Package ports answers requests about nodes' connections to networks: ports, port groups, the virtual interfaces
// (VIFs) attached to them, and the network service's events about its own ports.
package ports

import (
	"cmp"
	"context"
	"errors"
	"hash/crc32"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// portStore is the part of the store that ports and port groups need.
type portStore interface {
	CreatePort(ctx context.Context, p *node.Port) error
	Port(ctx context.Context, uuid string) (*node.Port, error)
	Ports(ctx context.Context, q store.PortQuery) ([]*node.Port, error)
	UpdatePort(ctx context.Context, uuid string, change func(*node.Port) error) (*node.Port, error)
	DeletePort(ctx context.Context, uuid string) error
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	Portgroups() *store.Table[node.Portgroup]
	UpdatePortgroup(ctx context.Context, uuid string, change func(*node.Portgroup) error) (*node.Portgroup, error)
}

// Handlers answer the requests.
type Handlers struct {
	store   portStore
	find    *finder.Finder
	drivers *driver.Table
	service VIFs // may be nil
	log     *slog.Logger

	attaching [64]sync.Mutex // of some nodes each: held while a VIF is attached or detached
}

// New makes Handlers; service may be nil.
func New(st portStore, find *finder.Finder, drivers *driver.Table, service VIFs, log *slog.Logger) *Handlers {
	return &Handlers{store: st, find: find, drivers: drivers, service: service, log: log}
}

// attachingTo is the lock of a node.
func (s *Handlers) attachingTo(n *node.Node) *sync.Mutex {
	return &s.attaching[crc32.ChecksumIEEE([]byte(n.UUID))%uint32(len(s.attaching))]
}

// Routes are the routes of ports, port groups and virtual interfaces.
func (s *Handlers) Routes() []call.Route {
	const get, post, patch, del = http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete
	shape, page, done := portShape(), portPage(), call.None(http.StatusNoContent)
	return append(s.portgroupRoutes(),
		call.Route{Method: get, Path: "/v1/nodes/{node}/ports", Access: call.Read, Query: call.Named,
			Args: listArgs(false, true, false), Answers: page, Handle: s.listNodePorts(false)},
		call.Route{Method: get, Path: "/v1/nodes/{node}/ports/detail", Access: call.Read, Query: call.Named,
			Args: listArgs(true, true, false), Answers: page, Handle: s.listNodePorts(true)},
		call.Route{Method: get, Path: "/v1/nodes/{node}/vifs", Access: call.Read, Since: rest.VersionVIFs, Hidden: true,
			Answers: call.OK(rest.Object{{Name: "vifs", Value: rest.ListOf(rest.Object{{Name: "id", Value: ""}})}}),
			Handle:  s.find.Named(s.listVIFs)},
		call.Route{Method: post, Path: "/v1/nodes/{node}/vifs", Access: call.Write, Since: rest.VersionVIFs,
			Hidden: true, Takes: vifSchema, Answers: done, Handle: s.attachVIF},
		call.Route{Method: del, Path: "/v1/nodes/{node}/vifs/{vif}", Access: call.Write, Since: rest.VersionVIFs,
			Hidden: true, Answers: done, Handle: s.detachVIF},
		call.Route{Method: get, Path: "/v1/ports", Access: call.Read, Query: call.Named,
			Args: listArgs(false, false, false), Answers: page, Handle: s.listPorts(false)},
		call.Route{Method: post, Path: "/v1/ports", Access: call.Write, Takes: portSchema.Of(rest.PortFields),
			Answers: call.Answers{http.StatusCreated: shape}, Handle: s.createPort},
		call.Route{Method: get, Path: "/v1/ports/detail", Access: call.Read, Query: call.Named,
			Args: listArgs(true, false, false), Answers: page, Handle: s.listPorts(true)},
		call.Route{Method: get, Path: "/v1/ports/{port}", Access: call.Read, Query: call.Named, Fields: true,
			Args: call.Args{"fields": call.Texts.From(rest.VersionSelectFields)}, Answers: call.OK(shape),
			Target: s.target, Handle: s.getPort},
		call.Route{Method: patch, Path: "/v1/ports/{port}", Access: call.Write,
			Takes: rest.PatchOf(portPatchable, rest.PortFields), Answers: call.OK(shape), Target: s.target,
			Handle: s.patchPort},
		call.Route{Method: del, Path: "/v1/ports/{port}", Access: call.Write, Answers: done, Target: s.target,
			Handle: s.deletePort},
		call.Route{Method: post, Path: "/v1/events", Access: call.Admin, Since: rest.VersionEvents, Hidden: true,
			Takes: eventsSchema, Answers: done, Handle: s.postEvents},
	)
}

// Port finds the port that the address names, by UUID or, in versions that have names, by name.
func (s *Handlers) Port(ctx context.Context, c *call.Call) (*node.Port, error) {
	id := c.Path["port"]
	switch {
	case document.IsUUID(id):
		return s.store.Port(ctx, id)
	case c.Version < rest.VersionPortName:
		return nil, rest.BadRequest("Expected UUID for port_uuid: %s", id)
	case !document.IsName(id):
		return nil, rest.BadRequest("Expected UUID or name for port_ident: %s", id)
	}
	ports, err := s.store.Ports(ctx, store.PortQuery{Name: &id})
	if err != nil {
		return nil, err
	}
	if len(ports) == 0 {
		return nil, rest.NotFound("Port %s could not be found.", id)
	}
	return ports[0], nil
}

// unlocked finds the port that the address names, and its node, and refuses while somebody else works on that.
func (s *Handlers) unlocked(ctx context.Context, c *call.Call) (*node.Port, *node.Node, error) {
	p, err := s.Port(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	n, err := s.find.Unlocked(ctx, p.NodeUUID)
	return p, n, err
}

func (s *Handlers) target(ctx context.Context, c *call.Call) (call.Target, error) {
	p, err := s.Port(ctx, c)
	if err != nil {
		return call.Target{}, err
	}
	return call.Target{Kind: "port", UUID: p.UUID, Tag: p.Tag()}, nil
}

// show makes the API's representation of a port.
func show(c *call.Call, p *node.Port) rest.Port {
	link := p.LocalLinkConnection
	for _, key := range vtepKeys {
		if _, ok := link[key]; ok && !hasVTEP(c.Version) {
			link = nil // this version does not know such links
		}
	}
	return rest.Port{
		UUID:                p.UUID,
		CreatedAt:           rest.NullTime{Time: p.CreatedAt},
		UpdatedAt:           call.UpdatedAt(p.UpdatedAt, p.CreatedAt),
		Address:             p.Address,
		AvailableForDynamic: !p.NoDynamicPortgroup,
		Category:            rest.Null(p.Category),
		Description:         rest.Null(p.Description),
		Extra:               p.Extra,
		InternalInfo:        p.InternalInfo,
		IsSmartNIC:          p.IsSmartNIC,
		LocalLinkConnection: link,
		Name:                rest.Null(p.Name),
		PhysicalNetwork:     rest.Null(p.PhysicalNetwork),
		PXEEnabled:          p.PXEEnabled,
		NodeUUID:            p.NodeUUID,
		PortgroupUUID:       rest.Null(p.PortgroupUUID),
		Vendor:              rest.Null(p.Vendor),
		Links:               rest.Links(c.Base, "ports/"+p.UUID),
	}
}

func (s *Handlers) getPort(ctx context.Context, c *call.Call) (*call.Reply, error) {
	p, perr := s.Port(ctx, c)
	if perr != nil {
		return nil, perr
	}
	names, err := call.Selected(c, rest.PortFields)
	if err != nil {
		return nil, err
	}
	return one(c, http.StatusOK, p, names), nil
}

// listPorts lists ports with all of their fields or with those of a list.
func (s *Handlers) listPorts(detail bool) func(context.Context, *call.Call) (*call.Reply, error) {
	return func(ctx context.Context, c *call.Call) (*call.Reply, error) {
		return s.list(ctx, c, "ports", detail, nil, nil)
	}
}

func (s *Handlers) listNodePorts(detail bool) func(context.Context, *call.Call) (*call.Reply, error) {
	return s.find.Named(func(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
		return s.list(ctx, c, "nodes/"+n.UUID+"/ports", detail, n, nil)
	})
}

// portFilters are the filters of a list of ports with the version that brought each.
var portFilters = map[string]rest.Version{
	"node": 1, "node_uuid": 1, "address": 1, "portgroup": rest.VersionGroupParts, "shard": rest.VersionShards,
	"description_contains": 97, "conductor_groups": rest.VersionGroupFilter,
}

// portPage is the answer of a list of ports, listArgs the arguments in its query: detail means that the address
// requests all fields, node and group that it names the node or the port group.
func portPage() call.Answers { return call.OK(rest.Collection("ports", portShape())) }

// portShape is a port in answers.
func portShape() *rest.Schema {
	s := rest.PortFields.Schema()
	link := linkSchema.From(s.Props["local_link_connection"].Since)
	link.Closed = false // ports that were imported may have more
	s.Props["local_link_connection"] = link
	return s
}

func listArgs(detail, node, group bool) call.Args {
	args := call.PageArgs.With(call.Dated(portFilters, call.Args{"shard": call.Texts, "conductor_groups": call.Texts}))
	if node {
		delete(args, "node")
		delete(args, "node_uuid")
	}
	if group {
		delete(args, "portgroup")
	}
	if !detail {
		args["fields"], args["detail"] = call.Texts.From(rest.VersionSelectFields),
			call.Truth.From(rest.VersionDetailQuery)
	}
	return args
}

// list lists ports: of one node if of is not nil, of one port group if in is not nil, and that the filters name. path
// is the list's own address below /v1/, without "/detail".
func (s *Handlers) list(ctx context.Context, c *call.Call, path string, detail bool, of *node.Node,
	in *node.Portgroup) (*call.Reply, error) {
	if detail {
		path += "/detail"
	}
	for name, since := range portFilters {
		if c.Query.Has(name) && c.Version < since {
			return nil, rest.Fault(http.StatusNotAcceptable,
				"Request not acceptable. The minimal required API version should be %s", since)
		}
	}
	var names []string
	if !detail {
		var err *rest.Error
		if names, detail, err = call.ListFields(c, rest.PortFields, rest.PortListFields); err != nil {
			return nil, err
		}
	}
	if detail {
		names = nil
	}
	q := store.PortQuery{Shards: call.Split(c.Query.Get("shard")),
		ConductorGroups: call.Split(strings.ToLower(c.Query.Get("conductor_groups")))}
	by := 0
	for _, asked := range []bool{of != nil || c.Query.Has("node") || c.Query.Has("node_uuid"), in != nil ||
		c.Query.Has("portgroup"), len(q.Shards) > 0} {
		if asked {
			by++
		}
	}
	p, err := c.Page(rest.PortFields, call.Marker{There: func(marker string) error {
		_, err := s.store.Port(ctx, marker)
		if errors.Is(err, store.ErrNotFound) {
			return rest.NotFound("Port %s could not be found.", marker)
		}
		return err
	}})
	if err != nil {
		return nil, err
	}
	if by > 1 {
		// there is one way to say whose ports they are
		return nil, rest.Fault(http.StatusForbidden, "Operation not permitted.")
	}
	for _, arg := range []string{"node", "node_uuid"} {
		if ident := c.Text(arg); ident != nil {
			if !document.IsUUID(*ident) && c.Version < rest.VersionNames {
				return nil, rest.NotAcceptable()
			}
			n, err := s.find.ByIdent(ctx, c, *ident)
			if err != nil {
				return nil, err
			}
			of = n
		}
	}
	if of != nil {
		q.NodeUUID = &of.UUID
	}
	if a := c.Text("address"); a != nil {
		mac, _ := document.HardwareAddress(*a) // it is one: Call.CheckArgs
		q.Address = &mac
	}
	if g := c.Text("portgroup"); g != nil {
		group, err := s.Groups().ByIdent(ctx, c, *g)
		if err != nil {
			return nil, err
		}
		if _, err := s.find.Visible(ctx, c, group.NodeUUID); errors.Is(err, store.ErrNotFound) {
			return nil, s.Groups().Missing(*g)
		} else if err != nil {
			return nil, err
		}
		in = group
	}
	if in != nil {
		q.PortgroupUUID = &in.UUID
	}
	q.DescriptionContains = c.Text("description_contains")
	q.Limit, q.Marker, q.Sort, q.Desc = p.Limit, p.Marker, p.Sort, p.Desc
	q.Project = c.Scope()
	ports, perr := s.store.Ports(ctx, q)
	if errors.Is(perr, store.ErrNotFound) {
		return nil, rest.NotFound("Port %s could not be found.", p.Marker)
	}
	if perr != nil {
		return nil, perr
	}
	items := make([]rest.Object, len(ports))
	for i, port := range ports {
		items[i] = rest.PortFields.Render(new(show(c, port)), c.Version, names)
	}
	next := ""
	if len(ports) > 0 {
		next = c.Next(p, path, len(ports), ports[len(ports)-1].UUID, names)
	}
	return call.List("ports", items, next), nil
}

// portSchema is the schema of a port, in the body of POST and after a PATCH. A node is named by node_uuid or, in a new
// port, node_ident.
var portSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"address"},
	Props: map[string]*rest.Schema{
		"address": {Types: []string{"string"}}, "node_uuid": {Types: []string{"string"}},
		"node_ident": {Types: []string{"string"}}, "uuid": document.OptionalText, "extra": document.OptionalObject,
		"is_smartnic": document.OptionalFlag, "local_link_connection": document.OptionalObject,
		"physical_network": {Types: []string{"string", "null"}, MaxLen: 64}, "portgroup_uuid": document.OptionalText,
		"pxe_enabled": document.OptionalFlag, "name": {Types: []string{"string", "null"}, MaxLen: 255},
		"description": {Types: []string{"string", "null"}, MaxLen: 255},
		"vendor":      {Types: []string{"string", "null"}, MaxLen: 32},
		"category":    {Types: []string{"string", "null"}, MaxLen: 80}, dynamicFlag: {Types: []string{"boolean"}},
	},
}

// dynamicFlag is the one attribute that versions may change which are not shown it: so it is in Ironic.
const dynamicFlag = "available_for_dynamic_portgroup"

// portPatchable are the attributes that PATCH may change.
var portPatchable = []string{"address", dynamicFlag, "category", "description", "extra", "is_smartnic",
	"local_link_connection", "name", "node_uuid", "physical_network", "portgroup_uuid", "pxe_enabled", "vendor"}

func portDocument(p *node.Port) map[string]any {
	return map[string]any{
		"address": p.Address, dynamicFlag: !p.NoDynamicPortgroup, "category": document.OrNull(p.Category),
		"description": document.OrNull(p.Description), "extra": rest.Clone(p.Extra), "is_smartnic": p.IsSmartNIC,
		"local_link_connection": rest.Clone(p.LocalLinkConnection), "name": document.OrNull(p.Name),
		"node_uuid": p.NodeUUID, "physical_network": document.OrNull(p.PhysicalNetwork),
		"portgroup_uuid": document.OrNull(p.PortgroupUUID), "pxe_enabled": p.PXEEnabled,
		"vendor": document.OrNull(p.Vendor),
	}
}

// assignPort sets the attributes of a port from a document that checkPort has found good.
func assignPort(p *node.Port, d map[string]any) *rest.Error {
	pxe, err := document.Flag(d, "pxe_enabled", true)
	if err != nil {
		return err
	}
	smart, err := document.Flag(d, "is_smartnic", false)
	if err != nil {
		return err
	}
	dynamic, err := document.Flag(d, dynamicFlag, true)
	if err != nil {
		return err
	}
	p.PXEEnabled, p.IsSmartNIC, p.NoDynamicPortgroup = pxe, smart, !dynamic
	p.Address, p.NodeUUID, p.PortgroupUUID = document.Text(d, "address"), document.Text(d, "node_uuid"),
		strings.ToLower(document.Text(d, "portgroup_uuid"))
	p.Name, p.Description, p.Vendor, p.Category = document.Text(d, "name"), document.Text(d, "description"),
		document.Text(d, "vendor"), document.Text(d, "category")
	p.PhysicalNetwork, p.LocalLinkConnection, p.Extra = document.Text(d, "physical_network"),
		document.Object(d, "local_link_connection"), document.Object(d, "extra")
	return nil
}

// checkPort looks at what holds for new and changed ports alike: values, the port group, its networks. was is nil for a
// new port.
func (s *Handlers) checkPort(ctx context.Context, c *call.Call, was *node.Port, n *node.Node, d map[string]any) error {
	if err := document.MAC(d, "address"); err != nil {
		return err
	}
	link, _ := d["local_link_connection"].(map[string]any)
	if err := checkLink(c.Version, was, link); err != nil {
		return err
	}
	if network, ok := d["physical_network"].(string); ok && network == "" {
		return rest.BadRequest("A non-empty value is required when setting physical_network")
	}
	pxe, err := document.Flag(d, "pxe_enabled", was != nil)
	if err != nil {
		return err
	}
	id, ok := d["portgroup_uuid"].(string)
	if !ok {
		return nil
	}
	if !document.IsUUID(id) {
		return rest.BadRequest("Expected UUID for portgroup_uuid: %s", id)
	}
	g, gerr := s.store.Portgroups().Get(ctx, id)
	if errors.Is(gerr, store.ErrNotFound) {
		return rest.BadRequest("Portgroup %s could not be found.", id)
	}
	if gerr != nil {
		return gerr
	}
	if g.NodeUUID != n.UUID {
		return rest.BadRequest("Port can not be added to a portgroup belonging to a different node.")
	}
	if err := s.checkGroupNetwork(ctx, was, g, document.Text(d, "physical_network")); err != nil {
		return err
	}
	if g.StandalonePortsSupported {
		return nil
	}
	if was == nil {
		if pxe {
			return rest.Conflict(
				"Port group %s doesn't support standalone ports. This port cannot be created as a member of that portgroup as the port's 'pxe_enabled' field was set to True.", g.UUID)
		}
		return nil
	}
	vif, attached := was.InternalInfo[vifKey].(string)
	if g.UUID == was.PortgroupUUID && pxe == was.PXEEnabled && !attached {
		return nil
	}
	var why []string
	if pxe {
		why = append(why, "'pxe_enabled' was set to True")
	}
	if attached {
		why = append(why, "VIF "+vif+" is attached to the port")
	}
	if len(why) > 0 {
		return rest.Conflict(
			"Port group %s doesn't support standalone ports. This port %s cannot be a member of that port group because of: %s", g.UUID, was.UUID, strings.Join(why, ", "))
	}
	return nil
}

// checkGroupNetwork wants all ports of a group in one physical network.
func (s *Handlers) checkGroupNetwork(ctx context.Context, was *node.Port, g *node.Portgroup, network string) error {
	if was != nil && was.PortgroupUUID == g.UUID && was.PhysicalNetwork == network {
		return nil
	}
	ports, err := s.store.Ports(ctx, store.PortQuery{PortgroupUUID: &g.UUID})
	if err != nil {
		return err
	}
	if was != nil {
		ports = slices.DeleteFunc(ports, func(p *node.Port) bool { return p.UUID == was.UUID })
	}
	want := g.PhysicalNetwork
	if len(ports) > 0 {
		want = ports[0].PhysicalNetwork
	} else if want == "" {
		return nil
	}
	if network != want {
		return rest.Conflict(
			"Port with physical network %s cannot become a member of port group %s which has ports in physical network %s.",
			noneOr(network), g.UUID, noneOr(want))
	}
	return nil
}

// noneOr names the absence of a value as messages of this API do.
func noneOr(s string) string {
	return cmp.Or(s, "None")
}

func (s *Handlers) createPort(ctx context.Context, c *call.Call) (*call.Reply, error) {
	d, err := c.Created("port", portSchema, rest.PortFields)
	if err != nil {
		return nil, err
	}
	if _, ok := d["node_ident"]; ok && c.Version < rest.VersionPortNodeName {
		return nil, rest.NotAcceptable()
	}
	n, nerr := s.portOwner(ctx, c, d)
	if nerr != nil {
		return nil, nerr
	}
	p := &node.Port{}
	if p.UUID, err = document.NewUUID(d); err != nil {
		return nil, err
	}
	if err := s.checkPort(ctx, c, nil, n, d); err != nil {
		return nil, err
	}
	if err := assignPort(p, d); err != nil {
		return nil, err
	}
	if err := s.store.CreatePort(ctx, p); errors.Is(err, store.ErrNotFound) {
		return nil, rest.BadRequest("Node %s could not be found.", n.UUID) // deleted a moment ago
	} else if err != nil {
		return nil, err
	}
	rep := one(c, http.StatusCreated, p, nil)
	rep.Location = c.Base + "/v1/ports/" + p.UUID
	return rep, nil
}

// portOwner finds the node of a new port, checks whether the actor may add ports to it, and puts its UUID into the
// Document.
func (s *Handlers) portOwner(ctx context.Context, c *call.Call, d map[string]any) (*node.Node, error) {
	ident, ok := d["node_ident"].(string)
	if !ok {
		if _, ok := d["node_uuid"]; !ok {
			return nil, rest.BadRequest("Schema error for port: 'node_uuid' is a required property")
		}
		return s.find.In(ctx, c, d, access.PortCreate)
	}
	if _, ok := d["node_uuid"]; ok {
		return nil, rest.BadRequest("Schema error for port: 'node_uuid' and 'node_ident' exclude each other")
	}
	delete(d, "node_ident")
	return s.find.Sent(ctx, c, d, ident, access.PortCreate)
}

// connectivityIn are the states in which a port's connection may be changed: the node is not on a tenant's network
// then.
var connectivityIn = []node.State{node.Enroll, node.Inspecting, node.InspectWait, node.Manageable}

func (s *Handlers) patchPort(ctx context.Context, c *call.Call) (*call.Reply, error) {
	patch, err := rest.ParsePatch(c.Body, c.Version, portPatchable)
	if err != nil {
		return nil, err
	}
	for _, root := range patch.Roots() {
		if since, _ := rest.PortFields.Since(root); since > c.Version && root != dynamicFlag {
			return nil, rest.NotAcceptable()
		}
	}
	p, perr := resource.Unchanged("Port "+c.Path["port"],
		func() (*node.Port, error) { return s.patchPortOnce(ctx, c, patch) })
	if perr != nil {
		return nil, perr
	}
	return one(c, http.StatusOK, p, nil), nil
}

// one answers with one port.
func one(c *call.Call, status int, p *node.Port, names []string) *call.Reply {
	return &call.Reply{Status: status, Body: rest.PortFields.Render(new(show(c, p)), c.Version, names), ETag: p.Tag()}
}

// errSame ends a change of a port that changes nothing, so that nothing is written.
var errSame = errors.New("the port is so already")

// patchPortOnce applies a patch to the present port. The checked version is the changed one, or it returns ErrChanged.
func (s *Handlers) patchPortOnce(ctx context.Context, c *call.Call, patch *rest.Patch) (*node.Port, error) {
	was, owner, err := s.unlocked(ctx, c)
	if err != nil {
		return nil, err
	}
	d := portDocument(was)
	if err := patch.Apply(d); err != nil {
		return nil, err
	}
	if fault := portSchema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for patch: %s", fault)
	}
	if _, ok := d["node_uuid"]; !ok {
		return nil, rest.BadRequest("Schema error for patch: 'node_uuid' is a required property")
	}
	n := owner
	if !strings.EqualFold(document.Text(d, "node_uuid"), owner.UUID) {
		if n, err = s.find.In(ctx, c, d, access.PortCreate); err != nil {
			return nil, err
		}
		if n.Reservation != "" {
			return nil, finder.LockedBy(n)
		}
	}
	if err := s.checkPort(ctx, c, was, n, d); err != nil {
		return nil, err
	}
	if err := checkPortChange(c, was, owner, patch, d); err != nil {
		return nil, err
	}
	p, err := s.store.UpdatePort(ctx, was.UUID, func(p *node.Port) error {
		before := portDocument(p)
		if !reflect.DeepEqual(before, portDocument(was)) {
			return resource.ErrChanged
		}
		if err := assignPort(p, d); err != nil {
			return err
		}
		if reflect.DeepEqual(before, portDocument(p)) {
			return errSame
		}
		return nil
	})
	if errors.Is(err, errSame) {
		return was, nil
	}
	return p, err
}

// checkPortChange refuses changes that the node's state does not allow. d is the port after the change.
func checkPortChange(c *call.Call, was *node.Port, owner *node.Node, patch *rest.Patch, d map[string]any) *rest.Error {
	p := *was
	if err := assignPort(&p, d); err != nil {
		return err
	}
	if owner.Provision == node.Inspecting && c.Version >= rest.VersionInspectWait {
		return rest.Conflict(`Cannot update port "%s" on "%s" while it is in state "%s".`, p.UUID, owner.UUID,
			owner.Provision)
	}
	if c.Version >= rest.VersionGroupNetwork && p.PortgroupUUID != "" &&
		slices.Contains(patch.Roots(), "physical_network") {
		return rest.BadRequest("physical_network cannot be changed while the port belongs to a portgroup.")
	}
	if owner.Maintenance {
		return nil
	}
	if p.Address != was.Address && (owner.Provision == node.Active || owner.InstanceUUID != "") {
		return rest.Conflict(
			"Cannot update hardware address for port %s as node %s is active or has instance UUID assigned", p.UUID,
			owner.UUID)
	}
	// A link that is taken away counts as changed, also when there was none.
	moved := patch.Removes("local_link_connection") || was.PXEEnabled != p.PXEEnabled ||
		was.PhysicalNetwork != p.PhysicalNetwork ||
		was.PortgroupUUID != p.PortgroupUUID ||
		!sameObject(was.LocalLinkConnection, p.LocalLinkConnection)
	if moved && !slices.Contains(connectivityIn, owner.Provision) {
		return rest.Conflict(
			"Port %s can not have any connectivity attributes (physical_network, portgroup_id, local_link_connection, pxe_enabled) updated unless node %s is in a %s state or in maintenance mode. The current state is %s.", p.UUID, owner.UUID, joinStates(connectivityIn), owner.Provision)
	}
	return nil
}

func sameObject(a, b map[string]any) bool {
	return rest.Repr(rest.Clone(a)) == rest.Repr(rest.Clone(b))
}

func (s *Handlers) deletePort(ctx context.Context, c *call.Call) (*call.Reply, error) {
	p, n, err := s.unlocked(ctx, c)
	if err != nil {
		return nil, err
	}
	if id, ok := p.InternalInfo[vifKey]; ok && !n.Maintenance {
		return nil, rest.Conflict("Cannot delete the port %s as it is bound to VIF %v for use.", p.UUID, id)
	}
	return call.NoContent(), s.store.DeletePort(ctx, p.UUID)
}
