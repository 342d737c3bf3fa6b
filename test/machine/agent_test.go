package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/ingot-metal/ingot/agent/boot/kexec"
	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// desk is a conductor without an engine: it enrols one machine, which is booted directly from kernel and ramdisk, and
// hands it plans one after the other; then it has the machine switched off.
type desk struct {
	t     *testing.T
	st    *store.Store
	ca    *agents.CA
	srv   *agents.Server
	node  *node.Node
	addr  string
	token string
	last  func() error // ends the machine when all plans are done; nil: the agent is asked to

	keepGoing bool // a plan that failed does not end the machine
	book      *erasure.Book
	before    func(node.Plan) // called before a plan is sent; nil: nothing is to be done

	mu       sync.Mutex
	busy     bool        // a plan is sent or being sent, or the machine's end is
	plans    []node.Plan // yet to send
	results  map[string]node.StepResult
	steps    map[string]map[string]node.StepResult // by plan and step
	ended    []node.PlanResult
	progress int
	state    node.AgentState
}

func newDesk(t *testing.T, plans ...node.Plan) *desk {
	t.Helper()
	d := &desk{t: t, plans: plans, results: map[string]node.StepResult{},
		steps: map[string]map[string]node.StepResult{}}
	dir := t.TempDir()
	var err error
	if d.st, err = store.Open(t.Context(), store.Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.st.Close() })
	if d.ca, err = agents.OpenCA(dir); err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	d.token = id + "." + strings.Repeat("t", 43)
	key, err := erasure.OpenKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	d.book = &erasure.Book{Key: key, Store: d.st, Conductor: "test"}
	sum := sha256.Sum256([]byte(d.token))
	d.node = &node.Node{UUID: id, Name: "direct", Driver: "fake-hardware", Provision: node.Enroll, Generation: 1}
	d.node.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour),
		TokenHash: hex.EncodeToString(sum[:]), TokenExpires: time.Now().Add(time.Hour), Generation: 1}
	if err := d.st.CreateNode(t.Context(), d.node); err != nil {
		t.Fatal(err)
	}
	d.srv, err = agents.New(d.st, d, d.ca, agents.Config{Dir: dir, Names: []string{"10.0.2.2"}, Hostname: "test",
		Erased: func(ctx context.Context, id string, result []byte) error {
			return d.book.Take(ctx, id, d.node.Name, result)
		},
		NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) }}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.addr = l.Addr().String()
	go d.srv.Serve(l)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		d.srv.Stop(ctx)
	})
	return d
}

// host returns the address by which the machine, on QEMU's user network, reaches a listener on this machine's loopback.
func host(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return net.JoinHostPort("10.0.2.2", port)
}

func (d *desk) cmdline() string {
	return fmt.Sprintf("quiet ingot.conductor=%s ingot.ca=%s ingot.token=%s", host(d.addr), d.ca.Fingerprint(), d.token)
}

func (d *desk) Enrolled(context.Context, string) {}

func (d *desk) AgentUp(_ context.Context, s node.AgentState) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state = s
	if !d.busy { // else it comes back, and goes on with what it has
		d.busy = true
		go d.next()
	}
	return nil
}

// next sends the next plan, or the end.
func (d *desk) next() {
	d.mu.Lock()
	var p *node.Plan
	if len(d.plans) > 0 {
		p = &d.plans[0]
		d.plans = d.plans[1:]
	}
	d.mu.Unlock()
	if p != nil && d.before != nil {
		d.before(*p)
	}
	for d.t.Context().Err() == nil {
		var err error
		switch {
		case p != nil:
			err = d.srv.SendPlan(context.Background(), d.node.UUID, *p)
		case d.last != nil:
			err = d.last()
		default:
			err = d.srv.Power(context.Background(), d.node.UUID, node.AgentOff)
		}
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-d.t.Context().Done():
		}
	}
}

func (d *desk) AgentEvent(_ context.Context, e node.AgentEvent) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case e.StepFinished != nil:
		r := *e.StepFinished
		d.results[r.Name] = r
		if d.steps[r.PlanID] == nil {
			d.steps[r.PlanID] = map[string]node.StepResult{}
		}
		d.steps[r.PlanID][r.Name] = r
	case e.PlanFinished != nil:
		if slices.ContainsFunc(d.ended, func(r node.PlanResult) bool { return r.PlanID == e.PlanFinished.PlanID }) {
			return nil // told once more, after the line was cut
		}
		d.ended = append(d.ended, *e.PlanFinished)
		if !e.PlanFinished.Done && !d.keepGoing {
			d.plans = nil
		}
		go d.next()
	}
	return nil
}

