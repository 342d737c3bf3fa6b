package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/netboot"
	"github.com/ingot-metal/ingot/conductor/network/neutron"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// neutronNetwork is the network interface neutron.
type neutronNetwork struct {
	*neutron.Service
	here func(*node.Node) bool // reports whether it is a node's network interface
}

// openNeutron makes it; the zero value when the configuration names no Neutron. key is a public one that only this
// installation has, for the mark of its ports.
func openNeutron(cfg config.Config, k *access.Keystone, key []byte, st *store.Store, types *driver.Table,
	mine func(*node.Node) bool, options func(mac string, uefi bool) []netboot.Option, log *slog.Logger) (neutronNetwork,
	error) {
	o := cfg.Neutron
	if o.URL == "" {
		return neutronNetwork{}, nil
	}
	client, err := oscloud.New(oscloud.Config{Name: "Neutron", URL: o.URL, Path: "/v2.0", CAFile: o.CAFile,
		Login: k.OwnToken, Forget: k.Forget})
	if err != nil {
		return neutronNetwork{}, err
	}
	here := func(n *node.Node) bool { return types.Interface(n, "network") == "neutron" }
	mark := sha256.Sum256(key)
	var boots func(n *node.Node, mac string) (all []neutron.Option)
	if o.DHCPOptions {
		boots = func(n *node.Node, mac string) (all []neutron.Option) {
			mode := cmp.Or(instance.Capability(n.Properties["capabilities"], "boot_mode"), cfg.Deploy.BootMode)
			for _, opt := range options(mac, mode != "bios") {
				all = append(all, neutron.Option(opt))
			}
			return all
		}
	}
	return neutronNetwork{neutron.New(neutron.Config{
		Client: client, Mark: hex.EncodeToString(mark[:16]),
		Networks: map[neutron.Purpose]neutron.Network{
			neutron.Provisioning: {Name: o.ProvisioningNetwork, Groups: o.ProvisioningGroups},
			neutron.Cleaning:     {Name: o.CleaningNetwork, Groups: o.CleaningGroups},
			neutron.Inspection:   {Name: o.InspectionNetwork, Groups: o.InspectionGroups},
			neutron.Rescuing:     {Name: o.RescuingNetwork, Groups: o.RescuingGroups},
		},
		Ports: func(ctx context.Context, uuid string) ([]*node.Port, []*node.Portgroup, error) {
			groups, err := st.Portgroups().List(ctx, uuid)
			if err != nil {
				return nil, nil, err
			}
			ports, err := st.Ports(ctx, store.PortQuery{NodeUUID: &uuid})
			return ports, groups, err
		},
		Node: st.Node, NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
		Mine: mine, Here: here, Options: boots,
	}, log), here}, nil
}

// repair looks after ports that were left over, until ctx ends.
func (n neutronNetwork) repair(ctx context.Context, every time.Duration) {
	if n.Service != nil {
		n.Run(ctx, every)
	}
}

// ServesInstance is false: an instance's address is Neutron's to give.
func (n neutronNetwork) ServesInstance() bool { return false }

// Attach connects the node's ports to a network.
func (n neutronNetwork) Attach(ctx context.Context, of *node.Node, to engine.NetworkName) (err error) {
	switch to {
	case engine.ProvisioningNetwork:
		err = n.ToRamdisk(ctx, of)
	case engine.TenantNetwork:
		err = n.ToTenant(ctx, of)
	default:
		err = n.Off(ctx, of)
	}
	return ofService(err)
}

// Validate reports what a node lacks.
func (n neutronNetwork) Validate(ctx context.Context, of *node.Node) error {
	return ofService(n.Service.Validate(ctx, of))
}

// NetworkData describes the network of a node's instance.
func (n neutronNetwork) NetworkData(ctx context.Context, of *node.Node) (map[string]any, error) {
	data, err := n.Service.NetworkData(ctx, of)
	return data, ofService(err)
}

// Switches reports whether Attach would take a running ramdisk to another network.
func (n neutronNetwork) Switches(ctx context.Context, of *node.Node, to engine.NetworkName) (bool, error) {
	if to != engine.ProvisioningNetwork {
		return true, nil
	}
	moves, err := n.Moves(ctx, of)
	return moves, ofService(err)
}

// Serves reports whether a node's virtual interfaces are ports of Neutron.
func (n neutronNetwork) Serves(of *node.Node) bool { return n.here(of) }

// Physical returns the physical networks that a virtual interface is on.
func (n neutronNetwork) Physical(ctx context.Context, vif string) ([]string, error) {
	all, err := n.Service.Physical(ctx, vif)
	return all, ofService(err)
}

// Address gives a virtual interface the address of its card.
func (n neutronNetwork) Address(ctx context.Context, vif, mac string) error {
	return ofService(n.Service.Address(ctx, vif, mac))
}

// Plug connects a virtual interface that is attached to a node with an instance.
func (n neutronNetwork) Plug(ctx context.Context, of *node.Node, vif string) error {
	return ofService(n.Service.Plug(ctx, of, vif))
}

// Unplug ends that.
func (n neutronNetwork) Unplug(ctx context.Context, of *node.Node, vif string) error {
	return ofService(n.Service.Unplug(ctx, of, vif))
}

// ofService marks errors of OpenStack's that may pass as those of a service that can't be asked now.
func ofService(err error) error {
	if oscloud.Passing(err) {
		return &engine.ServiceError{Err: err}
	}
	return err
}
