package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/openstack"
	"github.com/ingot-metal/ingot/tools/lab"
)

// openstack runs `openstack baremetal` and decodes its JSON answer.
func (r *rig) openstack(c *openstack.Client, args ...string) any {
	r.t.Helper()
	env := []string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + r.con.URL()}
	stdout, _, err := c.Run(env, append([]string{"baremetal"}, args...)...)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, stdout)
	}
	var v any
	if stdout != "" && strings.ContainsAny(stdout[:1], "{[") {
		if err := json.Unmarshal([]byte(stdout), &v); err != nil {
			r.t.Fatalf("openstack baremetal %s: %v", strings.Join(args, " "), err)
		}
	}
	return v
}

// TestBIOS is the main job with nothing but the BMC's address and credentials to begin with, driven by `openstack
// baremetal`. Inspection and cleaning share an agent, the deployment is an ordinary one: a boot of the agent and one
// of the system.
func TestBIOS(t *testing.T) {
	t.Parallel()
	r, client := newRig(t, []lab.NodeSpec{{Name: "bios-1", Disks: disk6()}}), openstack.Start(t)
	m := r.lab.Node("bios-1")
	do := func(args ...string) any { t.Helper(); return r.openstack(client, args...) }

	do("node", "create", "-f", "json", "--driver", "ipmi", "--name", "bios-1", "--driver-info", "fast_track=true",
		"--driver-info", "ipmi_address="+m.BMCAddress, "--driver-info", "ipmi_username="+m.User,
		"--driver-info", "ipmi_password="+m.Password)
	do("node", "manage", "--wait", "600", "bios-1")
	kit.Run(t, "sgdisk", "--new=1:2048:+100M", m.DiskFile(0)) // must be gone after cleaning
	do("node", "inspect", "--wait", "600", "bios-1")
	node := do("node", "show", "-f", "json", "bios-1").(map[string]any)
	ports := do("port", "list", "-f", "json", "--node", node["uuid"].(string)).([]any)
	if len(ports) != 1 || ports[0].(map[string]any)["Address"] != m.MAC {
		t.Fatalf("ports after inspection = %v, want one with %s", ports, m.MAC)
	}
	props := node["properties"].(map[string]any)
	if fmt.Sprint(props["cpu_arch"]) != "x86_64" || fmt.Sprint(props["memory_mb"]) == "<nil>" ||
		fmt.Sprint(props["local_gb"]) == "<nil>" {
		t.Errorf("properties after inspection = %v", props)
	}
	if node["driver_info"].(map[string]any)["ipmi_password"] != "******" {
		t.Errorf("the API shows the password: %v", node["driver_info"])
	}
	inv := r.must("GET", "/v1/nodes/bios-1/inventory", nil)
	disks := inv["inventory"].(map[string]any)["disks"].([]any)
	if len(disks) != 1 || disks[0].(map[string]any)["serial"] != m.Spec.Disks[0].Serial {
		t.Errorf("disks of the inventory = %v, want one with serial %s", disks, m.Spec.Disks[0].Serial)
	}

	do("node", "provide", "--wait", "600", "bios-1")
	if table, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || !zero(table) {
		t.Errorf("the disk's first MiB is not zero after cleaning (%v)", err)
	}
	if n := m.Starts(); n != 1 {
		t.Errorf("the machine was started %d times for inspection and cleaning, want 1: its agent was kept", n)
	}
	powerOff := func() {
		t.Helper()
		do("node", "power", "off", "bios-1")
		kit.Eventually(t, stateLimit, "the machine is off", func() bool { return !m.On() })
	}
	powerOff() // the next boot is through the firmware

	do("node", "set", "bios-1", "--instance-info", "image_source="+r.ours(r.art.tiny),
		"--instance-info", "image_os_hash_algo=sha256", "--instance-info", "image_os_hash_value="+r.art.tiny.sha256)
	drive, err := json.Marshal(hostname("web-17")["configdrive"])
	if err != nil {
		t.Fatal(err)
	}
	from := m.ConsoleSize()
	do("node", "deploy", "--wait", "600", "--config-drive", string(drive), "bios-1")
	r.boots(m, from, "web-17")
	node = do("node", "show", "-f", "json", "bios-1").(map[string]any)
	if node["provision_state"] != "active" || node["power_state"] != "power on" || node["last_error"] != nil {
		t.Errorf("after deploy: %v, %v, %v", node["provision_state"], node["power_state"], node["last_error"])
	}

	line := r.must("GET", "/ingot/v1/nodes/bios-1/timeline", nil)
	var names []string
	for _, x := range line["marks"].([]any) {
		names = append(names, x.(map[string]any)["name"].(string))
	}
	for _, want := range []string{"power on requested", "dhcp answered", "boot script fetched", "kernel fetched",
		"ramdisk fetched", "kernel started", "agent enrolled", "agent connected", "step done"} {
		if !strings.Contains(strings.Join(names, "\n"), want) {
			t.Errorf("the time line lacks %q: %q", want, names)
		}
	}
	tr := r.trace("bios-1", "deploy")
	accounted(t, tr, "firmware", "HTTP: kernel", "HTTP: ramdisk", "kernel and drivers", "write_image")
	if tr.FirmwareBoots != 2 || tr.Kexecs != 0 {
		t.Errorf("the trace of an ordinary deployment has %d boots through firmware and %d by kexec, want 2 and 0",
			tr.FirmwareBoots, tr.Kexecs)
	}

	powerOff()
	do("node", "maintenance", "set", "--reason", "new fan", "bios-1")
	do("node", "maintenance", "unset", "bios-1")
	do("node", "undeploy", "--wait", "600", "bios-1")
	if got := do("node", "list", "-f", "json").([]any); len(got) != 1 ||
		got[0].(map[string]any)["Provisioning State"] != "available" {
		t.Errorf("node list after undeploy = %v", got)
	}
	if head, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || !zero(head) {
		t.Errorf("the tenant's partition table survived (%v)", err)
	}
}

