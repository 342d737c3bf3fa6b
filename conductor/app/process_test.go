//go:build !race

// The programs under test are processes of their own, built without the race detector.

package app_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// site is a conductor process with its data on disk, and what it has around it: a controller that speaks IPMI and the
// machine behind it.
type site struct {
	t   *testing.T
	dir string
	api *os.File // the API's listening socket, which outlives the process
	url string   // the API's address
	*client.Client
	agentAddr string
	httpPort  int
	log       *buffer

	env  []string // more of it, for ingotd
	set  []string // more settings, each KEY=VALUE
	cmd  *exec.Cmd
	gone chan struct{}

	machine *machine
	bmc     *bmc.BMC
}

// buffer is the process's log.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.b.Write(p) }
func (b *buffer) String() string              { b.mu.Lock(); defer b.mu.Unlock(); return b.b.String() }

// freePort is a port for ingotd to listen on, and to listen on again after it was killed. It is outside the range from
// which the system picks ports for the other tests of this machine.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 15000 + rand.IntN(15000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("there is no free port")
	return 0
}

// newSite brings everything up but the conductor.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), log: &buffer{}, httpPort: freePort(t),
		agentAddr: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if s.api, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	if s.Client, err = client.New(s.url, nil); err != nil {
		t.Fatal(err)
	}
	s.Poll = 20 * time.Millisecond
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.writeRamdisk()

	s.machine = newMachine(s)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if s.bmc, err = bmc.Start(conn,
		bmc.Config{Name: "sim", UUID: s.machine.uuid, User: "admin", Password: "secret",
			Machine: s.machine}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
		s.machine.Stop()
		s.machine.wg.Wait()
		if err := s.bmc.Close(); err != nil {
			t.Error(err)
		}
		s.api.Close()
		if t.Failed() {
			t.Logf("log of ingotd:\n%s", s.log)
		}
	})
	return s
}

// steps is the table of the simulated agent's steps, as a ramdisk's manifest has it.
const steps = `[{"interface":"deploy","step":"erase_devices_metadata","priority":{"clean":99},"abortable":true},
	{"interface":"deploy","step":"prepare_instance_boot","priority":{"deploy":60}},
	{"interface":"deploy","step":"write_configdrive","priority":{"deploy":70},"args":[{"name":"configdrive","type":"any","required":true}]},
	{"interface":"deploy","step":"write_image","priority":{"deploy":80},"abortable":true,"args":[
		{"name":"image_source","type":"string","required":true},{"name":"image_os_hash_algo","type":"string"},{"name":"image_os_hash_value","type":"string"},
		{"name":"image_checksum","type":"string"},{"name":"image_disk_format","type":"string"},{"name":"root_device","type":"object"},{"name":"allow_unverified","type":"boolean"}]},
	{"interface":"inspect","step":"inspect","priority":{"inspect":100},"abortable":true}]`

func (s *site) writeRamdisk() {
	s.t.Helper()
	file := func(name string) map[string]any {
		text := strings.Repeat(name, 10)
		s.write("ramdisk/"+name, text)
		sum := sha256.Sum256([]byte(text))
		return map[string]any{"file": name, "size": len(text), "sha256": hex.EncodeToString(sum[:])}
	}
	b, err := json.Marshal(
		map[string]any{"format": 1, "kernel": file("vmlinuz"), "initramfs": file("initramfs.cpio.zst"),
			"loaders": []any{file("shimx64.efi"), file("grubx64.efi"), file("isolinux.bin"), file("ldlinux.c32")},
			"steps":   json.RawMessage(steps), "steps_digest": "simulated"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("ramdisk/manifest.json", string(b))
}

func (s *site) write(name, text string) {
	s.t.Helper()
	name = filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// start starts the conductor and returns when it is up.
func (s *site) start() {
	s.t.Helper()
	bin := made.Program(s.t, "ingotd")
	s.cmd = exec.Command(bin, "--data-dir", filepath.Join(s.dir, "data"), "--log-level", "debug",
		"--set", "hostname=sim", "--set", "agents.listen="+s.agentAddr, "--set", "agents.advertise="+s.agentAddr,
		"--set", "netboot.address=127.0.0.1", "--set", fmt.Sprintf("netboot.http_port=%d", s.httpPort), "--set",
		"netboot.tftp=false", "--set", "netboot.loader_dir=", "--set",
		"netboot.ramdisk_dir="+filepath.Join(s.dir, "ramdisk"), "--set", "netboot.images_dir=", "--set",
		"deploy.boot_timeout=2m", "--set", "power.sync_interval=2s")
	for _, kv := range s.set {
		s.cmd.Args = append(s.cmd.Args, "--set", kv)
	}
	s.cmd.Env = append(append(os.Environ(), "LISTEN_FDS=1"), s.env...)
	s.cmd.ExtraFiles = []*os.File{s.api}
	s.cmd.Stderr, s.cmd.Stdout = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	gone := make(chan struct{})
	s.gone = gone
	cmd := s.cmd
	go func() {
		cmd.Wait()
		close(gone)
	}()
	s.until("the API answers", func() bool {
		select {
		case <-gone:
			s.t.Fatalf("ingotd ended: %s", cmd.ProcessState)
		default:
		}
		_, err := s.Drivers(s.t.Context())
		return err == nil
	})
}

// kill is SIGKILL: nothing in the process gets a word in.
func (s *site) kill() {
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Errorf("kill ingotd: %v", err)
	}
	<-s.gone
	s.cmd = nil
}

// stop asks the conductor to end, and returns when it has ended.
func (s *site) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	<-s.gone
	s.cmd = nil
}

// until waits for something that will be, on a machine that may be busy.
func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			s.t.Fatalf("%s: waited two minutes", what)
		}
	}
}

