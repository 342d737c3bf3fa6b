package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"github.com/vishvananda/netlink"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// inMachine names, in the environment of this test program, the test that it is to run as the first process of a
// machine whose clock it may set.
const inMachine = "INGOT_TEST_CLOCK"

func TestMain(m *testing.M) {
	if os.Getpid() != 1 || os.Getenv(inMachine) == "" {
		os.Exit(m.Run())
	}
	os.Args = []string{os.Args[0], "-test.v", "-test.run=^" + os.Getenv(inMachine) + "$"}
	code := 1
	if err := firstProcess(); err == nil {
		code = m.Run()
	} else {
		fmt.Println(err)
	}
	fmt.Printf("\nCLOCK ended with %d\n", code)
	select {} // the machine is ended from outside
}

func firstProcess() error {
	for dir, kind := range map[string]string{"/proc": "proc", "/dev": "devtmpfs", "/tmp": "tmpfs"} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount(kind, dir, kind, 0, "")); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// TestClockSetBack sets the clock of a machine back by a year while an ingotd in it deploys nodes in all stages, and
// forward again. The machine has nothing but the kernel, ingotd and this program.
func TestClockSetBack(t *testing.T) {
	if os.Getenv(inMachine) != "" {
		clockSetBack(t)
		return
	}
	console := kit.Boot(t, kit.VM{Kernel: filepath.Join(made.Ramdisk(t, made.RamdiskLab), "vmlinuz"),
		Initrd: clockRamdisk(t), Append: "quiet rdinit=/init " + inMachine + "=" + t.Name(),
		Until: `CLOCK ended with \d|Kernel panic`, Timeout: bootLimit})
	if !strings.Contains(console, "CLOCK ended with 0") || !strings.Contains(console, "--- PASS: TestClockSetBack") {
		t.Errorf("the machine's console:\n%s", console)
	}
}

// clockRamdisk makes a ramdisk of this program, as init, and ingotd, after those given.
func clockRamdisk(t *testing.T, before ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "initramfs")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range before {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// The next one begins at a multiple of four bytes.
		if _, err := f.Write(append(data, make([]byte, -len(data)&3)...)); err != nil {
			t.Fatal(err)
		}
	}
	w := cpio.Newc.Writer(f)
	records := []cpio.Record{cpio.Directory("dev", 0o755), cpio.CharDev("dev/console", 0o600, 5, 1)}
	for name, from := range map[string]string{"init": self, "ingotd": made.Program(t, "ingotd")} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, cpio.StaticFile(name, string(data), 0o755))
	}
	for _, r := range records {
		if err := w.WriteRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := cpio.WriteTrailer(w); err != nil {
		t.Fatal(err)
	}
	return path
}

// turnClock sets the machine's clock.
func turnClock(t *testing.T, by time.Duration) {
	t.Helper()
	if err := setClock(by); err != nil {
		t.Fatal(err)
	}
	t.Logf("the clock is at %v", time.Now())
}

