package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

func (m *machine) boots() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pxeBoots
}

// loseAgent ends the agent, as a panic of its kernel does: the machine stays on.
func (m *machine) loseAgent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopAgent()
}

func (m *machine) isOn() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on
}

// said reports whether the node's history has a line with all these words.
func (w *world) said(m *machine, words ...string) bool {
	w.t.Helper()
	lines, err := w.store.History(context.Background(), m.id, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.ContainsFunc(lines, func(h node.HistoryEntry) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(h.Event, word) })
	})
}

func (w *world) untilWarm(m *machine) *node.Node {
	w.t.Helper()
	return w.until(m, "being warm", func(n *node.Node) bool { return n.Job == nil && n.IsWarm() })
}

// drive is the request that walk makes, which checkDeployed looks for.
func drive(w *world, m *machine) Request {
	return Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/" + w.node(m).Name, User: "tester"}
}

// TestFastTrack: from inspection to the end of a deployment the machine is turned on once for the agent; and thrice
// where it is not asked for.
func TestFastTrack(t *testing.T) {
	for _, c := range []struct {
		name   string
		config bool
		own    any // driver_info.fast_track
		boots  int
	}{
		{"by the configuration", true, nil, 1},
		{"by the node", false, true, 1},
		{"by the node's text", false, "True", 1},
		{"not", false, nil, 3},
		{"not by the node", true, "false", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FastTrack = c.config
			w.start(nil)
			m := w.add("n1")
			if c.own != nil {
				w.edit(m, func(n *node.Node) { n.DriverInfo["fast_track"] = c.own })
			}
			n := w.walk(m, node.Available)
			if kept := c.boots == 1; m.isOn() != kept || n.IsWarm() != kept || n.Power == "power on" != kept {
				t.Errorf("available: on %v, warm %v, power %q", m.isOn(), n.IsWarm(), n.Power)
			}
			n = w.walk(m, node.Active)
			checkDeployed(t, m, 1)
			if m.boots() != c.boots {
				t.Errorf("the agent was booted %d times, want %d", m.boots(), c.boots)
			}
			r := string(n.Past[node.PhaseDeploy].Steps[0].Result)
			if strings.Contains(r, `"kept":true`) != (c.boots == 1) {
				t.Errorf("result of the first step: %s", r)
			}
			if w.said(m, "kept for what comes next") != (c.boots == 1) || n.Boot.Kept {
				t.Errorf("history is wrong, or the boot is still kept: %+v", n.Boot)
			}
		})
	}
}

func TestFastTrackSetting(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.edit(m, func(n *node.Node) { n.DriverInfo["fast_track"] = "perhaps" })
	var invalid *InvalidError
	if err := w.ask(m, node.Manage); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "fast_track") {
		t.Errorf("a setting that is neither true nor false: %v", err)
	}
}

// TestFastTrackLost: with the kept agent gone the next job boots the machine, at once.
func TestFastTrackLost(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.cfg.SessionGrace = time.Hour // never waited for
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.loseAgent()
	w.until(m, "the loss", func(n *node.Node) bool { return !n.Boot.Connected })
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	if m.boots() != 2 || !w.said(m, "is out of reach", "booted as usual") {
		t.Errorf("%d boots", m.boots())
	}
}

