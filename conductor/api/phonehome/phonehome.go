// Package phonehome answers deployed systems that call the one-time address in their config drive, to show that they
// have started. It is public: the token in the address is the proof, valid for one deployment and once.
package phonehome

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// machines receives the calls.
type machines interface {
	PhoneHome(ctx context.Context, token, from string) error
}

// Handlers answer the requests.
type Handlers struct{ engine machines }

// New makes Handlers.
func New(en machines) *Handlers { return &Handlers{en} }

// maxForm is the limit of the form that cloud-init posts, of which nothing is read.
const maxForm = 64 << 10

// Routes are the one address, by GET for whatever has no more than a downloader and by POST for cloud-init.
func (s *Handlers) Routes() []call.Route {
	const path = "/ingot/v1/phone_home/{token}"
	return []call.Route{
		{Method: http.MethodGet, Path: path, Access: call.Public, Answers: call.None(http.StatusNoContent),
			Handle: s.called},
		{Method: http.MethodPost, Path: path, Access: call.Public, Body: maxForm, Form: true,
			Answers: call.None(http.StatusNoContent), Handle: s.called},
	}
}

func (s *Handlers) called(ctx context.Context, c *call.Call) (*call.Reply, error) {
	from, _, err := net.SplitHostPort(c.Request.RemoteAddr)
	if err != nil {
		from = ""
	}
	err = s.engine.PhoneHome(ctx, c.Path["token"], from)
	if errors.Is(err, node.ErrNotFound) {
		// The answer does not say whether the token was used or never existed.
		return nil, rest.NotFound("Resource could not be found.")
	}
	return call.NoContent(), err
}
