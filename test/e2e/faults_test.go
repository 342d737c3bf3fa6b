package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// TestImageFaults gives a machine bad images: with INGOT_FULL every kind, else one that is found within the write and
// one at its end. Each deployment fails with cause and remedy, the disk never looks bootable, and a good image works
// after all of them. What the agent makes of each kind is in agent/image, TestFailuresNameCauseAndRemedy.
func TestImageFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "f", Disks: disk6()}},
		set("deploy.tries", 1), set("deploy.boot_instance", "kexec"))
	m := r.lab.Node("f")
	r.enrol(m)
	good, sum := r.art.tiny.file, r.art.tiny.sha256
	r.images.bytesPerSecond.Store(1 << 30)

	type badImage struct {
		name, url, sum string
		hints          object
		want           []string // words of last_error, lower case: of the cause, and the last ones of the remedy
	}
	cases := []badImage{
		{"server gone in the middle", r.images.url + "/cut/" + good, sum, nil,
			[]string{r.lab.Host.String(), "image server"}},
		{"wrong digest", r.ours(r.art.tiny), strings.Repeat("ab", 32), nil,
			[]string{"sha256", "abab", "publish the file again"}},
	}
	if os.Getenv("INGOT_FULL") != "" {
		noise := filepath.Join(r.folder, "noise.bin")
		text := strings.Repeat("This is a text and no image of a disk.\n", 100000)
		if err := os.WriteFile(noise, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		noiseSum := strings.Fields(kit.Run(t, "sha256sum", noise))[0]
		huge := r.hugeImage(7 << 30)
		cases = append(cases, []badImage{
			{"no disk fits the hints", r.ours(r.art.tiny), sum, object{"serial": "no-such-disk"},
				[]string{"no-such-disk", "hint", "correct root_device"}},
			{"truncated file", r.images.url + "/short/" + good, sum, nil, []string{"truncated", "is complete"}},
			{"larger than the disk", r.ours(huge), huge.sha256, nil, []string{"larger", "disk", "use a smaller image"}},
			{"URL not reachable", "http://" + r.lab.Host.String() + ":9999/x.raw", sum, nil,
				[]string{"9999", "refused", "start the image's server"}},
			{"not found", r.images.url + "/missing/" + good, sum, nil, []string{"404", "put the image there"}},
			{"a web page", r.images.url + "/html/" + good, sum, nil, []string{"html", "check the url"}},
			{"not an image", r.images.url + "/slow/noise.bin", noiseSum, nil,
				[]string{"not an image", "check the url"}},
		}...)
	}
	for _, c := range cases {
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
	r := newRig(t, []lab.NodeSpec{{Name: "c", Disks: disk6()}}, set("power.timeout", "8s"), set("power.retries", 2),
		set("power.call_timeout", "10s"), set("deploy.boot_instance", "kexec"))
	m := r.lab.Node("c")
	create := func(name string, info object) {
		r.must("POST", "/v1/nodes",
			object{"name": name, "driver": "ipmi", "driver_info": info, "automated_clean": false})
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
	unused := r.lab.Host.String()[:strings.LastIndex(r.lab.Host.String(), ".")] + ".190"
	info["ipmi_address"] = unused
	create("unreachable", info)
	failsToManage("unreachable", "answer", unused)

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

// TestStranger turns on a machine that is not admitted: it gets no answer.
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
		t.Error("ingotd answered a machine that is not enrolled")
	}
	// The machine's own view: its firmware asked until it gave up ("No configuration methods succeeded"), and has no
	// address.
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, 0, "No configuration methods"); err != nil {
		t.Error(err)
	}
	if said := console(t, m, 0); strings.Contains(said,
		"net0: "+r.lab.Host.String()[:strings.LastIndex(r.lab.Host.String(), ".")+1]) {
		t.Errorf("the machine got an address:\n%s", said)
	}
}

// powerCut is a moment of a deployment at which the plug is pulled.
type powerCut struct {
	name  string
	when  func(r *rig, m *lab.Machine, from int64) // waits for it, on a console from an offset on
	past  string                                   // the machine's output after the moment
	start bool                                     // see what the firmware makes of the disk
}

// sends waits until the image's server has sent a share of it to an agent that has just begun to write.
func sends(share float64) func(*rig, *lab.Machine, int64) {
	return func(r *rig, m *lab.Machine, from int64) {
		r.t.Helper()
		before := r.images.sent.Load()
		kit.Eventually(r.t, bootLimit, fmt.Sprintf("%.0f %% of the image are sent", share*100), func() bool {
			return float64(r.images.sent.Load()-before) >= share*float64(r.art.tiny.size)
		})
	}
}

// says waits for a line, which is earlier than the API shows the moment. The line may be lost if the machine goes off
// right after it: then the next line shows that the moment is over.
func says(line, next string) func(*rig, *lab.Machine, int64) {
	return func(r *rig, m *lab.Machine, from int64) {
		r.t.Helper()
		ctx, cancel := context.WithTimeout(r.t.Context(), bootLimit)
		defer cancel()
		said := make(chan error, 2)
		for _, text := range []string{line, next} {
			go func() { said <- m.WaitConsole(ctx, from, text) }()
		}
		if err := <-said; err != nil { // no time to lose: the other one ends by itself
			r.t.Fatal(err)
		}
	}
}

