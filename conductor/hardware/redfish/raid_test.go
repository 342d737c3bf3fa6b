package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/storage"
)

// array carries out steps of the raid interface as the engine does.
type array struct {
	*bench
	raid      *RAID
	n         *node.Node
	forgetful bool
	restarts  int
}

func newArray(t *testing.T, p service.Personality, change ...func(*service.Config)) *array {
	t.Helper()
	b := newBench(t, p, change...)
	a := &array{bench: b, raid: NewRAID(b.management()), n: b.node()}
	a.raid.Poll, a.raid.Settle, a.raid.Patience = 5*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
	return a
}

func (a *array) run(name string, args map[string]any) (err error) {
	a.Helper()
	a.restarts, err = a.carryOut(a.n, a.raid.Steps(a.n), name, args, a.forgetful)
	return err
}

// target sets target_raid_config, given as the items of its list.
func (a *array) target(disks string) {
	a.Helper()
	a.n.TargetRAID = nil
	if err := json.Unmarshal([]byte(`{"logical_disks":[`+disks+`]}`), &a.n.TargetRAID); err != nil {
		a.Fatal(err)
	}
}

// kept are the logical disks of raid_config in short.
func (a *array) kept() (all []string) {
	list, _ := a.n.RAIDConfig["logical_disks"].([]any)
	for _, v := range list {
		d := v.(map[string]any)
		all = append(all,
			fmt.Sprint(d["name"], " ", d["raid_level"], " ", d["size_gb"], " ", d["is_root_volume"] == true))
	}
	return all
}

const rootAndData = `{"size_gb":100,"raid_level":"1","volume_name":"root","is_root_volume":true},
	{"size_gb":"MAX","raid_level":"5","volume_name":"data","number_of_physical_disks":4}`

// withRAID are the personalities that have a RAID controller, and how often they restart the machine to make two
// volumes.
var withRAID = map[string]int{"generic": 0, "dell-idrac9": 0, "dell-idrac9-5": 2, "dell-idrac10": 0, "hpe-ilo5": 2,
	"hpe-ilo6": 0, "lenovo-xcc": 0, "supermicro": 0}

// Volumes of every personality are made, and deleted, at once or at restarts of the machine, whichever answers get
// lost: never one twice. The node's record has them, and the root volume is its root device.
func TestRAIDOfEveryPersonality(t *testing.T) {
	for name, restarts := range withRAID {
		for _, forgetful := range []bool{false, true} {
			if forgetful && !slices.Contains([]string{"generic", "dell-idrac9-5", "supermicro"}, name) {
				continue
			}
			t.Run(fmt.Sprint(name, " ", forgetful), func(t *testing.T) {
				t.Parallel()
				a := newArray(t, kit.Personality(t, name), func(c *service.Config) { c.Took = 15 * time.Millisecond })
				a.forgetful = forgetful
				lab := a.Service.RAID()
				a.target(rootAndData)
				if err := a.run("create_configuration", nil); err != nil || a.restarts != restarts+1 {
					t.Fatalf("%d restarts, %v; volumes %v", a.restarts, err, lab.Volumes())
				}
				if got := lab.Volumes(); !slices.Equal(got, []string{"root RAID1 2", "data RAID5 4"}) ||
					lab.Asked() != 2 {
					t.Errorf("volumes %v after %d requests", got, lab.Asked())
				}
				if got := a.kept(); !slices.Equal(got, []string{"root 1 100 true", "data 5 2679 false"}) {
					t.Errorf("raid_config has %v", got)
				}
				hint, _ := a.n.Properties["root_device"].(map[string]any)
				if hint["wwn"] != "0x600508b1001c00000000000000000001" || a.n.Properties["local_gb"] != int64(100) ||
					a.n.Properties["capabilities"] != "raid_level:1" {
					t.Errorf("properties %v", a.n.Properties)
				}
				if err := a.run("create_configuration", nil); err == nil || a.restarts != 0 ||
					!strings.Contains(err.Error(), "nothing was changed") || len(lab.Volumes()) != 2 {
					t.Errorf("the same again: %d restarts, %v, volumes %v", a.restarts, err, lab.Volumes())
				}
				a.target(`{"size_gb":50,"raid_level":"1+0","volume_name":"other"}`)
				if err := a.run("create_configuration", map[string]any{"delete_existing": true}); err != nil {
					t.Fatal(err)
				}
				if got := lab.Volumes(); !slices.Equal(got, []string{"other RAID10 4"}) ||
					a.n.Properties["root_device"] != nil {
					t.Errorf("volumes %v, properties %v", got, a.n.Properties)
				}
				lab.Make("", "RAID0", 1)
				if err := a.run("delete_configuration", nil); err != nil || a.restarts != restarts {
					t.Errorf("%d restarts, %v", a.restarts, err)
				}
				if len(lab.Volumes()) > 0 || len(a.kept()) > 0 {
					t.Errorf("volumes %v, raid_config %v", lab.Volumes(), a.n.RAIDConfig)
				}
			})
		}
	}
}

