package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// wantError checks that last_error holds all the words and is fit to be read.
func wantError(t *testing.T, n *node.Node, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(n.LastError, w) {
			t.Errorf("last error %q does not say %q", n.LastError, w)
		}
	}
	if !strings.HasSuffix(n.LastError, ".") || strings.Contains(n.LastError, "..") {
		t.Errorf("last error %q is not a sentence", n.LastError)
	}
}

// TestController: each way in which a controller can fail gives an error of its own, after a bounded number of calls.
func TestController(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		words []string
		calls int
	}{
		{"wrong password",
			&power.Error{Kind: power.Auth, Op: "log in", Addr: "192.0.2.1", Err: errors.New("the password is wrong"),
				Hint: "correct ipmi_password"},
			[]string{"password is wrong", "correct ipmi_password"}, 1},
		{"no answer", &power.Error{Kind: power.Unreachable, Op: "log in", Addr: "192.0.2.1",
			Err: errors.New("no answer"), Hint: "check the cable"},
			[]string{"no answer", "tried 5 times"}, 5},
		{"busy", &power.Error{Kind: power.Busy, Op: "log in", Err: errors.New("no free session")},
			[]string{"no free session"}, 5},
		{"refused", &power.Error{Kind: power.Refused, Op: "read power state", Err: errors.New("privilege too low")},
			[]string{"privilege too low"}, 1},
		{"unsorted", errors.New("strange"), []string{"strange"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start(nil)
			m := w.add("n1")
			calls := 0
			m.callErr = func(string) error { calls++; return c.err }
			w.must(m, node.Manage)
			n := w.until(m, "an error", func(n *node.Node) bool { return n.Job == nil && n.LastError != "" })
			wantError(t, n, c.words...)
			if n.Provision != node.Enroll {
				t.Errorf("the node is in state %s", n.Provision)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if calls != c.calls {
				t.Errorf("the controller was called %d times, want %d", calls, c.calls)
			}
			m.callErr = nil
		})
	}
	t.Run("configuration", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		w.mu.Lock()
		delete(w.machines, m.id)
		w.mu.Unlock()
		w.must(m, node.Manage)
		wantError(t, w.until(m, "an error", func(n *node.Node) bool { return n.LastError != "" }),
			"ipmi_address is missing", "set ipmi_address")
	})
	t.Run("silent", func(t *testing.T) {
		w := newWorld(t)
		w.cfg.CallTimeout = 5 * time.Millisecond
		w.start(nil)
		m := w.add("n1")
		// many times what is waited for
		m.callErr = func(string) error { time.Sleep(200 * time.Millisecond); return errors.New("i/o timeout") }
		w.must(m, node.Manage)
		wantError(t, w.until(m, "an error", func(n *node.Node) bool { return n.LastError != "" }), "no answer in 5ms",
			"tried 5 times")
	})
	t.Run("gone for a moment", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		calls := 0
		m.callErr = func(string) error {
			if calls++; calls%10 < 3 {
				return &power.Error{Kind: power.Unreachable, Op: "log in", Err: errors.New("no answer")}
			}
			return nil
		}
		w.walk(m, node.Active)
		checkDeployed(t, m, 1)
	})
}

// TestStaysOff: a controller that takes the request and does nothing is asked three times, then told apart from all
// else.
func TestStaysOff(t *testing.T) {
	w := newWorld(t)
	w.cfg.PowerTimeout = time.Second
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.staysOff, m.asks = true, nil
	m.mu.Unlock()
	w.must(m, node.Deploy)
	n := w.untilState(m, node.DeployFailed)
	wantError(t, n, "booting the agent failed"[1:], "turn the machine on", "stays off", "power supplies")
	m.mu.Lock()
	if on := strings.Count(strings.Join(m.asks, ","), "on"); on < 2 || on > 4 {
		t.Errorf("the controller was asked %v", m.asks)
	}
	m.staysOff = false
	m.mu.Unlock()
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
}

