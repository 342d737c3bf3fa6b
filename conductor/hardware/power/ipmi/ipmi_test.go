package ipmi

import (
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/powertest"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

var machineUUID = uuid.MustParse("6fe1a2b3-c4d5-4e6f-8091-a2b3c4d5e6f7")

// controller starts a virtual BMC on loopback with a machine that is only a power state.
func controller(t *testing.T, change ...func(*bmc.Config)) (*bmc.BMC, *bmc.Memory, power.Info) {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	m := &bmc.Memory{}
	cfg := bmc.Config{Name: t.Name(), UUID: machineUUID, User: "admin", Password: "secret", Machine: m}
	for _, c := range change {
		c(&cfg)
	}
	b, err := bmc.Start(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, m, power.Info{
		"ipmi_address": "127.0.0.1", "ipmi_port": float64(b.Addr().Port()), "ipmi_username": "admin",
		"ipmi_password": "secret",
	}
}

func open(t *testing.T, info power.Info) power.Driver {
	t.Helper()
	d, err := Open(info, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestMain lets more tests run at a time than there are processors: they wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // there is no such flag
	}
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) {
	powertest.Run(t, func(t *testing.T) powertest.Subject {
		_, _, info := controller(t)
		return powertest.Subject{
			Packets: true,
			GUID:    machineUUID.String(),
			Open: func(t *testing.T) power.Driver {
				d, err := Open(info, nil)
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
		}
	})
}

// atOnce fails the test if f waits for a timeout, the first of which is a second, each time that it runs: the machine
// may be slow once.
func atOnce(t *testing.T, f func()) {
	t.Helper()
	var took []time.Duration
	for range 3 {
		begun := time.Now()
		f()
		if took = append(took, time.Since(begun)); took[len(took)-1] < time.Second {
			return
		}
	}
	t.Errorf("took %v: after a timeout?", took)
}

func TestCipherSuites(t *testing.T) {
	tests := []struct {
		name  string
		has   []int
		wants string
		kind  power.Kind
	}{
		{"both", []int{3, 17}, "", ""},
		{"only 3", []int{3}, "", ""},
		{"only 17", []int{17}, "", ""},
		{"insist on 3", []int{3, 17}, "3", ""},
		{"insist on 17", []int{3, 17}, "17", ""},
		{"insist on what it lacks", []int{3}, "17", power.Refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, info := controller(t, func(c *bmc.Config) { c.CipherSuites = tt.has })
			if tt.wants != "" {
				info["ipmi_cipher_suite"] = tt.wants
			}
			// Falling back on an answer costs a packet, not a timeout.
			atOnce(t, func() {
				got, err := open(t, info).Power(t.Context())
				if power.KindOf(err) != tt.kind || (err == nil && got != power.Off) {
					t.Errorf("Power = %q, %v, want kind %q", got, err, tt.kind)
				}
			})
		})
	}
}

func TestWrongCredentials(t *testing.T) {
	for name, change := range map[string]power.Info{
		"password": {"ipmi_password": "wrong"},
		"user":     {"ipmi_username": "unknown"},
	} {
		for _, suite := range []string{"", "3"} {
			t.Run(name+suite, func(t *testing.T) {
				_, _, info := controller(t)
				for k, v := range change {
					info[k] = v
				}
				info["ipmi_cipher_suite"] = suite
				var err error
				atOnce(t, func() {
					if _, err = open(t, info).Power(t.Context()); power.KindOf(err) != power.Auth {
						t.Fatalf("Power: %v, want kind %q", err, power.Auth)
					}
				})
				for _, want := range []string{"read power state at 127.0.0.1:", "wrong user name or password",
					"check ipmi_username and ipmi_password"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q lacks %q", err, want)
					}
				}
				if power.Retryable(err) {
					t.Error("a wrong password is said to be worth another try")
				}
			})
		}
	}
}

func TestSilent(t *testing.T) {
	t.Parallel()
	b, _, info := controller(t)
	b.SetFaults(bmc.Faults{Silent: true})
	d := open(t, info)

	start := time.Now()
	_, err := d.Power(t.Context())
	took := time.Since(start)
	if power.KindOf(err) != power.Unreachable || !strings.Contains(err.Error(), "no answer") || !power.Retryable(err) {
		t.Errorf("Power: %v, want no answer of kind %q", err, power.Unreachable)
	}
	if took < 5*time.Second || took > time.Minute {
		t.Errorf("gave up after %s", took)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start = time.Now()
	_, err = d.Power(ctx)
	if power.KindOf(err) != power.Unreachable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Power with a deadline: %v, want kind %q and DeadlineExceeded", err, power.Unreachable)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("a deadline of 300 ms took %s", took)
	}

	b.SetFaults(bmc.Faults{})
	if got, err := d.Power(t.Context()); got != power.Off || err != nil {
		t.Errorf("Power of the healed controller = %q, %v", got, err)
	}
}

func TestNothingListens(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	port := conn.LocalAddr().(*net.UDPAddr).Port
	conn.Close()
	_, err = open(t, power.Info{"ipmi_address": "127.0.0.1", "ipmi_port": port}).Power(t.Context())
	if power.KindOf(err) != power.Unreachable || !strings.Contains(err.Error(), "nothing listens") {
		t.Errorf("Power: %v, want nothing listens", err)
	}
}

func TestNoSuchHost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := open(t, power.Info{"ipmi_address": "bmc.invalid"}).Power(ctx)
	if power.KindOf(err) != power.Unreachable {
		t.Errorf("Power: %v, want kind %q", err, power.Unreachable)
	}
}

