package redfish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
)

// flasher carries out steps of the firmware interface as the engine does.
type flasher struct {
	*bench
	fw       *Firmware
	n        *node.Node
	files    *httptest.Server
	served   atomic.Int32
	restarts int
	// twice makes each call twice with what was remembered before it, as after the death of a conductor that had not
	// stored the outcome of the first.
	twice bool
}

// secretPath is in the path of each file, and must be in no log and no error.
const secretPath = "/canary-path"

func newFlasher(t *testing.T, p service.Personality, change ...func(*service.Config)) *flasher {
	t.Helper()
	quick := func(c *service.Config) { c.Took, c.Down = 10*time.Millisecond, 100*time.Millisecond }
	return flash(newBench(t, p, append([]func(*service.Config){quick}, change...)...))
}

func flash(b *bench) *flasher {
	b.Helper()
	f := &flasher{bench: b, n: b.node()}
	log := slog.New(slog.NewTextHandler(&b.log, nil))
	f.fw = NewFirmware(NewManagement(b.pool, "", time.Minute, log), http.DefaultTransport)
	f.fw.Poll, f.fw.Settle, f.fw.Silence = 5*time.Millisecond, time.Second, 20*time.Second
	f.files = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part, version, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, secretPath+"/"), "/")
		f.served.Add(1)
		if part == "missing" {
			http.NotFound(w, r)
			return
		}
		file := update.File(part, version)
		if part == "broken" {
			file = update.File(update.BIOS, version)
			file[len(file)-1]++
		}
		_, _ = w.Write(file)
	}))
	b.Cleanup(f.files.Close)
	if err := b.Machine.Start(); err != nil {
		b.Fatal(err)
	}
	return f
}

// to is a setting: a component and the file with its new version, and more keys and values.
func (f *flasher) to(component, part, version string, more ...any) map[string]any {
	m := map[string]any{"component": component,
		"url": f.files.URL + secretPath + "/" + part + "/" + version + "?token=canary-path"}
	for i := 0; i < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

func (f *flasher) update(ctx context.Context, settings ...any) error {
	return f.run(ctx, "update", map[string]any{"settings": settings})
}

func (f *flasher) run(ctx context.Context, name string, args map[string]any) error {
	f.Helper()
	f.restarts = 0
	steps := f.fw.Steps(f.n)
	step := steps[slices.IndexFunc(steps, func(s hardware.Step) bool { return s.Name == name })]
	call := hardware.Call{Node: f.n, Args: args, Begun: time.Now(), ID: "1/0"}
	if err := step.CheckArgs(f.n, call.Args); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := step.Run(ctx, call)
		if f.twice && err == nil {
			out, err = step.Run(ctx, call)
		}
		switch {
		case err != nil:
			return err
		case out.Restart:
			f.restarts++
			if err := f.Machine.Reset(); err != nil {
				return err
			}
		case out.After == 0:
			return out.Apply(f.n, nil)
		}
		if time.Now().After(deadline) || len(out.Memory) > hardware.MaxMemory || out.Detail == "" {
			return fmt.Errorf("it goes on: %+v", out)
		}
		call.Memory = out.Memory
		time.Sleep(out.After)
	}
}

// version is that of a component in the node's record.
func (f *flasher) version(component string) string {
	for _, c := range f.n.Firmware {
		if c.Component == component {
			return c.CurrentVersion
		}
	}
	return ""
}

// newer are versions of each component, in the forms of vendors.
var newer = map[string]map[string]string{"lenovo-xcc": {update.BIOS: "3.30", update.BMC: "CDI3B0C 9.50"},
	"hpe-ilo5": {update.BIOS: "U30 v2.72 (09/29/2022)", update.BMC: "iLO 5 v3.05"},
	"hpe-ilo6": {update.BIOS: "U54 v1.46 (10/27/2023)", update.BMC: "iLO 6 v1.62"}}

func newerOf(personality, component string) string {
	if v := newer[personality][component]; v != "" {
		return strings.NewReplacer(" ", "_").Replace(v)
	}
	return "99.1.0"
}

