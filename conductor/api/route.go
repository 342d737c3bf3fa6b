package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// route is one line of the table of routes.
type route struct {
	Method string
	Path   string // segments; {name} stands for any one segment
	Access Access
	Since  rest.Version // first microversion that has it; 0: all
	// Hidden: below Since the route is not there (404), else it is not acceptable (406). Ironic has both kinds.
	Hidden bool
	Body   int64 // how large a body may be; 0: maxBody
	Stream bool  // answers with a stream of events rather than JSON
	handle func(ctx context.Context, c *call) (*reply, error)
}

// refusals are what collections are called that say so when they are too new.
var refusals = map[string]string{"allocations": "allocations", "deploy_templates": "deploy templates", "runbooks": "runbooks",
	"inspection_rules": "inspection rules", "shards": "shards"}

func (r *route) tooNew() *rest.Error {
	collection, _, _ := strings.Cut(strings.TrimPrefix(r.Path, "/v1/"), "/")
	if name := refusals[collection]; name != "" {
		return rest.Routing(http.StatusNotFound, "The API version does not allow "+name)
	}
	if r.Hidden {
		return rest.NotFound("Resource could not be found.")
	}
	return rest.NotAcceptable()
}

// table is the whole API. Anything not in it does not exist and is answered so.
func (s *Server) table() []route {
	const (
		get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	)
	rs := []route{
		{Method: get, Path: "/", Access: Public, handle: s.getRoot},
		{Method: get, Path: "/v1", Access: Public, handle: s.getV1},

		{Method: get, Path: "/v1/nodes", Access: Read, handle: s.listNodes},
		{Method: post, Path: "/v1/nodes", Access: Write, handle: s.createNode},
		{Method: del, Path: "/v1/nodes", Access: Write, handle: missing("node_ident")},
		{Method: get, Path: "/v1/nodes/detail", Access: Read, handle: s.listNodesDetail},
		{Method: get, Path: "/v1/nodes/validate", Access: Read, handle: s.validateQuery},
		{Method: get, Path: "/v1/nodes/{node}", Access: Read, handle: s.getNode},
		{Method: patch, Path: "/v1/nodes/{node}", Access: Write, handle: s.patchNode},
		{Method: del, Path: "/v1/nodes/{node}", Access: Write, handle: s.deleteNode},
		{Method: get, Path: "/v1/nodes/{node}/validate", Access: Read, handle: s.validateNode},
		{Method: get, Path: "/v1/nodes/{node}/states", Access: Read, handle: s.getStates},
		{Method: put, Path: "/v1/nodes/{node}/states/power", Access: Write, handle: s.putPower},
		{Method: put, Path: "/v1/nodes/{node}/states/provision", Access: Write, Body: maxDriveBody, handle: s.putProvision},
		{Method: put, Path: "/v1/nodes/{node}/maintenance", Access: Write, handle: s.putMaintenance},
		{Method: del, Path: "/v1/nodes/{node}/maintenance", Access: Write, handle: s.deleteMaintenance},
		{Method: get, Path: "/v1/nodes/{node}/management/boot_device", Access: Read, handle: s.getBootDevice},
		{Method: put, Path: "/v1/nodes/{node}/management/boot_device", Access: Write, handle: s.putBootDevice},
		{Method: get, Path: "/v1/nodes/{node}/management/boot_device/supported", Access: Read, handle: s.getBootDevices},
		{Method: get, Path: "/v1/nodes/{node}/ports", Access: Read, handle: s.listNodePorts},
		{Method: get, Path: "/v1/nodes/{node}/ports/detail", Access: Read, handle: s.listNodePortsDetail},
		{Method: get, Path: "/v1/nodes/{node}/vifs", Access: Read, Since: rest.VersionVIFs, Hidden: true, handle: s.listVIFs},
		{Method: post, Path: "/v1/nodes/{node}/vifs", Access: Write, Since: rest.VersionVIFs, Hidden: true, handle: s.attachVIF},
		{Method: del, Path: "/v1/nodes/{node}/vifs/{vif}", Access: Write, Since: rest.VersionVIFs, Hidden: true, handle: s.detachVIF},
		{Method: get, Path: "/v1/nodes/{node}/traits", Access: Read, Since: rest.VersionTraits, handle: s.listTraits},
		{Method: put, Path: "/v1/nodes/{node}/traits", Access: Write, Since: rest.VersionTraits, handle: s.setTraits},
		{Method: del, Path: "/v1/nodes/{node}/traits", Access: Write, Since: rest.VersionTraits, handle: s.clearTraits},
		{Method: put, Path: "/v1/nodes/{node}/traits/{trait}", Access: Write, Since: rest.VersionTraits, handle: s.addTrait},
		{Method: del, Path: "/v1/nodes/{node}/traits/{trait}", Access: Write, Since: rest.VersionTraits, handle: s.removeTrait},
		{Method: get, Path: "/v1/nodes/{node}/history", Access: Read, Since: rest.VersionHistory, Hidden: true, handle: s.listHistory},
		{Method: get, Path: "/v1/nodes/{node}/history/{event}", Access: Read, Since: rest.VersionHistory, Hidden: true, handle: s.getHistory},
		{Method: get, Path: "/v1/nodes/{node}/inventory", Access: Read, Since: rest.VersionInventory, Hidden: true, handle: s.getInventory},

		{Method: get, Path: "/v1/ports", Access: Read, handle: s.listPorts},
		{Method: post, Path: "/v1/ports", Access: Write, handle: s.createPort},
		{Method: get, Path: "/v1/ports/detail", Access: Read, handle: s.listPortsDetail},
		{Method: get, Path: "/v1/ports/{port}", Access: Read, handle: s.getPort},
		{Method: patch, Path: "/v1/ports/{port}", Access: Write, handle: s.patchPort},
		{Method: del, Path: "/v1/ports/{port}", Access: Write, handle: s.deletePort},

		{Method: get, Path: "/v1/drivers", Access: Read, handle: s.listDrivers},
		{Method: get, Path: "/v1/drivers/{driver}", Access: Read, handle: s.getDriver},
		{Method: get, Path: "/v1/drivers/{driver}/properties", Access: Read, handle: s.getDriverProperties},

		{Method: get, Path: "/v1/conductors", Access: Read, Since: rest.VersionConductors, Hidden: true, handle: s.listConductors},
		{Method: get, Path: "/v1/conductors/{conductor}", Access: Read, Since: rest.VersionConductors, Hidden: true, handle: s.getConductor},

		{Method: get, Path: "/ingot/v1/nodes/{node}/progress", Access: Read, handle: s.getProgress},
		{Method: get, Path: "/ingot/v1/nodes/{node}/timeline", Access: Read, handle: s.getTimeline},
		{Method: get, Path: "/ingot/v1/nodes/{node}/logs", Access: Read, handle: s.getLogs},
	}
	for _, more := range [][]route{s.shardRoutes(), s.resourceRoutes(), s.allocationRoutes(), s.templateRoutes(), s.nodePartRoutes(), s.openToRamdisks(s.ramdiskRoutes()), s.eventRoutes(), s.ownRoutes(), s.erasureRoutes(), s.ruleCheckRoutes()} {
		rs = append(rs, more...)
	}
	return rs
}

