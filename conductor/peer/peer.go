// Package peer carries a request of a client from the conductor that it came to, to the one that owns the node.
//
// Only requests that have to ask a machine at once need it: all else goes through the database. The first conductor
// authenticates the client, and sends the request with the actor that it found, over TLS 1.3 on which both ends show a
// certificate of the CA that all conductors share. The owner decides by its own rules what that actor may do, as if the
// request had come to it. A request is sent once and goes one hop: a Client never repeats one that may have arrived,
// and a Server has no Client.
//
// Relays of swarms speak to each other on the same connections.
//
// A message is one POST with a Request as JSON, answered with 200 and an Answer as JSON. With another status the
// request was not looked at. Sizes are bytes; the bounds are in conductor/guard/limit.
package peer

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/access"
)

// path is where requests are sent to. Its number is that of the messages' form: an unknown member may be a restriction,
// so that the receiver refuses the whole message.
const path = "/forward/1"

// swarmPath is where the relays of swarms send their messages to, whose form is theirs.
const swarmPath = "/swarm/1"

// Request is a client's request. Its header has no credentials of the client.
type Request struct {
	ID     string        // of the request, at both conductors
	Actor  *access.Actor // who sent it, as its first conductor found out
	Base   string        // scheme and host that links in the answer begin with
	Method string
	URL    string // path and query, as they were sent
	Host   string
	Header http.Header
	Body   []byte
}

// Answer is the owner's answer to the client.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Origin is where a forwarded request came from.
type Origin struct {
	Conductor string // that the client talks to
	ID        string
	Actor     *access.Actor
	Base      string
}

// ErrNoAddress means that the other conductor has told no address for this, as an older program.
var ErrNoAddress = errors.New("it does not say where other conductors reach it")

// Error is a request that was not answered by another conductor.
type Error struct {
	Conductor string
	Err       error
	// MayHaveActed: the request was sent, and what became of it is not known. Otherwise nothing was done.
	MayHaveActed bool
}

func (e *Error) Error() string {
	if e.MayHaveActed {
		return fmt.Sprintf("conductor %s got the request, and its answer was lost: %v", e.Conductor, e.Err)
	}
	return fmt.Sprintf("conductor %s could not be asked: %v", e.Conductor, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// MovedHeader is set in an Answer that says that nothing was done since the node has another owner by now. It is not
// shown to clients.
const MovedHeader = "Ingot-Node-Moved"

// left are the headers that are not passed on: those of one connection, and the client's credentials, which are no
// other conductor's business.
var left = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Content-Length",
	"Authorization", "Cookie", "Set-Cookie", "X-Auth-Token", "X-Service-Token", "X-Subject-Token"}

// passed returns the headers that are passed on.
func passed(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if !slices.Contains(left, http.CanonicalHeaderKey(name)) {
			out[name] = values
		}
	}
	return out
}