// Firmware of every personality is read, and updated once each, whichever answers get lost: the BIOS with a restart of
// the machine, the controller with one of its own, a network card as it needs it.
func TestFirmwareOfEveryPersonality(t *testing.T) {
	for _, name := range service.Personalities() {
		for _, twice := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", twice), func(t *testing.T) {
				t.Parallel()
				f := newFlasher(t, kit.Personality(t, name))
				f.twice = twice
				lab := f.Service.Firmware()
				if err := f.run(t.Context(), "cache_firmware_components", nil); err != nil {
					t.Fatal(err)
				}
				card := "nic:" + update.NICSerial
				parts := map[string]string{"bios": update.BIOS, "bmc": update.BMC, card: update.NIC}
				for component, part := range parts {
					if got, want := f.version(component), lab.Version(part); got != want || want == "" {
						t.Errorf("%s has version %q, want %q", component, got, want)
					}
				}
				bios, bmc := newerOf(name, update.BIOS), newerOf(name, update.BMC)
				err := f.update(t.Context(), f.to("bmc", update.BMC, bmc), f.to("bios", update.BIOS, bios),
					f.to(card, update.NIC, "30.1"))
				if name == "hpe-gen9" {
					if !strings.Contains(errorText(err), "no firmware updates by URL") || f.served.Load() > 0 {
						t.Errorf("without a service: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				want := []string{"bmc " + bmc, "bios " + bios, "nic 30.1"}
				if got := lab.Made(); !slices.Equal(got, want) {
					t.Errorf("the controller made %v, want %v", got, want)
				}
				for component, part := range parts {
					if f.version(component) != lab.Version(part) {
						t.Errorf("the record has %+v", f.n.Firmware)
					}
				}
				if n := f.Service.Restarts(); n != 1 || f.restarts < 2 || f.restarts > 3 {
					t.Errorf("%d restarts of the controller, %d of the machine", n, f.restarts)
				}
				first := f.n.Firmware[0]
				if first.InitialVersion == first.CurrentVersion || first.LastVersionFlashed != first.CurrentVersion ||
					first.UpdatedAt.IsZero() {
					t.Errorf("the record has %+v", first)
				}
				if strings.Contains(f.log.String(), "canary") {
					t.Errorf("the log has a path or a password")
				}
				f.pool.Close(context.Background())
				if n := f.Service.Sessions(); n != 0 {
					t.Errorf("%d sessions are left", n)
				}
			})
		}
	}
}

// updateToNumber updates the BIOS to a version by its number alone.
func updateToNumber(ctx context.Context, _ *Driver) error {
	b := ctx.Value(theBench{}).(*bench)
	f := flash(b)
	return f.update(ctx, f.to("bios", update.BIOS, "3.30", "version", "3.30", "wait", 2.0))
}

// An update that fails, in whichever way, is reported with its reason; nothing is in use then, and no address of a
// file is repeated.
func TestFirmwareFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		more []service.Behaviour
		do   func(f *flasher) []any
		says string
	}{
		{"broken file", nil, func(f *flasher) []any { return []any{f.to("bios", "broken", "3")} }, "signature"},
		{"missing file", nil, func(f *flasher) []any { return []any{f.to("bios", "missing", "3")} }, "404"},
		{"file for nothing", nil, func(f *flasher) []any { return []any{f.to("bios", "fan", "3")} }, "a part that"},
		{"task fails", []service.Behaviour{service.WorkFails}, func(f *flasher) []any {
			return []any{f.to("bmc", "bmc", "3")}
		}, "The work failed"},
		{"controller lies", []service.Behaviour{service.FirmwareLies}, func(f *flasher) []any {
			return []any{f.to("bios", "bios", "3")}
		}, "still 2.1.0"},
		{"controller lies about itself", []service.Behaviour{service.FirmwareLies}, func(f *flasher) []any {
			return []any{f.to("bmc", "bmc", "3")}
		}, "still 1.0"},
		{"downgrade declined", []service.Behaviour{service.NoDowngrade}, func(f *flasher) []any {
			return []any{f.to("bios", "bios", "1.9.9")}
		}, "older than 2.1.0"},
		{"another version", nil, func(f *flasher) []any {
			return []any{f.to("bios", "bios", "3", "version", "4", "wait", 1.0)}
		}, "has version 3 now, not 4"},
		{"no such card", nil, func(f *flasher) []any {
			return []any{f.to("bios", "bios", "3"), f.to("nic:X", "nic", "3")}
		}, "nothing was changed"},
		{"checksum", nil, func(f *flasher) []any {
			return []any{f.to("bios", "bios", "3", "checksum", strings.Repeat("ab", 32))}
		}, "nothing was changed"},
		{"another protocol", nil, func(f *flasher) []any {
			return []any{map[string]any{"component": "bmc", "url": "https://127.0.0.1:1/canary-path"}}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFlasher(t, kit.Personality(t, "generic", tt.more...))
			err := f.update(t.Context(), tt.do(f)...)
			if err == nil || !strings.Contains(err.Error(), tt.says) ||
				strings.Contains(err.Error()+f.log.String(), "canary") {
				t.Errorf("%v, want %q", err, tt.says)
			}
			if made := f.Service.Firmware().Made(); len(made) > 0 && tt.name != "another version" &&
				!strings.Contains(tt.name, "lies") {
				t.Errorf("the controller made %v", made)
			}
		})
	}
}

