package call

import (
	"maps"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Page is what part of a list a client wants.
type Page struct {
	Limit  int
	Marker string
	Sort   string
	Desc   bool
}

// maxLimit is the longest page; a larger limit gets this many.
const maxLimit = 1000

// PageArguments are the query arguments that Page reads.
var PageArguments = []string{"limit", "marker", "sort_key", "sort_dir"}

// Page reads limit, marker, sort_key and sort_dir. sortable tells by what the list may be sorted, known which names are fields.
func (c *Call) Page(known, sortable func(string) bool) (Page, *rest.Error) {
	p := Page{Limit: maxLimit}
	if l := c.Text("limit"); l != nil {
		n, err := strconv.Atoi(*l)
		if err != nil {
			return p, rest.BadRequest("Expected an integer for limit: %s", *l)
		}
		if n <= 0 {
			return p, rest.BadRequest("Limit must be positive")
		}
		p.Limit = min(n, maxLimit)
	}
	if m := c.Text("marker"); m != nil {
		if !document.IsUUID(*m) {
			return p, rest.BadRequest("Expected UUID for marker: %s", *m)
		}
		p.Marker = *m
	}
	switch d := c.Query.Get("sort_dir"); d {
	case "", "asc":
	case "desc":
		p.Desc = true
	default:
		return p, rest.BadRequest("Invalid sort direction: %s. Acceptable values are 'asc' or 'desc'", d)
	}
	if k := c.Query.Get("sort_key"); k != "" && k != "id" { // id is what next links of Ironic name the order they were made
		if !sortable(k) {
			return p, BadSort(k, known(k))
		}
		p.Sort = k
	}
	return p, nil
}

// BadSort words a sort key that cannot be: Ironic quotes only those that are no fields at all.
func BadSort(key string, known bool) *rest.Error {
	if !known {
		key = strconv.Quote(key)
	}
	return rest.BadRequest("The sort_key value %s is an invalid field for sorting", key)
}

// Next gives the address of the page after the one that ends with marker, or "" if this one is not full.
func (c *Call) Next(p Page, path string, got int, marker string) string {
	if got < p.Limit {
		return ""
	}
	q := maps.Clone(c.Query)
	q.Set("limit", strconv.Itoa(p.Limit))
	q.Set("marker", marker)
	return c.Base + "/v1/" + path + "?" + strings.ReplaceAll(q.Encode(), "%2C", ",")
}
