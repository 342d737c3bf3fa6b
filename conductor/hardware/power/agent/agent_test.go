package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/agent"
	"github.com/ingot-metal/ingot/conductor/hardware/power/powertest"
)

// agents are those that are connected, with how often each was asked to restart its machine.
type agents struct {
	asked map[string]int
	err   error
}

func (a agents) Connected(id string) bool { _, ok := a.asked[id]; return ok }

func (a agents) Reboot(_ context.Context, id string) error {
	if a.err == nil {
		a.asked[id]++
	}
	return a.err
}

func open(t *testing.T, l agent.Link) power.Driver {
	t.Helper()
	d, err := agent.Opener(l)(power.Info{agent.Key: "n1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Without an agent it is a machine that only a person can do something with.
func TestSuite(t *testing.T) {
	powertest.Run(t, func(*testing.T) powertest.Subject {
		return powertest.Subject{NoPower: true, NoBoot: true,
			Open: func(t *testing.T) power.Driver { return open(t, agents{}) }}
	})
}

func TestWithAgent(t *testing.T) {
	link := agents{asked: map[string]int{"n1": 0, "n2": 0}}
	d := open(t, link)
	if st, err := d.Power(t.Context()); st != power.On || err != nil {
		t.Errorf("Power = %q, %v", st, err)
	}
	for _, a := range []power.Action{power.Reset, power.Cycle} {
		if err := d.SetPower(t.Context(), a); err != nil {
			t.Errorf("SetPower(%s) = %v", a, err)
		}
	}
	for a, hint := range map[power.Action]string{power.TurnOn: "turn the machine on by hand",
		power.TurnOff: "turn the machine off by hand", power.SoftOff: "off by hand"} {
		if err := d.SetPower(t.Context(), a); power.KindOf(err) != power.Unsupported ||
			!strings.Contains(err.Error(), hint) {
			t.Errorf("SetPower(%s) = %v", a, err)
		}
	}
	if link.asked["n1"] != 2 || link.asked["n2"] != 0 {
		t.Errorf("asked to restart: %v", link.asked)
	}
	link.err = errors.New("stream broke")
	if err := open(t, link).SetPower(t.Context(), power.Reset); power.KindOf(err) != power.Unreachable {
		t.Errorf("SetPower over a broken stream = %v", err)
	}
	if _, err := agent.Opener(link)(power.Info{}, nil); power.KindOf(err) != power.Config {
		t.Errorf("a driver without a node: %v", err)
	}
}
