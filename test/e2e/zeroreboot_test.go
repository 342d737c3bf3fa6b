package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
)

// zeroReboot is one kind of machine that is deployed without a reboot.
type zeroReboot struct {
	name   string
	node   lab.NodeSpec
	server bool     // the ramdisk and the kernel for servers, instead of those for the lab
	debian bool     // with Debian instead of the tiny system
	info   []any    // more of instance_info: keys and values
	steps  []object // more deploy steps
}

// TestZeroReboot cleans a machine whose agent then stays, and deploys it by kexec: the machine is powered on once in
// all, for the agent; between the request and the login prompt no firmware runs, and all of that time is accounted
// for. The system that was started by kexec has network and disk, and its kernel complains of nothing that it does
// not complain of after a cold boot. TestUEFI does it with UEFI.
func TestZeroReboot(t *testing.T) {
	t.Parallel()
	t.Run("bios", func(t *testing.T) { zeroReboot{name: "bios", node: lab.NodeSpec{Disks: disk6()}}.run(t) })
}

// TestZeroRebootServer is TestZeroReboot on a server: a network card and a disk that are not virtual, and the kernel
// for real hardware. With INGOT_FULL it is that with Debian around the kernel, by BIOS too.
func TestZeroRebootServer(t *testing.T) {
	t.Parallel()
	disks := []lab.DiskSpec{{SizeBytes: 8 << 30, Bus: "sata"}}
	node := lab.NodeSpec{Firmware: lab.UEFI, MemoryMiB: 1536, NICs: []lab.NICSpec{{Model: "e1000e"}}, Disks: disks}
	t.Run("server-uefi", func(t *testing.T) { zeroReboot{name: "server-uefi", server: true, node: node}.run(t) })
	if os.Getenv("INGOT_FULL") != "" {
		t.Run("debian-uefi", func(t *testing.T) {
			zeroReboot{name: "debian-uefi", server: true, debian: true, node: node}.run(t)
		})
		t.Run("debian-bios", func(t *testing.T) {
			zeroReboot{name: "debian-bios", server: true, debian: true, node: lab.NodeSpec{MemoryMiB: 1024,
				NICs: []lab.NICSpec{{Model: "e1000"}}, Disks: disks}}.run(t)
		})
	}
}

// TestUEFI deploys a machine with UEFI without a reboot. Then the firmware finds the system by the boot entry that the
// agent wrote. The system is on the requested one of two disks, with files that the agent put into the image.
func TestUEFI(t *testing.T) {
	t.Parallel()
	content := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	disks := []lab.DiskSpec{{SizeBytes: 40 << 30, Serial: "BIG"},
		{SizeBytes: 6 << 30, Bus: "nvme", Serial: "NVME-ROOT"}}
	node := lab.NodeSpec{Firmware: lab.UEFI, MemoryMiB: 1024, Disks: disks}
	_, m, hot, cold := zeroReboot{name: "uefi", node: node, info: []any{"root_device", object{"serial": "nvme-root"}},
		// The system counts in /boots how often it was started: what it says at its first start comes from a file
		// that was put into the image.
		steps: []object{
			{"interface": "deploy", "step": "inject_files", "priority": 65, "args": object{"files": []object{
				{"path": "/boots", "partition": "tinyroot", "content": content("41\n")},
				{"path": "/boot/in/new/folders", "content": content("a file in new folders"), "mode": "0600",
					"owner": 7},
				{"path": "/EFI/ingot/mark.txt", "content": content("on the EFI system partition")},
			}}}}}.run(t)
	for from, boots := range map[int64]string{hot: "efi=1 boots=42", cold: "efi=1 boots=43"} {
		if !strings.Contains(console(t, m, from), boots) {
			t.Errorf("the system does not say %q", boots)
		}
	}
	// The firmware says what it starts: the agent's entry, with a path that only the image has, on the partition that
	// is on this disk now. The fallback loader would be \EFI\BOOT\BOOTX64.EFI by an entry with the disk's name.
	guid := regexp.MustCompile(`unique GUID: (\S+)`).FindStringSubmatch(kit.Run(t, "sgdisk", "--info=2", m.DiskFile(1)))
	if guid == nil {
		t.Fatal("sgdisk prints no GUID of the EFI system partition")
	}
	// What it loads it says in full. GRUB resets the serial port when it starts, and with it goes what the port had
	// not sent yet: of the line about starting only its first words are sure to be there.
	said := console(t, m, cold)
	loaded := regexp.MustCompile(`BdsDxe: loading Boot([0-9A-F]{4}) "debian" from HD\(2,GPT,` + guid[1] +
		`,[^)]*\)/\\EFI\\debian\\shimx64\.efi`).FindStringSubmatch(said)
	if loaded == nil || !strings.Contains(said, "BdsDxe: starting Boot"+loaded[1]+` "debian"`) {
		t.Errorf("the firmware did not start the agent's boot entry (debian, on the partition %s); it says %q", guid[1],
			regexp.MustCompile(`BdsDxe: .*`).FindAllString(said, -1))
	}
	if head, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || !zero(head) {
		t.Errorf("the disk that was not asked for was written (%v)", err)
	}
}

