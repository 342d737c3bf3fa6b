// Package agentstest is an agent without a machine: it implements the contract over real TLS as the real agent does,
// and the tests define its steps. For tests of code that serves agents.
package agentstest

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ingot-metal/ingot/proto/agentv1"
)

// StepFunc does the work of a simulated step. It returns the step's result, a JSON object.
type StepFunc func(ctx context.Context, s *agentv1.Step, progress func(*agentv1.Progress)) ([]byte, error)

// Agent is one boot of a simulated agent. Set the exported fields before use.
type Agent struct {
	Addr        string // HOST:PORT of the conductor; changed by redirects
	Fingerprint string // of its CA, hex
	Token       string
	BootID      string   // empty: a new one
	BootMode    string   // empty: "bios"
	MACs        []string // of the machine; empty: one that is the same for all
	UUID        string   // of the machine, from its SMBIOS
	Digest      string   // of the table of steps
	Steps       map[string]StepFunc
	// Power is called with the conductor's power actions; nil ignores them.
	Power    func(agentv1.PowerAction)
	Stubborn bool // does not follow redirects, and does not say that it does
	// Retry is how long to wait before connecting again; zero is 50 ms.
	Retry time.Duration

	once sync.Once
	key  *ecdsa.PrivateKey
	cert []byte
	Node string // filled in by Enroll
	Gen  uint64

	mu      sync.Mutex
	seq     uint64
	unacked []*agentv1.Event
	news    chan struct{} // something to send
	latest  *agentv1.Event
	bundle  *agentv1.Event
	plan    *agentv1.Plan
	index   uint32
	running bool
	cancel  context.CancelFunc
	runs    map[string]int
	plans   sync.WaitGroup
}

func (a *Agent) init() {
	a.once.Do(func() {
		a.BootID = cmp.Or(a.BootID, uuid.NewString())
		a.BootMode = cmp.Or(a.BootMode, "bios")
		if a.MACs == nil {
			a.MACs = []string{"52:54:00:00:00:01"}
		}
		a.Retry = cmp.Or(a.Retry, 50*time.Millisecond)
		a.news = make(chan struct{}, 1)
		a.runs = map[string]int{}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		a.key = key
	})
}

// Runs returns how often a step was begun.
func (a *Agent) Runs(step string) int {
	a.init()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[step]
}

// TLS is how this agent trusts: by the CA's fingerprint alone, with no regard to dates and names.
func (a *Agent) TLS() *tls.Config {
	conf := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(cs tls.ConnectionState) error {
			pool := x509.NewCertPool()
			var at time.Time
			for _, c := range cs.PeerCertificates {
				sum := sha256.Sum256(c.Raw)
				if hex.EncodeToString(sum[:]) == a.Fingerprint {
					pool.AddCert(c)
					at = cs.PeerCertificates[0].NotBefore
				}
			}
			_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at})
			return err
		},
	}
	if a.cert != nil {
		conf.Certificates = []tls.Certificate{{Certificate: [][]byte{a.cert}, PrivateKey: a.key}}
	}
	return conf
}

// Dial makes a connection with the certificate that the agent has by now.
func (a *Agent) Dial() (*grpc.ClientConn, error) {
	a.init()
	a.mu.Lock()
	addr := a.Addr
	a.mu.Unlock()
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(a.TLS())))
}

// Request returns the request that Enroll sends.
func (a *Agent) Request() (*agentv1.EnrollRequest, error) {
	a.init()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, a.key)
	if err != nil {
		return nil, err
	}
	return &agentv1.EnrollRequest{Protocol: 1, BootId: a.BootID, Token: a.Token, Macs: a.MACs, SmbiosUuid: a.UUID,
		Csr: csr, AgentVersion: "simulated", BootMode: a.BootMode, Uptime: durationpb.New(2 * time.Second)}, nil
}

// Enroll enrols once.
func (a *Agent) Enroll(ctx context.Context) error {
	req, err := a.Request()
	if err != nil {
		return err
	}
	a.cert = nil
	return a.send(ctx, req)
}

// Renew requests another certificate with the one that the agent has.
func (a *Agent) Renew(ctx context.Context) error {
	req, err := a.Request()
	if err != nil {
		return err
	}
	return a.send(ctx, req)
}

