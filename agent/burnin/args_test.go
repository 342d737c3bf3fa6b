package burnin

import (
	"encoding/json"
	"testing"

	"github.com/ingot-metal/ingot/agent/step"
)

// TestArgs binds what the steps declare to what they read: every argument that is declared is understood, and no other;
// bounds hold.
func TestArgs(t *testing.T) {
	for name, of := range map[string]struct {
		args []step.Arg
		into func() any
		bad  []string
	}{
		"burnin_cpu": {CPUArgs, func() any { return &cpuArgs{} },
			[]string{`{"runtime": -1}`, `{"min_core_percent": 101}`, `{"runtime": "day"}`}},
		"burnin_memory": {MemoryArgs, func() any { return &memoryArgs{} },
			[]string{`{"percent": 99}`, `{"percent": 0}`, `{"max_mib": 0}`}},
		"burnin_disk": {DiskArgs, func() any { return &diskArgs{} },
			[]string{`{"loops": 0}`, `{"destructive": 1}`, `{"min_sibling_percent": 200}`}},
		"burnin_network": {NetworkArgs, func() any { return &networkArgs{} },
			[]string{`{"role": "reader"}`, `{"role": "both", "partner": "192.0.2.1"}`,
				`{"role": "reader", "partner": "192.0.2.1", "port": 70000}`,
				`{"role": "reader", "partner": "192.0.2.1", "streams": 65}`}},
	} {
		s := step.Step{Row: step.Row{Interface: "deploy", Name: name, Args: of.args}, Run: MemoryStep(nil)}
		if err := step.Check([]step.Step{s}); err != nil {
			t.Error(err)
		}
		all := map[string]any{}
		for _, a := range of.args {
			switch {
			case a.Enum != nil:
				all[a.Name] = a.Enum[0]
			case a.Type == "boolean":
				all[a.Name] = true
			case a.Type == "string":
				all[a.Name] = "192.0.2.1"
			case a.Type == "array":
				all[a.Name] = []any{}
			default:
				all[a.Name] = 1
			}
		}
		b, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.CheckArgs(b); err != nil {
			t.Errorf("%s refuses %s: %v", name, b, err)
		}
		into := of.into()
		if err := call(string(b)).Decode(into); err != nil {
			t.Errorf("%s does not understand %s: %v", name, b, err)
		}
		// Each argument that is read is declared: encoded again, it has no other names.
		again, err := json.Marshal(into)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.CheckArgs(again); err != nil {
			t.Errorf("%s reads what it does not declare: %v", name, err)
		}
		for _, bad := range of.bad {
			if err := s.CheckArgs([]byte(bad)); err == nil {
				t.Errorf("%s accepts %s", name, bad)
			}
		}
	}
}
