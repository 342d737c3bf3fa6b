package bmc_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/chassis"
	"github.com/bougou/go-ipmi/pkg/types"
	"github.com/bougou/go-ipmi/pkg/vmproto"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

var machineUUID = uuid.MustParse("01234567-89ab-4cde-8123-456789abcdef")

func start(t *testing.T) (*bmc.BMC, *bmc.Memory) {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	m := &bmc.Memory{}
	b, err := bmc.Start(conn, bmc.Config{
		Name: t.Name(), UUID: machineUUID, User: "admin", Password: "secret", Machine: m,
		MAC: net.HardwareAddr{2, 0, 0, 1, 2, 3}, Prefix: netip.MustParsePrefix("192.0.2.7/20"),
		Gateway: netip.MustParseAddr("192.0.0.1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b, m
}

func connect(t *testing.T, b *bmc.BMC) *client.Client {
	t.Helper()
	c, err := client.NewClient("127.0.0.1", int(b.Addr().Port()), "admin", "secret")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// ipmitool runs the real tool, an implementation that shares nothing with ours. It may wait long for an answer: what is
// lost nowhere and sent twice would be done twice.
func ipmitool(t *testing.T, b *bmc.BMC, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("ipmitool")
	if err != nil {
		t.Fatal("ipmitool is not installed: apt-get install ipmitool")
	}
	all := append([]string{"-I", "lanplus", "-H", "127.0.0.1", "-p", strconv.Itoa(int(b.Addr().Port())), "-U", "admin",
		"-P", "secret", "-N", "20", "-R", "3"}, args...)
	out, err := exec.CommandContext(t.Context(), path, all...).CombinedOutput()
	if err != nil {
		t.Fatalf("ipmitool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestIpmitool(t *testing.T) {
	b, m := start(t)
	wants := func(want string, args ...string) {
		t.Helper()
		if out := ipmitool(t, b, args...); !strings.Contains(out, want) {
			t.Errorf("ipmitool %s = %q, want %q in it", strings.Join(args, " "), out, want)
		}
	}
	wants("Chassis Power is off", "power", "status")
	wants("Set Boot Device to pxe", "chassis", "bootdev", "pxe", "options=efiboot,persistent")
	wants("Force PXE", "chassis", "bootparam", "get", "5")
	wants("Options apply to all future boots", "chassis", "bootparam", "get", "5")
	wants("BIOS EFI boot", "chassis", "bootparam", "get", "5")
	wants("Up/On", "power", "on")
	wants("Chassis Power is on", "power", "status")
	wants("Cycle", "power", "cycle")
	wants("Reset", "power", "reset")
	wants("Set Boot Device to disk", "chassis", "bootdev", "disk")
	wants("Soft", "power", "soft")
	wants("Chassis Power is off", "power", "status")
	wants("Up/On", "power", "on")
	wants("Boot Flag Invalid", "chassis", "bootparam", "get", "5")
	wants(machineUUID.String(), "mc", "guid", "smbios")
	wants("Sent cold reset", "mc", "reset", "cold")

	pxe := bmc.Boot{Device: bmc.PXE, UEFI: true}
	want := []bmc.Boot{pxe, pxe, pxe, {Device: bmc.Disk}}
	if diff := cmp.Diff(want, m.Boots()); diff != "" {
		t.Errorf("starts (-want +got):\n%s", diff)
	}
}

func TestSerialOverLAN(t *testing.T) {
	b, m := start(t)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The console echoes; "~X" at the start of a line ends go-ipmi's session.
	var out screen
	in := &typist{ctx: ctx, lines: []string{"hello, console\r", "~X"}, screen: &out}
	if err := c.SOLActivate(ctx, in, &out, nil); err != nil {
		t.Fatalf("SOLActivate: %v", err)
	}
	if !strings.Contains(out.String(), "hello, console") {
		t.Errorf("console said %q", out.String())
	}
	// It can be had again once it was given back.
	con, err := m.Console()
	if err != nil {
		t.Fatalf("console after SOL: %v", err)
	}
	con.Close()
}

// screen is the output of a console.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// typist types lines, each when the one before is on the screen.
type typist struct {
	ctx    context.Context
	lines  []string
	last   string
	screen *screen
}

func (r *typist) Read(p []byte) (int, error) {
	for len(r.lines) == 0 || !strings.Contains(r.screen.String(), strings.TrimRight(r.last, "\r")) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.ctx.Done(): // the session has ended long ago, or nothing comes back
			return 0, io.EOF
		}
	}
	n := copy(p, r.lines[0])
	r.last, r.lines = r.lines[0], r.lines[1:]
	return n, nil
}

// A guest reads over the system interface where its controller is, with the address it was given.
func TestSystemInterface(t *testing.T) {
	b, m := start(t)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "kcs"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- b.ServeSystemInterface(ln) }()
	guest, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	kcs := vmproto.NewClient(guest, time.Minute)
	// Channel 1, no set and block selectors.
	lan := func(param types.LanConfigParamSelector) []byte {
		t.Helper()
		cc, data, err := kcs.Command(0x0c, 0x02, 1, uint8(param), 0, 0)
		if err != nil || cc != 0 {
			t.Fatalf("Get LAN Configuration Parameters %d: code %#x, %v", param, cc, err)
		}
		return data[1:]
	}
	for _, tt := range []struct {
		param types.LanConfigParamSelector
		want  []byte
	}{
		{types.LanConfigParamSelector_IP, []byte{192, 0, 2, 7}},
		{types.LanConfigParamSelector_SubnetMask, []byte{255, 255, 240, 0}},
		{types.LanConfigParamSelector_DefaultGatewayIP, []byte{192, 0, 0, 1}},
		{types.LanConfigParamSelector_MAC, []byte{2, 0, 0, 1, 2, 3}},
	} {
		if got := lan(tt.param); !bytes.Equal(got, tt.want) {
			t.Errorf("LAN parameter %d = %v, want %v", tt.param, got, tt.want)
		}
	}
	// Both interfaces see one controller.
	if cc, _, err := kcs.Command(0x00, 0x02, 1); err != nil || cc != 0 {
		t.Errorf("Chassis Control: code %#x, %v", cc, err)
	}
	if !m.On() {
		t.Error("machine is off")
	}
	guest.Close()
	b.Close()
	if err := <-served; err != nil {
		t.Errorf("ServeSystemInterface: %v", err)
	}
}

func TestGUIDAndOff(t *testing.T) {
	b, _ := start(t)
	c := connect(t, b)
	g, err := c.GetSystemGUID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, err := types.ParseGUID(g.GUID[:], types.GUIDModeSMBIOS)
	if err != nil || *u != machineUUID {
		t.Errorf("system GUID = %v, %v, want %v", u, err, machineUUID)
	}
	// A machine that is off can't be cycled, reset or shut down.
	for _, control := range []chassis.ChassisControl{chassis.ChassisControlPowerCycle, chassis.ChassisControlHardReset,
		chassis.ChassisControlSoftShutdown} {
		_, err := c.ChassisControl(t.Context(), control)
		if re, ok := types.IsResponseError(err); !ok || re.CompletionCode() != types.CodeNotSupported {
			t.Errorf("chassis control %d of a machine that is off: %v, want code D5h", control, err)
		}
	}
}

func TestWrongPassword(t *testing.T) {
	b, m := start(t)
	c, err := client.NewClient("127.0.0.1", int(b.Addr().Port()), "admin", "terces")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Connect(t.Context()); err == nil {
		t.Error("connected with a wrong password")
	}
	if len(m.Boots()) != 0 {
		t.Error("the machine was started")
	}
}
