package driver

import (
	"errors"
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/power/fake"
	"github.com/ingot-metal/ingot/conductor/power/ipmi"
	"github.com/ingot-metal/ingot/conductor/power/manual"
)

func TestEveryTypeHasEveryKind(t *testing.T) {
	for _, name := range Names() {
		hw, ok := ByName(name)
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

// What the API says about driver_info is what the power drivers read.
func TestPropertiesAreThoseOfThePowerDrivers(t *testing.T) {
	for name, want := range map[string][]power.Property{"ipmi": ipmi.Properties, "fake-hardware": fake.Properties, "manual-management": manual.Properties} {
		hw, _ := ByName(name)
		for _, p := range want {
			i := slices.IndexFunc(hw.Properties, func(q power.Property) bool { return q.Name == p.Name })
			if i < 0 {
				t.Errorf("%s does not describe %s", name, p.Name)
			} else if hw.Properties[i].Required != p.Required {
				t.Errorf("%s: %s required = %v, its driver says %v", name, p.Name, hw.Properties[i].Required, p.Required)
			}
		}
	}
}

func TestInterfaces(t *testing.T) {
	n := &node.Node{Driver: "ipmi", Interfaces: map[string]string{"boot": "pxe"}}
	used := Interfaces(n)
	if used["boot"] != "pxe" || used["deploy"] != "direct" || used["power"] != "ipmitool" {
		t.Errorf("Interfaces = %v", used)
	}
	hw, _ := ByName("ipmi")
	if err := hw.Check(n.Interfaces); err != nil {
		t.Errorf("Check = %v", err)
	}
	var wrong *InterfaceError
	if err := hw.Check(map[string]string{"deploy": "ansible"}); !errors.As(err, &wrong) || wrong.Kind != "deploy" {
		t.Errorf("Check of a deploy interface that is not there = %v", err)
	}
	if _, ok := ByName("nothing"); ok {
		t.Error("found a type called nothing")
	}
}
