package api

import (
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// allow refuses query arguments that the route does not know: a filter that is silently ignored gives wrong answers.
func (c *call) allow(names ...string) *rest.Error {
	for _, name := range slices.Sorted(maps.Keys(c.query)) {
		if !slices.Contains(names, name) {
			return rest.BadRequest("Unexpected arguments: %s", name)
		}
	}
	return nil
}

// text returns a query argument, or nil if it was not sent.
func (c *call) text(name string) *string {
	if !c.query.Has(name) {
		return nil
	}
	v := c.query.Get(name)
	return &v
}

// flag returns a query argument that is a boolean, or nil if it was not sent.
func (c *call) flag(name string) (*bool, *rest.Error) {
	if !c.query.Has(name) {
		return nil, nil
	}
	b, err := boolean(name, c.query.Get(name))
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// boolean reads a boolean in all the words that clients of this API may use.
func boolean(name string, v any) (bool, *rest.Error) {
	switch x := v.(type) {
	case bool:
		return x, nil
	case string:
		switch strings.ToLower(strings.TrimSpace(x)) {
		case "1", "t", "true", "y", "yes", "on":
			return true, nil
		case "0", "f", "false", "n", "no", "off":
			return false, nil
		}
	}
	return false, rest.BadRequest("Invalid %s: Unrecognized value %s, acceptable values are: '0', '1', 'f', 'false', 'n', 'no', 'off', 'on', 't', 'true', 'y', 'yes'", name, rest.Repr(v))
}

// object returns the body as a JSON object; no body is an empty one.
func (c *call) object(what string) (map[string]any, *rest.Error) {
	switch b := c.body.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return b, nil
	}
	return nil, rest.BadRequest("Schema error for %s: %s is not of type 'object'", what, rest.Repr(c.body))
}

// arguments returns the body of an action: an object with no other members than those named.
func (c *call) arguments(names ...string) (map[string]any, *rest.Error) {
	b, err := c.object("body")
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if !slices.Contains(names, name) {
			return nil, rest.BadRequest("Unexpected arguments: %s", name)
		}
	}
	return b, nil
}

// page is what part of a list a client wants.
type page struct {
	limit  int
	marker string
	sort   string
	desc   bool
}

// maxLimit is the longest page; a larger limit gets this many.
const maxLimit = 1000

var pageArguments = []string{"limit", "marker", "sort_key", "sort_dir"}

// page reads limit, marker, sort_key and sort_dir. sortable tells by what the list may be sorted, known which names are fields.
func (c *call) page(known, sortable func(string) bool) (page, *rest.Error) {
	p := page{limit: maxLimit}
	if l := c.text("limit"); l != nil {
		n, err := strconv.Atoi(*l)
		if err != nil {
			return p, rest.BadRequest("Expected an integer for limit: %s", *l)
		}
		if n <= 0 {
			return p, rest.BadRequest("Limit must be positive")
		}
		p.limit = min(n, maxLimit)
	}
	if m := c.text("marker"); m != nil {
		if !isUUID(*m) {
			return p, rest.BadRequest("Expected UUID for marker: %s", *m)
		}
		p.marker = *m
	}
	switch d := c.query.Get("sort_dir"); d {
	case "", "asc":
	case "desc":
		p.desc = true
	default:
		return p, rest.BadRequest("Invalid sort direction: %s. Acceptable values are 'asc' or 'desc'", d)
	}
	if k := c.query.Get("sort_key"); k != "" && k != "id" { // id is what next links of Ironic name the order they were made
		if !sortable(k) {
			return p, badSort(k, known(k))
		}
		p.sort = k
	}
	return p, nil
}

// badSort words a sort key that cannot be: Ironic quotes only those that are no fields at all.
func badSort(key string, known bool) *rest.Error {
	if !known {
		key = strconv.Quote(key)
	}
	return rest.BadRequest("The sort_key value %s is an invalid field for sorting", key)
}

// next gives the address of the page after the one that ends with marker, or "" if this one is not full.
func (c *call) next(p page, path string, got int, marker string) string {
	if got < p.limit {
		return ""
	}
	q := maps.Clone(c.query)
	q.Set("limit", strconv.Itoa(p.limit))
	q.Set("marker", marker)
	return c.base + "/v1/" + path + "?" + strings.ReplaceAll(q.Encode(), "%2C", ",")
}

// list makes the answer of a collection.
func list(name string, items []rest.Object, next string) *reply {
	if items == nil {
		items = []rest.Object{}
	}
	return listOf(name, items, next)
}

// listOf is list for whatever encodes as a list.
func listOf(name string, items any, next string) *reply {
	o := rest.Object{{Name: name, Value: items}}
	if next != "" {
		o = append(o, rest.Member{Name: "next", Value: next})
	}
	return &reply{status: 200, body: o}
}

func isUUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

var (
	urlName  = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)
	hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
)

// reservedNames are words that mean something else in the same place of an address.
var reservedNames = []string{"maintenance", "management", "states", "vendor_passthru", "detail", "validate"}

// validName tells whether a node may be called so.
func validName(v rest.Version, name string) bool {
	if len(name) > 255 || isUUID(name) {
		return false
	}
	if v < rest.VersionURLNames {
		return hostName.MatchString(name)
	}
	return urlName.MatchString(name)
}

// hardwareAddress reads a MAC of six bytes and gives it in lower case with colons.
func hardwareAddress(s string) (string, bool) {
	a, err := net.ParseMAC(s)
	if err != nil || len(a) != 6 || strings.Count(s, ":") != 5 {
		return "", false
	}
	return a.String(), true
}
