package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// usual returns the usual form of an address that is written in one of the other ways that Ironic understands, and its
// query. All code that handles a request, the access rules first, sees the usual form only. An address in the table of
// routes stays unchanged.
func (r *router) usual(method string, v rest.Version, path []string, query string) ([]string, string) {
	if v < rest.VersionNoSuffix {
		path = r.withoutSuffix(path)
	}
	if to, left, ok := r.nodeFirst(method, path, query); ok {
		return to, left
	}
	if to, field, ok := r.fieldOf(method, path); ok {
		if query != "" {
			query += "&"
		}
		return to, query + "fields=" + url.QueryEscape(field)
	}
	return path, query
}

// walk goes to the branch of a path; nil when it does not exist. fixed reports whether the last segment is a word of
// the table.
func (r *router) walk(path []string) (at *branch, fixed bool) {
	at = r.root
	for _, seg := range path {
		switch {
		case at.fixed[seg] != nil:
			at, fixed = at.fixed[seg], true
		case at.any != nil:
			at, fixed = at.any, false
		default:
			return nil, false
		}
	}
	return at, fixed
}

// suffixed are the resources whose own lookup goes by their whole name before it goes by the name without ".json".
var suffixed = []string{"node", "port", "portgroup", "allocation", "template", "runbook"}

// withoutSuffix takes one ".json" from the end of a path.
func (r *router) withoutSuffix(path []string) []string {
	if len(path) == 0 {
		return path
	}
	last := path[len(path)-1]
	stem, ok := strings.CutSuffix(last, ".json")
	if !ok || stem == "" {
		return path
	}
	short := append(slices.Clone(path[:len(path)-1]), stem)
	at, fixed := r.walk(short)
	if above, _ := r.walk(path[:len(path)-1]); at != nil && !fixed && slices.Contains(suffixed, above.name) &&
		!document.IsUUID(stem) {
		return path
	}
	return short
}

// Segments that may follow a node in an address that has the node in another place; after them in the query only.
var (
	aboutNode = []string{"states", "states/power", "states/provision", "states/raid", "states/console",
		"states/boot_mode", "states/secure_boot", "management/boot_device", "maintenance"}
	aboutAsked = []string{"management/boot_device/supported", "vendor_passthru/methods"}
)

// nodeFirst makes /nodes/NODE/states of /nodes/states/NODE and of /nodes/states?node_ident=NODE, and so on. The words
// in the place of the node are names that no node can have.
func (r *router) nodeFirst(method string, path []string, query string) (to []string, left string, ok bool) {
	if len(path) < 3 || path[1] != "nodes" ||
		!slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodDelete}, method) {
		return nil, "", false
	}
	tail := path[2:]
	if what := strings.Join(tail, "/"); slices.Contains(aboutNode, what) || slices.Contains(aboutAsked, what) {
		q, err := url.ParseQuery(query)
		if ident := q.Get("node_ident"); err == nil && ident != "" && len(q["node_ident"]) == 1 {
			q.Del("node_ident")
			return slices.Concat(path[:2], []string{ident}, tail), q.Encode(), true
		}
	}
	if len(tail) > 1 && slices.Contains(aboutNode, strings.Join(tail[:len(tail)-1], "/")) &&
		!slices.Contains(aboutNode, strings.Join(tail, "/")) {
		return slices.Concat(path[:2], tail[len(tail)-1:], tail[:len(tail)-1]), query, true
	}
	return nil, "", false
}

// fieldOf takes the last segment of an address that is not in the table for a field of the object before it.
func (r *router) fieldOf(method string, path []string) (to []string, field string, ok bool) {
	if method != http.MethodGet || len(path) < 4 {
		return nil, "", false
	}
	if at, _ := r.walk(path); at != nil {
		return nil, "", false
	}
	to = path[:len(path)-1]
	at, fixed := r.walk(to)
	if at == nil || fixed {
		return nil, "", false
	}
	shows := slices.ContainsFunc(at.routes,
		func(rt *call.Route) bool { return rt.Method == http.MethodGet && rt.Fields })
	return to, path[len(path)-1], shows
}
