package call

import (
	"net/http"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// MayFor checks whether a rule lets the actor act on an object; otherwise it returns 403.
func (c *Call) MayFor(r access.Rule, o access.Object) error {
	if c.Actor.May(r, o) {
		return nil
	}
	return rest.Fault(http.StatusForbidden, "Access was denied to the following resource: baremetal:%s (%s).", r,
		access.Needs(r))
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
		project = nothing // an empty filter would find resources without an owner
	}
	return &project
}

// Resent refuses a PATCH that changes where stored credentials are sent without giving these: a user who may change the
// address, but not read the password, would have the conductor send it to a host of their own. It applies to callers
// without a role in the system, or to all. at is the path of the object that was and now are before and after; grouped
// as in rest.Moved.
func (c *Call) Resent(at []string, was, now map[string]any, grouped bool) *rest.Error {
	if !c.ResendAll && (c.Actor.All || c.Actor.System || c.Actor.Trusted) {
		return nil
	}
	moved, kept := rest.Moved(c.Body, at, was, now, grouped)
	if len(kept) == 0 {
		return nil
	}
	return rest.BadRequest(
		"A change of %s changes where stored credentials are sent, or how they are guarded on the way: give %s in the same request.",
		strings.Join(moved, ", "), strings.Join(kept, ", "))
}

// View says how much of a node's past is shown, in every answer about it: last_error, steps, time line, progress, log,
// events. A lessee sees no errors, which describe the site's insides, and nothing of the time before the lease.
type View struct {
	Insides bool // errors, results of steps, and where machines and people are
	since   time.Time
	until   time.Time // zero: without end
}

// ahead is how far in the future an event may be. One further ahead is from before the clock was set back: perhaps from
// before the lease, although its time is after that of the lease.
const ahead = 5 * time.Minute

func leased(at, now time.Time) View { return View{since: at, until: now.Add(ahead)} }

// View is how much of a node's past the actor sees.
func (c *Call) View(n *node.Node) View {
	if c.SeesInsides(access.Of(n)) {
		return View{Insides: true}
	}
	return leased(n.LeasedAt, time.Now())
}

// SeesInsides reports whether the actor sees more than lessees do.
func (c *Call) SeesInsides(o access.Object) bool { return c.Actor.May(access.NodeGetLastError, o) }

// Sees reports whether events at a time are shown.
func (v View) Sees(at time.Time) bool {
	return !at.Before(v.since) && (v.until.IsZero() || !at.After(v.until))
}

// Error is an error as it is shown.
func (v View) Error(text string) string {
	if text != "" && !v.Insides {
		return RedactedError
	}
	return text
}

// Inside is a text that is shown to those only who see a node's insides.
func (v View) Inside(text string) string {
	if !v.Insides {
		return ""
	}
	return text
}

// RedactedError stands for the last error of a node, in Ironic's words.
const RedactedError = "** Value Redacted - Requires baremetal:node:get:last_error permission. **"
