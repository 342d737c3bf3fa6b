package engine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// noImageLeft fails unless the virtual drive is empty, and recorded so.
func noImageLeft(t *testing.T, m *machine) {
	t.Helper()
	if n := m.w.node(m); m.inDrive() != "" || n.MediaInserted {
		t.Errorf("the virtual drive has %q, recorded %v", m.inDrive(), n.MediaInserted)
	}
}

// TestBootFromMedia: the main job with an agent that is booted from virtual media alone, with an image of its own for
// each boot, and nothing in the drive after each job.
func TestBootFromMedia(t *testing.T) {
	w := newWorld(t)
	w.media = true
	w.start(nil)
	m := w.add("n1")
	for _, s := range []node.State{node.Manageable, node.Available, node.Active} {
		n := w.walk(m, s)
		noImageLeft(t, m)
		if b := n.Boot; s != node.Manageable && (b == nil || !b.Media) {
			t.Errorf("%s: the boot is %+v", s, b)
		}
	}
	checkDeployed(t, m, 1)
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	noImageLeft(t, m)
	if m.pxeBoots != 0 || m.mediaBoots != 4 {
		t.Errorf("%d boots from the network, %d from virtual media, want 0 and 4", m.pxeBoots, m.mediaBoots)
	}
	marks, err := w.store.Marks(t.Context(), m.id, "")
	if err != nil {
		t.Fatal(err)
	}
	inserted := 0
	for _, mark := range marks {
		if mark.Name == node.MarkMedia {
			inserted++
		}
	}
	if inserted != 4 {
		t.Errorf("the time line has %d images, want 4", inserted)
	}
}

// TestDieAtEveryWriteOfMedia kills the conductor at each write of the main job, as TestDieAtEveryWrite: the machine is
// deployed once, and no image stays in the drive.
func TestDieAtEveryWriteOfMedia(t *testing.T) {
	media := func(t *testing.T) *world {
		w := newWorld(t)
		w.media = true
		return w
	}
	total, m := flow(media(t), "n", 0, false)
	checkDeployed(t, m, 1)
	step := 1
	if os.Getenv("INGOT_FULL") == "" {
		step = 3
	}
	if raceOn {
		step *= 6
	}
	const worlds = 4
	for i := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := media(t)
			for k := 1 + i*step; k <= total; k += worlds * step {
				for _, commit := range []bool{false, true} {
					_, m := flow(w, fmt.Sprintf("write-%d-committed-%v", k, commit), k, commit)
					checkDeployed(t, m, 1)
					noImageLeft(t, m)
					if t.Failed() {
						t.Fatalf("in the flow with write %d, committed %v", k, commit)
					}
				}
			}
		})
	}
}

// TestMediaFailures: an image that can't be inserted fails the job with the controller's reason; one whose agent does
// not come, or that the controller does not eject at once, is ejected.
func TestMediaFailures(t *testing.T) {
	fails := func(op string, times int, kind power.Kind) func(*machine) {
		return func(m *machine) {
			left := times
			m.callErr = func(is string) error {
				if is != op || left == 0 {
					return nil
				}
				left--
				return &power.Error{Kind: kind, Op: op, Err: errors.New("it is jammed")}
			}
		}
	}
	for _, tt := range []struct {
		name  string
		setup func(*machine)
		state node.State
		want  string // in the error, or in the history
	}{
		{"busy for a while", fails("insert virtual media", 2, power.Busy), node.Manageable, ""},
		{"refused", fails("insert virtual media", -1, power.Refused), node.InspectFailed, "it is jammed"},
		{"no agent", func(m *machine) { m.noNetBoot = true }, node.InspectFailed,
			"has read nothing of the boot image"},
		{"eject busy for a while", fails("eject virtual media", 2, power.Busy), node.Manageable, ""},
		{"eject refused", fails("eject virtual media", 1, power.Refused), node.Manageable,
			"is still in the virtual drive"},
		{"eject busy for long", fails("eject virtual media", 10, power.Busy), node.Manageable,
			"is still in the virtual drive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.media = true
			w.cfg.PowerSync = 20 * time.Millisecond
			if tt.name == "no agent" {
				w.cfg.BootTimeout = 200 * time.Millisecond
			}
			w.start(nil)
			m := w.add("n1")
			w.must(m, node.Manage)
			w.untilState(m, node.Manageable)
			m.mu.Lock()
			tt.setup(m)
			m.mu.Unlock()
			w.must(m, node.Inspect)
			n := w.untilState(m, tt.state)
			text := n.LastError
			h, err := w.store.History(t.Context(), m.id, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range h {
				text += e.Event
			}
			if !strings.Contains(text, tt.want) {
				t.Errorf("%q does not say %q", text, tt.want)
			}
			w.until(m, "no image in the drive", func(n *node.Node) bool { return !n.MediaInserted })
			noImageLeft(t, m)
		})
	}
}

// neverOff adds a machine that is on, and is not to be turned off.
func (w *world) neverOff() *machine {
	w.t.Helper()
	m := w.add("n1")
	w.edit(m, func(n *node.Node) { n.DisablePowerOff = true })
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	m.mu.Lock()
	m.on = true
	m.mu.Unlock()
	return m
}

// inspect has a machine inspected by the agent.
func (w *world) inspect(m *machine) {
	w.t.Helper()
	w.must(m, node.Inspect)
	w.until(m, "the end of its inspection", func(n *node.Node) bool {
		return n.Job == nil && !n.InspectionFinishedAt.IsZero()
	})
}