func (d *desk) AgentProgress(string, node.Progress) {
	d.mu.Lock()
	d.progress++
	d.mu.Unlock()
}

func (d *desk) AgentLost(context.Context, string, string) {}

func (d *desk) AgentStale(context.Context, string, string) {}

// result gives what a step answered; the test ends when it did not succeed.
func (d *desk) result(name string, into any) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.results[name]
	if !ok || r.Outcome != node.OutcomeDone {
		d.t.Fatalf("step %s: %+v", name, r)
	}
	if err := json.Unmarshal(r.Result, into); err != nil {
		d.t.Fatalf("result of %s: %v", name, err)
	}
}

func plan(id string, phase node.Phase, steps ...node.PlanStep) node.Plan {
	return node.Plan{ID: id, Generation: 1, Phase: phase, Steps: steps}
}

// kernelSays matches errors, which a kernel prints even on a quiet console.
var kernelSays = regexp.MustCompile(`(?m)^\[ *\d+\.\d+\] (.*?)\r?$`)

// TestAgentDirect boots the agent with -kernel and -initrd, without DHCP server, TFTP or BMC of ours: it enrols, takes
// an inventory, writes the tiny image, commits it, loads its kernel from the disk and jumps: the system comes up
// without firmware (QEMU ends at a reset), with its network. Then the firmware boots the disk; the kernel had
// complained of nothing that it does not complain of then.
func TestAgentDirect(t *testing.T) {
	for _, uefi := range []bool{false, true} {
		t.Run(map[bool]string{false: "bios", true: "uefi"}[uefi], func(t *testing.T) {
			write := tinyServer(t)
			d := newDesk(t,
				plan("inspect-1", node.PhaseInspect, node.PlanStep{Interface: "inspect", Name: "inspect"}),
				plan("deploy-1", node.PhaseDeploy, write(nil), prepareBoot,
					node.PlanStep{Interface: "deploy", Name: "load_kernel",
						Args: json.RawMessage(`{"kernel_append_params":"ingot.test=1"}`)}))
			d.last = func() error { return d.srv.Kexec(context.Background(), d.node.UUID, time.Second) }
			target := kit.TempDisk(t, 5<<30)
			const up = `INGOT-TINY-NET`
			vm := agentOf(t, made.RamdiskLab, d, nic()...)
			vm.UEFI, vm.Disks, vm.Timeout, vm.Until = uefi, []string{target}, bootLimit+osLimit, up
			console := kit.Boot(t, vm)
			var report struct {
				Inventory struct {
					Interfaces []struct {
						MAC     string `json:"mac_address"`
						IPv4    string `json:"ipv4_address"`
						Carrier bool   `json:"has_carrier"`
						Driver  string `json:"driver"`
					} `json:"interfaces"`
					Disks []struct {
						Name, Serial string
						Size         int64
					} `json:"disks"`
					Memory struct {
						PhysicalMB int `json:"physical_mb"`
					} `json:"memory"`
					Boot struct {
						Mode string `json:"current_boot_mode"`
					} `json:"boot"`
				} `json:"inventory"`
				Errors []string `json:"errors"`
			}
			d.result("inspect", &report)
			inv := report.Inventory
			if len(inv.Interfaces) != 1 || inv.Interfaces[0].MAC != "52:54:00:aa:00:01" ||
				inv.Interfaces[0].IPv4 != "10.0.2.15" ||
				!inv.Interfaces[0].Carrier || inv.Interfaces[0].Driver != "virtio_net" {
				t.Errorf("interfaces = %+v", inv.Interfaces)
			}
			if len(inv.Disks) != 1 || inv.Disks[0].Serial != "disk0" || inv.Disks[0].Size != 5<<30 ||
				inv.Memory.PhysicalMB != 512 || len(report.Errors) > 0 {
				t.Errorf("disks %+v, memory %d, errors %q", inv.Disks, inv.Memory.PhysicalMB, report.Errors)
			}
			if want := map[bool]string{false: "bios", true: "uefi"}[uefi]; inv.Boot.Mode != want {
				t.Errorf("boot mode %q, want %q", inv.Boot.Mode, want)
			}
			var written struct {
				SHA256 string `json:"sha256"`
			}
			d.result("write_image", &written)
			var boot struct {
				Committed bool
				Mode      string         `json:"boot_mode"`
				Entry     map[string]any `json:"boot_entry"`
				Warning   string
			}
			d.result("prepare_instance_boot", &boot)
			if !boot.Committed || uefi && boot.Entry == nil {
				t.Errorf("prepare_instance_boot = %+v", boot)
			}
			for _, want := range []string{"ingot: agent ", "ingot: network: eth0 10.0.2.15/24",
				"ingot: node " + d.node.UUID, "ingot: step write_image"} {
				if !strings.Contains(console, want) {
					t.Errorf("the console does not say %q:\n%s", want, console)
				}
			}
			if strings.Contains(console, d.token) && !strings.Contains(console, "Command line") {
				t.Error("the token is on the console")
			}
			if fi, err := os.Stat(target); err != nil || fi.Size() != 5<<30 {
				t.Errorf("the disk: %v, %v", fi, err)
			}

			var loaded kexec.Result
			d.result("load_kernel", &loaded)
			if !loaded.Loaded || loaded.From != "grub.cfg" ||
				!strings.HasPrefix(loaded.Cmdline, "BOOT_IMAGE=/boot/vmlinuz root=UUID=") ||
				!strings.HasSuffix(loaded.Cmdline, " ingot.test=1") || len(loaded.Initrd) != 1 ||
				loaded.Bytes < 10<<20 {
				t.Errorf("load_kernel = %+v", loaded)
			}
			t.Logf("%d bytes were loaded in %d ms", loaded.Bytes, loaded.TookMS)
			const jump = "ingot: the agent: jump into the loaded kernel"
			_, after, ok := strings.Cut(console, jump)
			if !ok {
				t.Fatalf("the console does not say %q:\n%s", jump, console)
			}
			if !strings.Contains(after, "boots=1") || strings.Contains(after, "root=none") ||
				uefi != strings.Contains(after, "efi=1") {
				t.Errorf("the system that was started by kexec says:\n%s", after)
			}
			cold := kit.Boot(t, kit.VM{UEFI: uefi, Disks: []string{target}, Until: up, Timeout: osLimit, Args: nic()})
			usual := map[string]bool{}
			for _, m := range kernelSays.FindAllStringSubmatch(cold, -1) {
				usual[m[1]] = true
			}
			whole := after[:strings.LastIndexByte(after, '\n')+1] // the machine was ended in the middle of a line
			for _, m := range kernelSays.FindAllStringSubmatch(whole, -1) {
				if !usual[m[1]] && !kit.OfSlowness(m[1]) {
					t.Errorf("the kernel complains only after kexec: %s", m[1])
				}
			}
			if !strings.Contains(cold, "boots=2") {
				t.Errorf("the disk, started by the firmware, says:\n%s", cold)
			}
		})
	}
}

