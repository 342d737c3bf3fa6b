package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
)

// Error is an answer other than success. Clients get its Message in one of two shapes: a fault, for requests that
// reached their handler, or, when IsRouting is set, the shape of routing and version checks.
type Error struct {
	Status    int
	Message   string
	IsRouting bool
	Again     bool // nothing was done, and the same request may succeed shortly; clients know it by the words
	// RetryAfter is when the same request may succeed, for clients; zero says nothing.
	RetryAfter time.Duration
	// Moved says, to the conductor that forwarded the request, that nothing was done since the node has another owner.
	Moved bool
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s", e.Status, e.Message) }

// Fault makes an error of a request that was understood.
func Fault(status int, format string, args ...any) *Error {
	return &Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// BadRequest is Fault 400.
func BadRequest(format string, args ...any) *Error {
	return Fault(http.StatusBadRequest, format, args...)
}

// NotFound is Fault 404.
func NotFound(format string, args ...any) *Error {
	return Fault(http.StatusNotFound, format, args...)
}

// Conflict is Fault 409.
func Conflict(format string, args ...any) *Error {
	return Fault(http.StatusConflict, format, args...)
}

// NotAcceptable answers a field, filter or verb that is newer than the requested version.
func NotAcceptable() *Error { return Fault(http.StatusNotAcceptable, "Request not acceptable.") }

// Routing makes an error of the routing shape.
func Routing(status int, description string) *Error {
	return &Error{Status: status, Message: description, IsRouting: true}
}

// fault and routing are the inner texts; outer is the body.
type fault struct {
	FaultCode   string  `json:"faultcode"`
	FaultString string  `json:"faultstring"`
	DebugInfo   *string `json:"debuginfo"`
}

type routing struct {
	Code        int    `json:"code"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

type outer struct {
	ErrorMessage json.RawMessage `json:"error_message"`
}

// Body returns the JSON to send: an object whose only member is a string that holds JSON itself. Recognisable secrets
// are removed, whatever the message was made from.
func (e *Error) Body() []byte {
	var inner any
	message := redact.Text(e.Message)
	if e.IsRouting {
		inner = routing{e.Status, http.StatusText(e.Status), message}
	} else {
		f := fault{FaultCode: "Client", FaultString: message}
		if e.Status >= 500 {
			f.FaultCode = "Server"
		}
		inner = f
	}
	return encode(struct {
		ErrorMessage string `json:"error_message"`
	}{string(encode(inner))})
}

// encode marshals what cannot fail, without escaping <, > and &: the texts are for people.
func encode(v any) []byte {
	b, err := marshal(v)
	if err != nil {
		panic("rest: " + err.Error()) // only structs of strings get here
	}
	return b
}

// DecodeError reads the body of an answer with an error status, in any of the shapes that servers of this API send: a
// fault or a routing error, encoded twice or once, {"error":{"message":...}} of basic authentication, or no JSON at
// all.
func DecodeError(status int, body []byte) *Error {
	e := decodeError(status, body)
	e.Again = status == http.StatusServiceUnavailable || status == http.StatusConflict &&
		slices.ContainsFunc(underWay, func(words string) bool { return strings.Contains(e.Message, words) })
	return e
}

// underWay are in the errors of requests that come while something is done with their node, here and in Ironic. Other
// conflicts, such as a name that is taken, last.
var underWay = []string{"is locked by host", "state transition is in progress"}

func decodeError(status int, body []byte) *Error {
	e := &Error{Status: status, Message: http.StatusText(status)}
	var basic struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &basic) == nil && basic.Error.Message != "" {
		e.Message = basic.Error.Message
		return e
	}
	var o outer
	if json.Unmarshal(body, &o) != nil || len(o.ErrorMessage) == 0 {
		if len(body) > 0 && len(body) < 500 {
			e.Message = string(body)
		}
		return e
	}
	inner := []byte(o.ErrorMessage)
	var text string
	if json.Unmarshal(inner, &text) == nil {
		inner = []byte(text)
	}
	var both struct {
		FaultString string `json:"faultstring"`
		routing
	}
	switch {
	case json.Unmarshal(inner, &both) != nil:
		if text != "" {
			e.Message = text
		}
	case both.FaultString != "":
		e.Message = both.FaultString
	default:
		e.IsRouting = true
		if both.Description != "" {
			e.Message = both.Description
		}
	}
	return e
}
