package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// instant is an engine whose machines do everything at once, as Ironic's fake hardware does: these tests are about the
// API.
type instant struct{ s *store.Store }

func (m instant) Provision(ctx context.Context, ident string, r engine.Request) error {
	n, err := m.s.Node(ctx, ident)
	if err != nil {
		return err
	}
	_, err = m.s.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		move := func(v node.Verb) error {
			var err error
			n.Provision, n.TargetProvision, err = node.Next(n.Provision, n.TargetProvision, v)
			n.ProvisionUpdatedAt = time.Now().Add(2 * time.Second)
			return err
		}
		if err := move(r.Verb); err != nil {
			return err
		}
		n.LastError = ""
		if r.Verb == node.Abort {
			n.LastError = "By request, the clean operation was aborted"
		}
		if r.ConfigDrive != nil {
			n.InstanceInfo = rest.Clone(n.InstanceInfo)
			n.InstanceInfo["configdrive"] = "set"
		}
		for n.Provision.IsWorking() {
			v := node.Done
			switch {
			case n.Provision == node.Inspecting:
				n.InspectionFinishedAt = time.Now()
			case n.Provision == node.Deleting:
				n.InstanceInfo = nil
				v = node.Clean
			case n.Provision == node.Cleaning && n.TargetProvision == node.Manageable:
				v = node.ToMgmt
				for i, st := range r.CleanSteps {
					if err := m.step(ctx, n, st, i); err != nil {
						v, n.LastError = node.Fail, err.Error()
						break
					}
				}
				if len(r.CleanSteps) > 0 && r.CleanSteps[0].Name == "factory_reset" {
					v, n.LastError = node.Fail,
						fmt.Sprintf("Cannot clean node %s: clean step {'interface': 'bios', 'step': 'factory_reset', 'args': {'a': 1}} has these unexpected arguments: a", n.UUID)
				}
			}
			if err := move(v); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// step does one step of the conductor's, at once.
func (m instant) step(ctx context.Context, n *node.Node, st node.JobStep, i int) error {
	step, ok := fakeHardware().Step(n, st.Interface, st.Name)
	if !ok {
		return fmt.Errorf("there is no step %s.%s", st.Interface, st.Name)
	}
	args := map[string]any{}
	if len(st.Args) > 0 {
		if err := json.Unmarshal(st.Args, &args); err != nil {
			return err
		}
	}
	if err := step.CheckArgs(n, args); err != nil {
		return err
	}
	out, err := step.Run(ctx, hardware.Call{Node: n, Args: args, Begun: time.Now(), ID: fmt.Sprintf("job/%d", i)})
	if err != nil || out.Apply == nil {
		return err
	}
	return out.Apply(n, new(node.SideEffects))
}

func (m instant) SetPower(ctx context.Context, ident, target string, _ time.Duration, _ string) error {
	_, err := m.s.UpdateNode(ctx, ident, func(n *node.Node) error {
		n.Power = "power on"
		if target == "power off" || target == "soft power off" {
			n.Power = "power off"
		}
		return nil
	})
	return err
}

func (m instant) SetBootDevice(context.Context, string, string, bool, string) error { return nil }

func (m instant) BootDevice(context.Context, string) (string, bool, error) { return "pxe", false, nil }

func (m instant) BootDevices(context.Context, string) ([]string, error) { return []string{"pxe"}, nil }

func (m instant) Validate(ctx context.Context, ident string) (map[string]engine.Validation, error) {
	out, yes := map[string]engine.Validation{}, true
	for _, kind := range driver.Kinds {
		out[kind] = engine.Validation{Result: &yes}
	}
	return out, nil
}

func (m instant) Progress(string) (node.Progress, bool) {
	return node.Progress{PlanID: "plan", Step: "write_image", Bytes: 10, Total: 40, Rate: 5}, true
}

// stored makes the nodes that recordings take for granted, in the order in which lists show them.
func stored(s *store.Store, nodes ...node.Node) error {
	for i := range nodes {
		n := &nodes[i]
		if n.Driver == "" {
			n.Driver = "fake-hardware"
		}
		if err := s.CreateNode(context.Background(), n); err != nil {
			return fmt.Errorf("make node %s: %w", n.Name, err)
		}
	}
	return nil
}
