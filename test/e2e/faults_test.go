package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// TestConductorKilled kills ingotd while the image is being written. The agent goes on by itself; the write is not started again.
func TestConductorKilled(t *testing.T) {
	r := newRig(t, []lab.NodeSpec{{Name: "k", Disks: disk6()}}, set("deploy.session_grace", "2m"))
	m := r.lab.Node("k")
	r.enrol(m)
	r.images.bytesPerSecond.Store(1 << 20) // about 15 s for the whole image
	r.source("k", r.images.url+"/slow/"+r.art.tiny.file, r.art.tiny.sha256)
	from := m.ConsoleSize()
	r.provision("k", "active", hostname("survivor"))
	r.progress("k", 0.2)
	if err := r.con.Kill(); err != nil {
		t.Fatal(err)
	}
	sent, requests := r.images.sent.Load(), r.images.requests.Load()
	kit.Eventually(t, time.Minute, "the agent goes on without a conductor", func() bool { return r.images.sent.Load() > sent+2<<20 })
	if err := r.con.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wait("k", "active", bootLimit)
	r.boots(m, from, "survivor")
	if n := r.images.requests.Load(); n != requests {
		t.Errorf("the image was asked for %d more times after ingotd was killed; the write was to go on", n-requests)
	}
	if n := r.images.sent.Load(); n > r.art.tiny.size+1<<20 {
		t.Errorf("%d bytes were sent of an image of %d", n, r.art.tiny.size)
	}
	if n := m.Starts(); n != 2 {
		t.Errorf("the machine was started %d times, want 2 (agent, system)", n)
	}
}

// TestImageFaults gives a machine every kind of bad image. Each deployment fails with cause and remedy, the disk never looks bootable,
// and a good image works after all of them.
func TestImageFaults(t *testing.T) {
	r := newRig(t, []lab.NodeSpec{{Name: "f", Disks: disk6()}}, set("deploy.tries", 1))
	m := r.lab.Node("f")
	r.enrol(m)
	good, sum := r.art.tiny.file, r.art.tiny.sha256
	noise := filepath.Join(r.art.images, "noise.bin")
	if err := os.WriteFile(noise, []byte(strings.Repeat("This is a text and no image of a disk.\n", 100000)), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(noise) })
	huge := r.hugeImage(7 << 30)
	hashOf := func(name string) string {
		return strings.Fields(kit.Run(t, "sha256sum", filepath.Join(r.art.images, name)))[0]
	}
	r.images.bytesPerSecond.Store(1 << 30)

	for _, c := range []struct {
		name, url, sum string
		hints          object
		want           []string // words of last_error, lower case
	}{
		{"wrong digest", r.ours(r.art.tiny), strings.Repeat("ab", 32), nil, []string{"sha256", "abab"}},
		{"truncated file", r.images.url + "/short/" + good, sum, nil, []string{"truncated"}},
		{"server gone in the middle", r.images.url + "/cut/" + good, sum, nil, []string{r.lab.Host.String()}},
		{"larger than the disk", r.ours(huge), huge.sha256, nil, []string{"larger", "disk"}},
		{"no disk fits the hints", r.ours(r.art.tiny), sum, object{"serial": "no-such-disk"}, []string{"no-such-disk", "hint"}},
		{"URL not reachable", "http://" + r.lab.Host.String() + ":9999/x.raw", sum, nil, []string{"9999", "refused"}},
		{"not found", r.images.url + "/missing/" + good, sum, nil, []string{"404"}},
		{"a web page", r.images.url + "/html/" + good, sum, nil, []string{"html"}},
		{"not an image", r.images.url + "/slow/noise.bin", hashOf("noise.bin"), nil, []string{"not", "image"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := *r
			sub.t = t
			more := []any{}
			if c.hints != nil {
				more = []any{"root_device", c.hints}
			}
			sub.source("f", c.url, c.sum, more...)
			sub.provision("f", "active", hostname("never"))
			n := sub.wait("f", "deploy failed", bootLimit)
			text := n.str("last_error")
			t.Logf("last_error: %s", text)
			for _, w := range c.want {
				if !strings.Contains(strings.ToLower(text), w) {
					t.Errorf("last_error = %q, want it to have %q", text, w)
				}
			}
			if head, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || !zero(head) {
				t.Errorf("the disk's first MiB is not empty after a failed deployment (%v)", err)
			}
			kit.Eventually(t, time.Minute, "the machine is off after the failure", func() bool { return !m.On() })
		})
	}

	r.source("f", r.ours(r.art.tiny), sum)
	from := m.ConsoleSize()
	r.provision("f", "active", hostname("at-last"))
	r.wait("f", "active", bootLimit)
	r.boots(m, from, "at-last")
}

// hugeImage is the tiny image grown to more than the disk.
func (r *rig) hugeImage(size int64) image {
	r.t.Helper()
	i := r.bigImage(size, 1<<20)
	to := filepath.Join(r.art.images, "huge.raw.zst")
	if err := os.Rename(filepath.Join(r.art.images, i.file), to); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { os.Remove(to) })
	i.file = "huge.raw.zst"
	return i
}

