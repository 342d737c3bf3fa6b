//go:build !race

package app_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
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
}

// matrixMachine is one personality's machine.
type matrixMachine struct {
	*racked
	path, mac string
	bench     *redfish.Bench
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
	t.Run("of", func(t *testing.T) {
		for i, personality := range service.Personalities() {
			t.Run(personality, func(t *testing.T) {
				t.Parallel()
				m := &matrixMachine{racked: &racked{t, r.d}, path: "/v1/nodes/" + personality,
					mac: fmt.Sprintf("52:54:00:00:01:%02x", i)}
				m.bench = redfish.Start(t, redfish.Personality(t, personality),
					func(c *service.Config) { c.MACs = []string{m.mac} })
				m.enrol(personality, m.bench, `,"inspect_interface":"`+interfaceOf(personality, "redfish")+`"`)
				for _, op := range operations {
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
