package redfish

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	testkit "github.com/ingot-metal/ingot/test/kit"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/dell"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// dells are the personalities of Dell's controllers.
var dells = []string{"dell-idrac9", "dell-idrac9-5", "dell-idrac10"}

func (b *bench) idrac() *IDRAC {
	i := NewIDRAC(b.management())
	i.Poll, i.Settle = 10*time.Millisecond, 200*time.Millisecond
	return i
}

// Dell's controllers restart, and have their queue cleared, by steps that wait until they are ready, whichever answers
// get lost; the machine goes on.
func TestDellSteps(t *testing.T) {
	for _, name := range dells {
		for _, forgetful := range []bool{false, true} {
			for step, want := range map[string]struct {
				restarts bool
				jobs     int
			}{"clear_job_queue": {false, 0}, "reset_idrac": {true, 1}, "known_good_state": {true, 0}} {
				t.Run(name+" "+step, func(t *testing.T) {
					t.Parallel()
					b := newBench(t, kit.Personality(t, name),
						func(c *service.Config) { c.Down = 50 * time.Millisecond })
					b.Machine.Start()
					b.Service.Dell().Leave()
					_, err := b.carryOut(b.node(), b.idrac().Steps(nil), step, nil, forgetful)
					if err != nil {
						t.Fatal(err)
					}
					if n := b.Service.Restarts(); want.restarts != (n > 0) || !b.Service.Dell().Ready() {
						t.Errorf("%d restarts, ready: %v", n, b.Service.Dell().Ready())
					}
					if jobs := b.Service.Tasks().Unfinished(); len(jobs) != want.jobs {
						t.Errorf("jobs %v, want %d", jobs, want.jobs)
					}
					if len(b.Machine.Boots()) != 1 || !b.Machine.On() {
						t.Error("the machine was restarted")
					}
				})
			}
		}
	}
}

// A controller that is not Dell's has none of it; one whose jobs go on is reported.
func TestDellStepsFail(t *testing.T) {
	b := newBench(t, kit.Personality(t, "openbmc"))
	for _, step := range []string{"clear_job_queue", "reset_idrac", "known_good_state"} {
		_, err := b.carryOut(b.node(), b.idrac().Steps(nil), step, nil, false)
		if power.KindOf(err) != power.Unsupported {
			t.Errorf("%s: %v", step, err)
		}
	}
	b = newBench(t, kit.Personality(t, "dell-idrac9-5"), func(c *service.Config) { c.Took = time.Minute })
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.open(b.pool, nil).SetBoot(short, power.Boot{Device: power.BootCDROM}); err == nil {
		t.Error("the boot device is set before its job is over")
	}
	_, err := b.carryOut(b.node(), b.idrac().Steps(nil), "clear_job_queue", nil, false)
	if said := errorText(err); !strings.Contains(said, "1 jobs of the controller are left") {
		t.Error(err)
	}
}

// The virtual disc is chosen by a job, whose failure and whose predecessors are reported; its list of targets is taken
// by all generations.
func TestDellImport(t *testing.T) {
	imports := []quirk.Row{{Vendor: "dell", Does: quirk.MediaByImport}}
	disc := power.Boot{Device: power.BootCDROM, Persistent: true, Mode: "uefi"}
	for _, name := range dells {
		b := newBench(t, kit.Personality(t, name, vmedia.CDIsOwnDrive),
			func(c *service.Config) { c.Took = 100 * time.Millisecond })
		d := b.open(b.newPool(controller.Options{Quirks: imports}), nil)
		if err := d.SetBoot(t.Context(), disc); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if now, persistent := b.BMC.Boot(); now != (bmc.Boot{Device: bmc.USBCD, UEFI: true}) || !persistent {
			t.Errorf("%s: the choice is %v, persistent %v", name, now, persistent)
		}
		if got, err := d.Boot(t.Context()); err != nil || got.Device != power.BootCDROM {
			t.Errorf("%s: it reads %v, %v", name, got, err)
		}
		b.Service.Dell().Leave()
		err := d.SetBoot(t.Context(), disc)
		if power.KindOf(err) != power.Refused || !strings.Contains(errorText(err), "clear_job_queue") {
			t.Errorf("%s: with a job that waits: %v", name, err)
		}
	}
	b := newBench(t, kit.Personality(t, "dell-idrac9-5", dell.ImportsNothing))
	err := b.open(b.pool, nil).SetBoot(t.Context(), disc)
	if power.KindOf(err) != power.Refused || !strings.Contains(errorText(err), "job failed") {
		t.Errorf("a job that fails: %v", err)
	}
}

