package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// world is the surroundings of a conductor: a store on disk, machines with controllers, agents that live in the
// machines' memory. Conductors come and go in it.
type world struct {
	t     *testing.T
	store *store.Store
	cfg   Config

	mu       sync.Mutex
	machines map[string]*machine // by node UUID
	cond     *conductor
	conds    map[string]*conductor // the last of each name
	wg       sync.WaitGroup
	logs     bool
	plugs    plugs
	seen     map[node.Transition]bool
	objects  bool          // config drives are objects
	media    bool          // machines boot the agent from virtual media
	ahead    *atomic.Int64 // how far the store's clock is
}

// conductor is one life of an engine. Once it is dead nothing that it does has any effect.
type conductor struct {
	w      *world
	eng    *Engine
	cancel context.CancelFunc
	ended  chan struct{} // Run has returned
	dead   chan struct{} // closed by kill
	once   sync.Once
	crash  *crash
	commit sync.RWMutex // held for reading while a write is under way: death comes between writes
}

// crash says after which write a conductor dies, and whether that write still gets through.
type crash struct {
	mu     sync.Mutex
	at     int // 0: never
	count  int
	hit    bool // that write has come
	commit bool
	moment func(*node.Node) bool // dies after the write that brings the node here
	refuse bool                  // the next write, of a conductor that lives on
}

var (
	errDead    = errors.New("this conductor is dead")
	errRefused = errors.New("the database is away")
)

// testConfig has limits that no slow machine comes to: a test that waits for one sets its own.
func testConfig() Config {
	return Config{Hostname: "c1", AutomatedClean: true, BootMode: "bios",
		BootTimeout: time.Minute, SessionGrace: 20 * time.Second, PowerTimeout: 20 * time.Second,
		AgentOff: 20 * time.Second, PowerPoll: 2 * time.Millisecond, CallTimeout: 20 * time.Second,
		RetryBase: 2 * time.Millisecond, PowerSync: -1}
}

// patience is how long a test waits for what has to come.
const patience = 2 * time.Minute

