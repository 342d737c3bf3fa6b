package switches

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
	"github.com/ingot-metal/ingot/conductor/node"
)

// State is the purpose for which a machine is on a network.
type State string

// States.
const (
	Provisioning State = "provisioning"
	Inspecting   State = "inspecting" // in the network provisioning; where it is cabled may not be known yet
	Cleaning     State = "cleaning"
	Tenant       State = "tenant"
	Quarantine   State = "quarantine"
)

// VIFKey is where a port or a port group keeps the name of the network that is attached to it.
const VIFKey = "tenant_vif_port_id"

// records are the store's, as far as cabling goes.
type records interface {
	// PortsOf and GroupsOf list what a node has.
	PortsOf(ctx context.Context, nodeUUID string) ([]*node.Port, error)
	GroupsOf(ctx context.Context, nodeUUID string) ([]*node.Portgroup, error)
	// PortsAt lists the ports of all nodes at a switch.
	PortsAt(ctx context.Context, switchID string) ([]*node.Port, error)
}

// Plug brings nodes to networks. Safe for concurrent use.
type Plug struct {
	table    *Table
	records  records
	switches map[string]*Switch // by name
	byID     map[string]*Switch
}

// New makes a Plug of a table.
func New(t *Table, r records, log *slog.Logger) *Plug {
	p := &Plug{table: t, records: r, switches: map[string]*Switch{}, byID: map[string]*Switch{}}
	for name, c := range t.Switches {
		s := newSwitch(c, log)
		p.switches[name] = s
		for _, id := range c.IDs {
			p.byID[id] = s
		}
	}
	return p
}

// Moves reports whether a machine that was cleaned is moved when it is provisioned.
func (p *Plug) Moves() bool {
	return p.table.Networks.Cleaning.VLAN != p.table.Networks.Provisioning.VLAN
}

