// Package catalog answers what there is: versions, drivers, conductors and shards.
package catalog

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodes is where nodes are kept.
type nodes interface {
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
}

// Handlers answer the requests.
type Handlers struct {
	store    nodes
	drivers  *driver.Table
	hostname string
	others   Conductors
	newest   rest.Version
	started  time.Time
}

// New makes Handlers of the conductor hostname, which offers versions up to newest. others may be nil: there are none.
func New(st nodes, drivers *driver.Table, hostname string, others Conductors, newest rest.Version) *Handlers {
	return &Handlers{store: st, drivers: drivers, hostname: hostname, others: others, newest: newest,
		started: time.Now()}
}

// Routes are the routes of the version documents, drivers, conductors and shards.
func (s *Handlers) Routes() []call.Route {
	return []call.Route{
		{Method: http.MethodGet, Path: "/", Access: call.Public, Answers: call.OK(rootShape), Handle: s.getRoot},
		{Method: http.MethodGet, Path: "/v1", Access: call.Public, Answers: call.OK(v1Shape()), Handle: s.getV1},
		{Method: http.MethodGet, Path: "/v1/drivers", Access: call.Read, Query: call.Named, Args: driverArgs,
			Answers: call.OK(rest.SchemaOf(rest.Object{{Name: "drivers", Value: rest.ListOf(driverShape())}})),
			Handle:  s.listDrivers},
		{Method: http.MethodGet, Path: "/v1/drivers/{driver}", Access: call.Read, Query: call.Named, Fields: true,
			Args: call.Args{"fields": call.Texts.From(rest.VersionDriverFields)}, Answers: call.OK(driverShape()),
			Handle: s.getDriver},
		{Method: http.MethodGet, Path: "/v1/drivers/{driver}/properties", Access: call.Read,
			Answers: call.OK(map[string]string{}), Handle: s.getDriverProperties},
		{Method: http.MethodGet, Path: "/v1/conductors", Access: call.Read, Query: call.Named,
			Since: rest.VersionConductors, Hidden: true, Args: conductorArgs,
			Answers: call.OK(rest.Collection("conductors", conductorShape)), Handle: s.listConductors},
		{Method: http.MethodGet, Path: "/v1/conductors/{conductor}", Access: call.Read, Query: call.Named,
			Since: rest.VersionConductors, Hidden: true, Fields: true, Args: call.Args{"fields": call.Texts},
			Answers: call.OK(conductorShape), Handle: s.getConductor},
		{Method: http.MethodGet, Path: "/v1/shards", Access: call.Read, Since: rest.VersionShards, Hidden: true,
			Answers: call.OK(
				rest.Object{{Name: "shards",
					Value: rest.ListOf(rest.Object{{Name: "name", Value: ""}, {Name: "count", Value: 0}})}}),
			Handle: s.listShards},
	}
}

func (s *Handlers) versionDocument(c *call.Call) rest.Object {
	return rest.Object{
		{Name: "id", Value: "v1"},
		{Name: "links", Value: []rest.Link{{Href: c.Base + "/v1/", Rel: "self"}}},
		{Name: "status", Value: "CURRENT"},
		{Name: "min_version", Value: rest.MinVersion.String()},
		{Name: "version", Value: s.newest.String()},
	}
}

func (s *Handlers) getRoot(_ context.Context, c *call.Call) (*call.Reply, error) {
	v := s.versionDocument(c)
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{
		{Name: "name", Value: "OpenStack Ironic API"}, // what clients look for
		{Name: "description",
			Value: "Ingot provisions bare metal machines and speaks the Bare Metal API of OpenStack Ironic."},
		{Name: "default_version", Value: v},
		{Name: "versions", Value: []rest.Object{v}},
	}}, nil
}

// resources are the collections that the version document lists, with the version that brought each: those that exist.
var resources = []struct {
	name  string
	since rest.Version
}{{"chassis", 1}, {"nodes", 1}, {"ports", 1}, {"drivers", 1}, {"portgroups", 23}, {"volume", 32},
	{"conductors", rest.VersionConductors}, {"allocations", rest.VersionAllocations},
	{"deploy_templates", rest.VersionTemplates}, {"runbooks", rest.VersionRunbooks}, {"lookup", rest.VersionRamdisk},
	{"heartbeat", rest.VersionRamdisk}, {"events", rest.VersionEvents}, {"continue_inspection", rest.VersionContinue},
	{"shards", rest.VersionShards}, {"inspection_rules", rest.VersionRules}}

