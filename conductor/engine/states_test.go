package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"golang.org/x/crypto/bcrypt"
)

// TestEveryTransition walks every row of the table of states, on nodes whose interfaces are fakes.
func TestEveryTransition(t *testing.T) {
	w := newWorld(t)
	w.cfg.Rescan = 10 * time.Millisecond
	w.cfg.RetryTries = 1
	w.start(nil)
	m := w.addFake("n1")
	p := &w.plugs
	do := func(v node.Verb, s node.State) *node.Node { t.Helper(); return w.want(m, Request{Verb: v}, s) }
	clean := func(s node.State, names ...string) *node.Node {
		t.Helper()
		return w.want(m, Request{Verb: node.Clean, CleanSteps: steps(names...)}, s)
	}
	deploy := func(v node.Verb, s node.State, names ...string) *node.Node {
		t.Helper()
		asked := steps(names...)
		for i := range asked {
			asked[i].Priority = 200 - i
		}
		return w.want(m, Request{Verb: v, DeploySteps: asked}, s)
	}
	service := func(s node.State, names ...string) *node.Node {
		t.Helper()
		return w.want(m, Request{Verb: node.Service, ServiceSteps: steps(names...)}, s)
	}
	rescue := func(s node.State) *node.Node {
		t.Helper()
		return w.want(m, Request{Verb: node.DoRescue, RescuePassword: "pw"}, s)
	}
	until := func(s node.State) *node.Node {
		t.Helper()
		return w.until(m, string(s), func(n *node.Node) bool { return n.Provision == s && n.Job == nil })
	}
	// What only a broken record leads to: a node in the middle of something with nothing to do.
	lose := func(s node.State) { t.Helper(); w.edit(m, func(n *node.Node) { n.Job = nil }); until(s) }
	broken := func(on bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.callErr = nil
		if on {
			m.callErr = func(string) error {
				return &power.Error{Kind: power.Refused, Op: "do anything", Err: errors.New("no")}
			}
		}
	}

	// Enrolment.
	broken(true)
	if err := w.ask(m, node.Manage); err != nil {
		t.Fatal(err)
	}
	w.until(m, "an error", func(n *node.Node) bool { return n.Provision == node.Enroll && n.LastError != "" })
	broken(false)
	do(node.Manage, node.Manageable)

	// Inspection.
	p.set(node.PhaseInspect, "fail")
	do(node.Inspect, node.InspectFailed)
	do(node.Manage, node.Manageable)
	p.set(node.PhaseInspect, "slow fail")
	do(node.Inspect, node.InspectFailed)
	p.set(node.PhaseInspect, "park")
	do(node.Inspect, node.InspectWait)
	do(node.Abort, node.InspectFailed)
	p.set(node.PhaseInspect, "slow")
	do(node.Inspect, node.Manageable)
	p.set(node.PhaseInspect, "park")
	do(node.Inspect, node.InspectWait)
	lose(node.InspectFailed)
	w.edit(m, func(n *node.Node) { n.Maintenance = true })
	do(node.Inspect, node.InspectWait) // paused, and goes on from the waiting state
	p.set(node.PhaseInspect, "")
	w.edit(m, func(n *node.Node) { n.Maintenance = false })
	until(node.Manageable)

	// Cleaning.
	p.set(node.PhaseClean, "fail")
	do(node.Provide, node.CleanFailed)
	do(node.Manage, node.Manageable)
	p.set(node.PhaseClean, "slow fail")
	do(node.Provide, node.CleanFailed)
	do(node.Manage, node.Manageable)
	p.set(node.PhaseClean, "park")
	do(node.Provide, node.CleanWait)
	do(node.Abort, node.CleanFailed)
	do(node.Manage, node.Manageable)
	p.set(node.PhaseClean, "slow")
	clean(node.CleanHold, "hold", "hold", "work_clean")
	do(node.Unhold, node.CleanHold) // the second
	do(node.Unhold, node.Manageable)
	clean(node.CleanHold, "hold")
	do(node.Abort, node.CleanFailed)
	do(node.Manage, node.Manageable)
	clean(node.CleanHold, "hold")
	lose(node.CleanFailed)
	do(node.Manage, node.Manageable)
	do(node.Provide, node.Available)
	do(node.Manage, node.Manageable)
	do(node.Provide, node.Available)

	// Deployment.
	p.set(node.PhaseDeploy, "fail")
	do(node.Deploy, node.DeployFailed)
	p.set(node.PhaseDeploy, "slow fail")
	do(node.Deploy, node.DeployFailed)
	p.set(node.PhaseDeploy, "park")
	do(node.Rebuild, node.DeployWait)
	do(node.Abort, node.DeployFailed)
	do(node.Deploy, node.DeployWait)
	do(node.Delete, node.Available) // while it is parked: the next look at it would go on
	p.set(node.PhaseDeploy, "slow")
	deploy(node.Deploy, node.DeployHold, "hold", "hold")
	do(node.Unhold, node.DeployHold)
	do(node.Abort, node.DeployFailed)
	deploy(node.Deploy, node.DeployHold, "hold")
	lose(node.DeployFailed)
	do(node.Delete, node.Available)
	deploy(node.Deploy, node.DeployHold, "hold")
	do(node.Unhold, node.Active)
	do(node.Rebuild, node.Active)

	// Tear-down that fails, and what leads out of error.
	for _, v := range []node.Verb{node.Rebuild, node.Delete} {
		broken(true)
		do(node.Delete, node.Error)
		broken(false)
		do(v, map[node.Verb]node.State{node.Rebuild: node.Active, node.Delete: node.Available}[v])
	}
	do(node.Deploy, node.Active)

	// Rescue.
	p.set(node.PhaseRescue, "fail")
	rescue(node.RescueFailed)
	p.set(node.PhaseRescue, "slow fail")
	rescue(node.RescueFailed)
	p.set(node.PhaseRescue, "park")
	rescue(node.RescueWait)
	do(node.Abort, node.RescueFailed)
	p.set(node.PhaseUnresc, "fail")
	do(node.Unrescue, node.UnrescueFailed)
	p.set(node.PhaseRescue, "slow")
	rescue(node.Rescue)
	do(node.Unrescue, node.UnrescueFailed)
	p.set(node.PhaseUnresc, "")
	do(node.Unrescue, node.Active)
	rescue(node.Rescue)
	do(node.Unrescue, node.Active)
	for _, s := range []node.State{node.Rescue, node.RescueWait, node.RescueFailed, node.UnrescueFailed} {
		p.set(node.PhaseRescue, map[node.State]string{node.RescueWait: "park", node.RescueFailed: "fail"}[s])
		if s == node.UnrescueFailed {
			p.set(node.PhaseUnresc, "fail")
			rescue(node.Rescue)
			do(node.Unrescue, s)
		} else {
			rescue(s)
		}
		do(node.Delete, node.Available)
		do(node.Deploy, node.Active)
	}

	// Service.
	p.set(node.PhaseService, "fail")
	service(node.ServiceFailed, "work_service")
	do(node.Abort, node.Active)
	p.set(node.PhaseService, "slow fail")
	service(node.ServiceFailed, "work_service")
	p.set(node.PhaseService, "park")
	service(node.ServiceWait, "work_service")
	do(node.Abort, node.ServiceFailed)
	service(node.ServiceHold, "hold", "hold")
	do(node.Unhold, node.ServiceHold)
	do(node.Abort, node.ServiceFailed)
	service(node.ServiceHold, "hold")
	lose(node.ServiceFailed)
	service(node.ServiceHold, "hold")
	p.set(node.PhaseService, "slow")
	service(node.Active, "work_service") // a list in place of the one that is held
	p.set(node.PhaseService, "fail")
	service(node.ServiceFailed, "work_service")
	p.set(node.PhaseRescue, "")
	rescue(node.Rescue)
	p.set(node.PhaseUnresc, "")
	do(node.Unrescue, node.Active)
	service(node.ServiceFailed, "work_service")
	do(node.Delete, node.Available)
	do(node.Deploy, node.Active)
	p.set(node.PhaseService, "park")
	service(node.ServiceWait, "work_service")
	do(node.Delete, node.Available)

	// Adoption.
	do(node.Manage, node.Manageable)
	broken(true)
	do(node.Adopt, node.AdoptFailed)
	do(node.Manage, node.Manageable)
	do(node.Adopt, node.AdoptFailed)
	broken(false)
	do(node.Adopt, node.Active)

	w.mu.Lock()
	defer w.mu.Unlock()
	have := func(r node.Transition) bool {
		for s := range w.seen {
			if s.From == r.From && s.Verb == r.Verb && s.To == r.To && (r.Target == "keep" || s.Target == r.Target) {
				return true
			}
		}
		return false
	}
	for _, r := range node.Transitions() {
		if !have(r) {
			t.Errorf("%s, %s, %s was not walked", r.From, r.Verb, r.To)
		}
	}
}

