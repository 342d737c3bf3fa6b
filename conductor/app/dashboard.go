package app

import (
	"log/slog"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/api"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/web"
)

// dashboard puts the dashboard in front of the API, unless it is off.
func dashboard(cfg config.Config, handler *api.Server, st *store.Store, who authenticator, ca *agents.CA,
	clients *limit.Clients, bodies *limit.Budget, log *slog.Logger) (http.Handler, error) {
	if !cfg.Web.Enabled {
		return handler, nil
	}
	key, err := ca.DashboardKey()
	if err != nil {
		return nil, err
	}
	c := web.Config{Auth: cfg.API.Auth, Authenticate: who.who, Key: key, PublicURL: cfg.API.PublicURL,
		Ended: st, Known: handler.Known, Clients: clients, Bodies: bodies, Hostname: cfg.Name()}
	if who.keystone != nil {
		c.Identity = who.keystone
	}
	w, err := web.New(handler, c, log)
	if err != nil {
		return nil, err
	}
	return w.Handler(), nil
}

// settings shows the configuration in use.
func settings(cfg config.Config) func() []rest.Setting {
	return func() (out []rest.Setting) {
		for _, s := range cfg.Effective() {
			out = append(out, rest.Setting(s))
		}
		return out
	}
}
