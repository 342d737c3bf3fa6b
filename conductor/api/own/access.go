package own

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// getAccess shows who the caller is and what the rules let the caller do, so that a page offers nothing that would be
// refused. It grants nothing: each request is checked by itself.
func (s *Handlers) getAccess(_ context.Context, c *call.Call) (*call.Reply, error) {
	out := rest.Access{User: rest.Null(c.User), ProjectID: rest.Null(c.Actor.ProjectID),
		Everywhere: rulesFor(c.Actor, access.Object{}), Owned: []string{}, Leased: []string{},
		Verbs: map[string][]string{}}
	if p := c.Actor.ProjectID; p != "" {
		out.Owned = rulesFor(c.Actor, access.Object{Owner: p})
		out.Leased = rulesFor(c.Actor, access.Object{Lessee: p})
	}
	for state, verbs := range node.Offered() {
		for _, v := range verbs {
			out.Verbs[string(state)] = append(out.Verbs[string(state)], string(v))
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// getSettings lists the settings that this conductor works with.
func (s *Handlers) getSettings(context.Context, *call.Call) (*call.Reply, error) {
	out := rest.Settings{Settings: []rest.Setting{}}
	if s.cfg.Settings != nil {
		out.Settings = s.cfg.Settings()
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

func rulesFor(a *access.Actor, o access.Object) []string {
	list := []string{}
	for _, r := range access.Rules() {
		if a.May(r, o) {
			list = append(list, string(r))
		}
	}
	return list
}

// getImages lists the images that this conductor serves to machines.
func (s *Handlers) getImages(context.Context, *call.Call) (*call.Reply, error) {
	out := rest.ImageFiles{Images: []rest.ImageFile{}}
	if s.cfg.ImageFiles != nil {
		var err error
		if out, err = s.cfg.ImageFiles(); err != nil {
			return nil, err
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}