// TestPausedInMaintenance: work may begin in maintenance, and touches nothing until it ends.
func TestPausedInMaintenance(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Manageable)
	m.mu.Lock()
	m.asks = nil
	m.mu.Unlock()
	w.edit(m, func(n *node.Node) { n.Maintenance = true })
	w.want(m, Request{Verb: node.Provide}, node.CleanWait)
	w.kill()
	w.start(nil)
	time.Sleep(30 * time.Millisecond)
	n := w.node(m)
	m.mu.Lock()
	if n.Provision != node.CleanWait || n.Reservation != "" || len(m.asks) != 0 || n.Job.Detail != pausedDetail {
		t.Errorf("in maintenance: state %s, reservation %q, asked for %v, detail %q", n.Provision, n.Reservation,
			m.asks, n.Job.Detail)
	}
	m.mu.Unlock()
	w.edit(m, func(n *node.Node) { n.Maintenance = false })
	w.untilState(m, node.Available)
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)

	// What makes or disturbs an instance is refused.
	w.edit(m, func(n *node.Node) { n.Maintenance = true })
	for _, r := range []Request{{Verb: node.Rebuild}, {Verb: node.Service, ServiceSteps: steps("wait")},
		{Verb: node.DoRescue, RescuePassword: "x"}} {
		var invalid *InvalidError
		if err := w.current().eng.Provision(t.Context(), m.id, r); !errors.As(err, &invalid) ||
			!strings.Contains(err.Error(), "maintenance mode") {
			t.Errorf("%s in maintenance = %v", r.Verb, err)
		}
	}
	// A tear-down goes on, up to the cleaning.
	w.must(m, node.Delete)
	w.until(m, "clean wait", func(n *node.Node) bool {
		return n.Provision == node.CleanWait && n.Job.Detail == pausedDetail
	})
	m.mu.Lock()
	on := m.on
	m.mu.Unlock()
	if on {
		t.Error("the machine is on")
	}
	w.edit(m, func(n *node.Node) { n.Maintenance = false })
	w.untilState(m, node.Available)
}