// TestKeptGivenUp: a kept agent that stays away is given up after a while and its machine turned off, by whichever
// conductor owns the node then.
func TestKeptGivenUp(t *testing.T) {
	for _, by := range []string{"the same", "the same restarted", "another"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FastTrack = true
			w.cfg.Rescan = 20 * time.Millisecond
			w.start(nil)
			m := w.add("n1")
			w.walk(m, node.Manageable)
			w.must(m, node.Inspect)
			w.until(m, "inspected", func(n *node.Node) bool { return n.Job == nil && n.IsWarm() })
			if by != "the same" {
				w.kill()
				w.cfg.SessionGrace = 500 * time.Millisecond
			} else {
				m.mu.Lock()
				m.lost = time.Hour // longer than the test
				m.mu.Unlock()
			}
			m.loseAgent()
			switch by {
			case "the same restarted":
				w.start(nil)
			case "another":
				w.cfg.Hostname = "c2"
				w.start(nil)
			}
			n := w.until(m, "being off", func(n *node.Node) bool {
				return n.Job == nil && n.Boot.Ended && n.Power == "power off"
			})
			if m.isOn() || n.Provision != node.Manageable || n.LastError != "" || n.Boot.Kept ||
				!w.said(m, "out of reach for", "turned off") {
				t.Errorf("on %v, state %s, last error %q, boot %+v", m.isOn(), n.Provision, n.LastError, n.Boot)
			}
			w.kill()
			w.cfg.SessionGrace = testConfig().SessionGrace
			w.start(nil)
			w.walk(m, node.Active)
			checkDeployed(t, m, 1)
		})
	}
}

// TestKeptStays: a kept agent outlives its conductor, and is taken up by the next.
func TestKeptStays(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	for range 3 {
		w.kill()
		w.start(nil)
	}
	// Not even a job that comes before the agent is back boots the machine.
	w.kill()
	m.away.Store(true)
	w.cfg.SessionGrace = time.Minute
	w.start(nil)
	if err := w.current().eng.Provision(t.Context(), m.id, drive(w, m)); err != nil {
		t.Fatal(err)
	}
	w.until(m, "the first step", func(n *node.Node) bool { return n.Job.Current().Status == node.StepRunning })
	if n := w.node(m); n.Boot.Connected || !n.Boot.Kept || m.boots() != 1 {
		t.Errorf("boot %+v, %d boots", n.Boot, m.boots())
	}
	m.away.Store(false)
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
	if m.boots() != 1 {
		t.Errorf("%d boots of the agent", m.boots())
	}
}

// TestKeptOfAnotherRamdisk: an agent that was kept over a change of the ramdisk is not used.
func TestKeptOfAnotherRamdisk(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.cfg.StepsDigest = "old"
	w.start(nil)
	m := w.add("n1")
	m.digest = "old"
	w.walk(m, node.Available)
	w.kill()
	w.cfg.StepsDigest = "new"
	w.start(nil)
	w.until(m, "its end", func(n *node.Node) bool { return n.Job == nil && n.Boot.Ended && n.Power == "power off" })
	m.mu.Lock()
	m.digest = "new"
	m.mu.Unlock()
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	if m.boots() != 2 || !w.said(m, "not of the ramdisk that is configured now") {
		t.Errorf("%d boots of the agent", m.boots())
	}
}

// TestKeptAndPower: a client that changes the power of a machine whose agent is kept gets the requested state, and it
// is no fault.
func TestKeptAndPower(t *testing.T) {
	for _, target := range []string{"power off", "soft power off", "rebooting", "power on", "pulled"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FastTrack, w.cfg.ForcePower = true, true
			w.start(nil)
			m := w.add("n1")
			w.walk(m, node.Available)
			eng := w.current().eng
			if target == "pulled" {
				m.pull()
				w.until(m, "the loss", func(n *node.Node) bool { return !n.Boot.Connected })
				w.syncPower(m)
			} else if err := eng.SetPower(t.Context(), m.id, target, 0, "tester"); err != nil {
				t.Fatal(err)
			}
			n := w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil && n.TargetPower == "" })
			if n.LastError != "" || n.Fault != "" || n.Boot.Kept != (target == "power on") ||
				(n.Power == "power on") != strings.Contains("rebooting power on", target) {
				t.Errorf("last error %q, fault %q, power %q, boot %+v", n.LastError, n.Fault, n.Power, n.Boot)
			}
			w.walk(m, node.Active)
			checkDeployed(t, m, 1)
			if want := map[bool]int{true: 1, false: 2}[target == "power on"]; m.boots() != want {
				t.Errorf("%d boots of the agent, want %d", m.boots(), want)
			}
		})
	}
}

