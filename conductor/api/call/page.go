package call

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Page is the part of a list that a client wants.
type Page struct {
	Limit  int
	Marker string
	Sort   string
	Desc   bool
}

// PageArgs are the query arguments that Page reads, PageArguments their names.
var (
	PageArgs = Args{"limit": Number, "marker": {Types: []string{"string"}, Format: "uuid"}, "sort_key": Text,
		"sort_dir": {Types: []string{"string"}, Enum: []any{"asc", "desc"}}}
	PageArguments = PageArgs.Names()
)

// Marker describes the markers of a list. The zero value is a UUID.
type Marker struct {
	What string // "name", in "Expected name for marker: ..."
	May  func(string) bool
	// There reports whether a marker names a resource; nil: the list itself finds out.
	There func(marker string) error
}

// sorting is a table of the fields that a list may be sorted by.
type sorting interface {
	Since(name string) (rest.Version, bool)
	Sortable(name string) bool
}

// Page reads limit, marker, sort_key and sort_dir. Faults are reported in Ironic's order: arguments newer than the
// version, impossible values, a missing marker, an invalid sort key.
func (c *Call) Page(fields sorting, marker Marker) (Page, error) {
	p := Page{Limit: limit.PageEntries}
	key := c.Query.Get("sort_key")
	since, known := fields.Since(key)
	if since > c.Version && fields.Sortable(key) {
		return p, rest.NotAcceptable()
	}
	if c.Query.Has("limit") {
		n, err := c.whole("limit")
		if err != nil {
			return p, err
		}
		if n <= 0 {
			return p, rest.BadRequest("Limit must be positive")
		}
		p.Limit = min(n, limit.PageEntries)
	}
	if marker.May == nil {
		marker.What, marker.May = "UUID", document.IsUUID
	}
	if m := c.Text("marker"); m != nil {
		if !marker.May(*m) {
			return p, rest.BadRequest("Expected %s for marker: %s", marker.What, *m)
		}
		p.Marker = *m
	}
	if d := c.Text("sort_dir"); d != nil {
		if p.Desc = *d == "desc"; !p.Desc && *d != "asc" {
			return p, rest.BadRequest("Invalid sort direction: %s. Acceptable values are 'asc' or 'desc'", *d)
		}
	}
	if p.Marker != "" && marker.There != nil {
		if err := marker.There(p.Marker); err != nil {
			return p, err
		}
	}
	if key != "" && key != madeOrder {
		if !fields.Sortable(key) {
			return p, BadSort(key, known)
		}
		p.Sort = key
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

// madeOrder is Ironic's name for the order in which the members of a list were created.
const madeOrder = "id"

// Next returns the address of the page after the one that ends with marker, or "" if this one is not full. names are
// the fields that the list shows; nil: all. It has Ironic's arguments, in their order, and the filters, which Ironic
// drops.
func (c *Call) Next(p Page, path string, got int, marker string, names []string) string {
	if got < p.Limit {
		return ""
	}
	var b strings.Builder
	b.WriteString(c.Base + "/v1/" + path)
	sep := "?"
	add := func(name, value string) {
		b.WriteString(sep + url.QueryEscape(name) + "=" + strings.ReplaceAll(url.QueryEscape(value), "%2C", ","))
		sep = "&"
	}
	add("sort_key", cmp.Or(p.Sort, madeOrder))
	add("sort_dir", map[bool]string{false: "asc", true: "desc"}[p.Desc])
	if fields := slices.DeleteFunc(slices.Clone(names), func(f string) bool { return f == "links" }); len(fields) > 0 {
		names = fields // links are always shown
	}
	detail, _ := c.Flag("detail")
	switch {
	case c.Version < rest.VersionSelectFields: // knows neither
	case names != nil:
		add("fields", strings.Join(names, ","))
	case detail != nil && *detail:
		add("detail", "True")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Query)) {
		if name != "fields" && name != "detail" && !slices.Contains(PageArguments, name) {
			add(name, c.Query.Get(name))
		}
	}
	add("limit", strconv.Itoa(p.Limit))
	add("marker", marker)
	return b.String()
}
