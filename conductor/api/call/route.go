package call

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Route is one line of the table of routes.
type Route struct {
	Method string
	Path   string // segments; {name} stands for any one segment
	Access Access
	Since  rest.Version // first microversion that has it; 0: all
	// Hidden: below Since the route does not exist (404), else it is not acceptable (406). Ironic has both kinds.
	Hidden bool
	Barred bool // below Since the method is not allowed (405)
	// Part names a part of a collection that was added later, Within the version of the collection: from Within up to
	// Since no method finds the part, and the answer names it.
	Part   string
	Within rest.Version
	// Late: whether the version has the route is checked after the node was found, and after the types in the body, as
	// in Ironic.
	Late   bool
	Query  Query // kind of query; the zero value: none
	Body   int64 // how large a body may be; 0: 1 MiB
	Form   bool  // the body is not JSON: it is left unread
	Parts  bool  // the handler reads the body itself, and no more of it than it needs
	Fields bool  // shows one object, of which ?fields= chooses fields
	Stream bool  // answers with a stream of events rather than JSON
	Text   bool  // answers with plain text rather than JSON
	// Session: one of many requests of a session, of which the one that began it is in log, audit log and history: this
	// is not. It may wait for something to happen, and how long that takes says nothing about the server.
	Session bool
	// For those who write clients, see package openapi.
	Args    Args         // arguments of the query, where Query is Named
	Takes   *rest.Schema // schema of the body; nil: no body
	Answers Answers      // of a request that is done
	// Target finds what an If-Match is compared with; nil: the node in the address, if there is one.
	Target func(ctx context.Context, c *Call) (Target, error)
	Handle func(ctx context.Context, c *Call) (*Reply, error)
}

// Compares reports whether the changed object is compared with an If-Match: a resource, or a part of the node in the
// address.
func (r *Route) Compares() bool {
	return r.Method != http.MethodGet && r.Access != Public &&
		(r.Target != nil || strings.Contains(r.Path, "/nodes/{node}"))
}

// Tagged reports whether the route's answers show one resource, with its ETag.
func (r *Route) Tagged() bool {
	switch r.Method {
	case http.MethodGet, http.MethodPatch:
		return r.Target != nil || r.Path == "/v1/nodes/{node}"
	case http.MethodPost:
		_, makes := r.Answers[http.StatusCreated]
		return makes
	}
	return false
}

// Target is the stored resource that a request is about.
type Target struct {
	Kind, UUID string // as in node.Expected
	Tag        string // of its present state
}

// Query describes the query of a route's address. A form in the body counts as a part of the query.
type Query int

const (
	// NoQuery refuses any query before the handler runs.
	NoQuery Query = iota
	// Named takes Args: others, and values that they cannot have, are refused before the handler runs (Call.CheckArgs).
	Named
	// Members takes members of the body: each may be in either place (Call.Arguments).
	Members
)

// refusals are what collections are called that say so when they are too new.
var refusals = map[string]string{"allocations": "allocations", "deploy_templates": "deploy templates",
	"runbooks": "runbooks", "inspection_rules": "inspection rules", "shards": "shards"}

// Access is the access that a route requires.
type Access int

// Access rules, from weak to strong. The zero value is no rule at all and refuses to start.
const (
	Public Access = iota + 1 // all callers: the version documents
	Read                     // callers who may see the node, or lists (which hold only what they may see)
	// callers who may run the node: deploy, tear down, power, attach. Its owner, its lessee, the system's members
	Use
	Write // callers who may change the node or resource. Its owner, the system's members
	Admin // the system's administrators: objects without an owner
)

// TooNew is the answer in a version that lacks the route. Ironic has four: the routing does not find anything below a
// controller that is too new, and words its errors in its own shape; methods are not allowed; the controller says so;
// or it is not acceptable.
func (r *Route) TooNew(v rest.Version) *rest.Error {
	if r.Part != "" && v >= r.Within {
		return rest.Routing(http.StatusNotFound, "The API version does not allow "+r.Part)
	}
	segments := strings.Split(strings.TrimPrefix(r.Path, "/v1/"), "/")
	text := ""
	if name := refusals[segments[0]]; name != "" {
		text = "The API version does not allow " + name
	}
	switch {
	case r.Barred && segments[0] == "allocations" && v >= rest.VersionAllocations: // there are some, not to be changed
		return rest.Fault(http.StatusMethodNotAllowed, "%s", http.StatusText(http.StatusMethodNotAllowed))
	case r.Barred:
		return rest.Routing(http.StatusMethodNotAllowed, text)
	case text != "", r.Lost():
		return rest.Routing(http.StatusNotFound, text)
	case r.Hidden:
		return rest.NotFound("Resource could not be found.")
	}
	return rest.NotAcceptable()
}

// Lost reports whether the routing of versions below Since does not find the address, with any method.
func (r *Route) Lost() bool {
	return r.Hidden && lostBelow(strings.Split(strings.TrimPrefix(r.Path, "/v1/"), "/"))
}

// Routed reports whether the routing, rather than the handler, finds that a version lacks the route.
func (r *Route) Routed() bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.Path, "/v1/"), "/")
	return r.Barred || r.Part != "" || refusals[first] != "" || r.Lost()
}

// inPlace are the segments below a node where the handler, and not the routing, looks at the node's identifier.
var inPlace = []string{"states", "management", "maintenance", "vendor_passthru", "validate"}

// Misnamed is the answer to an identifier that nothing can have, where the routing looks at it, before all else: nil
// where it is not so.
func (r *Route) Misnamed(values map[string]string, v rest.Version) *rest.Error {
	for _, kind := range []string{"node", "portgroup"} {
		ident, named := values[kind]
		if named && !document.IsUUID(ident) && !document.IsName(ident) && r.looksAt(kind, v) {
			return rest.Routing(http.StatusBadRequest, "Expected UUID or name for "+kind+": "+ident)
		}
	}
	return nil
}

// looksAt reports whether the routing looks at the identifier of a kind.
func (r *Route) looksAt(kind string, v rest.Version) bool {
	if kind == "portgroup" {
		return strings.HasPrefix(r.Path, "/v1/portgroups/{portgroup}") && v >= rest.VersionPortgroups
	}
	below, is := strings.CutPrefix(r.Path, "/v1/nodes/{node}")
	part, _, _ := strings.Cut(strings.TrimPrefix(below, "/"), "/")
	return is && !slices.Contains(inPlace, part)
}

// lostBelow reports whether an address is below a controller that hides in the routing of older versions.
func lostBelow(segments []string) bool {
	switch segments[0] {
	case "portgroups", "volume":
		return len(segments) > 1
	case "nodes":
		return len(segments) > 2 &&
			slices.Contains([]string{"portgroups", "vifs", "bios", "allocation", "history", "inventory", "firmware",
				"vmedia"}, segments[2]) ||
			len(segments) > 3 && segments[2] == "volume"
	}
	return false
}
