package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/machine/mdns"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	callTimeout = 10 * time.Second // for Enroll and for opening a session
	finalRetry  = time.Minute      // a refusal is final for this boot, but an operator may repair the conductor
	clockSlack  = time.Second      // smaller clock errors are not corrected
)

// longestPause is the longest mean time between two attempts.
const longestPause = 15 * time.Second

// backoff returns the delays between attempts: short at first, so that a restart of the conductor is bridged in a
// second or two, then a quarter of the time for which there has been no conductor, so that its return is noticed soon
// in proportion, and thousands of agents do not ask thousands of times a second one that is just starting.
type backoff struct {
	n     int
	began time.Time
}

func (b *backoff) reset() { *b = backoff{} }

func (b *backoff) next() time.Duration {
	if b.n == 0 {
		b.began = time.Now()
	}
	limit := min(max(time.Since(b.began)/4, time.Second), longestPause)
	d := min(100*time.Millisecond<<min(b.n, 10), limit)
	b.n++
	// Between half and one and a half: a rack must not reconnect to a restarted conductor in lockstep.
	return d/2 + rand.N(d)
}

// errEnded means that the conductor has ended this boot.
var errEnded = errors.New("this boot is over")

// session connects the agent to its conductor and keeps it connected: it enrols, opens one stream after the other, and
// executes the requests left by a stream that has ended.
type session struct {
	o       *Options
	log     *slog.Logger
	q       *queue
	mem     *memory
	plans   *plans
	swarm   *swarm.Node
	trust   trust
	key     *ecdsa.PrivateKey
	digest  string        // of the table of steps
	started time.Duration // the kernel's uptime at the start of the agent
	route   *route
}

// run enrols and keeps a session open until ctx ends or the boot is over.
func (s *session) run(ctx context.Context) error {
	var b backoff
	logged := ""
	for failures := 0; ctx.Err() == nil; {
		address := s.route.address()
		opened, err := false, error(nil)
		if address == multicastDNS {
			address, err = mdns.Find(ctx)
		}
		if err == nil {
			opened, err = s.attempt(ctx, address)
		}
		if errors.Is(err, errEnded) {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		if opened || errors.Is(err, errNetworkReset) {
			b.reset()
			s.route.opened()
			failures, logged = 0, ""
		}
		if errors.Is(err, errNetworkReset) {
			s.resetNetwork(ctx)
			continue
		}
		var to *redirectedError
		if errors.As(err, &to) {
			b.reset()
			failures, logged = 0, ""
			s.redirect(ctx, address, to.address, b.next())
			continue
		}
		// Another link is for when no conductor answers: one that the agent was redirected to does not decide that.
		if !opened && !(sentAway(err) && s.route.sentAway(time.Now())) && s.route.lost(time.Now()) {
			failures++
		}
		// Each new reason is logged once: a conductor that is down for a night should not fill the log.
		if text := fmt.Sprint(err); text != logged {
			logged = text
			s.log.Warn("no session with the conductor, trying again", "conductor", address, "err", err)
			s.o.Status.Line("no session with %s: %s; trying again", address, plain(err))
		}
		if final(err) {
			// A newer agent owns this machine, or the conductor does not know it: work here must stop.
			s.plans.cancel("")
			s.plans.closeRescue("the conductor refuses this boot")
			_ = step.Sleep(ctx, finalRetry/2+rand.N(finalRetry))
			continue
		}
		if failures >= 6 && isUnreachable(err) {
			failures = 0
			s.o.Network.Rotate()
		}
		_ = step.Sleep(ctx, b.next())
	}
	return context.Cause(ctx)
}

// resetNetwork acquires the network again. A running plan continues and repeats its downloads.
func (s *session) resetNetwork(ctx context.Context) {
	s.o.Status.Line("the conductor has switched the network; acquiring it again")
	if err := s.o.Network.Reset(ctx); err != nil {
		s.log.Error("the network stays as it was", "err", err)
	}
	if err := s.o.Network.Wait(ctx); err != nil {
		return // ctx has ended
	}
	s.o.Status.Line("network: %s", s.o.Network.Summary())
	s.log.Info("network is up again", "addresses", s.o.Network.Summary())
}

// redirect makes another conductor the one to connect to, and waits until it is time for that.
func (s *session) redirect(ctx context.Context, from, to string, pause time.Duration) {
	held := s.route.redirected(to, time.Now())
	s.mem.change(func(st *saved) { st.Conductor = to })
	if held > 0 {
		s.log.Warn("the conductors send this agent to and fro, it waits", "from", from, "to", to, "wait", held)
		pause = held/2 + rand.N(held)
	} else {
		s.log.Info("redirected", "from", from, "to", to)
	}
	s.o.Status.Line("this node belongs to the conductor at %s", to)
	_ = step.Sleep(ctx, pause)
}

func final(err error) bool {
	return slices.Contains([]codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.InvalidArgument}, status.Code(err))
}

