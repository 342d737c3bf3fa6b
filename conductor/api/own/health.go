package own

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Faulty is the answer to callers while the database is damaged, or lost to this ingotd. The log says what has
// happened. One that is lost has become another conductor's.
func Faulty(fault error) *rest.Error {
	if errors.Is(fault, store.ErrLost) {
		e := rest.Fault(http.StatusServiceUnavailable,
			"This server has lost its database to another one, and changes nothing more: send the request to that one, or try again once this one was restarted.")
		e.RetryAfter = 5 * time.Second
		return e
	}
	return rest.Fault(http.StatusServiceUnavailable,
		"The server's database is damaged: nothing is changed and no machine is acted on before its administrator has seen to it.")
}

// getHealth answers those who watch over the conductor, and says no more than they need.
func (s *Handlers) getHealth(context.Context, *call.Call) (*call.Reply, error) {
	if fault := s.store.Fault(); fault != nil {
		return nil, Faulty(fault)
	}
	if s.cfg.Leaving != nil {
		if why := s.cfg.Leaving(); why != "" {
			return nil, rest.Fault(http.StatusServiceUnavailable, "%s", why)
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Health{Status: "ok"}}, nil
}

// getCertificates lists the conductor's own certificates with their ends.
func (s *Handlers) getCertificates(_ context.Context, c *call.Call) (*call.Reply, error) {
	list := []rest.Certificate{}
	if s.cfg.Certificates != nil {
		var err error
		if list, err = s.cfg.Certificates(); err != nil {
			return nil, err
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Certificates{Certificates: list}}, nil
}