// TestRescuePassword: it is there for the step that needs it, and gone afterwards however that ends.
func TestRescuePassword(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Active)
	gone := func(n *node.Node, when string) {
		t.Helper()
		if v, ok := n.InstanceInfo[rescuePassword]; ok {
			t.Errorf("%s: the rescue password is still %q", when, v)
		}
	}
	for _, c := range []struct {
		mode string
		ends node.State
	}{{"", node.Rescue}, {"fail", node.RescueFailed}, {"park", node.RescueWait}} {
		w.plugs.set(node.PhaseRescue, c.mode)
		n := w.want(m, Request{Verb: node.DoRescue, RescuePassword: "open sesame"}, c.ends)
		if c.mode == "park" {
			if bcrypt.CompareHashAndPassword([]byte(fmt.Sprint(n.InstanceInfo[rescuePassword])),
				[]byte("open sesame")) != nil {
				t.Errorf("while rescuing, the password is %v", n.InstanceInfo[rescuePassword])
			}
			n = w.want(m, Request{Verb: node.Abort}, node.RescueFailed)
		}
		gone(n, "after "+string(c.ends))
		w.want(m, Request{Verb: node.Unrescue}, node.Active)
	}
	if !strings.HasPrefix(w.plugs.passes[m.id], "$2") {
		t.Errorf("the step saw the passwords %v", w.plugs.passes)
	}
	var invalid *InvalidError
	if err := w.ask(m, node.DoRescue); !errors.As(err, &invalid) {
		t.Errorf("rescue without a password = %v", err)
	}
	for _, iface := range []string{"no-rescue", "", "steam"} {
		w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"deploy": "fake", "rescue": iface} })
		err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.DoRescue, RescuePassword: "x"})
		if !errors.As(err, &invalid) {
			t.Errorf("rescue with interface %q = %v", iface, err)
		}
		if n := w.node(m); n.Provision != node.Active || n.Job != nil || n.InstanceInfo[rescuePassword] != nil {
			t.Errorf("the refused rescue left state %s, instance_info %v", n.Provision, n.InstanceInfo)
		}
	}
}

