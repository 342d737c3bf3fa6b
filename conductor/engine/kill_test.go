package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
)

// flow takes a new node through the whole main job with a conductor that dies at its k-th write (0: never), replaced by
// another. It returns how many writes the first one made.
func flow(w *world, name string, k int, commit bool) (writes int, m *machine) {
	c := &crash{at: k, commit: commit}
	first := w.start(c)
	m = w.add(name)
	replaced := w.successor(first, k > 0)
	w.walk(m, node.Active)
	first.die()
	<-replaced
	w.kill()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count, m
}

// TestDieAtEveryWrite kills the conductor at each write of the whole main job, once with the write lost and once with
// the write done but never learned of. Between two writes the engine does one act at most, so these are all the moments
// that differ.
func TestDieAtEveryWrite(t *testing.T) {
	total, m := flow(newWorld(t), "n", 0, false)
	checkDeployed(t, m, 1)
	if total < 40 {
		t.Fatalf("only %d writes in the whole flow: the count is wrong", total)
	}
	step := 1
	if raceOn && os.Getenv("INGOT_FULL") == "" {
		step = 12
	}
	// Many flows share a store: opening one costs more than a flow.
	const worlds = 4
	for i := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for k := 1 + i*step; k <= total; k += worlds * step {
				for _, commit := range []bool{false, true} {
					name := fmt.Sprintf("write-%d-committed-%v", k, commit)
					writes, m := flow(w, name, k, commit)
					checkDeployed(t, m, 1)
					// The number of writes differs a little from run to run (power may be read earlier or later), so
					// the last may not come.
					if writes < k && k < total-5 {
						t.Errorf("%s: the conductor did not die: only %d writes", name, writes)
					}
					if t.Failed() {
						t.Fatalf("in the flow %s", name)
					}
				}
			}
		})
	}
}

// TestDieAtMoments kills the conductor at named moments and starts the next only when the agent has nothing left to do.
func TestDieAtMoments(t *testing.T) {
	at := func(phase node.Phase, step, note string) func(*node.Node) bool {
		return func(n *node.Node) bool {
			s := n.Job.Current()
			return s != nil && n.Job.Phase == phase && s.Name == step && (note == "" || n.Job.Note == note)
		}
	}
	running := func(step string) func(*node.Node) bool {
		return func(n *node.Node) bool {
			s := n.Job.Current()
			return s != nil && s.Name == step && s.Status == node.StepRunning
		}
	}
	for _, c := range []struct {
		name string
		when func(*node.Node) bool
	}{
		{"verifying", at(node.PhaseVerify, "verify", "")},
		{"inspecting, machine booting", at(node.PhaseInspect, catalog.StepBoot, "wait")},
		{"inspecting, agent at work", running("inspect")},
		{"cleaning, agent at work", running("erase_devices_metadata")},
		{"cleaning, turning off", at(node.PhaseClean, "power_off_agent", "")},
		{"deploying, turning off", at(node.PhaseDeploy, catalog.StepBootAgent, "off")},
		{"deploying, boot device", at(node.PhaseDeploy, catalog.StepBootAgent, "device")},
		{"deploying, power on asked", at(node.PhaseDeploy, catalog.StepBootAgent, "on asked")},
		{"deploying, waiting for the agent", at(node.PhaseDeploy, catalog.StepBootAgent, "wait")},
		{"deploying, image being written", running("write_image")},
		{"deploying, table being committed", running("prepare_instance_boot")},
		{"deploying, tear down", at(node.PhaseDeploy, catalog.StepTearDown, "")},
		{"deploying, boot from disk", at(node.PhaseDeploy, "boot_instance", "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			seen := make(chan struct{})
			// The conductor dies right after the write that brings the node to the moment.
			moment := func(n *node.Node) bool {
				if n.Job != nil && c.when(n) {
					close(seen)
					return true
				}
				return false
			}
			first := w.start(&crash{moment: moment})
			m := w.add("n1")
			go func() {
				<-seen
				<-first.ended
				m.agentFinishes()
				w.start(nil)
			}()
			w.walk(m, node.Active)
			select {
			case <-seen:
			default:
				t.Fatal("the moment did not come")
			}
			checkDeployed(t, m, 1)
		})
	}
}

