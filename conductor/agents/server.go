// Package agents is the conductor's end of the contract with its agents (proto/agentv1): a CA, enrolment, and one
// session per connected agent.
//
// What an agent may do is decided against the store each time, never from memory: a token by node.Boot, a session by
// (node, boot id, generation). A result is handed to the engine, then its sequence number is stored, then it is
// acknowledged; should the conductor die between, the agent sends it again, so the engine must take a result twice.
// Progress and log lines are kept in memory only and never wait for the disk.
//
// The server's certificate is made anew at each start: the agent trusts the CA by its fingerprint and looks at no
// dates.
package agents

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ingot-metal/ingot/conductor/agents/swarm"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// ErrNoSession means that the node's agent is not connected.
var ErrNoSession = errors.New("the node's agent is not connected")

// records is the part of the store that agents need.
type records interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error)
	Change(ctx context.Context, uuid string, change func(*node.Node, *node.SideEffects) error) (*node.Node, error)
	PortByMAC(ctx context.Context, mac string) (*node.Port, error)
	HasPorts(ctx context.Context, nodeUUID string) (bool, error)
	CreateNode(ctx context.Context, n *node.Node) error
	NodeByGUID(ctx context.Context, guid string) (*node.Node, error)
}

// brain receives the events of agents. AgentUp and AgentEvent return after storing them; AgentProgress does not block.
// The brain stores that an agent is connected, or lost, since it acts on it.
type brain interface {
	Enrolled(ctx context.Context, nodeUUID string)
	AgentUp(ctx context.Context, s node.AgentState) error
	AgentEvent(ctx context.Context, e node.AgentEvent) error
	AgentProgress(nodeUUID string, p node.Progress)
	AgentLost(ctx context.Context, nodeUUID, bootID string)
	// AgentStale reports an agent whose session was refused because its boot is over.
	AgentStale(ctx context.Context, nodeUUID, bootID string)
}

// Config is the configuration of a Server.
type Config struct {
	// Dir is the data directory: log bundles go below it.
	Dir string
	// Names are the DNS names and IP addresses by which agents reach this conductor.
	Names []string
	// Hostname names this conductor in histories.
	Hostname string
	// NotFound reports whether an error of the store means that the node or port does not exist.
	NotFound func(error) bool
	// Now is the clock, of the CA as well; nil is time.Now.
	Now func() time.Time
	// Keepalive is how long a connection may be silent before it is probed, and then how long the answer may take; zero
	// is 10 s.
	Keepalive time.Duration
	// Erased, unless nil, is handed the result of every step, failed ones too, before the engine is: it keeps the
	// reports of erased disks. It is called again when a result comes again.
	Erased func(ctx context.Context, nodeUUID string, result []byte) error
	// Bodies is the budget for messages of agents; nil bounds nothing.
	Bodies *limit.Budget
	// Discovery, unless nil, creates nodes for unknown machines.
	Discovery *Discovery
	// Elsewhere, unless nil, returns the address (HOST:PORT of the listener for agents) of the conductor that owns a
	// node, to which the node's agent is sent; "" if that is this conductor, or if the node has no owner. It must not
	// wait. An agent that does not say that it follows
	// redirects is refused with UNAVAILABLE while its node is elsewhere.
	Elsewhere func(*node.Node) (address string)
	// Others, unless nil, returns the addresses of other conductors, as Elsewhere does, which agents may ask when this
	// one is gone. It must not wait.
	Others func() []string
	// Count, unless nil, is called with what happened: an "enrolment" was "granted", "refused" or "failed", a "session"
	// was "opened", "redirected", "refused" or "closed", a "connection" was "sent away", to come again.
	Count func(what, outcome string)
	// Swarm, unless nil, introduces agents that write the same image to each other.
	Swarm *Swarm
}

