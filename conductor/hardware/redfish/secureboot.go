package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Steps are Ironic's for this interface.
func (m *Management) Steps(*node.Node) []hardware.Step {
	keys := func(name, does, kind string) hardware.Step {
		return hardware.Step{Interface: "management", Name: name, Description: does, Limit: 2 * m.limit,
			Priority: map[node.Phase]int{node.PhaseDeploy: 0, node.PhaseClean: 0},
			Run: func(ctx context.Context, c hardware.Call) (hardware.Outcome, error) {
				return hardware.Outcome{}, m.do(ctx, c.Node, func(ctx context.Context, d *Driver) error {
					return d.resetKeys(ctx, kind)
				})
			}}
	}
	return []hardware.Step{
		keys("reset_secure_boot_keys_to_default",
			"restores the keys of Secure Boot that the machine came with, from its next start on", "ResetAllKeysToDefault"),
		keys("clear_secure_boot_keys", "deletes all keys of Secure Boot, from the machine's next start on", "DeleteAllKeys"),
		m.clockStep(),
	}
}

// resetKeys has the firmware reset the keys of Secure Boot, as kind says in the words of Redfish.
func (d *Driver) resetKeys(ctx context.Context, kind string) error {
	return d.on(ctx, "reset Secure Boot keys", func(s *controller.System) error {
		lacking := &power.Error{Kind: power.Unsupported,
			Err:  errors.New("the controller does not control the keys of Secure Boot"),
			Hint: "change them in the machine's firmware"}
		var secure struct {
			Actions struct {
				Reset struct {
					Target string
					Types  []string `json:"ResetKeysType@Redfish.AllowableValues"`
				} `json:"#SecureBoot.ResetKeys"`
			}
		}
		if s.SecureBoot == "" {
			return lacking
		}
		_, err := d.c.Read(ctx, string(s.SecureBoot), &secure)
		action := secure.Actions.Reset
		switch {
		case controller.Status(err) == http.StatusNotFound, err == nil && action.Target == "":
			return lacking
		case err != nil:
			return err
		case len(action.Types) > 0 && !slices.Contains(action.Types, kind):
			return &power.Error{Kind: power.Unsupported, Err: fmt.Errorf("the controller has no %s", kind),
				Hint: "change the keys in the machine's firmware"}
		}
		return d.c.Post(ctx, action.Target, map[string]string{"ResetKeysType": kind})
	})
}
