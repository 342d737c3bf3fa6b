package app

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/driver"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/power/fake"
)

func TestHardwareOfTheConfiguration(t *testing.T) {
	cfg := config.Default()
	if _, err := hardwareTypes(cfg.Hardware); err != nil {
		t.Errorf("the default: %v", err)
	}
	cfg.Hardware.EnabledTypes, cfg.Hardware.EnabledBootInterfaces, cfg.Hardware.DefaultBIOSInterface = []string{"ilo"}, []string{"pixie"}, "no-boss"
	_, err := hardwareTypes(cfg.Hardware)
	for _, want := range []string{"enabled_hardware_types", "enabled_boot_interfaces", "default_bios_interface"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a wrong configuration: %v, want %s named", err, want)
		}
	}
	// Every kind can be set.
	enabled, def := cfg.Hardware.Enabled(), cfg.Hardware.Default()
	for _, kind := range driver.Kinds {
		if _, ok := enabled[kind]; !ok {
			t.Errorf("there is no key enabled_%s_interfaces", kind)
		}
		if _, ok := def[kind]; !ok {
			t.Errorf("there is no key default_%s_interface", kind)
		}
	}
}

// Every power interface of every type can be opened, and everything that is called fake has something behind it.
func TestEveryInterfaceIsThere(t *testing.T) {
	machines := new(fake.Machines)
	d := drivers{powerDrivers(machines, new(agentLink)), driver.All(), nil}
	d.log = logger(config.Default(), t.Output())
	set := plugs(driver.All(), machines)
	for _, name := range driver.Names() {
		typ, _ := driver.ByName(name)
		for _, iface := range typ.Enabled("power") {
			n := &node.Node{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Driver: name, Interfaces: map[string]string{"power": iface}, DriverInfo: map[string]any{"ipmi_address": "192.0.2.1"}}
			drv, err := d.Open(n)
			if err != nil {
				t.Errorf("%s with power interface %s: %v", name, iface, err)
				continue
			}
			if err := drv.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	n := &node.Node{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Driver: "fake-hardware"}
	if _, err := set.Console(n).Info(t.Context(), n); err != nil {
		t.Errorf("the console of fake hardware: %v", err)
	}
	kinds := map[string]bool{}
	for _, s := range set.Steps(n) {
		kinds[s.Interface] = true
	}
	for _, kind := range []string{"deploy", "bios", "raid", "firmware", "inspect", "rescue", "vendor"} {
		if !kinds[kind] {
			t.Errorf("fake hardware has no %s steps", kind)
		}
	}
	var not *hardware.UnsupportedError
	n.Driver = "ipmi"
	if err := set.Console(n).Start(t.Context(), n); err == nil {
		t.Error("ipmi has a console")
	} else if not = err.(*hardware.UnsupportedError); not.Driver != "ipmi" {
		t.Errorf("the refusal is of %s", not.Driver)
	}
	for info, want := range map[string]string{"nothing": "hardware type", "fake-hardware": "power interface"} {
		n := &node.Node{Driver: info, Interfaces: map[string]string{"power": "steam"}}
		if _, err := d.Open(n); power.KindOf(err) != power.Config || !strings.Contains(err.Error(), want) {
			t.Errorf("Open of %s with steam = %v, want a word on the %s", info, err, want)
		}
	}
}
