// Package powertest is the suite that every power driver passes.
//
// A driver's test calls Run with a function that makes a Subject: a driver for a machine of its own that is off. What a
// driver can't do is said in the Subject, and then the suite checks that it declines with an error of kind Unsupported.
package powertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Subject is a driver under test and the properties of its machine.
type Subject struct {
	// Open makes another driver for the same machine.
	Open func(t *testing.T) power.Driver
	// NoPower and NoBoot say that the driver has neither power actions nor boot devices.
	NoPower, NoBoot bool
	// Packets says that each call sends several packets or requests.
	Packets bool
	// Limit is how long an action may take to show; 0 is a minute.
	Limit time.Duration
	// GUID is an identity that SystemGUIDs must contain; "" if there is none.
	GUID string
}

// Run runs the suite. make is called once per test.
func Run(t *testing.T, make func(t *testing.T) Subject) {
	tests := []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"Power", testPower},
		{"PowerTwice", testPowerTwice},
		{"CycleOff", testCycleOff},
		{"UnknownAction", testUnknownAction},
		{"BootRoundTrip", testBootRoundTrip},
		{"BootOnce", testBootOnce},
		{"BootMode", testBootMode},
		{"UnknownDevice", testUnknownDevice},
		{"GUIDs", testGUIDs},
		{"Reopen", testReopen},
		{"Canceled", testCanceled},
		{"Concurrent", testConcurrent},
		{"Checked", testChecked},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := make(t)
			s.Limit = cmp.Or(s.Limit, time.Minute)
			tt.run(t, s)
		})
	}
}

