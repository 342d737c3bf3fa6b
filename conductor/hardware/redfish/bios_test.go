package redfish

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// setup carries out steps of the bios interface as the engine does.
type setup struct {
	*bench
	bios *BIOS
	n    *node.Node
	// forgetful makes each call twice with what was remembered before it, as after the death of a conductor that had
	// not stored the outcome of the first.
	forgetful bool
	restarts  int
}

func newSetup(t *testing.T, p service.Personality, change ...func(*service.Config)) *setup {
	t.Helper()
	b := newBench(t, p, change...)
	f := &setup{bench: b, bios: NewBIOS(b.management()), n: b.node()}
	f.bios.Poll, f.bios.Settle = 5*time.Millisecond, 100*time.Millisecond
	if err := b.Machine.Start(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *setup) run(name string, settings ...any) error {
	f.Helper()
	args := map[string]any{}
	for i := 0; i < len(settings); i += 2 {
		list, _ := args["settings"].([]any)
		args["settings"] = append(list, map[string]any{"name": settings[i], "value": settings[i+1]})
	}
	var err error
	f.restarts, err = f.carryOut(f.n, f.bios.Steps(f.n), name, args, f.forgetful)
	return err
}

// carryOut carries out a step as the engine does, and counts the restarts of the machine. A forgetful one makes each
// call twice with what was remembered before it.
func (b *bench) carryOut(n *node.Node, steps []hardware.Step, name string, args map[string]any,
	forgetful bool) (restarts int, err error) {
	b.Helper()
	i := slices.IndexFunc(steps, func(s hardware.Step) bool { return s.Name == name })
	step := steps[i]
	call := hardware.Call{Node: n, Args: args, Begun: time.Now(), ID: "1/0"}
	if err := step.CheckArgs(n, call.Args); err != nil {
		return 0, err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := step.Run(b.Context(), call)
		if forgetful && err == nil {
			out, err = step.Run(b.Context(), call)
		}
		switch {
		case err != nil:
			return restarts, err
		case out.Restart:
			restarts++
			if err := b.Machine.Reset(); err != nil {
				return restarts, err
			}
		case out.After == 0:
			if out.Apply == nil {
				return restarts, nil
			}
			return restarts, out.Apply(n, &node.SideEffects{})
		}
		if time.Now().After(deadline) || len(out.Memory) > hardware.MaxMemory || !out.Restart && out.Detail == "" {
			return restarts, fmt.Errorf("it goes on: %+v", out)
		}
		call.Memory = out.Memory
		time.Sleep(out.After)
	}
}

// cached is a setting in the node's record.
func (f *setup) cached(name string) (s node.BIOSSetting) {
	if i := slices.IndexFunc(f.n.BIOS, func(s node.BIOSSetting) bool { return s.Name == name }); i >= 0 {
		s = f.n.BIOS[i]
	}
	return s
}

// Settings of every personality are read with their registry, changed, compared and reset, after one restart each,
// whichever answers get lost; what is as wanted is not changed again.
func TestBIOSOfEveryPersonality(t *testing.T) {
	for _, name := range service.Personalities() {
		for _, forgetful := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", forgetful), func(t *testing.T) {
				t.Parallel()
				f := newSetup(t, kit.Personality(t, name),
					func(c *service.Config) { c.POST = 50 * time.Millisecond })
				f.forgetful = forgetful
				lab := f.Service.BIOS()
				lab.Set("AssetTag", "rack 7")
				if err := f.run("cache_bios_settings"); err != nil {
					t.Fatal(err)
				}
				retries, quiet, secret := f.cached("BootRetries"), f.cached("QuietBoot"), f.cached("AdminPassword")
				if retries.Value != "3" || retries.AttributeType != "Integer" || *retries.LowerBound != 0 ||
					*retries.UpperBound != 10 || *retries.ReadOnly || quiet.Value != "True" || secret.Value != "" ||
					!slices.Equal(f.cached("NumLock").Allowable, []string{"Enabled", "Disabled"}) ||
					!*f.cached("SerialNumber").ReadOnly || !*f.cached("AssetTag").Unique {
					t.Errorf("cached: %+v", f.n.BIOS)
				}
				wanted := []any{"NumLock", "Disabled", "BootRetries", "5", "QuietBoot", false, "BootMode", "Uefi"}
				if err := f.run("apply_configuration", wanted...); err != nil || f.restarts != 1 {
					t.Fatalf("%d restarts, %v", f.restarts, err)
				}
				now := lab.Now()
				if now["NumLock"] != "Disabled" || now["BootRetries"] != 5.0 || now["QuietBoot"] != false {
					t.Errorf("the machine has %v", now)
				}
				if s := f.cached("BootRetries"); s.Value != "5" || s.UpdatedAt.IsZero() ||
					!f.cached("BootMode").UpdatedAt.IsZero() || f.cached("QuietBoot").Value != "False" {
					t.Errorf("cached: %+v", f.n.BIOS)
				}
				if err := f.run("apply_configuration", wanted...); err != nil || f.restarts != 0 {
					t.Errorf("the same again: %d restarts, %v", f.restarts, err)
				}
				if err := f.run("factory_reset"); err != nil || f.restarts != 1 {
					t.Fatalf("%d restarts, %v", f.restarts, err)
				}
				now = lab.Now()
				if now["NumLock"] != "Enabled" || now["BootRetries"] != 3 || now["AssetTag"] != "rack 7" ||
					f.cached("NumLock").Value != "Enabled" {
					t.Errorf("after the reset: %v, %+v", now, f.n.BIOS)
				}
			})
		}
	}
}

