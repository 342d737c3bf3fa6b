package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// restarting is a step that has the machine restarted twice, and asks for another call after each.
type restarting struct {
	mu      sync.Mutex
	calls   map[string][]string // what it remembered, by node
	trouble int                 // calls that fail in a way that may pass
}

func (r *restarting) run(_ context.Context, c hardware.Call) (hardware.Outcome, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string][]string{}
	}
	if r.trouble > 0 {
		r.trouble--
		return hardware.Outcome{}, &power.Error{Kind: power.Busy, Op: "read BIOS", Err: errors.New("in POST")}
	}
	r.calls[c.Node.UUID] = append(r.calls[c.Node.UUID], string(c.Memory))
	switch string(c.Memory) {
	case "":
		return hardware.Outcome{Memory: []byte("one"), Restart: true, Detail: "restarting"}, nil
	case "one":
		return hardware.Outcome{Memory: []byte("two"), After: time.Millisecond}, nil
	case "two":
		return hardware.Outcome{Memory: []byte("three"), Restart: true}, nil
	}
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		n.RAIDConfig = map[string]any{"calls": len(n.RAIDConfig)}
		return nil
	}}, nil
}

// TestRestartForAStep: an interface's step has its machine restarted, by its power or with the agent of the job, and is
// called again with what it remembered.
func TestRestartForAStep(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fake    bool
		staysOn bool
		off     bool // the agent is turned off before
		asks    string
		boots   int
	}{
		{"without an agent", true, false, false, "on off on", 0},
		{"without an agent, never off", true, true, false, "on reset", 0},
		{"with an agent", false, false, false, "", 3},
		{"after the agent", false, false, true, "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := &restarting{trouble: 2}
			w.plugs.custom = r.run
			w.start(nil)
			m := w.add("n")
			if tt.fake {
				m = w.addFake("f")
			}
			w.edit(m, func(n *node.Node) { n.DisablePowerOff = tt.staysOn })
			w.want(m, Request{Verb: node.Manage}, node.Manageable)
			list := []node.JobStep{{Interface: "bios", Name: "restart"}}
			switch {
			case tt.off:
				list = append([]node.JobStep{{Interface: "power", Name: "power_off"}}, list...)
			case !tt.fake:
				list = append(list, steps("erase_devices_metadata")...)
			}
			n := w.want(m, Request{Verb: node.Clean, CleanSteps: list}, node.Manageable)
			if n.LastError != "" || n.RAIDConfig["calls"] == nil {
				t.Errorf("last error %q, raid_config %v", n.LastError, n.RAIDConfig)
			}
			if got := strings.Join(r.calls[m.id], " "); got != " one two three" {
				t.Errorf("it remembered %q", got)
			}
			for _, s := range n.Past[node.PhaseClean].Steps {
				if s.Memory != nil {
					t.Errorf("step %s is remembered with its memory %s", s.Name, s.Memory)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if got := strings.Join(m.asks, " "); tt.fake && got != tt.asks || m.pxeBoots != tt.boots {
				t.Errorf("the controller was asked for %q, the agent booted %d times; want %q, %d", got, m.pxeBoots,
					tt.asks, tt.boots)
			}
		})
	}
}

// TestDieInARestart kills the conductor at each write of a step that restarts its machine: the step gets to its end.
func TestDieInARestart(t *testing.T) {
	for _, fake := range []bool{true, false} {
		t.Run(fmt.Sprint("fake ", fake), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := new(restarting)
			w.plugs.custom = r.run
			co := w.start(nil)
			restart := Request{Verb: node.Clean, User: "tester",
				CleanSteps: []node.JobStep{{Interface: "bios", Name: "restart"}}}
			for k := 1; ; k++ {
				died := false
				for _, commit := range []bool{false, true} {
					add := w.add
					if fake {
						add = w.addFake
					}
					m := add(fmt.Sprint("n", k, commit))
					w.edit(m, func(n *node.Node) { n.Provision, n.Power = node.Manageable, "power off" })
					co.crash.arm(k, commit)
					deadline := time.Now().Add(patience)
					asked := false
					for n := w.node(m); n.Provision != node.Manageable || n.Job != nil || !asked; n = w.node(m) {
						if co.crash.reached() {
							<-co.ended
							co, died = w.start(nil), true
						}
						if n.Job == nil {
							asked = n.RAIDConfig["calls"] != nil
							if !asked {
								_ = co.eng.Provision(t.Context(), m.id, restart) // it may have died
							}
						}
						if time.Now().After(deadline) {
							b, _ := json.Marshal(n)
							t.Fatalf("killed at write %d (%v): %s", k, commit, b)
						}
						time.Sleep(time.Millisecond)
					}
					if n := w.node(m); n.LastError != "" {
						t.Errorf("killed at write %d (%v): %s", k, commit, n.LastError)
					}
				}
				if !died {
					return
				}
			}
		})
	}
}

// TestMemoryIsBounded: a step does not fill the store.
func TestMemoryIsBounded(t *testing.T) {
	w := newWorld(t)
	w.plugs.custom = func(context.Context, hardware.Call) (hardware.Outcome, error) {
		return hardware.Outcome{After: time.Hour, Memory: make([]byte, hardware.MaxMemory+1)}, nil
	}
	w.start(nil)
	m := w.addFake("n")
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	n := w.want(m, Request{Verb: node.Clean, CleanSteps: []node.JobStep{{Interface: "bios", Name: "restart"}}},
		node.CleanFailed)
	wantError(t, n, "remember 65537 bytes")
}
