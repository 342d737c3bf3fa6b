package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// TestConductorKilled kills ingotd while the image is being written. The agent goes on by itself; the write is not started again.
func TestConductorKilled(t *testing.T) {
	t.Parallel()
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
	sent := r.images.sent.Load()
	kit.Eventually(t, bootLimit, "the agent goes on without a conductor", func() bool { return r.images.sent.Load() > sent+2<<20 })
	if err := r.con.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wait("k", "active", bootLimit)
	r.boots(m, from, "survivor")
	// How many ranges a write asks for is its own business; one that began anew would ask for bytes that were there.
	if n := r.images.sent.Load(); n > r.art.tiny.size+1<<20 {
		t.Errorf("%d bytes were sent of an image of %d: the write was to go on when ingotd was killed", n, r.art.tiny.size)
	}
	if n := m.Starts(); n != 2 {
		t.Errorf("the machine was started %d times, want 2 (agent, system)", n)
	}
}

// TestImageFaults gives a machine every kind of bad image. Each deployment fails with cause and remedy, the disk never looks bootable,
// and a good image works after all of them.
func TestImageFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "f", Disks: disk6()}}, set("deploy.tries", 1))
	m := r.lab.Node("f")
	r.enrol(m)
	good, sum := r.art.tiny.file, r.art.tiny.sha256
	noise := filepath.Join(r.folder, "noise.bin")
	if err := os.WriteFile(noise, []byte(strings.Repeat("This is a text and no image of a disk.\n", 100000)), 0o644); err != nil {
		t.Fatal(err)
	}
	huge := r.hugeImage(7 << 30)
	hashOf := func(name string) string {
		return strings.Fields(kit.Run(t, "sha256sum", filepath.Join(r.folder, name)))[0]
	}
	r.images.bytesPerSecond.Store(1 << 30)

	for _, c := range []struct {
		name, url, sum string
		hints          object
		want           []string // words of last_error, lower case: of the cause, and the last ones of the remedy
	}{
		{"wrong digest", r.ours(r.art.tiny), strings.Repeat("ab", 32), nil, []string{"sha256", "abab", "publish the file again"}},
		{"truncated file", r.images.url + "/short/" + good, sum, nil, []string{"truncated", "is complete"}},
		{"server gone in the middle", r.images.url + "/cut/" + good, sum, nil, []string{r.lab.Host.String(), "image server"}},
		{"larger than the disk", r.ours(huge), huge.sha256, nil, []string{"larger", "disk", "use a smaller image"}},
		{"no disk fits the hints", r.ours(r.art.tiny), sum, object{"serial": "no-such-disk"}, []string{"no-such-disk", "hint", "correct root_device"}},
		{"URL not reachable", "http://" + r.lab.Host.String() + ":9999/x.raw", sum, nil, []string{"9999", "refused", "start the image's server"}},
		{"not found", r.images.url + "/missing/" + good, sum, nil, []string{"404", "put the image there"}},
		{"a web page", r.images.url + "/html/" + good, sum, nil, []string{"html", "check the url"}},
		{"not an image", r.images.url + "/slow/noise.bin", hashOf("noise.bin"), nil, []string{"not an image", "check the url"}},
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
			if tail, err := readAt(m.DiskFile(0), m.Spec.Disks[0].SizeBytes-1<<20, 1<<20); err != nil || !zero(tail) {
				t.Errorf("the disk's last MiB is not empty after a failed deployment (%v)", err)
			}
			kit.Eventually(t, stateLimit, "the machine is off after the failure", func() bool { return !m.On() })
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
	if err := os.Rename(filepath.Join(r.folder, i.file), filepath.Join(r.folder, "huge.raw.zst")); err != nil {
		r.t.Fatal(err)
	}
	i.file = "huge.raw.zst"
	return i
}

// TestControllerFaults gives the conductor controllers that don't do what they should.
func TestControllerFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "c", Disks: disk6()}}, set("power.timeout", "8s"), set("power.retries", 2), set("power.call_timeout", "10s"))
	m := r.lab.Node("c")
	create := func(name string, info object) {
		r.must("POST", "/v1/nodes", object{"name": name, "driver": "ipmi", "driver_info": info, "automated_clean": false})
	}
	failsToManage := func(name string, words ...string) {
		t.Helper()
		r.provision(name, "manage", nil)
		var n object
		kit.Eventually(t, stateLimit, name+" falls back to enroll", func() bool {
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
	n := r.wait("c", "deploy failed", bootLimit)
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
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "stranger", Disks: disk6()}})
	m := r.lab.Node("stranger")
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	r.logged(bootLimit, m.MAC, "not answered")
	b, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "address leased") {
		t.Error("ingotd answered a machine that nobody admitted")
	}
	// The machine's own view: its firmware asked until it gave up ("No configuration methods succeeded"), and has no address.
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, 0, "No configuration methods"); err != nil {
		t.Error(err)
	}
	if said := console(t, m, 0); strings.Contains(said, "net0: "+r.lab.Host.String()[:strings.LastIndex(r.lab.Host.String(), ".")+1]) {
		t.Errorf("the machine got an address:\n%s", said)
	}
}