// plain returns an error's text for the console, without gRPC's prefix.
func plain(err error) string {
	var cause *unreachableError
	if errors.As(err, &cause) {
		return cause.cause.Error()
	}
	text := err.Error()
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		text = answer.GRPCStatus().Message()
	}
	if status.Code(err) == codes.PermissionDenied {
		return "it refuses this machine (" + text + "); the node's history says why"
	}
	return text
}

func isUnreachable(err error) bool { return status.Code(err) == codes.Unavailable }

// sentAway reports whether a conductor took the connection and ended it before it answered anything: it does so with
// those for whom it has no time now.
func sentAway(err error) bool {
	var cause *unreachableError
	var shaking *handshakeError
	return errors.As(err, &cause) && errors.As(cause.cause, &shaking) &&
		(errors.Is(shaking.err, io.EOF) || errors.Is(shaking.err, syscall.ECONNRESET))
}

// attempt makes one connection, enrols if necessary, and serves a session on it. It reports whether a session was
// opened.
func (s *session) attempt(ctx context.Context, address string) (opened bool, err error) {
	if s.mem.read().Certificate == nil {
		if err := s.enrol(ctx, address); err != nil {
			return false, err
		}
	}
	cert := s.mem.read().Certificate
	conn, err := s.dial(address, s.trust.config(&tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: s.key}))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	during, end := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		renew(during, cert, func(ctx context.Context) ([]byte, error) {
			err := s.enrolOver(ctx, conn, address)
			return s.mem.read().Certificate, err
		}, s.log)
	})
	defer renewing.Wait()
	defer end()
	opened, err = s.serve(ctx, agentv1.NewAgentsClient(conn))
	return opened, conn.explain(err)
}

// leastRenewal is the minimum time between two renewals of the certificate.
const leastRenewal = time.Hour

// renew replaces the certificate before it expires, for a session that lasts for months: with an expired one the agent
// could not reconnect. again enrols again and returns the new certificate. It ends with ctx.
func renew(ctx context.Context, cert []byte, again func(context.Context) ([]byte, error), log *slog.Logger) {
	for {
		c, err := x509.ParseCertificate(cert)
		if err != nil {
			log.Error("the certificate can't be read, and won't be renewed", "err", err)
			return
		}
		_ = step.Sleep(ctx, max(time.Until(c.NotAfter)*2/3, leastRenewal)) // the conductor has set the clock
		if ctx.Err() != nil {
			return
		}
		renewed, err := again(ctx)
		if err != nil {
			log.Warn("the certificate was not renewed, trying again in an hour or more", "ends", c.NotAfter, "err", err)
			continue
		}
		cert = renewed
	}
}

// connection is a connection to a conductor, opened on first use.
type connection struct {
	*grpc.ClientConn
	mu     sync.Mutex
	failed error // last error of opening it
}

// unreachableError is the error of a call without a connection.
type unreachableError struct{ cause, err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

// handshakeError is why a handshake failed.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// note records why the connection could not be opened: gRPC passes on only the text.
func (c *connection) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
}

