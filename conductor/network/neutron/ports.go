package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/extradhcpopts"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Values of Neutron's that Ironic uses, too.
const (
	owner         = "baremetal:none" // device_owner
	vnic          = "baremetal"      // binding:vnic_type
	bindingFailed = "binding_failed" // binding:vif_type of a port that no mechanism driver took
)

// port holds the fields that are read of a port.
type port struct {
	ID        string         `json:"id"`
	NetworkID string         `json:"network_id"`
	MAC       string         `json:"mac_address"`
	DeviceID  string         `json:"device_id"`
	FixedIPs  []ports.IP     `json:"fixed_ips"`
	HostID    string         `json:"binding:host_id"`
	VIFType   string         `json:"binding:vif_type"`
	Profile   map[string]any `json:"binding:profile"`
}

// mark is the description of own ports.
func (s *Service) mark() string { return "Ingot " + s.c.Mark }

// mostPages bounds what is read of one list: a service that lies has no end of them.
const mostPages = 100

// own lists the own ports of a node, or of all nodes.
func (s *Service) own(ctx context.Context, nodeUUID string) (all []port, _ error) {
	pages := 0
	list := ports.List(s.c.Client, ports.ListOpts{DeviceOwner: owner, DeviceID: nodeUUID, Description: s.mark()})
	err := list.EachPage(ctx, func(_ context.Context, page pagination.Page) (bool, error) {
		if pages++; pages > mostPages {
			return false, fmt.Errorf("it has more than %d pages", mostPages)
		}
		var some []port
		err := ports.ExtractPortsInto(page, &some)
		all = append(all, some...)
		return true, err
	})
	if err != nil {
		return nil, oscloud.Explain(ours, "list this installation's ports", err)
	}
	return all, nil
}

func (s *Service) get(ctx context.Context, id string) (p port, _ error) {
	err := ports.Get(ctx, s.c.Client, id).ExtractInto(&p)
	return p, oscloud.Explain(ours, "read port "+clean.Line(id, 64), err)
}