// TestTwoAtOnce inspects two machines at the same time, and then deploys a published image on both, whose agents are
// still there. They are a swarm: most of what one has the other has from it.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b"}
	r := newRig(t, []lab.NodeSpec{{Name: "a", Disks: disk6()}, {Name: "b", Disks: disk6()}},
		set("swarm.enabled", true), set("deploy.fast_track", true), set("deploy.boot_instance", "kexec"))
	var published struct {
		SHA256 string `json:"image_os_hash_value"`
		Stored int64  `json:"stored_bytes"`
	}
	out := kit.Run(t, made.Program(t, "ingot"), "image", "publish", r.art.tinyZst, "-o", r.folder, "--name", "tiny",
		"--output", "json")
	if err := json.Unmarshal([]byte(out), &published); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	from := map[string]int64{}
	for _, name := range names {
		m := r.lab.Node(name)
		n := r.must("POST", "/v1/nodes",
			object{"name": name, "driver": "ipmi", "driver_info": controller(m), "automated_clean": false,
				"inspect_interface": "agent"})
		r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC})
		r.provision(name, "manage", nil)
		r.wait(name, "manageable", stateLimit)
		r.provision(name, "inspect", nil)
		from[name] = m.ConsoleSize()
	}
	for _, name := range names {
		r.wait(name, "manageable", bootLimit)
		r.provision(name, "provide", nil)
		r.wait(name, "available", stateLimit)
		r.source(name, r.images.url+"/slow/tiny.ingot", published.SHA256)
	}
	// So slow that none has it all before the other one begins.
	r.images.bytesPerSecond.Store(512 << 10)
	for _, name := range names {
		r.provision(name, "active", hostname("twin-"+name))
	}
	for _, name := range names {
		r.wait(name, "active", 2*bootLimit)
		r.boots(r.lab.Node(name), from[name], "twin-"+name)
	}
	sent := r.images.sent.Load()
	t.Logf("the image's server sent %d bytes, %.2f times the image", sent, float64(sent)/float64(published.Stored))
	if sent > published.Stored*7/4 {
		t.Errorf("the image's server sent %d bytes for two machines, %d would be one of them alone", sent,
			published.Stored)
	}
	for _, name := range names {
		if n := r.lab.Node(name).Starts(); n != 1 {
			t.Errorf("machine %s was started %d times, want 1: for its agent, which starts the system itself", name, n)
		}
	}
}

// TestSmallMemory deploys an image of 1.5 GiB onto a machine with 192 MiB of RAM. 16 % of it (240 MiB) is noise that
// does not compress, alone more than the machine's memory; the rest is zeros. The full test has 4 GiB with 3 GiB of
// noise.
func TestSmallMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "small", MemoryMiB: 192, Disks: []lab.DiskSpec{{SizeBytes: 5 << 30}}}})
	m := r.lab.Node("small")
	size, noise := int64(1536<<20), int64(240<<20)
	if os.Getenv("INGOT_FULL") != "" {
		size, noise = 4<<30, 3<<30
	}
	big := r.bigImage(size, noise)
	r.enrol(m)
	r.source("small", r.ours(big), big.sha256)
	from := m.ConsoleSize()
	r.provision("small", "active", hostname("small"))
	r.wait("small", "active", 3*bootLimit)
	r.boots(m, from, "small")
}

// bigImage is the tiny image grown to size bytes, followed by data bytes of noise: more than the machine's memory.
func (r *rig) bigImage(size, data int64) image {
	r.t.Helper()
	raw := filepath.Join(r.t.TempDir(), "big.raw")
	kit.Run(r.t, "zstd", "-q", "-d", "-o", raw, r.art.tinyZst)
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		r.t.Fatal(err)
	}
	noise := rand.NewChaCha8([32]byte{1})
	piece := make([]byte, 1<<20)
	at := (info.Size() + 1<<20) &^ (1<<20 - 1)
	if err := f.Truncate(size); err != nil {
		r.t.Fatal(err)
	}
	for end := at + data; at < end; at += int64(len(piece)) {
		noise.Read(piece)
		if _, err := f.WriteAt(piece, at); err != nil {
			r.t.Fatal(err)
		}
	}
	// The backup header goes where the image now ends, as it would be in an image of this size.
	kit.Run(r.t, "sgdisk", "--move-second-header", raw)
	out := filepath.Join(r.folder, "big.raw.zst")
	kit.Run(r.t, "zstd", "-q", "-1", "-T0", "-f", "-o", out, raw)
	sum := strings.Fields(kit.Run(r.t, "sha256sum", out))[0]
	if info, err = os.Stat(out); err != nil {
		r.t.Fatal(err)
	}
	return image{file: "big.raw.zst", sha256: sum, size: info.Size()}
}

// console returns the machine's console output after offset from.
func console(t *testing.T, m *lab.Machine, from int64) string {
	t.Helper()
	b, err := os.ReadFile(m.ConsoleLog)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[min(from, int64(len(b))):])
}

func readAt(file string, off int64, n int) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, n)
	_, err = f.ReadAt(b, off)
	return b, err
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
