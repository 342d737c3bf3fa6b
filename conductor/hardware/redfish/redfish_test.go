package redfish

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/powertest"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/bios"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/vendor"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/events"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// TestMain lets more tests run at a time than there are processors: they wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // there is no such flag
	}
	os.Exit(m.Run())
}

// bench is a virtual controller and a client's log.
type bench struct {
	*testing.T
	*kit.Bench
	pool *controller.Pool
	log  bytes.Buffer
}

func newBench(t *testing.T, p service.Personality, change ...func(*service.Config)) *bench {
	t.Helper()
	b := &bench{T: t, Bench: kit.Start(t, p, change...)}
	b.pool = b.newPool(controller.Options{})
	return b
}

func (b *bench) newPool(o controller.Options) *controller.Pool {
	o.Log = slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := controller.NewPool(o)
	b.Cleanup(func() { p.Close(context.Background()) })
	return p
}

// open makes a driver, with some keys of driver_info changed.
func (b *bench) open(pool *controller.Pool, change power.Info) power.Driver {
	b.Helper()
	info := power.Info(maps.Clone(b.Info))
	maps.Copy(info, change)
	d, err := Opener(pool, "")(info, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	return d
}

func TestSuite(t *testing.T) {
	for _, name := range []string{"generic", "dell-idrac10", "hpe-ilo5", "supermicro", "ami", "openbmc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			powertest.Run(t, func(t *testing.T) powertest.Subject {
				b := newBench(t, kit.Personality(t, name))
				return powertest.Subject{Packets: true, GUID: kit.UUID.String(), Open: func(t *testing.T) power.Driver {
					d, err := Opener(b.pool, "")(b.Info, nil)
					if err != nil {
						t.Fatal(err)
					}
					return d
				}}
			})
		})
	}
}

// noRows is a table without a row for any machine.
var noRows = []quirk.Row{{Vendor: "none"}}

// network boots a machine from the network.
func network(ctx context.Context, d *Driver) error {
	if err := d.SetBoot(ctx, power.Boot{Device: power.BootPXE}); err != nil {
		return err
	}
	if got, err := d.Boot(ctx); err != nil || got.Device != power.BootPXE {
		return fmt.Errorf("the boot device reads %q, %w", got.Device, err)
	}
	return d.SetPower(ctx, power.TurnOn)
}

