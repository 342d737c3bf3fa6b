// Package call is one request on its way through a handler: its arguments, version and caller, and its answer.
//
// A Route is one line of the table of routes and has the handler. The methods of Call read the query and the body the
// way clients of this API send them; their errors are *rest.Error, ready to be sent. May, MayFor and Scope check the
// caller's rights.
package call

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Argument returns the only member that the body of an action may have, and must have.
func (c *Call) Argument(name string) (any, *rest.Error) {
	b, err := c.Arguments(name)
	if err != nil {
		return nil, err
	}
	v, ok := b[name]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: %s", name)
	}
	return v, nil
}

// Typed refuses a body that has not the members of a shape, or has texts and booleans of another type. What values they
// may have is not looked at.
func (c *Call) Typed(shape *rest.Schema) *rest.Error {
	if shape == nil || shape.Props == nil {
		return nil
	}
	b, err := c.Arguments(Args(shape.Props).Names()...)
	if err != nil {
		return err
	}
	for _, name := range shape.Required {
		if _, ok := b[name]; !ok {
			return rest.BadRequest("Missing mandatory parameter: %s", name)
		}
	}
	for name, v := range b {
		types := shape.Props[name].Types
		_, list := v.([]any)
		_, text := v.(string)
		switch {
		case v == nil:
		case slices.Contains(types, "boolean"):
			if _, err := document.Argument(name, v); err != nil {
				return err
			}
		case slices.Equal(types, []string{"array"}) && !list:
			return rest.BadRequest("Expected types list, null for %s: %s", name, rest.Shown(v))
		case (slices.Equal(types, Text.Types) || slices.Equal(types, document.OptionalText.Types)) && !text:
			return rest.BadRequest("Expected string for %s: %s", name, rest.Shown(v))
		}
	}
	return nil
}

// Call is one request on its way through a handler.
type Call struct {
	Request *http.Request
	Version rest.Version
	Path    map[string]string // values of the route's {names}
	Query   url.Values
	Args    Args        // of the route: what Query may hold
	Body    any         // decoded JSON; nil if there was none
	Mixed   bool        // members of the body may be in the query, too
	Base    string      // scheme and host for links
	Parts   *limit.Body // the body of a route that reads it itself
	Actor   *access.Actor
	User    string // the actor's name, for histories
	// ResendAll asks those with a role in the system, too, for credentials whose destination they change.
	ResendAll bool
	Began     time.Time // of the request

	known   *node.Node // see Remember
	knownAs string
}

// Remember keeps the node of the address, which had to be looked up to let the request through, for the handler's first
// look.
func (c *Call) Remember(n *node.Node, ident string) { c.known, c.knownAs = n, ident }

// Known returns the node that is remembered under ident, once: a second look wants to see changes.
func (c *Call) Known(ident string) *node.Node {
	if c.knownAs != ident {
		return nil
	}
	n := c.known
	c.known = nil
	return n
}

// Allow refuses query arguments that the route does not know: silently ignoring a filter would return wrong answers. It
// refuses names where an argument is called ..._uuid.
func (c *Call) Allow(names ...string) *rest.Error {
	if err := unexpected(c.Query, names); err != nil {
		return err
	}
	for _, name := range names {
		if id := c.Text(name); id != nil && strings.HasSuffix(name, "_uuid") && !document.IsUUID(*id) {
			return rest.BadRequest("Expected UUID for %s: %s", name, *id)
		}
	}
	return nil
}

// CheckQuery refuses invalid arguments in a route's query.
func (c *Call) CheckQuery(rt *Route) *rest.Error {
	switch rt.Query {
	case NoQuery:
		return c.Allow()
	case Named:
		return c.CheckArgs()
	}
	return nil
}

