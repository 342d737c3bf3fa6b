package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/store"
)

// world is what a conductor has around it: a store on disk, machines with controllers, agents that live in the machines' memory.
// Conductors come and go in it.
type world struct {
	t     *testing.T
	store *store.Store
	cfg   Config

	mu       sync.Mutex
	machines map[string]*machine // by node UUID
	cond     *conductor
	wg       sync.WaitGroup
	logs     bool
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
	commit bool
	moment func(*node.Node) bool // dies after the write that brings the node here
}

var errDead = errors.New("this conductor is dead")

func testConfig() Config {
	return Config{Hostname: "c1", AutomatedClean: true, BootMode: "bios",
		BootTimeout: 10 * time.Second, SessionGrace: 3 * time.Second, PowerTimeout: 2 * time.Second, AgentOff: 2 * time.Second,
		PowerPoll: 2 * time.Millisecond, CallTimeout: time.Second, RetryBase: 2 * time.Millisecond, PowerSync: -1}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: s, cfg: testConfig(), machines: map[string]*machine{}, logs: os.Getenv("INGOT_TEST_LOG") != ""}
	t.Cleanup(func() {
		w.kill()
		w.mu.Lock()
		for _, m := range w.machines {
			m.mu.Lock()
			m.stopAgent()
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
	w.mu.Lock()
	w.cond = co
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

func (s *crashStore) Change(ctx context.Context, id string, f func(*node.Node, *node.Also) error) (*node.Node, error) {
	if s.c.isDead() {
		return nil, errDead
	}
	c := s.c.crash
	c.mu.Lock()
	c.count++
	last := c.at > 0 && c.count == c.at
	c.mu.Unlock()
	if last && !c.commit {
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
	if err == nil && c.moment != nil {
		c.mu.Lock()
		last = last || !s.c.isDead() && c.moment(n)
		c.mu.Unlock()
	}
	if last {
		s.c.die()
		return nil, errDead
	}
	return n, err
}

// drivers opens simulated controllers.
type drivers struct{ c *conductor }

func (d drivers) Open(n *node.Node) (power.Driver, error) {
	m := d.c.w.machine(n.UUID)
	if m == nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: errors.New("ipmi_address is missing"), Hint: "set ipmi_address"}
	}
	return &bmc{m, d.c}, nil
}

func (d drivers) Interface(n *node.Node, kind string) string { return n.Interfaces[kind] }

func (w *world) machine(id string) *machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machines[id]
}

// machine is a computer: a power button, a disk, memory in which an agent may run.
type machine struct {
	w    *world
	id   string
	mu   sync.Mutex
	key  string // of its controller
	on   bool
	boot power.Boot

	// The disk.
	writes    int    // how often an image write was begun
	content   string // what was written
	bootable  bool   // the table is there
	osStarted int    // how often it booted from disk
	pxeBoots  int    // how often the agent was booted

	// Faults.
	callErr    func(op string) error // of the controller
	staysOff   bool
	noNetBoot  bool
	digest     string // of the agent's steps
	stepTook   time.Duration
	behave     map[string]func(a *agent, s node.PlanStep) (node.StepResult, bool) // steps that do something else than usual
	asks       []string                                                           // what the controller was asked for
	inUse      int                                                                // calls at once
	mostInUse  int
	agent      *agent
	plansTaken []node.Plan
}

// bmc is the machine's controller as one conductor reaches it.
type bmc struct {
	m *machine
	c *conductor
}

func (b *bmc) enter(ctx context.Context, op string) (func(), error) {
	if b.c.isDead() {
		return nil, errDead
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := b.m
	m.mu.Lock()
	m.inUse++
	m.mostInUse = max(m.mostInUse, m.inUse)
	if m.callErr != nil {
		if err := m.callErr(op); err != nil {
			m.inUse--
			m.mu.Unlock()
			return nil, err
		}
	}
	return func() { m.inUse--; m.mu.Unlock() }, nil
}

func (b *bmc) Power(ctx context.Context) (power.State, error) {
	leave, err := b.enter(ctx, "read power state")
	if err != nil {
		return "", err
	}
	defer leave()
	if b.m.on {
		return power.On, nil
	}
	return power.Off, nil
}

func (b *bmc) SetPower(ctx context.Context, a power.Action) error {
	leave, err := b.enter(ctx, "power "+string(a))
	if err != nil {
		return err
	}
	defer leave()
	m := b.m
	m.asks = append(m.asks, string(a))
	switch a {
	case power.TurnOff, power.SoftOff:
		m.turnOff()
	case power.TurnOn:
		if !m.on && !m.staysOff {
			m.turnOn()
		}
	case power.Reset, power.Cycle:
		if m.on {
			m.turnOff()
			m.turnOn()
		}
	}
	return nil
}

func (b *bmc) SetBoot(ctx context.Context, boot power.Boot) error {
	leave, err := b.enter(ctx, "set boot device")
	if err != nil {
		return err
	}
	defer leave()
	b.m.boot = boot
	return nil
}

func (b *bmc) Boot(ctx context.Context) (power.Boot, error) {
	leave, err := b.enter(ctx, "read boot device")
	if err != nil {
		return power.Boot{}, err
	}
	defer leave()
	return b.m.boot, nil
}

func (b *bmc) Devices() []power.Device { return []power.Device{power.BootPXE, power.BootDisk} }

func (b *bmc) SystemGUIDs(ctx context.Context) ([]string, error) {
	leave, err := b.enter(ctx, "read system GUID")
	if err != nil {
		return nil, err
	}
	defer leave()
	return []string{"guid-" + b.m.id}, nil
}

func (b *bmc) Key() string  { return b.m.key }
func (b *bmc) Close() error { return nil }

func (m *machine) turnOff() {
	m.on = false
	m.stopAgent()
}

func (m *machine) stopAgent() {
	if m.agent != nil {
		m.agent.stop()
		m.agent = nil
	}
}

// turnOn boots: from the network if that was chosen and somebody answers, else from a disk that is bootable.
func (m *machine) turnOn() {
	m.on = true
	pxe := m.boot.Device == power.BootPXE
	if !m.boot.Persistent {
		m.boot = power.Boot{}
	}
	if pxe && !m.noNetBoot {
		m.pxeBoots++
		a := newAgent(m)
		m.agent = a
		m.w.wg.Go(a.live)
		return
	}
	if m.bootable {
		m.osStarted++
	}
}

// agentFinishes waits until the agent, if there is one, has no plan running.
func (m *machine) agentFinishes() {
	for {
		m.mu.Lock()
		a := m.agent
		m.mu.Unlock()
		if a == nil {
			return
		}
		a.mu.Lock()
		running := a.running
		a.mu.Unlock()
		if !running {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// pull is the plug.
func (m *machine) pull() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turnOff()
}

// agent lives in a machine's memory: it enrols, keeps a session with whichever conductor lives, carries out plans by itself,
// and keeps results until they are taken.
type agent struct {
	m      *machine
	w      *world
	bootID string
	ctx    context.Context
	stop   context.CancelFunc

	mu       sync.Mutex
	session  *conductor
	closed   chan struct{} // ends the session
	plan     node.Plan
	running  bool
	index    int
	highest  uint64
	gen      uint64
	seq      uint64
	unacked  []node.AgentEvent
	kick     chan struct{}
	cancel   context.CancelFunc // of the plan
	facts    map[string]string
	restarts int
	refused  int  // plans of a lower generation
	broke    bool // the new worker has yet to tell of the old one's end
}

func newAgent(m *machine) *agent {
	ctx, stop := context.WithCancel(context.Background())
	return &agent{m: m, w: m.w, bootID: uuid.NewString(), ctx: ctx, stop: stop, kick: make(chan struct{}, 1), facts: map[string]string{}}
}

// live is the whole life of an agent, from the kernel's start to the end of power.
func (a *agent) live() {
	if !a.enrol() {
		return
	}
	for a.ctx.Err() == nil {
		c := a.w.current()
		if c == nil || c.isDead() {
			a.pause()
			continue
		}
		a.mu.Lock()
		broke := a.broke
		a.broke = false
		a.mu.Unlock()
		if broke {
			a.emit(node.AgentEvent{WorkerRestarted: &node.WorkerRestart{Reason: "panic", Count: 1}})
		}
		if !a.note(true) {
			return
		}
		var stale *StaleAgentError
		err := c.eng.AgentUp(a.ctx, a.state())
		if errors.As(err, &stale) {
			return
		}
		if err != nil {
			a.pause()
			continue
		}
		closed := make(chan struct{})
		a.mu.Lock()
		a.session, a.closed = c, closed
		a.mu.Unlock()
		a.talk(c, closed)
		a.mu.Lock()
		a.session, a.closed = nil, nil
		a.mu.Unlock()
		if !c.isDead() {
			a.note(false)
			c.eng.AgentLost(context.Background(), a.m.id, a.bootID)
		}
	}
}

// note writes into the node whether there is a session, as the server of agents does before it tells the engine. It tells whether
// the boot goes on.
func (a *agent) note(connected bool) bool {
	_, err := a.w.store.UpdateNode(context.Background(), a.m.id, func(n *node.Node) error {
		b := n.Boot
		if b == nil || b.Ended || b.BootID != a.bootID {
			return errNoSession
		}
		b.Connected, b.LostAt = connected, time.Time{}
		if !connected {
			b.LostAt = time.Now().UTC()
		}
		return nil
	})
	return err == nil
}

func (a *agent) pause() {
	select {
	case <-a.ctx.Done():
	case <-time.After(2 * time.Millisecond):
	}
}

// enrol does what network boot and enrolment do together: only a machine whose window is open gets in.
func (a *agent) enrol() bool {
	for a.ctx.Err() == nil {
		if c := a.w.current(); c == nil || c.isDead() {
			a.pause() // nobody answers DHCP
			continue
		}
		_, err := a.w.store.UpdateNode(context.Background(), a.m.id, func(n *node.Node) error {
			if a.ctx.Err() != nil || !n.Boot.WindowOpen(time.Now()) {
				return errors.New("not admitted")
			}
			b := n.Boot
			b.BootID, b.EnrolledAt, b.ClosedAt = a.bootID, time.Now().UTC(), time.Now().UTC()
			a.gen = b.Generation
			return nil
		})
		if err == nil {
			if c := a.w.current(); c != nil {
				c.eng.Enrolled(context.Background(), a.m.id)
			}
			return true
		}
		a.pause()
	}
	return false
}

func (a *agent) state() node.AgentState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return node.AgentState{NodeUUID: a.m.id, BootID: a.bootID, Generation: a.gen, Version: "sim", PlanID: a.plan.ID, PlanGeneration: a.plan.Generation,
		StepIndex: a.index, PlanRunning: a.running, StepsDigest: a.m.digest, Restarts: a.restarts, RestartReason: "panic"}
}

// talk sends results until the session ends.
func (a *agent) talk(c *conductor, closed chan struct{}) {
	for {
		for {
			a.mu.Lock()
			var ev *node.AgentEvent
			if len(a.unacked) > 0 {
				ev = &a.unacked[0]
			}
			a.mu.Unlock()
			if ev == nil {
				break
			}
			if err := c.eng.AgentEvent(a.ctx, *ev); err != nil {
				return
			}
			a.mu.Lock()
			if len(a.unacked) > 0 && a.unacked[0].Seq == ev.Seq {
				a.unacked = a.unacked[1:]
			}
			a.mu.Unlock()
		}
		select {
		case <-a.ctx.Done():
			return
		case <-c.dead:
			return
		case <-closed:
			return
		case <-a.kick:
		}
	}
}

func (a *agent) emit(ev node.AgentEvent) {
	a.mu.Lock()
	a.seq++
	ev.NodeUUID, ev.BootID, ev.Seq, ev.At = a.m.id, a.bootID, a.seq, time.Now()
	a.unacked = append(a.unacked, ev)
	a.mu.Unlock()
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// take is given a plan: the same again is ignored, a lower generation refused, a higher one ends the one before.
func (a *agent) take(p node.Plan) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.ID == a.plan.ID {
		return
	}
	if p.Generation < a.highest || p.Generation <= a.gen {
		a.refused++
		return
	}
	if a.cancel != nil {
		a.cancel()
	}
	a.highest, a.plan, a.running, a.index = p.Generation, p, true, 0
	a.m.mu.Lock()
	a.m.plansTaken = append(a.m.plansTaken, p)
	a.m.mu.Unlock()
	ctx, cancel := context.WithCancel(a.ctx)
	a.cancel = cancel
	a.w.wg.Go(func() { a.run(ctx, p) })
}

// run carries out a plan.
func (a *agent) run(ctx context.Context, p node.Plan) {
	end := func(r node.PlanResult) {
		a.mu.Lock()
		if a.plan.ID == p.ID {
			a.running = false
		}
		a.mu.Unlock()
		r.PlanID = p.ID
		a.emit(node.AgentEvent{PlanFinished: &r})
	}
	for i, s := range p.Steps {
		if ctx.Err() != nil {
			end(node.PlanResult{Cancelled: true})
			return
		}
		a.mu.Lock()
		a.index = i
		a.mu.Unlock()
		ref := node.StepRef{PlanID: p.ID, Index: i, Name: s.Name}
		a.emit(node.AgentEvent{StepStarted: &ref})
		r := a.step(ctx, s)
		if a.ctx.Err() != nil {
			return // no power
		}
		r.StepRef = ref
		a.emit(node.AgentEvent{StepFinished: &r})
		if r.Outcome == node.OutcomeFailed || r.Outcome == node.OutcomeReboot || r.Outcome == node.OutcomeHold {
			end(node.PlanResult{Cancelled: ctx.Err() != nil})
			return
		}
	}
	end(node.PlanResult{Done: true})
}

const simInventory = `{"inventory":{"interfaces":[{"name":"eth0","mac_address":"52:54:00:%[1]s"},{"name":"eth1","mac_address":"52:54:01:%[1]s"},{"name":"ib0"}],
	"cpu":{"count":4,"architecture":"x86_64"},"memory":{"physical_mb":2048},"boot":{"current_boot_mode":"bios"}},
	"boot_interface":"52:54:00:%[1]s","root_disk":{"name":"/dev/vda","size":10737418240},"errors":[]}`

func (m *machine) macTail() string { return fmt.Sprintf("%s:%s:%s", m.id[0:2], m.id[2:4], m.id[4:6]) }

// breakDown is a panic of the worker: the plan is gone, the supervisor starts a new worker, which opens a new session.
func (a *agent) breakDown(holds bool) {
	a.mu.Lock()
	a.restarts++
	a.running = false
	a.facts = map[string]string{}
	if !holds {
		a.plan = node.Plan{}
	}
	a.broke = true
	if a.closed != nil {
		close(a.closed)
		a.closed = nil
	}
	a.mu.Unlock()
}

// step does what the real one would do to the machine.
func (a *agent) step(ctx context.Context, s node.PlanStep) node.StepResult {
	m := a.m
	m.mu.Lock()
	if s.Name == "write_image" {
		m.writes++
		m.bootable, m.content = false, ""
	}
	behave, took := m.behave[s.Name], m.stepTook
	m.mu.Unlock()
	if behave != nil {
		if r, ok := behave(a, s); ok {
			return r
		}
	}
	select {
	case <-time.After(took):
	case <-a.ctx.Done():
		return node.StepResult{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.ctx.Err() != nil { // the power went while it was at it
		return node.StepResult{}
	}
	var args map[string]any
	if err := json.Unmarshal(s.Args, &args); err != nil {
		return node.StepResult{Outcome: node.OutcomeFailed, Error: "read arguments: " + err.Error()}
	}
	done := node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{}`)}
	switch s.Name {
	case "inspect":
		done.Result = json.RawMessage(fmt.Sprintf(simInventory, m.macTail()))
	case "erase_devices_metadata":
		m.bootable, m.content = false, ""
	case "write_image":
		a.facts["image"], _ = args["image_source"].(string)
	case "write_configdrive":
		a.facts["drive"] = fmt.Sprint(args["configdrive"])
	case "prepare_instance_boot":
		if a.facts["image"] == "" {
			return node.StepResult{Outcome: node.OutcomeFailed, Error: "there is nothing to commit"}
		}
		m.content, m.bootable = a.facts["image"]+" "+a.facts["drive"], true
	}
	return done
}

// link reaches the agents that have a session with this conductor.
type link struct{ c *conductor }

var errNoSession = errors.New("no session")

func (l link) agent(id string) (*agent, error) {
	if l.c.isDead() {
		return nil, errDead
	}
	m := l.c.w.machine(id)
	if m == nil {
		return nil, errNoSession
	}
	m.mu.Lock()
	a := m.agent
	m.mu.Unlock()
	if a == nil {
		return nil, errNoSession
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.session != l.c {
		return nil, errNoSession
	}
	return a, nil
}

func (l link) SendPlan(_ context.Context, id string, p node.Plan) error {
	a, err := l.agent(id)
	if err == nil {
		a.take(p)
	}
	return err
}

func (l link) CancelPlan(_ context.Context, id, planID string) error {
	a, err := l.agent(id)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plan.ID == planID && a.cancel != nil {
		a.cancel()
	}
	return nil
}

func (l link) Power(_ context.Context, id string, action node.PowerAction) error {
	a, err := l.agent(id)
	if err != nil {
		return err
	}
	a.mu.Lock()
	running := a.running
	a.mu.Unlock()
	if running {
		return errors.New("a plan is running")
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	a.m.asks = append(a.m.asks, "agent "+string(action))
	a.m.turnOff()
	if action == node.AgentReboot {
		a.m.turnOn()
	}
	return nil
}

func (l link) CloseSession(id string) {
	if a, err := l.agent(id); err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.closed != nil {
			close(a.closed)
			a.closed = nil
		}
	}
}

// add enrols a node with its machine.
func (w *world) add(name string) *machine {
	w.t.Helper()
	n := &node.Node{Name: name, Driver: "sim", DriverInfo: map[string]any{"address": name},
		InstanceInfo: map[string]any{"image_source": "http://images/" + name, "image_os_hash_algo": "sha256", "image_os_hash_value": "ab"}}
	if err := w.store.CreateNode(w.t.Context(), n); err != nil {
		w.t.Fatal(err)
	}
	m := &machine{w: w, id: n.UUID, key: "bmc-" + name, stepTook: 3 * time.Millisecond, behave: map[string]func(*agent, node.PlanStep) (node.StepResult, bool){}}
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

// until polls the node until ok says so.
func (w *world) until(m *machine, what string, ok func(*node.Node) bool) *node.Node {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		n := w.node(m)
		if ok(n) {
			return n
		}
		if time.Now().After(deadline) {
			job, _ := json.MarshalIndent(n.Job, "", " ")
			boot, _ := json.Marshal(n.Boot)
			w.t.Fatalf("node %s did not come to %s: state %q (target %q), power %q, last error %q\njob %s\nboot %s", n.Name, what, n.Provision, n.TargetProvision, n.Power, n.LastError, job, boot)
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *world) untilState(m *machine, states ...node.State) *node.Node {
	w.t.Helper()
	return w.until(m, fmt.Sprint(states), func(n *node.Node) bool { return n.Job == nil && slices.Contains(states, n.Provision) })
}

// walk takes a node along the main job from wherever it is to a state, as a patient client does: it asks again for what a dying
// conductor did not take.
func (w *world) walk(m *machine, to node.State) *node.Node {
	w.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
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
				err = w.current().eng.Provision(context.Background(), m.id, Request{Verb: node.Deploy, ConfigDrive: "drive-of-" + n.Name, User: "tester"})
			}
			var moved *node.TransitionError
			if err != nil && !errors.Is(err, errDead) && !errors.As(err, &moved) {
				w.t.Fatalf("request in state %s: %v", n.Provision, err)
			}
		}
		time.Sleep(time.Millisecond)
	}
}