// TestAgentCarriesOnAlone: with the conductor dead while the image is written, the agent finishes its plan; the next
// conductor takes the results and sends nothing again.
func TestAgentCarriesOnAlone(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	goOn := m.hold("write_image")
	w.must(m, node.Deploy)
	w.until(m, "write_image", func(n *node.Node) bool {
		s := n.Job.Current()
		return s != nil && s.Name == "write_image" && s.Status == node.StepRunning
	})
	w.kill()
	goOn()
	m.agentFinishes()
	m.mu.Lock()
	plans := len(m.plansTaken)
	if !m.bootable {
		t.Error("the agent did not finish by itself")
	}
	m.mu.Unlock()
	w.start(nil)
	w.untilState(m, node.Active)
	if len(m.plansTaken) != plans || m.writes != 1 || m.pxeBoots != 3 {
		t.Errorf("after the restart: %d plans instead of %d, %d writes, %d boots of the agent instead of 3",
			len(m.plansTaken), plans, m.writes, m.pxeBoots)
	}
}

// TestZombie: what a conductor had begun that was thought dead it can't write any more once another of the same name
// has taken over; that it begins nothing new is the store's business, which knows conductors by their epochs.
func TestZombie(t *testing.T) {
	w := newWorld(t)
	old := w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	fence := w.node(m).Fence
	w.start(nil)
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	_, err := old.eng.change(t.Context(), m.id, func(n *node.Node, _ *node.SideEffects) error {
		n.LastError = "late"
		return nil
	})
	if !errors.Is(err, errFenced) {
		t.Errorf("a late write = %v, want %v", err, errFenced)
	}
	if n := w.node(m); n.Fence <= fence || n.Provision != node.Active {
		t.Errorf("fence %d after %d, state %s", n.Fence, fence, n.Provision)
	}
	old.die()
	<-old.ended
	checkDeployedWithoutDrive(t, m)
}

func checkDeployedWithoutDrive(t *testing.T, m *machine) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes != 1 || !m.bootable || !m.on {
		t.Errorf("writes %d, bootable %v, on %v", m.writes, m.bootable, m.on)
	}
}

// arm lets the conductor die at its k-th write from now on.
func (c *crash) arm(k int, commit bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count, c.at, c.commit = 0, k, commit
}

// reached reports whether the write came at which the conductor dies. It may have been one after all that a test waited
// for, before the latest arm: then the conductor is as dead.
func (c *crash) reached() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hit
}

