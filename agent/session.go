package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	callTimeout = 10 * time.Second // Enroll, and the opening of a session
	finalRetry  = time.Minute      // a refusal is final for this boot, but an operator may repair the conductor
	clockSlack  = time.Second      // a clock that is off by less is left alone
)

// backoff gives the delays between attempts: short at first, so that a restart of the conductor is bridged in a second
// or two.
type backoff struct {
	n     int
	began time.Time
}

func (b *backoff) reset() { *b = backoff{} }

func (b *backoff) next() time.Duration {
	if b.n == 0 {
		b.began = time.Now()
	}
	limit := time.Second
	if time.Since(b.began) > 20*time.Second {
		limit = 15 * time.Second
	}
	d := min(100*time.Millisecond<<min(b.n, 10), limit)
	b.n++
	// Between half and one and a half: a rack whose conductor comes back must not dial in step.
	return d/2 + rand.N(d)
}

// sleep waits for d, or less when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// sessions enrols and keeps a session open until ctx ends or the boot is over.
func (a *Agent) sessions(ctx context.Context) error {
	var b backoff
	told := ""
	for failures := 0; ctx.Err() == nil; {
		address := a.address(failures)
		opened, err := a.attempt(ctx, address)
		if errors.Is(err, errEnded) {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errNetworkReset) {
			a.resetNetwork(ctx)
			b.reset()
			failures, told = 0, ""
			continue
		}
		if opened {
			b.reset()
			failures, told = 0, ""
		}
		failures++
		// Say each new reason once: a conductor that is away for a night should not fill the log.
		if text := fmt.Sprint(err); text != told {
			told = text
			a.log.Warn("no session with the conductor, trying again", "conductor", address, "err", err)
			a.o.Status.Line("no session with %s: %s; trying again", address, plain(err))
		}
		if final(err) {
			// Somebody newer owns this machine, or nobody knows it: what runs here must not go on.
			a.cancelPlan("")
			a.closeRescue("the conductor refuses this boot")
			sleep(ctx, finalRetry/2+rand.N(finalRetry))
			continue
		}
		if failures%6 == 0 && isUnreachable(err) {
			a.o.Network.Rotate()
		}
		sleep(ctx, b.next())
	}
	return context.Cause(ctx)
}

// resetNetwork acquires the network anew. A plan that runs goes on: what it fetches, it fetches again.
func (a *Agent) resetNetwork(ctx context.Context) {
	a.o.Status.Line("the conductor has switched the network; acquiring it anew")
	if err := a.o.Network.Reset(ctx); err != nil {
		a.log.Error("the network stays as it was", "err", err)
	}
	if err := a.o.Network.Wait(ctx); err != nil {
		return // ctx has ended
	}
	a.o.Status.Line("network: %s", a.o.Network.Summary())
	a.log.Info("network is up again", "addresses", a.o.Network.Summary())
}

// address is where to dial: where the agent was redirected to, and now and then where it came from, should that be
// gone.
func (a *Agent) address(failures int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.st.Conductor == "" || failures >= 5 && failures%2 == 1 {
		return a.o.Config.Conductor
	}
	return a.st.Conductor
}

func final(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.InvalidArgument:
		return true
	}
	return false
}

// plain is an error for a person at the console: without gRPC's frame around what happened.
func plain(err error) string {
	text := err.Error()
	for _, frame := range []string{"Error while dialing: ", "desc = "} {
		if i := strings.LastIndex(text, frame); i >= 0 {
			text = strings.Trim(text[i+len(frame):], `\"`)
			break
		}
	}
	if status.Code(err) == codes.PermissionDenied {
		return "it refuses this machine (" + text + "); the node's history says why"
	}
	return text
}

func isUnreachable(err error) bool { return status.Code(err) == codes.Unavailable }

// attempt makes one connection, enrols if that has not been done, and serves a session on it. It tells whether a
// session was opened.
func (a *Agent) attempt(ctx context.Context, address string) (opened bool, err error) {
	a.mu.Lock()
	cert := a.st.Certificate
	a.mu.Unlock()
	if cert == nil {
		if err := a.enrol(ctx, address); err != nil {
			return false, err
		}
		a.mu.Lock()
		cert = a.st.Certificate
		a.mu.Unlock()
	}
	conn, err := dial(address, a.trust.config(&tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: a.key}))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	during, end := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		renew(during, cert, func(ctx context.Context) ([]byte, error) {
			if err := a.enrolOver(ctx, conn, address); err != nil {
				return nil, err
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.st.Certificate, nil
		}, a.log)
	})
	defer renewing.Wait()
	defer end()
	return a.session(ctx, agentv1.NewAgentsClient(conn))
}

// leastRenewal is the least time between two renewals of the certificate.
const leastRenewal = time.Hour