// TestRestartNotStored: when the database did not take that a machine which is never turned off was restarted, the boot
// begins anew, instead of with a second restart for which no boot device is set.
func TestRestartNotStored(t *testing.T) {
	w := newWorld(t)
	co := w.start(nil)
	m := w.neverOff()
	m.mu.Lock()
	resets := 0
	m.callErr = func(op string) error {
		if op == "power "+string(power.Reset) {
			resets++
			m.late.Store(resets == 1)
			co.crash.mu.Lock()
			co.crash.refuse = resets == 1
			co.crash.mu.Unlock()
		}
		return nil
	}
	m.mu.Unlock()
	w.inspect(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if resets != 2 || m.osStarted > 0 || !w.said(m, "booted anew") {
		t.Errorf("%d restarts, %d starts of the old system", resets, m.osStarted)
	}
}

// TestRestartIntoAgent: a machine that is never turned off boots the agent whatever becomes of the request to restart
// it: a controller that is busy is asked again, and after a restart that may have been done the boot begins anew.
func TestRestartIntoAgent(t *testing.T) {
	for _, media := range []bool{false, true} {
		for _, c := range []struct {
			name string
			kind power.Kind
			done bool // though the answer is an error
			anew bool
		}{
			{"busy", power.Busy, false, false}, {"no answer", power.Unreachable, false, true},
			{"no answer though done", power.Unreachable, true, false}, // or true, if the agent takes longer
		} {
			t.Run(fmt.Sprintf("%s, media %v", c.name, media), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.media = media
				w.start(nil)
				m := w.neverOff()
				m.mu.Lock()
				failed := false
				m.callErr = func(op string) error {
					if op != "power "+string(power.Reset) || failed {
						return nil
					}
					failed = true
					if c.done {
						m.turnOff()
						m.turnOn()
					}
					return &power.Error{Kind: c.kind, Op: op, Err: errors.New("try again")}
				}
				m.mu.Unlock()
				w.inspect(m)
				if anew := w.said(m, "booted anew"); !c.done && anew != c.anew {
					t.Errorf("the boot began anew: %v, want %v", anew, c.anew)
				}
				m.mu.Lock()
				defer m.mu.Unlock()
				if boots := m.pxeBoots + m.mediaBoots; !failed || m.osStarted > 0 || !c.done && boots != 1 {
					t.Errorf("the request failed: %v; %d starts of the old system, %d boots of the agent", failed, m.osStarted,
						boots)
				}
			})
		}
	}
}

// TestKeptAgentNeedsNoMedia: the image of an agent that stays is taken out while it stays, and its boot goes on.
func TestKeptAgentNeedsNoMedia(t *testing.T) {
	w := newWorld(t)
	w.media, w.cfg.FastTrack, w.cfg.PowerSync = true, true, 20*time.Millisecond
	w.start(nil)
	m := w.add("n1")
	n := w.walk(m, node.Available)
	if n.Boot == nil || !n.Boot.Kept {
		t.Fatalf("the agent was not kept: %+v", n.Boot)
	}
	w.until(m, "no image in the drive", func(n *node.Node) bool { return !n.MediaInserted })
	noImageLeft(t, m)
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
	if m.mediaBoots != 1 {
		t.Errorf("the agent was booted %d times, want 1", m.mediaBoots)
	}
}

// TestNoServerOfImages: without one the node's boot interface is not valid, and the job says what to set.
func TestNoServerOfImages(t *testing.T) {
	w := newWorld(t)
	w.media = true
	w.start(nil).eng.SetBootImages(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	v, err := w.current().eng.Validate(t.Context(), m.id)
	if err != nil || *v["boot"].Result || !strings.Contains(v["boot"].Reason, "netboot.interface") {
		t.Errorf("validate: %+v, %v", v["boot"], err)
	}
	w.must(m, node.Inspect)
	if n := w.untilState(m, node.InspectFailed); !strings.Contains(n.LastError, "netboot.interface") {
		t.Errorf("last error %q", n.LastError)
	}
	noImageLeft(t, m)
}

// TestNetworkDataOfMedia: what the agent could not set up is said by validate, before a machine boots with it.
func TestNetworkDataOfMedia(t *testing.T) {
	w := newWorld(t)
	w.media = true
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	for _, c := range []struct {
		link string
		ok   bool
	}{{"nic", true}, {"eth", false}} {
		if _, err := w.current().eng.change(t.Context(), m.id, func(n *node.Node, _ *node.SideEffects) error {
			n.NetworkData = map[string]any{
				"links": []any{map[string]any{"id": "nic", "type": "phy",
					"ethernet_mac_address": "52:54:00:00:00:01"}},
				"networks": []any{map[string]any{"id": "prov", "type": "ipv4", "link": c.link,
					"ip_address": "192.0.2.50", "netmask": "255.255.255.0"}},
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		v, err := w.current().eng.Validate(t.Context(), m.id)
		if err != nil || *v["boot"].Result != c.ok || !c.ok && !strings.Contains(v["boot"].Reason, `no link "eth"`) {
			t.Errorf("link %s: %+v, %v", c.link, v["boot"], err)
		}
	}
}

// TestOldSystemInsteadOfMedia: a machine that starts its disk instead of the virtual drive is restarted with a new
// image each time, and then the sentence says what to look at. No image is left.
func TestOldSystemInsteadOfMedia(t *testing.T) {
	w, m := systemWorld(t)
	w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"boot": MediaBoots[0]} })
	m.oldSystem(100)
	wantError(t, w.want(m, Request{Verb: node.Inspect}, node.InspectFailed), "3 times in a row",
		"the agent did not start from its boot image", "Secure Boot")
	noImageLeft(t, m)
	if system, _, on := m.starts(); system != 3 || on {
		t.Errorf("the system started %d times; on: %v", system, on)
	}
}
