package ask

import (
	"slices"
	"strings"
)

// Card is one thing to vary in a request of one route.
type Card struct {
	Route Route
	Class string // "version", "value", "argument limit" ...
	Value string // which of its class
	state string // of the node then
}

// What is varied, by class. Every route gets each class that fits it.
var (
	versions = []string{"newest", "since", "before", "random", "oldest", "none", "odd"}
	idents   = []string{"uuid", "name", "absent", "malformed", "encoded", "capitals"}
	// of the members of a body
	values = []string{"valid", "wrong type", "null", "too long", "unknown", "duplicate", "wrong case", "encoded",
		"missing",
		"malformed", "none"}
	patches = []string{"add valid", "add wrong type", "add null", "add too long", "add unknown", "add wrong case",
		"add encoded", "replace valid", "replace wrong type", "replace null", "replace too long", "replace encoded",
		"remove", "remove unknown", "test", "duplicate", "deep", "malformed"}
	arguments = []string{"right", "wrong"}
	queries   = []string{"combination", "many", "unknown", "duplicate", "wrong case", "encoded", "empty", "none"}
	headers   = []string{"HEAD", "OPTIONS", "slash", "json", "encoded slash", "method", "no content type",
		"odd content type", "form", "accept", "error of old", "address"}
)

// class is a kind of variation and its values.
type class struct {
	name   string
	values []string
}

// classes are those that fit a route.
func classes(r Route) []class {
	cs := []class{{"version", versions}, {"header", headers}, {"query", queries}}
	for _, name := range r.Names() {
		cs = append(cs, class{"identifier " + name, idents})
	}
	for _, arg := range r.Args {
		cs = append(cs, class{"argument " + arg, arguments})
	}
	switch r.Method {
	case "PATCH":
		cs = append(cs, class{"patch", patches})
		if fs := fields[r.collection()]; fs != nil { // what may be in it, each by itself
			for _, f := range fs {
				cs = append(cs, class{"field " + f.name, fieldPatches})
			}
		}
	case "POST", "PUT":
		cs = append(cs, class{"value", values})
		for _, f := range fields[r.Path] {
			cs = append(cs, class{"field " + f.name, fieldValues})
		}
	}
	return cs
}

// What is tried with each field that has a name.
var (
	fieldValues  = []string{"valid", "wrong type", "null", "too long", "wrong case", "encoded"}
	fieldPatches = []string{"add valid", "replace valid", "add wrong type", "replace wrong type", "add null",
		"replace null",
		"add too long", "remove", "add encoded", "replace wrong case"}
)

// collection is the path of a resource's collection.
func (r Route) collection() string { return r.Path[:strings.LastIndex(r.Path, "/")] }

// Deck is every card.
func Deck(routes []Route) (all []Card) {
	for _, r := range routes {
		for _, c := range classes(r) {
			for _, v := range c.values {
				all = append(all, Card{Route: r, Class: c.name, Value: v})
			}
		}
	}
	return all
}

// perClass is how many values of a class a part has.
func perClass(c class) int {
	return (len(c.values) + Parts - 1) / Parts
}

// deal gives a part of the deck. Parts that follow each other have different values, and the
// cards of a route go through all states.
func deal(routes []Route, part int) (cards []Card) {
	for i, r := range routes {
		first := len(cards)
		for j, c := range classes(r) {
			n := perClass(c)
			for k := range n {
				// i and j: not all routes have their first value in the first part.
				cards = append(cards, Card{r, c.name, c.values[(part*n+k+i+j)%len(c.values)],
					States[(part+i+len(cards)-first)%len(States)]})
			}
		}
	}
	return cards
}

// roles are the users of requests, by kind of authentication. The administrator makes what the others ask for.
var roles = map[string][]string{
	HTTPBasic: {"admin", "wrong-password", "nobody"},
	Keystone: {"system-admin", "system-member", "system-reader", "project-admin", "project-member", "project-reader",
		"lessee-admin", "lessee-member", "lessee-reader", "other-admin", "service", "unscoped", "bad-token", "nobody"},
}

// Roles are the users of requests, by kind of authentication.
func Roles(auth string) []string { return slices.Clone(roles[auth]) }

// rolesPerRoute is the number of roles that send a route's request in a part.
const rolesPerRoute = 2

// dealRoles gives a part of all routes by all roles.
func dealRoles(routes []Route, auth string, part int) (cards []Card) {
	rs := roles[auth]
	for i, r := range routes {
		for k := range rolesPerRoute {
			cards = append(cards, Card{r, "role", rs[(part*rolesPerRoute+k+i)%len(rs)], States[(part+i)%len(States)]})
		}
	}
	return cards
}
