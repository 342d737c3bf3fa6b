package netboot

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/u-root/u-root/pkg/cpio"

	"github.com/ingot-metal/ingot/conductor/node"
)

// workloadRig serves nodes whose deploy interface is ramdisk.
func workloadRig(t *testing.T, mode Mode) *rig {
	return newRig(t, mode, func(c *Config) {
		c.Workload = func(n *node.Node) bool { return n.Interfaces["deploy"] == "ramdisk" }
	})
}

// worker is an active node with something to run.
func (r *rig) worker(state node.State, info map[string]any, change func(*node.Node)) *node.Node {
	r.t.Helper()
	n := r.node(state, false, func(n *node.Node) {
		n.Job, n.Name = nil, "worker-1"
		n.Interfaces = map[string]string{"deploy": "ramdisk"}
		n.InstanceInfo = info
		if change != nil {
			change(n)
		}
	})
	r.port(n, testMAC, true)
	return n
}

var all = map[string]any{"kernel": "https://files.example:8443/vmlinuz?sig=s3cret&x=1", "ramdisk": "rd.cpio.zst",
	"kernel_append_params": "root=/dev/ram0 console=ttyS0,115200n8",
	"configdrive":          map[string]any{"meta_data": map[string]any{"hostname": "worker"}}}

// At each start of its machine a node that runs from memory gets its workload.
func TestWorkloadScript(t *testing.T) {
	for _, mode := range []Mode{Leases, Proxy} {
		t.Run(string(mode), func(t *testing.T) {
			r := workloadRig(t, mode)
			n := r.worker(node.Active, all, nil)
			for range 3 { // as often as it is restarted
				target, from := "/boot.ipxe?mac="+testMAC.String(), "10.77.0.77"
				if mode == Leases {
					addr, file := r.boot(ipxePacket(iana.INTEL_X86PC)...)
					if file != "http://10.77.0.1:8080/boot.ipxe" {
						t.Fatalf("boot file %q", file)
					}
					target, from = "/boot.ipxe", addr
					// this opens the window of the drive
				} else if r.ask(dhcpv4.MessageTypeDiscover, ipxePacket(iana.INTEL_X86PC)...) == nil {
					t.Fatal("DHCP is not answered")
				}
				resp := r.get(target, from)
				text := body(t, resp)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s", resp.Status, text)
				}
				for _, want := range []string{
					"#!ipxe\n", "worker-1\n",
					"\nkernel https://files.example:8443/vmlinuz?sig=s3cret&x=1 initrd=drive initrd=rd root=/dev/ram0 console=ttyS0,115200n8 BOOTIF=01-" + strings.ReplaceAll(testMAC.String(), ":", "-") + " || goto failed\n",
					"\ninitrd --name rd http://10.77.0.1:8080/images/rd.cpio.zst || goto failed\n",
					"\nchain --replace http://10.77.0.1:8080/boot.ipxe",
				} {
					if !strings.Contains(text, want) {
						t.Errorf("the script lacks %q:\n%s", want, text)
					}
				}
				if strings.Contains(text, "ingot.token") {
					t.Errorf("the script gives the workload a token of the agent's:\n%s", text)
				}
				m := regexp.MustCompile(
					`\ninitrd --name drive http://10.77.0.1:8080(/workload/[A-Za-z0-9_-]{43}/config-drive.cpio) \|\| goto failed\ninitrd --name rd`).FindStringSubmatch(text)
				if m == nil {
					t.Fatalf("no config drive before the ramdisk:\n%s", text)
				}
				got := r.get(m[1], from)
				b, err := io.ReadAll(got.Body)
				if err != nil || got.StatusCode != http.StatusOK || got.Header.Get("Cache-Control") != "no-store" {
					t.Fatalf("config drive: %s, %v", got.Status, err)
				}
				records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(b)))
				if err != nil {
					t.Fatal(err)
				}
				found := false
				for _, rec := range records {
					if rec.Name == "var/lib/cloud/seed/config_drive/openstack/latest/meta_data.json" {
						meta, _ := io.ReadAll(io.NewSectionReader(rec.ReaderAt, 0, int64(rec.FileSize)))
						found = strings.Contains(string(meta), `"hostname":"worker"`)
					}
				}
				if !found {
					t.Errorf("no host name in the config drive's %d files", len(records))
				}
			}
			h, err := r.st.History(t.Context(), n.UUID, 0)
			if err != nil || len(h) != 1 || !strings.Contains(h[0].Event, "https://files.example:8443/vmlinuz ") {
				t.Errorf("history %+v, %v", h, err)
			}
			if r.log.count("s3cret") > 0 || r.log.count("/workload/") > 0 {
				t.Error("the log has a secret")
			}
		})
	}
}

