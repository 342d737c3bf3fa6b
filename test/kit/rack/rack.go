// Package rack is a conductor as far as agents see one: it enrols those that it made tokens for, gives them plans and
// hears what becomes of these. Which plans, and when, is up to the test or benchmark. Store, CA and server are the real
// ones.
package rack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Options of a Rack.
type Options struct {
	Dir    string        // of the store and the CA
	Nodes  int           // how many machines there are
	Swarm  *agents.Swarm // nil: none
	Log    *slog.Logger
	Event  func(node.AgentEvent)                  // called for each, maybe side by side
	Report func(nodeUUID string, p node.Progress) // nil: not needed
}

// Rack is running.
type Rack struct {
	CA     string   // fingerprint, in hex
	Nodes  []string // UUIDs
	Tokens []string // of the nodes, in the same order

	o     Options
	store *store.Store
	srv   *agents.Server
	ready chan struct{}

	mu    sync.Mutex
	up    map[string]node.AgentState
	plans int
}

// Start begins to serve agents at a listener, which is the rack's from then on.
func Start(ctx context.Context, l net.Listener, o Options) (*Rack, error) {
	r := &Rack{o: o, ready: make(chan struct{}), up: map[string]node.AgentState{}}
	host, _, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	if r.store, err = store.Open(ctx, store.Options{Dir: o.Dir}); err != nil {
		return nil, err
	}
	ca, err := agents.OpenCA(o.Dir)
	if err != nil {
		return nil, errors.Join(err, r.store.Close())
	}
	r.CA = ca.Fingerprint()
	r.srv, err = agents.New(r.store, (*desk)(r), ca,
		agents.Config{Dir: o.Dir, Names: []string{host}, Hostname: "rack", Swarm: o.Swarm,
			NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) }}, o.Log)
	if err != nil {
		return nil, errors.Join(err, r.store.Close())
	}
	for i := range o.Nodes {
		if err := r.add(ctx, fmt.Sprintf("node-%d", i+1)); err != nil {
			return nil, errors.Join(err, r.store.Close())
		}
	}
	go r.srv.Serve(l) // until Stop
	return r, nil
}

func (r *Rack) add(ctx context.Context, name string) error {
	n := &node.Node{Name: name, Driver: "fake-hardware", Provision: node.DeployWait}
	if err := r.store.CreateNode(ctx, n); err != nil {
		return err
	}
	token := n.UUID + "." + strings.Repeat("A", 43)
	sum := sha256.Sum256([]byte(token))
	_, err := r.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		n.Generation++
		n.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour),
			TokenHash: hex.EncodeToString(sum[:]), TokenExpires: time.Now().Add(time.Hour), Generation: n.Generation}
		return nil
	})
	r.Nodes, r.Tokens = append(r.Nodes, n.UUID), append(r.Tokens, token)
	return err
}

// Stop ends it.
func (r *Rack) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	r.srv.Stop(ctx)
	return r.store.Close()
}

// Ready is closed when all agents have come.
func (r *Rack) Ready() <-chan struct{} { return r.ready }

// Send gives an agent that has come a plan.
func (r *Rack) Send(ctx context.Context, nodeUUID string, steps ...node.PlanStep) error {
	r.mu.Lock()
	s, ok := r.up[nodeUUID]
	r.plans++
	id := fmt.Sprintf("plan-%d", r.plans)
	r.mu.Unlock()
	if !ok {
		return fmt.Errorf("the agent of node %s has not come", nodeUUID)
	}
	return r.srv.SendPlan(ctx, nodeUUID, node.Plan{ID: id, Generation: s.Generation, Phase: "deploy", Steps: steps})
}

// desk is the part of a conductor that the server needs.
type desk Rack

func (*desk) Enrolled(context.Context, string)           {}
func (*desk) AgentLost(context.Context, string, string)  {}
func (*desk) AgentStale(context.Context, string, string) {}

func (d *desk) AgentProgress(nodeUUID string, p node.Progress) {
	if d.o.Report != nil {
		d.o.Report(nodeUUID, p)
	}
}

func (d *desk) AgentUp(_ context.Context, s node.AgentState) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, again := d.up[s.NodeUUID]
	d.up[s.NodeUUID] = s
	if len(d.up) == d.o.Nodes && !again {
		close(d.ready)
	}
	return nil
}

func (d *desk) AgentEvent(_ context.Context, e node.AgentEvent) error {
	if d.o.Event != nil {
		d.o.Event(e)
	}
	return nil
}
