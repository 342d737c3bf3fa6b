package neutron

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/netdata"
)

// NetworkData describes what is attached to a node as OpenStack's network_data.json does, for its config drive: what
// Nova writes into those that it makes. Where Neutron's DHCP serves a subnet, the system asks that.
func (s *Service) NetworkData(ctx context.Context, n *node.Node) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	cards, groups, err := s.c.Ports(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	d := drawing{links: []any{}, networks: []any{}, services: []any{}}
	for i, at := range carriersOf(cards, groups) {
		p, err := s.attached(ctx, at.vif)
		if err != nil {
			return nil, err
		}
		var of struct {
			MTU int `json:"mtu"`
		}
		if err := networks.Get(ctx, s.c.Client, p.NetworkID).ExtractInto(&of); err != nil {
			return nil, oscloud.Explain(ours, "read network "+clean.Line(p.NetworkID, 64), err)
		}
		link := d.link(i, at, of.MTU, p, cards)
		for j, ip := range p.FixedIPs {
			sub, err := subnets.Get(ctx, s.c.Client, ip.SubnetID).Extract()
			if err != nil {
				return nil, oscloud.Explain(ours, "read subnet "+clean.Line(ip.SubnetID, 64), err)
			}
			if err := d.network(fmt.Sprintf("network%d-%d", i, j), link, ip.IPAddress, p.NetworkID, sub); err != nil {
				return nil, err
			}
		}
	}
	out := map[string]any{"links": d.links, "networks": d.networks, "services": d.services}
	if _, err := netdata.JSON(out); err != nil { // what the system could not use must not be found out by it
		return nil, &oscloud.Error{Service: ours, Op: "describe the networks of node " + n.UUID,
			Status: http.StatusOK, Reason: clean.Line(err.Error(), 300)}
	}
	return out, nil
}

// drawing is a network_data.json that is being made.
type drawing struct{ links, networks, services []any }

// link adds the card or the bond that carries a port, and returns its ID.
func (d *drawing) link(i int, at carrier, mtu int, p port, cards []*node.Port) string {
	id := fmt.Sprintf("interface%d", i)
	link := map[string]any{"id": id, "type": "phy", "vif_id": p.ID, "ethernet_mac_address": strings.ToLower(p.MAC)}
	if at.bond != nil {
		members := []any{}
		for _, c := range cards {
			if c.PortgroupUUID == at.bond["id"] {
				member := fmt.Sprintf("%s-%d", id, len(members))
				members = append(members, member)
				d.links = append(d.links,
					map[string]any{"id": member, "type": "phy", "ethernet_mac_address": c.Address})
			}
		}
		link["type"], link["bond_links"], link["bond_mode"] = "bond", members, at.bond["bond_mode"]
		for k, v := range at.bond["bond_properties"].(map[string]any) {
			link[k] = v
		}
	}
	if mtu > 0 {
		link["mtu"] = mtu
	}
	d.links = append(d.links, link)
	return id
}

// network adds an address of a port.
func (d *drawing) network(id, link, address, networkID string, sub *subnets.Subnet) error {
	to, err := netip.ParsePrefix(sub.CIDR)
	if err != nil {
		return &oscloud.Error{Service: ours, Op: "read subnet " + clean.Line(sub.ID, 64), Status: http.StatusOK,
			Reason: "its CIDR is " + clean.Line(sub.CIDR, 64)}
	}
	v6 := to.Addr().Is6()
	family := map[bool]string{false: "ipv4", true: "ipv6"}[v6]
	n := map[string]any{"id": id, "link": link, "network_id": networkID, "type": family}
	d.networks = append(d.networks, n)
	if sub.EnableDHCP {
		n["type"] = family + "_dhcp"
		if v6 && sub.IPv6AddressMode != "" {
			n["type"] = "ipv6_" + sub.IPv6AddressMode
		}
		return nil
	}
	n["ip_address"], n["netmask"] = address, mask(to)
	routes := []any{}
	add := func(to netip.Prefix, via string) {
		routes = append(routes, map[string]any{"network": to.Addr().String(), "netmask": mask(to), "gateway": via})
	}
	if sub.GatewayIP != "" {
		any4, any6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		add(map[bool]netip.Prefix{false: any4, true: any6}[v6], sub.GatewayIP)
	}
	for _, r := range sub.HostRoutes {
		if to, err := netip.ParsePrefix(r.DestinationCIDR); err == nil {
			add(to.Masked(), r.NextHop)
		}
	}
	n["routes"] = routes
	for _, server := range sub.DNSNameservers {
		d.services = append(d.services, map[string]any{"type": "dns", "address": server})
	}
	return nil
}

// mask is a prefix's length as a mask.
func mask(p netip.Prefix) string {
	return net.IP(net.CIDRMask(p.Bits(), p.Addr().BitLen())).String()
}