func (s Subject) open(t *testing.T) power.Driver {
	t.Helper()
	d := s.Open(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if d.Key() == "" {
		t.Error("Key is empty")
	}
	return d
}

// act requests an action and checks that a driver without power declines.
func (s Subject) act(t *testing.T, d power.Driver, a power.Action) {
	t.Helper()
	err := d.SetPower(t.Context(), a)
	if s.NoPower {
		wantKind(t, err, power.Unsupported)
		return
	}
	if err != nil {
		t.Fatalf("SetPower(%s): %v", a, err)
	}
}

// reach polls until the machine is in the state; controllers take orders before they carry them out.
func (s Subject) reach(t *testing.T, d power.Driver, want power.State) {
	t.Helper()
	if s.NoPower {
		want = power.Unknown
	}
	end := time.Now().Add(s.Limit)
	for {
		got, err := d.Power(t.Context())
		if err != nil {
			t.Fatalf("Power: %v", err)
		}
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Power = %q after %s, want %q", got, s.Limit, want)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// setBoot chooses what the machine boots from, boot reads it.
func setBoot(t *testing.T, d power.Driver, b power.Boot) {
	t.Helper()
	if err := d.SetBoot(t.Context(), b); err != nil {
		t.Fatalf("SetBoot(%+v): %v", b, err)
	}
}

func boot(t *testing.T, d power.Driver) power.Boot {
	t.Helper()
	b, err := d.Boot(t.Context())
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	return b
}

func wantKind(t *testing.T, err error, kinds ...power.Kind) {
	t.Helper()
	if err == nil || !slices.Contains(kinds, power.KindOf(err)) {
		t.Fatalf("error of kind %q, want %v: %v", power.KindOf(err), kinds, err)
	}
}

func testPower(t *testing.T, s Subject) {
	d := s.open(t)
	s.reach(t, d, power.Off)
	for _, step := range []struct {
		do   power.Action
		want power.State
	}{
		{power.TurnOn, power.On}, {power.Cycle, power.On}, {power.Reset, power.On}, {power.TurnOff, power.Off},
		{power.TurnOn, power.On}, {power.SoftOff, power.Off},
	} {
		s.act(t, d, step.do)
		s.reach(t, d, step.want)
	}
}

func testPowerTwice(t *testing.T, s Subject) {
	d := s.open(t)
	for _, a := range []power.Action{power.TurnOff, power.TurnOn, power.TurnOn, power.TurnOff, power.TurnOff} {
		s.act(t, d, a)
		s.reach(t, d, map[bool]power.State{true: power.On, false: power.Off}[a == power.TurnOn])
	}
}

// A machine that is off can't be cycled: the driver says so, rather than let the engine wait.
func testCycleOff(t *testing.T, s Subject) {
	d := s.open(t)
	for _, a := range []power.Action{power.Cycle, power.Reset} {
		wantKind(t, d.SetPower(t.Context(), a), power.Refused, power.Unsupported)
	}
	s.reach(t, d, power.Off)
}

func testUnknownAction(t *testing.T, s Subject) {
	wantKind(t, s.open(t).SetPower(t.Context(), "explode"), power.Unsupported)
}

func testBootRoundTrip(t *testing.T, s Subject) {
	d := s.open(t)
	if s.NoBoot {
		if got := d.Devices(); len(got) != 0 {
			t.Errorf("Devices = %v, want none", got)
		}
		wantKind(t, d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}), power.Unsupported)
		_, err := d.Boot(t.Context())
		wantKind(t, err, power.Unsupported)
		return
	}
	for _, dev := range d.Devices() {
		for _, persistent := range []bool{false, true} {
			for _, mode := range []string{"bios", "uefi"} {
				want := power.Boot{Device: dev, Persistent: persistent, Mode: mode}
				setBoot(t, d, want)
				if got := boot(t, d); got != want {
					t.Errorf("Boot = %+v, want %+v", got, want)
				}
			}
		}
	}
}

// A choice for one boot is gone after it, a persistent one stays.
func testBootOnce(t *testing.T, s Subject) {
	if s.NoBoot || s.NoPower {
		return
	}
	d := s.open(t)
	for _, persistent := range []bool{false, true} {
		setBoot(t, d, power.Boot{Device: power.BootPXE, Persistent: persistent, Mode: "bios"})
		s.act(t, d, power.TurnOff)
		s.reach(t, d, power.Off)
		s.act(t, d, power.TurnOn)
		s.reach(t, d, power.On)
		got := boot(t, d).Device
		want := power.BootNone
		if persistent {
			want = power.BootPXE
		}
		if got != want {
			t.Errorf("persistent %v: boot device after a start = %q, want %q", persistent, got, want)
		}
	}
}

// Mode "" leaves the mode alone.
func testBootMode(t *testing.T, s Subject) {
	if s.NoBoot {
		return
	}
	d := s.open(t)
	setBoot(t, d, power.Boot{Device: power.BootPXE, Persistent: true, Mode: "uefi"})
	setBoot(t, d, power.Boot{Device: power.BootDisk, Persistent: true})
	want := power.Boot{Device: power.BootDisk, Persistent: true, Mode: "uefi"}
	if got := boot(t, d); got != want {
		t.Errorf("Boot = %+v, want %+v", got, want)
	}
}

func testUnknownDevice(t *testing.T, s Subject) {
	wantKind(t, s.open(t).SetBoot(t.Context(), power.Boot{Device: "floppy tower"}), power.Unsupported)
}

func testGUIDs(t *testing.T, s Subject) {
	got, err := s.open(t).SystemGUIDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := s.GUID == ""
	for _, g := range got {
		if g != strings.ToLower(g) || len(g) != 36 {
			t.Errorf("GUID %q is not in lower case with dashes", g)
		}
		found = found || g == s.GUID
	}
	if !found {
		t.Errorf("SystemGUIDs = %v, want %s among them", got, s.GUID)
	}
}

// The machine outlives its drivers.
func testReopen(t *testing.T, s Subject) {
	d := s.Open(t)
	s.act(t, d, power.TurnOn)
	s.reach(t, d, power.On)
	key := d.Key()
	if err := d.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	d = s.open(t)
	if d.Key() != key {
		t.Errorf("Key = %q, want %q as before", d.Key(), key)
	}
	s.reach(t, d, power.On)
}

func testCanceled(t *testing.T, s Subject) {
	d := s.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	if _, err := d.Power(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Power with a canceled context: %v, want context.Canceled", err)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("Power with a canceled context took %s", took)
	}
	s.reach(t, d, power.Off) // and the driver still works
}

// Two drivers of one machine at once: the engine avoids it, an operator with ipmitool does not.
func testConcurrent(t *testing.T, s Subject) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 4 {
		d := s.open(t)
		wg.Go(func() {
			for range 5 {
				if _, err := d.Power(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// testChecked: a call during which the right to act ends sends nothing more, and says why. How many packets are checked
// shows that it is each.
func testChecked(t *testing.T, s Subject) {
	if !s.Packets {
		return
	}
	errEnded := errors.New("the right to act has ended")
	for most := 1; ; most++ {
		asked := 0
		d := power.Checked(s.open(t), func() error {
			if asked++; asked > most {
				return errEnded
			}
			return nil
		}, nil)
		err := d.SetPower(t.Context(), power.TurnOn)
		if err == nil {
			if most < 3 {
				t.Errorf("the call was checked %d times, want a check for each packet", most)
			}
			return
		}
		if !errors.Is(err, errEnded) || asked > most+5 {
			t.Fatalf("after %d checks: %v, and %d attempts", most, err, asked-most)
		}
		if state, err := s.open(t).Power(t.Context()); most == 1 && (err != nil || state != power.Off) {
			t.Fatalf("nothing may have been sent, and the power is %s, %v", state, err)
		}
	}
}