// TestPowerCut pulls the plug at several moments of a deployment. The disk then holds nothing that boots or the whole system, and the
// node gets there in the end. Every write of a deployment is cut off in agent/disk's test, on files; here the moments are real.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "p", Disks: disk6()}, {Name: "pu", Firmware: lab.UEFI, MemoryMiB: 1024, Disks: disk6()}},
		set("deploy.session_grace", "5s"), set("power.call_timeout", "3s"), set("power.retries", 3), set("power.timeout", "1m"),
		set("netboot.kernel_params", "quiet console=ttyS0,115200n8")) // quiet: nothing of the kernel's stands in the midst of the agent's lines
	r.enrol(r.lab.Node("p"))
	r.enrol(r.lab.Node("pu"))
	r.images.bytesPerSecond.Store(2 << 20) // slow enough to see how far it is
	written := func(share float64) func(*rig, int64) { return func(r *rig, _ int64) { r.reached("p", share) } }
	// A line may be lost when the machine goes off right behind it: then what comes next says that the moment is over.
	says := func(node, line, next string) func(*rig, int64) {
		return func(r *rig, from int64) {
			r.t.Helper()
			ctx, cancel := context.WithTimeout(r.t.Context(), bootLimit)
			defer cancel()
			said := make(chan error, 2)
			for _, text := range []string{line, next} {
				go func() { said <- r.lab.Node(node).WaitConsole(ctx, from, text) }()
			}
			if err := <-said; err != nil { // no time to lose: the other one ends by itself
				r.t.Fatal(err)
			}
		}
	}
	caught := 0
	cases := []struct {
		name, node string
		when       func(r *rig, from int64)
		past       string // what the machine says when the moment is over
		start      bool   // see what the firmware makes of the disk
	}{
		{"early in the write", "p", written(0.05), "ingot: step write_configdrive", false},
		{"late in the write", "p", written(0.75), "ingot: step write_configdrive", true},
		// The agent says on its console which step begins, which is sooner than anybody hears of it from the API.
		{"at the config drive", "p", says("p", "ingot: step write_configdrive", "ingot: step prepare_instance_boot"), "ingot: step prepare_instance_boot", false},
		{"at the commit", "p", says("p", "ingot: step prepare_instance_boot", "ingot: plan finished"), "ingot: plan finished", false},
		{"at the commit with UEFI", "pu", says("pu", "ingot: step prepare_instance_boot", "ingot: plan finished"), "ingot: plan finished", false},
		{"at the hand-over", "p", says("p", "the conductor ends this boot: off", ": p: off ("), "=== lab", false},
	}
	for _, c := range cases {
		cut := func(t *testing.T) (caught bool) {
			sub := *r
			sub.t = t
			m := r.lab.Node(c.node)
			sub.source(c.node, r.images.url+"/slow/"+r.art.tiny.file, r.art.tiny.sha256)
			from := m.ConsoleSize()
			sub.provision(c.node, "active", hostname("cut"))
			c.when(&sub, from)
			if err := m.PullPlug(); err != nil {
				t.Fatal(err)
			}
			said := console(t, m, from)
			// The lab's own lines say when the power came and went.
			_, said, _ = strings.Cut(said, " power on")
			said, ended, _ := strings.Cut(said, "=== lab")
			if caught = !strings.Contains(said, c.past) && strings.Contains(ended, "power cut"); !caught {
				t.Logf("the moment was missed: %q, then %q", said[max(0, len(said)-300):], ended)
			}
			whole := sub.wholeOrNothing(m)
			if c.start && !whole {
				sub.doesNotBoot(m)
			} else {
				m.PlugIn()
			}
			// Either the job goes on by itself in a new boot, or it fails and is asked for again.
			n := sub.settle(c.node)
			if n.str("provision_state") == "deploy failed" {
				t.Logf("last_error: %s", n.str("last_error"))
				sub.provision(c.node, "active", hostname("cut"))
				n = sub.settle(c.node)
			}
			if s := n.str("provision_state"); s != "active" {
				t.Fatalf("after a power cut the node ends %q: %s", s, n.str("last_error"))
			}
			from = m.ConsoleSize()
			start := m.Reset
			if !m.On() { // it was active already when the power went
				start = m.Start
			}
			if err := start(); err != nil {
				t.Fatal(err)
			}
			sub.boots(m, from, "cut")
			sub.provision(c.node, "deleted", nil)
			sub.wait(c.node, "available", bootLimit)
			return caught
		}
		t.Run(c.name, func(t *testing.T) {
			for range 3 { // on a busy machine a moment may be over before it is seen
				if cut(t) {
					caught++
					return
				}
			}
		})
	}
	if caught < len(cases)-1 && !t.Failed() {
		t.Errorf("the plug was pulled within the step in %d of %d cases, each tried three times", caught, len(cases))
	}
}

// wholeOrNothing looks at a disk whose machine lost its power: firmware finds a system there that is complete, or nothing.
func (r *rig) wholeOrNothing(m *lab.Machine) bool {
	r.t.Helper()
	head, err := readAt(m.DiskFile(0), 0, 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	if !zero(head[:512]) {
		// What firmware reads first is there, and it is written last: then everything else has to be.
		kit.Run(r.t, "sgdisk", "--verify", m.DiskFile(0))
		r.t.Log("the disk was complete when the power went")
		return true
	}
	tail, err := readAt(m.DiskFile(0), m.Spec.Disks[0].SizeBytes-1<<20, 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	if table := bytes.Contains(tail, []byte("EFI PART")); zero(head) && table {
		r.t.Error("the disk has no table at its beginning, but the backup of one at its end")
	} else if !zero(head) {
		r.t.Logf("the power went within the commit; backup table there: %v", table)
	}
	return false
}

// doesNotBoot gives the power back and starts the machine by hand, while no conductor runs: its firmware finds nothing on the disk.
func (r *rig) doesNotBoot(m *lab.Machine) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), bootLimit)
	defer cancel()
	if err := r.con.Kill(); err != nil {
		r.t.Fatal(err)
	}
	m.PlugIn()
	from := m.ConsoleSize()
	if err := m.Start(); err != nil {
		r.t.Fatal(err)
	}
	if err := m.WaitConsole(ctx, from, "not a bootable disk"); err != nil {
		r.t.Error(err)
	}
	if err := m.Stop(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.con.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
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
