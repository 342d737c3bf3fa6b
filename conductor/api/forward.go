package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// A handler for what only the node's owner can do returns an *engine.ElsewhereError before it has done anything. The
// request is then sent to the owner, once and as it came. There it goes through all checks and the handler, with the
// actor and the ID that the first conductor gave it. If the node has moved on meanwhile, the owner says that it did
// nothing, and the first conductor looks for the owner again; it gives up with 503 when that takes long.

// forwarder has another conductor answer a request.
type forwarder interface {
	Forward(ctx context.Context, owner string, r *peer.Request) (*peer.Answer, error)
}

// Forwarded answers a request that came to another conductor, which knows who sent it. Only a peer.Server may call it.
func (s *Server) Forwarded(w http.ResponseWriter, r *http.Request, from peer.Origin) {
	s.logger(r)("a request was forwarded here", "conductor", from.Conductor, "user", from.Actor.String(), "method",
		r.Method, "path", r.URL.Path, "request", from.ID)
	s.answer(w, r, from.ID, &from)
}

// reads reports whether a request changes nothing.
func reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// logger logs about a request; those that change nothing, or are part of a session, may come every second.
func (s *Server) logger(r *http.Request) func(text string, args ...any) {
	path, _ := normalise(r.URL.EscapedPath())
	if rt, _, _ := s.routes.find(r.Method, path); reads(r) || rt != nil && rt.Session {
		return s.log.Debug
	}
	return s.log.Info
}

// atOwner has the owner of a node answer a request. While the node is handed over, that conductor and the next one may
// both not have it, for moments: then the owner is looked for again.
func (s *Server) atOwner(ctx context.Context, rt *call.Route, c *call.Call, id string, tags *rest.Tags,
	owner *engine.ElsewhereError, less *call.Reply, raw, sent []byte) (rep *call.Reply, answer *rest.Error) {
	asks, moved := !rt.Form && !rt.Parts, false // with a body that was read here
	for began, pause := time.Now(), firstPause; ; pause = min(2*pause, longestPause) {
		rep, moved, answer = s.elsewhere(ctx, c, owner, id, sent, asks, less)
		if !moved || time.Since(began)+pause > s.cfg.LockWait {
			return rep, answer
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return rep, answer
		}
		c.Body, _ = decode(raw) // again, because a handler may have changed its copy; decoding succeeded before
		if less, owner, answer = s.attempt(ctx, rt, c, id, tags); owner == nil {
			return less, answer
		}
	}
}

// elsewhere answers a request whose node another conductor owns. Unless asks, that is not asked. less is the answer
// without it, where there is one. moved reports that the node has another owner by now.
func (s *Server) elsewhere(ctx context.Context, c *call.Call, to *engine.ElsewhereError, id string, body []byte,
	asks bool, less *call.Reply) (rep *call.Reply, moved bool, answer *rest.Error) {
	answer = s.translate(to, c, id)
	if asks {
		if rep, moved, answer = s.forward(ctx, c, to, id, body); answer == nil && !moved {
			return rep, false, nil
		}
	}
	if less != nil {
		return less, moved, nil
	}
	return rep, moved, answer
}

// forward has the owner of a node answer a request; body is as it came. moved reports that it owns the node no more.
func (s *Server) forward(ctx context.Context, c *call.Call, to *engine.ElsewhereError, id string,
	body []byte) (rep *call.Reply, moved bool, answer *rest.Error) {
	r := c.Request
	if s.cfg.Forward == nil || to.Conductor == "" {
		return nil, false, s.translate(to, c, id)
	}
	s.logger(r)("a request is forwarded to the node's owner", "conductor", to.Conductor, "user",
		c.User, "method", r.Method, "path", r.URL.Path, "request", id)
	header := r.Header
	if s.cfg.Tracer != nil {
		header = r.Header.Clone()
		s.cfg.Tracer.Pass(ctx, header)
	}
	a, err := s.cfg.Forward.Forward(ctx, to.Conductor, &peer.Request{ID: id, Actor: c.Actor, Base: c.Base,
		Method: r.Method, URL: r.URL.RequestURI(), Host: r.Host, Header: header, Body: body})
	switch {
	case errors.Is(err, peer.ErrNoAddress):
		return nil, false, s.translate(to, c, id)
	case err != nil:
		return nil, false, s.translate(err, c, id)
	}
	moved = a.Header.Get(peer.MovedHeader) != ""
	a.Header.Del(peer.MovedHeader)
	return &call.Reply{Status: a.Status, Stream: func(w http.ResponseWriter) {
		for name, values := range a.Header {
			w.Header()[name] = values
		}
		if r.Method != http.MethodHead && a.Status != http.StatusNoContent && a.Status != http.StatusNotModified {
			w.Header().Set("Content-Length", strconv.Itoa(len(a.Body)))
		}
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body) // if this fails, the client is gone
	}}, moved, nil
}

// notForwarded translates an error of a forwarder. What may have been done is not said to be worth a repetition, since
// clients repeat a 503 by themselves.
func (s *Server) notForwarded(e *peer.Error, c *call.Call, id string) *rest.Error {
	r := c.Request
	s.logger(r)("a request could not be forwarded to the node's owner", "conductor",
		e.Conductor, "method", r.Method, "path", r.URL.Path, "request", id, "may_have_acted", e.MayHaveActed, "err",
		e.Err)
	if e.MayHaveActed && !reads(r) {
		return rest.Fault(http.StatusGatewayTimeout,
			"Conductor %s, which owns the node, got the request, but its answer was lost: it may have been carried out, or not. Look at the node before you send the request again.",
			e.Conductor)
	}
	f := rest.Fault(http.StatusServiceUnavailable,
		"Conductor %s, which owns the node, did not answer, and nothing was done. Try again: if it is gone, another one takes its nodes soon. The server's log has details under request %s.",
		e.Conductor, id)
	f.RetryAfter = elsewhereAgain
	return f
}

// admitOrigin accepts the actor that the first conductor sends, with one exception: a conductor whose clients have to
// authenticate answers none that did not. Users of http_basic may do everything, too, and have a name.
func (s *Server) admitOrigin(from *peer.Origin) *rest.Error {
	if from.Actor.All && from.Actor.UserName == "" && s.cfg.Authenticate != nil {
		return rest.Fault(http.StatusForbidden,
			"The node belongs to conductor %s, whose clients have to authenticate; conductor %s, which got the request, lets in everybody. Give both the same api.auth.",
			s.cfg.Hostname, from.Conductor)
	}
	return nil
}
