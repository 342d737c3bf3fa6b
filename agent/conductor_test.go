package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// authority is a CA with its own clock, so that tests can make certificates of another time.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	now  time.Time
}

func newAuthority(t *testing.T, now time.Time) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, now: now}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: now,
		NotAfter: now.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// towardsConductors stands for a usage of no agent and no server, which conductors have among themselves.
const towardsConductors x509.ExtKeyUsage = -1

func (a *authority) issue(pub any, usage x509.ExtKeyUsage) []byte {
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "x"}, NotBefore: a.now,
		NotAfter: a.now.AddDate(1, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	if usage == towardsConductors {
		tmpl.ExtKeyUsage, tmpl.UnknownExtKeyUsage = nil, []asn1.ObjectIdentifier{{2, 25, 1768843124}}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, pub, a.key)
	if err != nil {
		panic(err)
	}
	return der
}

func (a *authority) server(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{a.issue(&key.PublicKey, usage), a.cert.Raw}, PrivateKey: key}
}

// conductor is a small conductor over real TLS. What it has stored survives its restarts, as a real one's database
// does.
type conductor struct {
	agentv1.UnimplementedAgentsServer
	t    *testing.T
	ca   *authority
	cert tls.Certificate

	mu      sync.Mutex
	sending sync.Mutex
	addr    string
	server  *grpc.Server
	keys    []string // public keys that enrolled
	refuse  error    // for Enroll
	deny    error    // for Session
	hellos  []*agentv1.Hello
	came    []time.Time // when they did
	stream  grpc.BidiStreamingServer[agentv1.AgentMessage, agentv1.ConductorMessage]
	acked   uint64
	noAck   bool
	results []*agentv1.Event // each once
	dups    int
	other   []*agentv1.Event // progress, logs, bundles
	open    int              // streams
	closed  int              // those that the agent closed in good order
	clock   time.Time
	policy  *agentv1.Policy
	// elsewhere is where agents are sent instead of a welcome; "": they are welcome
	elsewhere string
	others    []string // named in the welcome
}

func newConductor(t *testing.T) *conductor {
	t.Helper()
	// Far in the future: the agent's clock must not matter.
	ca := newAuthority(t, time.Now().AddDate(20, 0, 0))
	c := &conductor{t: t, ca: ca, cert: ca.server(t, x509.ExtKeyUsageServerAuth), clock: time.Now()}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *conductor) start() {
	c.t.Helper()
	addr := c.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var l net.Listener
	var err error
	poll(c.t, "listening on "+addr, func() bool { l, err = net.Listen("tcp", addr); return err == nil })
	c.mu.Lock()
	c.addr = l.Addr().String()
	c.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{c.cert}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13,
	})))
	agentv1.RegisterAgentsServer(c.server, c)
	s := c.server
	c.mu.Unlock()
	go s.Serve(l)
}

// stop is a sudden end: streams break.
func (c *conductor) stop() {
	c.mu.Lock()
	s := c.server
	c.mu.Unlock()
	s.Stop()
}

func (c *conductor) Enroll(_ context.Context, r *agentv1.EnrollRequest) (*agentv1.EnrollResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	csr, err := x509.ParseCertificateRequest(r.Csr)
	if err != nil || csr.CheckSignature() != nil || r.Protocol != 1 || r.BootId == "" || r.Token != "secret" {
		return nil, status.Error(codes.InvalidArgument, "malformed")
	}
	pub, _ := x509.MarshalPKIXPublicKey(csr.PublicKey)
	c.keys = append(c.keys, string(pub))
	return &agentv1.EnrollResponse{
		NodeUuid: "node-1", Certificate: c.ca.issue(csr.PublicKey, x509.ExtKeyUsageClientAuth), Generation: 3,
		Clock: timestamppb.New(c.clock), Policy: c.policy}, nil
}

func (c *conductor) Session(s grpc.BidiStreamingServer[agentv1.AgentMessage, agentv1.ConductorMessage]) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	h := m.GetHello()
	c.mu.Lock()
	c.open++
	defer func() { c.mu.Lock(); c.open--; c.mu.Unlock() }()
	if c.deny != nil {
		err := c.deny
		c.mu.Unlock()
		return err
	}
	c.hellos, c.came = append(c.hellos, h), append(c.came, time.Now())
	acked, elsewhere, others := c.acked, c.elsewhere, c.others
	c.mu.Unlock()
	if elsewhere != "" {
		return errors.Join(c.send(s, redirect(elsewhere)), status.Error(codes.Unavailable, "the node is not here"))
	}
	welcome := &agentv1.Welcome{AckedSeq: acked, Conductors: others}
	if err := c.send(s,
		&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	c.mu.Lock()
	c.stream = s // only now: the welcome comes first
	c.mu.Unlock()
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			c.mu.Lock()
			c.closed++
			c.mu.Unlock()
			return nil
		}
		if err != nil {
			return err
		}
		e := m.GetEvent()
		c.mu.Lock()
		switch {
		case e.Seq == 0:
			c.other = append(c.other, e)
		case e.Seq <= c.acked || slices.ContainsFunc(c.results, func(o *agentv1.Event) bool { return o.Seq == e.Seq }):
			c.dups++
		default:
			c.results = append(c.results, e)
		}
		ack := !c.noAck && e.Seq > 0
		if ack {
			c.acked = max(c.acked, e.Seq)
		}
		c.mu.Unlock()
		if ack {
			_ = c.send(s, &agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Ack{Ack: &agentv1.Ack{Seq: e.Seq}}})
		}
	}
}