// The config drive is for the machine that got the script, until its next one, for a while, and only while the node is
// to boot its workload.
func TestWorkloadDriveIsSecret(t *testing.T) {
	r := workloadRig(t, Leases)
	n := r.worker(node.Active, all, nil)
	addr, _ := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	find := regexp.MustCompile(`/workload/[^/]+/config-drive.cpio`)
	path := func() string { return find.FindString(body(t, r.get("/boot.ipxe", addr))) }
	status := func(path, from string) int { return r.get(path, from).StatusCode }

	first := path()
	if got := status(first, addr); got != http.StatusOK {
		t.Fatalf("its machine gets %d", got)
	}
	if got := status(first, "10.77.0.99"); got != http.StatusNotFound {
		t.Errorf("another machine gets %d", got)
	}
	if got := status("/workload/guess/config-drive.cpio", addr); got != http.StatusNotFound {
		t.Errorf("a guess gets %d", got)
	}
	second := path()
	if first == second || status(first, addr) != http.StatusNotFound || status(second, addr) != http.StatusOK {
		t.Errorf("a new script does not void the address in the one before")
	}
	r.clock.Store(int64(seedLife + time.Minute))
	if got := status(second, addr); got != http.StatusNotFound {
		t.Errorf("after its time it gets %d", got)
	}
	r.clock.Store(0)
	third := path()
	r.update(n, func(n *node.Node) { n.InstanceInfo["configdrive"] = map[string]any{"user_data": "changed"} })
	if got := r.get(third, addr); got.StatusCode != http.StatusOK || !strings.Contains(body(t, got), "changed") {
		t.Error("a config drive that was changed is not what the next start gets")
	}
	r.update(n, func(n *node.Node) { n.Provision = node.Deleting })
	if got := status(third, addr); got == http.StatusOK {
		t.Error("the drive of a node that is being deleted is served")
	}
	req := httptest.NewRequest("POST", third, nil)
	w := httptest.NewRecorder()
	r.s.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST gets %d", w.Code)
	}
}

func TestWorkloadISO(t *testing.T) {
	r := workloadRig(t, Leases)
	r.worker(node.Active, map[string]any{"boot_iso": "http://files.example/live.iso"}, nil)
	addr, _ := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	text := body(t, r.get("/boot.ipxe", addr))
	if !strings.Contains(text, "\nsanboot --no-describe http://files.example/live.iso || goto failed\n") ||
		strings.Contains(text, "kernel ") || strings.Contains(text, "initrd ") {
		t.Errorf("script:\n%s", text)
	}
}

// What instance_info was edited into since the deployment is checked again, and said where an operator looks.
func TestWorkloadOfABadEdit(t *testing.T) {
	r := workloadRig(t, Leases)
	n := r.worker(node.Active, map[string]any{"kernel": "http://h/k", "kernel_append_params": "a ${x}"}, nil)
	addr, _ := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	if resp := r.get("/boot.ipxe", addr); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%s\n%s", resp.Status, body(t, resp))
	}
	h, err := r.st.History(t.Context(), n.UUID, 0)
	if err != nil || len(h) != 1 || h[0].Severity != "ERROR" || !strings.Contains(h[0].Event, "kernel parameter") {
		t.Errorf("history %+v, %v", h, err)
	}
	r.update(n, func(n *node.Node) { n.InstanceInfo["kernel_append_params"] = strings.Repeat("x", 2100) })
	if resp := r.get("/boot.ipxe", addr); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a command line that is too long: %s", resp.Status)
	}
}

