package fleet_test

import (
	"context"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

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

// TestFromEnrolToActive: all machines of a fleet are inspected, cleaned and deployed by a real ingotd, over IPMI, HTTP
// and the agents' protocol; then their agents are gone, and their instances run.
func TestFromEnrolToActive(t *testing.T) {
	const nodes = 10
	c := start(t, nil)
	f, err := fleet.Start(t.Context(), fleet.Options{Nodes: nodes, Seed: 1, BootURL: c.boot,
		Boot: 200 * time.Millisecond, Write: 500 * time.Millisecond, Step: 20 * time.Millisecond})
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
	d := fleet.NewDriver(c.api, "active", 0, nil)
	if err := d.Create(ctx, f.Machines); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(ctx); err != nil {
		t.Fatalf("%v; states %v", err, d.States())
	}
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