// do asks for a provision state and waits until the node has reached one.
func (s *site) do(ident, target, wanted string, drive any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
	defer cancel()
	if err := s.Provision(ctx, ident, client.ProvisionRequest{Target: target, ConfigDrive: drive}); err != nil {
		s.t.Fatalf("%s: %v", target, err)
	}
	s.wait(ident, wanted)
}

func (s *site) wait(ident, wanted string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
	defer cancel()
	if p, err := s.Wait(ctx, ident, nil, wanted); err != nil {
		h, _ := s.History(s.t.Context(), ident)
		s.t.Fatalf("waiting for %s: %v\nnode %+v\nhistory %+v", wanted, err, p, h)
	}
}

// enrol makes the node, and takes it to manageable.
func (s *site) enrol() string {
	s.t.Helper()
	a := s.bmc.Addr()
	n, err := s.CreateNode(s.t.Context(), client.NewNode{Name: "n1", Driver: "ipmi", DriverInfo: map[string]any{
		"ipmi_address": a.Addr().String(), "ipmi_port": a.Port(), "ipmi_username": "admin", "ipmi_password": "secret"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.do("n1", "manage", "manageable", nil)
	return string(n.UUID)
}

const mac = "52:54:00:aa:bb:01"

// machine is the hardware behind the controller. Started from the network it does what firmware and iPXE do (fetch the
// boot script, over HTTP), and then its agent runs in its memory, until the power goes.
type machine struct {
	bmc.Memory
	site *site
	uuid uuid.UUID
	mac  string
	lldp string // that its agent hears at an inspection, as JSON; "": nothing
	wg   sync.WaitGroup

	switchedOn func() // called at each start; may be nil
	// reroute changes the addresses that the firmware loads from; may be nil
	reroute func(address string) string
	link    *link  // between it and the conductor; nil: one that never fails
	down    func() // ends the agent alone, under mu

	mu     sync.Mutex
	off    context.CancelFunc // ends what runs in memory
	agents []*agentstest.Agent
	boots  []string // "pxe" or "disk", as firmware was told
	gate   map[string]chan struct{}
	held   chan string // names of steps that wait at their gate
	args   map[string]string
}

func newMachine(s *site) *machine {
	m := &machine{site: s, uuid: uuid.New(), mac: mac, gate: map[string]chan struct{}{}, held: make(chan string, 100),
		args: map[string]string{}}
	m.Started = m.run
	return m
}

// hold makes a step (or "boot": the machine before it fetches its boot script) wait until the returned function is
// called.
func (m *machine) hold(step string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := make(chan struct{})
	m.gate[step] = c
	return sync.OnceFunc(func() {
		m.mu.Lock()
		delete(m.gate, step)
		m.mu.Unlock()
		close(c)
	})
}

func (m *machine) pass(ctx context.Context, step string) error {
	m.mu.Lock()
	c := m.gate[step]
	m.mu.Unlock()
	if c == nil {
		return nil
	}
	m.held <- step
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop takes the power away: what is in memory is gone.
func (m *machine) Stop() error {
	m.mu.Lock()
	if m.off != nil {
		m.off()
		m.off = nil
	}
	m.mu.Unlock()
	return m.Memory.Stop()
}

func (m *machine) PressPower() error { return m.Stop() }

func (m *machine) run(b bmc.Boot) {
	ctx, off := context.WithCancel(context.Background())
	m.mu.Lock()
	if m.off != nil {
		m.off()
	}
	m.off = off
	m.boots = append(m.boots, string(b.Device))
	m.mu.Unlock()
	if m.switchedOn != nil {
		m.switchedOn()
	}
	switch b.Device {
	case bmc.PXE:
		m.wg.Go(func() { m.netboot(ctx) })
	case bmc.CDROM:
		m.wg.Go(func() { m.mediaBoot(ctx) })
	case bmc.HTTP:
		m.wg.Go(func() { m.httpBoot(ctx, b.Address) })
	}
}

var word = regexp.MustCompile(`ingot\.(\w+)=(\S+)`)

// netboot tries until it has a boot script, then runs the agent that the script names.
func (m *machine) netboot(ctx context.Context) {
	if m.pass(ctx, "boot") != nil {
		return
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/boot.ipxe?mac=%s&uuid=%s", m.site.httpPort, m.mac, m.uuid)
	for {
		text, err := "", errLink
		if m.link.up() {
			text, err = fetch(ctx, m.route(url))
		}
		if err == nil {
			args := map[string]string{}
			for _, w := range word.FindAllStringSubmatch(text, -1) {
				args[w[1]] = w[2]
			}
			if m.link != nil {
				args["conductor"] = m.link.addr
			}
			actx, down := context.WithCancel(ctx)
			defer down()
			m.mu.Lock()
			m.down = down
			m.mu.Unlock()
			m.agent(actx, args)
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// mediaBoot runs the agent that the image in the virtual drive names.
func (m *machine) mediaBoot(ctx context.Context) {
	if m.pass(ctx, "boot") != nil {
		return
	}
	disc := m.Medium(0)
	if disc == nil {
		m.site.t.Error("the machine boots from an empty drive")
		return
	}
	m.imageBoot(ctx, io.NewSectionReader(disc, 0, disc.Size()))
}

// httpBoot loads an image into memory, as UEFI does, and runs the agent that it names.
func (m *machine) httpBoot(ctx context.Context, address string) {
	if m.pass(ctx, "boot") != nil {
		return
	}
	image, err := fetch(ctx, m.route(address))
	if err != nil {
		m.site.t.Errorf("boot by HTTP from %q: %v", address, err)
		return
	}
	m.imageBoot(ctx, strings.NewReader(image))
}

func (m *machine) route(address string) string {
	if m.reroute == nil {
		return address
	}
	return m.reroute(address)
}

func (m *machine) imageBoot(ctx context.Context, image io.ReaderAt) {
	iso, err := iso9660.Open(image)
	var own []byte
	if err == nil {
		own, err = fs.ReadFile(iso, "boot/node")
	}
	if err != nil {
		m.site.t.Errorf("boot from an image: %v", err)
		return
	}
	args := map[string]string{}
	for _, w := range word.FindAllStringSubmatch(string(own), -1) {
		args[w[1]] = w[2]
	}
	m.agent(ctx, args)
}

func fetch(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", resp.Status)
	}
	return string(b), err
}

func (m *machine) agent(ctx context.Context, args map[string]string) {
	if m.pass(ctx, "enrol") != nil {
		return
	}
	step := func(result string) agentstest.StepFunc {
		return func(ctx context.Context, s *agentv1.Step, progress func(*agentv1.Progress)) ([]byte, error) {
			m.mu.Lock()
			m.args[s.Name] = string(s.Args)
			m.mu.Unlock()
			progress(&agentv1.Progress{Phase: "half", Bytes: 5 << 20, Total: 10 << 20, Rate: 1 << 20})
			return []byte(result), m.pass(ctx, s.Name)
		}
	}
	addr, _, _ := strings.Cut(args["conductor"], ",") // the one that answered comes first
	a := &agentstest.Agent{Addr: addr, Fingerprint: args["ca"], Token: args["token"], Digest: "simulated",
		MACs: []string{m.mac}, UUID: m.uuid.String(), Steps: map[string]agentstest.StepFunc{
			"inspect": step(`{"inventory":{"interfaces":[{"name":"eth0","mac_address":"` + m.mac + `","has_carrier":true,"lldp":` + cmp.Or(m.lldp, "null") + `}],"cpu":{"count":2,"architecture":"x86_64"},
				"memory":{"physical_mb":512},"boot":{"current_boot_mode":"bios","pxe_interface":"` + m.mac + `"},"disks":[],"bmc_address":"192.0.2.7"},"boot_interface":"` + m.mac + `","root_disk":{"name":"/dev/vda","size":10737418240}}`),
			"erase_devices_metadata": step(`{"devices":[]}`),
			"write_image": step(`{"bytes_written":10485760,"digest":"sha256:` + strings.Repeat("ab", 32) +
				`"}`),
			"write_configdrive": step(`{}`), "prepare_instance_boot": step(`{"committed":true}`),
		},
		Power: func(p agentv1.PowerAction) {
			if p == agentv1.PowerAction_POWER_ACTION_OFF && m.pass(ctx, "off") == nil && ctx.Err() == nil {
				m.Stop()
			}
		}}
	m.mu.Lock()
	m.agents = append(m.agents, a)
	m.mu.Unlock()
	a.Run(ctx)
}

// runs returns how often a step was begun, over all boots.
func (m *machine) runs(step string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.agents {
		n += a.Runs(step)
	}
	return n
}

func (m *machine) seen() (boots []string, agents int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.boots), len(m.agents)
}

// image makes the node ready to be deployed.
func (s *site) image() {
	s.t.Helper()
	_, err := s.UpdateNode(s.t.Context(), "n1", []rest.Operation{
		{Op: "add", Path: "/instance_info/image_source", Value: "http://192.0.2.1/debian.raw.zst"},
		{Op: "add", Path: "/instance_info/image_os_hash_algo", Value: "sha256"},
		{Op: "add", Path: "/instance_info/image_os_hash_value", Value: strings.Repeat("ab", 32)},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// From a controller's address and password to an active node, through the API, IPMI packets, HTTP boot and the agents'
// protocol.
func TestFromEnrolToActive(t *testing.T) {
	s := newSite(t)
	s.start()
	id := s.enrol()
	s.do("n1", "inspect", "manageable", nil)
	ports, err := s.Ports(t.Context(), "n1")
	if err != nil || len(ports) != 1 || ports[0].Address != mac {
		t.Fatalf("ports after inspection %+v, %v", ports, err)
	}
	s.do("n1", "provide", "available", nil)
	s.image()
	s.do("n1", "active", "active", client.ConfigDrive{MetaData: map[string]any{"hostname": "web-1"}})

	for step, want := range map[string]int{"inspect": 1, "erase_devices_metadata": 1, "write_image": 1,
		"write_configdrive": 1, "prepare_instance_boot": 1} {
		if got := s.machine.runs(step); got != want {
			t.Errorf("%s ran %d times, want %d", step, got, want)
		}
	}
	if boots, _ := s.machine.seen(); !slices.Equal(boots, []string{"pxe", "pxe", "pxe", "disk"}) {
		t.Errorf("the machine was started from %v", boots)
	}
	s.machine.mu.Lock()
	image, drive := s.machine.args["write_image"], s.machine.args["write_configdrive"]
	s.machine.mu.Unlock()
	if !strings.Contains(image, "debian.raw.zst") || !strings.Contains(drive, "web-1") {
		t.Errorf("arguments %s, %s", image, drive)
	}
	tl, err := s.Timeline(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range tl.Marks {
		seen[m.Name] = true
	}
	for _, name := range []string{"boot script fetched", "kernel started", "agent enrolled", "agent connected",
		"power on requested", "power is on"} {
		if !seen[name] {
			t.Errorf("the time line lacks %q", name)
		}
	}
	// A certificate ends with its boot.
	s.machine.mu.Lock()
	last := s.machine.agents[len(s.machine.agents)-1]
	s.machine.mu.Unlock()
	if _, _, _, err := last.Open(t.Context()); err == nil {
		t.Error("the agent of a boot that is over was let in")
	}

	// SIGTERM is an orderly end.
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-s.gone
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d after SIGINT, want 0", code)
	}
	s.cmd = nil
}

// killAt begins something, kills the conductor with SIGKILL while the machine is held at a moment, starts the next one
// and lets the machine go on. When the moment is a step of the agent's, watch has the kill wait until its progress is
// shown, and the machine until its agent is connected again.
func (s *site) killAt(moment string, watch bool, begin func() error) {
	s.t.Helper()
	release := s.machine.hold(moment)
	defer release()
	if err := begin(); err != nil {
		s.t.Fatal(err)
	}
	select {
	case got := <-s.machine.held:
		if got != moment {
			s.t.Fatalf("held at %s, want %s", got, moment)
		}
	case <-time.After(2 * time.Minute):
		s.t.Fatalf("never came to %s", moment)
	}
	if watch {
		// The conductor knows how far the step is, and then knows nothing.
		s.until("progress is shown", func() bool {
			p, err := s.Progress(s.t.Context(), "n1")
			return err == nil && p.Running != nil && p.Running.Bytes == 5<<20
		})
	}
	s.kill()
	s.start()
	if watch {
		s.until("the agent is back", func() bool {
			p, err := s.Progress(s.t.Context(), "n1")
			return err == nil && p.AgentConnected
		})
	}
}

// The real process, killed with SIGKILL, at moments all along a deployment: the next one goes on from there. What the
// agent has done is not done again.
func TestKilledWhileDeploying(t *testing.T) {
	for moment, watch := range map[string]bool{"boot": false, "enrol": false, "write_image": true,
		"write_configdrive": false, "prepare_instance_boot": false, "off": false} {
		t.Run(moment, func(t *testing.T) {
			s := newSite(t)
			s.start()
			s.enrol()
			if _, err := s.CreatePort(t.Context(), client.NewPort{NodeUUID: s.uuid("n1"), Address: mac}); err != nil {
				t.Fatal(err)
			}
			s.do("n1", "provide", "available", nil)
			s.image()
			s.killAt(moment, watch, func() error {
				return s.Provision(t.Context(), "n1",
					client.ProvisionRequest{
						Target:      "active",
						ConfigDrive: client.ConfigDrive{MetaData: map[string]any{"hostname": "web-1"}}})
			})
			s.wait("n1", "active")
			for _, step := range []string{"write_image", "write_configdrive", "prepare_instance_boot"} {
				if got := s.machine.runs(step); got != 1 {
					t.Errorf("%s ran %d times, want once", step, got)
				}
			}
			if boots, agents := s.machine.seen(); !slices.Equal(boots, []string{"pxe", "pxe", "disk"}) || agents != 2 {
				t.Errorf("started from %v with %d agents", boots, agents)
			}
		})
	}
}

// The same on the way to a deployment: during inspection, then during the cleaning that makes the node available.
func TestKilledBeforeDeploying(t *testing.T) {
	s := newSite(t)
	s.start()
	s.enrol()
	for i, c := range []struct{ step, target, wanted string }{
		{"inspect", "inspect", "manageable"},
		{"erase_devices_metadata", "provide", "available"},
	} {
		s.killAt(c.step, true, func() error {
			return s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: c.target})
		})
		s.wait("n1", c.wanted)
		if got := s.machine.runs(c.step); got != 1 {
			t.Errorf("%s ran %d times, want once", c.step, got)
		}
		if boots, agents := s.machine.seen(); len(boots) != i+1 || boots[i] != "pxe" || agents != i+1 {
			t.Errorf("after %s: started from %v with %d agents", c.step, boots, agents)
		}
	}
	// The agent's findings from the time when no conductor listened have arrived.
	if ports, err := s.Ports(t.Context(), "n1"); err != nil || len(ports) != 1 || ports[0].Address != mac {
		t.Errorf("ports %+v, %v", ports, err)
	}
}

func (s *site) uuid(ident string) string {
	s.t.Helper()
	n, err := s.Node(s.t.Context(), ident)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(n.UUID)
}

// Two conductors on one data directory would corrupt each other's view: the second refuses.
func TestSecondConductorOnTheSameData(t *testing.T) {
	s := newSite(t)
	s.start()
	bin := made.Program(t, "ingotd")
	out, err := exec.Command(bin, "--data-dir", filepath.Join(s.dir, "data"), "--set",
		"netboot.address=127.0.0.1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another ingotd uses the data directory") {
		t.Errorf("a second ingotd ended with %v: %s", err, out)
	}
}

func TestProgramRefusesAndHelps(t *testing.T) {
	bin := made.Program(t, "ingotd")
	data := filepath.Join(t.TempDir(), "data")
	for _, c := range []struct {
		args []string
		ok   bool
		want string
	}{
		{[]string{"--data-dir", data, "--set", "netboot.address=127.0.0.1", "--set", "openstack.clouds_file=" + data +
			".yaml"}, false,
			"openstack.clouds_file " + data + ".yaml: the file can't be read: no such file"},
		{[]string{"--help"}, true, "netboot.range_start"},
		{[]string{"--print-config", "--set", "netboot.address=127.0.0.1"}, true, "data_dir: /var/lib/ingot"},
		{[]string{"--listen", "0.0.0.0:6385", "--set", "netboot.dhcp=server"}, false, "api.listen"},
		{[]string{"--listen", "0.0.0.0:6385", "--set", "netboot.dhcp=server"}, false, "netboot.interface"},
	} {
		out, err := exec.Command(bin, c.args...).CombinedOutput()
		if (err == nil) != c.ok || !strings.Contains(string(out), c.want) {
			t.Errorf("ingotd %s: %v, output lacks %q:\n%s", strings.Join(c.args, " "), err, c.want, out)
		}
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its file of clouds ingotd made a data directory: %v", err)
	}
}
