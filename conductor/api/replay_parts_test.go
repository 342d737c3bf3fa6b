package api

import (
	"context"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/ramdisk"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/fake"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
)

// gated is a vendor whose methods take until they are let go, as the delay of the recording server did.
type gated struct {
	hardware.Vendor
	gate chan struct{}
}

func (g gated) Call(ctx context.Context, n *node.Node, method string, params map[string]any) (any, error) {
	select {
	case <-g.gate:
		return g.Vendor.Call(ctx, n, method, params)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func gatedHardware(gate chan struct{}) *hardware.Set {
	plugs := fake.New(new(powerfake.Machines), nil).Plugs()
	plugs["vendor"]["fake"] = gated{plugs["vendor"]["fake"].(hardware.Vendor), gate}
	return hardware.New(func(n *node.Node, kind string) string { return driver.Interfaces(n)[kind] }, plugs)
}

// letGo has the method under way end, and waits until the node is free.
func letGo(ctx context.Context, r *replay) error {
	select {
	case r.gate <- struct{}{}:
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("no method is under way")
	}
	r.srv.parts.Wait()
	n, err := r.st.Node(ctx, "pm")
	if err == nil && n.Reservation != "" {
		err = fmt.Errorf("the node is still locked by %s", n.Reservation)
	}
	return err
}

// cleaning brings the node of the agent's recording to where it waits for its agent.
func cleaning(n *node.Node) {
	n.Provision, n.TargetProvision, n.Power, n.ProvisionUpdatedAt, n.LastError = node.CleanWait, node.Available,
		"power on", later, ""
}

// lookedUp gives the agent the token that the recording goes on with.
func lookedUp(n *node.Node) {
	cleaning(n)
	n.AgentTokenHash = ramdisk.HashToken("53Efr1zCckYm_8qF633rgZzt8z5P2OXOda7H1HaBHQQ") + " " + ramdisk.Era(n)
}