// Server serves agents. Make it with New.
type Server struct {
	agentv1.UnimplementedAgentsServer

	store  records
	engine brain
	ca     *CA
	cfg    Config
	log    *slog.Logger
	now    func() time.Time
	tls    *tls.Config
	// grpc serves agents with a certificate, strange all others (listen.go).
	grpc, strange *grpc.Server
	gate          *limit.Gate
	logs          journal
	swarms        Introducer // nil: agents are not introduced to each other
	bundle        sync.Mutex // one bundle is written at a time
	swept         time.Time  // when bundles of deleted nodes were looked for; guarded by bundle

	discovering sync.Mutex
	discoveries budget // guarded by discovering

	mu        sync.Mutex
	sessions  map[string]*session // by node UUID
	refusals  map[string]*refusals
	strangers limiter
	turned    limiter // lines about agents that can't be redirected
	stopping  bool
	listener  net.Listener
}

// New makes a server; Serve starts it.
func New(store records, engine brain, ca *CA, cfg Config, log *slog.Logger) (*Server, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	gate := limit.NewGate(max(limit.AgentsAtOnce, runtime.GOMAXPROCS(0)/2*limit.AgentsAtOnce))
	s := &Server{gate: gate, store: store, engine: engine, ca: ca, cfg: cfg, log: log, now: cfg.Now,
		sessions: map[string]*session{}, refusals: map[string]*refusals{},
		strangers: limiter{b: budget{size: 10, every: time.Minute}},
		turned:    limiter{b: budget{size: 10, every: time.Minute}}}
	if s.now == nil {
		s.now = time.Now
	} else {
		ca.goBy(s.now)
	}
	if s.cfg.NotFound == nil {
		s.cfg.NotFound = func(error) bool { return false }
	}
	if d := cfg.Discovery; d != nil {
		s.discoveries = budget{size: float64(d.LimitPerHour), every: time.Hour}
	}
	if cfg.Swarm != nil {
		if s.swarms = cfg.Swarm.Registry; s.swarms == nil {
			s.swarms = &swarm.Registry{}
		}
	}
	tlsConf, err := ca.ServerTLS(cfg.Names)
	if err != nil {
		return nil, err
	}
	alive := cmp.Or(cfg.Keepalive, 10*time.Second)
	s.tls = tlsConf
	s.newServers(alive)
	return s, nil
}

// Stop ends all sessions, which agents answer by connecting again, and returns when the last has ended or ctx does.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.stopping = true
	if n := len(s.sessions); n > 0 {
		s.log.Info("the conductor stops: its agents go on with their plans, and connect again", "agents", n)
	}
	for _, ss := range s.sessions {
		ss.end(errStopping)
	}
	if s.listener != nil {
		s.listener.Close() // Serve returns for it
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.strange.GracefulStop()
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.strange.Stop()
		s.grpc.Stop()
		<-done
	}
}

func (s *Server) count(what, outcome string) {
	if s.cfg.Count != nil {
		s.cfg.Count(what, outcome)
	}
}

// Logs returns the lines of a node's agent log that are kept in memory and have a number above after, oldest first.
func (s *Server) Logs(nodeUUID string, after uint64) []LogLine { return s.logs.after(nodeUUID, after) }

// Watched returns how many agents are connected, and how long ago the newest message came of the one that has said
// nothing for longest.
func (s *Server) Watched() (connected int, silence time.Duration) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ss := range s.sessions {
		silence = max(silence, now.Sub(time.Unix(0, ss.heard.Load())))
	}
	return len(s.sessions), silence
}

// Connected reports whether a node's agent has a session now.
func (s *Server) Connected(nodeUUID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[nodeUUID] != nil
}

func (s *Server) bundleDir(nodeUUID string) string { return filepath.Join(s.cfg.Dir, "logs", nodeUUID) }

// limiter is a budget that several goroutines share.
type limiter struct {
	mu sync.Mutex
	b  budget
}

func (l *limiter) take(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.take(now)
}