// rows are what a client does at a controller that behaves as a row says, and the personality that does so. It works
// with the table and fails without it.
var rows = map[string]struct {
	personality string
	behaviour   service.Behaviour
	do          func(ctx context.Context, d *Driver) error
	// model, unless "", is that of the machine.
	model string
	// device and starts are what the machine started with last, and how often, unless they are zero.
	device bmc.Device
	starts int
}{
	"idrac9-virtual-cd": {personality: "dell-idrac9-5", behaviour: vmedia.CDIsOwnDrive,
		do: func(ctx context.Context, d *Driver) error {
			if err := d.SetBoot(ctx, power.Boot{Device: power.BootCDROM}); err != nil {
				return err
			}
			return d.SetPower(ctx, power.TurnOn)
		}, device: bmc.CDROM},
	"dell-same-state": {personality: "dell-idrac9", behaviour: service.SameStateConflict,
		do: func(ctx context.Context, d *Driver) error {
			return d.SetPower(ctx, power.TurnOff)
		}},
	"idrac10-on-after-off": {personality: "dell-idrac10", behaviour: service.ConflictAfterOff,
		do: func(ctx context.Context, d *Driver) error {
			for _, a := range []power.Action{power.TurnOn, power.TurnOff, power.TurnOn} {
				if err := d.SetPower(ctx, a); err != nil {
					return err
				}
			}
			return nil
		}},
	"dell-account-slots": {personality: "dell-idrac9", behaviour: service.AccountSlots,
		do: func(ctx context.Context, d *Driver) error {
			return d.SetPassword(ctx, "canary-password-2")
		}},
	"hpe-gen9-boot-mode": {personality: "hpe-gen9", behaviour: service.NoBootMode,
		do: func(ctx context.Context, d *Driver) error {
			return d.SetBoot(ctx, power.Boot{Device: power.BootPXE, Mode: "uefi"})
		}},
	"hpe-target-none": {personality: "hpe-ilo5", behaviour: service.NoneTargetRefused,
		do: func(ctx context.Context, d *Driver) error {
			if err := d.SetBoot(ctx, power.Boot{Device: power.BootPXE, Persistent: true}); err != nil {
				return err
			}
			return d.SetBoot(ctx, power.Boot{Device: power.BootNone})
		}},
	"hpe-connections": {personality: "hpe-ilo5", behaviour: service.ClosesAfterAnswer,
		do: func(ctx context.Context, d *Driver) error {
			if err := d.SetPower(ctx, power.TurnOn); err != nil {
				return err
			}
			for range 4 {
				if err := d.SetPower(ctx, power.Reset); err != nil {
					return err
				}
			}
			return nil
		}},
	"supermicro-usb-cd": {personality: "supermicro", behaviour: vmedia.MediaBootAsUSBCD,
		do: func(ctx context.Context, d *Driver) error {
			if err := d.SetBoot(ctx, power.Boot{Device: power.BootCDROM}); err != nil {
				return err
			}
			if got, err := d.Boot(ctx); err != nil || got.Device != power.BootCDROM {
				return fmt.Errorf("the boot device reads %q, %w", got.Device, err)
			}
			return d.SetPower(ctx, power.TurnOn)
		}, device: bmc.CDROM},
	"supermicro-x10-boot-mode": {personality: "supermicro", model: "X10DRi", behaviour: service.NoBootMode,
		do: func(ctx context.Context, d *Driver) error {
			return d.SetBoot(ctx, power.Boot{Device: power.BootPXE, Mode: "uefi"})
		}},
	"dell-insert-again": {personality: "dell-idrac9", behaviour: vmedia.FailsFirst,
		do: func(ctx context.Context, d *Driver) error {
			s := httptest.NewServer(twoDiscs)
			defer s.Close()
			_, err := d.InsertMedia(ctx, power.BootImage{Address: s.URL + "/boot-image/canary1/a.iso"})
			return errors.Join(err, d.EjectMedia(ctx))
		}},
	"dell-xe9680-http": {personality: "dell-idrac9", model: "PowerEdge XE9680", behaviour: service.NoPXE,
		do: network, device: bmc.HTTP},
	"lenovo-restart": {personality: "lenovo-xcc", model: "ThinkSystem SR650 V4", behaviour: service.RestartHangs,
		do: func(ctx context.Context, d *Driver) error {
			return errors.Join(d.SetPower(ctx, power.TurnOn), d.SetPower(ctx, power.Reset))
		}, starts: 2},
	"ami-future-boot":    {personality: "ami", behaviour: service.FutureBoot, do: network, device: bmc.PXE},
	"asrock-future-boot": {personality: "ami", behaviour: service.FutureBoot, do: network, device: bmc.PXE},
	"supermicro-boot-mode": {personality: "supermicro", behaviour: service.DeviceResetsMode,
		do: func(ctx context.Context, d *Driver) error {
			if err := d.setBootMode(ctx, "uefi"); err != nil {
				return err
			}
			return d.SetBoot(ctx, power.Boot{Device: power.BootPXE, Mode: "uefi"})
		}},
	"ami-whole-boot": {personality: "ami", behaviour: service.WholeBoot,
		do: func(ctx context.Context, d *Driver) error {
			return d.SetBoot(ctx, power.Boot{Device: power.BootPXE})
		}},
	"asrock-whole-boot": {personality: "ami", behaviour: service.WholeBoot,
		do: func(ctx context.Context, d *Driver) error {
			return d.SetBoot(ctx, power.Boot{Device: power.BootPXE})
		}},
	"hpe-retry-policy": {personality: "hpe-ilo5", behaviour: events.NoRetryPolicy,
		do: func(ctx context.Context, d *Driver) error {
			return d.on(ctx, "subscribe", func(s *controller.System) error {
				_, err := vendor.Subscribe(ctx, d.c, s, map[string]any{"Destination": "https://192.0.2.1/events",
					"DeliveryRetryPolicy": "RetryForever"})
				return err
			})
		}},
	"dell-task-gone":     {personality: "dell-idrac9", behaviour: service.TasksVanish, do: followFailure},
	"xcc-monitor":        {personality: "lenovo-xcc", behaviour: service.MonitorOnce, do: follow},
	"xcc-version-prefix": {personality: "lenovo-xcc", behaviour: service.PrefixedVersions, do: updateToNumber},
}

