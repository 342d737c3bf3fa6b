package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/network/switches"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// switchNetwork is network interface switch.
type switchNetwork struct{ plug *switches.Plug }

// switchPlug reads the table of switches.
func switchPlug(cfg config.Config, st *store.Store, log *slog.Logger) (networkPlug, error) {
	t, err := switches.Load(cfg.Switches.File)
	if err != nil {
		return nil, fmt.Errorf("switches.file: %w", err)
	}
	return switchNetwork{switches.New(t, cabling{st}, log)}, nil
}

// stateOf returns the purpose for which a node is on a network.
func stateOf(n *node.Node, to engine.NetworkName) switches.State {
	switch {
	case to == engine.TenantNetwork:
		return switches.Tenant
	case to == engine.NoNetwork:
		return switches.Quarantine
	case n.Job != nil && n.Job.Phase == node.PhaseClean:
		return switches.Cleaning
	case n.Job != nil && n.Job.Phase == node.PhaseInspect:
		return switches.Inspecting
	}
	return switches.Provisioning
}

// Attach configures the node's switch ports.
func (s switchNetwork) Attach(ctx context.Context, n *node.Node, to engine.NetworkName) error {
	return s.plug.Attach(ctx, n, stateOf(n, to))
}

// Validate reports what a node lacks for a deployment.
func (s switchNetwork) Validate(ctx context.Context, n *node.Node) error {
	return s.plug.Validate(ctx, n)
}

// Switches reports whether an agent that was kept after cleaning is moved.
func (s switchNetwork) Switches(context.Context, *node.Node, engine.NetworkName) (bool, error) {
	return s.plug.Moves(), nil
}

// ServesInstance is false: the instance is in a tenant's VLAN.
func (switchNetwork) ServesInstance() bool { return false }

// cabling reads the records of ports in the store.
type cabling struct{ st *store.Store }

func (c cabling) PortsOf(ctx context.Context, nodeUUID string) ([]*node.Port, error) {
	return c.st.Ports(ctx, store.PortQuery{NodeUUID: &nodeUUID})
}

func (c cabling) GroupsOf(ctx context.Context, nodeUUID string) ([]*node.Portgroup, error) {
	return c.st.Portgroups().List(ctx, nodeUUID)
}

func (c cabling) PortsAt(ctx context.Context, switchID string) ([]*node.Port, error) {
	return c.st.Ports(ctx, store.PortQuery{SwitchID: &switchID})
}

// detach takes the networks, or the ports of Neutron, that were attached to a node from its ports and port groups.
func (c cabling) detach(ctx context.Context, nodeUUID string) error {
	ports, err := c.PortsOf(ctx, nodeUUID)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.InternalInfo[switches.VIFKey] == nil {
			continue
		}
		_, err := c.st.UpdatePort(ctx, p.UUID, func(p *node.Port) error {
			p.InternalInfo = without(p.InternalInfo)
			return nil
		})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	groups, err := c.GroupsOf(ctx, nodeUUID)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.InternalInfo[switches.VIFKey] == nil {
			continue
		}
		_, err := c.st.Portgroups().Update(ctx, g.UUID, func(g *node.Portgroup) error {
			g.InternalInfo = without(g.InternalInfo)
			return nil
		})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// without returns what a port keeps without its network.
func without(info map[string]any) map[string]any {
	info = maps.Clone(info)
	delete(info, switches.VIFKey)
	return info
}
