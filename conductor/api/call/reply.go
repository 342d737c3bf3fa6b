package call

import (
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// NoContent is the answer that has nothing to tell.
func NoContent() *Reply { return &Reply{Status: http.StatusNoContent} }

// Reply is the answer of a handler. A nil body sends none.
type Reply struct {
	Status   int
	Body     any
	Location string
	ETag     string // of the one resource that the body shows; empty: it has none
	// Stream sends the body, instead of Body, and returns when it is sent or the client is gone.
	Stream func(w http.ResponseWriter)
	// Challenge says to an unauthenticated client how to authenticate.
	Challenge string
}

// LesserError is an error that has an answer all the same, which lacks something: where the conductor that could give
// the whole can't be asked, it is sent.
type LesserError struct {
	Err   error
	Reply *Reply
}

func (e *LesserError) Error() string { return e.Err.Error() }

func (e *LesserError) Unwrap() error { return e.Err }

// UpdatedAt returns t, or null when the object was not changed after its creation: both times of a new object are the
// same.
func UpdatedAt(t, created time.Time) rest.NullTime {
	if t.Equal(created) {
		return rest.NullTime{}
	}
	return rest.NullTime{Time: t}
}

// Stamp writes a time with microseconds, as in events and in keys to sort by.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }

// Accepted is the answer to a request whose result is shown at a path below the node.
func Accepted(c *Call, path string) *Reply {
	return &Reply{Status: http.StatusAccepted, Location: c.Base + "/v1/nodes/" + c.Path["node"] + "/" + path}
}

// List makes the answer of a collection.
func List(name string, items []rest.Object, next string) *Reply {
	if items == nil {
		items = []rest.Object{}
	}
	return ListOf(name, items, next)
}

// ListOf is List for whatever encodes as a list.
func ListOf(name string, items any, next string) *Reply {
	o := rest.Object{{Name: name, Value: items}}
	if next != "" {
		o = append(o, rest.Member{Name: "next", Value: next})
	}
	return &Reply{Status: http.StatusOK, Body: o}
}