// TestDieElsewhere kills the conductor at each write of what is not the main job: each comes to the end that it would
// have had.
func TestDieElsewhere(t *testing.T) {
	for _, c := range []struct {
		name  string
		from  node.State
		setup func(*machine)
		begin func(*world, *machine) error
		ended func(*node.Node) bool
		check func(*testing.T, *machine, *node.Node)
	}{
		{"undeploy", node.Active, nil,
			func(w *world, m *machine) error { return w.ask(m, node.Delete) },
			func(n *node.Node) bool { return n.Job == nil && n.Provision == node.Available },
			func(t *testing.T, m *machine, n *node.Node) {
				if m.bootable || m.on || n.Power != "power off" || len(n.InstanceInfo) != 0 {
					t.Errorf("bootable %v, on %v, power %q, instance_info %v", m.bootable, m.on, n.Power,
						n.InstanceInfo)
				}
			}},
		{"failing deployment", node.Available,
			func(m *machine) {
				m.behave["write_image"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
					return node.StepResult{Outcome: node.OutcomeFailed, Error: "it hurts"}, true
				}
			},
			func(w *world, m *machine) error { return w.ask(m, node.Deploy) },
			func(n *node.Node) bool { return n.Job == nil && n.Provision == node.DeployFailed },
			func(t *testing.T, m *machine, n *node.Node) {
				wantError(t, n, "it hurts")
				if m.on || m.bootable || n.Power != "power off" {
					t.Errorf("on %v, bootable %v, power %q", m.on, m.bootable, n.Power)
				}
			}},
		{"restart", node.Active, nil,
			func(w *world, m *machine) error {
				return w.current().eng.SetPower(context.Background(), m.id, "rebooting", 0, "tester")
			},
			func(n *node.Node) bool { return n.Job == nil && n.TargetPower == "" },
			func(t *testing.T, m *machine, n *node.Node) {
				if !m.on || n.Power != "power on" || n.LastError != "" || n.Reservation != "" {
					t.Errorf("on %v, power %q, error %q, reservation %q", m.on, n.Power, n.LastError, n.Reservation)
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			co := w.start(nil)
			m := w.add("n1")
			step := 1
			if raceOn && os.Getenv("INGOT_FULL") == "" {
				step = 6
			}
			for k := 1; ; k += step {
				w.walk(m, c.from)
				m.mu.Lock()
				if c.setup != nil {
					c.setup(m)
				}
				m.mu.Unlock()
				co.crash.arm(k, k%2 == 0)
				asked := c.begin(w, m)
				if asked == nil {
					// It lived long enough to take the request.
					for w.node(m).Job != nil && !co.isDead() {
						time.Sleep(time.Millisecond)
					}
				}
				// Asked of the count and not of the conductor: the node shows the last write before the conductor that
				// made it is dead.
				died := co.crash.reached()
				if died {
					<-co.ended
					co = w.start(nil)
					n := w.node(m)
					if n.Job == nil && !c.ended(n) || n.Job == nil && asked != nil && n.Provision == c.from {
						if err := c.begin(w, m); err != nil { // the request itself was lost: the client asks again
							t.Fatal(err)
						}
					}
				}
				n := w.until(m, "the end of "+c.name, c.ended)
				m.mu.Lock()
				c.check(t, m, n)
				delete(m.behave, "write_image")
				m.mu.Unlock()
				if !died {
					if k < 5 {
						t.Errorf("only %d writes: the count is wrong", k)
					}
					return
				}
				co.crash.arm(0, false)
				if n.Provision == node.DeployFailed {
					w.must(m, node.Deploy)
					w.untilState(m, node.Active)
					w.must(m, node.Delete)
					w.untilState(m, node.Available)
				}
				if n := w.node(m); n.InstanceInfo == nil {
					_, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
						n.InstanceInfo = map[string]any{"image_source": "http://images/n1",
							"image_os_hash_algo": "sha256", "image_os_hash_value": strings.Repeat("ab", 32)}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestLongAbsence: a conductor that was away for longer than any limit goes on all the same; limits count from its
// return.
func TestLongAbsence(t *testing.T) {
	for _, note := range []string{"off asked", "on asked", "wait"} {
		t.Run(note, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			seen := make(chan struct{})
			w.walkWith(t, &crash{moment: func(n *node.Node) bool {
				if n.Job != nil && n.Job.Phase == node.PhaseDeploy && n.Job.Note == note {
					close(seen)
					return true
				}
				return false
			}}, seen)
		})
	}
}

// walkWith walks a node whose conductor dies at a moment and whose record is then made to look hours old.
func (w *world) walkWith(t *testing.T, c *crash, seen chan struct{}) {
	first := w.start(c)
	m := w.add("n1")
	w.walk(m, node.Available)
	m.mu.Lock()
	m.on = true // so that it has to be turned off, too
	m.mu.Unlock()
	go func() {
		<-seen
		<-first.ended
		_, err := w.store.UpdateNode(context.Background(), m.id, func(n *node.Node) error {
			const hours = 5 * time.Hour
			n.Job.BegunAt = n.Job.BegunAt.Add(-hours)
			if b := n.Boot; b != nil {
				b.OpenedAt, b.ClosesAt = b.OpenedAt.Add(-hours), b.ClosesAt.Add(-hours)
				if !b.LostAt.IsZero() {
					b.LostAt = b.LostAt.Add(-hours)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		w.start(nil)
	}()
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
}