// A change that somebody else asked for and that waits for a start does not undo a setting later.
func TestBIOSOverrulesPending(t *testing.T) {
	for _, name := range []string{"generic", "hpe-ilo5"} {
		f := newSetup(t, kit.Personality(t, name))
		lab := f.Service.BIOS()
		change := map[string]any{"Attributes": map[string]any{"NumLock": "Disabled"}}
		if problem := lab.Patch("", change); problem != nil {
			t.Fatal(problem)
		}
		if err := f.run("apply_configuration", "NumLock", "Enabled"); err != nil || f.restarts != 1 ||
			lab.Now()["NumLock"] != "Enabled" {
			t.Errorf("%s: %d restarts, %v, NumLock is %v", name, f.restarts, err, lab.Now()["NumLock"])
		}
	}
}

// What the registry forbids is refused with all faults at once, before anything is changed, and without the values.
func TestBIOSRefusals(t *testing.T) {
	f := newSetup(t, kit.Personality(t, "generic"))
	const canary = "canary-value"
	was := f.Service.BIOS().Now()
	err := f.run("apply_configuration", "NumLock", "Disabled", "NoSuch", 1, "SerialNumber", "LAB2", "BootRetries", 11.0,
		"QuietBoot", canary, "AssetTag", canary, "BootMode", canary, "AdminPassword", canary)
	if err == nil || f.restarts != 0 {
		t.Fatalf("%d restarts, %v", f.restarts, err)
	}
	for _, part := range []string{"nothing was changed", "NoSuch is not among", "SerialNumber can only be read",
		"BootRetries must be 0 to 10", "QuietBoot must be true or false", "AssetTag must have 0 to 10 characters",
		"BootMode must be one of Uefi, Legacy", "AdminPassword is a password"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v\nwant %s", err, part)
		}
	}
	if strings.Contains(err.Error(), canary) || strings.Contains(f.log.String(), canary) {
		t.Errorf("it repeats a value: %v", err)
	}
	for _, bad := range [][]any{{"BootRetries", 2.5}, {"BootRetries", "many"}, {"NumLock", true}} {
		if err := f.run("apply_configuration", bad...); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	if err := f.Machine.Reset(); err != nil {
		t.Fatal(err)
	}
	if now := f.Service.BIOS().Now(); !maps.Equal(now, was) {
		t.Errorf("the machine has %v, want %v", now, was)
	}
}