// Attach configures the switch ports of a node, and returns nil when the switches show them so.
func (p *Plug) Attach(ctx context.Context, n *node.Node, to State) error {
	wants, err := p.plan(ctx, n, to)
	if err != nil {
		return err
	}
	errs := make([]error, len(wants))
	var all sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(wants)) {
		all.Go(func() { errs[i] = p.switches[name].Apply(ctx, wants[name]) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Validate reports what a node lacks for a deployment, by its records alone.
func (p *Plug) Validate(ctx context.Context, n *node.Node) error {
	if _, err := p.plan(ctx, n, Provisioning); err != nil {
		return err
	}
	_, err := p.plan(ctx, n, Tenant)
	return err
}

// place is where a port is cabled to.
type place struct {
	at    *Switch
	iface string
}

// place finds it; a nil at: nothing is known, or the port is none of Ingot's concern.
func (p *Plug) place(port *node.Port) (place, error) {
	link := port.LocalLinkConnection
	id, _ := link["switch_id"].(string)
	name, _ := link["port_id"].(string)
	if link["network_type"] == "unmanaged" || id == "" || name == "" {
		return place{}, nil
	}
	s := p.byID[strings.ToLower(id)]
	if s == nil {
		return place{}, fmt.Errorf("port %s is cabled to switch %s, which the table does not have: add it to ids of a"+
			" switch, or correct local_link_connection of the port (network_type unmanaged: it is not to be configured)",
			port.Address, dialect.Plain(id))
	}
	iface, ok := s.conf.dialect.Canonical(name)
	if !ok || !s.conf.owned[iface] {
		return place{}, fmt.Errorf("port %s is cabled to port %s of switch %s, which is not one that Ingot may configure:"+
			" add it to ports of the switch in the table, or correct local_link_connection of the port (network_type"+
			" unmanaged: it is not to be configured)", port.Address, dialect.Plain(name), s.conf.name)
	}
	return place{s, iface}, nil
}

// plan says what each switch port of a node is to be, by switch.
func (p *Plug) plan(ctx context.Context, n *node.Node, to State) (map[string][]dialect.Port, error) {
	ports, err := p.records.PortsOf(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	groups, err := p.records.GroupsOf(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	in := map[string]*node.Portgroup{} // that carry a network
	for _, g := range groups {
		if g.InternalInfo[VIFKey] != nil {
			in[g.UUID] = g
		}
	}
	ns := &p.table.Networks
	wants, taken := map[string][]dialect.Port{}, map[place]bool{}
	boots, attached := false, false
	for _, port := range ports {
		at, err := p.place(port)
		vif, _ := port.InternalInfo[VIFKey].(string)
		group := in[port.PortgroupUUID]
		if group != nil && vif == "" {
			vif, _ = group.InternalInfo[VIFKey].(string)
		} else {
			group = nil
		}
		attached = attached || vif != ""
		switch {
		case err != nil && (to == Inspecting || to == Quarantine || !port.PXEEnabled && vif == ""):
			continue
		case err != nil:
			return nil, err
		case at.at == nil && vif != "" && to == Tenant:
			return nil, fmt.Errorf("network %s is attached to port %s, but the switch port of that is not known:"+
				" inspect the node, or set local_link_connection of the port (switch_id, port_id)", dialect.Plain(vif), port.Address)
		case at.at == nil:
			continue
		}
		boots = boots || port.PXEEnabled
		if taken[at] {
			return nil, fmt.Errorf("two ports of the node are cabled to port %s of switch %s: correct"+
				" local_link_connection of port %s", at.iface, at.at.conf.name, port.Address)
		}
		taken[at] = true
		if err := p.alone(ctx, n, port, at); err != nil {
			return nil, err
		}
		network := ns.Quarantine
		switch {
		case to == Tenant && vif != "":
			if network, err = p.tenant(n, vif); err != nil {
				return nil, err
			}
		case port.PXEEnabled && to == Cleaning:
			network = *ns.Cleaning
		case port.PXEEnabled && (to == Provisioning || to == Inspecting):
			network = ns.Provisioning
		}
		name := at.at.conf.name
		want := dialect.Port{Interface: at.iface, VLAN: network.VLAN, Native: network.Native,
			Untagged: network.untagged, Tagged: network.tagged}
		if to == Tenant && group != nil {
			number, err := channel(group)
			if err != nil {
				return nil, err
			}
			if number > 0 {
				carrier := want
				if carrier.Interface, err = at.at.conf.dialect.ChannelName(number); err != nil {
					return nil, err
				}
				if !at.at.conf.owned[carrier.Interface] {
					return nil, fmt.Errorf("port group %s has channel %d, which is not one that Ingot may configure on"+
						" switch %s: add it to channels of the switch in the table", group.UUID, number, name)
				}
				if lag := (place{at.at, carrier.Interface}); !taken[lag] { // it comes before its members
					taken[lag] = true
					wants[name] = append(wants[name], carrier)
				}
				want = dialect.Port{Interface: at.iface, Channel: number}
			}
		}
		wants[name] = append(wants[name], want)
	}
	switch {
	case !boots && (to == Provisioning || to == Cleaning):
		return nil, errors.New("the switch port of no port that boots (pxe_enabled) is known: inspect the node, or set" +
			" local_link_connection of its port (switch_id, port_id)")
	case !attached && to == Tenant:
		return nil, fmt.Errorf("no network is attached to the node: attach one,"+
			" openstack baremetal node vif attach %s NETWORK", n.UUID)
	}
	return wants, nil
}

// alone refuses a switch port that a port of another node has: one of the two would move the other's machine.
func (p *Plug) alone(ctx context.Context, n *node.Node, port *node.Port, at place) error {
	for _, id := range at.at.conf.IDs {
		others, err := p.records.PortsAt(ctx, id)
		if err != nil {
			return err
		}
		for _, o := range others {
			if where, err := p.place(o); o.NodeUUID != n.UUID && err == nil && where == at {
				return fmt.Errorf("port %s and port %s of node %s are cabled to the same port %s of switch %s: correct"+
					" local_link_connection of one of them", port.Address, o.Address, o.NodeUUID, at.iface, at.at.conf.name)
			}
		}
	}
	return nil
}

// tenant finds the network that a VIF names.
func (p *Plug) tenant(n *node.Node, vif string) (Network, error) {
	network, ok := p.table.Networks.Tenants[vif]
	if !ok {
		return Network{}, fmt.Errorf("the table of switches has no network %q: detach it,"+
			" openstack baremetal node vif detach %s %s, and attach one that it has", dialect.Plain(vif), n.UUID, dialect.Plain(vif))
	}
	project := n.Lessee
	if project == "" {
		project = n.Owner
	}
	if len(network.Projects) > 0 && !slices.Contains(network.Projects, project) {
		return Network{}, fmt.Errorf("network %q is not for the node's project: the table of switches lists its projects",
			vif)
	}
	return network, nil
}

// channel is the number of the LAG that a port group is; 0: its ports are no LAG to the switch.
func channel(g *node.Portgroup) (int, error) {
	switch g.Mode {
	case "802.3ad", "4":
	case "active-backup", "1", "balance-tlb", "5", "balance-alb", "6", "":
		return 0, nil
	default:
		return 0, fmt.Errorf("port group %s has mode %q, for which a switch needs a LAG without LACP: use 802.3ad or"+
			" active-backup", g.UUID, dialect.Plain(g.Mode))
	}
	n, err := strconv.Atoi(fmt.Sprint(g.Properties["channel"]))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("port group %s needs the number of its LAG on the switch:"+
			" openstack baremetal port group set %s --property channel=NUMBER", g.UUID, g.UUID)
	}
	return n, nil
}