func TestWorkloadAdmission(t *testing.T) {
	linux := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("linux"))}
	bios := pxe(iana.INTEL_X86PC, classPXE)
	agentUp := func(n *node.Node) {
		n.Generation = 1
		n.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour), Generation: 1}
	}
	last := func(n *node.Node) {
		n.Job = &node.Job{ID: "j", Phase: node.PhaseDeploy,
			Steps: []node.JobStep{{Interface: "deploy", Name: "boot_instance"}}}
	}
	for _, c := range []struct {
		name          string
		state         node.State
		change        func(*node.Node)
		mods          []dhcpv4.Modifier
		address, boot bool
		script        string // what of it
	}{
		{"active, firmware", node.Active, nil, bios, true, true, "the workload of node"},
		{"active, its system", node.Active, nil, linux, true, false, ""},
		{"deploying, in its last step", node.Deploying, last, bios, true, true, "the workload of node"},
		{"deploying, before", node.Deploying, nil, bios, false, false, ""},
		{"deleting", node.Deleting, nil, bios, false, false, ""},
		{"available", node.Available, nil, bios, false, false, ""},
		{"rescue", node.Rescue, nil, bios, false, false, ""},
		{"the agent is expected", node.RescueWait, agentUp, bios, true, true, "the agent for node"},
		{"the agent is expected on an active node", node.Active, agentUp, bios, true, true, "the agent for node"},
		{"another deploy interface", node.Active, func(n *node.Node) { n.Interfaces["deploy"] = "direct" }, bios, false,
			false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := workloadRig(t, Leases)
			r.t = t
			r.worker(c.state, map[string]any{"kernel": "http://h/k"}, c.change)
			addr, file := r.boot(c.mods...)
			if (addr != "") != c.address || (file != "") != c.boot {
				t.Fatalf("address %q, boot file %q", addr, file)
			}
			if c.script == "" {
				if addr != "" && c.boot {
					t.Fatal("nothing was checked")
				}
				return
			}
			if text := body(t, r.get("/boot.ipxe", addr)); !strings.Contains(text, c.script) {
				t.Errorf("script:\n%s", text)
			}
		})
	}
	// A port that must not boot gets its address only.
	r := workloadRig(t, Leases)
	n := r.node(node.Active, false, func(n *node.Node) {
		n.Interfaces, n.InstanceInfo = map[string]string{"deploy": "ramdisk"}, map[string]any{"kernel": "http://h/k"}
	})
	r.port(n, net.HardwareAddr(testMAC), false)
	if addr, file := r.boot(bios...); addr == "" || file != "" {
		t.Errorf("port without pxe_enabled: address %q, boot file %q", addr, file)
	}
}

var driveLink = regexp.MustCompile(`/workload/[^/]+/config-drive.cpio`)

// script fetches the boot script of the only machine, and gives its status and where it says that the config drive is.
func (r *rig) script(from string) (status int, drive string) {
	r.t.Helper()
	resp := r.get("/boot.ipxe?mac="+testMAC.String(), from)
	return resp.StatusCode, driveLink.FindString(body(r.t, resp))
}

