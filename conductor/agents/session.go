package agents

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// Reasons to end a session before the agent ends it, as sent to the agent.
var (
	errReplaced = status.Error(codes.Aborted, "a newer session of this agent has replaced this one")
	errStopping = status.Error(codes.Unavailable, "the conductor is stopping, connect again")
	errClosed   = status.Error(codes.Unavailable, "the conductor closed the session")
	errOldBoot  = status.Error(codes.PermissionDenied, "this boot of the machine is over")
	errLeft     = status.Error(codes.Unavailable, "the agent left before its session was open")
	errOldCA    = status.Error(codes.Unavailable, "the certificate's CA has been replaced, and no longer counts")
)

// helloWait is how long an agent may take to say hello.
const helloWait = 15 * time.Second

// cleanup is how long a session that has ended may take to record that.
const cleanup = 10 * time.Second

// session is the stream of one agent. Its fields are set before it is registered, apart from acked.
type session struct {
	id      identity
	stream  agentv1.Agents_SessionServer
	meter   *limit.Metered
	log     *slog.Logger
	follows bool // the agent follows redirects

	ctx  context.Context // ends with the session; its cause is the status that the agent gets
	end  context.CancelCauseFunc
	gone chan struct{} // closed when all of it has been cleaned up

	out     chan outgoing
	ackMu   sync.Mutex
	acked   uint64
	ackNews chan struct{}
	logs    budget        // log lines that go to the conductor's own log
	skipped uint64        // lines over that budget
	bundled chan struct{} // a log bundle has come
	heard   atomic.Int64  // when the newest message came, in nanoseconds
	swarm   swarming      // used by the session's worker, apart from news
	odds    sync.Map      // what odd has logged
}

// odd logs what no agent of ours does, as a warning once in a session: a hostile machine must not fill the conductor's
// log.
func (ss *session) odd(what string, args ...any) {
	level := slog.LevelWarn
	if _, again := ss.odds.LoadOrStore(what, true); again {
		level = slog.LevelDebug
	}
	ss.log.Log(ss.ctx, level, what, args...)
}

// outgoing is a message on its way; sent receives the result.
type outgoing struct {
	msg  *agentv1.ConductorMessage
	sent chan error
}