// A job in the queue that waits for a start is in the way of BIOS settings, which says what to do; then they are made.
func TestDellQueueInTheWay(t *testing.T) {
	f := newSetup(t, kit.Personality(t, "dell-idrac9"))
	f.Service.Dell().Leave()
	err := f.run("apply_configuration", "NumLock", "Disabled")
	if power.KindOf(err) != power.Refused || !strings.Contains(errorText(err), "clear_job_queue") || f.restarts != 0 {
		t.Errorf("with a job that waits: %d restarts, %v", f.restarts, err)
	}
	// One that is gone meanwhile, as that of the step before, was only waited for.
	apply := f.bios.Steps(f.n)[0]
	args := map[string]any{"settings": []any{map[string]any{"name": "NumLock", "value": "Disabled"}}}
	call := hardware.Call{Node: f.n, Args: args, Begun: time.Now(), ID: "1/0"}
	out, err := apply.Run(t.Context(), call)
	if err != nil || out.Restart || out.After == 0 || !strings.Contains(out.Detail, "earlier job") {
		t.Fatalf("while a job is there: %+v, %v", out, err)
	}
	if _, err := f.carryOut(f.n, f.idrac().Steps(nil), "clear_job_queue", nil, false); err != nil {
		t.Fatal(err)
	}
	call.Memory = out.Memory
	if out, err = apply.Run(t.Context(), call); err != nil || !out.Restart {
		t.Errorf("after its end: %+v, %v", out, err)
	}
	if err := f.Machine.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := f.run("apply_configuration", "NumLock", "Disabled"); err != nil || f.restarts != 0 {
		t.Errorf("then: %d restarts, %v", f.restarts, err)
	}
}

// Secure Boot is a job at Dell's: while another waits for a start it is declined, with the remedy, and stays.
func TestDellSecureBootIsJob(t *testing.T) {
	for _, name := range dells {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newSetup(t, kit.Personality(t, name))
			set := func(on bool) error { return f.management().SetSecureBoot(t.Context(), f.n, on) }
			if err := f.management().SetBootMode(t.Context(), f.n, "uefi"); err != nil {
				t.Fatal(err)
			}
			if err := set(true); err != nil || len(f.Service.Tasks().Unfinished()) != 1 {
				t.Fatalf("%v, jobs %v", err, f.Service.Tasks().Unfinished())
			}
			if err := set(true); err != nil {
				t.Errorf("once more: %v", err)
			}
			err := set(false)
			if power.KindOf(err) != power.Refused || !strings.Contains(errorText(err), "clear_job_queue") {
				t.Errorf("while a job waits: %v", err)
			}
			if err := f.Machine.Reset(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, time.Minute, "the job has ended", func() bool {
				return len(f.Service.Tasks().Unfinished()) == 0
			})
			if err := set(false); err != nil {
				t.Errorf("after the start: %v", err)
			}
		})
	}
}

// A controller whose Lifecycle Controller is not ready yet declines changes, which are then tried again.
func TestDellNotReady(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Personality(t, "dell-idrac9"), func(c *service.Config) { c.Down = 2 * time.Second })
	d := b.open(b.pool, nil).(*Driver)
	if err := d.c.Post(t.Context(), "/redfish/v1/Managers/iDRAC.Embedded.1/Actions/Manager.Reset",
		map[string]string{"ResetType": "GracefulRestart"}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "the controller answers", func() bool {
		_, err := d.Power(t.Context())
		return err == nil
	})
	if b.Service.Dell().Ready() {
		t.Fatal("it is ready already")
	}
	if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}); err != nil || !b.Service.Dell().Ready() {
		t.Errorf("SetBoot: %v, ready: %v", err, b.Service.Dell().Ready())
	}
}

// A boot mode that is the present one is not sent: at some controllers that makes a job.
func TestBootModeIsSentWhenItDiffers(t *testing.T) {
	b := newBench(t, kit.Personality(t, "dell-idrac9", service.ModeIsJob))
	d := b.open(b.pool, nil).(*Driver)
	for _, tt := range []struct {
		mode string
		jobs int
	}{{"bios", 0}, {"", 0}, {"uefi", 1}, {"uefi", 1}} {
		if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE, Mode: tt.mode}); err != nil {
			t.Fatal(err)
		}
		if tt.mode != "" {
			if err := d.setBootMode(t.Context(), tt.mode); err != nil {
				t.Fatal(err)
			}
		}
		if n := b.Service.Tasks().Made(); n != tt.jobs {
			t.Errorf("mode %q: %d jobs, want %d", tt.mode, n, tt.jobs)
		}
	}
}