// run gives the machine, and where on its console the start by kexec and the one through the firmware begin.
func (c zeroReboot) run(t *testing.T) (r *rig, m *lab.Machine, hotFrom, coldFrom int64) {
	c.node.Name = "zero-" + c.name
	opts := []option{set("deploy.fast_track", true), set("deploy.sign_of_life", []string{"dhcp"})}
	if c.server {
		opts = append(opts, set("netboot.ramdisk_dir", made.Ramdisk(t, made.RamdiskServer)))
	}
	r = newRig(t, []lab.NodeSpec{c.node}, opts...)
	img, limit := r.art.tiny, bootLimit
	if c.server {
		limit = 3 * bootLimit
		system := made.Image(t, made.TinyFull)
		if c.debian {
			system, c.steps = made.Image(t, made.DebianFull), bareDebian()
		}
		zst := system.File(system.Zst)
		img = image{file: "server.raw.zst", sha256: zst.SHA256, size: zst.Size}
		r.add(system.Zst, img.file)
	}
	m = r.lab.Node(c.node.Name)
	name := m.Spec.Name
	n := r.must("POST", "/v1/nodes",
		object{"name": name, "driver": "ipmi", "driver_info": controller(m), "automated_clean": true,
			"network_interface": "flat", "properties": object{"capabilities": "boot_mode:" + string(m.Spec.Firmware)}})
	r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC})
	r.provision(name, "manage", nil)
	r.wait(name, "manageable", stateLimit)
	r.provision(name, "provide", nil)
	r.wait(name, "available", limit)
	if !m.On() || m.Starts() != 1 {
		t.Fatalf("after cleaning the machine's power is %v, and it was started %d times; want its agent kept, in its first start", m.On(), m.Starts())
	}

	r.source(name, r.ours(img), img.sha256, append([]any{"boot_instance", "kexec"}, c.info...)...)
	from := m.ConsoleSize()
	drive := hostname("warm-1")
	if c.steps != nil {
		drive["deploy_steps"] = c.steps
	}
	r.provision(name, "active", drive)
	r.wait(name, "active", limit)
	c.up(r, m, from)
	if said := console(t, m, from); m.Starts() != 1 ||
		regexp.MustCompile(`=== lab [^\n]*: (power on|reset|power off)`).MatchString(said) ||
		strings.Contains(said, "BdsDxe") || strings.Contains(said, "SeaBIOS") {
		t.Errorf("firmware ran between the request and the login prompt (%d starts of the machine in all):\n%s",
			m.Starts(), said)
	}

	tr := r.trace(name, "deploy")
	if tr.FirmwareBoots != 0 || tr.Kexecs != 1 || tr.Open || tr.Outcome != "active" {
		t.Errorf("the trace has %d boots through firmware and %d by kexec, open %v, outcome %q", tr.FirmwareBoots,
			tr.Kexecs, tr.Open, tr.Outcome)
	}
	accounted(t, tr, "write_image", "load_kernel")
	// When the conductor hears of the agent's leave only with the system's sign of life, all of that is one span.
	if spent := trace.Spent(tr); spent[trace.Kexec]+spent[trace.OS] <= 0 {
		t.Errorf("the trace has no time for the jump and the system's boot: %v", spent)
	}
	clean := r.trace(name, "clean")
	if clean.FirmwareBoots != 1 {
		t.Errorf("the trace of the cleaning has %d boots through firmware, want 1", clean.FirmwareBoots)
	}
	accounted(t, clean, "firmware", "HTTP: kernel", "HTTP: ramdisk", "kernel and drivers", "agent: enrolment")
	if t.Failed() {
		t.FailNow()
	}

	// The same system once more, through the firmware, from the disk that the boot device is set to.
	hot := c.complaints(t, m, from)
	hotFrom, coldFrom = from, m.ConsoleSize()
	from = coldFrom
	r.must("PUT", "/v1/nodes/"+name+"/states/power", object{"target": "rebooting"})
	c.up(r, m, from)
	if m.Starts() < 2 {
		t.Errorf("the machine was started %d times, although it was restarted", m.Starts())
	}
	cold := c.complaints(t, m, from)
	for _, line := range hot {
		if !slices.Contains(cold, line) {
			t.Errorf("after kexec the kernel says %q, after a cold boot it does not; that says %q", line, cold)
		}
	}
	return r, m, hotFrom, coldFrom
}

