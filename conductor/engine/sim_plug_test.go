package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

// plugs implements the interfaces of nodes without an agent: one step "work" per phase, which does as configured.
type plugs struct {
	mu      sync.Mutex
	mode    map[node.Phase]string // "", "fail", "slow", "slow fail", "park"
	stays   bool                  // steps are not abortable
	early   bool                  // a node with an agent has a step before its boot in a deployment
	took    time.Duration         // of a slow one; 5 ms
	passes  map[string]string     // rescue passwords that a step saw, by node
	applied atomic.Int64
	// of a step bios.restart on request that every node has; nil: none has
	custom func(context.Context, hardware.Call) (hardware.Outcome, error)
}

func (p *plugs) set(phase node.Phase, mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == nil {
		p.mode = map[node.Phase]string{}
	}
	p.mode[phase] = mode
}

// All are all there are.
func (p *plugs) All() []hardware.Step {
	return p.Steps(&node.Node{Interfaces: map[string]string{"deploy": "fake"}})
}

func (p *plugs) Steps(n *node.Node) []hardware.Step {
	p.mu.Lock()
	stays, early, custom := p.stays, p.early, p.custom
	p.mu.Unlock()
	if custom != nil {
		return []hardware.Step{{Interface: "bios", Name: "restart", Run: custom,
			Priority: map[node.Phase]int{node.PhaseClean: 0, node.PhaseDeploy: 150}}}
	}
	if n.Interfaces["deploy"] != "fake" {
		if early {
			return []hardware.Step{
				{Interface: "bios", Name: "paint", Priority: map[node.Phase]int{node.PhaseDeploy: 150},
					Run: p.run("paint")}}
		}
		return nil
	}
	var steps []hardware.Step
	for _, phase := range []node.Phase{node.PhaseInspect, node.PhaseClean, node.PhaseDeploy, node.PhaseRescue,
		node.PhaseUnresc, node.PhaseService} {
		steps = append(steps, hardware.Step{Interface: "deploy", Name: "work_" + string(phase), Abortable: !stays,
			Priority: map[node.Phase]int{phase: 50}, Args: []hardware.Arg{{Name: "colour"}}, Run: p.run(phase)})
	}
	return append(steps,
		hardware.Step{Interface: "bios", Name: "paint",
			Priority: map[node.Phase]int{node.PhaseClean: 0, node.PhaseService: 0},
			Args:     []hardware.Arg{{Name: "colour", Required: true}}, Run: p.run("paint")})
}

func (p *plugs) run(phase node.Phase) func(context.Context, hardware.Call) (hardware.Outcome, error) {
	return func(_ context.Context, c hardware.Call) (hardware.Outcome, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.passes == nil {
			p.passes = map[string]string{}
		}
		if pw, ok := c.Node.InstanceInfo[rescuePassword].(string); ok {
			p.passes[c.Node.UUID] = pw
		}
		took := p.took
		if took == 0 {
			took = 5 * time.Millisecond
		}
		left := took - time.Since(c.Begun) // once: time goes on
		done := left <= 0
		switch mode := p.mode[phase]; {
		case mode == "fail", mode == "slow fail" && done:
			return hardware.Outcome{}, errors.New("it hurts")
		case mode == "park":
			return hardware.Outcome{Hold: true}, nil
		case (mode == "slow" || mode == "slow fail") && !done:
			return hardware.Outcome{After: left}, nil
		}
		return hardware.Outcome{Apply: func(*node.Node, *node.SideEffects) error { p.applied.Add(1); return nil }}, nil
	}
}

func (p *plugs) Step(n *node.Node, iface, name string) (hardware.Step, bool) {
	for _, s := range p.Steps(n) {
		if s.Interface == iface && s.Name == name {
			return s, true
		}
	}
	return hardware.Step{}, false
}

// addFake enrols a node without an agent.
func (w *world) addFake(name string) *machine {
	w.t.Helper()
	m := w.add(name)
	w.edit(m, func(n *node.Node) {
		n.Interfaces = map[string]string{"deploy": "fake", "inspect": "fake", "rescue": "fake"}
		n.InstanceInfo = nil
	})
	return m
}

func (w *world) edit(m *machine, f func(*node.Node)) {
	w.t.Helper()
	if _, err := w.store.UpdateNode(context.Background(), m.id,
		func(n *node.Node) error { f(n); return nil }); err != nil {
		w.t.Fatal(err)
	}
}

// want asks for a verb with its parameters and waits for a state.
func (w *world) want(m *machine, r Request, s node.State) *node.Node {
	w.t.Helper()
	r.User = "tester"
	if err := w.current().eng.Provision(context.Background(), m.id, r); err != nil {
		w.t.Fatalf("%s: %v", r.Verb, err)
	}
	return w.until(m, string(s), func(n *node.Node) bool { return n.Provision == s && (n.Job == nil || !s.IsStable()) })
}

func steps(names ...string) []node.JobStep {
	var out []node.JobStep
	for _, n := range names {
		out = append(out, node.JobStep{Interface: "deploy", Name: n})
	}
	return out
}
