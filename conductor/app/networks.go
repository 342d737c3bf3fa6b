package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
)

// networkPlug is one way to bring machines to networks.
type networkPlug interface {
	engine.Network
	// ServesInstance reports whether an instance stays on the provisioning network and gets its address there.
	ServesInstance() bool
}

// networkPlugs is the table of network plugs, by the name of the node's network interface: those that are always there,
// and those that the configuration sets up. detach takes what tenants attached from all ports of a node; it may be nil.
func networkPlugs(types *driver.Table, configured map[string]networkPlug,
	detach func(ctx context.Context, nodeUUID string) error) networks {
	plugs := map[string]networkPlug{
		"noop": sharedNetwork{},
		"flat": sharedNetwork{serves: true},
	}
	maps.Copy(plugs, configured)
	return networks{types: types, plugs: plugs, detach: detach}
}

// networks picks each node's plug; to the engine it is the one network.
type networks struct {
	types  *driver.Table
	plugs  map[string]networkPlug
	detach func(ctx context.Context, nodeUUID string) error
}

func (t networks) of(n *node.Node) (networkPlug, error) {
	name := t.types.Interface(n, "network")
	if p, ok := t.plugs[name]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("there is no network interface %q: set the node's network_interface to one of %s", name,
		strings.Join(slices.Sorted(maps.Keys(t.plugs)), ", "))
}

// Attach connects the node's ports to a network. One that is torn down loses what its tenant had attached, as in
// Ironic; one that is off, as after a deployment that failed, keeps it.
func (t networks) Attach(ctx context.Context, n *node.Node, to engine.NetworkName) error {
	p, err := t.of(n)
	if err != nil {
		return err
	}
	if err := p.Attach(ctx, n, to); err != nil || to != engine.NoNetwork || n.Job == nil ||
		n.Job.Phase != node.PhaseDelete || t.detach == nil {
		return err
	}
	return t.detach(ctx, n.UUID)
}

// Validate reports what a node lacks for its network interface; a plug without requirements has no such method.
func (t networks) Validate(ctx context.Context, n *node.Node) error {
	p, err := t.of(n)
	if v, ok := p.(interface {
		Validate(context.Context, *node.Node) error
	}); ok && err == nil {
		return v.Validate(ctx, n)
	}
	return err
}

// NetworkData describes the network of a node's instance; nil: its plug does not know.
func (t networks) NetworkData(ctx context.Context, n *node.Node) (map[string]any, error) {
	p, err := t.of(n)
	if d, ok := p.(interface {
		NetworkData(context.Context, *node.Node) (map[string]any, error)
	}); ok && err == nil {
		return d.NetworkData(ctx, n)
	}
	return nil, err
}

// Switches reports whether Attach moves the node's ports from another network; a plug without this method moves none.
func (t networks) Switches(ctx context.Context, n *node.Node, to engine.NetworkName) (bool, error) {
	p, err := t.of(n)
	if s, ok := p.(interface {
		Switches(context.Context, *node.Node, engine.NetworkName) (bool, error)
	}); ok && err == nil {
		return s.Switches(ctx, n, to)
	}
	return false, err
}

// servesInstance reports whether the node's instance gets an address on the provisioning network; with an unknown plug
// it does not.
func (t networks) servesInstance(n *node.Node) bool {
	p, err := t.of(n)
	return err == nil && p.ServesInstance()
}

// sharedNetwork leaves the switches alone: machine and instance are wherever their cables go, all the time.
type sharedNetwork struct{ serves bool }

func (sharedNetwork) Attach(ctx context.Context, _ *node.Node, _ engine.NetworkName) error {
	return ctx.Err()
}

func (s sharedNetwork) ServesInstance() bool { return s.serves }