// renew has the conductor make another certificate before the present one ends, for a session that lasts for months:
// what has ended is of no use to come back with. again enrols anew and gives the certificate that came of it. It ends
// with ctx.
func renew(ctx context.Context, cert []byte, again func(context.Context) ([]byte, error), log *slog.Logger) {
	for {
		c, err := x509.ParseCertificate(cert)
		if err != nil {
			log.Error("the certificate can't be read, and won't be renewed", "err", err)
			return
		}
		sleep(ctx, max(time.Until(c.NotAfter)*2/3, leastRenewal)) // the conductor has set the clock
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

// dial prepares a connection to one address. Names are resolved anew by each attempt, by the dialer: gRPC's own
// resolver and back-off would sit between the agent and the network.
func dial(address string, t *tls.Config) (*grpc.ClientConn, error) {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(t)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithKeepaliveParams(
			keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}

// enrol trades the boot token for a certificate.
func (a *Agent) enrol(ctx context.Context, address string) error {
	conn, err := dial(address, a.trust.config(nil))
	if err != nil {
		return err
	}
	defer conn.Close()
	return a.enrolOver(ctx, conn, address)
}

func (a *Agent) enrolOver(ctx context.Context, conn *grpc.ClientConn, address string) error {
	csr, err := newCSR(a.key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := a.o.Identity
	if a.o.MACs != nil {
		id.MACs = a.o.MACs()
	}
	asked := time.Now()
	r, err := agentv1.NewAgentsClient(conn).Enroll(ctx, &agentv1.EnrollRequest{
		Protocol: protocol, BootId: id.BootID, Token: string(a.o.Config.Token), Macs: id.MACs, SmbiosUuid: id.UUID,
		SmbiosSerial: id.Serial, Csr: csr, AgentVersion: a.o.Version, BootMode: id.BootMode,
		Uptime: durationpb.New(id.Uptime()), Started: durationpb.New(a.started),
	})
	if err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	if len(r.Certificate) == 0 || r.NodeUuid == "" {
		return errors.New("enrol: the conductor's answer has no certificate")
	}
	if t := r.Clock; t != nil {
		// The answer was made somewhere between question and now.
		a.setClock(t.AsTime().Add(time.Since(asked) / 2))
	}
	a.q.policy(r.Policy)
	a.change(func(s *saved) {
		if p := r.Policy.GetSwarm(); p != nil {
			s.Swarm = &p.UploadRate
		}
		s.Certificate, s.NodeUUID, s.Generation = r.Certificate, r.NodeUuid, r.Generation
		s.Highest = max(s.Highest, r.Generation)
	})
	a.log.Info("enrolled", "node", r.NodeUuid, "generation", r.Generation, "conductor", address, "uptime",
		id.Uptime().Round(time.Millisecond))
	a.o.Status.Line("node %s, conductor %s, %s after kernel start", r.NodeUuid, address,
		id.Uptime().Round(10*time.Millisecond))
	return nil
}

func (a *Agent) setClock(t time.Time) {
	off := time.Until(t)
	if off.Abs() < clockSlack {
		return
	}
	if err := a.o.System.SetClock(t); err != nil {
		a.log.Warn("the clock stays wrong", "off", off.Round(time.Second), "err", err)
		return
	}
	a.log.Info("clock set from the conductor", "off", off.Round(time.Second))
}

func (a *Agent) hello() *agentv1.AgentMessage {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	return &agentv1.AgentMessage{Body: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		BootId: a.st.BootID, Generation: a.st.Generation, AgentVersion: a.o.Version, PlanId: a.st.Plan.ID,
		PlanGeneration: a.st.Plan.Generation, StepIndex: uint32(a.st.Plan.Index), PlanRunning: a.st.Plan.Running,
		LastSeq: a.q.lastSeq, StepsDigest: a.digest, WorkerRestarts: uint32(max(a.o.Restarts, 0)),
		RestartReason: a.o.Reason,
	}}}
}

// session serves one stream to its end.
func (a *Agent) session(ctx context.Context, client agentv1.AgentsClient) (opened bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening := time.AfterFunc(callTimeout, func() {
		cancel(status.Error(codes.Unavailable, "the conductor did not answer in time"))
	})
	stream, err := client.Session(ctx)
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	if err := stream.Send(a.hello()); err != nil {
		_, err = stream.Recv() // the reason is here; Send only says that the stream has ended
		return false, fmt.Errorf("open a session: %w", err)
	}
	first, err := stream.Recv()
	if !opening.Stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("open a session: %w", err)
	}
	welcome := first.GetWelcome()
	if welcome == nil {
		return false, errors.New("open a session: the conductor's first message is no Welcome")
	}
	if t := welcome.Clock; t != nil {
		a.setClock(t.AsTime())
	}
	a.q.reopen(welcome.AckedSeq)
	a.enableSwarm()
	a.swarm.Session(localAddr(stream.Context()))
	defer a.swarm.SessionLost()
	a.log.Info("session opened", "acked", welcome.AckedSeq, "uptime", a.o.Identity.Uptime().Round(time.Millisecond))
	a.o.Status.Line("connected to the conductor")

	s := &serving{a: a, stream: stream}
	received := make(chan error, 1)
	go func() {
		err := s.receive()
		cancel(err)
		received <- err
	}()
	sendErr := s.send(ctx)
	if errors.Is(sendErr, errLeave) {
		// Everything is said; the conductor closes its side when it has stored it.
		_ = stream.CloseSend()
		select {
		case <-received:
		case <-time.After(2 * time.Second):
			cancel(nil)
			<-received
		}
		return true, s.leave(context.WithoutCancel(ctx))
	}
	cancel(sendErr)
	err = <-received
	if errors.Is(err, errRedirected) || errors.Is(err, errNetworkReset) {
		return true, err
	}
	return true, fmt.Errorf("session ended: %w", err)
}