// TestAdoptEndsKept: an instance is not adopted with the agent running on its machine.
func TestAdoptEndsKept(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Manageable)
	w.must(m, node.Inspect)
	w.until(m, "inspected", func(n *node.Node) bool { return n.Job == nil && n.IsWarm() })
	n := w.want(m, Request{Verb: node.Adopt}, node.Active)
	if n.Boot.Kept || !n.Boot.Ended || m.isOn() || n.Power != "power off" {
		t.Errorf("boot %+v, on %v, power %q", n.Boot, m.isOn(), n.Power)
	}
}

// TestKeptDoesNotStayAfterFailure: a job that fails turns its machine off as usual.
func TestKeptDoesNotStayAfterFailure(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Manageable)
	m.behave["inspect"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{Outcome: node.OutcomeFailed, Error: "it hurts"}, true
	}
	w.must(m, node.Inspect)
	n := w.untilState(m, node.InspectFailed)
	if n.Boot.Kept || !n.Boot.Ended || m.isOn() {
		t.Errorf("boot %+v, on %v", n.Boot, m.isOn())
	}
}

// TestWarm: an available node is booted ahead and stays available; a deployment uses that boot; a second Warm does
// nothing; Cool turns it off.
func TestWarm(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	eng, before := w.current().eng, m.boots()
	for range 2 {
		if err := eng.Warm(t.Context(), m.id, "tester"); err != nil {
			t.Fatal(err)
		}
	}
	n := w.untilWarm(m)
	if n.Provision != node.Available || n.TargetProvision != node.None || n.Reservation != "" || n.LastError != "" ||
		n.Power != "power on" {
		t.Errorf("state %s, target %s, reservation %q, last error %q, power %q", n.Provision, n.TargetProvision,
			n.Reservation, n.LastError, n.Power)
	}
	if err := eng.Warm(t.Context(), m.id, "tester"); err != nil || w.node(m).Job != nil {
		t.Errorf("warming a warm node: %v, job %+v", err, w.node(m).Job)
	}
	if err := eng.Cool(t.Context(), m.id, "tester"); err != nil {
		t.Fatal(err)
	}
	w.until(m, "being off", func(n *node.Node) bool { return n.Job == nil && n.Boot.Ended })
	if m.isOn() {
		t.Error("the machine is still on")
	}
	if err := eng.Cool(t.Context(), m.id, "tester"); err != nil {
		t.Errorf("cooling a cold node: %v", err)
	}
	if err := eng.Warm(t.Context(), m.id, "tester"); err != nil {
		t.Fatal(err)
	}
	w.untilWarm(m)
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	if got := m.boots() - before; got != 2 {
		t.Errorf("%d boots of the agent, want one for each time that it was warmed", got)
	}
}

func TestWarmRefused(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	eng := w.current().eng
	var invalid *InvalidError
	if err := eng.Warm(t.Context(), m.id, ""); !errors.As(err, &invalid) {
		t.Errorf("in state enroll: %v", err)
	}
	w.walk(m, node.Available)
	w.edit(m, func(n *node.Node) { n.Maintenance = true })
	if err := eng.Warm(t.Context(), m.id, ""); !errors.As(err, &invalid) {
		t.Errorf("in maintenance: %v", err)
	}
	w.edit(m, func(n *node.Node) { n.Maintenance = false; n.Fault = node.FaultPower })
	if err := eng.Warm(t.Context(), m.id, ""); !errors.As(err, &invalid) {
		t.Errorf("with a fault: %v", err)
	}
	w.edit(m, func(n *node.Node) { n.Fault = "" })
	w.must(m, node.Deploy)
	var locked *LockedError
	if err := eng.Warm(t.Context(), m.id, ""); !errors.As(err, &locked) && !errors.As(err, &invalid) {
		t.Errorf("while it is deployed: %v", err)
	}
}

