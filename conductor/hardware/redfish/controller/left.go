package controller

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/hardware/redfish/sessions"
)

func (c *Controller) own() sessions.Session {
	return sessions.Session{Host: c.access.Base.Host, User: c.access.User, Path: c.session}
}

// forget drops the session: it has ended.
func (c *Controller) forget() {
	c.pool.records.Forget(c.own())
	c.token, c.session = "", ""
}

// endLeft deletes the sessions that a program which was killed has left here, with the credentials in header. A
// controller that restarted since may have given the same path to another session: the account has to be ours.
func (c *Controller) endLeft(ctx context.Context, header http.Header) {
	of := c.own()
	of.Path = ""
	for _, m := range c.pool.records.Take(of) {
		if m.Path == c.session {
			continue
		}
		header := header.Clone()
		header.Del("Content-Type")
		header.Del("If-Match")
		var session struct{ UserName string }
		a, err := c.send(ctx, http.MethodGet, m.Path, header, nil)
		if err == nil && a.status == http.StatusOK && json.Unmarshal(a.body, &session) == nil &&
			session.UserName == c.access.User {
			_, err = c.send(ctx, http.MethodDelete, m.Path, header, nil)
		}
		if err != nil {
			c.log.Debug("delete a session that is left", "err", err)
			continue
		}
		c.pool.records.Forget(m)
	}
}
