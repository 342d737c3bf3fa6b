package fleet_test

import (
	"context"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// network is of this process alone: other tests of this host may run fleets, too.
var network = byte(80 + os.Getpid()%170)

// conductor is an ingotd for a fleet.
type conductor struct {
	api  *client.Client
	boot string
}

// start starts an ingotd with settings of its own.
func start(t *testing.T, settings map[string]map[string]any) conductor {
	t.Helper()
	api, boot := kit.FreeAddr(t), kit.FreeAddr(t)
	_, port, err := net.SplitHostPort(boot)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	config, err := fleet.Site{Dir: t.TempDir(), API: api, Agents: kit.FreeAddr(t), Boot: n, Settings: settings}.Write()
	if err != nil {
		t.Fatal(err)
	}
	log := &ingotd.Output{}
	cmd := exec.Command(made.Program(t, "ingotd"), "--config", config)
	cmd.Stdout, cmd.Stderr = log, log
	ingotd.Run(t, cmd, log)
	c := conductor{boot: "http://" + boot}
	if c.api, err = client.New("http://"+api, nil); err != nil {
		t.Fatal(err)
	}
	ingotd.Wait(t, "ingotd answers", func() bool {
		_, err := c.api.Drivers(t.Context())
		return err == nil
	})
	return c
}

// drive takes the nodes of a fast fleet to active.
func drive(t *testing.T, c conductor, o fleet.Options, tries int) (*fleet.Fleet, *fleet.Driver) {
	t.Helper()
	o.BootURL, o.Boot, o.Write, o.Step = c.boot, 200*time.Millisecond, 500*time.Millisecond, 20*time.Millisecond
	o.Network = network
	f, err := fleet.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	d := fleet.NewDriver(c.api, "active", tries, nil)
	if err := d.Create(ctx, f.Machines); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(ctx); err != nil {
		t.Fatalf("%v; %s", err, f.Summary(d))
	}
	return f, d
}

// TestFromEnrolToActive: all machines of a fleet are inspected, cleaned and deployed by a real ingotd, over IPMI, HTTP
// and the agents' protocol; then their agents are gone, and their instances run.
func TestFromEnrolToActive(t *testing.T) {
	const nodes = 10
	f, d := drive(t, start(t, nil), fleet.Options{Nodes: nodes}, 0)
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
	c := start(t, map[string]map[string]any{
		"deploy": {"session_grace": "1s", "boot_timeout": "20s", "max_boots": 10},
		"power":  {"timeout": "2s", "sync_interval": "5s"},
	})
	f, d := drive(t, c, fleet.Options{Nodes: nodes, Seed: 3, Trouble: 500 * time.Millisecond,
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
		f, err := fleet.Start(t.Context(), fleet.Options{Nodes: 3, Seed: seed, Network: network})
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