// TestStepFails: whatever step fails, the node ends in the failure state with cause and remedy, its machine off and not
// bootable, and the same again works.
func TestStepFails(t *testing.T) {
	for _, c := range []struct {
		step  string
		from  node.State
		verb  node.Verb
		ends  node.State
		retry node.State
	}{
		{"inspect", node.Manageable, node.Inspect, node.InspectFailed, node.Manageable},
		{"erase_devices_metadata", node.Manageable, node.Provide, node.CleanFailed, ""},
		{"write_image", node.Available, node.Deploy, node.DeployFailed, node.Active},
		{"write_configdrive", node.Available, node.Deploy, node.DeployFailed, node.Active},
		{"prepare_instance_boot", node.Available, node.Deploy, node.DeployFailed, node.Active},
	} {
		for _, retryable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/retryable=%v", c.step, retryable), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.start(nil)
				m := w.add("n1")
				w.walk(m, c.from)
				fails := 0
				m.mu.Lock()
				m.behave[c.step] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
					fails++
					return node.StepResult{Outcome: node.OutcomeFailed, Error: "it hurts", Remedy: "be kind",
						Retryable: retryable}, true
				}
				m.mu.Unlock()
				req := Request{Verb: c.verb}
				if c.verb == node.Deploy {
					req.ConfigDrive = "http://drive-of/n1"
				}
				ask := func(r Request) {
					t.Helper()
					if err := w.current().eng.Provision(t.Context(), m.id, r); err != nil {
						t.Fatal(err)
					}
				}
				ask(req)
				n := w.untilState(m, c.ends)
				wantError(t, n, c.step+" failed", "it hurts. Be kind.")
				m.mu.Lock()
				if want := map[bool]int{false: 1, true: 2}[retryable]; fails != want {
					t.Errorf("the step was tried %d times, want %d", fails, want)
				}
				if m.on || m.bootable {
					t.Errorf("after the failure the machine is on: %v, bootable: %v", m.on, m.bootable)
				}
				delete(m.behave, c.step)
				m.mu.Unlock()
				if n.Boot.WindowOpen(time.Now()) || n.Reservation != "" {
					t.Errorf("after the failure the boot window is open, or the node reserved (%q)", n.Reservation)
				}
				if c.retry == "" { // cleaning: by way of manageable
					if n.Fault != node.FaultClean {
						t.Errorf("fault = %q", n.Fault)
					}
					ask(Request{Verb: node.Manage})
					if n := w.untilState(m, node.Manageable); n.Fault != "" {
						t.Errorf("fault = %q after manage", n.Fault)
					}
					ask(Request{Verb: node.Provide})
					w.untilState(m, node.Available)
					return
				}
				ask(Request{Verb: c.verb})
				if n := w.untilState(m, c.retry, c.ends); n.Provision != c.retry || n.LastError != "" {
					t.Errorf("the second try ended in %s: %s", n.Provision, n.LastError)
				}
			})
		}
	}
}

// TestPassingFailure: a step that fails once in a way that may pass is run again, with everything before it in the same
// plan.
func TestPassingFailure(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	first := true
	m.behave["prepare_instance_boot"] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
		defer func() { first = false }()
		return node.StepResult{Outcome: node.OutcomeFailed, Error: "busy", Retryable: true}, first
	}
	w.walk(m, node.Active)
	checkDeployed(t, m, 2)
}

// TestNoCallBack: the error says how far the machine came.
func TestNoCallBack(t *testing.T) {
	for _, c := range []struct {
		dhcp  string
		marks []string
		words []string
	}{
		{"server", nil, []string{"no DHCP request", "cabling"}},
		{"proxy", nil, []string{"no DHCP request", "your DHCP server"}},
		{"off", nil, []string{"nothing was fetched", "are not seen with netboot.dhcp off", "your DHCP server"}},
		{"server", []string{node.MarkDHCP}, []string{"DHCP request answered", "TFTP"}},
		{"proxy", []string{node.MarkDHCP},
			[]string{"DHCP request answered", "no other boot file", "address in time", "TFTP"}},
		{"server", []string{node.MarkDHCP, node.MarkBootProgram}, []string{"boot program", "no boot script"}},
		{"off", []string{node.MarkBootProgram}, []string{"boot program", "the file that your DHCP server makes iPXE load"}},
		{"server", []string{node.MarkDHCP, node.MarkBootProgram, node.MarkBootScript},
			[]string{"boot script fetched", "no kernel"}},
		{"server", []string{node.MarkDHCP, node.MarkBootScript, node.MarkKernel, node.MarkRamdisk},
			[]string{"ramdisk fetched", "console"}},
		{"server", []string{node.MarkRamdisk, node.MarkEnrolRefused}, []string{"refused", "history"}},
	} {
		t.Run(c.dhcp+" "+strings.Join(c.marks, ","), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.BootTimeout, w.cfg.DHCP = 2*time.Second, c.dhcp
			w.start(nil)
			m := w.add("n1")
			m.noNetBoot = true
			w.must(m, node.Manage)
			w.untilState(m, node.Manageable)
			// What was seen in an earlier job does not count.
			if err := w.store.AddMark(t.Context(),
				node.Mark{NodeUUID: m.id, JobID: "earlier", Name: node.MarkEnrolled}); err != nil {
				t.Fatal(err)
			}
			m.mu.Lock()
			m.turnedOn = func() {
				n, err := w.store.Node(t.Context(), m.id)
				if err != nil {
					t.Error(err)
					return
				}
				for _, name := range c.marks {
					if err := w.store.AddMark(t.Context(),
						node.Mark{NodeUUID: m.id, JobID: n.Job.ID, Name: name}); err != nil {
						t.Error(err)
					}
				}
			}
			m.mu.Unlock()
			w.must(m, node.Inspect)
			n := w.until(m, "inspect wait",
				func(n *node.Node) bool { return n.Provision == node.InspectWait || n.Provision == node.InspectFailed })
			if n.Reservation != "" && n.Provision == node.InspectWait {
				t.Errorf("reserved by %q while the agent has the next move", n.Reservation)
			}
			n = w.untilState(m, node.InspectFailed)
			wantError(t, n, append(c.words, "did not call back within 2s")...)
			if n.Power != "power off" {
				t.Errorf("the machine is left %q", n.Power)
			}
		})
	}
	t.Run("powered off", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cfg.BootTimeout = 10 * time.Second // in which it must be turned off
		w.start(nil)
		m := w.add("n1")
		w.must(m, node.Manage)
		w.untilState(m, node.Manageable)
		m.noNetBoot = true
		w.must(m, node.Inspect)
		w.until(m, "inspect wait", func(n *node.Node) bool { return n.Provision == node.InspectWait })
		m.pull()
		wantError(t, w.untilState(m, node.InspectFailed), "the machine is off again")
	})
}

