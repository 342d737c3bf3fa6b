package lab_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// tinyGuest is a boot sector: it says HELLO from a place on the serial port, echoes what it reads there, turns the
// machine off at 'o' or at the power button, and resets it at 'r'. It starts as fast as the firmware.
func tinyGuest(place string) []byte {
	const (
		off   = 59
		hang  = 66
		reset = 69
		msg   = 77
	)
	code := []byte{
		0xfa,       // cli
		0x31, 0xc0, // xor ax, ax
		0x8e, 0xd8, // mov ds, ax
		0xfc,             // cld
		0xba, 0x02, 0x06, // mov dx, 0x602: PM1 enable of the ICH9
		0xb8, 0x00, 0x01, // mov ax, 0x100: power button
		0xef,                                    // out dx, ax
		0xbe, byte((0x7c00 + msg) & 0xff), 0x7c, // mov si, msg
		0xac,       // 16: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x06, // jz 27
		0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xee,       // out dx, al
		0xeb, 0xf5, // jmp 16
		0xba, 0x00, 0x06, // 27: mov dx, 0x600: PM1 status
		0xed,             // in ax, dx
		0xf6, 0xc4, 0x01, // test ah, 1
		0x75, off - 36, // jnz off
		0xba, 0xfd, 0x03, // mov dx, 0x3fd: line status
		0xec,       // in al, dx
		0xa8, 0x01, // test al, 1
		0x74, 0xef, // jz 27
		0xba, 0xf8, 0x03, // mov dx, 0x3f8
		0xec,      // in al, dx
		0x3c, 'o', // cmp al, 'o'
		0x74, off - 52, // je off
		0x3c, 'r', // cmp al, 'r'
		0x74, reset - 56, // je reset
		0xee,       // out dx, al
		0xeb, 0xe0, // jmp 27
		0xba, 0x04, 0x06, // off: mov dx, 0x604: PM1 control
		0xb8, 0x00, 0x20, // mov ax, 0x2000: S5
		0xef,       // out dx, ax
		0xf4,       // hang: hlt
		0xeb, 0xfd, // jmp hang
		0xba, 0xf9, 0x0c, // reset: mov dx, 0xcf9
		0xb0, 0x06, // mov al, 6
		0xee,       // out dx, al
		0xeb, 0xf5, // jmp hang
	}
	sector := make([]byte, 512)
	copy(sector, code)
	copy(sector[len(code):], "HELLO from the "+place+"\r\n\x00")
	binary.LittleEndian.PutUint16(sector[510:], 0xaa55)
	if len(code) != msg || code[hang] != 0xf4 {
		panic("the boot sector's offsets are wrong")
	}
	return sector
}

var serial atomic.Int32

func name(t *testing.T) string {
	return fmt.Sprintf("t%d-%d", os.Getpid(), serial.Add(1))
}

func needs(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "ip", "qemu-system-x86_64")
}

