package catalog

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

func names(steps []node.JobStep) string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Interface+"."+s.Name)
	}
	return strings.Join(out, " ")
}

// TestOrder: by priority, then by interface as in Ironic, the conductor's before the agent's.
func TestOrder(t *testing.T) {
	var steps []node.JobStep
	for _, iface := range []string{"raid", "site", "bios", "deploy", "firmware", "management", "power", "vendor",
		"network"} {
		steps = append(steps, node.JobStep{Interface: iface, Name: "s", Priority: 10, InBand: iface == "raid"},
			node.JobStep{Interface: iface, Name: "first", Priority: 20})
	}
	got := names(Ordered(steps))
	want := "network.first vendor.first power.first management.first firmware.first deploy.first bios.first raid.first site.first " +
		"network.s vendor.s power.s management.s firmware.s deploy.s bios.s raid.s site.s"
	if got != want {
		t.Errorf("order is %s\nwant %s", got, want)
	}
}

func TestArgumentTypes(t *testing.T) {
	for _, c := range []struct {
		typ  string
		good []string
		bad  []string
	}{
		{"string", []string{`"x"`, `""`, `null`}, []string{`1`, `true`, `{}`, `[]`}},
		{"integer", []string{`1`, `-3`, `2.0`, `null`}, []string{`1.5`, `"1"`, `true`, `1e300`}},
		{"number", []string{`1.5`, `1`}, []string{`"1"`}},
		{"boolean", []string{`true`, `false`}, []string{`"true"`, `1`}},
		{"object", []string{`{}`}, []string{`[]`, `"{}"`}},
		{"array", []string{`[]`, `["a"]`}, []string{`{}`, `"a"`}},
		{"any", []string{`1`, `"x"`, `{}`, `[]`, `true`}, nil},
	} {
		table := Table{{Interface: "deploy", Name: "s", Args: []AgentStepArg{{Name: "a", Type: c.typ}}}}
		try := func(v string) error {
			_, err := table.Ask(node.JobStep{Interface: "deploy", Name: "s", Args: json.RawMessage(`{"a":` + v + `}`)})
			return err
		}
		for _, v := range c.good {
			if err := try(v); err != nil {
				t.Errorf("%s for %s: %v", v, c.typ, err)
			}
		}
		for _, v := range c.bad {
			var invalid *node.InvalidError
			if err := try(v); !errors.As(err, &invalid) ||
				!strings.Contains(err.Error(), "argument a of step deploy.s is a") {
				t.Errorf("%s for %s: %v", v, c.typ, err)
			}
		}
	}
	var invalid *node.InvalidError
	for _, args := range []string{`[]`, `"x"`, `{"no_such":1}`, `{"skip_block_devices":{}}`} {
		if _, err := Table(BuiltinSteps()).Ask(
			node.JobStep{Interface: "deploy", Name: "erase_devices_metadata", Args: json.RawMessage(args)}); !errors.As(
			err, &invalid) {
			t.Errorf("arguments %s: %v", args, err)
		}
	}
}

// TestReserved: each name is known with what it takes, and nothing else is.
func TestReserved(t *testing.T) {
	for name, want := range map[string]string{StepHold: "", StepWait: "seconds", StepPowerOn: "", StepPowerOff: "",
		StepReboot: ""} {
		if arg, ok := Reserved(name); !ok || arg != want {
			t.Errorf("Reserved(%s) = %q, %v, want %q", name, arg, ok, want)
		}
	}
	if _, ok := Reserved(StepBootInstance); ok {
		t.Errorf("%s is reserved", StepBootInstance)
	}
}