// TestWarmFails: a node that can't be made warm stays available, and its record says why.
func TestWarmFails(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	w.kill()
	w.cfg.BootTimeout = 50 * time.Millisecond
	w.start(nil)
	m.mu.Lock()
	m.noNetBoot = true
	m.mu.Unlock()
	if err := w.current().eng.Warm(t.Context(), m.id, ""); err != nil {
		t.Fatal(err)
	}
	n := w.until(m, "the failure", func(n *node.Node) bool { return n.Job == nil && n.Warmth != nil })
	if n.Provision != node.Available || n.LastError != "" || n.Fault != "" || n.IsWarm() || m.isOn() ||
		!strings.Contains(n.Warmth.Failure, "did not call back") {
		t.Errorf("state %s, last error %q, fault %q, warmth %+v, on %v", n.Provision, n.LastError, n.Fault, n.Warmth,
			m.isOn())
	}
	w.kill()
	w.cfg.BootTimeout = testConfig().BootTimeout
	w.start(nil)
	m.mu.Lock()
	m.noNetBoot = false
	m.mu.Unlock()
	if err := w.current().eng.Warm(t.Context(), m.id, ""); err != nil {
		t.Fatal(err)
	}
	if n := w.untilWarm(m); n.Warmth != nil {
		t.Errorf("warmth %+v of a warm node", n.Warmth)
	}
}

// TestWarmTakenOver: what a client asks for while a node is being made warm comes first, at whichever moment it is
// asked for, and the boot that is under way is not thrown away.
func TestWarmTakenOver(t *testing.T) {
	for _, note := range []string{"", "off", "device", "on", "on asked", "wait"} {
		for _, what := range []string{"deploy", "manage", "power off", "cool"} {
			t.Run(what+" at "+note, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.start(nil)
				m := w.add("n1")
				w.walk(m, node.Available)
				w.kill()
				seen := make(chan struct{})
				co := w.start(&crash{moment: nil})
				before := m.boots()
				co.crash.mu.Lock()
				once := false
				co.crash.moment = func(n *node.Node) bool {
					if !once && n.Job != nil && n.Job.Phase == node.PhaseWarm && n.Job.Note == note {
						once = true
						close(seen)
					}
					return false
				}
				co.crash.mu.Unlock()
				if err := co.eng.Warm(t.Context(), m.id, ""); err != nil {
					t.Fatal(err)
				}
				<-seen
				switch what {
				case "deploy":
					if err := co.eng.Provision(t.Context(), m.id, drive(w, m)); err != nil {
						t.Fatal(err)
					}
					w.untilState(m, node.Active)
					checkDeployed(t, m, 1)
					if got := m.boots() - before; got != 1 {
						t.Errorf("%d boots of the agent", got)
					}
					return
				case "manage":
					w.must(m, node.Manage)
				case "power off":
					if err := co.eng.SetPower(t.Context(), m.id, what, 0, ""); err != nil {
						t.Fatal(err)
					}
				case "cool":
					if err := co.eng.Cool(t.Context(), m.id, ""); err != nil {
						t.Fatal(err)
					}
				}
				n := w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil })
				// The agent may have been up by then, and stays when the node only becomes manageable.
				if n.LastError != "" || n.Warmth != nil || m.isOn() != n.IsWarm() || what != "manage" && m.isOn() {
					t.Errorf("last error %q, warmth %+v, on %v, boot %+v", n.LastError, n.Warmth, m.isOn(), n.Boot)
				}
				if want := map[bool]node.State{
					true: node.Manageable, false: node.Available}[what == "manage"]; n.Provision != want {
					t.Errorf("state %s", n.Provision)
				}
			})
		}
	}
}

var image = Image{"image_source": "http://images/n1", "image_os_hash_algo": "sha256",
	"image_os_hash_value": strings.Repeat("ab", 32)}