// up starts a lab with one machine that has tinyGuest on its first disk.
func up(t *testing.T, change ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	needs(t)
	dir := t.TempDir()
	disk := filepath.Join(dir, "tiny.raw")
	if err := os.WriteFile(disk, tinyGuest("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := lab.Options{
		Name: name(t), Dir: dir,
		Log: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Nodes: []lab.NodeSpec{
			{MemoryMiB: 64, Disks: []lab.DiskSpec{{File: disk, SizeBytes: 1 << 20},
				{Bus: "nvme", SizeBytes: 64 << 20, WWN: "0123456789abcdef"},
				{Bus: "sata", SizeBytes: 64 << 20, WWN: "5000c50015ea71ac"}}}},
	}
	for _, c := range change {
		c(&o)
	}
	l, err := lab.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Errorf("Down: %v", err)
		}
		if t.Failed() {
			for _, m := range l.Nodes() {
				log, _ := os.ReadFile(m.ConsoleLog)
				t.Logf("console of %s:\n%s", m.Spec.Name, log)
			}
		}
	})
	return l
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// ipmi connects to a machine's controller from inside the lab.
func ipmi(t *testing.T, l *lab.Lab, m *lab.Machine) *client.Client {
	t.Helper()
	c, err := client.NewClient(m.BMCAddress, m.BMCPort, m.User, m.Password)
	if err != nil {
		t.Fatal(err)
	}
	c.WithUDPProxy(dialer{t, l})
	if err := c.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func isOn(t *testing.T, c *client.Client) bool {
	t.Helper()
	s, err := c.GetChassisStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.PowerIsOn
}

func control(t *testing.T, c *client.Client, what chassis.ChassisControl) {
	t.Helper()
	if _, err := c.ChassisControl(t.Context(), what); err != nil {
		t.Fatalf("chassis control %d: %v", what, err)
	}
}

// The main test: a machine is turned on and off over IPMI, and what happens inside it shows at the controller.
func TestMachine(t *testing.T) {
	l := up(t)
	m := l.Nodes()[0]
	c := ipmi(t, l, m)
	ctx := limit(t)
	if isOn(t, c) {
		t.Fatal("a new machine is on")
	}
	says := func(from int64, text string) {
		t.Helper()
		if err := m.WaitConsole(ctx, from, text); err != nil {
			t.Fatal(err)
		}
	}
	goesOff := func() {
		t.Helper()
		if err := m.WaitOff(ctx); err != nil {
			t.Fatal(err)
		}
		if isOn(t, c) {
			t.Error("the controller says that the machine is on")
		}
	}

	control(t, c, chassis.ChassisControlPowerUp)
	says(0, "HELLO from the disk")
	if !isOn(t, c) {
		t.Error("the controller says that the machine is off")
	}

	for _, restart := range []chassis.ChassisControl{chassis.ChassisControlPowerCycle,
		chassis.ChassisControlHardReset} {
		from, pid := m.ConsoleSize(), m.PID()
		control(t, c, restart)
		says(from, "HELLO from the disk")
		if m.PID() == pid || !isOn(t, c) {
			t.Errorf("chassis control %d did not restart the machine", restart)
		}
	}

	t.Log("the machine resets itself, and the boot flags of that moment count")
	if err := c.SetBootDevice(ctx, types.BootDeviceSelectorForcePXE, types.BIOSBootTypeLegacy, false); err != nil {
		t.Fatal(err)
	}
	a := m.Attach()
	defer a.Close()
	from := m.ConsoleSize()
	if _, err := a.Write([]byte("r")); err != nil {
		t.Fatal(err)
	}
	says(from, "reset by the machine, firmware bios, boot pxe")
	says(from, "iPXE")
	if !isOn(t, c) {
		t.Error("off after a reset from inside")
	}
	from = m.ConsoleSize()
	control(t, c, chassis.ChassisControlHardReset)
	says(from, "reset, firmware bios, boot default") // the flag was for one boot
	says(from, "HELLO from the disk")

	t.Log("the machine goes off by itself")
	if _, err := a.Write([]byte("o")); err != nil {
		t.Fatal(err)
	}
	goesOff()

	t.Log("soft off presses the button")
	from = m.ConsoleSize()
	control(t, c, chassis.ChassisControlPowerUp)
	says(from, "HELLO from the disk")
	control(t, c, chassis.ChassisControlSoftShutdown)
	goesOff()

	t.Log("hard off")
	control(t, c, chassis.ChassisControlPowerUp)
	control(t, c, chassis.ChassisControlPowerDown)
	goesOff()

	t.Log("the plug is pulled and put back")
	from = m.ConsoleSize()
	control(t, c, chassis.ChassisControlPowerUp)
	says(from, "HELLO from the disk")
	if err := m.PullPlug(); err != nil {
		t.Fatal(err)
	}
	if m.On() {
		t.Error("on without power")
	}
	quiet, err := client.NewClient(m.BMCAddress, m.BMCPort, m.User, m.Password)
	if err != nil {
		t.Fatal(err)
	}
	quiet.WithUDPProxy(dialer{t, l}).WithTimeout(300 * time.Millisecond).WithRetry(0).WithCipherSuiteID(
		types.CipherSuiteID3)
	if err := quiet.Connect(ctx); err == nil {
		t.Error("the controller answers without power")
	}
	m.PlugIn()
	if isOn(t, c) {
		t.Error("on when the power came back")
	}
	control(t, c, chassis.ChassisControlPowerUp)
	if !isOn(t, c) {
		t.Error("off after power on")
	}
}

// redfishOf returns a client of a machine's Redfish service, which fails the test unless the answer has the wanted
// status.
func redfishOf(t *testing.T, l *lab.Lab, m *lab.Machine) func(want int, method, path, body string) string {
	t.Helper()
	pem, err := os.ReadFile(m.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	web := &http.Client{Transport: &http.Transport{DialContext: l.DialContext,
		TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(web.CloseIdleConnections)
	return func(want int, method, path, body string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+m.BMCAddress+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth(m.User, m.Password)
		resp, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s %s = %d %s, %v", method, path, resp.StatusCode, b, err)
		}
		return string(b)
	}
}

// A machine is controlled over Redfish and over IPMI at the same time.
func TestRedfish(t *testing.T) {
	l := up(t, func(o *lab.Options) { o.BMC, o.Personality = lab.Both, "dell-idrac9" })
	m := l.Nodes()[0]
	const system = "/redfish/v1/Systems/System.Embedded.1"
	ask := redfishOf(t, l, m)
	ask(204, "PATCH", system, `{"Boot":{"BootSourceOverrideTarget":"Hdd","BootSourceOverrideEnabled":"Once"}}`)
	ask(204, "POST", system+"/Actions/ComputerSystem.Reset", `{"ResetType":"On"}`)
	if err := m.WaitConsole(limit(t), 0, "HELLO from the disk"); err != nil {
		t.Fatal(err)
	}
	if out := ask(200, "GET", system, ""); !strings.Contains(out, `"PowerState":"On"`) ||
		!strings.Contains(out, `"BootSourceOverrideEnabled":"Disabled"`) {
		t.Errorf("the system after its start: %s", out)
	}
	ask(204, "POST", system+"/Actions/ComputerSystem.Reset", `{"ResetType":"Nmi"}`)
	if status, err := ipmi(t, l, m).GetChassisStatus(t.Context()); err != nil || !status.PowerIsOn {
		t.Errorf("IPMI: %v, %v", status, err)
	}
	if _, err := ipmi(t, l, m).ChassisControl(t.Context(), chassis.ChassisControlDiagnosticInterrupt); err != nil {
		t.Errorf("NMI over IPMI: %v", err)
	}
	if out := ask(200, "GET", system+"/EthernetInterfaces/1", ""); !strings.Contains(out, m.MAC) {
		t.Errorf("the network card: %s", out)
	}
	ask(204, "POST", system+"/Actions/ComputerSystem.Reset", `{"ResetType":"ForceOff"}`)
	if m.On() {
		t.Error("the machine is on")
	}
}

func TestUEFI(t *testing.T) {
	kit.NeedFiles(t, "ovmf", "/usr/share/OVMF/OVMF_CODE_4M.fd")
	l := up(t, func(o *lab.Options) { o.Nodes[0].MemoryMiB = 160 })
	m := l.Nodes()[0]
	c := ipmi(t, l, m)
	// The EFI bit starts UEFI, which boots no boot sector.
	if err := c.SetBootDevice(t.Context(), types.BootDeviceSelectorForcePXE, types.BIOSBootTypeEFI, true); err != nil {
		t.Fatal(err)
	}
	control(t, c, chassis.ChassisControlPowerUp)
	if err := m.WaitConsole(limit(t), 0, "BdsDxe"); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(m.ConsoleLog)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "firmware uefi, boot pxe") {
		t.Errorf("console: %s", log)
	}
}

// Serial over LAN with ipmitool, which shares no code with the controller.
func TestSerialOverLAN(t *testing.T) {
	kit.NeedPrograms(t, "ipmitool")
	l := up(t)
	m := l.Nodes()[0]
	ctx := limit(t)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitConsole(ctx, 0, "HELLO from the disk"); err != nil {
		t.Fatal(err)
	}
	// ipmitool wants a terminal: script gives it one.
	kit.NeedPrograms(t, "script")
	solCtx, end := context.WithCancel(ctx)
	sol := l.Command(solCtx, "script", "-qec",
		fmt.Sprintf("ipmitool -I lanplus -H %s -U %s -P %s sol activate", m.BMCAddress, m.User, m.Password),
		"/dev/null")
	in, err := sol.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	sol.Stdout, sol.Stderr = &out, &out
	if err := sol.Start(); err != nil {
		t.Fatal(err)
	}
	defer sol.Wait()
	defer end()
	from := m.ConsoleSize()
	for m.WaitConsole(timeout(t, ctx, time.Second), from, "typed") != nil { // until the session is up
		if ctx.Err() != nil {
			t.Fatalf("nothing that was typed came back; ipmitool said %q", out.String())
		}
		fmt.Fprint(in, "typed")
	}
	if _, err := in.Write([]byte("o")); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitOff(ctx); err != nil {
		t.Error(err)
	}
}

func timeout(t *testing.T, ctx context.Context, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(ctx, d)
	t.Cleanup(cancel)
	return ctx
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestDownLeavesNothing(t *testing.T) {
	l := up(t, func(o *lab.Options) { o.Nodes = append(o.Nodes, lab.NodeSpec{MemoryMiB: 64}) })
	var pids []int
	for _, m := range l.Nodes() {
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, m.PID())
	}
	if _, err := lab.Up(t.Context(), lab.Options{Name: l.Name, Dir: t.TempDir()}); err == nil ||
		!strings.Contains(err.Error(), "is up already") {
		t.Errorf("second Up of the same name: %v", err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if exists(fmt.Sprintf("/proc/%d", pid)) {
			t.Errorf("process %d is left", pid)
		}
	}
	for _, p := range []string{"/run/netns/" + l.Namespace, "/run/ingot-lab/" + l.Name} {
		if exists(p) {
			t.Errorf("%s is left", p)
		}
	}
	if out, err := exec.Command("ip", "netns", "list").Output(); err != nil ||
		strings.Contains(string(out), l.Namespace) {
		t.Errorf("ip netns list: %v: %s", err, out)
	}
	if err := l.Purge(); err != nil {
		t.Error(err)
	}
	if !exists(l.Nodes()[0].DiskFile(0)) || exists(l.Nodes()[1].ConsoleLog) {
		t.Error("Purge removes what the lab made and nothing else")
	}
}

// A program that runs a lab and is killed leaves no machine behind, and the next Up of any lab removes the rest.
func TestLeftovers(t *testing.T) {
	needs(t)
	n := name(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-test.run=^TestHelperProcess$")
	child.Env = append(os.Environ(), "LAB_TEST_CHILD="+n, "LAB_TEST_DIR="+t.TempDir())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "machine %d\n", &pid); err != nil {
		child.Process.Kill()
		t.Fatalf("the child did not start its machine: %v", err)
	}
	if !exists(fmt.Sprintf("/proc/%d", pid)) || !exists("/run/netns/ingot-"+n) {
		t.Error("no machine, or no network")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait()
	kit.Eventually(t, time.Minute, "the machine's end", func() bool { return !exists(fmt.Sprintf("/proc/%d", pid)) })
	up(t)
	// The lab of another test that came up in this moment may be at it, and then ours leaves it to that one.
	kit.Eventually(t, time.Minute, "the leftovers are removed",
		func() bool { return !exists("/run/netns/ingot-"+n) && !exists("/run/ingot-lab/"+n) })
}

// TestHelperProcess is the program that TestLeftovers kills.
func TestHelperProcess(t *testing.T) {
	n := os.Getenv("LAB_TEST_CHILD")
	if n == "" {
		return
	}
	l, err := lab.Up(t.Context(),
		lab.Options{Name: n, Dir: os.Getenv("LAB_TEST_DIR"), Nodes: []lab.NodeSpec{{MemoryMiB: 64}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Nodes()[0].Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("machine %d\n", l.Nodes()[0].PID())
	select {}
}

// QEMU's own words about why it does not start are in the lab's status, in its log and on the machine's console; IPMI
// can only say that it can't be done.
func TestQEMUSaysWhy(t *testing.T) {
	l := up(t)
	m := l.Nodes()[0]
	c := ipmi(t, l, m)
	hidden := m.DiskFile(0) + ".away"
	if err := os.Rename(m.DiskFile(0), hidden); err != nil {
		t.Fatal(err)
	}
	_, err := c.ChassisControl(t.Context(), chassis.ChassisControlPowerUp)
	if err == nil || !strings.Contains(err.Error(), "not supported in present state") {
		t.Errorf("power on by IPMI = %v, want D5h", err)
	}
	console, _ := os.ReadFile(m.ConsoleLog)
	for where, text := range map[string]string{"error": errText(m.Start()), "status": l.Status().Nodes[0].Failure,
		"console": string(console)} {
		if !strings.Contains(text, "QEMU does not start (exit status 1)") ||
			!strings.Contains(text, "No such file or directory") {
			t.Errorf("%s = %q, want QEMU's words", where, text)
		}
	}
	if err := os.Rename(hidden, m.DiskFile(0)); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(); err != nil || m.Failure() != "" {
		t.Errorf("start with all files there = %v; failure %q", err, m.Failure())
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
