package engine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Keys of instance_info, which clients see.
const (
	rescuePassword = "hashed_rescue_password"
	rescueKeys     = "rescue_ssh_keys"
)

const aKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGzRr1dU7qV1m3Xx0vQyqzJ4mFm2n0w7Cw8Yk3q1r9aL me@example"

// addRescued enrols a node whose agent lets people log in when it is rescued.
func (w *world) addRescued(name string) *machine {
	w.t.Helper()
	m := w.add(name)
	w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"rescue": "agent"} })
	m.behave["rescue"] = func(a *agent, s node.PlanStep) (node.StepResult, bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.facts["open"] = string(s.Args)
		return node.StepResult{
				Outcome: node.OutcomeDone,
				Result: json.RawMessage(
					`{"addresses":["192.0.2.7","2001:db8::7"],"port":2222,"host_key":"SHA256:abc"}`)},
			true
	}
	return m
}

// open are the arguments with which the machine's agent was opened; "" when it is not.
func (m *machine) open() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.agent == nil {
		return ""
	}
	m.agent.mu.Lock()
	defer m.agent.mu.Unlock()
	return m.agent.facts["open"]
}

func askRescue(w *world, m *machine) error {
	return w.current().eng.Provision(context.Background(), m.id,
		Request{Verb: node.DoRescue, RescuePassword: "open sesame", User: "tester"})
}

func (w *world) rescue(m *machine) *node.Node {
	w.t.Helper()
	if err := askRescue(w, m); err != nil {
		w.t.Fatal(err)
	}
	return w.untilState(m, node.Rescue)
}

func systemStarts(m *machine) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.osStarted
}

// TestRescue is the way there and back, with a conductor that is restarted in between: the agent's boot stays open,
// what opens it is a hash and is forgotten, and afterwards the installed system runs again.
func TestRescue(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addRescued("n1")
	w.walk(m, node.Active)
	w.edit(m, func(n *node.Node) { n.InstanceInfo[rescueKeys] = "# mine\n" + aKey + "\n\n" })
	before := systemStarts(m)
	n := w.rescue(m)
	if n.Boot == nil || n.Boot.Ended || n.Boot.Kept || n.LastError != "" || systemStarts(m) != before {
		t.Errorf("rescued: boot %+v, error %q, %d starts of the system after %d", n.Boot, n.LastError, systemStarts(m),
			before)
	}
	var args struct {
		Hash string   `json:"password_hash"`
		Keys []string `json:"ssh_keys"`
	}
	if err := json.Unmarshal([]byte(m.open()), &args); err != nil ||
		bcrypt.CompareHashAndPassword([]byte(args.Hash), []byte("open sesame")) != nil ||
		len(args.Keys) != 1 || args.Keys[0] != aKey {
		t.Errorf("the agent was opened with %s (%v)", m.open(), err)
	}
	if all, err := json.Marshal(n); err != nil || strings.Contains(string(all), "open sesame") ||
		strings.Contains(string(all), args.Hash) || strings.Contains(string(all), "me@example") {
		t.Errorf("the node keeps what opens it: %v", n.InstanceInfo)
	}
	if !w.said(m, "ssh as rescue or root at 192.0.2.7:2222, [2001:db8::7]:2222; the host key is SHA256:abc") {
		t.Error("the history does not say how to log in")
	}

	w.kill()
	w.start(nil)
	w.until(m, "a new session", func(n *node.Node) bool { return n.Boot.Connected })
	if n := w.node(m); n.Provision != node.Rescue || n.Boot.Ended || m.open() == "" {
		t.Errorf("after a restart: state %s, boot %+v", n.Provision, n.Boot)
	}

	w.must(m, node.Unrescue)
	n = w.untilState(m, node.Active)
	if !n.Boot.Ended || m.open() != "" || systemStarts(m) != before+1 || n.Power != "power on" ||
		m.boot.Device != power.BootDisk {
		t.Errorf("unrescued: boot %+v, open %q, %d starts of the system after %d, power %s, boot device %v", n.Boot,
			m.open(), systemStarts(m), before, n.Power, m.boot)
	}
}