// theBench is the key of a row's bench in the context.
type theBench struct{}

// TestRows: where a controller behaves as a row of the table says, a client without the row fails, and one with that
// row alone does not. It is the row of that machine, not one of all.
func TestRows(t *testing.T) {
	for _, row := range quirk.Table {
		c, ok := rows[row.Name]
		if !ok || row.Test != "conductor/hardware/redfish.TestRows/"+row.Name {
			t.Errorf("row %s has no case here", row.Name)
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			try := func(table []quirk.Row) error {
				p := kit.Personality(t, c.personality)
				if c.model == "" && c.behaviour != vmedia.FailsFirst && !p.Has(c.behaviour) {
					t.Fatalf("%s does not behave so", p.Name)
				}
				p.Behaviours = []service.Behaviour{c.behaviour}
				if strings.HasPrefix(row.Name, "asrock") {
					p.Vendor = ""
				} else if strings.HasPrefix(row.Name, "ami") {
					p.Manufacturer = "American Megatrends Inc."
				}
				p.Model = cmp.Or(c.model, p.Model)
				b := newBench(t, p)
				ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), theBench{}, b), time.Minute)
				defer cancel()
				b.pool = b.newPool(controller.Options{Quirks: table})
				err := c.do(ctx, b.open(b.pool, nil).(*Driver))
				at := b.Machine.Boots()
				if err == nil && c.device != bmc.Default &&
					(len(at) == 0 || at[len(at)-1].Device != c.device) ||
					err == nil && c.starts > 0 && len(at) != c.starts {
					err = fmt.Errorf("the machine started with %v", at)
				}
				return err
			}
			if err := try(noRows); err == nil {
				t.Error("without the row nothing fails")
			}
			if err := try([]quirk.Row{row}); err != nil {
				t.Errorf("with the row: %v", err)
			}
		})
	}
	if len(rows) != len(quirk.Table) {
		t.Errorf("%d cases, %d rows", len(rows), len(quirk.Table))
	}
}

// TestMediaOfAnExceptedModel: where UsbCd is listed and starts nothing, the machine boots its virtual media from Cd.
func TestMediaOfAnExceptedModel(t *testing.T) {
	p := kit.Personality(t, "supermicro", vmedia.ListsUSBCD)
	p.Model = "ARS-111GL-NHR"
	p.Behaviours = slices.DeleteFunc(p.Behaviours, func(b service.Behaviour) bool {
		return b == vmedia.MediaBootAsUSBCD
	})
	b := newBench(t, p)
	d := b.open(b.pool, nil)
	err := errors.Join(d.SetBoot(t.Context(), power.Boot{Device: power.BootCDROM}),
		d.SetPower(t.Context(), power.TurnOn))
	if at := b.Machine.Boots(); err != nil || len(at) != 1 || at[0].Device != bmc.CDROM {
		t.Errorf("the machine started with %v: %v", at, err)
	}
}

// TestWithoutRows: what some controllers do otherwise, and the client meets at all of them.
func TestWithoutRows(t *testing.T) {
	for does, do := range map[service.Behaviour]func(context.Context, *Driver) error{
		// a part of the machine is shown as a system
		service.PhantomSystem: network,
		// a machine in POST declines changes for a while
		service.InPOST: network,
		// a device without a word on how long is for one boot, also where the choice was there before
		service.DeviceIsOnce: func(ctx context.Context, d *Driver) error {
			for _, dev := range []power.Device{power.BootPXE, power.BootDisk} {
				if err := d.SetBoot(ctx, power.Boot{Device: dev, Persistent: true}); err != nil {
					return err
				}
				if got, err := d.Boot(ctx); err != nil || got.Device != dev || !got.Persistent {
					return fmt.Errorf("the boot device reads %+v, %w", got, err)
				}
			}
			return nil
		},
		// the registry of the BIOS settings comes compressed or not at all
		service.NoIdentity: func(ctx context.Context, d *Driver) error {
			return d.on(ctx, "read the registry", func(s *controller.System) error {
				st, err := bios.Read(ctx, d.c, s)
				if err != nil {
					return err
				}
				if err := st.Describe(ctx, d.c); err != nil {
					return err
				}
				list := st.Settings()
				if i := slices.IndexFunc(list, func(b node.BIOSSetting) bool { return b.AttributeType != "" }); i < 0 {
					return fmt.Errorf("no registry: %v", list)
				}
				return nil
			})
		},
		// the choice of the boot device can't be kept
		service.OnceOnly: func(ctx context.Context, d *Driver) error {
			return d.SetBoot(ctx, power.Boot{Device: power.BootPXE, Persistent: true})
		},
	} {
		t.Run(string(does), func(t *testing.T) {
			t.Parallel()
			d := newBench(t, kit.Personality(t, "generic", does))
			pool := d.newPool(controller.Options{Quirks: noRows})
			if err := do(t.Context(), d.open(pool, nil).(*Driver)); err != nil {
				t.Error(err)
			}
		})
	}
}