// TestLosesPower: a machine whose plug is pulled in the middle of a plan is booted again and starts over; one that does
// so each time is given up.
func TestLosesPower(t *testing.T) {
	for _, times := range []int{1, 2, 100} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start(nil)
			m := w.add("n1")
			w.walk(m, node.Available)
			left := times
			m.mu.Lock()
			m.lost = time.Hour // longer than the test
			m.behave["write_image"] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
				if left == 0 {
					return node.StepResult{}, false
				}
				left--
				m.pull()
				return node.StepResult{}, true
			}
			m.mu.Unlock()
			if times < 3 {
				w.walk(m, node.Active)
				checkDeployed(t, m, times+1)
				return
			}
			w.must(m, node.Deploy)
			wantError(t, w.untilState(m, node.DeployFailed), "out of reach", "write_image", "booted 3 times")
			m.mu.Lock()
			if m.writes != 3 || m.bootable || m.on {
				t.Errorf("writes %d, bootable %v, on %v", m.writes, m.bootable, m.on)
			}
			left = 0
			m.mu.Unlock()
			w.must(m, node.Deploy)
			w.untilState(m, node.Active)
		})
	}
}

// TestShortLoss: a stream that breaks for less than the grace period changes nothing.
func TestShortLoss(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.stepTook = 30 * time.Millisecond
	m.mu.Unlock()
	stop := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for pause := 5 * time.Millisecond; ; {
			select {
			case <-stop:
				return
			case <-time.After(pause):
				link{w.current()}.CloseSession(m.id)
				pause += pause / 4 // however slow the machine is, the plan gets through in the end
			}
		}
	}()
	w.walk(m, node.Active)
	close(stop)
	<-gone
	checkDeployed(t, m, 1)
}

// TestWorkerBreaksDown: an agent that lost its plan in the same boot gets a fresh one, once.
func TestWorkerBreaksDown(t *testing.T) {
	for _, times := range []int{1, 100} {
		for _, holds := range []bool{false, true} { // whether the new worker still says it holds the plan
			t.Run(fmt.Sprintf("%d/%v", times, holds), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.start(nil)
				m := w.add("n1")
				w.walk(m, node.Available)
				left := times
				m.behave["write_configdrive"] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
					if left == 0 {
						return node.StepResult{}, false
					}
					left--
					a.breakDown(holds)
					<-a.ctx.Done() // what is left of the old worker does nothing
					return node.StepResult{}, true
				}
				if times == 1 {
					w.walk(m, node.Active)
					checkDeployed(t, m, 2)
					return
				}
				if err := w.current().eng.Provision(t.Context(), m.id,
					Request{Verb: node.Deploy, ConfigDrive: "eA=="}); err != nil {
					t.Fatal(err)
				}
				wantError(t, w.untilState(m, node.DeployFailed), "broke down", "panic")
			})
		}
	}
}

func TestStepsDigest(t *testing.T) {
	w := newWorld(t)
	w.cfg.StepsDigest = "aaaa"
	w.start(nil)
	m := w.add("n1")
	m.digest = "bbbb"
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Inspect)
	wantError(t, w.untilState(m, node.InspectFailed), "bbbb", "aaaa", "ramdisk")
	m.mu.Lock()
	m.digest = "aaaa"
	m.mu.Unlock()
	w.must(m, node.Inspect)
	w.untilState(m, node.Manageable)
}

func TestRamdiskWithoutTheSteps(t *testing.T) {
	w := newWorld(t)
	all := catalog.BuiltinSteps()
	w.cfg.AgentSteps = slices.DeleteFunc(slices.Clone(all),
		func(s steparg.Row) bool { return s.Name == "write_image" })
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Provide)
	w.untilState(m, node.Available)
	err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy})
	if err == nil || !strings.Contains(err.Error(), "write_image") {
		t.Errorf("a deployment by an agent that can't write = %v, want it refused", err)
	}
}
