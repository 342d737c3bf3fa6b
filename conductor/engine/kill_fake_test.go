package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestDieInEveryPhase kills the conductor at each write of what nodes without an agent go through, with that write lost
// and with it done. A client that asks again for what was not taken gets where it wants, and what was to be done was
// done.
func TestDieInEveryPhase(t *testing.T) {
	for _, c := range []struct {
		name       string
		from, ends node.State
		request    Request
		held       bool
		untouched  bool // nothing is done to the machine
	}{
		{"verify", node.Enroll, node.Manageable, Request{Verb: node.Manage}, false, true},
		{"adopt", node.Manageable, node.Active, Request{Verb: node.Adopt}, false, true},
		{"inspect", node.Manageable, node.Manageable, Request{Verb: node.Inspect}, false, false},
		{"clean with a hold", node.Manageable, node.Manageable,
			Request{Verb: node.Clean, CleanSteps: steps("work_clean", "hold", "power_on", "work_clean")}, true, false},
		{"deploy", node.Available, node.Active, Request{Verb: node.Deploy}, false, false},
		{"rebuild", node.Active, node.Active, Request{Verb: node.Rebuild}, false, false},
		{"rescue", node.Active, node.Rescue, Request{Verb: node.DoRescue, RescuePassword: "pw"}, false, false},
		{"unrescue", node.Rescue, node.Active, Request{Verb: node.Unrescue}, false, false},
		{"service with a hold", node.Active, node.Active,
			Request{Verb: node.Service, ServiceSteps: steps("reboot", "hold", "work_service")}, true, false},
		{"undeploy", node.Active, node.Available, Request{Verb: node.Delete}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, p := range []node.Phase{node.PhaseInspect, node.PhaseClean, node.PhaseDeploy, node.PhaseRescue,
				node.PhaseUnresc, node.PhaseService} {
				w.plugs.set(p, "slow")
			}
			co := w.start(nil)
			for k := 1; ; k++ {
				died := false
				for _, commit := range []bool{false, true} {
					m := w.addFake(fmt.Sprint("n", k, commit))
					w.edit(m, func(n *node.Node) { // as if it had come so far
						n.Provision, n.Power = c.from, "power off"
						n.InstanceInfo = map[string]any{}
					})
					before := w.plugs.applied.Load()
					co.crash.arm(k, commit)
					held, taken := false, false
					deadline := time.Now().Add(patience)
					for {
						if co.crash.reached() {
							<-co.ended
							co, died = w.start(nil), true
						}
						n := w.node(m)
						applied := w.plugs.applied.Load() - before
						if n.Job == nil && n.Provision == c.ends && (applied > 0 || c.untouched) {
							break
						}
						if time.Now().After(deadline) {
							t.Fatalf("killed at write %d (done: %v): the node stays in %s, target %q, last error %q, job %+v", k, commit, n.Provision, n.TargetProvision, n.LastError, n.Job)
						}
						var err error
						switch {
						case n.Provision.IsHeld():
							held = true
							err = w.current().eng.Provision(context.Background(), m.id, Request{Verb: node.Unhold})
						case n.Job == nil && n.Provision == c.from && !(taken && applied > 0):
							err = w.current().eng.Provision(context.Background(), m.id, c.request)
							taken = err == nil
						}
						var moved *node.TransitionError
						if err != nil && !errors.Is(err, errDead) && !errors.As(err, &moved) {
							t.Fatalf("killed at write %d: asked in state %s: %v", k, n.Provision, err)
						}
						time.Sleep(time.Millisecond)
					}
					if c.untouched && w.plugs.applied.Load() != before {
						t.Errorf("killed at write %d: the machine was touched", k)
					}
					n := w.node(m)
					if n.LastError != "" || n.Reservation != "" || n.Fault != "" ||
						n.InstanceInfo[rescuePassword] != nil || held != c.held {
						t.Errorf("killed at write %d: last error %q, reservation %q, fault %q, held %v, instance_info %v", k, n.LastError, n.Reservation, n.Fault, held, n.InstanceInfo)
					}
					co.crash.arm(0, false)
				}
				if !died {
					t.Logf("%d writes", k-1)
					if k < 3 {
						t.Errorf("only %d writes: the count is wrong", k)
					}
					return
				}
			}
		})
	}
}
