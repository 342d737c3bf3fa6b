package agents_test

import (
	"context"
	"encoding/hex"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/box"
)

// TestAgentGoesWhereItsNodeGoes: the real agent among three real servers with one CA and one store. In one plan its
// node moves by hand-over, and then because its conductor is gone; it knows the others by a welcome. Each
// step runs once, and each result is stored.
func TestAgentGoesWhereItsNodeGoes(t *testing.T) {
	t.Parallel() // it waits for the agent to lose its patience
	r, o := newRig(t), &owners{}
	all := peers(r, o, 3)
	n, simulated := r.boot("one")
	pin, err := hex.DecodeString(r.ca.Fingerprint())
	if err != nil {
		t.Fatal(err)
	}
	var ran [2]atomic.Int32
	began, goOn := make(chan struct{}, 9), make(chan struct{})
	pass := func(i int) step.Func {
		return func(context.Context, *step.Call) (step.Outcome, error) {
			ran[i].Add(1)
			began <- struct{}{}
			<-goOn
			return step.Outcome{}, nil
		}
	}
	a, err := agent.New(agent.Options{
		Config: agent.Config{Conductors: []string{all[0].addr}, CA: [32]byte(pin),
			Token: agent.Secret(simulated.Token)},
		Version: "test", Identity: box.Identity(), System: box.Box{}, Network: box.Box{},
		Steps: []step.Step{{Row: step.Row{Interface: "deploy", Name: "one"}, Run: pass(0)},
			{Row: step.Row{Interface: "deploy", Name: "two"}, Run: pass(1)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })

	o.set(all[1].addr)
	wait(t, "a session with the owner", func() bool { return all[1].Connected(n.UUID) })
	plan := node.Plan{ID: "p1", Generation: r.node(n.UUID).Boot.Generation, Phase: node.PhaseDeploy,
		Steps: []node.PlanStep{{Interface: "deploy", Name: "one"}, {Interface: "deploy", Name: "two"}}}
	if err := all[1].SendPlan(t.Context(), n.UUID, plan); err != nil {
		t.Fatal(err)
	}
	<-began
	o.set(all[0].addr)
	if err := all[1].Redirect(t.Context(), n.UUID); err != nil {
		t.Fatal(err)
	}
	wait(t, "a session with the next owner", func() bool { return all[0].Connected(n.UUID) })
	goOn <- struct{}{}
	<-began
	all[0].stop() // the agent asks the others, one of which is the owner by now
	o.set(all[1].addr)
	goOn <- struct{}{}
	wait(t, "a session with the third owner", func() bool { return all[1].Connected(n.UUID) })
	wait(t, "all results", func() bool { return r.node(n.UUID).Boot.AckedSeq == 5 })
	if ran[0].Load() != 1 || ran[1].Load() != 1 {
		t.Errorf("the steps ran %d and %d times", ran[0].Load(), ran[1].Load())
	}
	if up := all[2].brain.upCount(); up != 0 {
		t.Errorf("the conductor that never owned the node has taken %d sessions", up)
	}
}