// remove deletes a port; one that is gone is as good.
func (s *Service) remove(ctx context.Context, id string) error {
	err := oscloud.Explain(ours, "delete port "+clean.Line(id, 64), ports.Delete(ctx, s.c.Client, id).ExtractErr())
	if oscloud.Is(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func (s *Service) removeAll(ctx context.Context, nodeUUID string) error {
	have, err := s.own(ctx, nodeUUID)
	if err != nil {
		return err
	}
	for _, p := range have {
		if err := s.remove(ctx, p.ID); err != nil {
			return err
		}
	}
	return nil
}

// network is a network that was found.
type network struct {
	id     string
	groups []string
}

// named is the network for a purpose as the node's driver_info, or else the configuration, names it.
func (s *Service) named(n *node.Node, p Purpose) Network {
	of := s.c.Networks[p]
	if name, ok := n.DriverInfo[string(p)+"_network"].(string); ok && name != "" {
		of.Name = name
	}
	switch v := n.DriverInfo[string(p)+"_network_security_groups"].(type) {
	case []any:
		of.Groups = nil
		for _, g := range v {
			of.Groups = append(of.Groups, fmt.Sprint(g))
		}
	case string:
		of.Groups = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
	}
	return of
}

// network finds the network for a purpose.
func (s *Service) network(ctx context.Context, n *node.Node, p Purpose) (network, error) {
	of := s.named(n, p)
	if of.Name == "" {
		return network{}, node.Invalidf(
			"no %s network is named: set neutron.%s_network, or the node's driver_info %s_network, to the ID or name of a network",
			p, p, p)
	}
	var found []networks.Network
	for _, o := range []networks.ListOpts{{ID: of.Name}, {Name: of.Name}} {
		page, err := networks.List(s.c.Client, o).AllPages(ctx)
		if err == nil {
			found, err = networks.ExtractNetworks(page)
		}
		if err != nil {
			return network{}, oscloud.Explain(ours, "find the "+string(p)+" network "+clean.Line(of.Name, 64), err)
		}
		if len(found) > 0 {
			break
		}
	}
	switch {
	case len(found) == 0:
		return network{}, node.Invalidf("the %s network %s is not in Neutron, or this server's user may not see it", p,
			clean.Line(of.Name, 64))
	case len(found) > 1:
		return network{}, node.Invalidf("Neutron has %d networks of the name %s: name the %s network by its ID",
			len(found), clean.Line(of.Name, 64), p)
	}
	return network{found[0].ID, of.Groups}, nil
}

// create makes a port for a card that boots the ramdisk.
func (s *Service) create(ctx context.Context, n *node.Node, at network, card *node.Port) error {
	up := true
	base := ports.CreateOpts{NetworkID: at.id, Name: "Ingot " + string(of(n)), Description: s.mark(), AdminStateUp: &up,
		MACAddress: card.Address, DeviceID: n.UUID, DeviceOwner: owner}
	if len(at.groups) > 0 {
		base.SecurityGroups = &at.groups
	}
	var o ports.CreateOptsBuilder = portsbinding.CreateOptsExt{CreateOptsBuilder: base, HostID: n.UUID,
		VNICType: vnic, Profile: map[string]any{"local_link_information": []any{card.LocalLinkConnection}}}
	var extra []extradhcpopts.CreateExtraDHCPOpt
	if id := clientID(card.Extra); id != "" {
		extra = append(extra, extradhcpopts.CreateExtraDHCPOpt{OptName: "61", OptValue: id})
	}
	if s.c.Options != nil {
		for _, opt := range s.c.Options(n, card.Address) {
			extra = append(extra, extradhcpopts.CreateExtraDHCPOpt{OptName: opt.Name, OptValue: opt.Value,
				IPVersion: 4})
		}
	}
	if len(extra) > 0 {
		o = extradhcpopts.CreateOptsExt{CreateOptsBuilder: o, ExtraDHCPOpts: extra}
	}
	var made port
	err := oscloud.Explain(ours, "make a port in the "+string(of(n))+" network", ports.Create(ctx, s.c.Client,
		o).ExtractInto(&made))
	if err != nil {
		return err
	}
	if err = bound(made, n); err != nil && made.ID != "" {
		err = errors.Join(err, s.remove(ctx, made.ID))
	}
	return err
}

// bound returns why a port is not bound to a node, as its answer shows.
func bound(p port, n *node.Node) error {
	switch {
	case p.VIFType == bindingFailed:
		return notBound(p)
	case p.ID == "" || p.HostID != n.UUID:
		return fmt.Errorf("bind port %s: Neutron's answer does not have the node as binding:host_id: may this server's user bind ports (role admin)?",
			clean.Line(p.ID, 64))
	}
	return nil
}

// notBound says what to look at when no mechanism driver takes a port. It may pass: the agent reports a new node's
// ports only after a while.
func notBound(p port) error {
	return &oscloud.Error{Service: ours, Op: "bind port " + clean.Line(p.ID, 64), Status: http.StatusServiceUnavailable,
		Reason: "no mechanism driver could bind it: does ironic-neutron-agent run, and is the network on the physical network of the node's ports?"}
}

func clientID(extra map[string]any) string {
	id, _ := extra["client-id"].(string)
	return id
}

// vifKey is where a port or port group of a node has the port of Neutron that is attached to it.
const vifKey = "tenant_vif_port_id"

// carrier is a port or port group of a node to which something is attached.
type carrier struct {
	vif, mac, clientID string
	links              []any          // of its cards
	bond               map[string]any // of a port group
}

// carriersOf are those of a node.
func carriersOf(cards []*node.Port, groups []*node.Portgroup) (all []carrier) {
	for _, g := range groups {
		vif, _ := g.InternalInfo[vifKey].(string)
		if vif == "" {
			continue
		}
		c := carrier{vif: vif, mac: g.Address, bond: map[string]any{"id": g.UUID, "name": g.Name, "bond_mode": g.Mode,
			"bond_properties": withPrefix(g.Properties)}}
		for _, p := range cards {
			if p.PortgroupUUID == g.UUID {
				c.links = append(c.links, p.LocalLinkConnection)
			}
		}
		all = append(all, c)
	}
	for _, p := range cards {
		if vif, _ := p.InternalInfo[vifKey].(string); vif != "" {
			all = append(all, carrier{vif: vif, mac: p.Address, clientID: clientID(p.Extra),
				links: []any{p.LocalLinkConnection}})
		}
	}
	return all
}

// withPrefix are the properties of a bond under the names that Neutron's drivers know them by: those of the kernel's
// options, of which the older have no prefix in Ironic's.
func withPrefix(properties map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range properties {
		if !strings.HasPrefix(k, "bond") {
			k = "bond_" + k
		}
		out[k] = v
	}
	return out
}

// bind has Neutron bring what is attached to a card, or a bond, to its network.
func (s *Service) bind(ctx context.Context, n *node.Node, at carrier) error {
	if !slices.ContainsFunc(at.links, func(l any) bool { m, _ := l.(map[string]any); return len(m) > 0 }) {
		return node.Invalidf("port %s is attached to a card of node %s that has no local_link_connection, by which Neutron finds the switch: inspect the node, or set it",
			at.vif, n.UUID)
	}
	profile := map[string]any{"local_link_information": at.links}
	if at.bond != nil {
		profile["local_group_information"] = at.bond
	}
	// Other attributes are the user's, or Nova's.
	var base ports.UpdateOpts
	if at.mac != "" {
		base.MACAddress = &at.mac
	}
	now, err := s.get(ctx, at.vif)
	if err != nil {
		return err
	}
	if now.HostID != "" && at.mac != "" && !strings.EqualFold(now.MAC, at.mac) {
		if err := s.unbind(ctx, at.vif); err != nil { // Neutron changes no address of a bound port
			return err
		}
	}
	var o ports.UpdateOptsBuilder = portsbinding.UpdateOptsExt{UpdateOptsBuilder: base, HostID: &n.UUID, VNICType: vnic,
		Profile: profile}
	if at.clientID != "" {
		o = extradhcpopts.UpdateOptsExt{UpdateOptsBuilder: o, ExtraDHCPOpts: []extradhcpopts.UpdateExtraDHCPOpt{
			{OptName: "61", OptValue: &at.clientID}}}
	}
	var p port
	err = oscloud.Explain(ours, "bind port "+clean.Line(at.vif, 64), ports.Update(ctx, s.c.Client, at.vif,
		o).ExtractInto(&p))
	if err == nil {
		err = bound(p, n)
	}
	return err
}

// Physical returns the physical networks of the network of an attached port; none: Neutron does not say.
func (s *Service) Physical(ctx context.Context, vif string) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	p, err := s.attached(ctx, vif)
	if err != nil {
		return nil, err
	}
	type segment struct {
		Physical string `json:"provider:physical_network"`
	}
	var of struct {
		Physical string    `json:"provider:physical_network"`
		Segments []segment `json:"segments"`
	}
	if err := networks.Get(ctx, s.c.Client, p.NetworkID).ExtractInto(&of); err != nil {
		return nil, oscloud.Explain(ours, "read network "+clean.Line(p.NetworkID, 64), err)
	}
	for _, at := range append(of.Segments, segment{of.Physical}) {
		if at.Physical != "" && !slices.Contains(all, at.Physical) {
			all = append(all, at.Physical)
		}
	}
	return all, nil
}

// attached reads a port that a client names.
func (s *Service) attached(ctx context.Context, vif string) (port, error) {
	p, err := s.get(ctx, vif)
	if oscloud.Is(err, http.StatusNotFound) {
		return p, node.Invalidf("Neutron has no port %s, or this server's user may not see it", vif)
	}
	return p, err
}

// Address gives an attached port the MAC of the card that carries it, as Nova and the instance expect.
func (s *Service) Address(ctx context.Context, vif, mac string) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	p, err := s.attached(ctx, vif)
	if err != nil || strings.EqualFold(p.MAC, mac) {
		return err
	}
	if p.HostID != "" {
		if err := s.unbind(ctx, vif); err != nil { // Neutron changes no address of a bound port
			return err
		}
	}
	err = oscloud.Explain(ours, "give port "+vif+" the address "+mac, ports.Update(ctx, s.c.Client, vif,
		ports.UpdateOpts{MACAddress: &mac}).Err)
	if oscloud.Is(err, http.StatusConflict) {
		return node.Invalidf("%v: does another port of its network have that address?", err)
	}
	return err
}

