// Package call is one request on its way through a handler: what was asked, in which version and by whom, and what is answered.
//
// A Route is one line of the table of routes and has the handler. The methods of Call read the query and the body the way clients of
// this API send them; their errors are *rest.Error, ready to be sent. May, MayFor and Scope ask what whoever calls is allowed.
package call

import (
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/limit"
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

// Call is one request on its way through a handler.
type Call struct {
	Request *http.Request
	Version rest.Version
	Path    map[string]string // values of the route's {names}
	Query   url.Values
	Body    any         // decoded JSON; nil if there was none
	Base    string      // scheme and host for links
	Parts   *limit.Body // the body of a route that reads it itself
	Actor   *access.Actor
	User    string // the actor's name, for histories
	// ResendAll asks those with a role in the system, too, for credentials whose destination they change.
	ResendAll bool

	known   *node.Node // see Remember
	knownAs string
}

// Remember keeps the node of the address, which had to be looked up to let the request through, for the handler's first look.
func (c *Call) Remember(n *node.Node, ident string) { c.known, c.knownAs = n, ident }

// Known gives the node that is remembered under ident, once: whoever looks again wants to see what has changed.
func (c *Call) Known(ident string) *node.Node {
	if c.knownAs != ident {
		return nil
	}
	n := c.known
	c.known = nil
	return n
}

// Allow refuses query arguments that the route does not know: a filter that is silently ignored gives wrong answers.
func (c *Call) Allow(names ...string) *rest.Error {
	for _, name := range slices.Sorted(maps.Keys(c.Query)) {
		if !slices.Contains(names, name) {
			return rest.BadRequest("Unexpected arguments: %s", name)
		}
	}
	return nil
}

// Text returns a query argument, or nil if it was not sent.
func (c *Call) Text(name string) *string {
	if !c.Query.Has(name) {
		return nil
	}
	v := c.Query.Get(name)
	return &v
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

// Arguments returns the body of an action: an object with no other members than those named.
func (c *Call) Arguments(names ...string) (map[string]any, *rest.Error) {
	b, err := c.Object("body")
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