// TestFaultsOfWork: what failed marks the node until it is done with, and leaves the operator's maintenance alone.
func TestFaultsOfWork(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Active)
	w.plugs.set(node.PhaseService, "fail")
	n := w.want(m, Request{Verb: node.Service, ServiceSteps: steps("work_service")}, node.ServiceFailed)
	wantError(t, n, "work_service failed", "it hurts")
	if n.Fault != node.FaultService || n.Maintenance {
		t.Errorf("fault %q, maintenance %v", n.Fault, n.Maintenance)
	}
	w.edit(m, func(n *node.Node) { n.Maintenance = true })
	var invalid *InvalidError
	if err := w.ask(m, node.Abort); !errors.As(err, &invalid) {
		t.Errorf("abort of a failed service in maintenance = %v", err)
	}
	w.edit(m, func(n *node.Node) { n.Maintenance = false })
	if n = w.want(m, Request{Verb: node.Abort}, node.Active); n.Fault != "" || n.LastError != "" {
		t.Errorf("after abort: fault %q, last error %q", n.Fault, n.LastError)
	}
	w.plugs.set(node.PhaseClean, "fail")
	if n = w.want(m, Request{Verb: node.Delete}, node.CleanFailed); n.Fault != node.FaultClean || n.Maintenance {
		t.Errorf("fault %q, maintenance %v", n.Fault, n.Maintenance)
	}
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	w.plugs.set(node.PhaseClean, "")
	if n = w.want(m, Request{Verb: node.Provide}, node.Available); n.Fault != "" {
		t.Errorf("after cleaning: fault %q", n.Fault)
	}
}

// TestAbortAfterStep: a step that can't be aborted ends first; then the job fails, though nothing was left to do.
func TestAbortAfterStep(t *testing.T) {
	w := newWorld(t)
	w.plugs.stays, w.plugs.took = true, 300*time.Millisecond
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Available)
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	w.plugs.set(node.PhaseClean, "slow")
	w.want(m, Request{Verb: node.Clean, CleanSteps: steps("work_clean")}, node.CleanWait)
	begun := time.Now()
	w.must(m, node.Abort)
	if n := w.node(m); n.Provision != node.CleanWait && time.Since(begun) < 100*time.Millisecond || n.Job != nil &&
		!n.Job.Abort {
		t.Errorf("right after abort: state %s, job %+v", n.Provision, n.Job)
	}
	applied := w.plugs.applied.Load()
	n := w.untilState(m, node.CleanFailed)
	wantError(t, n, "aborted by tester")
	if w.plugs.applied.Load() != applied+1 {
		t.Error("the step did not end before the abort took effect")
	}
}

// TestRetired: a retired node is not provided, and after a tear-down it is cleaned and stays manageable.
func TestRetired(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.walk(m, node.Active)
	w.edit(m, func(n *node.Node) { n.Retired = true })
	applied := w.plugs.applied.Load()
	if n := w.want(m, Request{Verb: node.Delete}, node.Manageable); n.LastError != "" {
		t.Errorf("last error %q", n.LastError)
	}
	if w.plugs.applied.Load() == applied {
		t.Error("it was not cleaned")
	}
	var invalid *InvalidError
	if err := w.ask(m, node.Provide); !errors.As(err, &invalid) ||
		!strings.Contains(err.Error(), "because it is retired") {
		t.Errorf("provide of a retired node = %v", err)
	}
}

// TestRebuild writes the image again, with the config drive of the request.
func TestRebuild(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Active)
	w.want(m, Request{Verb: node.Rebuild, ConfigDrive: "another"}, node.Active)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes != 2 || m.content != "http://images/n1 another" || !m.on {
		t.Errorf("after rebuild: %d writes, content %q, on %v", m.writes, m.content, m.on)
	}
}

// TestDisablePowerOffRefusals: neither way of turning off is taken, restarts are.
func TestDisablePowerOffRefusals(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addFake("n1")
	w.edit(m, func(n *node.Node) { n.DisablePowerOff = true })
	w.walk(m, node.Active)
	eng := w.current().eng
	for _, target := range []string{"power off", "soft power off"} {
		var invalid *InvalidError
		if err := eng.SetPower(t.Context(), m.id, target, 0, ""); !errors.As(err, &invalid) {
			t.Errorf("%s = %v", target, err)
		}
	}
	for _, target := range []string{"rebooting", "soft rebooting"} {
		if err := eng.SetPower(t.Context(), m.id, target, 0, ""); err != nil {
			t.Fatal(err)
		}
		w.until(m, target, func(n *node.Node) bool { return n.TargetPower == "" })
	}
	var invalid *InvalidError
	err := eng.Provision(t.Context(), m.id, Request{Verb: node.Service, ServiceSteps: steps("power_off")})
	if !errors.As(err, &invalid) {
		t.Errorf("service with power_off = %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(m.asks, func(a string) bool { return strings.Contains(a, "off") }) || !m.on {
		t.Errorf("asked for %v, on %v", m.asks, m.on)
	}
}