// Session is one agent's stream, from hello to its end.
func (s *Server) Session(stream agentv1.Agents_SessionServer) error {
	outcome := "refused"
	defer func() { s.count("session", outcome) }()
	place := placeOf(stream.Context())
	defer place.Leave()
	id, err := s.authenticate(stream.Context())
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	ss := &session{
		id: id, stream: stream, meter: meterOf(ctx), ctx: ctx, end: end, gone: make(chan struct{}),
		log: s.log.With("node", id.node),
		out: make(chan outgoing, 16), ackNews: make(chan struct{}, 1), bundled: make(chan struct{}, 1),
		logs: budget{size: 500, every: 10 * time.Second}, swarm: swarming{news: make(chan struct{}, 1)},
	}
	defer close(ss.gone)
	if ends, ok := s.ca.expires(peerState(stream.Context())); ok {
		defer time.AfterFunc(ends.Sub(s.now()), func() { end(errOldCA) }).Stop()
	}

	// Everything that is received goes through one goroutine; this one sends. gRPC ends the receiver when this function
	// returns.
	received := make(chan message)
	go ss.receive(received)

	hello, err := ss.hello(received)
	if err != nil {
		return err
	}
	ss.follows = hello.FollowsRedirects
	known, err := s.register(ss)
	if err != nil {
		return err
	}
	defer func() { s.unregister(ss, known) }()
	// Only now: should the node move after this, Redirect finds the session.
	n, err := s.store.Node(ctx, id.node)
	if err == nil && s.cfg.Elsewhere != nil {
		if to := s.cfg.Elsewhere(n); to != "" {
			outcome = "redirected"
			return s.turnAway(ss, to)
		}
	}
	if err := s.checkRead(ctx, ss, n, err); err != nil {
		return err
	}
	known = true
	ss.acked = n.Boot.AckedSeq
	welcome := &agentv1.Welcome{Clock: timestamppb.New(s.now()), AckedSeq: ss.acked, Conductors: s.others()}
	if err := stream.Send(
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	place.Leave()
	ss.log.Info("agent connected", "boot", id.boot, "agent", clip(hello.AgentVersion), "from", remote(ctx), "plan",
		hello.PlanId, "running", hello.PlanRunning)

	s.count("session", "opened")
	outcome = "closed"
	var work sync.WaitGroup
	work.Go(func() { s.work(ss, hello, received) })
	// The worker must have finished with the store before the session counts as gone: a session that replaces this one
	// reads what it wrote.
	defer func() {
		work.Wait()
		if ss.swarm.joined {
			s.swarms.Lost(id.node)
		}
	}()
	defer end(nil)
	return s.send(ss)
}

// authenticate reads the identity from the certificate that TLS has verified.
func (s *Server) authenticate(ctx context.Context) (identity, error) {
	state := peerState(ctx)
	if len(state.VerifiedChains) == 0 {
		return identity{}, status.Error(codes.Unauthenticated, "a session needs the client certificate from enrolment")
	}
	if ends, ok := s.ca.expires(state); ok && !s.now().Before(ends) {
		return identity{}, errOldCA // the connection is older than that
	}
	id, err := identify(state.PeerCertificates[0])
	if err != nil {
		return identity{}, status.Error(codes.Unauthenticated, "the client certificate is not one from enrolment")
	}
	return id, nil
}

// peerState is the TLS state of the connection that a call came over.
func peerState(ctx context.Context) tls.ConnectionState {
	if p, ok := peer.FromContext(ctx); ok {
		if m, ok := p.AuthInfo.(met); ok {
			return m.State
		}
	}
	return tls.ConnectionState{}
}

// meterOf returns the meter of a call's connection.
func meterOf(ctx context.Context) *limit.Metered {
	if p, ok := peer.FromContext(ctx); ok {
		if m, ok := p.AuthInfo.(met); ok {
			return m.meter
		}
	}
	return (*limit.Budget)(nil).Meter(nil, false)
}

// placeOf returns the place that a call's connection holds at the gate.
func placeOf(ctx context.Context) *limit.Place {
	if p, ok := peer.FromContext(ctx); ok {
		if m, ok := p.AuthInfo.(met); ok {
			return m.place
		}
	}
	return nil
}

// message is one from the agent. It has size bytes of the budget for bodies, which its last user returns.
type message struct {
	*agentv1.AgentMessage
	size int64
}

// receive passes the agent's messages on until the stream ends.
func (ss *session) receive(to chan<- message) {
	for {
		ss.meter.Expect()
		m, err := ss.stream.Recv()
		if err != nil {
			ss.end(err)
			return
		}
		size := ss.meter.Message()
		ss.heard.Store(time.Now().UnixNano())
		select {
		case to <- message{m, size}:
		case <-ss.ctx.Done():
			ss.meter.Free(size)
			return
		}
	}
}

func (ss *session) hello(received <-chan message) (*agentv1.Hello, error) {
	timer := time.NewTimer(helloWait)
	defer timer.Stop()
	select {
	case m := <-received:
		defer ss.meter.Free(m.size)
		h := m.GetHello()
		if h == nil {
			return nil, status.Error(codes.InvalidArgument, "the first message must be hello")
		}
		if !strings.EqualFold(h.BootId, ss.id.boot) || h.Generation != ss.id.generation {
			return nil, status.Error(codes.PermissionDenied, "hello is of another boot than the certificate")
		}
		return h, nil
	case <-timer.C:
		return nil, status.Error(codes.DeadlineExceeded, "no hello")
	case <-ss.ctx.Done():
		return nil, cmp.Or(ss.reason(), errLeft)
	}
}

// reason is the status to end the stream with; nil if the agent closed its side or its connection broke.
func (ss *session) reason() error {
	err := context.Cause(ss.ctx)
	if _, ok := status.FromError(err); ok {
		return err
	}
	return nil
}

// register makes ss the node's session and waits until the previous one has ended. known reports whether there was one:
// then the engine counts the agent as connected, and ss reports its end.
func (s *Server) register(ss *session) (known bool, err error) {
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return false, errStopping
	}
	old := s.sessions[ss.id.node]
	// A late stream of an older boot must not throw out the newer one; the store decides below which of the two is
	// right.
	if old != nil && old.id.generation > ss.id.generation {
		s.mu.Unlock()
		return false, errOldBoot
	}
	s.sessions[ss.id.node] = ss
	s.mu.Unlock()
	if old != nil {
		old.end(errReplaced)
		select {
		case <-old.gone:
		case <-ss.ctx.Done():
			s.unregister(ss, true)
			return false, cmp.Or(ss.reason(), errLeft)
		}
	}
	return old != nil, nil
}