// send serializes the sends of a stream, which allows one at a time.
func (c *conductor) send(s grpc.BidiStreamingServer[agentv1.AgentMessage, agentv1.ConductorMessage],
	m *agentv1.ConductorMessage) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return s.Send(m)
}

// say sends a message on the open stream.
func (c *conductor) say(m *agentv1.ConductorMessage) {
	c.t.Helper()
	poll(c.t, "a session", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.stream != nil })
	c.mu.Lock()
	s := c.stream
	c.mu.Unlock()
	if err := c.send(s, m); err != nil {
		c.t.Errorf("send to the agent: %v", err)
	}
}

func (c *conductor) plan(id string, generation uint64, steps ...string) {
	c.t.Helper()
	p := &agentv1.Plan{Id: id, Generation: generation, Phase: "deploy"}
	for _, s := range steps {
		p.Steps = append(p.Steps, &agentv1.Step{Interface: "deploy", Name: s})
	}
	c.say(&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Plan{Plan: p}})
}

// redirect is the message that sends an agent to another conductor.
func redirect(to string) *agentv1.ConductorMessage {
	return &agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Redirect{Redirect: &agentv1.Redirect{Address: to}}}
}

// finished gives how a plan ended, nil while it has not.
func (c *conductor) finished(id string) *agentv1.PlanFinished {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.results {
		if f := e.GetPlanFinished(); f != nil && f.PlanId == id {
			return f
		}
	}
	return nil
}

// logged reports whether a log line with text arrived.
func (c *conductor) logged(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.other, func(e *agentv1.Event) bool { return e.GetLog().GetMessage() == text })
}

func (c *conductor) count(f func() int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f()
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for tick := time.NewTicker(5 * time.Millisecond); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// box is the machine of a test.
type box struct {
	mu     sync.Mutex
	clock  time.Time
	ended  string
	fail   error
	loaded bool // a kernel is ready for a jump
}

func (b *box) SetClock(t time.Time) error   { b.mu.Lock(); defer b.mu.Unlock(); b.clock = t; return nil }
func (b *box) Settle(context.Context) error { return nil }
func (b *box) KernelLog() ([]byte, error)   { return []byte("kernel says hello\n"), nil }
func (b *box) End(_ context.Context, how string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = how
	return b.fail
}

func (b *box) KernelLoaded() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.loaded }

func (b *box) how() string { b.mu.Lock(); defer b.mu.Unlock(); return b.ended }

// wire is a network that is up.
type wire struct {
	mu      sync.Mutex
	rotated int
	resets  int
	left    int
}

func (*wire) Wait(context.Context) error { return nil }
func (w *wire) Rotate()                  { w.mu.Lock(); w.rotated++; w.mu.Unlock() }
func (w *wire) Reset(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resets++
	return nil
}
func (w *wire) Leave(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left++
	return nil
}
func (*wire) Summary() string { return "eth0 192.0.2.1/24" }

// bench is an agent under test with steps that the test controls.
type bench struct {
	t       *testing.T
	c       *conductor
	box     *box
	wire    *wire
	opts    Options
	release chan struct{} // lets the step "wait" end
	ran     chan string
	before  func(*Agent) // is called before the agent runs; nil: nothing
	stop    func() error // ends it, and gives what Run gave
	ended   func() bool  // by itself
}

func newBench(t *testing.T, c *conductor) *bench {
	t.Helper()
	b := &bench{t: t, c: c, box: &box{}, wire: &wire{}, release: make(chan struct{}), ran: make(chan string, 100)}
	note := func(f step.Func) step.Func {
		return func(ctx context.Context, call *step.Call) (step.Outcome, error) {
			out, err := f(ctx, call)
			return out, err
		}
	}
	b.opts = Options{
		Config:   Config{Conductors: []string{c.addr}, CA: sha256.Sum256(c.ca.cert.Raw), Token: "secret"},
		Version:  "test",
		Identity: inventory.Identity{BootID: "boot-1", MACs: []string{"52:54:00:00:00:01"}, BootMode: "bios"},
		System:   b.box, Network: b.wire, Log: slog.NewTextHandler(io.Discard, nil), State: t.TempDir() + "/state",
		Steps: []step.Step{
			{Row: step.Row{Interface: "deploy", Name: "quick"},
				Run: note(func(context.Context, *step.Call) (step.Outcome, error) {
					b.ran <- "quick"
					return step.Outcome{Result: map[string]int{"n": 7}}, nil
				})},
			{Row: step.Row{Interface: "deploy", Name: "wait"},
				Run: note(func(ctx context.Context, call *step.Call) (step.Outcome, error) {
					b.ran <- "wait"
					call.Report(step.Progress{Phase: "write", Bytes: 1, Total: 2})
					<-b.release
					return step.Outcome{}, nil
				})},
			{Row: step.Row{Interface: "deploy", Name: "abortable", Abortable: true},
				Run: func(ctx context.Context, _ *step.Call) (step.Outcome, error) {
					b.ran <- "abortable"
					<-ctx.Done()
					return step.Outcome{}, ctx.Err()
				}},
			{Row: step.Row{Interface: "deploy", Name: "fail"},
				Run: func(context.Context, *step.Call) (step.Outcome, error) {
					return step.Outcome{}, step.Retryable("plug it in", errors.New("no cable"))
				}},
		},
	}
	return b
}

// run starts an agent; stopping it is the end of its worker.
func (b *bench) run() *Agent {
	b.t.Helper()
	a, err := New(b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.before != nil {
		b.before(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = a.Run(ctx)
	}()
	b.ended = func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	b.stop = sync.OnceValue(func() error { cancel(); <-done; return err })
	b.t.Cleanup(func() { _ = b.stop() })
	return a
}
