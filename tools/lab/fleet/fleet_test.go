package fleet_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/simulated"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// drive takes the nodes of a fast fleet to active.
func drive(r *simulated.Site, o fleet.Options, tries int) (*fleet.Fleet, *fleet.Driver) {
	o.Boot, o.Write, o.Step = 200*time.Millisecond, 500*time.Millisecond, 20*time.Millisecond
	f := r.Machines(o)
	return f, r.Drive(f, "active", tries)
}

// TestFromEnrolToActive: all machines of a fleet are inspected, cleaned and deployed by a real ingotd, over IPMI, HTTP
// and the agents' protocol; then their agents are gone, and their instances run.
func TestFromEnrolToActive(t *testing.T) {
	const nodes = 10
	f, d := drive(simulated.New(t, nil), fleet.Options{Nodes: nodes}, 0)
	if got := d.States(); got["active"] != nodes || len(d.Failed()) != 0 {
		t.Errorf("states %v, failed %v", got, d.Failed())
	}
	n := f.Counts()
	if n.Images != nodes || n.Opened < 3*nodes || n.Refused != 0 {
		t.Errorf("counts %+v", n)
	}
	kit.Eventually(t, time.Minute, "the agents are gone", func() bool {
		n := f.Counts()
		return n.Agents == 0 && n.Sessions == 0
	})
	for _, m := range f.Machines {
		kit.Eventually(t, time.Minute, "the instance of "+m.Name+" runs", m.Instance)
	}
	if n := f.Overlaps(); n != 0 {
		t.Errorf("controllers were asked %d times while they had not answered", n)
	}
}

// TestFaults: agents that die and freeze in the middle of steps, and controllers that lie, fail and are slow, keep no
// node from becoming active.
func TestFaults(t *testing.T) {
	const nodes = 20
	c := simulated.New(t, map[string]map[string]any{
		"deploy": {"session_grace": "1s", "boot_timeout": "20s", "max_boots": 10},
		"power":  {"timeout": "2s", "sync_interval": "5s"},
	})
	f, d := drive(c, fleet.Options{Nodes: nodes, Seed: 3, Trouble: 500 * time.Millisecond,
		Rates: fleet.Rates{Die: 0.05, Freeze: 0.02, Lie: 0.05, Fail: 0.05, Slow: 0.2}}, 5)
	if got := d.States(); got["active"] != nodes || len(d.Failed()) != 0 {
		t.Errorf("states %v, failed %v", got, d.Failed())
	}
	n := f.Counts()
	if n.Deaths == 0 || n.Frosts == 0 || n.Lies == 0 || n.Fails == 0 {
		t.Errorf("not every kind of fault happened: %+v", n)
	}
	if n.Images < nodes || n.Boots <= 4*nodes {
		t.Errorf("%+v: too few boots and images for these faults", n)
	}
	t.Log(f.Summary(d))
}

// TestSameSeedSameMachines: a fleet is made of its seed.
func TestSameSeedSameMachines(t *testing.T) {
	ids := func(seed uint64) (all []string) {
		f, err := fleet.Start(t.Context(), fleet.Options{Nodes: 3, Seed: seed, Network: simulated.Network})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range f.Machines {
			all = append(all, m.UUID.String())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		return all
	}
	one, again, other := ids(5), ids(5), ids(6)
	if !slices.Equal(one, again) || slices.Equal(one, other) || one[0] == one[1] {
		t.Errorf("machines of seeds 5, 5 and 6: %v, %v, %v", one, again, other)
	}
	for _, bad := range []fleet.Options{{}, {Nodes: fleet.Most + 1}, {Nodes: 1, Rates: fleet.Rates{Lie: 1.5}},
		{Nodes: 1, Rates: fleet.Rates{Die: math.NaN()}}} {
		if _, err := fleet.Start(t.Context(), bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}