// A file whose checksum is right is taken, one with an older version, too; what has the version already is skipped.
func TestFirmwareVersions(t *testing.T) {
	f := newFlasher(t, kit.Personality(t, "generic"))
	sum := sha256.Sum256(update.File(update.BIOS, "1.9"))
	setting := f.to("bios", "bios", "1.9", "checksum", "sha256:"+hex.EncodeToString(sum[:]), "version", "1.9")
	for range 2 {
		if err := f.update(t.Context(), setting); err != nil {
			t.Fatal(err)
		}
	}
	if made := f.Service.Firmware().Made(); !slices.Equal(made, []string{"bios 1.9"}) ||
		!strings.Contains(f.log.String(), "replaced by an older one") {
		t.Errorf("the controller made %v", made)
	}
}

// A controller that is not ready is asked again; one that gives no word about its task is judged by the version.
func TestFirmwareOfOddControllers(t *testing.T) {
	for _, more := range []service.Behaviour{service.NotReady, service.SilentTasks, service.TasksVanish,
		service.MonitorOnce, service.DoneBeforeStart, service.DropsSessions} {
		t.Run(string(more), func(t *testing.T) {
			t.Parallel()
			f := newFlasher(t, kit.Personality(t, "generic", more))
			if err := f.update(t.Context(), f.to("bmc", "bmc", "2.0"), f.to("bios", "bios", "2.2")); err != nil {
				t.Fatal(err)
			}
			if made := f.Service.Firmware().Made(); !slices.Equal(made, []string{"bmc 2.0", "bios 2.2"}) {
				t.Errorf("the controller made %v", made)
			}
		})
	}
}

// A controller that does not come back after its update is not waited for without end.
func TestFirmwareControllerStaysAway(t *testing.T) {
	f := newFlasher(t, kit.Personality(t, "generic"), func(c *service.Config) { c.Down = time.Hour })
	f.fw.Silence = 300 * time.Millisecond
	if err := f.update(t.Context(), f.to("bmc", "bmc", "2.0")); power.KindOf(err) != power.Unreachable {
		t.Errorf("the step ends with %v", err)
	}
}

// Arguments that are not of Ironic's form, and URLs that are none for a controller, are refused, and not repeated.
func TestFirmwareArguments(t *testing.T) {
	f := newFlasher(t, kit.Personality(t, "generic"))
	good := f.to("bios", "bios", "3")
	with := func(key string, v any) any {
		m := maps.Clone(good)
		m[key] = v
		return m
	}
	for _, bad := range []any{"x", map[string]any{}, map[string]any{"component": "bios"},
		map[string]any{"url": "http://h/x"},
		with("component", "cpld"), with("component", "nic:"), with("url", "file:///etc/canary"), with("url", "canary"),
		with("url", "http://u:canary@h/x"), with("url", "http://h/canary#x"), with("url", "http://h/canary\n"),
		with("url", "http://h/canary"+strings.Repeat("x", 3000)), with("url", 3), with("wait", 0.0), with("wait", "3"),
		with("wait", 1e9), with("checksum", "abc"), with("checksum", strings.Repeat("0", 40)), with("more", 1)} {
		err := f.update(t.Context(), bad)
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := f.update(t.Context(), good, good); err == nil {
		t.Error("a component twice is taken")
	}
	if err := f.update(t.Context()); err == nil || f.served.Load() > 0 || f.Service.Tasks().Made() > 0 {
		t.Errorf("no update: %v", err)
	}
}

// The conductor reads files for their checksums by its guarded transport only, and not more than it wants.
func TestFirmwareChecksumIsGuarded(t *testing.T) {
	f := newFlasher(t, kit.Personality(t, "generic"))
	f.fw.files = dial.New(nil).Transport(nil)
	err := f.update(t.Context(), f.to("bios", "bios", "3", "checksum", strings.Repeat("ab", 32)))
	if err == nil || !strings.Contains(err.Error(), "does not connect") || strings.Contains(err.Error(), "canary") ||
		f.served.Load() > 0 {
		t.Errorf("%v, served %d times", err, f.served.Load())
	}
}

// A hostile controller fills neither the node's record nor a terminal.
func TestHostileFirmware(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			f := newFlasher(t, kit.Personality(t, "generic", behaviour),
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := f.run(ctx, "cache_firmware_components", nil)
			for _, said := range []string{errorText(err), fmt.Sprint(f.n.Firmware)} {
				if strings.ContainsAny(said, "\x1b\x07") || strings.Contains(said, kit.Password) || len(said) > 10_000 {
					t.Errorf("it says %.300q", said)
				}
			}
			if n := f.Service.Requests(); n > 450 {
				t.Errorf("%d requests", n)
			}
		})
	}
}