// explain adds the cause of the missing connection to a call's error.
func (c *connection) explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil || !isUnreachable(err) {
		return err
	}
	return &unreachableError{c.failed, err}
}

// handshakes are a connection's credentials.
type handshakes struct {
	credentials.TransportCredentials
	of *connection
}

// ClientHandshake records its error.
func (h handshakes) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		err = &handshakeError{err}
	}
	h.of.note(err)
	return conn, info, err
}

// Clone is called by gRPC.
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.of}
}

// dial prepares a connection to one address. The dialer resolves names on each attempt: gRPC's own resolver and
// back-off would come between the agent and the network.
func (s *session) dial(address string, t *tls.Config) (*connection, error) {
	open := s.o.Dial
	if open == nil {
		dialer := &net.Dialer{Timeout: 5 * time.Second}
		open = func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }
	}
	c := &connection{}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(handshakes{credentials.NewTLS(t), c}),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			raw, err := open(ctx, addr)
			c.note(err)
			return raw, err
		}),
		grpc.WithKeepaliveParams(
			keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c.ClientConn = conn
	return c, nil
}

// enrol exchanges the boot token for a certificate.
func (s *session) enrol(ctx context.Context, address string) error {
	conn, err := s.dial(address, s.trust.config(nil))
	if err != nil {
		return err
	}
	defer conn.Close()
	return s.enrolOver(ctx, conn, address)
}

func (s *session) enrolOver(ctx context.Context, conn *connection, address string) error {
	csr, err := newCSR(s.key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := s.o.Identity
	if s.o.MACs != nil {
		id.MACs = s.o.MACs()
	}
	asked := time.Now()
	r, err := agentv1.NewAgentsClient(conn).Enroll(ctx, &agentv1.EnrollRequest{
		Protocol: protocol, BootId: id.BootID, Token: string(s.o.Config.Token), Macs: id.MACs, SmbiosUuid: id.UUID,
		SmbiosSerial: id.Serial, Csr: csr, AgentVersion: s.o.Version, BootMode: id.BootMode,
		Uptime: durationpb.New(id.Uptime()), Started: durationpb.New(s.started),
	})
	if err != nil {
		return fmt.Errorf("enrol: %w", conn.explain(err))
	}
	if len(r.Certificate) == 0 || r.NodeUuid == "" {
		return errors.New("enrol: the conductor's answer has no certificate")
	}
	if t := r.Clock; t != nil {
		// The response's time is between the request and now.
		s.setClock(t.AsTime().Add(time.Since(asked) / 2))
	}
	s.q.policy(r.Policy)
	s.mem.change(func(st *saved) {
		if p := r.Policy.GetSwarm(); p != nil {
			st.Swarm = &p.UploadRate
		}
		st.Certificate, st.NodeUUID, st.Generation = r.Certificate, r.NodeUuid, r.Generation
		st.Highest = max(st.Highest, r.Generation)
	})
	s.log.Info("enrolled", "node", r.NodeUuid, "generation", r.Generation, "conductor", address, "uptime",
		id.Uptime().Round(time.Millisecond))
	s.o.Status.Line("node %s, conductor %s, %s after kernel start", r.NodeUuid, address,
		id.Uptime().Round(10*time.Millisecond))
	return nil
}

func (s *session) setClock(t time.Time) {
	off := time.Until(t)
	if off.Abs() < clockSlack {
		return
	}
	if err := s.o.System.SetClock(t); err != nil {
		s.log.Warn("the clock stays wrong", "off", off.Round(time.Second), "err", err)
		return
	}
	s.log.Info("clock set from the conductor", "off", off.Round(time.Second))
}

func (s *session) hello() *agentv1.AgentMessage {
	st := s.mem.read()
	return &agentv1.AgentMessage{Body: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		BootId: st.BootID, Generation: st.Generation, AgentVersion: s.o.Version, PlanId: st.Plan.ID,
		PlanGeneration: st.Plan.Generation, StepIndex: uint32(st.Plan.Index), PlanRunning: st.Plan.Running,
		LastSeq: s.q.last(), StepsDigest: s.digest, WorkerRestarts: uint32(max(s.o.Restarts, 0)),
		RestartReason: s.o.Reason, FollowsRedirects: true,
	}}}
}