// TestStage: an image that was written ahead is not written again for a deployment of the same one; another one is.
func TestStage(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprint(same), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start(nil)
			m := w.add("n1")
			w.walk(m, node.Available)
			before := m.boots()
			img, writes := image, 1
			if !same {
				img, writes = Image{"image_source": "http://images/other", "image_os_hash_algo": "sha256",
					"image_os_hash_value": strings.Repeat("cd", 32)}, 2
			}
			if err := w.current().eng.Stage(t.Context(), m.id, img, "tester"); err != nil {
				t.Fatal(err)
			}
			n := w.untilWarm(m)
			if s := n.Boot.Staged; s == nil || s.Source != img["image_source"] ||
				s.Digest != "sha256:abababababababababababababababababababababababababababababababab" ||
				s.Disk != "vda" {
				t.Errorf("staged = %+v", s)
			}
			n = w.walk(m, node.Active)
			checkDeployed(t, m, writes)
			if got := m.boots() - before; got != 1 {
				t.Errorf("%d boots of the agent", got)
			}
			if n.Boot.Staged != nil || w.said(m, "was written ahead") != same {
				t.Errorf("staged = %+v after the deployment, or the history is wrong", n.Boot.Staged)
			}
		})
	}
}

// TestStageFails: a node whose image could not be written ahead stays warm.
func TestStageFails(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.behave["write_image"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{Outcome: node.OutcomeFailed, Error: "no such image"}, true
	}
	eng := w.current().eng
	var invalid *InvalidError
	if err := eng.Stage(t.Context(), m.id, Image{"image_source": "http://images/n1"}, ""); !errors.As(err, &invalid) {
		t.Errorf("an image without a digest: %v", err)
	}
	if err := eng.Stage(t.Context(), m.id, image, ""); err != nil {
		t.Fatal(err)
	}
	n := w.untilWarm(m)
	if n.Warmth == nil || !strings.Contains(n.Warmth.Failure, "no such image") || n.Boot.Staged != nil ||
		n.LastError != "" {
		t.Errorf("warmth %+v, staged %+v, last error %q", n.Warmth, n.Boot.Staged, n.LastError)
	}
	m.mu.Lock()
	delete(m.behave, "write_image")
	m.mu.Unlock()
	before := m.boots()
	w.walk(m, node.Active)
	if m.boots() != before {
		t.Error("it was booted again")
	}
}

// TestStageTakenOver: a deployment does not wait for an image that is being written ahead.
func TestStageTakenOver(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	before := m.boots()
	m.behave["write_image"] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
		a.mu.Lock()
		ahead, plan := a.plan.Phase == node.PhaseWarm, a.plan.ID
		a.mu.Unlock()
		for ahead && a.ctx.Err() == nil { // until another plan has come
			a.mu.Lock()
			ahead = a.plan.ID == plan
			a.mu.Unlock()
			a.pause()
		}
		return node.StepResult{}, false
	}
	if err := w.current().eng.Stage(t.Context(), m.id, image, ""); err != nil {
		t.Fatal(err)
	}
	w.until(m, "writing", func(n *node.Node) bool {
		s := n.Job.Current()
		return s != nil && s.Name == "write_image" && s.Status == node.StepRunning
	})
	if err := w.current().eng.Provision(t.Context(), m.id, drive(w, m)); err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Active)
	checkDeployed(t, m, 2)
	if m.boots()-before != 1 {
		t.Errorf("%d boots of the agent", m.boots()-before)
	}
}