func setClock(by time.Duration) error {
	ts := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

// clockSite is an ingotd on loopback that boots fake machines over HTTP; their agents are simulated, and use TLS.
type clockSite struct {
	*testing.T
	dir  string
	log  *ingotd.Output
	args []string
	cmd  *exec.Cmd
}

const (
	clockAPI  = "127.0.0.1:6385"
	clockBoot = "http://127.0.0.1:8080"
	year      = 365 * 24 * time.Hour
)

func newClockSite(t *testing.T) *clockSite {
	s := &clockSite{T: t, dir: t.TempDir(), log: &ingotd.Output{}}
	file := func(name string, data []byte) map[string]any {
		if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		return map[string]any{"file": name, "size": len(data), "sha256": hex.EncodeToString(sum[:])}
	}
	manifest, err := json.Marshal(
		map[string]any{"format": 1, "kernel": file("vmlinuz", []byte("k")), "initramfs": file("initramfs", []byte("i")),
			"steps_digest": "simulated",
			"steps": json.RawMessage(`[{"interface":"deploy","step":"write_image","priority":{"deploy":80},"args":[{"name":"image_source","type":"string"},
			{"name":"image_os_hash_algo","type":"string"},{"name":"image_os_hash_value","type":"string"}]},
			{"interface":"deploy","step":"prepare_instance_boot","priority":{"deploy":60}}]`)})
	if err != nil {
		t.Fatal(err)
	}
	file("manifest.json", manifest)
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file("htpasswd", []byte("root:"+string(hash)+"\n"))
	s.args = []string{"--data-dir", filepath.Join(s.dir, "data"), "--listen", clockAPI}
	for _, kv := range []string{"hostname=clock", "agents.listen=127.0.0.1:6386", "agents.advertise=127.0.0.1:6386",
		"netboot.address=127.0.0.1", "netboot.tftp=false", "netboot.loader_dir=", "netboot.images_dir=",
		"netboot.ramdisk_dir=" + s.dir, "api.auth=http_basic", "api.htpasswd_file=" + filepath.Join(s.dir, "htpasswd"),
		"deploy.automated_clean=false", "deploy.boot_timeout=30s", "deploy.max_boots=1", "power.sync_interval=5s"} {
		s.args = append(s.args, "--set", kv)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of ingotd:\n%s", s.log)
		}
	})
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *clockSite) start() {
	s.Helper()
	s.cmd = exec.Command("/ingotd", s.args...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.until("ingotd answers", func() bool {
		resp, err := http.Get("http://" + clockAPI + "/")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
}

func (s *clockSite) stop() {
	s.cmd.Process.Signal(os.Interrupt) // an error says that it has ended already
	if err := s.cmd.Wait(); err != nil {
		s.Errorf("ingotd: %v", err)
	}
}

// until waits without using up the processor, which is emulated, and by a clock that is never set.
func (s *clockSite) until(what string, ok func() bool) {
	s.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			s.Fatalf("%s: not so after three minutes", what)
		}
	}
}

// ask sends a request as root with a password.
func (s *clockSite) ask(password, method, path, body string) (status int, answer string) {
	s.Helper()
	req, err := http.NewRequest(method, "http://"+clockAPI+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth("root", password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (s *clockSite) do(method, path, body string) string {
	s.Helper()
	status, answer := s.ask("right", method, path, body)
	if status >= 300 {
		s.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

type clockNode struct {
	State       string    `json:"provision_state"`
	LastError   string    `json:"last_error"`
	Reservation string    `json:"reservation"`
	UpdatedAt   time.Time `json:"updated_at"`
}

func (s *clockSite) node(name string) (n clockNode) {
	s.Helper()
	if err := json.Unmarshal([]byte(s.do("GET", "/v1/nodes/"+name, "")), &n); err != nil {
		s.Fatal(err)
	}
	return n
}

// waitState waits until a node is in a state, and either unlocked or waiting for its machine.
func (s *clockSite) waitState(name, state string) {
	s.Helper()
	s.until(name+" becomes "+state, func() bool {
		n := s.node(name)
		if strings.HasSuffix(n.State, "failed") && n.State != state {
			s.Fatalf("%s is %s, want %s: %s", name, n.State, state, n.LastError)
		}
		return n.State == state && (n.Reservation == "" || state == "wait call-back")
	})
	if off := time.Until(s.node(name).UpdatedAt).Abs(); off > time.Hour {
		s.Errorf("%s was changed %v from now", name, off)
	}
}

// machine is a node whose machine is booted by this test.
type clockMachine struct {
	*clockSite
	name, mac string
	began     chan struct{} // the agent has begun to write
	write     chan struct{} // closed: it may go on
}

func (s *clockSite) deploy(i int, name string) *clockMachine {
	s.Helper()
	m := &clockMachine{clockSite: s, name: name, mac: fmt.Sprintf("52:54:00:00:00:%02x", i),
		began: make(chan struct{}, 10), write: make(chan struct{})}
	var n struct{ UUID string }
	if err := json.Unmarshal([]byte(s.do("POST", "/v1/nodes", `{"name":"`+name+`","driver":"fake-hardware","deploy_interface":"direct","instance_info":{"image_source":"http://192.0.2.1/x",
		"image_os_hash_algo":"sha256","image_os_hash_value":"`+strings.Repeat("ab", 32)+`"}}`)), &n); err != nil {
		s.Fatal(err)
	}
	s.do("POST", "/v1/ports", `{"node_uuid":"`+n.UUID+`","address":"`+m.mac+`"}`)
	for _, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}} {
		s.do("PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"`+step[0]+`"}`)
		s.waitState(name, step[1])
	}
	s.do("PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"active"}`)
	return m
}

// script returns the boot script of the machine's firmware, when it gets it.
func (m *clockMachine) script() (text string) {
	m.Helper()
	c := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext}}
	m.until(m.name+"'s boot script", func() bool {
		resp, err := c.Get(clockBoot + "/boot.ipxe?mac=" + m.mac)
		if err != nil {
			m.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			m.Fatal(err)
		}
		text = string(b)
		return resp.StatusCode == http.StatusOK && strings.Contains(text, "ingot.token=")
	})
	return text
}

// boot runs the agent that a script names.
func (m *clockMachine) boot(script string) {
	m.Helper()
	word := func(key string) string {
		w := regexp.MustCompile(`ingot\.` + key + `=(\S+)`).FindStringSubmatch(script)
		if w == nil {
			m.Fatalf("the script has no ingot.%s:\n%s", key, script)
		}
		return w[1]
	}
	ctx, cancel := context.WithCancel(m.Context())
	a := &agentstest.Agent{Addr: word("conductor"), Fingerprint: word("ca"), Token: word("token"),
		MACs: []string{m.mac}, Digest: "simulated", Retry: 500 * time.Millisecond,
		Power: func(agentv1.PowerAction) { cancel() }, Steps: map[string]agentstest.StepFunc{
			"write_image": func(ctx context.Context, _ *agentv1.Step, _ func(*agentv1.Progress)) ([]byte, error) {
				m.began <- struct{}{}
				select {
				case <-m.write:
					return []byte(`{}`), nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.Run(ctx); ctx.Err() == nil {
			m.Errorf("the agent of %s ended: %v", m.name, err)
		}
	}()
	m.Cleanup(func() { cancel(); <-done })
}

func (m *clockMachine) writing() {
	m.Helper()
	select {
	case <-m.began:
	case <-time.After(2 * time.Minute):
		m.Fatalf("the agent of %s does not write", m.name)
	}
}

// negative finds durations below zero, in seconds and as Go writes them.
var negative = regexp.MustCompile(`"[a-z_]+":-[0-9.]+|(took=|after )-[0-9hms.]+`)

func clockSetBack(t *testing.T) {
	s := newClockSite(t)
	writing, enrolling, booting := s.deploy(1, "writing"), s.deploy(2, "enrolling"), s.deploy(3, "booting")
	writing.boot(writing.script())
	writing.writing()
	token := enrolling.script()
	silent := s.deploy(4, "silent")
	silent.script()
	s.waitState(booting.name, "wait call-back")

	turnClock(t, -year)
	enrolling.boot(token)
	enrolling.writing()
	// Certificates of before are good for a new start, too.
	s.stop()
	s.start()
	if status, _ := s.ask("wrong", "GET", "/v1/nodes", ""); status != http.StatusUnauthorized {
		t.Errorf("a wrong password is answered with %d", status)
	}
	booting.boot(booting.script())
	booting.writing()
	for _, m := range []*clockMachine{writing, enrolling} {
		close(m.write)
		s.waitState(m.name, "active")
	}
	s.waitState(silent.name, "deploy failed")
	for _, line := range []string{"the clock is behind what has been recorded already",
		"the clock was set back while a node had work under way"} {
		if !strings.Contains(s.log.String(), line) {
			t.Errorf("the log does not say that %s", line)
		}
	}

	turnClock(t, year)
	close(booting.write)
	s.waitState(booting.name, "active")
	s.do("PUT", "/v1/nodes/writing/states/provision", `{"target":"deleted"}`)
	s.waitState("writing", "available")
	for _, name := range []string{writing.name, enrolling.name, booting.name, silent.name} {
		if text := s.do("GET", "/ingot/v1/nodes/"+name+"/timeline", ""); negative.MatchString(text) {
			t.Errorf("the time line of %s has negative times: %s", name, text)
		}
	}
	if took := negative.FindString(s.log.String()); took != "" {
		t.Errorf("the log has negative times: %s", took)
	}
}