// TestRescueRequests holds what is refused before anything is touched.
func TestRescueRequests(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.addRescued("n1")
	w.walk(m, node.Active)
	plans := len(m.plansTaken)
	for name, c := range map[string]struct {
		keys     any
		password string
		want     string
	}{
		"nothing":         {nil, " ", "rescue_password"},
		"a long password": {nil, strings.Repeat("x", 73), "72"},
		"no key":          {"ssh-rsa nonsense", "x", "key 1"},
		"options":         {[]any{aKey, `command="x" ` + aKey}, "x", "key 2"},
		"a number":        {7, "x", "neither a list"},
		"numbers":         {[]any{7}, "x", "neither a list"},
		"too many":        {strings.Repeat(aKey+"\n", 65), "x", "more than 64"},
	} {
		w.edit(m, func(n *node.Node) { delete(n.InstanceInfo, rescueKeys); n.InstanceInfo[rescueKeys] = c.keys })
		err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.DoRescue, RescuePassword: c.password})
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an InvalidError with %q", name, err, c.want)
		}
	}
	w.edit(m, func(n *node.Node) { delete(n.InstanceInfo, rescueKeys) })
	// Nor is there another way to open a machine.
	for _, r := range []Request{
		{Verb: node.Service,
			ServiceSteps: []node.JobStep{
				{Interface: "rescue", Name: "rescue", Args: json.RawMessage(`{"ssh_keys":["x"]}`)}}},
		{Verb: node.Rebuild,
			DeploySteps: []node.JobStep{
				{Interface: "rescue", Name: "rescue", Priority: 90, Args: json.RawMessage(`{"ssh_keys":["x"]}`)}}}} {
		if err := w.current().eng.Provision(t.Context(), m.id, r); err == nil ||
			!strings.Contains(err.Error(), "ask for rescue") {
			t.Errorf("%s with the step = %v", r.Verb, err)
		}
	}
	d, err := w.current().eng.DryRun(t.Context(), m.id, Request{Verb: node.DoRescue, RescuePassword: "open sesame"})
	if err != nil || d.Refused != nil || len(d.Job.Steps) != 2 ||
		strings.Contains(string(d.Job.Steps[1].Args), "sesame") {
		t.Errorf("a dry run = %+v, %v", d, err)
	}
	if n := w.node(m); n.Provision != node.Active || len(m.plansTaken) != plans ||
		n.InstanceInfo[rescuePassword] != nil {
		t.Errorf("after all that: state %s, %d plans, instance_info %v", n.Provision, len(m.plansTaken), n.InstanceInfo)
	}
	w.edit(m, func(n *node.Node) { n.InstanceInfo[rescueKeys] = []any{aKey} })
	if err := w.ask(m, node.DoRescue); err != nil {
		t.Fatalf("with a key alone: %v", err)
	}
	w.untilState(m, node.Rescue)
	w.must(m, node.Delete)
	n := w.untilState(m, node.Available)
	if !n.Boot.Ended || m.open() != "" || m.bootable {
		t.Errorf("torn down: boot %+v, open %q, bootable %v", n.Boot, m.open(), m.bootable)
	}
}

// TestRescueFails holds that after a rescue that fails, or is aborted, no login works and the machine is off; and that
// unrescue helps.
func TestRescueFails(t *testing.T) {
	w := newWorld(t)
	w.cfg.RetryTries = 2
	w.start(nil)
	m := w.addRescued("n1")
	w.walk(m, node.Active)
	opens := m.behave["rescue"]
	set := func(f func(*agent, node.PlanStep) (node.StepResult, bool)) {
		m.mu.Lock()
		m.behave["rescue"] = f
		m.mu.Unlock()
	}

	set(func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{Outcome: node.OutcomeFailed, Error: "this ramdisk has no shell to log in to",
			Remedy: "build one"}, true
	})
	if err := askRescue(w, m); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.RescueFailed)
	wantError(t, n, "no shell")
	if m.on || !n.Boot.Ended || n.InstanceInfo[rescuePassword] != nil {
		t.Errorf("failed: on %v, boot %+v, instance_info %v", m.on, n.Boot, n.InstanceInfo)
	}
	set(opens)
	before := systemStarts(m)
	w.must(m, node.Unrescue)
	w.untilState(m, node.Active)
	if systemStarts(m) != before+1 {
		t.Error("the system was not started again")
	}

	// A controller that does nothing, on the way back: no login works all the same, and the second try ends well.
	w.rescue(m)
	m.mu.Lock()
	m.callErr = func(op string) error {
		return &power.Error{Kind: power.Unreachable, Op: op, Err: errors.New("no answer")}
	}
	m.mu.Unlock()
	w.must(m, node.Unrescue)
	n = w.untilState(m, node.UnrescueFailed)
	wantError(t, n, "no answer")
	if !n.Boot.Ended || m.open() != "" {
		t.Errorf("unrescue failed: boot %+v, open %q", n.Boot, m.open())
	}
	m.mu.Lock()
	m.callErr = nil
	m.mu.Unlock()
	w.must(m, node.Unrescue)
	w.untilState(m, node.Active)
}