// TestCommands: interrupts, restarts of the controller and raw commands reach it, each once, and what it declines is an
// error that does not repeat what was sent.
func TestCommands(t *testing.T) {
	t.Parallel()
	b, m, info := controller(t)
	d, ok := power.As[power.Commander](power.Checked(open(t, info), func() error { return nil }, nil))
	if !ok {
		t.Fatal("the driver takes no commands")
	}
	if err := d.InjectNMI(t.Context()); power.KindOf(err) != power.Refused {
		t.Errorf("interrupt of a machine that is off: %v", err)
	}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if err := d.InjectNMI(t.Context()); err != nil || m.NMIs() != 1 {
		t.Errorf("interrupt: %v, %d came", err, m.NMIs())
	}
	boots := len(m.Boots())
	for _, warm := range []bool{true, false} {
		if err := d.ResetController(t.Context(), warm); err != nil {
			t.Error(err)
		}
	}
	if got := b.Restarts(); !slices.Equal(got, []string{"warm", "cold"}) || !m.On() || len(m.Boots()) != boots {
		t.Errorf("restarts of the controller: %v, and of the machine: %d", got, len(m.Boots())-boots)
	}
	if err := d.Raw(t.Context(), 0x00, 0x02, []byte{0x00}); err != nil || m.On() { // chassis control: power down
		t.Errorf("raw command: %v; the machine is on: %v", err, m.On())
	}
	err := d.Raw(t.Context(), 0x30, 0x71, []byte("passw0rd"))
	if power.KindOf(err) != power.Unsupported || strings.Contains(err.Error(), "passw0rd") ||
		strings.Contains(strings.ToLower(err.Error()), "70617373") {
		t.Errorf("a command that it does not know: %v", err)
	}
}

// TestRestartWithoutAnAnswer: a controller that is silent after it was told to restart does that; one that could not
// be told does not.
func TestRestartWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b, _, info := controller(t)
	d, _ := power.As[power.Commander](open(t, info))
	if _, err := d.(power.Driver).Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetFaults(bmc.Faults{Silent: true})
	if err := d.ResetController(t.Context(), false); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.ResetController(ctx, false); power.KindOf(err) != power.Unreachable {
		t.Errorf("a controller without a session: %v", err)
	}
}

// A controller that takes longer than the first timeout is slow, not dead, and its late answers are not taken for a
// wrong password.
func TestSlow(t *testing.T) {
	t.Parallel()
	b, _, info := controller(t)
	b.SetFaults(bmc.Faults{Delay: 1300 * time.Millisecond})
	d := open(t, info)
	if got, err := d.Power(t.Context()); got != power.Off || err != nil {
		t.Errorf("Power = %q, %v", got, err)
	}
	b.SetFaults(bmc.Faults{})
}