// A conductor that dies between any two calls of a controller's service goes on where it was: no volume is made twice.
func TestRAIDGoesOn(t *testing.T) {
	for _, name := range []string{"generic", "dell-idrac9-5", "supermicro"} {
		a := newArray(t, kit.Personality(t, name), func(c *service.Config) { c.Took = 5 * time.Millisecond })
		a.target(rootAndData)
		steps := a.raid.Steps(a.n)
		call := hardware.Call{Node: a.n, Begun: time.Now()}
		if err := a.Machine.Start(); err != nil {
			t.Fatal(err)
		}
		// Each call is cut off after some more requests than the one before, from the same memory, before it is let
		// through.
		for cut := 1; ; {
			before := a.Service.Requests()
			ctx, cancel := cutOff(t, a.Service, before+cut)
			out, err := steps[0].Run(ctx, call)
			done := ctx.Err() == nil
			cancel()
			if !done && cut < 30 {
				cut += 3
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			cut = 1
			if out.Restart {
				if err := a.Machine.Reset(); err != nil {
					t.Fatal(err)
				}
			} else if out.After == 0 {
				break
			}
			call.Memory = out.Memory
			time.Sleep(out.After)
		}
		if got := a.Service.RAID().Volumes(); len(got) != 2 || a.Service.RAID().Asked() != 2 {
			t.Errorf("%s: volumes %v after %d requests", name, got, a.Service.RAID().Asked())
		}
	}
}

// The steps' failures name what was not done, in the controller's words.
func TestRAIDFails(t *testing.T) {
	for _, tt := range []struct {
		name, personality string
		behaviour         service.Behaviour
		disks, want       string
		left              int // volumes
	}{
		{"the work fails", "dell-idrac10", service.WorkFails, rootAndData, "did not make a volume of type RAID1 on 2 disks: The work failed", 0},
		{"nothing is done", "generic", storage.ForgetsVolumes, rootAndData, "does not show that it is done", 0},
		{"nothing is done at a restart", "hpe-ilo5", storage.ForgetsVolumes, rootAndData, "does not show that it is done", 0},
		{"no RAID controller", "openbmc", "", rootAndData, "the machine has no RAID controller; nothing was changed", 0},
		{"impossible", "generic", "", `{"size_gb":100,"raid_level":"6+0"}`, "RAID-1 has no level 6+0; nothing was changed", 0},
		{"one of two is impossible", "generic", "", `{"size_gb":10,"raid_level":"6"},{"size_gb":10,"raid_level":"5"}`,
			"logical disk 2: RAID-1: level 5 needs 3 or more free disks", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newArray(t, kit.Personality(t, tt.personality, tt.behaviour))
			a.target(tt.disks)
			if err := a.run("create_configuration", nil); !strings.Contains(errorText(err), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if got := a.Service.RAID().Volumes(); len(got) != tt.left {
				t.Errorf("volumes %v", got)
			}
		})
	}
}

// A controller that says nothing of its tasks, and one that shows types of volumes as older ones do, are used, too;
// work that should be done at once and waits gets a restart of the machine.
func TestRAIDOfOddControllers(t *testing.T) {
	for personality, behaviour := range map[string]service.Behaviour{"hpe-ilo5": service.SilentTasks,
		"supermicro": service.SilentTasks, "generic": storage.OldVolumeTypes} {
		a := newArray(t, kit.Personality(t, personality, behaviour))
		a.target(rootAndData)
		if err := a.run("create_configuration", nil); err != nil || len(a.Service.RAID().Volumes()) != 2 ||
			len(a.kept()) != 2 {
			t.Errorf("%s: %v, volumes %v, %v", personality, err, a.Service.RAID().Volumes(), a.kept())
		}
	}
}

// What no controller can make is refused when it is set; arguments are checked before the machine is touched.
func TestRAIDChecks(t *testing.T) {
	a := newArray(t, kit.Personality(t, "generic"))
	for _, disk := range []string{`{"size_gb":1,"raid_level":"JBOD"}`, `{"size_gb":1,"raid_level":"1","interface_type":"scsi"}`,
		`{"size_gb":"many","raid_level":"1"}`} {
		a.target(disk)
		if err := a.raid.Check(a.n, a.n.TargetRAID); err == nil {
			t.Errorf("%s is taken", disk)
		}
		for _, args := range []map[string]any{{"raid_config": a.n.TargetRAID}, {}, {"raid_config": map[string]any{}}} {
			if err := a.run("apply_configuration", args); err == nil {
				t.Errorf("apply_configuration %v is taken", args)
			}
		}
		if err := a.run("create_configuration", nil); err == nil || power.KindOf(err) != "" {
			t.Errorf("create_configuration: %v", err)
		}
	}
	a.n.TargetRAID = nil
	if err := a.run("create_configuration", nil); !strings.Contains(errorText(err), "no target_raid_config") {
		t.Error(err)
	}
	if n := a.Service.Requests(); n > 20 || len(a.Machine.Boots()) > 0 {
		t.Errorf("%d requests, the machine was started: %v", n, a.Machine.Boots())
	}
	a.target(rootAndData)
	config := a.n.TargetRAID
	a.n.TargetRAID = nil
	err := a.run("apply_configuration", map[string]any{"raid_config": config, "create_nonroot_volumes": false})
	if err != nil || len(a.Service.RAID().Volumes()) != 1 || len(a.n.TargetRAID) != 1 {
		t.Errorf("%v, volumes %v, target %v", err, a.Service.RAID().Volumes(), a.n.TargetRAID)
	}
}

// A hostile controller gets no more requests than are set, and writes nothing to a terminal.
func TestHostileRAID(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			a := newArray(t, kit.Personality(t, "generic", behaviour),
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			a.Service.RAID().Make("evil\x1b[2J"+strings.Repeat("x", 1000)+kit.Password, "RAID1", 2)
			a.target(`{"size_gb":1,"raid_level":"1"}`)
			err := a.run("create_configuration", nil)
			mild := slices.Contains([]service.Behaviour{service.LinksInLoops, service.EscapesInNames}, behaviour)
			if mild != (err == nil) {
				t.Errorf("%v", err)
			}
			for _, said := range []string{errorText(err), fmt.Sprint(a.n.RAIDConfig)} {
				if strings.ContainsAny(said, "\x1b\x07") || strings.Contains(said, kit.Password) || len(said) > 10_000 {
					t.Errorf("it says %.300q", said)
				}
			}
			if n := a.Service.Requests(); n > 900 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// cutOff is a context that ends when a service has got so many requests.
func cutOff(t *testing.T, s *service.Service, requests int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if s.Requests() >= requests {
				cancel()
			}
			time.Sleep(20 * time.Microsecond)
		}
	}()
	return ctx, cancel
}