// pressPower presses the machine's power button.
func pressPower(socket string) error { return monitor(socket, "system_powerdown") }

// monitor gives a command to QEMU's monitor at a socket.
func monitor(socket, command string) error {
	c, err := net.DialTimeout("unix", socket, time.Minute)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	dec := json.NewDecoder(c)
	var answer map[string]any
	for _, command := range []string{"", "qmp_capabilities", command} {
		if command != "" {
			if _, err := fmt.Fprintf(c, `{"execute":%q}`, command); err != nil {
				return err
			}
		}
		if err := dec.Decode(&answer); err != nil {
			return err
		}
	}
	return nil
}

// TestAgentOnServer boots the ramdisk for real hardware on a machine with the disks, network card and controller that
// only its kernel has drivers for: it is inspected (BMC over the system interface included) and its disks are wiped;
// then the power button is pressed.
func TestAgentOnServer(t *testing.T) {
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	mac, _ := net.ParseMAC("52:54:00:bb:00:01")
	ctl, err := bmc.Start(udp,
		bmc.Config{Name: "direct", UUID: uuid.New(), User: "u", Password: "p", Machine: &bmc.Memory{}, MAC: mac,
			Prefix: netip.MustParsePrefix("192.0.2.77/24")})
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	kcs, err := net.Listen("unix", filepath.Join(t.TempDir(), "kcs"))
	if err != nil {
		t.Fatal(err)
	}
	defer kcs.Close()
	go ctl.ServeSystemInterface(kcs)

	d := newDesk(t,
		plan("inspect-1", node.PhaseInspect, node.PlanStep{Interface: "inspect", Name: "inspect",
			Args: json.RawMessage(`{"root_device":{"serial":"NVME1"}}`)}),
		plan("clean-1", node.PhaseClean, node.PlanStep{Interface: "deploy", Name: "erase_devices_metadata"}))
	monitor := filepath.Join(t.TempDir(), "qmp")
	d.last = func() error { return pressPower(monitor) }
	sata, nvme := kit.TempDisk(t, 5<<30), kit.TempDisk(t, 6<<30)
	dirty(t, sata)
	console := kit.Boot(t, agentOf(t, made.RamdiskServer, d,
		"-netdev", "user,id=n0", "-device", "e1000e,netdev=n0,mac=52:54:00:aa:00:01",
		"-drive", "if=none,format=raw,cache=unsafe,id=s,file="+sata, "-device",
		"ide-hd,drive=s,serial=SATA1,wwn=0x5000c50015ea71aa", "-drive", "if=none,format=raw,cache=unsafe,id=n,file="+
			nvme, "-device", "nvme,drive=n,serial=NVME1",
		"-chardev", "socket,id=c,reconnect=1,path="+kcs.Addr().String(), "-device", "ipmi-bmc-extern,id=b,chardev=c",
		"-device", "isa-ipmi-kcs,bmc=b", "-qmp", "unix:"+monitor+",server=on,wait=off"))
	var r struct {
		Inventory struct {
			BMCAddress string `json:"bmc_address"`
			BMCMAC     string `json:"bmc_mac"`
			Disks      []struct {
				Serial, WWN, Tran, HCTL string
			} `json:"disks"`
			Interfaces []struct {
				Driver string `json:"driver"`
				Speed  int    `json:"speed_mbps"`
				PCI    string `json:"pci_address"`
			} `json:"interfaces"`
		} `json:"inventory"`
		RootDisk struct{ Serial, Why string } `json:"root_disk"`
		Errors   []string                     `json:"errors"`
	}
	d.result("inspect", &r)
	inv := r.Inventory
	if inv.BMCAddress != "192.0.2.77" || inv.BMCMAC != mac.String() {
		t.Errorf("BMC %s %s, want 192.0.2.77 %s; errors %q", inv.BMCAddress, inv.BMCMAC, mac, r.Errors)
	}
	if len(inv.Disks) != 2 || inv.Disks[0].Serial != "NVME1" || inv.Disks[0].Tran != "nvme" ||
		inv.Disks[1].Serial != "SATA1" ||
		inv.Disks[1].WWN != "0x5000c50015ea71aa" || inv.Disks[1].HCTL == "" {
		t.Errorf("disks = %+v", inv.Disks)
	}
	if len(inv.Interfaces) != 1 || inv.Interfaces[0].Driver != "e1000e" || inv.Interfaces[0].Speed != 1000 ||
		inv.Interfaces[0].PCI == "" {
		t.Errorf("interfaces = %+v", inv.Interfaces)
	}
	if r.RootDisk.Serial != "NVME1" || r.RootDisk.Why == "" {
		t.Errorf("root disk %+v", r.RootDisk)
	}
	var wiped struct {
		Devices []struct{ Name, Serial string } `json:"devices"`
	}
	d.result("erase_devices_metadata", &wiped)
	if len(wiped.Devices) != 2 {
		t.Errorf("wiped %+v", wiped)
	}
	head := make([]byte, 4096)
	f, err := os.Open(sata)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(head, 0); err != nil || !bytes.Equal(head, make([]byte, 4096)) {
		t.Errorf("the head of the wiped disk: %v, %x...", err, head[:16])
	}
	if !strings.Contains(console, "ingot: power button: power off") {
		t.Errorf("the console does not tell of the power button:\n%s", console)
	}
}

// dirty writes something that looks like a partition table to the head of a disk.
func dirty(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0x55, 0xaa}, 2048), 0); err != nil {
		t.Fatal(err)
	}
}