func TestBusy(t *testing.T) {
	t.Parallel()
	b, m, info := controller(t)
	b.SetFaults(bmc.Faults{Busy: true})
	d := open(t, info)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := d.SetPower(ctx, power.TurnOn)
	if power.KindOf(err) != power.Busy {
		t.Errorf("SetPower: %v, want kind %q", err, power.Busy)
	}
	time.AfterFunc(500*time.Millisecond, func() { b.SetFaults(bmc.Faults{}) })
	if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
		t.Errorf("SetPower while the controller becomes free: %v", err)
	}
	if !m.On() {
		t.Error("machine is off")
	}
}

// A controller that forgot the session (it was restarted) is asked in a new one, but is not told twice to cut the
// power.
func TestLostSession(t *testing.T) {
	t.Parallel()
	b, m, info := controller(t)
	d := open(t, info)
	if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
		t.Fatal(err)
	}
	addr := net.UDPAddrFromAddrPort(b.Addr())
	restart := func() {
		t.Helper()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		conn, err := net.ListenUDP("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		b, err = bmc.Start(conn,
			bmc.Config{Name: "restarted", UUID: machineUUID, User: "admin", Password: "secret", Machine: m})
		if err != nil {
			t.Fatal(err)
		}
	}
	restart()
	t.Cleanup(func() { b.Close() })
	if got, err := d.Power(t.Context()); got != power.On || err != nil {
		t.Errorf("Power after the controller restarted = %q, %v", got, err)
	}
	restart()
	starts := len(m.Boots())
	err := d.SetPower(t.Context(), power.Cycle)
	if power.KindOf(err) != power.Unreachable {
		t.Errorf("Cycle in a forgotten session: %v, want kind %q", err, power.Unreachable)
	}
	if got := len(m.Boots()); got != starts {
		t.Errorf("the machine was started %d times more", got-starts)
	}
}

func TestBootFlagsAreVerified(t *testing.T) {
	b, _, info := controller(t)
	d := open(t, info)
	if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootDisk, Persistent: true}); err != nil {
		t.Fatal(err)
	}
	b.SetFaults(bmc.Faults{ForgetBoot: true})
	err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE})
	if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), `reports "disk"`) {
		t.Errorf("SetBoot: %v, want that the controller reports disk", err)
	}
}

func TestStaysOff(t *testing.T) {
	b, _, info := controller(t)
	b.SetFaults(bmc.Faults{StayOff: true})
	d := open(t, info)
	// SetPower only asks: a controller that lies is found out by polling.
	if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Power(t.Context()); got != power.Off || err != nil {
		t.Errorf("Power = %q, %v, want %q", got, err, power.Off)
	}
}

func TestNoGoroutinesLeft(t *testing.T) {
	b, _, info := controller(t)
	if _, err := open(t, info).Power(t.Context()); err != nil { // the server has started all of its own now
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for i := range 5 {
		d := open(t, info)
		if _, err := d.Power(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			b.SetFaults(bmc.Faults{Silent: true})
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := d.Power(ctx); err == nil {
				t.Error("a silent controller answered")
			}
			cancel()
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	end := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before && time.Now().Before(end) {
		time.Sleep(20 * time.Millisecond)
	}
	if got := runtime.NumGoroutine(); got > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before:\n%s", got, before, buf[:runtime.Stack(buf, true)])
	}
}

func TestGUIDs(t *testing.T) {
	raw := [16]byte{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	want := []string{
		"33221100-5544-7766-8899-aabbccddeeff",
		"00112233-4455-6677-8899-aabbccddeeff",
		"ffeeddcc-bbaa-9988-6677-445500112233",
		"ccddeeff-aabb-8899-6677-445500112233",
	}
	if got := guids(raw); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("guids = %v, want %v", got, want)
	}
	if got := guids([16]byte{}); got != nil {
		t.Errorf("guids of zeros = %v", got)
	}
	if got := guids([16]byte([]byte(strings.Repeat("\xff", 16)))); got != nil {
		t.Errorf("guids of ones = %v", got)
	}
}