// TestDieAtEveryWriteOfFastTrack kills the conductor at each write of inspection, cleaning, warming with an image, and
// deployment, all of it in one boot of the agent. The next one ends it, and in that boot.
func TestDieAtEveryWriteOfFastTrack(t *testing.T) {
	run := func(w *world, name string, k int, commit, stage bool) (int, *machine) {
		c := &crash{at: k, commit: commit}
		first := w.start(c)
		m := w.add(name)
		replaced := w.successor(first, k > 0)
		w.walk(m, node.Available)
		img := Image{}
		for k, v := range w.node(m).InstanceInfo {
			img[k] = v
		}
		deadline := time.Now().Add(patience)
		for n := w.node(m); stage && (n.Boot.Staged == nil || !n.IsWarm()); n = w.node(m) {
			if n.Job == nil {
				if err := w.current().eng.Stage(context.Background(), m.id, img, ""); err != nil &&
					!errors.Is(err, errDead) {
					t.Fatal(err)
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("the image is not there: %+v, warmth %+v, job %+v", n.Boot, n.Warmth, n.Job)
			}
			time.Sleep(time.Millisecond)
		}
		w.walk(m, node.Active)
		first.die()
		<-replaced
		w.kill()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.count, m
	}
	check := func(t *testing.T, w *world, m *machine) {
		t.Helper()
		checkDeployed(t, m, 1)
		if m.boots() != 1 {
			t.Errorf("the agent was booted %d times", m.boots())
		}
	}
	world := func(t *testing.T) *world {
		w := newWorld(t)
		w.cfg.FastTrack = true
		return w
	}
	w := world(t)
	total, m := run(w, "n", 0, false, true)
	check(t, w, m)
	if total < 40 {
		t.Fatalf("only %d writes in the whole flow: the count is wrong", total)
	}
	step := 1
	if raceOn && os.Getenv("INGOT_FULL") == "" {
		step = 16
	}
	const worlds = 4
	for i := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := world(t)
			for k := 1 + i*step; k <= total; k += worlds * step {
				commit, stage := k%2 == 0, k/worlds%2 == 0
				name := fmt.Sprintf("write-%d-committed-%v-staged-%v", k, commit, stage)
				_, m := run(w, name, k, commit, stage)
				check(t, w, m)
				if t.Failed() {
					t.Fatalf("in the flow %s", name)
				}
			}
		})
	}
}

// TestKeptAndDeleted: a machine whose node is deleted does not stay on without a node.
func TestKeptAndDeleted(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	if err := w.store.DeleteNode(t.Context(), m.id); err != nil {
		t.Fatal(err)
	}
	w.current().eng.PowerOffDeletedNode(t.Context(), m.id)
	if m.isOn() {
		t.Error("the machine is still on")
	}
}

// movable is a network that moves ports.
type movable struct {
	moves bool
	went  []NetworkName
}

func (m *movable) Attach(_ context.Context, _ *node.Node, to NetworkName) error {
	m.went = append(m.went, to)
	return nil
}

func (m *movable) Switches(context.Context, *node.Node, NetworkName) (bool, error) {
	return m.moves, nil
}

// resets counts the requests to agents to get their addresses anew.
type resets struct {
	noLink
	calls int
}

func (r *resets) ResetNetwork(context.Context, string) error { r.calls++; return nil }

// TestKeptAgentIsMoved: an agent whose ports are moved while it runs is asked to get its addresses anew; and no other.
func TestKeptAgentIsMoved(t *testing.T) {
	for _, moves := range []bool{true, false} {
		net, link := &movable{moves: moves}, &resets{}
		e := New(nil, nil, link, net, testConfig(), nil)
		if err := e.attachKept(t.Context(), &node.Node{}, ProvisioningNetwork); err != nil {
			t.Fatal(err)
		}
		if len(net.went) != 1 || link.calls != map[bool]int{true: 1}[moves] {
			t.Errorf("moves %v: attached %v, asked %d times", moves, net.went, link.calls)
		}
	}
}