var (
	cutConfigDrive = powerCut{
		"at the config drive", says("ingot: step write_configdrive", "ingot: step prepare_instance_boot"),
		"ingot: step prepare_instance_boot", false}
	cutCommit = powerCut{"at the commit", says("ingot: step prepare_instance_boot", "ingot: plan finished"),
		"ingot: plan finished", false}
)

// TestPowerCut pulls the plug within each phase of a deployment, one after the other: the deployment goes on in a new
// boot, up to the next phase, and in the end the node is active and its system runs. After each cut the disk holds
// nothing that boots or the whole system. Every write of a deployment is cut off in agent/image and agent/disk, on
// files; here the moments are real.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	cuts := []powerCut{
		{"late in the write", sends(0.75), "ingot: step write_configdrive", true}, cutConfigDrive, cutCommit,
		{"at the hand-over", says("the conductor ends this boot: off", ": p: off ("), "=== lab", false},
	}
	if os.Getenv("INGOT_FULL") != "" {
		cuts = append([]powerCut{{"early in the write", sends(0.05), "ingot: step write_configdrive", false}}, cuts...)
	}
	pullPlugs(t, lab.NodeSpec{Name: "p", Disks: disk6()}, cuts)
}

// TestPowerCutUEFI is TestPowerCut for the parts specific to UEFI.
func TestPowerCutUEFI(t *testing.T) {
	t.Parallel()
	pullPlugs(t, lab.NodeSpec{Name: "pu", Firmware: lab.UEFI, MemoryMiB: 1024, Disks: disk6()}, []powerCut{cutCommit})
}

func pullPlugs(t *testing.T, spec lab.NodeSpec, cuts []powerCut) {
	r := newRig(t, []lab.NodeSpec{spec}, set("deploy.session_grace", "5s"), set("deploy.max_boots", 20),
		set("power.call_timeout", "3s"), set("power.retries", 3), set("power.timeout", "1m"))
	name, m := spec.Name, r.lab.Node(spec.Name)
	r.enrol(m)
	r.source(name, r.images.url+"/slow/"+r.art.tiny.file, r.art.tiny.sha256)
	r.images.bytesPerSecond.Store(4 << 20) // slow enough to see how far it is
	from := m.ConsoleSize()
	r.provision(name, "active", hostname("cut"))
	caught := 0
	for _, c := range cuts {
		t.Run(c.name, func(t *testing.T) {
			sub := *r
			sub.t = t
			for range 3 { // on a busy machine a moment may be over before it is seen
				c.when(&sub, m, from)
				if err := m.PullPlug(); err != nil {
					t.Fatal(err)
				}
				said := console(t, m, from)
				// The lab's own lines say when the power came and went.
				_, said, _ = strings.Cut(said, " power on")
				said, ended, _ := strings.Cut(said, "=== lab")
				whole := sub.wholeOrNothing(m)
				if c.start && !whole {
					from = sub.doesNotBoot(m)
				} else {
					from = m.ConsoleSize()
					m.PlugIn()
				}
				if !strings.Contains(said, c.past) && strings.Contains(ended, "power cut") {
					caught++
					return
				}
				t.Logf("the moment was missed: %q, then %q", said[max(0, len(said)-300):], ended)
				sub.arrives(m)
				from = m.ConsoleSize()
				sub.provision(name, "rebuild", hostname("cut"))
			}
		})
	}
	r.arrives(m)
	r.boots(m, from, "cut")
	if caught < max(1, len(cuts)-1) && !t.Failed() {
		t.Errorf("the plug was pulled within the phase in %d of %d cases, each tried three times", caught, len(cuts))
	}
}

// arrives waits until the node is active, with its machine on. After a power cut the job either continues by itself, in
// a new boot, or fails and is requested again.
func (r *rig) arrives(m *lab.Machine) {
	r.t.Helper()
	n := r.settle(m.Spec.Name)
	if n.str("provision_state") == "deploy failed" {
		r.t.Logf("last_error: %s", n.str("last_error"))
		r.provision(m.Spec.Name, "active", hostname("cut"))
		n = r.settle(m.Spec.Name)
	}
	if s := n.str("provision_state"); s != "active" {
		r.t.Fatalf("after a power cut the node ends %q: %s", s, n.str("last_error"))
	}
	if err := m.Start(); err != nil { // it was active already when the power went
		r.t.Fatal(err)
	}
}

// wholeOrNothing looks at a disk whose machine lost its power: firmware finds a system there that is complete, or
// nothing.
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

// doesNotBoot gives the power back and starts the machine by hand, while no conductor runs: its firmware finds
// nothing on the disk. It gives where the console ends then.
func (r *rig) doesNotBoot(m *lab.Machine) (end int64) {
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
	end = m.ConsoleSize()
	if err := r.con.Start(ctx); err != nil {
		r.t.Fatal(err)
	}
	return end
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
