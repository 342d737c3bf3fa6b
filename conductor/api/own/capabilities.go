package own

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// getCapabilities shows what each hardware type and interface really does.
func (s *Handlers) getCapabilities(_ context.Context, c *call.Call) (*call.Reply, error) {
	return &call.Reply{Status: http.StatusOK, Body: Capabilities(s.cfg.Drivers, s.cfg.Hardware)}, nil
}

// Capabilities lists for each hardware type the interfaces and what each of them can do.
func Capabilities(types *driver.Table, set *hardware.Set) rest.Capabilities {
	var out rest.Capabilities
	has := map[[2]string][]string{}
	for _, name := range types.Names() {
		t, _ := types.ByName(name)
		shown := rest.HardwareType{Name: name, Description: t.Description,
			Interfaces: map[string]rest.InterfaceChoice{}}
		for _, kind := range driver.Kinds {
			shown.Interfaces[kind] = rest.InterfaceChoice{Default: t.Default(kind), Enabled: t.Enabled(kind)}
			for _, iface := range t.Enabled(kind) {
				has[[2]string{kind, iface}] = append(has[[2]string{kind, iface}], name)
			}
		}
		out.HardwareTypes = append(out.HardwareTypes, shown)
	}
	for _, kind := range slices.Sorted(slices.Values(driver.Kinds)) {
		var names []string
		for key := range has {
			if key[0] == kind {
				names = append(names, key[1])
			}
		}
		slices.Sort(names)
		for _, name := range names {
			i, _ := driver.Find(kind, name)
			users := has[[2]string{kind, name}]
			out.Interfaces = append(out.Interfaces, rest.HardwareInterface{
				Kind: kind, Name: name, Description: i.Description, HardwareTypes: users,
				Features: orNone(i.Features), Verbs: orNone(i.Verbs), Steps: stepsOf(set, users[0], kind, name),
			})
		}
	}
	return out
}

func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// stepsOf lists the steps of an interface: those that the conductor does, or for the agent's interfaces the agent's.
func stepsOf(set *hardware.Set, typ, kind, name string) []rest.InterfaceStep {
	steps := []rest.InterfaceStep{}
	n := &node.Node{Driver: typ, Interfaces: map[string]string{}}
	for _, k := range driver.Kinds {
		n.Interfaces[k] = "none"
	}
	n.Interfaces[kind] = name
	// Some steps are there only when they are to take time or to fail.
	n.DriverInfo = map[string]any{"fake_fail": map[string]any{"deploy.write_image": 0.0}}
	for _, st := range set.Steps(n) {
		shown := showStep(st.Interface, st.Name, st.Priority)
		for _, a := range st.Args {
			if a.Required {
				a.Name += "*"
			}
			shown.Args = append(shown.Args, a.Name)
		}
		steps = append(steps, shown)
	}
	if (kind != "deploy" || name != "direct") && (kind != "inspect" || name != "agent") {
		return steps
	}
	for _, st := range catalog.BuiltinSteps() {
		if st.Interface != kind {
			continue
		}
		shown := showStep(st.Interface, st.Name, st.Priority)
		maps.DeleteFunc(shown.Phases, func(_ string, p int) bool { return p <= 0 })
		for _, a := range st.Args {
			shown.Args = append(shown.Args, a.Name)
		}
		steps = append(steps, shown)
	}
	return steps
}

func showStep[P ~string](iface, name string, priority map[P]int) rest.InterfaceStep {
	shown := rest.InterfaceStep{Interface: iface, Step: name, Args: []string{}, Phases: map[string]int{}}
	for phase, p := range priority {
		shown.Phases[string(phase)] = p
	}
	return shown
}