// missing is the handler of a collection's address with a method that needs one of its members.
func missing(parameter string) func(context.Context, *call) (*reply, error) {
	return func(context.Context, *call) (*reply, error) {
		return nil, rest.BadRequest("Missing mandatory parameter: %s", parameter)
	}
}

// router finds the route of a path: a tree of segments, in which a fixed segment beats a {name}.
type router struct{ root *branch }

type branch struct {
	fixed  map[string]*branch
	any    *branch
	name   string // of any
	routes []*route
}

func newRouter(table []route) (*router, error) {
	r := &router{root: &branch{}}
	for i := range table {
		rt := &table[i]
		at := r.root
		if rt.Access < Public || rt.Access > Admin {
			return nil, fmt.Errorf("%s %s has no access rule", rt.Method, rt.Path)
		}
		if rt.handle == nil {
			return nil, fmt.Errorf("%s %s has no handler", rt.Method, rt.Path)
		}
		for seg := range strings.SplitSeq(strings.Trim(rt.Path, "/"), "/") {
			if seg == "" {
				continue
			}
			if name, ok := strings.CutPrefix(seg, "{"); ok {
				name = strings.TrimSuffix(name, "}")
				if at.any == nil {
					at.any, at.name = &branch{}, name
				}
				if at.name != name {
					return nil, fmt.Errorf("%s %s calls {%s} what another route calls {%s}", rt.Method, rt.Path, name, at.name)
				}
				at = at.any
				continue
			}
			if at.fixed == nil {
				at.fixed = map[string]*branch{}
			}
			if at.fixed[seg] == nil {
				at.fixed[seg] = &branch{}
			}
			at = at.fixed[seg]
		}
		if slices.ContainsFunc(at.routes, func(o *route) bool { return o.Method == rt.Method }) {
			return nil, fmt.Errorf("%s %s is there twice", rt.Method, rt.Path)
		}
		at.routes = append(at.routes, rt)
	}
	return r, nil
}

// methods lists what may be done at a path, for the Allow header.
func (r *router) methods(path []string) string {
	at := r.root
	for _, seg := range path {
		if next := at.fixed[seg]; next != nil {
			at = next
		} else {
			at = at.any
		}
	}
	var names []string
	for _, rt := range at.routes {
		names = append(names, rt.Method)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (r *router) find(method string, path []string) (*route, map[string]string, *rest.Error) {
	at, values := r.root, map[string]string{}
	for _, seg := range path {
		switch {
		case at.fixed[seg] != nil:
			at = at.fixed[seg]
		case at.any != nil:
			values[at.name] = seg
			at = at.any
		default:
			return nil, nil, rest.Routing(http.StatusNotFound, "")
		}
	}
	if len(at.routes) == 0 {
		return nil, nil, rest.Routing(http.StatusNotFound, "")
	}
	for _, rt := range at.routes {
		if rt.Method == method {
			return rt, values, nil
		}
	}
	return nil, nil, rest.Routing(http.StatusMethodNotAllowed, "")
}
