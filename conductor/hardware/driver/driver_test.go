package driver

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/openstack"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/hardware/power/ipmi"
	"github.com/ingot-metal/ingot/conductor/hardware/power/manual"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish"
	"github.com/ingot-metal/ingot/conductor/node"
)

func TestEveryTypeHasEveryKind(t *testing.T) {
	for _, name := range All().Names() {
		hw, ok := All().ByName(name)
		if !ok {
			t.Fatalf("%s is not found by its name", name)
		}
		for _, kind := range Kinds {
			if hw.Default(kind) == "" {
				t.Errorf("%s has no %s interface", name, kind)
			}
		}
		for kind := range hw.Interfaces {
			if !slices.Contains(Kinds, kind) {
				t.Errorf("%s has interfaces of unknown kind %s", name, kind)
			}
		}
	}
}

// The properties of driver_info in the API are those that the power drivers read.
func TestPropertiesAreThoseOfThePowerDrivers(t *testing.T) {
	for name, want := range map[string][]power.Property{"ipmi": ipmi.Properties, "fake-hardware": fake.Properties,
		"manual-management": manual.Properties, "redfish": redfish.Properties, "idrac": redfish.Properties,
		"openstack": openstack.Properties} {
		hw, _ := All().ByName(name)
		for _, p := range want {
			i := slices.IndexFunc(hw.Properties, func(q power.Property) bool { return q.Name == p.Name })
			if i < 0 {
				t.Errorf("%s does not describe %s", name, p.Name)
			} else if hw.Properties[i].Required != p.Required {
				t.Errorf("%s: %s required = %v, its driver says %v", name, p.Name, hw.Properties[i].Required,
					p.Required)
			}
		}
	}
}

func TestInterfaces(t *testing.T) {
	n := &node.Node{Driver: "ipmi", Interfaces: map[string]string{"boot": "pxe"}}
	used := All().Interfaces(n)
	if used["boot"] != "pxe" || used["deploy"] != "direct" || used["power"] != "ipmitool" {
		t.Errorf("Interfaces = %v", used)
	}
	hw, _ := All().ByName("ipmi")
	if got := All().Interface(n, "boot") + " " + All().Interface(n, "deploy"); got != "pxe direct" {
		t.Errorf("Interface of boot and deploy = %s", got)
	}
	if err := hw.Check(n.Interfaces); err != nil {
		t.Errorf("Check = %v", err)
	}
	var wrong *InterfaceError
	if err := hw.Check(map[string]string{"deploy": "ansible"}); !errors.As(err, &wrong) || wrong.Kind != "deploy" {
		t.Errorf("Check of a deploy interface that is not there = %v", err)
	}
	if _, ok := All().ByName("nothing"); ok {
		t.Error("found a type called nothing")
	}
}

func TestCheck(t *testing.T) {
	ipmi, _ := All().ByName("ipmi")
	var notFor *IncompatibleError
	if err := ipmi.Check(map[string]string{"console": "fake"}); !errors.As(err, &notFor) || notFor.Kind != "console" ||
		notFor.Type != "ipmi" {
		t.Errorf("Check of an interface of another type = %v", err)
	}
	fakes, _ := All().ByName("fake-hardware")
	if err := fakes.Check(map[string]string{"power": "ipmitool"}); err != nil {
		t.Errorf("Check of fake-hardware with ipmitool = %v, want any enabled interface to go", err)
	}
}

func TestConfig(t *testing.T) {
	table, err := New(
		Config{Types: []string{"ipmi", "fake-hardware"},
			Enabled: map[string][]string{"boot": {"pxe", "fake", "ipxe"}, "bios": {"no-bios"}},
			Default: map[string]string{"boot": "pxe"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := table.Names(); !slices.Equal(got, []string{"fake-hardware", "ipmi"}) {
		t.Errorf("Names = %v", got)
	}
	if _, ok := table.ByName("manual-management"); ok {
		t.Error("a type that is not enabled is found")
	}
	for name, want := range map[string]string{"ipmi": "pxe", "fake-hardware": "pxe"} {
		typ, _ := table.ByName(name)
		if typ.Default("boot") != want {
			t.Errorf("default boot interface of %s = %s, want %s", name, typ.Default("boot"), want)
		}
	}
	typ, _ := table.ByName("fake-hardware")
	if got := typ.Enabled("bios"); !slices.Equal(got, []string{"no-bios"}) {
		t.Errorf("enabled BIOS interfaces = %v", got)
	}
	var none *InterfaceError
	if err := typ.Check(map[string]string{"bios": "fake"}); !errors.As(err, &none) ||
		!slices.Equal(none.Valid, []string{"no-bios"}) {
		t.Errorf("Check of an interface that is not enabled = %v", err)
	}
	for _, c := range []struct {
		c    Config
		want []string
	}{
		{Config{Types: []string{"ilo"}}, []string{`no hardware type "ilo"`}},
		{Config{Enabled: map[string][]string{"boot": {"uefi-http"}, "bots": {"x"}}},
			[]string{`no boot interface "uefi-http"`, "enabled_bots_interfaces"}},
		{Config{Enabled: map[string][]string{"boot": {"ipxe"}}, Default: map[string]string{"boot": "pxe"}},
			[]string{`default_boot_interface: "pxe" is not enabled`}},
		{Config{Enabled: map[string][]string{"power": {"fake"}}},
			[]string{"enabled_power_interfaces: the enabled hardware type ipmi supports none"}},
		{Config{Default: map[string]string{"console": "fake"}},
			[]string{"default_console_interface: fake is not supported by the enabled hardware type ipmi"}},
	} {
		_, err := New(c.c)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("New(%v) = %v, want %q", c.c, err, want)
			}
		}
	}
}

func TestEveryInterfaceSaysWhatItDoes(t *testing.T) {
	used := map[string]bool{}
	for _, name := range Names() {
		typ, _ := ByName(name)
		for _, kind := range Kinds {
			for _, iface := range typ.Enabled(kind) {
				used[kind+" "+iface] = true
				if i, ok := Find(kind, iface); !ok || i.Description == "" {
					t.Errorf("%s interface %s of %s does not say what it does", kind, iface, name)
				}
			}
		}
	}
	if len(used) != len(interfaces) {
		t.Errorf("%d interfaces are described, types have %d", len(interfaces), len(used))
	}
}