// TestControllerFaults gives the conductor controllers that don't do what they should.
func TestControllerFaults(t *testing.T) {
	r := newRig(t, []lab.NodeSpec{{Name: "c", Disks: disk6()}}, set("power.timeout", "8s"), set("power.retries", 2), set("power.call_timeout", "10s"))
	m := r.lab.Node("c")
	create := func(name string, info object) {
		r.must("POST", "/v1/nodes", object{"name": name, "driver": "ipmi", "driver_info": info, "automated_clean": false})
	}
	failsToManage := func(name string, words ...string) {
		t.Helper()
		r.provision(name, "manage", nil)
		var n object
		kit.Eventually(t, 2*time.Minute, name+" falls back to enroll", func() bool {
			n = r.must("GET", "/v1/nodes/"+name, nil)
			return n.str("provision_state") == "enroll" && n.str("last_error") != ""
		})
		for _, w := range words {
			if !strings.Contains(strings.ToLower(n.str("last_error")), w) {
				t.Errorf("%s: last_error = %q, want it to have %q", name, n.str("last_error"), w)
			}
		}
		t.Logf("%s: %s", name, n.str("last_error"))
	}
	info := controller(m)
	info["ipmi_password"] = "wrong"
	create("wrong-password", info)
	failsToManage("wrong-password", "password", m.BMCAddress)

	info = controller(m)
	nobody := r.lab.Host.String()[:strings.LastIndex(r.lab.Host.String(), ".")] + ".190"
	info["ipmi_address"] = nobody
	create("unreachable", info)
	failsToManage("unreachable", "answer", nobody)

	create("no-address", object{"ipmi_username": "admin"})
	failsToManage("no-address", "ipmi_address")

	r.enrol(m)
	r.source("c", r.ours(r.art.tiny), r.art.tiny.sha256)
	m.BMC().SetFaults(bmc.Faults{StayOff: true})
	r.provision("c", "active", nil)
	n := r.wait("c", "deploy failed", 3*time.Minute)
	for _, w := range []string{"power", "off"} {
		if !strings.Contains(strings.ToLower(n.str("last_error")), w) {
			t.Errorf("stays off: last_error = %q, want it to have %q", n.str("last_error"), w)
		}
	}
	t.Logf("stays off: %s", n.str("last_error"))
	m.BMC().SetFaults(bmc.Faults{})
	from := m.ConsoleSize()
	r.provision("c", "active", hostname("well-again"))
	r.wait("c", "active", bootLimit)
	r.boots(m, from, "well-again")
}

// TestStranger turns on a machine that nobody admitted: it gets no answer.
func TestStranger(t *testing.T) {
	r := newRig(t, []lab.NodeSpec{{Name: "stranger", Disks: disk6()}})
	m := r.lab.Node("stranger")
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	r.logged(2*time.Minute, m.MAC, "not answered")
	b, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "address leased") {
		t.Error("ingotd answered a machine that nobody admitted")
	}
}

// TestPowerCut pulls the plug at several moments of a deployment. The disk then holds no table or the whole system, and the node gets
// there in the end.
func TestPowerCut(t *testing.T) {
	r := newRig(t, []lab.NodeSpec{{Name: "p", Disks: disk6()}},
		set("deploy.session_grace", "5s"), set("power.call_timeout", "3s"), set("power.retries", 3), set("power.timeout", "20s"))
	m := r.lab.Node("p")
	r.enrol(m)
	r.images.bytesPerSecond.Store(3 << 20)
	for _, c := range []struct {
		name string
		when func(r *rig)
	}{
		{"early in the write", func(r *rig) { r.progress("p", 0.05) }},
		{"late in the write", func(r *rig) { r.progress("p", 0.9) }},
		{"at the config drive", func(r *rig) { r.step("p", "write_configdrive") }},
		{"at the commit", func(r *rig) { r.step("p", "prepare_instance_boot") }},
		{"at the hand-over", func(r *rig) { r.step("p", "tear_down_agent") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := *r
			sub.t = t
			sub.source("p", r.images.url+"/slow/"+r.art.tiny.file, r.art.tiny.sha256)
			sub.provision("p", "active", hostname("cut"))
			c.when(&sub)
			if err := m.PullPlug(); err != nil {
				t.Fatal(err)
			}
			head, err := readAt(m.DiskFile(0), 0, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if !zero(head) {
				// The table is there: then everything else has to be.
				kit.Run(t, "sgdisk", "--verify", m.DiskFile(0))
				t.Log("the disk was complete when the power went")
			}
			m.PlugIn()
			// Either the job goes on by itself in a new boot, or it fails and is asked for again.
			n := sub.settle("p")
			if n.str("provision_state") == "deploy failed" {
				t.Logf("last_error: %s", n.str("last_error"))
				sub.provision("p", "active", hostname("cut"))
				n = sub.settle("p")
			}
			if s := n.str("provision_state"); s != "active" {
				t.Fatalf("after a power cut the node ends %q: %s", s, n.str("last_error"))
			}
			from := m.ConsoleSize()
			if err := m.Reset(); err != nil {
				t.Fatal(err)
			}
			sub.boots(m, from, "cut")
			sub.provision("p", "deleted", nil)
			sub.wait("p", "available", bootLimit)
		})
	}
}

// step waits until the node's job is at a step or past it.
func (r *rig) step(name, step string) {
	r.t.Helper()
	kit.Eventually(r.t, bootLimit, "step "+step+" of "+name+" runs", func() bool {
		p := r.must("GET", "/ingot/v1/nodes/"+name+"/progress", nil)
		job, _ := p["job"].(map[string]any)
		steps, _ := job["steps"].([]any)
		if job == nil {
			return p.str("provision_state") == "active"
		}
		at := slices.IndexFunc(steps, func(s any) bool { return s.(map[string]any)["step"] == step })
		if at < 0 {
			return false
		}
		i, _ := job["index"].(float64)
		return int(i) >= at && steps[at].(map[string]any)["status"] != "pending"
	})
}

// settle waits until the node is active or its deployment has failed.
func (r *rig) settle(name string) object {
	r.t.Helper()
	var n object
	kit.Eventually(r.t, 2*bootLimit, "node "+name+" settles", func() bool {
		n = r.must("GET", "/v1/nodes/"+name, nil)
		s := n.str("provision_state")
		return s == "active" || s == "deploy failed"
	})
	return n
}
