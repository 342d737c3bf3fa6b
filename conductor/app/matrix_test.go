//go:build !race

package app_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
)

// operations are what is done to each personality's machine through the API, in this order. A deployment by virtual
// media of each is in TestFromEnrolToActiveByVirtualMedia.
var operations = []struct {
	name string
	do   func(m *matrixMachine)
}{
	{"power cycle", func(m *matrixMachine) {
		m.power("power on", "power on")
		starts := len(m.bench.Machine.Boots())
		m.power("rebooting", "power on")
		if now := len(m.bench.Machine.Boots()); now != starts+1 {
			m.Errorf("a reboot started the machine %d times", now-starts)
		}
		m.power("power off", "power off")
	}},
	{"boot once", func(m *matrixMachine) {
		m.ask(204, "PUT", m.path+"/management/boot_device", `{"boot_device":"pxe","persistent":false}`)
		m.power("power on", "power on")
		m.power("rebooting", "power on")
		boots := m.bench.Machine.Boots()
		if first, second := boots[len(boots)-2], boots[len(boots)-1]; first.Device != "pxe" || second.Device == "pxe" {
			m.Errorf("the machine started with %v", boots)
		}
		m.power("power off", "power off")
	}},
	{"inspect", func(m *matrixMachine) {
		m.ask(202, "PUT", m.path+"/states/provision", `{"target":"inspect"}`)
		m.until(m.path, `"provision_state":"manageable"`, `"memory_mb":`, `"cpus":`, `"last_error":null`)
		if out := m.ask(200, "GET", m.path+"/ports", ""); !strings.Contains(out, m.mac) {
			m.Errorf("ports: %s", out)
		}
	}},
	{"BIOS change", func(m *matrixMachine) {
		m.clean(`{"interface":"bios","step":"apply_configuration","args":{"settings":[{"name":"NumLock","value":"Disabled"}]}}`)
		if got := m.bench.Service.BIOS().Now()["NumLock"]; got != "Disabled" {
			m.Errorf("the machine has NumLock %v", got)
		}
		m.clean(`{"interface":"bios","step":"factory_reset"}`)
		if got := m.bench.Service.BIOS().Now()["NumLock"]; got != "Enabled" {
			m.Errorf("after the reset the machine has NumLock %v", got)
		}
	}},
	{"firmware update", func(m *matrixMachine) {
		m.clean(`{"interface":"firmware","step":"update","args":{"settings":[{"component":"bios","url":"` + m.files +
			`bios/99.1"},{"component":"bmc","url":"` + m.files + `bmc/99.2"}]}}`)
		lab := m.bench.Service.Firmware()
		bios, controller := lab.Version(update.BIOS), lab.Version(update.BMC)
		if !strings.Contains(bios, "99.1") || !strings.Contains(controller, "99.2") {
			m.Errorf("the BIOS has %s, the controller %s", bios, controller)
		}
	}},
	{"RAID create and delete", func(m *matrixMachine) {
		m.ask(204, "PUT", m.path+"/states/raid",
			`{"logical_disks":[{"size_gb":100,"raid_level":"1","volume_name":"root","is_root_volume":true}]}`)
		m.clean(`{"interface":"raid","step":"create_configuration"}`)
		if got := m.bench.Service.RAID().Volumes(); len(got) != 1 {
			m.Errorf("volumes %v", got)
		}
		m.clean(`{"interface":"raid","step":"delete_configuration"}`)
		if got := m.bench.Service.RAID().Volumes(); len(got) > 0 {
			m.Errorf("volumes %v", got)
		}
	}},
}

// lacking are operations that the controllers of some personalities do not have in the lab.
var lacking = map[string][]string{"openbmc": {"RAID create and delete"}, "ami": {"RAID create and delete"},
	"hpe-gen9": {"firmware update", "RAID create and delete"}}

// matrixMachine is one personality's machine.
type matrixMachine struct {
	*racked
	path, mac, files string
	bench            *redfish.Bench
}

func (m *matrixMachine) power(target, state string) {
	m.Helper()
	m.ask(202, "PUT", m.path+"/states/power", `{"target":"`+target+`"}`)
	m.until(m.path, `"target_power_state":null`, `"power_state":"`+state+`"`)
}

// clean runs steps that need no agent.
func (m *matrixMachine) clean(steps string) {
	m.Helper()
	m.ask(202, "PUT", m.path+"/states/provision", `{"target":"clean","disable_ramdisk":true,"clean_steps":[`+steps+`]}`)
	ingotd.Wait(m, m.path+" is cleaned", func() bool {
		out := m.ask(200, "GET", m.path, "")
		if strings.Contains(out, `"provision_state":"clean failed"`) {
			_, why, _ := strings.Cut(out, `"last_error":`)
			m.Fatalf("%s: %s", steps, why[:min(len(why), 300)])
		}
		return strings.Contains(out, `"provision_state":"manageable"`)
	})
}

// TestMatrix does every operation to every personality's machine.
func TestMatrix(t *testing.T) {
	r := newRacked(t)
	files := firmwareFiles(t, func() {})
	t.Run("of", func(t *testing.T) {
		for i, personality := range service.Personalities() {
			t.Run(personality, func(t *testing.T) {
				t.Parallel()
				m := &matrixMachine{racked: &racked{t, r.d}, path: "/v1/nodes/" + personality, files: files,
					mac: fmt.Sprintf("52:54:00:00:01:%02x", i)}
				m.bench = redfish.Start(t, redfish.Personality(t, personality),
					func(c *service.Config) {
						c.MACs, c.Took, c.Down = []string{m.mac}, 10*time.Millisecond, time.Second
					})
				m.enrol(personality, m.bench, `,"inspect_interface":"`+interfaceOf(personality, "redfish")+`"`)
				for _, op := range operations {
					if slices.Contains(lacking[personality], op.name) {
						continue
					}
					op.do(m)
					if n := m.bench.Service.MostAtOnce(); n != 1 {
						t.Errorf("%s: %d requests at once, want 1", op.name, n)
					}
				}
				if n := m.bench.Service.Sessions(); n > 1 {
					t.Errorf("%d sessions, want 1 at most", n)
				}
			})
		}
	})
}