func (s *Handlers) getV1(_ context.Context, c *call.Call) (*call.Reply, error) {
	o := rest.Object{
		{Name: "id", Value: "v1"},
		{Name: "links", Value: []rest.Link{
			{Href: c.Base + "/v1/", Rel: "self"},
			{Href: "https://docs.openstack.org//ironic/latest/contributor//webapi.html", Rel: "describedby",
				Type: "text/html"},
		}},
		{Name: "media_types",
			Value: rest.Object{{Name: "base", Value: "application/json"},
				{Name: "type", Value: "application/vnd.openstack.ironic.v1+json"}}},
	}
	for _, r := range resources {
		if r.since <= c.Version {
			o = append(o, rest.Member{Name: r.name, Value: rest.Links(c.Base, r.name+"/")})
		}
	}
	o = append(o, rest.Member{Name: "version", Value: s.versionDocument(c)})
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}

// showDriver makes the API's representation of a hardware type.
func (s *Handlers) showDriver(c *call.Call, t *driver.Type, detail bool) rest.Object {
	path := "drivers/" + t.Name
	o := rest.Object{
		{Name: "name", Value: t.Name},
		{Name: "hosts", Value: s.hosts(t.Name)},
		{Name: "links", Value: rest.Links(c.Base, path)},
	}
	if c.Version >= 14 {
		o = append(o, rest.Member{Name: "properties", Value: rest.Links(c.Base, path+"/properties")})
	}
	if c.Version < rest.VersionDriverDetails {
		return o
	}
	o = append(o, rest.Member{Name: "type", Value: "dynamic"})
	if !detail {
		return o
	}
	for _, kind := range driver.Kinds {
		if c.Version < kindSince[kind] {
			continue
		}
		o = append(o, rest.Member{Name: "default_" + kind + "_interface", Value: t.Default(kind)},
			rest.Member{Name: "enabled_" + kind + "_interfaces", Value: t.Enabled(kind)})
	}
	return o
}

func (s *Handlers) listDrivers(_ context.Context, c *call.Call) (*call.Reply, error) {
	kind, detail, fields := c.Text("type"), false, c.Text("fields")
	if d, err := c.Flag("detail"); err != nil {
		return nil, err
	} else if d != nil {
		detail = *d
	}
	if (kind != nil || detail) && c.Version < rest.VersionDriverDetails || fields != nil &&
		c.Version < rest.VersionDriverFields {
		return nil, rest.NotAcceptable()
	}
	if kind != nil && *kind != "classic" && *kind != "dynamic" {
		return nil, rest.BadRequest(`"type" filter must be one of "classic" or "dynamic", if specified.`)
	}
	if detail && fields != nil {
		return nil, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	}
	items := []rest.Object{}
	for _, name := range s.drivers.Names() {
		if kind != nil && *kind == "classic" {
			break // hardware types are the only drivers
		}
		t, _ := s.drivers.ByName(name)
		o := s.showDriver(c, t, detail || fields != nil)
		if fields != nil {
			var err *rest.Error
			if o, err = pick(o, *fields); err != nil {
				return nil, err
			}
		}
		items = append(items, o)
	}
	return call.List("drivers", items, ""), nil
}

// pick keeps the requested members, and the links.
func pick(o rest.Object, fields string) (rest.Object, *rest.Error) {
	wanted := map[string]bool{"links": true}
	for f := range strings.SplitSeq(fields, ",") {
		if f != "" {
			wanted[f] = true
		}
	}
	var out rest.Object
	for _, m := range o {
		if wanted[m.Name] {
			out = append(out, m)
			delete(wanted, m.Name)
		}
	}
	for f := range wanted {
		if f != "links" {
			return nil, rest.BadRequest("Field %s is not a valid field.", f)
		}
	}
	return out, nil
}

func (s *Handlers) getDriver(_ context.Context, c *call.Call) (*call.Reply, error) {
	t, ok := s.drivers.ByName(c.Path["driver"])
	if !ok {
		return nil, rest.NotFound("Could not find the following driver(s) or hardware type(s): %s.", c.Path["driver"])
	}
	o := s.showDriver(c, t, true)
	if f := c.Text("fields"); f != nil {
		if c.Version < rest.VersionDriverFields {
			return nil, rest.NotAcceptable()
		}
		var err *rest.Error
		if o, err = pick(o, *f); err != nil {
			return nil, err
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}

func (s *Handlers) getDriverProperties(_ context.Context, c *call.Call) (*call.Reply, error) {
	t, ok := s.drivers.ByName(c.Path["driver"])
	if !ok {
		return nil, rest.NotFound("The driver '%s' is unknown.", c.Path["driver"])
	}
	o := rest.Object{}
	for _, p := range t.Properties {
		text := p.Description + " Optional."
		if p.Required {
			text = p.Description + " Required."
		}
		o = append(o, rest.Member{Name: p.Name, Value: text})
	}
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}
