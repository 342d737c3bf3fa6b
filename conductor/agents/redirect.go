package agents

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/proto/agentv1"
)

// errElsewhere ends the session of an agent whose node another conductor owns.
var errElsewhere = status.Error(codes.Unavailable, "the node belongs to another conductor")

// redirectWait is how long a message that redirects an agent may take to leave.
const redirectWait = 5 * time.Second

// elsewhere returns the address of the conductor that owns a node; "" if it is this one.
func (s *Server) elsewhere(ctx context.Context, nodeUUID string) string {
	if s.cfg.Elsewhere == nil {
		return ""
	}
	n, err := s.store.Node(ctx, nodeUUID)
	if err != nil {
		return "" // the session says what is wrong
	}
	return s.cfg.Elsewhere(n)
}

// others are the conductors that an agent is to know beside this one.
func (s *Server) others() []string {
	if s.cfg.Others == nil {
		return nil
	}
	var out []string
	for _, o := range s.cfg.Others() {
		if len(out) < agentv1.MaxConductors && agentv1.CheckAddress(o) == nil {
			out = append(out, o)
		}
	}
	return out
}

// turnAway sends an agent that has just said hello to the owner of its node. One that does not follow is refused for
// now: the node may come back to this conductor.
func (s *Server) turnAway(ss *session, to string) error {
	m, err := redirect(to)
	switch {
	case err != nil:
		ss.log.Error("redirect an agent", "err", err)
	case ss.follows:
		ss.log.Info("agent redirected", "boot", ss.id.boot, "to", to)
		if err := ss.stream.Send(m); err != nil {
			return err
		}
	case s.turned.take(s.now()): // it asks again and again
		ss.log.Warn("an agent can't be redirected to the owner of its node, as its ramdisk is older than several conductors: build the ramdisk from the conductor's release, and boot the machine anew", "to", to)
	}
	return errElsewhere
}

// Redirect ends the session of a node's agent, if it has one here, and sends the agent to the conductor that owns the
// node from now on, as Config.Elsewhere must know already. When it returns nil, nothing of that session acts any more:
// a result that had come is stored, or the agent sends it again to the other conductor. The engine is told of no loss,
// as the agent is the other conductor's. An error is that of ctx.
func (s *Server) Redirect(ctx context.Context, nodeUUID string) error {
	s.mu.Lock()
	ss := s.sessions[nodeUUID]
	s.mu.Unlock()
	if ss == nil {
		return nil
	}
	s.sendAway(ctx, ss, s.elsewhere(ctx, nodeUUID))
	select {
	case <-ss.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendAway ends a session, and sends the agent to another conductor. One that can't be sent comes back here, and is
// turned away.
func (s *Server) sendAway(ctx context.Context, ss *session, to string) {
	defer ss.end(errElsewhere)
	m, err := redirect(to)
	if err == nil && ss.follows {
		soon, cancel := context.WithTimeout(ctx, redirectWait)
		defer cancel()
		err = s.pass(soon, ss, m)
	}
	switch {
	case err != nil && ss.ctx.Err() == nil: // else it has ended by itself
		ss.log.Warn("redirect an agent", "to", to, "err", err)
	case err == nil && ss.follows:
		ss.log.Info("agent redirected", "boot", ss.id.boot, "to", to)
	}
}

// handedOver reports whether the node of a session has become another conductor's, and sends the agent there: what
// could not be stored just now is stored there.
func (s *Server) handedOver(ss *session) bool {
	if ss.ctx.Err() != nil {
		return false
	}
	to := s.elsewhere(ss.ctx, ss.id.node)
	if to != "" {
		s.sendAway(ss.ctx, ss, to)
	}
	return to != ""
}

func redirect(to string) (*agentv1.ConductorMessage, error) {
	if err := agentv1.CheckAddress(to); err != nil {
		return nil, err
	}
	return &agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Redirect{Redirect: &agentv1.Redirect{Address: to}}}, nil
}