func newWorld(t *testing.T) *world {
	t.Helper()
	ahead := new(atomic.Int64)
	s, err := store.Open(t.Context(),
		store.Options{Dir: storetest.Fresh(t),
			Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: s, ahead: ahead, cfg: testConfig(), machines: map[string]*machine{},
		conds: map[string]*conductor{}, seen: map[node.Transition]bool{}, logs: os.Getenv("INGOT_TEST_LOG") != ""}
	t.Cleanup(func() {
		w.killAll()
		w.mu.Lock()
		for _, m := range w.machines {
			m.mu.Lock()
			m.stopAgent()
			if m.osStop != nil {
				m.osStop()
			}
			m.mu.Unlock()
		}
		w.mu.Unlock()
		w.wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// successor starts another conductor when co is dead, and closes the channel then. Without again none is started.
func (w *world) successor(co *conductor, again bool) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-co.dead
		<-co.ended
		if again {
			w.start(nil)
		}
	}()
	return done
}

// start brings up a conductor, after the one before is dead.
func (w *world) start(c *crash) *conductor {
	if c == nil {
		c = &crash{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	co := &conductor{w: w, cancel: cancel, dead: make(chan struct{}), ended: make(chan struct{}), crash: c}
	var log *slog.Logger
	if w.logs {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	co.eng = New(&crashStore{w.store, co}, drivers{co}, nil, nil, w.cfg, log)
	co.eng.SetLink(link{co})
	co.eng.SetPlugs(&w.plugs)
	co.eng.SetBootImages(bootImages{})
	co.eng.onState = func(t node.Transition) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen[t] = true
	}
	w.mu.Lock()
	w.cond, w.conds[w.cfg.Hostname] = co, co
	w.mu.Unlock()
	go func() {
		defer close(co.ended)
		if err := co.eng.Run(ctx); err != nil && !errors.Is(err, errDead) {
			w.t.Errorf("Run: %v", err)
		}
	}()
	return co
}

// die makes everything the conductor does fail from now on, as SIGKILL does.
func (c *conductor) die() {
	c.once.Do(func() {
		c.commit.Lock()
		close(c.dead)
		c.commit.Unlock()
		c.cancel()
	})
}

func (c *conductor) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func (w *world) current() *conductor {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cond
}

func (w *world) kill() {
	if c := w.current(); c != nil {
		c.die()
		<-c.ended
	}
}

func (w *world) killAll() {
	w.kill()
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.conds))
	w.mu.Unlock()
	for _, c := range all { // not with the lock, which what it does at last may need
		c.die()
		<-c.ended
	}
}

// toward is the conductor that a machine's agent finds: the node's owner if that is one of several, else the last one.
func (w *world) toward(m *machine) *conductor {
	w.mu.Lock()
	one, conds := w.cond, len(w.conds)
	w.mu.Unlock()
	if conds < 2 {
		return one
	}
	n, err := w.store.Node(context.Background(), m.id)
	if err != nil {
		return one
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.conds[n.Conductor]; c != nil {
		return c
	}
	return one
}

// crashStore is the real store as a conductor that may die sees it.
type crashStore struct {
	*store.Store
	c *conductor
}

func (s *crashStore) Node(ctx context.Context, ident string) (*node.Node, error) {
	if s.c.isDead() {
		return nil, errDead
	}
	return s.Store.Node(ctx, ident)
}

func (s *crashStore) Change(ctx context.Context, id string, f func(*node.Node,
	*node.SideEffects) error) (*node.Node, error) {
	if s.c.isDead() {
		return nil, errDead
	}
	c := s.c.crash
	c.mu.Lock()
	c.count++
	last, commit := c.at > 0 && c.count == c.at, c.commit
	c.hit = c.hit || last
	refused := c.refuse
	c.refuse = false
	c.mu.Unlock()
	if refused {
		return nil, errRefused
	}
	if last && !commit {
		s.c.die()
		return nil, errDead
	}
	s.c.commit.RLock()
	if s.c.isDead() {
		s.c.commit.RUnlock()
		return nil, errDead
	}
	n, err := s.Store.Change(ctx, id, f)
	s.c.commit.RUnlock()
	c.mu.Lock()
	if err == nil && c.moment != nil && c.moment(n) {
		last, c.moment = true, nil
	}
	c.mu.Unlock()
	if last {
		s.c.die()
		return nil, errDead
	}
	return n, err
}

// add enrols a node with its machine.
func (w *world) add(name string) *machine {
	w.t.Helper()
	n := &node.Node{Name: name, Driver: "sim", DriverInfo: map[string]any{"address": name},
		InstanceInfo: map[string]any{"image_source": "http://images/" + name, "image_os_hash_algo": "sha256",
			"image_os_hash_value": strings.Repeat("ab", 32)}}
	if w.media {
		n.Interfaces = map[string]string{"boot": MediaBoots[0]}
	}
	if err := w.store.CreateNode(w.t.Context(), n); err != nil {
		w.t.Fatal(err)
	}
	m := &machine{w: w, id: n.UUID, key: "bmc-" + name, stepTook: 3 * time.Millisecond,
		behave: map[string]func(*agent, node.PlanStep) (node.StepResult, bool){}}
	w.mu.Lock()
	w.machines[n.UUID] = m
	w.mu.Unlock()
	return m
}

func (w *world) node(m *machine) *node.Node {
	w.t.Helper()
	n, err := w.store.Node(context.Background(), m.id)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// ask asks the living conductor for a verb.
func (w *world) ask(m *machine, v node.Verb) error {
	return w.current().eng.Provision(context.Background(), m.id, Request{Verb: v, User: "tester"})
}

func (w *world) must(m *machine, v node.Verb) {
	w.t.Helper()
	if err := w.ask(m, v); err != nil {
		w.t.Fatalf("%s: %v", v, err)
	}
}

// look is how long to wait before the next look at something that is awaited since began. Who waits long looks seldom.
func look(began time.Time) time.Duration {
	return min(2*time.Millisecond+time.Since(began)/20, 20*time.Millisecond)
}

// until polls the node until ok says so.
func (w *world) until(m *machine, what string, ok func(*node.Node) bool) *node.Node {
	w.t.Helper()
	began := time.Now()
	deadline := began.Add(patience)
	for {
		n := w.node(m)
		if ok(n) {
			return n
		}
		if time.Now().After(deadline) {
			job, _ := json.MarshalIndent(n.Job, "", " ")
			boot, _ := json.Marshal(n.Boot)
			w.t.Fatalf("node %s did not come to %s: state %q (target %q), power %q, last error %q\njob %s\nboot %s",
				n.Name, what, n.Provision, n.TargetProvision, n.Power, n.LastError, job, boot)
		}
		time.Sleep(look(began))
	}
}

func (w *world) untilState(m *machine, states ...node.State) *node.Node {
	w.t.Helper()
	return w.until(m, fmt.Sprint(states), func(n *node.Node) bool {
		return n.Job == nil && slices.Contains(states, n.Provision)
	})
}

// driveOf is the config drive of a node.
func (w *world) driveOf(name string) any {
	if w.objects {
		return map[string]any{"user_data": "http://drive-of/" + name}
	}
	return "http://drive-of/" + name
}

// walk takes a node along the main job from wherever it is to a state, as a patient client does: it asks again for what
// a dying conductor did not take.
func (w *world) walk(m *machine, to node.State) *node.Node {
	w.t.Helper()
	began := time.Now()
	deadline := began.Add(patience)
	for {
		n := w.node(m)
		switch {
		case n.Provision == to && n.Job == nil:
			return n
		case n.Provision.IsFailure():
			w.t.Fatalf("node ended in %q: %s", n.Provision, n.LastError)
		case n.Provision == node.Enroll && n.LastError != "":
			w.t.Fatalf("node went back to enroll: %s", n.LastError)
		case time.Now().After(deadline):
			w.until(m, string(to), func(*node.Node) bool { return false })
		}
		if n.Job == nil {
			var err error
			switch {
			case n.Provision == node.Enroll:
				err = w.ask(m, node.Manage)
			case n.Provision == node.Manageable && n.InspectionFinishedAt.IsZero():
				err = w.ask(m, node.Inspect)
			case n.Provision == node.Manageable:
				err = w.ask(m, node.Provide)
			case n.Provision == node.Available:
				err = w.current().eng.Provision(context.Background(), m.id,
					Request{Verb: node.Deploy, ConfigDrive: w.driveOf(n.Name), User: "tester"})
			}
			var moved *node.TransitionError
			if err != nil && !errors.Is(err, errDead) && !errors.As(err, &moved) {
				w.t.Fatalf("request in state %s: %v", n.Provision, err)
			}
			began = time.Now()
		}
		time.Sleep(look(began))
	}
}
