package own

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Damaged is the answer to callers while the database is damaged, or lost to this ingotd. The log says what has
// happened.
const Damaged = "The server's database is damaged or taken by another server: nothing is changed and no machine is acted on before its administrator has seen to it."

// getHealth answers those who watch over the conductor, and says no more than they need.
func (s *Handlers) getHealth(context.Context, *call.Call) (*call.Reply, error) {
	if s.store.Fault() != nil {
		return nil, rest.Fault(http.StatusServiceUnavailable, "%s", Damaged)
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