// drop removes ss from the map and reports whether it was the node's session.
func (s *Server) drop(ss *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[ss.id.node] != ss {
		return false
	}
	delete(s.sessions, ss.id.node)
	return true
}

// check holds the session against the store.
func (s *Server) check(ctx context.Context, ss *session) error {
	n, err := s.store.Node(ctx, ss.id.node)
	return s.checkRead(ctx, ss, n, err)
}

// checkRead is check with what reading the node returned.
func (s *Server) checkRead(ctx context.Context, ss *session, n *node.Node, err error) error {
	if err == nil && ss.isOf(n) {
		return nil
	}
	if err == nil || s.cfg.NotFound(err) {
		ss.log.Info("session of a boot that is over refused", "boot", ss.id.boot, "generation", ss.id.generation)
		if err == nil {
			s.engine.AgentStale(ctx, ss.id.node, ss.id.boot)
		}
		return errOldBoot
	}
	ss.log.Error("open session", "err", err)
	return status.Error(codes.Unavailable, "the conductor can't read the node now, try again")
}

// isOf reports whether the session belongs to the node's newest boot, and that boot has not ended.
func (ss *session) isOf(n *node.Node) bool { return ss.id.isOf(n) }

func (id identity) isOf(n *node.Node) bool {
	b := n.Boot
	return b != nil && !b.Ended && b.BootID == id.boot && b.Generation == id.generation
}

// unregister reports the agent as gone, unless another session of it has taken over, the engine never knew it, or the
// node is another conductor's by now: that one may have the agent already, and must not take it for lost.
func (s *Server) unregister(ss *session, known bool) {
	if !s.drop(ss) || !known {
		return
	}
	// Who owns the node next takes its agent for disconnected in any case, as after a crash: to write the same for
	// thousands of nodes would only delay the stop.
	if errors.Is(context.Cause(ss.ctx), errStopping) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ss.ctx), cleanup)
	defer cancel()
	if errors.Is(context.Cause(ss.ctx), errElsewhere) || s.elsewhere(ctx, ss.id.node) != "" {
		return
	}
	ss.log.Info("agent disconnected", "boot", ss.id.boot, "err", context.Cause(ss.ctx))
	s.engine.AgentLost(ctx, ss.id.node, ss.id.boot)
}

// send writes queued messages and acknowledgements, until the session ends. It returns the status for the agent.
func (s *Server) send(ss *session) error {
	var sentAt time.Time
	var later <-chan time.Time
	neighbours := func() error {
		sentAt, later = time.Now(), nil
		if m := s.swarmPeers(ss.id.node); m != nil {
			return ss.stream.Send(m)
		}
		return nil
	}
	for {
		select {
		case <-ss.ctx.Done():
			return ss.reason()
		case o := <-ss.out:
			err := ss.stream.Send(o.msg)
			o.sent <- err
			if err != nil {
				return err
			}
		case <-ss.swarm.news:
			if later != nil {
				continue
			}
			if wait := swarmPause - time.Since(sentAt); wait > 0 {
				later = time.After(wait)
			} else if err := neighbours(); err != nil {
				return err
			}
		case <-later:
			if err := neighbours(); err != nil {
				return err
			}
		case <-ss.ackNews:
			ss.ackMu.Lock()
			seq := ss.acked
			ss.ackMu.Unlock()
			if err := ss.stream.Send(
				&agentv1.ConductorMessage{
					Body: &agentv1.ConductorMessage_Ack{Ack: &agentv1.Ack{Seq: seq}}}); err != nil {
				return err
			}
		}
	}
}

