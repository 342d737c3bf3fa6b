package agents

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// A connection's TLS handshake decides which of two gRPC servers gets it: agents with a certificate from enrolment may
// send messages of limit.AgentMessage, all others may only enrol, in one short message. gRPC has one limit per server,
// and reads a message before it checks whether the call is allowed.

// idleTime is how long a connection without a call stays open.
const idleTime = 2 * time.Minute

func (s *Server) newServers(alive time.Duration) {
	common := []grpc.ServerOption{
		grpc.Creds(shaken{s.cfg.Bodies}),
		grpc.ConnectionTimeout(limit.HeaderTime),
		grpc.MaxHeaderListSize(16 << 10),
		// The window for bytes that arrive before they are read: more would be freed with the message before it. A
		// message that is read has all the room it needs.
		grpc.InitialWindowSize(64 << 10), grpc.InitialConnWindowSize(256 << 10),
		// Most connections are silent most of the time. TLS has a record in memory already when its bytes are read: a
		// buffer above it would be 32 KiB for each agent and save no system call. What is sent is short but for plans.
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(8 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: alive, Timeout: alive, MaxConnectionIdle: idleTime}),
	}
	s.grpc = grpc.NewServer(append(common,
		grpc.MaxRecvMsgSize(limit.AgentMessage),
		// an agent has one, and a second to renew its certificate; the rest is for reconnects that overlap
		grpc.MaxConcurrentStreams(4),
	)...)
	s.strange = grpc.NewServer(append(common,
		grpc.MaxRecvMsgSize(limit.EnrollMessage),
		grpc.MaxConcurrentStreams(4),
		grpc.InTapHandle(enrollOnly),
	)...)
	agentv1.RegisterAgentsServer(s.grpc, s)
	agentv1.RegisterAgentsServer(s.strange, s)
}

// enrollOnly refuses all calls but Enroll before reading anything of them, and limits the time of Enroll.
func enrollOnly(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != agentv1.Agents_Enroll_FullMethodName {
		return nil, status.Error(codes.Unauthenticated, "a session needs the client certificate from enrolment")
	}
	ctx, cancel := context.WithTimeout(ctx, limit.EnrollTime)
	context.AfterFunc(ctx, cancel) // it ends with the call, whose context is above it
	return ctx, nil
}

// Serve takes connections from l until Stop.
func (s *Server) Serve(l net.Listener) error {
	known, strange := newQueue(l.Addr()), newQueue(l.Addr())
	results := make(chan error, 2)
	go func() { results <- s.grpc.Serve(known) }()
	go func() { results <- s.strange.Serve(strange) }()
	s.mu.Lock()
	s.listener = l
	stopping := s.stopping
	s.mu.Unlock()
	if stopping {
		l.Close()
	}
	var shaking sync.WaitGroup
	err := s.accept(l, &shaking, known, strange)
	s.gate.Close()
	known.Close()
	strange.Close()
	shaking.Wait()
	for range 2 {
		<-results // that of a listener which was closed
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve agents: %w", err)
	}
	return nil
}

// acceptPause is how long nothing is accepted after a failure that may pass, such as too many open files.
const acceptPause = 100 * time.Millisecond

//
//nolint:contextcheck a handshake has a time limit of its own, and ends with the listener
func (s *Server) accept(l net.Listener, shaking *sync.WaitGroup, known, strange *queue) error {
	for {
		c, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			stopping := s.stopping
			s.mu.Unlock()
			if stopping || errors.Is(err, net.ErrClosed) {
				return net.ErrClosed
			}
			level := slog.LevelError
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				// this repeats ten times a second; the listener's owner logs it at intervals
				level = slog.LevelDebug
			}
			s.log.Log(context.Background(), level, "accept a connection of an agent", "err", err)
			<-time.After(acceptPause)
			continue
		}
		shaking.Go(func() {
			place := s.gate.Enter(limit.AgentWait, limit.AgentShake, limit.AgentOpen)
			if place == nil {
				s.count("connection", "sent away")
				c.Close()
				return
			}
			began := time.Now()
			t := tls.Server(c, s.tls)
			ctx, cancel := context.WithTimeout(context.Background(), limit.HeaderTime)
			defer cancel()
			if err := t.HandshakeContext(ctx); err != nil {
				place.Leave()
				s.log.Debug("TLS handshake with an agent", "from", c.RemoteAddr(), "err", err)
				c.Close()
				return
			}
			if len(t.ConnectionState().VerifiedChains) > 0 {
				s.gate.Took(time.Since(began), limit.AgentOpen)
				place.Stay(limit.AgentOpen)
				known.put(admitted{t, place})
				return
			}
			place.Leave()
			strange.put(admitted{t, nil})
		})
	}
}

// queue is a listener whose connections come from put.
type queue struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newQueue(addr net.Addr) *queue {
	return &queue{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (q *queue) put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.done:
		c.Close()
	}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

func (q *queue) Addr() net.Addr { return q.addr }

// admitted is a connection whose handshake is done, with the place that it holds until its session is open.
type admitted struct {
	*tls.Conn
	place *limit.Place
}

// shaken is the credentials of connections whose TLS handshake is done. What comes over them counts as bodies of
// requests do.
type shaken struct{ bodies *limit.Budget }

// met holds the facts about a connection.
type met struct {
	credentials.TLSInfo
	meter *limit.Metered
	place *limit.Place
}

func (s shaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a, ok := c.(admitted)
	if !ok {
		return nil, nil, errors.New("a connection without TLS")
	}
	state := a.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		return nil, nil, errors.New("the agent does not speak HTTP/2")
	}
	m := s.bodies.Meter(a.Conn, len(state.VerifiedChains) > 0)
	return m, met{credentials.TLSInfo{
			State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}},
			m, a.place},
		nil
}

func (shaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

func (shaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (s shaken) Clone() credentials.TransportCredentials { return s }

func (shaken) OverrideServerName(string) error { return nil }