// TestRescueIsGone holds that a machine that restarts, or loses its power, in state rescue is reported, and that its
// agent, should it come back, is refused.
func TestRescueIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(w *world, m *machine)
		why     string
		unasked bool
	}{
		"it restarts by itself": {func(w *world, m *machine) {
			m.mu.Lock()
			m.lost = time.Hour
			m.turnOff()
			m.turnOn()
			m.mu.Unlock()
		}, "out of reach", true},
		"it restarts while the conductor is away": {func(w *world, m *machine) {
			w.kill()
			m.pull()
			w.cfg.SessionGrace = 300 * time.Millisecond
			w.start(nil)
		}, "out of reach", true},
		"a client restarts it": {func(w *world, m *machine) {
			if err := w.current().eng.SetPower(context.Background(), m.id, "rebooting", 0, "tester"); err != nil {
				w.t.Error(err)
			}
		}, "rebooting was asked for", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start(nil)
			m := w.addRescued("n1")
			w.walk(m, node.Active)
			w.rescue(m)
			c.happens(w, m)
			n := w.until(m, "the end of the rescue", func(n *node.Node) bool { return n.Job == nil && n.Boot.Ended })
			if n.Provision != node.Rescue || c.unasked != strings.Contains(n.LastError, "rescue system is gone") ||
				!w.said(m, c.why) {
				t.Errorf("state %s, error %q", n.Provision, n.LastError)
			}
			w.must(m, node.Unrescue)
			n = w.untilState(m, node.Active)
			if n.LastError != "" || !m.on {
				t.Errorf("unrescued: error %q, on %v", n.LastError, m.on)
			}
		})
	}
}

// TestRescueDies kills the conductor at each write on the way to rescue and back.
func TestRescueDies(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(map[bool]string{false: "rescue", true: "unrescue"}[back], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			co := w.start(nil)
			m := w.addRescued("n1")
			from, to := node.Active, node.Rescue
			begin := askRescue
			if back {
				from, to, begin = node.Rescue, node.Active,
					func(w *world, m *machine) error { return w.ask(m, node.Unrescue) }
			}
			w.walk(m, node.Active)
			step := 1
			if raceOn && os.Getenv("INGOT_FULL") == "" {
				step = 5
			}
			for k := 1; ; k += step {
				if n := w.node(m); back && n.Provision == node.Active {
					w.rescue(m)
				} else if !back && n.Provision == node.Rescue {
					w.must(m, node.Unrescue)
					w.untilState(m, node.Active)
				}
				was := systemStarts(m)
				co.crash.arm(k, k%2 == 0)
				if begin(w, m) == nil {
					for w.node(m).Job != nil && !co.isDead() {
						time.Sleep(time.Millisecond)
					}
				}
				died := co.crash.reached()
				if died {
					<-co.ended
					co = w.start(nil)
					if n := w.node(m); n.Job == nil && n.Provision == from { // the request itself was lost
						if err := begin(w, m); err != nil {
							t.Fatal(err)
						}
					}
				}
				n := w.untilState(m, to)
				if open := m.open() != ""; n.LastError != "" || open != !back || n.Boot.Ended != back ||
					systemStarts(m)-was != map[bool]int{true: 1}[back] {
					t.Fatalf("killed at write %d: error %q, open %v, boot %+v, %d starts of the system", k, n.LastError,
						open, n.Boot, systemStarts(m)-was)
				}
				co.crash.arm(0, false)
				if !died {
					if k < 8 {
						t.Errorf("only %d writes: the count is wrong", k)
					}
					return
				}
			}
		})
	}
}

// ResetNetwork breaks the agent's session, which comes back by itself.
func (l link) ResetNetwork(_ context.Context, id string) error {
	a, err := l.agent(id)
	if err != nil {
		return err
	}
	a.m.mu.Lock()
	a.m.asks = append(a.m.asks, "network")
	a.m.mu.Unlock()
	l.CloseSession(id)
	return nil
}

// TestResetNetwork holds that a connected agent is asked, whatever it does, and its plan goes on; and that no other is.
func TestResetNetwork(t *testing.T) {
	w := newWorld(t)
	co := w.start(nil)
	m := w.addRescued("n1")
	w.walk(m, node.Available)
	var invalid *InvalidError
	if err := co.eng.ResetNetwork(t.Context(), m.id, "tester"); !errors.As(err, &invalid) {
		t.Errorf("with no agent = %v", err)
	}
	goOn := m.hold("write_image")
	m.mu.Lock()
	plans := len(m.plansTaken)
	m.mu.Unlock()
	w.must(m, node.Deploy)
	w.until(m, "write_image", func(n *node.Node) bool {
		s := n.Job.Current()
		return s != nil && s.Name == "write_image" && s.Status == node.StepRunning && n.Boot.Connected
	})
	if err := co.eng.ResetNetwork(t.Context(), m.id, "tester"); err != nil {
		t.Fatal(err)
	}
	goOn()
	w.untilState(m, node.Active)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.plansTaken) != plans+1 || m.writes != 1 || !strings.Contains(strings.Join(m.asks, " "), "network") {
		t.Errorf("%d plans more, %d writes, asked %v", len(m.plansTaken)-plans, m.writes, m.asks)
	}
}
