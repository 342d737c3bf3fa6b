package api

import (
	"context"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// keeper is what the API asks of the engine beyond Ironic.
type keeper interface {
	planner
	Quarantine(ctx context.Context, ident, reason, user string) (*node.Node, error)
	Unquarantine(ctx context.Context, ident, user string) (*node.Node, error)
	BreakLock(ctx context.Context, ident, user string) (engine.Lock, error)
}

// ownRoutes are the routes of what Ironic has no word for, under /ingot/v1: quarantine, breaking a lock.
func (s *Server) ownRoutes() []route {
	const quarantine, lock = "/ingot/v1/nodes/{node}/quarantine", "/ingot/v1/nodes/{node}/lock"
	return append([]route{
		{Method: http.MethodGet, Path: quarantine, Access: Read, handle: s.getQuarantine},
		{Method: http.MethodPost, Path: quarantine, Access: Write, handle: s.postQuarantine},
		{Method: http.MethodDelete, Path: quarantine, Access: Write, handle: s.deleteQuarantine},
		{Method: http.MethodGet, Path: lock, Access: Read, handle: s.getLock},
		{Method: http.MethodDelete, Path: lock, Access: Admin, handle: s.breakLock},
	}, s.stepRoutes()...)
}

func showQuarantine(n *node.Node) rest.Quarantine {
	out := rest.Quarantine{NodeUUID: n.UUID}
	if q := n.Quarantine; q != nil {
		out.Quarantined, out.Reason, out.Since, out.By = true, rest.Null(q.Reason), rest.NullTime{Time: q.At}, rest.Null(q.By)
	}
	return out
}

func (s *Server) getQuarantine(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusOK, body: showQuarantine(n)}, nil
}

func (s *Server) postQuarantine(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, aerr := c.arguments("reason")
	if aerr != nil {
		return nil, aerr
	}
	reason, ok := b["reason"].(string)
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: reason")
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if n, err = s.engine.Quarantine(ctx, n.UUID, reason, c.user); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusOK, body: showQuarantine(n)}, nil
}

func (s *Server) deleteQuarantine(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := s.engine.Unquarantine(ctx, n.UUID, c.user); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusNoContent}, nil
}

func showLock(n *node.Node, l engine.Lock) rest.Lock {
	out := rest.Lock{NodeUUID: n.UUID, Locked: l.Holder != "", Holder: rest.Null(l.Holder), Purpose: rest.Null(l.Purpose), Since: rest.NullTime{Time: l.Since}}
	if out.Locked && !l.Since.IsZero() {
		out.AgeSeconds = max(0, time.Since(l.Since).Seconds())
	}
	return out
}

func (s *Server) getLock(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusOK, body: showLock(n, engine.LockOf(n))}, nil
}

// breakLock answers with the lock that was broken.
func (s *Server) breakLock(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	l, err := s.engine.BreakLock(ctx, n.UUID, c.user)
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusOK, body: showLock(n, l)}, nil
}