// warnings counts the warnings in a node's history that have a text.
func (r *rig) warnings(n *node.Node, text string) (count int) {
	r.t.Helper()
	h, err := r.st.History(r.t.Context(), n.UUID, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range h {
		if e.Severity == "WARNING" && strings.Contains(e.Event, text) {
			count++
		}
	}
	return count
}

// Where others lease addresses the config drive is for the first that fetches the script behind a start that Ingot
// knows of.
func TestWorkloadDriveIsForTheFirst(t *testing.T) {
	const machine, stranger = "10.77.0.60", "10.77.0.61"
	for _, mode := range []Mode{Proxy, Off} {
		t.Run(string(mode), func(t *testing.T) {
			r := workloadRig(t, mode)
			n := r.worker(node.Active, all, nil)
			start := func() {
				if mode == Off {
					r.update(n, func(n *node.Node) { n.OpenDrive(r.s.now()) }) // as the engine does
				} else if r.ask(dhcpv4.MessageTypeDiscover, pxe(iana.INTEL_X86PC, classPXE)...) == nil {
					t.Fatal("DHCP is not answered")
				}
			}
			if status, drive := r.script(stranger); status != http.StatusOK || drive != "" {
				t.Errorf("without a start: %d, drive %q", status, drive)
			}
			if got := r.warnings(n, "without its config drive"); got != 1 {
				t.Errorf("%d warnings that the drive was left out", got)
			}
			start()
			status, drive := r.script(machine)
			if status != http.StatusOK || drive == "" {
				t.Fatalf("its machine gets %d, drive %q", status, drive)
			}
			for range 2 {
				if got := r.get(drive, machine).StatusCode; got != http.StatusOK {
					t.Errorf("the drive: %d", got)
				}
			}
			for range 2 {
				if status, other := r.script(stranger); status != http.StatusForbidden || other != "" {
					t.Errorf("a second address gets %d, drive %q", status, other)
				}
				if got := r.get(drive, stranger).StatusCode; got != http.StatusNotFound {
					t.Errorf("the drive for a second address: %d", got)
				}
				if mode == Proxy {
					start() // a client that asks in its name gets nothing
				}
			}
			if got := r.warnings(n, stranger+" asked for the boot script"); got != 1 {
				t.Errorf("%d warnings about a second address", got)
			}
			if _, again := r.script(machine); again == "" || r.get(again, machine).StatusCode != http.StatusOK {
				t.Error("its machine does not get the drive again")
			} else {
				drive = again
			}
			r.update(n, func(n *node.Node) { n.DriveWindow = nil }) // the sign of life
			if got := r.get(drive, machine).StatusCode; got != http.StatusNotFound {
				t.Errorf("the drive behind the sign of life: %d", got)
			}
			start()
			if got := r.get(drive, machine).StatusCode; got != http.StatusNotFound {
				t.Errorf("the link of an earlier start: %d", got)
			}
			if _, drive := r.script(machine); drive == "" {
				t.Error("no drive behind the next start")
			}
			r.clock.Store(int64(node.DriveTime + time.Minute))
			if _, drive := r.script(machine); drive != "" {
				t.Error("the drive is there for longer than a start takes")
			}
		})
	}
}

// In mode server the drive is there from the machine's request for an address, for the address that is leased to it,
// until its system asks for one.
func TestWorkloadDriveIsForTheLease(t *testing.T) {
	r := workloadRig(t, Leases)
	r.worker(node.Active, all, nil)
	addr, _ := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	r.boot() // a system, though nothing was fetched yet: firmware of an unusual kind
	_, drive := r.script(addr)
	if drive == "" || r.get(drive, addr).StatusCode != http.StatusOK {
		t.Fatalf("its machine does not get the drive %q", drive)
	}
	for range 20 { // a machine that can't fetch something else goes on asking, for hours
		r.clock.Add(int64(10 * time.Minute))
		r.boot(ipxePacket(iana.INTEL_X86PC)...)
		if _, drive = r.script(addr); drive == "" || r.get(drive, addr).StatusCode != http.StatusOK {
			t.Fatal("its machine does not get the drive any more")
		}
	}
	r.boot()
	if got := r.get(drive, addr).StatusCode; got != http.StatusNotFound {
		t.Errorf("the drive when the system runs: %d", got)
	}
	if status, drive := r.script(addr); status != http.StatusOK || drive != "" {
		t.Errorf("the script when the system runs: %d, drive %q", status, drive)
	}
	r.boot(ipxePacket(iana.INTEL_X86PC)...)
	if _, drive = r.script(addr); r.get(drive, addr).StatusCode != http.StatusOK {
		t.Error("no drive when the machine restarts by itself")
	}
	if err := r.st.DeleteLease(t.Context(), testMAC.String()); err != nil {
		t.Fatal(err)
	}
	if got := r.get(drive, addr).StatusCode; got != http.StatusNotFound {
		t.Errorf("the drive when the lease is over: %d", got)
	}
}

// A machine that is to boot the agent gets the config drive over the agent's session alone.
func TestAgentsDriveIsNotServed(t *testing.T) {
	r := workloadRig(t, Off)
	n := r.worker(node.Active, all, func(n *node.Node) { n.OpenDrive(time.Now()) })
	_, drive := r.script("10.77.0.60")
	if drive == "" {
		t.Fatal("nothing was checked")
	}
	// the first would boot its workload if the agent were not expected
	for _, state := range []node.State{node.Active, node.DeployWait} {
		r.update(n, func(n *node.Node) {
			n.Provision, n.Generation = state, 1
			n.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour), Generation: 1}
		})
		resp := r.get("/boot.ipxe?mac="+testMAC.String(), "10.77.0.60")
		if text := body(t, resp); resp.StatusCode != http.StatusOK || !strings.Contains(text, "ingot.token=") ||
			driveLink.MatchString(text) || strings.Contains(text, "s3cret") {
			t.Errorf("%s: the agent's script: %s\n%s", state, resp.Status, text)
		}
		if got := r.get(drive, "10.77.0.60").StatusCode; got == http.StatusOK {
			t.Errorf("%s: the drive of a machine that boots the agent is served", state)
		}
	}
}