// ack makes the session acknowledge everything up to seq as stored. Acknowledgements that wait together become one.
func (ss *session) ack(seq uint64) {
	ss.ackMu.Lock()
	ss.acked = max(ss.acked, seq)
	ss.ackMu.Unlock()
	select {
	case ss.ackNews <- struct{}{}:
	default:
	}
}

// deliver queues a message for the node's agent and waits until it has been written to the stream. That does not mean
// that it arrived: an agent that says hello again without the plan must be sent it again.
func (s *Server) deliver(ctx context.Context, nodeUUID string, m *agentv1.ConductorMessage) error {
	s.mu.Lock()
	ss := s.sessions[nodeUUID]
	s.mu.Unlock()
	if ss == nil {
		return ErrNoSession
	}
	return s.pass(ctx, ss, m)
}

// pass is deliver for a session.
func (s *Server) pass(ctx context.Context, ss *session, m *agentv1.ConductorMessage) error {
	o := outgoing{m, make(chan error, 1)}
	select {
	case ss.out <- o:
	case <-ss.ctx.Done():
		return ErrNoSession
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-o.sent:
		if err != nil {
			return fmt.Errorf("send to the agent: %w", errors.Join(ErrNoSession, err))
		}
		return nil
	case <-ss.ctx.Done():
		return ErrNoSession
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SendPlan sends a plan to the node's agent.
func (s *Server) SendPlan(ctx context.Context, nodeUUID string, p node.Plan) error {
	return s.deliver(ctx, nodeUUID,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Plan{Plan: planMessage(p)}})
}

// CancelPlan asks the node's agent to stop a plan.
func (s *Server) CancelPlan(ctx context.Context, nodeUUID, planID string) error {
	return s.deliver(ctx, nodeUUID,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Cancel{Cancel: &agentv1.Cancel{PlanId: planID}}})
}

// Power asks the node's agent to end this boot.
func (s *Server) Power(ctx context.Context, nodeUUID string, a node.PowerAction) error {
	action, ok := powerActions[a]
	if !ok {
		return fmt.Errorf("an agent can't be asked to %q", a)
	}
	return s.deliver(ctx, nodeUUID,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Power{Power: &agentv1.Power{Action: action}}})
}

// Kexec asks the node's agent to close its session and, after delay, to jump into the kernel that it has loaded. It
// returns nil when the agent has closed its side in order, which is its promise to do so: one that refuses stays, until
// ctx ends, and a session that breaks off says nothing.
func (s *Server) Kexec(ctx context.Context, nodeUUID string, delay time.Duration) error {
	s.mu.Lock()
	ss := s.sessions[nodeUUID]
	s.mu.Unlock()
	if ss == nil {
		return ErrNoSession
	}
	err := s.deliver(ctx, nodeUUID,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Power{Power: &agentv1.Power{
			Action: agentv1.PowerAction_POWER_ACTION_KEXEC, Delay: durationpb.New(delay)}}})
	if err != nil && ss.ctx.Err() == nil { // else it has ended already, and its cause says why
		return err
	}
	select {
	case <-ss.gone:
	case <-ctx.Done():
		return fmt.Errorf("the agent was asked to leave and kept its session: %w", ctx.Err())
	}
	//nolint:contextcheck the reason why the session ended is needed, not why this call did
	if cause := context.Cause(ss.ctx); !errors.Is(cause, io.EOF) {
		return fmt.Errorf("the agent's session broke off: %w", errors.Join(ErrNoSession, cause))
	}
	return nil
}

// ResetNetwork asks the node's agent to acquire its network anew; its session breaks and comes back.
func (s *Server) ResetNetwork(ctx context.Context, nodeUUID string) error {
	return s.deliver(ctx, nodeUUID,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_NetworkReset{NetworkReset: &agentv1.NetworkReset{}}})
}

// CollectLogs asks the node's agent for its logs; they are kept in a file of the data directory when they come.
func (s *Server) CollectLogs(ctx context.Context, nodeUUID string) error {
	return s.deliver(ctx, nodeUUID,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_CollectLogs{CollectLogs: &agentv1.CollectLogs{}}})
}

// CloseSession ends the session of the node's agent, if it has one. An agent whose boot goes on may connect again.
func (s *Server) CloseSession(nodeUUID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ss := s.sessions[nodeUUID]; ss != nil {
		ss.end(errClosed)
	}
}
