package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/nodes"
	"github.com/ingot-metal/ingot/conductor/api/own"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// elsewhereAgain is when a request that another conductor has to answer, or this one a little later, may be sent again.
const elsewhereAgain = 5 * time.Second

// translate is the one border between errors of the conductor and HTTP. What it does not know is a fault of the server:
// details go to the log, the client gets the id to find them by.
func (s *Server) translate(err error, c *call.Call, id string) *rest.Error {
	var (
		answer     *rest.Error
		transition *node.TransitionError
		protected  *node.ProtectedError
		locked     *engine.LockedError
		elsewhere  *engine.ElsewhereError
		lapsed     *engine.LapsedError
		unasked    *peer.Error
		service    *engine.ServiceError
		invalid    *engine.InvalidError
		duplicate  *store.DuplicateError
		reference  *store.ReferenceError
		conflict   *store.ConflictError
		promised   *store.PromisedError
		parent     *store.ParentError
		cannot     *hardware.UnsupportedError
		improper   *hardware.InvalidError
		children   *store.ChildrenError
		sort       *store.SortError
		ctl        *power.Error
		changed    *node.ChangedError
	)
	switch {
	case errors.As(err, &answer):
		return answer
	case errors.As(err, &changed):
		return rest.Fault(http.StatusPreconditionFailed, "%s", changed.Error())
	case errors.Is(err, store.ErrNotFound):
		if ident := c.Path["port"]; ident != "" {
			return rest.NotFound("Port %s could not be found.", ident)
		}
		return rest.NotFound("Node %s could not be found.", c.Path["node"])
	case errors.As(err, &transition):
		return rest.BadRequest("The requested action %q can not be performed on node %q while it is in state %q.",
			string(transition.Verb), cmp.Or(transition.UUID, c.Path["node"]), string(transition.State))
	case errors.As(err, &protected):
		return rest.Fault(http.StatusForbidden, "%s", protected.Error())
	case errors.As(err, &locked):
		e := rest.Conflict("%s", locked.Error())
		e.Again = true
		return e
	case errors.As(err, &elsewhere):
		e := rest.Fault(http.StatusServiceUnavailable,
			"Node %s belongs to conductor %s, and only that one can ask the machine: nothing was done. Try again, or send the request to it.",
			elsewhere.Node, elsewhere.Conductor)
		e.RetryAfter = elsewhereAgain
		return e
	case errors.As(err, &unasked):
		return s.notForwarded(unasked, c, id)
	case errors.As(err, &service):
		s.log.Warn("a service that a request needs can't be asked", "request", id, "err", err)
		e := rest.Fault(http.StatusServiceUnavailable, "A service of OpenStack's that this needs can't be asked now; nothing was done. Try again.")
		e.RetryAfter = elsewhereAgain
		return e
	case errors.As(err, &lapsed):
		e := rest.Fault(http.StatusServiceUnavailable,
			"This conductor may not act at present, because it could not prove in time that it lives; nothing was done. Try again.")
		e.RetryAfter = elsewhereAgain
		return e
	case errors.As(err, &invalid):
		return rest.BadRequest("%s", invalid.Error())
	case errors.As(err, &duplicate):
		return duplicated(duplicate)
	case errors.As(err, &reference) && reference.Clash:
		return rest.Conflict("%s", reference.Error())
	case errors.As(err, &reference):
		return rest.BadRequest("%s", reference.Error())
	case errors.As(err, &cannot):
		return rest.BadRequest("%s", cannot.Error())
	case errors.As(err, &improper):
		return rest.BadRequest("%s", improper.Error())
	case errors.As(err, &parent):
		return nodes.BadParent(parent.Parent)
	case errors.As(err, &children):
		return rest.Conflict("%s", children.Error())
	case errors.As(err, &conflict):
		return rest.Conflict("%s", conflict.Error())
	case errors.As(err, &promised):
		return reserved(promised.Promise, c)
	case errors.As(err, &sort):
		return call.BadSort(sort.Key, true)
	case errors.As(err, &ctl):
		return fromController(ctl)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return rest.Fault(http.StatusServiceUnavailable, "The request took too long or was given up; try again.")
	}
	if errors.Is(err, store.ErrText) {
		return rest.BadRequest("%s", "A text holds the character U+0000, which the server's database can't keep: leave it out.")
	}
	away, since := errors.Is(err, store.ErrAway), s.store.AwaySince()
	if !since.IsZero() && since.Before(c.Began) { // what was cut was no write
		away = true
	}
	if cut := !away && errors.Is(err, store.ErrCut); cut || away || s.store.Away() != nil {
		what := "The server can't reach its database, and nothing was changed. Try again."
		if cut && c.Request.Method != http.MethodGet && c.Request.Method != http.MethodHead {
			what = "The server lost the connection to its database before it could answer: read what became of the request, and try again."
		}
		e := rest.Fault(http.StatusServiceUnavailable, "%s", what)
		e.RetryAfter = 5 * time.Second
		return e
	}
	if errors.Is(err, store.ErrBusy) {
		s.log.Warn("a request was not carried out because of another client of the database", "method", c.Request.Method, "path",
			c.Request.URL.Path, "request", id, "err", err)
		e := rest.Fault(http.StatusServiceUnavailable, "The server's database did not do what it was asked now, and nothing was changed. Try again.")
		e.RetryAfter = 5 * time.Second
		return e
	}
	if s.store.Fault() != nil {
		s.log.Debug("a request failed on a database that is lost or damaged", "method", c.Request.Method, "path", c.Request.URL.Path,
			"request", id, "err", err)
		return own.Faulty(s.store.Fault())
	}
	if errors.Is(err, store.ErrFull) {
		e := rest.Fault(http.StatusServiceUnavailable,
			"The disk of the server's database is full, and nothing was changed. Ask its administrator to make room, and try again.")
		e.RetryAfter = time.Minute
		return e
	}
	if gone(c.Request) {
		s.log.Debug("the client gave up its request", "method", c.Request.Method, "path", c.Request.URL.Path,
			"request", id, "err", err)
		return rest.Fault(http.StatusServiceUnavailable, "The request was given up.")
	}
	s.log.Error("a request failed", "method", c.Request.Method, "path", c.Request.URL.Path, "request", id, "err", err)
	return rest.Fault(http.StatusInternalServerError, "The server has a fault; its log has details under request %s.",
		id)
}

