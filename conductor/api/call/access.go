package call

import (
	"net/http"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// MayFor asks whether a rule lets the actor act on an object; the answer to one who may not is 403.
func (c *Call) MayFor(r access.Rule, o access.Object) error {
	if c.Actor.May(r, o) {
		return nil
	}
	return rest.Fault(http.StatusForbidden, "Access was denied to the following resource: baremetal:%s (%s).", r, access.Needs(r))
}

// May asks whether a rule lets the actor act on a node, which it is known to see.
func (c *Call) May(r access.Rule, n *node.Node) error { return c.MayFor(r, access.Of(n)) }

// Scope is the project to which lists are limited; nil: they hold everything. Stores filter by it where they can.
func (c *Call) Scope() *string {
	project, all := c.Actor.Scope()
	if all {
		return nil
	}
	if project == "" {
		project = "\x00" // nobody's: an empty filter would find what belongs to nobody
	}
	return &project
}

// RedactedError stands for the last error of a node, in Ironic's words.
const RedactedError = "** Value Redacted - Requires baremetal:node:get:last_error permission. **"