// One session is made for all drivers of a controller, requests come one at a time, and after 1,000 operations no
// session is left.
func TestOneSessionForAll(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	b.Machine.Start()
	pool := b.newPool(controller.Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				d, err := Opener(pool, "")(b.Info, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := d.Power(t.Context()); got != power.On || err != nil {
					t.Errorf("Power = %q, %v", got, err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := b.Service.Sessions(); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
	if n := b.Service.MostAtOnce(); n != 1 {
		t.Errorf("%d requests at once, want 1", n)
	}
	pool.Close(t.Context())
	if n := b.Service.Sessions(); n != 0 {
		t.Errorf("%d sessions after the pool was closed", n)
	}
}

// A program that is killed leaves a session, and the next one deletes it: that one only.
func TestSessionsOfAKilledProgram(t *testing.T) {
	b := newBench(t, service.Personality{})
	records := t.TempDir()
	read := func(pool *controller.Pool) {
		t.Helper()
		if _, err := b.open(pool, nil).Power(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	read(b.newPool(controller.Options{})) // another program's
	read(b.newPool(controller.Options{Sessions: records}))
	files, err := os.ReadDir(records)
	if err != nil || len(files) != 1 || b.Service.Sessions() != 2 {
		t.Fatalf("%d records, %d sessions, %v", len(files), b.Service.Sessions(), err)
	}
	record, err := os.ReadFile(filepath.Join(records, files[0].Name()))
	if err != nil || bytes.Contains(record, []byte(kit.Password)) {
		t.Errorf("the record is %s, %v", record, err)
	}
	// Records of what is no session, and of another host, are harmless.
	for name, what := range map[string]string{
		"1": strings.Replace(string(record), `"Path":"`, `"Path":"//elsewhere.example`, 1), "2": "{",
		"3": strings.Replace(string(record), `"Path":"`, `"Path":"/redfish/v1/Systems/1?x=`, 1),
	} {
		if err := os.WriteFile(filepath.Join(records, name), []byte(what), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	last := b.newPool(controller.Options{Sessions: records})
	read(last)
	if n := b.Service.Sessions(); n != 2 {
		t.Errorf("%d sessions, want the other program's and the new one", n)
	}
	last.Close(t.Context())
	if n := b.Service.Sessions(); n != 1 {
		t.Errorf("%d sessions, want the other program's", n)
	}
}

func TestSessions(t *testing.T) {
	for _, tt := range []struct {
		name     string
		auth     string
		more     []service.Behaviour
		sessions int // limit
		kind     power.Kind
		left     int
	}{
		{"auto", "", nil, 0, "", 1},
		{"session", controller.Session, nil, 0, "", 1},
		{"basic", controller.Basic, nil, 0, "", 0},
		{"auto without sessions", "", []service.Behaviour{service.NoSessionService}, 0, "", 0},
		{"session without sessions", controller.Session, []service.Behaviour{service.NoSessionService}, 0,
			power.Config, 0},
		{"auto when all sessions are taken", "", nil, -1, "", 0},
		{"a session is dropped again and again", "", []service.Behaviour{service.DropsSessions}, 0, "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := kit.Personality(t, "generic", tt.more...)
			p.Sessions = tt.sessions
			b := newBench(t, p)
			d := b.open(b.pool, power.Info{"redfish_auth_type": tt.auth})
			for range 6 {
				if _, err := d.Power(t.Context()); power.KindOf(err) != tt.kind {
					t.Fatalf("Power: %v, want kind %q", err, tt.kind)
				}
			}
			if n := b.Service.Sessions(); n > tt.left {
				t.Errorf("%d sessions, want %d at most", n, tt.left)
			}
		})
	}
}

// A controller that restarted has forgotten its sessions.
func TestRestartedController(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	d := b.open(b.pool, nil)
	for range 3 {
		if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
			t.Fatal(err)
		}
		b.Service.DropSessions()
	}
	if _, err := d.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.Service.Sessions(); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// A wrong password is tried once, in one way, and is in no error and no log.
func TestWrongPassword(t *testing.T) {
	for _, auth := range []string{controller.Auto, controller.Session, controller.Basic} {
		t.Run(auth, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", service.RepeatsPasswords))
			d := b.open(b.pool, power.Info{"redfish_auth_type": auth, "redfish_password": "canary-wrong"})
			_, err := d.Power(t.Context())
			if power.KindOf(err) != power.Auth {
				t.Fatalf("Power: %v, want authentication", err)
			}
			// The root, to find the sessions, and once the password.
			if n := b.Service.Requests(); n > 3 {
				t.Errorf("%d requests", n)
			}
			if strings.Contains(err.Error()+b.log.String(), "canary") {
				t.Errorf("the password is told: %v\n%s", err, &b.log)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		more  []service.Behaviour
		fault bmc.Faults
		info  power.Info
		kind  power.Kind
		says  string
	}{
		{"a page", []service.Behaviour{service.HTML}, bmc.Faults{}, nil, power.Refused, "redfish_address"},
		{"an endless answer", []service.Behaviour{service.Endless}, bmc.Faults{}, nil, power.Refused, "4 MiB"},
		{"links to another host", []service.Behaviour{service.LeadsElsewhere}, bmc.Faults{}, nil, power.Refused,
			"another host"},
		{"two systems", []service.Behaviour{service.TwoSystems}, bmc.Faults{}, nil, power.Config, "redfish_system_id"},
		{"no such system", nil, bmc.Faults{}, power.Info{"redfish_system_id": "/redfish/v1/Systems/9"}, power.Config,
			"redfish_system_id"},
		{"a collection for a system", nil, bmc.Faults{}, power.Info{"redfish_system_id": "/redfish/v1/Systems"},
			power.Config, "redfish_system_id"},
		{"a certificate that signed itself", nil, bmc.Faults{}, power.Info{"redfish_verify_ca": true}, power.Config,
			"redfish_verify_ca"},
		{"silent", nil, bmc.Faults{Silent: true}, nil, power.Unreachable, "in time"},
		{"without TLS", nil, bmc.Faults{}, power.Info{"redfish_address": ""}, power.Config, "http://"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			other, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			asked := make(chan struct{}, 1)
			go func() {
				if c, err := other.Accept(); err == nil {
					asked <- struct{}{}
					c.Close()
				}
			}()
			b := newBench(t, kit.Personality(t, "generic", tt.more...), func(c *service.Config) {
				c.Elsewhere = other.Addr().String()
				c.Plain = tt.name == "without TLS"
			})
			b.BMC.SetFaults(tt.fault)
			info := maps.Clone(tt.info)
			if tt.name == "without TLS" {
				info["redfish_address"] = strings.Replace(b.Service.URL(), "http:", "https:", 1)
				info["redfish_verify_ca"] = false
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err = b.open(b.pool, info).Power(ctx)
			if power.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Power: %q of kind %q, want %q of kind %q", err, power.KindOf(err), tt.says, tt.kind)
			}
			select {
			case <-asked:
				t.Error("the other host was asked")
			default:
			}
			if err != nil && strings.Contains(err.Error()+b.log.String(), kit.Password) {
				t.Errorf("the password is told: %v", err)
			}
		})
	}
}

// A busy controller is waited for, within the time of the call.
func TestBusy(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	d := b.open(b.pool, nil)
	b.BMC.SetFaults(bmc.Faults{Busy: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.SetPower(ctx, power.TurnOn); power.KindOf(err) != power.Busy {
		t.Errorf("SetPower = %v, want busy", err)
	}
	time.AfterFunc(time.Second, func() { b.BMC.SetFaults(bmc.Faults{}) })
	if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
		t.Errorf("SetPower of a controller that was busy for a second: %v", err)
	}
}

// A controller that says OK and does nothing is found out: the boot device is read back, and the power as it is.
func TestLiars(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	d := b.open(b.pool, nil)
	b.BMC.SetFaults(bmc.Faults{ForgetBoot: true, StayOff: true})
	if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}); power.KindOf(err) != power.Refused ||
		!strings.Contains(err.Error(), "took it") {
		t.Errorf("SetBoot that is not kept = %v", err)
	}
	if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
		t.Error(err)
	}
	if got, err := d.Power(t.Context()); got != power.Off || err != nil {
		t.Errorf("Power = %q, %v, want off", got, err)
	}
}

// ETags are sent as they are, as strong ones, and not at all, until one is taken.
func TestETags(t *testing.T) {
	for _, more := range [][]service.Behaviour{nil, {service.WeakETag, service.NeedsIfMatch}, {service.NoIfMatch},
		{service.WeakETag, service.NoIfMatch}, {service.NeedsIfMatch}, {service.EmptyETag}} {
		t.Run(fmt.Sprint(more), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", more...))
			d := b.open(b.pool, nil)
			want := power.Boot{Device: power.BootCDROM, Mode: "uefi", Persistent: true}
			if err := d.SetBoot(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			if got, err := d.Boot(t.Context()); got != want || err != nil {
				t.Errorf("Boot = %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

// A controller that keeps a device for one boot only gets it for one.
func TestPersistentWhereThereIsOnlyOnce(t *testing.T) {
	b := newBench(t, kit.Personality(t, "lenovo-xcc"))
	d := b.open(b.pool, nil)
	if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootDisk, Persistent: true}); err != nil {
		t.Fatal(err)
	}
	got, err := d.Boot(t.Context())
	if err != nil || got.Device != power.BootDisk || got.Persistent {
		t.Errorf("Boot = %+v, %v, want the disk once", got, err)
	}
}

func TestManagement(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	m := NewManagement(b.pool, "", time.Minute, nil)
	n := &node.Node{UUID: "1", Driver: "redfish", DriverInfo: b.Info}
	d := b.open(b.pool, nil)
	if err := m.InjectNMI(t.Context(), n); power.KindOf(err) != power.Refused {
		t.Errorf("NMI to a machine that is off: %v", err)
	}
	if err := m.SetSecureBoot(t.Context(), n, true); power.KindOf(err) != power.Refused {
		t.Errorf("Secure Boot in mode bios: %v", err)
	}
	if modes, err := m.BootModes(t.Context(), n); err != nil || len(modes) != 2 {
		t.Errorf("BootModes = %v, %v", modes, err)
	}
	for _, mode := range []string{"uefi", "bios", "uefi"} {
		if err := m.SetBootMode(t.Context(), n, mode); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Boot(t.Context()); err != nil || got.Mode != mode {
			t.Errorf("Boot = %+v, %v, want mode %s", got, err, mode)
		}
	}
	for _, on := range []bool{true, true, false} {
		if err := m.SetSecureBoot(t.Context(), n, on); err != nil {
			t.Errorf("SetSecureBoot(%v): %v", on, err)
		}
	}
	b.Machine.Start()
	if err := m.InjectNMI(t.Context(), n); err != nil || b.Machine.NMIs() != 1 {
		t.Errorf("InjectNMI: %v, the machine got %d", err, b.Machine.NMIs())
	}
	for name, call := range map[string]func() error{
		"boot mode":   func() error { return m.SetBootMode(t.Context(), n, "netscape") },
		"Secure Boot": func() error { return m.SetSecureBoot(t.Context(), lacking(t), true) },
		"NMI":         func() error { return m.InjectNMI(t.Context(), lacking(t)) },
	} {
		if err := call(); power.KindOf(err) != power.Unsupported {
			t.Errorf("%s that the controller lacks: %v", name, err)
		}
	}
	n.DriverInfo = map[string]any{}
	if err := m.InjectNMI(t.Context(), n); power.KindOf(err) != power.Config {
		t.Errorf("without an address: %v", err)
	}
}

// lacking is a node whose controller has neither Secure Boot nor NMI.
func lacking(t *testing.T) *node.Node {
	b := newBench(t, kit.Personality(t, "ami"), func(c *service.Config) { c.SecureBoot = false })
	b.Machine.Start()
	return &node.Node{UUID: "2", Driver: "redfish", DriverInfo: b.Info}
}

func TestDriverInfo(t *testing.T) {
	folder := t.TempDir()
	pem := newBench(t, kit.Personality(t, "generic")).Service.CertificatePEM()
	for name, content := range map[string][]byte{"lab.pem": pem, "empty.pem": {}, "../secret.pem": pem} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Remove(filepath.Join(folder, "../secret.pem")) })
	if err := os.Symlink("../secret.pem", filepath.Join(folder, "link.pem")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		key   string
		value any
		want  string // base, or what the error says
	}{
		{"redfish_address", "192.0.2.1", "https://192.0.2.1/redfish/v1/"},
		{"redfish_address", "BMC.example:8443", "https://bmc.example:8443/redfish/v1/"},
		{"redfish_address", "http://192.0.2.1:8000/", "http://192.0.2.1:8000/redfish/v1/"},
		{"redfish_address", "https://192.0.2.1/proxy/7/redfish/v1", "https://192.0.2.1/proxy/7/redfish/v1"},
		{"redfish_address", "2001:db8::7", "https://[2001:db8::7]/redfish/v1/"},
		{"redfish_address", "[2001:db8::7]:443", "https://[2001:db8::7]:443/redfish/v1/"},
		{"redfish_address", nil, "Missing the following Redfish properties in node driver_info: ['redfish_address']"},
		{"redfish_address", "", "Missing the following Redfish properties"},
		{"redfish_address", 5, "not a text"},
		{"redfish_address", "ftp://192.0.2.1", "Invalid Redfish address"},
		{"redfish_address", "https://u:canary@192.0.2.1", "redfish_username"},
		{"redfish_address", "https://192.0.2.1?a=b", "query"},
		{"redfish_address", "https://", "no host"},
		{"redfish_address", "192.0.2.1:99999", "port"},
		{"redfish_address", "a b", "Invalid Redfish address"},
		{"redfish_system_id", "/redfish/v1/Systems/1", "https://192.0.2.1/redfish/v1/"},
		{"redfish_system_id", "1", "Invalid value"},
		{"redfish_system_id", "/../../etc", "Invalid value"},
		{"redfish_system_id", "//evil.example/x", "Invalid value"},
		{"redfish_system_id", "/a?b", "Invalid value"},
		{"redfish_auth_type", "kerberos", `one of "basic", "session" or "auto"`},
		{"redfish_verify_ca", "lab.pem", "https://192.0.2.1/redfish/v1/"},
		{"redfish_verify_ca", filepath.Join(folder, "lab.pem"), "https://192.0.2.1/redfish/v1/"},
		{"redfish_verify_ca", string(pem), "https://192.0.2.1/redfish/v1/"},
		{"redfish_verify_ca", "False", "https://192.0.2.1/redfish/v1/"},
		{"redfish_verify_ca", "empty.pem", "no file"},
		{"redfish_verify_ca", "../secret.pem", "no file"},
		{"redfish_verify_ca", "link.pem", "no file"},
		{"redfish_verify_ca", "/etc/passwd", "no file"},
		{"redfish_verify_ca", 7, "Boolean"},
		{"redfish_verify_ca", "-----BEGIN nonsense", "no certificate"},
	} {
		info := power.Info{"redfish_address": "192.0.2.1"}
		info[tt.key] = tt.value
		o, err := parse(info, folder)
		got := o.access.Base.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) || err == nil && got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.key, tt.value, got, tt.want)
		}
		if strings.Contains(got, "canary") {
			t.Errorf("%s %v: the error has the password: %s", tt.key, tt.value, got)
		}
		if _, err := Opener(controller.NewPool(controller.Options{}), folder)(info, nil); err != nil &&
			power.KindOf(err) != power.Config {
			t.Errorf("Open: %v, want an error of the configuration", err)
		}
	}
	if _, err := parse(power.Info{"redfish_address": "192.0.2.1", "redfish_verify_ca": "lab.pem"}, ""); err == nil {
		t.Error("a file is read although there is no folder")
	}
}

// An address that users must not make the conductor reach is not connected to.
func TestGuardedAddress(t *testing.T) {
	b := newBench(t, kit.Personality(t, "generic"))
	d := b.open(b.newPool(controller.Options{Dial: dial.New(nil).Dial}), nil)
	_, err := d.Power(t.Context())
	var refused *dial.RefusedError
	if power.KindOf(err) != power.Config || !errors.As(err, &refused) || b.Service.Requests() != 0 {
		t.Errorf("Power = %v after %d requests, want a refusal", err, b.Service.Requests())
	}
}