// gone reports whether the client has stopped waiting for the answer. Errors after that follow from it, and databases
// report it in their own words.
func gone(r *http.Request) bool { return r.Context().Err() != nil }

// reserved refuses to begin something on a node in the time of a reservation. Its UUID is not for everyone.
func reserved(p node.Promise, c *call.Call) *rest.Error {
	until := p.Until.Format(time.RFC3339)
	if !c.Actor.MaySee(&node.Node{}) {
		return rest.Conflict(
			"Node %s is reserved until %s. Use another, or ask an administrator of the system to release it.", p.NodeUUID, until)
	}
	return rest.Conflict("Node %s is promised to reservation %s until %s, and only that gives it to someone. To have it "+
		"earlier, delete that reservation; or set maintenance of the node, and the reservation gets another, if one is free.",
		p.NodeUUID, p.ReservationUUID, until)
}

// duplicated words a unique value that is taken the way clients expect.
func duplicated(e *store.DuplicateError) *rest.Error {
	if e.Kind != "" {
		return rest.Conflict("%s already exists.", takenBy(e))
	}
	switch e.Field {
	case "name":
		return rest.Conflict("A node with name %s already exists.", e.Value)
	case "uuid":
		return rest.Conflict("A node with UUID %s already exists.", e.Value)
	case "address", "port address":
		return rest.Conflict("A port with MAC address %s already exists.", e.Value)
	case "port name":
		return rest.Conflict("A port with name %s already exists.", e.Value)
	case "port uuid":
		return rest.Conflict("A port with UUID %s already exists.", e.Value)
	case "instance_uuid":
		return rest.Conflict("Instance %s is already associated with node %s; an instance runs on one node only.",
			e.Value, e.NodeUUID)
	}
	return rest.Conflict("%s", e.Error())
}

// fromController translates an error of a BMC. A controller that does not answer is not the client's fault, and the
// same request may succeed later: 503, which clients repeat.
func fromController(e *power.Error) *rest.Error {
	switch e.Kind {
	case power.Config, power.Auth, power.Unsupported, power.Refused:
		return rest.BadRequest("%s", e.Error())
	}
	return rest.Fault(http.StatusServiceUnavailable, "%s", e.Error())
}

// takenBy names the resource that has the unique value.
func takenBy(e *store.DuplicateError) string {
	article, field, value := "A", e.Field, " "+e.Value
	if strings.ContainsRune("aeiou", rune(e.Kind[0])) {
		article = "An"
	}
	switch field {
	case "uuid":
		field = "UUID"
	case "address":
		field = "MAC address"
	case "type and connector ID":
		of, id, _ := strings.Cut(e.Value, " ")
		field, value = "type "+of, " and connector ID "+id
	case "boot index":
		_, index, _ := strings.Cut(e.Value, " ")
		value = " '" + index + "' for the same node"
	}
	return article + " " + e.Kind + " with " + field + value
}