// Settings that a controller takes and drops are named; so are those that a reset leaves.
func TestBIOSDropped(t *testing.T) {
	f := newSetup(t, kit.Personality(t, "generic", service.ForgetsBIOS))
	f.Service.BIOS().Set("NumLock", "Disabled")
	for step, args := range map[string][]any{"factory_reset": nil,
		"apply_configuration": {"BootMode", "Legacy", "NumLock", "Enabled"}} {
		err := f.run(step, args...)
		if said := errorText(err); !strings.Contains(said, "NumLock") || !strings.Contains(said, "stayed as before") ||
			f.restarts != 1 {
			t.Errorf("%s: %d restarts, %v", step, f.restarts, err)
		}
	}
}

// Without a registry the present values say of which type settings are; a controller without settings has none.
func TestBIOSWithoutRegistry(t *testing.T) {
	f := newSetup(t, kit.Personality(t, "generic", service.NoBIOSRegistry))
	if err := f.run("apply_configuration", "BootRetries", "7", "QuietBoot", "false"); err != nil {
		t.Error(err)
	}
	if now := f.Service.BIOS().Now(); now["BootRetries"] != 7.0 || now["QuietBoot"] != false ||
		f.cached("BootRetries").AttributeType != "" {
		t.Errorf("the machine has %v", now)
	}
	if err := f.run("apply_configuration", "NoSuch", "7"); err == nil || !strings.Contains(err.Error(), "not among") {
		t.Error(err)
	}
}

// A controller that does not answer is waited for once it has taken a change, and only then.
func TestBIOSWaitsForTheController(t *testing.T) {
	f := newSetup(t, kit.Personality(t, "generic"))
	gone := f.node()
	gone.DriverInfo = maps.Clone(f.n.DriverInfo)
	gone.DriverInfo["redfish_address"] = "http://127.0.0.1:1"
	step := f.bios.Steps(gone)[0]
	call := hardware.Call{Node: gone, Begun: time.Now(), Args: map[string]any{"settings": []any{}}}
	if _, err := step.Run(t.Context(), call); power.KindOf(err) != power.Unreachable {
		t.Errorf("before the change: %v", err)
	}
	call.Memory = []byte(`{"Asked":true}`)
	out, err := step.Run(t.Context(), call)
	if err != nil || out.After != f.bios.Poll || string(out.Memory) != string(call.Memory) {
		t.Errorf("after the change: %+v, %v", out, err)
	}
	call.Begun = call.Begun.Add(-2 * biosLimit)
	if _, err := step.Run(t.Context(), call); power.KindOf(err) != power.Unreachable {
		t.Errorf("in the end: %v", err)
	}
}

// A hostile controller fills neither the node's record nor a terminal.
func TestHostileBIOS(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			f := newSetup(t, kit.Personality(t, "generic", behaviour),
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			f.Service.BIOS().Set("Evil\x1b[2J", "\x1b]0;owned\x07"+strings.Repeat("x", 1000)+kit.Password)
			err := f.run("cache_bios_settings")
			mild := slices.Contains([]service.Behaviour{service.LinksInLoops, service.EscapesInNames,
				service.ManyMembers}, behaviour)
			if mild != (err == nil) {
				t.Errorf("it is read: %v", err)
			}
			for _, said := range []string{errorText(err), fmt.Sprint(f.n.BIOS)} {
				if strings.ContainsAny(said, "\x1b\x07") || strings.Contains(said, kit.Password) || len(said) > 10_000 {
					t.Errorf("it says %.300q", said)
				}
			}
			if n := f.Service.Requests(); n > 50 {
				t.Errorf("%d requests", n)
			}
		})
	}
	f := newSetup(t, kit.Personality(t, "generic"))
	for i := range limit.RedfishSettings {
		f.Service.BIOS().Set(fmt.Sprint("More", i), i)
	}
	if err := f.run("cache_bios_settings"); power.KindOf(err) != power.Refused || len(f.n.BIOS) > 0 {
		t.Errorf("too many settings: %d are kept, %v", len(f.n.BIOS), err)
	}
}
