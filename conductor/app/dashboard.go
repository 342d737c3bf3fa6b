package app

import (
	"log/slog"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/api"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/web"
)

// dashboard puts the dashboard in front of the API, unless it is off.
func dashboard(cfg config.Config, handler *api.Server, who authenticator, ca *agents.CA, clients *limit.Clients,
	bodies *limit.Budget, log *slog.Logger) (http.Handler, error) {
	if !cfg.Web.Enabled {
		return handler, nil
	}
	key, err := ca.DashboardKey()
	if err != nil {
		return nil, err
	}
	c := web.Config{Auth: cfg.API.Auth, Authenticate: who.who, Key: key, PublicURL: cfg.API.PublicURL,
		Known: handler.Known, Clients: clients, Bodies: bodies, Hostname: cfg.Name()}
	if who.keystone != nil {
		c.Identity = who.keystone
	}
	w, err := web.New(handler, c, log)
	if err != nil {
		return nil, err
	}
	return w.Handler(), nil
}