// Certificate is the agent's, as DER.
func (a *Agent) Certificate() []byte { return a.cert }

func (a *Agent) send(ctx context.Context, req *agentv1.EnrollRequest) error {
	conn, err := a.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := agentv1.NewAgentsClient(conn).Enroll(ctx, req)
	if err != nil {
		return err
	}
	a.cert, a.Node, a.Gen = resp.Certificate, resp.NodeUuid, resp.Generation
	return nil
}

// Open opens a session, says hello and returns the welcome.
func (a *Agent) Open(ctx context.Context) (agentv1.Agents_SessionClient, *agentv1.Welcome, func() error, error) {
	conn, err := a.Dial()
	if err != nil {
		return nil, nil, nil, err
	}
	fail := func(err error) (agentv1.Agents_SessionClient, *agentv1.Welcome, func() error, error) {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	stream, err := agentv1.NewAgentsClient(conn).Session(ctx)
	if err != nil {
		return fail(err)
	}
	if err := stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Hello{Hello: a.hello()}}); err != nil {
		_, err = stream.Recv()
		return fail(err)
	}
	m, err := stream.Recv()
	if err != nil {
		return fail(err)
	}
	if r := m.GetRedirect(); r != nil {
		return fail(a.follow(r))
	}
	if m.GetWelcome() == nil {
		return fail(fmt.Errorf("the first message is %T, want welcome", m.Body))
	}
	return stream, m.GetWelcome(), conn.Close, nil
}

func (a *Agent) hello() *agentv1.Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := &agentv1.Hello{BootId: a.BootID, Generation: a.Gen, AgentVersion: "simulated", LastSeq: a.seq,
		StepsDigest: a.Digest, FollowsRedirects: !a.Stubborn}
	if a.plan != nil {
		h.PlanId, h.PlanGeneration, h.StepIndex, h.PlanRunning = a.plan.Id, a.plan.Generation, a.index, a.running
	}
	return h
}

// Run enrols and then keeps a session, with reconnects, until ctx ends or the conductor has finally refused it. While
// the conductor is away it tries again.
func (a *Agent) Run(ctx context.Context) error {
	a.init()
	defer a.plans.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for a.cert == nil {
		if err := a.Enroll(ctx); err != nil {
			if final(err) || ctx.Err() != nil {
				return err
			}
			a.pause(ctx)
		}
	}
	for {
		err := a.session(ctx)
		if final(err) || ctx.Err() != nil {
			return err
		}
		a.pause(ctx)
	}
}

func (a *Agent) pause(ctx context.Context) {
	select {
	case <-time.After(a.Retry):
	case <-ctx.Done():
	}
}

func final(err error) bool {
	return slices.Contains([]codes.Code{
		codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition,
	}, status.Code(err))
}

func (a *Agent) session(ctx context.Context) error {
	sctx, stop := context.WithCancel(ctx)
	defer stop()
	stream, welcome, closeConn, err := a.Open(sctx)
	if err != nil {
		return err
	}
	defer closeConn()
	a.acked(welcome.AckedSeq)

	var sender sync.WaitGroup
	defer sender.Wait()
	defer stop()
	sender.Go(func() { a.sendAll(sctx, stream) })
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch b := m.Body.(type) {
		case *agentv1.ConductorMessage_Ack:
			a.acked(b.Ack.Seq)
		case *agentv1.ConductorMessage_Plan:
			a.accept(ctx, b.Plan)
		case *agentv1.ConductorMessage_Cancel:
			a.mu.Lock()
			if a.running && a.plan.Id == b.Cancel.PlanId {
				a.cancel()
			}
			a.mu.Unlock()
		case *agentv1.ConductorMessage_CollectLogs:
			a.mu.Lock()
			a.bundle = &agentv1.Event{
				Time: timestamppb.Now(),
				Body: &agentv1.Event_LogBundle{LogBundle: &agentv1.LogBundle{TarGz: []byte("logs")}}}
			a.mu.Unlock()
			a.wake()
		case *agentv1.ConductorMessage_Redirect:
			return a.follow(b.Redirect)
		case *agentv1.ConductorMessage_Power:
			if a.Power != nil {
				a.Power(b.Power.Action)
			}
		}
	}
}