// serve serves one stream until its end.
func (s *session) serve(ctx context.Context, client agentv1.AgentsClient) (opened bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening := time.AfterFunc(callTimeout, func() {
		cancel(status.Error(codes.Unavailable, "the conductor did not answer in time"))
	})
	stream, err := client.Session(ctx)
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	if err := stream.Send(s.hello()); err != nil {
		_, err = stream.Recv() // Recv returns the reason; Send only returns EOF
		return false, fmt.Errorf("open a session: %w", err)
	}
	first, err := stream.Recv()
	if !opening.Stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	if r := first.GetRedirect(); r != nil {
		return false, redirectTo(r)
	}
	welcome := first.GetWelcome()
	if welcome == nil {
		return false, errors.New("open a session: the conductor's first message is no Welcome")
	}
	if t := welcome.Clock; t != nil {
		s.setClock(t.AsTime())
	}
	s.q.reopen(welcome.AckedSeq)
	if others := s.route.learn(welcome.Conductors); others != nil {
		s.mem.change(func(st *saved) { st.Conductors = others })
	}
	s.enableSwarm()
	//nolint:contextcheck the swarm serves others across sessions; the stream's context has the address only
	s.swarm.Session(localAddr(stream.Context()))
	defer s.swarm.SessionLost()
	s.log.Info("session opened", "acked", welcome.AckedSeq, "uptime", s.o.Identity.Uptime().Round(time.Millisecond))
	s.o.Status.Line("connected to the conductor")

	open := &serving{stream: stream, log: s.log, q: s.q, mem: s.mem, plans: s.plans, swarm: s.swarm,
		loaded: s.o.System.KernelLoaded, collectLogs: s.collectLogs}
	received := make(chan error, 1)
	go func() {
		err := open.receive()
		cancel(err)
		received <- err
	}()
	sendErr := open.send(ctx)
	if errors.Is(sendErr, errLeave) {
		// Everything is sent; the conductor closes its side after storing it.
		_ = stream.CloseSend()
		select {
		case <-received:
		case <-time.After(2 * time.Second):
			cancel(nil)
			<-received
		}
		return true, s.leave(context.WithoutCancel(ctx), open.ending())
	}
	cancel(sendErr)
	err = <-received
	var to *redirectedError
	if errors.As(err, &to) || errors.Is(err, errNetworkReset) {
		return true, err
	}
	return true, fmt.Errorf("session ended: %w", err)
}

// leave ends the boot. On failure the agent logs it and stays, so that the conductor can use other means.
func (s *session) leave(ctx context.Context, e ending) error {
	s.o.Status.Line("the conductor ends this boot: %s", e.how)
	s.plans.closeRescue("the boot ends") // logins may keep file systems busy
	if e.how == "kexec" {
		return s.jump(ctx, e.delay)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.o.System.End(ctx, e.how); err != nil {
		s.log.Error("this boot could not be ended", "action", e.how, "err", err)
		return err
	}
	return errEnded
}

// jump starts the loaded kernel. The network is left first, while its servers are reachable; then the conductor has the
// time it requested for switching the network.
func (s *session) jump(ctx context.Context, delay time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, delay+time.Minute)
	defer cancel()
	quick, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if err := s.o.Network.Leave(quick); err != nil {
		s.log.Warn("the network is not quite stopped", "err", err)
	}
	_ = step.Sleep(ctx, delay)
	err := s.o.System.End(ctx, "kexec")
	if err == nil {
		return errEnded
	}
	s.log.Error("the jump into the loaded kernel failed", "err", err)
	s.resetNetwork(ctx)
	return err
}

func (s *session) collectLogs() {
	b, err := BundleLogs(s.o.System, s.o.LogFiles...)
	if err != nil {
		s.log.Warn("some logs could not be collected", "err", err)
	}
	s.q.logBundle(b)
}