// Plug binds what is attached to a node that has an instance.
func (s *Service) Plug(ctx context.Context, n *node.Node, vif string) error {
	return s.withPorts(ctx, n, func(ctx context.Context, cards []*node.Port, groups []*node.Portgroup) error {
		for _, at := range carriersOf(cards, groups) {
			if at.vif == vif {
				return s.bind(ctx, n, at)
			}
		}
		return nil
	})
}

// Unplug ends that; a port that is gone is as good.
func (s *Service) Unplug(ctx context.Context, n *node.Node, vif string) error {
	ctx, end, err := s.begin(ctx, n)
	if err != nil {
		return err
	}
	defer end()
	return s.unbind(ctx, vif)
}

// unbind has Neutron take a port from the node's switch. The port stays; one that is gone is as good.
func (s *Service) unbind(ctx context.Context, vif string) error {
	none := ""
	err := oscloud.Explain(ours, "unbind port "+clean.Line(vif, 64), ports.Update(ctx, s.c.Client, vif,
		portsbinding.UpdateOptsExt{UpdateOptsBuilder: ports.UpdateOpts{}, HostID: &none,
			Profile: map[string]any{}}).Err)
	if oscloud.Is(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func (s *Service) unbindAll(ctx context.Context, cards []*node.Port, groups []*node.Portgroup) error {
	for _, at := range carriersOf(cards, groups) {
		if err := s.unbind(ctx, at.vif); err != nil {
			return err
		}
	}
	return nil
}
