// Package simulated is an ingotd of a test's own with simulated machines: they have controllers, boot from it, and run
// the session of the real agent.
package simulated

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// Network is the block of loopback addresses of this process's machines: other tests of this host may run some, too.
var Network = byte(80 + os.Getpid()%170)

// Site is the ingotd: its API, and where machines boot.
type Site struct {
	t         testing.TB
	API       *client.Client
	URL, Boot string

	config string
	pid    int // of the newest ingotd
	log    *ingotd.Output
}

// New starts an ingotd with settings beside those that a fleet needs, and ends it with the test. API has no
// credentials. The ramdisk has the site's own steps beside the agent's.
func New(t testing.TB, settings map[string]map[string]any, own ...step.Row) *Site {
	t.Helper()
	api, _ := settings["api"]["listen"].(string)
	if api == "" {
		api = kit.FreeAddr(t)
	}
	boot := kit.FreeAddr(t)
	_, digits, err := net.SplitHostPort(boot)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	config, err := fleet.Site{Dir: t.TempDir(), API: api, Agents: kit.FreeAddr(t), Boot: port,
		Settings: settings, Own: own}.Write()
	if err != nil {
		t.Fatal(err)
	}
	r := &Site{t: t, URL: "http://" + api, Boot: "http://" + boot, config: config, log: &ingotd.Output{}}
	if r.API, err = client.New(r.URL, nil); err != nil {
		t.Fatal(err)
	}
	r.Again()
	return r
}

// Kill ends the ingotd with SIGKILL, and Again starts another with its data.
func (r *Site) Kill() {
	r.t.Helper()
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	ingotd.Wait(r.t, "ingotd has ended", func() bool { return syscall.Kill(r.pid, 0) != nil })
}

// Again is described at Kill.
func (r *Site) Again() {
	r.t.Helper()
	cmd := exec.Command(made.Program(r.t, "ingotd"), "--config", r.config)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	ingotd.Run(r.t, cmd, r.log)
	r.pid = cmd.Process.Pid
	ingotd.Wait(r.t, "ingotd answers", func() bool {
		resp, err := http.Get(r.URL + "/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// Machines starts machines that boot from the ingotd, and ends them with the test.
func (r *Site) Machines(o fleet.Options) *fleet.Fleet {
	r.t.Helper()
	o.BootURL, o.Network = r.Boot, Network
	f, err := fleet.Start(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := f.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return f
}

// Drive makes nodes of machines and takes them to a provision state, each with so many tries more than one.
func (r *Site) Drive(f *fleet.Fleet, target string, tries int) *fleet.Driver {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	d := fleet.NewDriver(r.API, target, tries, nil)
	if err := d.Create(ctx, f.Machines); err != nil {
		r.t.Fatal(err)
	}
	if err := d.Run(ctx); err != nil {
		r.t.Fatalf("%v; %s", err, f.Summary(d))
	}
	return d
}
