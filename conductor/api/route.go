package api

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/conductor/api/allocations"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/catalog"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/nodes"
	"github.com/ingot-metal/ingot/conductor/api/openapi"
	"github.com/ingot-metal/ingot/conductor/api/own"
	"github.com/ingot-metal/ingot/conductor/api/parts"
	"github.com/ingot-metal/ingot/conductor/api/phonehome"
	"github.com/ingot-metal/ingot/conductor/api/pools"
	"github.com/ingot-metal/ingot/conductor/api/ports"
	"github.com/ingot-metal/ingot/conductor/api/ramdisk"
	"github.com/ingot-metal/ingot/conductor/api/reservations"
	"github.com/ingot-metal/ingot/conductor/api/rules"
	"github.com/ingot-metal/ingot/conductor/api/states"
	"github.com/ingot-metal/ingot/conductor/api/templates"
	"github.com/ingot-metal/ingot/conductor/api/volumes"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// assemble makes what handles the parts of the API, and the table of routes.
func (s *Server) assemble() error {
	table := s.table()
	r, err := newRouter(table)
	if err != nil {
		return fmt.Errorf("make routes of the API: %w", err)
	}
	s.routes = r
	s.description = sync.OnceValues(func() ([]byte, error) {
		return openapi.Document(table, s.cfg.MaxVersion,
			func(rt *call.Route) string { return string(rulingOf(rt).rule) })
	})
	return nil
}

// table is the whole API, with what handles its parts. Anything not in it does not exist and is answered so.
func (s *Server) table() []call.Route {
	st, en, cfg, log := s.store, s.engine, s.cfg, s.log
	s.find = finder.New(st)
	s.ports = ports.New(st, s.find, cfg.Drivers, cfg.VIFs, log)
	s.volumes = volumes.New(st, s.find)
	s.parts = parts.New(st, en, s.find, cfg.Drivers, cfg.Hardware, cfg.Consoles, cfg.Hostname, log)
	ns, ts := nodes.New(st, en, s.find, cfg.Drivers, cfg.Hostname, cfg.Several, cfg.MaxVersion), templates.New(st)
	return slices.Concat(
		catalog.New(st, cfg.Drivers, cfg.Hostname, cfg.Conductors, cfg.MaxVersion).Routes(),
		ns.Routes(),
		states.New(st, en, s.find, ns, ts, cfg.Images, cfg.MaxVersion).Routes(),
		s.parts.Routes(),
		s.ports.Routes(),
		s.volumes.Routes(),
		allocations.New(st, s.find, cfg.Hostname, cfg.Allocate).Routes(),
		ts.Routes(),
		rules.New(st, s.find, cfg.MaskRules).Routes(),
		s.openToRamdisks(ramdisk.New(st, s.find, ns, cfg.Hostname).Routes()),
		pools.New(st, s.find, cfg.Warmth, cfg.PoolPace).Routes(),
		reservations.New(st, cfg.Prepare).Routes(),
		phonehome.New(en).Routes(),
		s.describe(),
		s.metrics(),
		own.New(st, en, s.find,
			own.Config{Authenticate: s.authenticate, Drivers: cfg.Drivers, Hardware: cfg.Hardware, Events: cfg.Events,
				Leaving: cfg.Leaving, Progress: cfg.Progress, Hostname: cfg.Hostname, Logs: cfg.Logs,
				ErasureKey: cfg.ErasureKey, Certificates: cfg.Certificates, Settings: cfg.Settings,
				ImageFiles: cfg.ImageFiles},
			log).Routes(),
	)
}

// router finds the route of a path: a tree of segments, in which a fixed segment beats a {name}.
type router struct{ root *branch }

type branch struct {
	fixed  map[string]*branch
	any    *branch
	name   string // of any
	routes []*call.Route
}

func newRouter(table []call.Route) (*router, error) {
	r := &router{root: &branch{}}
	for i := range table {
		rt := &table[i]
		at := r.root
		if rt.Access < call.Public || rt.Access > call.Admin {
			return nil, fmt.Errorf("%s %s has no access rule", rt.Method, rt.Path)
		}
		if rt.Handle == nil {
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
					return nil, fmt.Errorf("%s %s calls {%s} what another route calls {%s}", rt.Method, rt.Path, name,
						at.name)
				}
				at = at.any
				continue
			}
			if at.fixed == nil {
				at.fixed = map[string]*branch{}
			}
			at.fixed[seg] = cmp.Or(at.fixed[seg], &branch{})
			at = at.fixed[seg]
		}
		if slices.ContainsFunc(at.routes, func(o *call.Route) bool { return o.Method == rt.Method }) {
			return nil, fmt.Errorf("%s %s is there twice", rt.Method, rt.Path)
		}
		at.routes = append(at.routes, rt)
	}
	return r, nil
}

// at returns the routes of a path; those of the place with the most fixed segments come first. A second place exists
// where a word of the table stands for a {name}: /v1/nodes/detail is a list, and for the methods that lists don't have
// it is a node of that name.
func (b *branch) at(path []string) []*call.Route {
	if len(path) == 0 {
		return b.routes
	}
	var all []*call.Route
	if next := b.fixed[path[0]]; next != nil {
		all = append(all, next.at(path[1:])...)
	}
	if b.any != nil {
		all = append(all, b.any.at(path[1:])...)
	}
	return all
}

// find returns the first route of a path that has the method, and the values of its {names}; nil when none has.
func (b *branch) find(method string, path []string) (*call.Route, map[string]string) {
	if len(path) == 0 {
		if i := slices.IndexFunc(b.routes, func(rt *call.Route) bool { return rt.Method == method }); i >= 0 {
			return b.routes[i], map[string]string{}
		}
		return nil, nil
	}
	if next := b.fixed[path[0]]; next != nil {
		if rt, values := next.find(method, path[1:]); rt != nil {
			return rt, values
		}
	}
	if b.any == nil {
		return nil, nil
	}
	rt, values := b.any.find(method, path[1:])
	if rt != nil {
		values[b.name] = path[0]
	}
	return rt, values
}

// late is the answer to a method that a path does not have, where version v does not have the path itself and that goes
// first; nil: it does.
func (r *router) late(path []string, v rest.Version) *rest.Error {
	rt := r.root.at(path)[0]
	if v < rt.Since && (rt.Part != "" && v >= rt.Within || rt.Lost()) {
		return rt.TooNew(v)
	}
	return nil
}

// methods lists the methods of a path, for the Allow header.
func (r *router) methods(path []string) string {
	var names []string
	for _, rt := range r.root.at(path) {
		names = append(names, rt.Method)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

func (r *router) find(method string, path []string) (*call.Route, map[string]string, *rest.Error) {
	if rt, values := r.root.find(method, path); rt != nil {
		return rt, values, nil
	}
	if len(r.root.at(path)) == 0 {
		return nil, nil, rest.Routing(http.StatusNotFound, "")
	}
	return nil, nil, rest.Routing(http.StatusMethodNotAllowed, "")
}
