package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
)

// agent lives in a machine's memory: it enrols, keeps a session with whichever conductor lives, carries out plans by
// itself, and keeps results until they are taken.
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
	return &agent{m: m, w: m.w, bootID: uuid.NewString(), ctx: ctx, stop: stop, kick: make(chan struct{}, 1),
		facts: map[string]string{}}
}

// live is the whole life of an agent, from the kernel's start to the end of power.
func (a *agent) live() {
	for a.m.late.Load() && a.ctx.Err() == nil {
		a.pause()
	}
	if !a.enrol() {
		return
	}
	for a.ctx.Err() == nil {
		c := a.w.toward(a.m)
		if c == nil || c.isDead() || a.m.away.Load() {
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
		closed := make(chan struct{})
		a.mu.Lock()
		a.session, a.closed = c, closed
		a.mu.Unlock()
		var stale *StaleAgentError
		err := c.eng.AgentUp(a.ctx, a.state())
		if err != nil {
			a.mu.Lock()
			a.session, a.closed = nil, nil
			a.mu.Unlock()
		}
		if errors.As(err, &stale) {
			return
		}
		if err != nil && a.ctx.Err() == nil {
			a.pause()
			continue
		}
		if err == nil { // else it ended meanwhile, and is noted as connected
			a.talk(c, closed)
		}
		a.mu.Lock()
		a.session, a.closed = nil, nil
		a.mu.Unlock()
		if !c.isDead() {
			a.note(false)
			c.eng.AgentLost(context.Background(), a.m.id, a.bootID)
		}
	}
}

// note records in the node whether there is a session, as the server of agents does before it calls the engine. It
// reports whether the boot goes on.
func (a *agent) note(connected bool) bool {
	_, err := a.w.store.UpdateNode(context.Background(), a.m.id, func(n *node.Node) error {
		b := n.Boot
		if b == nil || b.Ended || b.BootID != a.bootID {
			return errNoSession
		}
		b.Connected, b.LostAt = connected, time.Time{}
		if !connected {
			b.LostAt = time.Now().Add(-a.m.lostFor()).UTC()
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
		if c := a.w.toward(a.m); c == nil || c.isDead() {
			a.pause() // no answer to DHCP
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
			if c := a.w.toward(a.m); c != nil {
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
	return node.AgentState{NodeUUID: a.m.id, BootID: a.bootID, Generation: a.gen, Version: "sim", PlanID: a.plan.ID,
		PlanGeneration: a.plan.Generation, StepIndex: a.index, PlanRunning: a.running, StepsDigest: a.m.digest,
		Restarts: a.restarts, RestartReason: "panic", Address: "192.0.2.50"}
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
	ctx, cancel := context.WithCancel(a.ctx)
	if !a.begin(p, cancel) {
		cancel()
		return
	}
	a.m.mu.Lock() // never inside a.mu
	a.m.plansTaken = append(a.m.plansTaken, p)
	a.m.mu.Unlock()
	a.w.wg.Go(func() { a.run(ctx, p) })
}

func (a *agent) begin(p node.Plan, cancel context.CancelFunc) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.ID == a.plan.ID {
		return false
	}
	if p.Generation < a.highest || p.Generation <= a.gen {
		a.refused++
		return false
	}
	if a.cancel != nil {
		a.cancel()
	}
	a.highest, a.plan, a.running, a.index, a.cancel = p.Generation, p, true, 0, cancel
	return true
}

// idle reports whether no plan runs. A plan whose last result has been taken gets the moment that it needs to end.
func (a *agent) idle() bool {
	for end := time.Now().Add(time.Second); ; {
		a.mu.Lock()
		running := a.running
		a.mu.Unlock()
		if !running || a.ctx.Err() != nil || time.Now().After(end) {
			return !running
		}
		a.pause()
	}
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
		a.mu.Lock()
		a.index = i
		a.mu.Unlock()
		if goesOn, power := a.runOne(ctx, p.ID, i, s); !power {
			return
		} else if !goesOn {
			end(node.PlanResult{Cancelled: ctx.Err() != nil})
			return
		}
	}
	end(node.PlanResult{Done: true})
}

// runOne runs a step, and again for as long as it asks to, and the steps that it requests. It reports whether the plan
// goes on, and whether there still is power.
func (a *agent) runOne(ctx context.Context, plan string, i int, s node.PlanStep) (goesOn, power bool) {
	for ctx.Err() == nil {
		ref := node.StepRef{PlanID: plan, Index: i, Name: s.Name}
		a.emit(node.AgentEvent{StepStarted: &ref})
		r := a.step(ctx, s)
		if a.ctx.Err() != nil {
			return false, false
		}
		r.StepRef = ref
		a.emit(node.AgentEvent{StepFinished: &r})
		switch r.Outcome {
		case node.OutcomeRerun:
			select {
			case <-time.After(r.After):
			case <-ctx.Done():
			}
			continue
		case node.OutcomeRunNext:
			for _, next := range r.Next {
				if goesOn, power := a.runOne(ctx, plan, i, next); !goesOn {
					return false, power
				}
			}
		case node.OutcomeFailed, node.OutcomeReboot, node.OutcomeHold:
			return false, true
		}
		return true, true
	}
	return false, a.ctx.Err() == nil
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
	a.mu.Lock()
	ahead := a.plan.Phase == node.PhaseWarm
	a.mu.Unlock()
	m.mu.Lock()
	found := false
	if s.Name == "write_image" {
		found = a.facts["ahead"] == string(s.Args)
		if !found {
			m.writes++
		}
		delete(a.facts, "ahead")
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
		done.Result = json.RawMessage(
			fmt.Sprintf(`{"staged":%v,"digest":"sha256:abababababababababababababababababababababababababababababababab","disk":{"name":"vda"}}`, found))
		if ahead {
			a.facts["ahead"] = string(s.Args)
		}
	case "write_configdrive":
		a.facts["drive"] = fmt.Sprint(args["configdrive"])
		m.drive = ""
		if b, err := json.Marshal(args["configdrive"]); err == nil {
			m.drive = string(b)
		}
	case catalog.StepLoadKernel:
		a.facts["kernel"] = "loaded"
		done.Result = json.RawMessage(`{"loaded":true,"kernel":"/boot/vmlinuz","took_ms":1}`)
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

func (l link) Connected(id string) bool {
	_, err := l.agent(id)
	return err == nil
}

func (l link) SendPlan(_ context.Context, id string, p node.Plan) error {
	a, err := l.agent(id)
	if err != nil {
		return err
	}
	a.m.mu.Lock()
	deaf := a.m.deaf > 0
	if deaf {
		a.m.deaf--
	}
	a.m.mu.Unlock()
	if deaf {
		return errNoSession
	}
	a.take(p)
	return nil
}

func (l link) CancelPlan(_ context.Context, id, planID string) error {
	a, err := l.agent(id)
	if err != nil {
		return err
	}
	a.m.mu.Lock()
	a.m.cancels++
	a.m.mu.Unlock()
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
	if !a.idle() {
		return errors.New("a plan is running")
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if a.m.agent != a { // turned off meanwhile
		return errNoSession
	}
	a.m.asks = append(a.m.asks, "agent "+string(action))
	if a.m.flushTook > 0 {
		a.m.stopAgent()
		time.AfterFunc(a.m.flushTook, func() {
			a.m.mu.Lock()
			defer a.m.mu.Unlock()
			a.m.asks = append(a.m.asks, "agent is done")
			a.m.turnOff()
		})
		return nil
	}
	a.m.turnOff()
	if action == node.AgentReboot {
		a.m.turnOn()
	}
	return nil
}

func (l link) Redirect(_ context.Context, id string) error {
	if a, err := l.agent(id); err == nil {
		a.m.mu.Lock()
		a.m.redirects++
		a.m.mu.Unlock()
	}
	l.CloseSession(id) // its agent finds its way
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