// TestDieWhileCooling kills the conductor at each write of turning a warm node off, and of giving up a kept agent that
// is lost: the next one ends it.
func TestDieWhileCooling(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(map[bool]string{false: "cool", true: "lost"}[lost], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FastTrack = true
			w.cfg.Rescan = 20 * time.Millisecond
			if lost {
				// and booted as usual if an agent takes longer to find the next conductor
				w.cfg.SessionGrace = 300 * time.Millisecond
			}
			co := w.start(nil)
			m := w.add("n1")
			w.walk(m, node.Available)
			for k := 1; ; k++ {
				for n := w.node(m); n.Job != nil || !n.IsWarm(); n = w.node(m) { // again and again, as a pool would
					var locked *LockedError // while an agent that was too slow to find the next conductor is given up
					if err := co.eng.Warm(t.Context(), m.id, ""); err != nil && !errors.As(err, &locked) {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
				}
				co.crash.arm(k, k%2 == 0)
				if lost {
					m.loseAgent()
				} else if err := co.eng.Cool(t.Context(), m.id, ""); err != nil && !errors.Is(err, errDead) {
					t.Fatal(err)
				}
				off := func(n *node.Node) bool { return n.Job == nil && n.Boot.Ended && n.Power == "power off" }
				for !co.crash.reached() && !off(w.node(m)) {
					time.Sleep(time.Millisecond)
				}
				died := co.crash.reached()
				if died {
					<-co.ended
					co = w.start(nil)
					if !lost {
						// as a client does whose request may not have got through
						if err := co.eng.Cool(t.Context(), m.id, ""); err != nil {
							t.Fatal(err)
						}
					}
				}
				n := w.until(m, "being off", off)
				if m.isOn() || n.Provision != node.Available || n.LastError != "" || n.Warmth != nil || n.Boot.Kept {
					t.Errorf("killed at write %d: on %v, state %s, last error %q, warmth %+v, boot %+v", k, m.isOn(),
						n.Provision, n.LastError, n.Warmth, n.Boot)
				}
				if !died {
					if k < 4 {
						t.Errorf("only %d writes: the count is wrong", k)
					}
					return
				}
				co.crash.arm(0, false)
			}
		})
	}
}

// TestKeptUnfit: a job that needs a start of the machine gets it, although an agent is there.
func TestKeptUnfit(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*world, *machine)
		kept bool
		says string
	}{
		{"as it was", func(w *world, m *machine) {
			w.edit(m, func(n *node.Node) {
				n.Boot.Firmware, n.Properties = "uefi", map[string]any{"capabilities": "boot_mode:uefi"}
			})
		}, true, ""},
		{"another boot mode", func(w *world, m *machine) {
			w.edit(m, func(n *node.Node) {
				n.Boot.Firmware, n.Properties = "bios", map[string]any{"capabilities": "boot_mode:uefi"}
			})
		}, false, "booted by bios firmware, but capability boot_mode:uefi"},
		{"a step of the controller's before", func(w *world, _ *machine) {
			w.plugs.mu.Lock()
			defer w.plugs.mu.Unlock()
			w.plugs.early = true
		}, false, "ran before"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FastTrack = true
			w.start(nil)
			m := w.add("n1")
			w.walk(m, node.Available)
			c.set(w, m)
			w.walk(m, node.Active)
			checkDeployed(t, m, 1)
			if (m.boots() == 1) != c.kept || !c.kept && !w.said(m, "booted although its agent was kept", c.says) {
				t.Errorf("%d boots of the agent, or the history does not say why", m.boots())
			}
		})
	}
}

// TestKeptIsSilent: that a kept agent has said nothing for long is not held against it when its first plan does not get
// through at once.
func TestKeptIsSilent(t *testing.T) {
	w := newWorld(t)
	w.cfg.FastTrack = true
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	eng := w.current().eng
	w.edit(m, func(n *node.Node) { n.Boot.EnrolledAt = n.Boot.EnrolledAt.Add(-2 * time.Hour) })
	eng.mu.Lock()
	eng.alive[m.id] = time.Now().Add(-time.Hour)
	eng.mu.Unlock()
	m.mu.Lock()
	m.deaf = 1
	m.mu.Unlock()
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	if m.boots() != 1 {
		t.Errorf("%d boots of the agent", m.boots())
	}
}