// up waits until the system is there: with its name, its network and its login prompt.
func (c zeroReboot) up(r *rig, m *lab.Machine, from int64) {
	r.t.Helper()
	signs := []string{"host=warm-1 ", "INGOT-TINY-NET", "warm-1 login:"}
	limit := osLimit
	if c.debian {
		signs, limit = []string{"warm-1 login:"}, 3*osLimit
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	for _, s := range signs {
		if err := m.WaitConsole(ctx, from, s); err != nil {
			r.t.Fatalf("the system does not say %q: %v", s, err)
		}
	}
}

// trace gets the last trace of a phase.
func (r *rig) trace(name, phase string) rest.Trace {
	r.t.Helper()
	b, err := json.Marshal(r.must("GET", "/ingot/v1/nodes/"+name+"/timeline", nil))
	if err != nil {
		r.t.Fatal(err)
	}
	var tl rest.Timeline
	if err := json.Unmarshal(b, &tl); err != nil {
		r.t.Fatal(err)
	}
	tr := trace.Last(tl.Traces, phase)
	if tr == nil {
		r.t.Fatalf("there is no trace of phase %s", phase)
	}
	return *tr
}

// accounted checks that at least 95 % of a job's time is attributed, and that there are leaves of these names.
func accounted(t *testing.T, tr rest.Trace, names ...string) {
	t.Helper()
	var b strings.Builder
	if err := trace.Waterfall(&b, tr, 110); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", &b)
	if tr.Attributed < 0.95 {
		t.Errorf("%.1f %% of the time of %s is attributed, want at least 95 %%", tr.Attributed*100, tr.Phase)
	}
	for _, name := range names {
		if !slices.ContainsFunc(trace.Leaves(tr.Spans),
			func(s rest.Span) bool { return s.Name == name && s.Seconds > 0 }) {
			t.Errorf("the trace of %s has no time for %q", tr.Phase, name)
		}
	}
}

// saysComplaints has Debian print at the end of every boot what complaints wants to know.
const saysComplaints = `#!/bin/sh
until hostname -I | grep -q .; do sleep 0.1; done
{
	echo
	echo "BEG1IN $(findmnt -no FSTYPE,OPTIONS /) addresses=$(hostname -I)"
	dmesg -r | grep '^<[0-3]>'
	echo EN2D
} >/dev/ttyS0
`

// bareDebian puts files into Debian with which it comes up as it is, with its name: cloud-init takes longer than all
// the rest, and the demo has it. sshd does not start then, for want of a key.
func bareDebian() []object {
	var files []object
	for path, text := range map[string]string{"/etc/rc.local": saysComplaints, "/etc/hostname": "warm-1\n",
		"/etc/cloud/cloud-init.disabled": "\n", "/etc/ssh/sshd_not_to_be_run": "\n"} {
		content := base64.StdEncoding.EncodeToString([]byte(text))
		files = append(files, object{"path": path, "partition": "root", "mode": "0755", "content": content})
	}
	return []object{{"interface": "deploy", "step": "inject_files", "priority": 65, "args": object{"files": files}}}
}

// complaints returns the messages that the kernel, started after an offset, calls an error, or worse: Debian reports
// them by itself, with its root file system and its network; the tiny system is logged in to and asked. Times and
// addresses are left out, and messages of any boot of a machine that is emulated on busy processors.
func (c zeroReboot) complaints(t *testing.T, m *lab.Machine, from int64) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*osLimit)
	defer cancel()
	if c.debian {
		if err := m.WaitConsole(ctx, from, "EN2D"); err != nil {
			t.Fatalf("Debian does not say on its console what its kernel complains of: %v", err)
		}
	} else {
		keys := m.Attach()
		defer keys.Close()
		from = m.ConsoleSize()
		// What is typed is shown, too: so the words to wait for are put together by the shell.
		for _, x := range []struct{ typed, want string }{
			{"root\r", "#"},
			{"echo BEG$((1))IN; dmesg -r | grep '^<[0-3]>'; echo EN$((2))D\r", "EN2D"},
		} {
			if _, err := keys.Write([]byte(x.typed)); err != nil {
				t.Fatal(err)
			}
			if err := m.WaitConsole(ctx, from, x.want); err != nil {
				t.Fatalf("the system's console does not answer %q with %q: %v", x.typed, x.want, err)
			}
		}
	}
	said := console(t, m, from)
	_, said, found := strings.Cut(said, "BEG1IN")
	said, _, ended := strings.Cut(said, "EN2D")
	if !found || !ended {
		t.Fatalf("the system's console says %q", said)
	}
	if c.debian && !regexp.MustCompile(`^ ext4\s+rw\S* addresses=10\.77\.0\.\d+`).MatchString(said) {
		t.Errorf("Debian has no root file system that it can write to, or no network: %.200q", said)
	}
	var out []string
	times, numbers := regexp.MustCompile(`^<\d>\[[^\]]*\]\s*`), regexp.MustCompile(`0x[0-9a-f]+|\b[0-9a-f]{8,}\b`)
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "<") {
			continue
		}
		if line = times.ReplaceAllString(line, ""); !kit.OfSlowness(line) {
			out = append(out, numbers.ReplaceAllString(line, "N"))
		}
	}
	return out
}