// CheckArgs refuses unknown arguments of the route, and values that are invalid independent of stored data and of the
// version: as in Ironic that comes before checking whether the object exists, and before checks of the version.
func (c *Call) CheckArgs() *rest.Error {
	if len(c.Query) == 0 {
		return nil
	}
	if err := c.Allow(c.Args.Names()...); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Query)) {
		var err *rest.Error
		switch kind, value := c.Args[name], c.Query.Get(name); {
		case name == "fields": // their case does not count, nor do blanks around them
			c.Query.Set(name, strings.ToLower(strings.Join(strings.FieldsFunc(value, unicode.IsSpace), "")))
		case kind != nil && kind.Format == "uuid" && !document.IsUUID(value):
			err = rest.BadRequest("Expected UUID for %s: %s", name, value)
		case (name == "node" || name == "portgroup") && !document.IsUUID(value) && !document.IsName(value):
			err = rest.BadRequest("Expected UUID or name for %s: %s", name, value)
		case slices.Contains(kind.Types, "integer"):
			_, err = c.whole(name)
		case slices.Contains(kind.Types, "boolean"):
			_, err = c.Flag(name)
		case name == "address":
			if _, ok := document.HardwareAddress(value); !ok {
				err = rest.BadRequest("Expected valid MAC address for %s: %s", name, value)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whole returns a query argument that is a whole number.
func (c *Call) whole(name string) (int, *rest.Error) {
	n, err := strconv.Atoi(c.Query.Get(name))
	if err != nil {
		return 0, rest.BadRequest("Expected an integer for %s: %s", name, c.Query.Get(name))
	}
	return n, nil
}

// mostShown is how many unexpected arguments an answer names.
const mostShown = 8

func unexpected[V any](sent map[string]V, known []string) *rest.Error {
	var odd []string
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		if !slices.Contains(known, name) && len(odd) < mostShown {
			odd = append(odd, strings.Trim(rest.Shown(name), "'"))
		}
	}
	if len(odd) == 0 {
		return nil
	}
	return rest.BadRequest("Unexpected arguments: %s", strings.Join(odd, ", "))
}

// Stem returns an identifier at the end of the address without ".json", which older versions take for a request of
// JSON; false: it has none.
func (c *Call) Stem(ident string) (string, bool) {
	stem, ok := strings.CutSuffix(ident, ".json")
	return stem, ok && stem != "" && c.Version < rest.VersionNoSuffix &&
		strings.HasSuffix(c.Request.URL.Path, "/"+ident)
}

// Text returns a query argument, or nil if it was not sent.
func (c *Call) Text(name string) *string {
	if !c.Query.Has(name) {
		return nil
	}
	return new(c.Query.Get(name))
}

// Filter is Text for a value that is compared with an attribute that may be unset. Stores find unset values by an empty
// text; clients don't: an empty value matches nothing.
func (c *Call) Filter(name string) *string {
	v := c.Text(name)
	if v != nil && *v == "" {
		*v = nothing
	}
	return v
}

// nothing is a text that no attribute has.
const nothing = "\x00"

// Split returns the members of a list with commas, without empty ones.
func Split(list string) []string {
	return slices.DeleteFunc(strings.Split(list, ","), func(v string) bool { return v == "" })
}

// Flag returns a query argument that is a boolean, or nil if it was not sent.
func (c *Call) Flag(name string) (*bool, *rest.Error) {
	if !c.Query.Has(name) {
		return nil, nil
	}
	b, err := document.Boolean(name, c.Query.Get(name))
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// Object returns the body as a JSON object; no body is an empty one.
func (c *Call) Object(what string) (map[string]any, *rest.Error) {
	switch b := c.Body.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return b, nil
	}
	return nil, rest.BadRequest("Schema error for %s: %s is not of type 'object'", what, rest.Shown(c.Body))
}

// Checked returns the body as an object in which a schema finds no fault.
func (c *Call) Checked(what string, schema *rest.Schema) (map[string]any, *rest.Error) {
	d, err := c.Object(what)
	if err != nil {
		return nil, err
	}
	if fault := schema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for %s: %s", what, fault)
	}
	return d, nil
}

// Created returns the body of a request that makes a resource: checked, not too large, and without attributes that the
// version does not have. Null as an attribute of nodes and port groups is as none; of a conductor group the empty
// string is, and null is not.
func (c *Call) Created(what string, schema *rest.Schema, fields sorting) (map[string]any, *rest.Error) {
	d, err := c.Checked(what, schema)
	if err != nil {
		return nil, err
	}
	if err := rest.Oversized(d, nil, 0); err != nil {
		return nil, err
	}
	for name, v := range d {
		none := v == nil && (what == "node" || what == "portgroup")
		if what == "node" && name == "conductor_group" {
			none = v == ""
		}
		if since, _ := fields.Since(name); since > c.Version && !none {
			return nil, rest.NotAcceptable()
		}
	}
	return d, nil
}

// Arguments returns the body of an action: an object with no other members than those named. On a Mixed route they may
// be in the query instead, and a body that is no object is as none.
func (c *Call) Arguments(names ...string) (map[string]any, *rest.Error) {
	b := map[string]any{}
	if c.Mixed {
		sent, _ := c.Body.(map[string]any)
		maps.Copy(b, sent)
		for name := range c.Query {
			if _, twice := b[name]; twice && slices.Contains(names, name) {
				return nil, rest.BadRequest("Expected string for %s: [...]", name)
			}
			b[name] = c.Query.Get(name)
		}
	} else {
		var err *rest.Error
		if b, err = c.Object("body"); err != nil {
			return nil, err
		}
	}
	if err := unexpected(b, names); err != nil {
		return nil, err
	}
	return b, nil
}