// follow makes another conductor the one to connect to.
func (a *Agent) follow(r *agentv1.Redirect) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Stubborn {
		return errors.New("a redirect for an agent that does not follow any")
	}
	a.Addr = r.Address
	return fmt.Errorf("redirected to %s", r.Address)
}

// sendAll sends the unacknowledged events, then new ones.
func (a *Agent) sendAll(ctx context.Context, stream agentv1.Agents_SessionClient) {
	var sent uint64
	for {
		a.mu.Lock()
		var batch []*agentv1.Event
		for _, e := range a.unacked {
			if e.Seq > sent {
				batch = append(batch, e)
				sent = e.Seq
			}
		}
		if a.latest != nil {
			batch = append(batch, a.latest)
			a.latest = nil
		}
		if a.bundle != nil {
			batch = append(batch, a.bundle)
			a.bundle = nil
		}
		a.mu.Unlock()
		for _, e := range batch {
			if stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: e}}) != nil {
				return
			}
		}
		select {
		case <-a.news:
		case <-ctx.Done():
			return
		}
	}
}

func (a *Agent) acked(seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.unacked) > 0 && a.unacked[0].Seq <= seq {
		a.unacked = a.unacked[1:]
	}
}

// Unacked returns how many results the conductor has not acknowledged.
func (a *Agent) Unacked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.unacked)
}

func (a *Agent) wake() {
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// Result queues an event that must arrive.
func (a *Agent) Result(e *agentv1.Event) {
	a.init()
	a.mu.Lock()
	a.seq++
	e.Seq, e.Time = a.seq, timestamppb.Now()
	a.unacked = append(a.unacked, e)
	a.mu.Unlock()
	a.wake()
}

func (a *Agent) accept(ctx context.Context, p *agentv1.Plan) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plan != nil && (a.plan.Id == p.Id || p.Generation < a.plan.Generation) {
		return
	}
	if a.running {
		a.cancel()
	}
	pctx, cancel := context.WithCancel(ctx)
	a.plan, a.index, a.running, a.cancel = p, 0, true, cancel
	a.plans.Go(func() { a.carryOut(pctx, p) })
}

func (a *Agent) carryOut(ctx context.Context, p *agentv1.Plan) {
	done := true
	for i, s := range p.Steps {
		i := uint32(i)
		a.mu.Lock()
		a.index = i
		a.runs[s.Name]++
		a.mu.Unlock()
		a.Result(&agentv1.Event{
			Body: &agentv1.Event_StepStarted{
				StepStarted: &agentv1.StepStarted{PlanId: p.Id, StepIndex: i, Interface: s.Interface, Name: s.Name}}})
		begin := time.Now()
		var out []byte
		var err error
		if f := a.Steps[s.Name]; f != nil {
			out, err = f(ctx, s, func(pr *agentv1.Progress) {
				pr.PlanId, pr.StepIndex = p.Id, i
				a.mu.Lock()
				a.latest = &agentv1.Event{Time: timestamppb.Now(), Body: &agentv1.Event_Progress{Progress: pr}}
				a.mu.Unlock()
				a.wake()
			})
		}
		f := &agentv1.StepFinished{PlanId: p.Id, StepIndex: i, Interface: s.Interface, Name: s.Name,
			Outcome: agentv1.Outcome_OUTCOME_DONE, Result: out, Took: durationpb.New(time.Since(begin))}
		if err != nil {
			f.Outcome, f.Error, f.Remedy, f.Result = agentv1.Outcome_OUTCOME_FAILED, err.Error(), "look at the test",
				nil
		}
		a.Result(&agentv1.Event{Body: &agentv1.Event_StepFinished{StepFinished: f}})
		if err != nil {
			done = false
			break
		}
	}
	a.mu.Lock()
	a.running = false
	a.mu.Unlock()
	a.Result(&agentv1.Event{
		Body: &agentv1.Event_PlanFinished{
			PlanFinished: &agentv1.PlanFinished{PlanId: p.Id, Done: done, Cancelled: ctx.Err() != nil}}})
}
