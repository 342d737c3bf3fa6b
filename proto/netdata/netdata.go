// Package netdata reads OpenStack's network_data.json: interfaces, bonds and VLANs, the networks on them, routes and
// name servers. The agent sets a machine's network up by it, without DHCP; conductors check it before a machine boots.
//
// The text is bounded (MaxSize, and a number of each kind) and read once: what refers to something that is not there,
// or could not be set up, is an error, which names the link or network by its id. Members of objects that are not known
// are let through, as in Ironic, except options of bonds: a misspelt one would do nothing.
package netdata

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// MaxSize is how many bytes of JSON are read.
const MaxSize = 48 << 10

// Numbers of things in one text.
const (
	mostLinks    = 64
	mostNetworks = 64
	mostRoutes   = 64 // of one network
	mostDNS      = 16
	longestID    = 64
)

// Data is a machine's network.
type Data struct {
	Links []Link // each after those that it is made of
	DNS   []netip.Addr
}

// Link is an interface of the machine, a bond of several (Bond is not nil), or a VLAN (VLAN is not nil).
type Link struct {
	ID   string
	MAC  net.HardwareAddr
	MTU  int // 0: as it is
	Bond *Bond
	VLAN *VLAN

	Addrs  []netip.Prefix // of the machine, with its network's prefix
	Routes []Route
	DHCP4  bool // asks for an IPv4 address
	Auto6  bool // takes IPv6 addresses that routers announce, or DHCPv6 if they say so
}

// Bond is a bond of interfaces.
type Bond struct {
	Mode    string            // as the kernel names it
	Members []string          // ids
	Options map[string]string // miimon, xmit_hash_policy, ...
}

// VLAN is a tagged network on an interface or a bond.
type VLAN struct {
	On string // its id
	ID int
}

// Route is a route. The default route has a prefix of no bits.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Link returns a link by its id; nil if there is none.
func (d *Data) Link(id string) *Link {
	for i := range d.Links {
		if d.Links[i].ID == id {
			return &d.Links[i]
		}
	}
	return nil
}

// Member reports whether a link is part of a bond.
func (d *Data) Member(id string) bool {
	in := func(l Link) bool { return l.Bond != nil && slices.Contains(l.Bond.Members, id) }
	return slices.ContainsFunc(d.Links, in)
}

// modes are the modes of bonds. OpenStack's schema has 802.1ad where it means 802.3ad.
var modes = map[string]string{"802.1ad": "802.3ad", "802.3ad": "802.3ad", "active-backup": "active-backup",
	"balance-rr": "balance-rr", "balance-xor": "balance-xor", "broadcast": "broadcast", "balance-tlb": "balance-tlb",
	"balance-alb": "balance-alb"}

// options of bonds, without their prefix "bond_".
var options = []string{"miimon", "updelay", "downdelay", "min_links", "lacp_rate", "xmit_hash_policy"}

// The JSON.
type (
	document struct {
		Links    []json.RawMessage `json:"links"`
		Networks []network         `json:"networks"`
		Services []service         `json:"services"`
	}
	link struct {
		ID        string   `json:"id"`
		Type      string   `json:"type"`
		MAC       string   `json:"ethernet_mac_address"`
		MTU       *float64 `json:"mtu"`
		BondMode  string   `json:"bond_mode"`
		BondLinks []string `json:"bond_links"`
		VLANLink  string   `json:"vlan_link"`
		VLANID    float64  `json:"vlan_id"`
		VLANMAC   string   `json:"vlan_mac_address"`
	}
	network struct {
		ID       string    `json:"id"`
		Type     string    `json:"type"`
		Link     string    `json:"link"`
		Address  string    `json:"ip_address"`
		Netmask  string    `json:"netmask"`
		Routes   []route   `json:"routes"`
		DNS      []string  `json:"dns_nameservers"`
		Services []service `json:"services"`
	}
	route struct {
		Network  string    `json:"network"`
		Netmask  string    `json:"netmask"`
		Gateway  string    `json:"gateway"`
		Services []service `json:"services"`
	}
	service struct {
		Type    string `json:"type"`
		Address string `json:"address"`
	}
)

// Parse reads a text. The error is about network_data, and says where.
func Parse(text []byte) (*Data, error) {
	d, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("network_data: %w", err)
	}
	return d, nil
}

// JSON is network data, as an object of the API has it, in the form that Parse reads; nil if there is none.
func JSON(object map[string]any) ([]byte, error) {
	if len(object) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(object)
	if err == nil {
		_, err = Parse(text)
	}
	return text, err
}

func parse(text []byte) (*Data, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%d bytes are too many: at most %d", len(text), MaxSize)
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("it is not JSON of its schema: %w", err)
	}
	for _, n := range []struct {
		what       string
		have, most int
	}{{"links", len(doc.Links), mostLinks}, {"networks", len(doc.Networks), mostNetworks}} {
		if n.have == 0 || n.have > n.most {
			return nil, fmt.Errorf("%d %s: it needs 1 to %d", n.have, n.what, n.most)
		}
	}
	d := &Data{}
	for i, raw := range doc.Links {
		l, err := parseLink(raw)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", name(l.ID, i), err)
		}
		if d.Link(l.ID) != nil {
			return nil, fmt.Errorf("link %s: there are two of this id", name(l.ID, i))
		}
		d.Links = append(d.Links, l)
	}
	for _, l := range d.Links {
		if err := d.checkLink(&l); err != nil {
			return nil, fmt.Errorf("link %q: %w", l.ID, err)
		}
	}
	slices.SortStableFunc(d.Links, func(a, b Link) int { return rank(a) - rank(b) })
	for i, n := range doc.Networks {
		if err := d.add(n); err != nil {
			return nil, fmt.Errorf("network %s: %w", name(n.ID, i), err)
		}
	}
	return d, d.addDNS(doc.Services)
}

// name is an id for messages.
func name(id string, i int) string {
	if id == "" || len(id) > longestID {
		return fmt.Sprintf("number %d", i+1)
	}
	return fmt.Sprintf("%q", id)
}

func rank(l Link) int {
	switch {
	case l.Bond != nil:
		return 1
	case l.VLAN != nil:
		return 2
	}
	return 0
}

// parseLink reads a link by itself. With an error it has its id at most.
func parseLink(raw json.RawMessage) (Link, error) {
	var j link
	if err := json.Unmarshal(raw, &j); err != nil {
		return Link{}, err
	}
	l := Link{ID: j.ID}
	if l.ID == "" || len(l.ID) > longestID {
		return l, fmt.Errorf("its id has %d bytes, not 1 to %d", len(l.ID), longestID)
	}
	if j.MTU != nil {
		if *j.MTU < 576 || *j.MTU > 65535 {
			return l, fmt.Errorf("an MTU of %v: it is 576 to 65535", *j.MTU)
		}
		l.MTU = int(*j.MTU)
	}
	mac := j.MAC
	switch j.Type {
	case "bond":
		mode, ok := modes[j.BondMode]
		if !ok {
			return l, fmt.Errorf("there is no bond_mode %.40q", j.BondMode)
		}
		opts, err := bondOptions(raw)
		if err != nil {
			return l, err
		}
		l.Bond = &Bond{Mode: mode, Members: j.BondLinks, Options: opts}
	case "vlan":
		mac = j.VLANMAC
		if j.VLANID != math.Trunc(j.VLANID) || j.VLANID < 1 || j.VLANID > 4094 {
			return l, fmt.Errorf("a vlan_id of %v: it is 1 to 4094", j.VLANID)
		}
		l.VLAN = &VLAN{On: j.VLANLink, ID: int(j.VLANID)}
	case "":
		return l, errors.New("it has no type")
	}
	var err error
	if l.MAC, err = net.ParseMAC(mac); err != nil || len(l.MAC) != 6 || l.MAC[0]&1 != 0 {
		return l, fmt.Errorf("%.40q is no address of an interface", mac)
	}
	return l, nil
}

func bondOptions(raw json.RawMessage) (map[string]string, error) {
	var all map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for key, v := range all {
		option, ok := strings.CutPrefix(key, "bond_")
		if !ok || key == "bond_mode" || key == "bond_links" {
			continue
		}
		if !slices.Contains(options, option) {
			return nil, fmt.Errorf("%.40q is not known: options of bonds are bond_%s", key,
				strings.Join(options, ", bond_"))
		}
		switch v := v.(type) {
		case string:
			out[option] = v
		case float64:
			out[option] = fmt.Sprint(v)
		default:
			return nil, fmt.Errorf("%s is neither a number nor a text", key)
		}
	}
	return out, nil
}

// checkLink checks what a link has to do with others.
func (d *Data) checkLink(l *Link) error {
	refers := func(id string) (*Link, error) {
		to := d.Link(id)
		if to == nil {
			return nil, fmt.Errorf("there is no link %.64q", id)
		}
		return to, nil
	}
	switch {
	case l.Bond != nil:
		if len(l.Bond.Members) == 0 {
			return errors.New("it has no bond_links")
		}
		for i, id := range l.Bond.Members {
			m, err := refers(id)
			if err != nil {
				return err
			}
			if m.Bond != nil || m.VLAN != nil || slices.Contains(l.Bond.Members[:i], id) {
				return fmt.Errorf("%q can't be one of its bond_links", id)
			}
		}
	case l.VLAN != nil:
		on, err := refers(l.VLAN.On)
		if err != nil {
			return err
		}
		if on.VLAN != nil || d.Member(on.ID) {
			return fmt.Errorf("its vlan_link %q is a VLAN or part of a bond", on.ID)
		}
	}
	for _, o := range d.Links {
		switch {
		case o.ID == l.ID || rank(o) != rank(*l):
		case l.VLAN != nil && *o.VLAN == *l.VLAN:
			return fmt.Errorf("link %q is the same VLAN", o.ID)
		case l.Bond != nil && slices.ContainsFunc(l.Bond.Members, func(id string) bool {
			return slices.Contains(o.Bond.Members, id)
		}):
			return fmt.Errorf("it shares an interface with the bond %q", o.ID)
		case rank(o) == 0 && o.MAC.String() == l.MAC.String():
			return fmt.Errorf("link %q has the same ethernet_mac_address", o.ID)
		}
	}
	return nil
}

// add adds a network to its link.
func (d *Data) add(n network) error {
	l := d.Link(n.Link)
	switch {
	case l == nil:
		return fmt.Errorf("there is no link %.64q", n.Link)
	case d.Member(l.ID):
		return fmt.Errorf("link %q is part of a bond: put the network on the bond", l.ID)
	case len(n.Routes) > mostRoutes:
		return fmt.Errorf("%d routes: at most %d", len(n.Routes), mostRoutes)
	}
	v6 := strings.HasPrefix(n.Type, "ipv6")
	switch n.Type {
	case "ipv4", "ipv6":
		p, err := prefix(n.Address, n.Netmask, v6)
		if a := p.Addr(); err == nil && (a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()) {
			err = fmt.Errorf("%s is no address of a machine", a)
		}
		if err != nil {
			return fmt.Errorf("ip_address: %w", err)
		}
		l.Addrs = append(l.Addrs, p)
	case "ipv4_dhcp":
		l.DHCP4 = true
	case "ipv6_dhcp", "ipv6_slaac":
		l.Auto6 = true
	default:
		return fmt.Errorf("there is no type %.40q", n.Type)
	}
	for i, r := range n.Routes {
		to, err := prefix(r.Network, r.Netmask, v6)
		var via netip.Addr
		if err == nil {
			via, err = addr(r.Gateway, v6)
		}
		if err == nil && (via.IsUnspecified() || via.IsMulticast()) {
			err = fmt.Errorf("%s is no gateway", via)
		}
		if err != nil {
			return fmt.Errorf("route %d: %w", i+1, err)
		}
		l.Routes = append(l.Routes, Route{to.Masked(), via})
		n.Services = append(n.Services, r.Services...)
	}
	for _, a := range n.DNS {
		n.Services = append(n.Services, service{"dns", a})
	}
	return d.addDNS(n.Services)
}

func (d *Data) addDNS(list []service) error {
	for _, s := range list {
		if s.Type != "dns" {
			continue
		}
		p, _, _ := strings.Cut(s.Address, "/")
		a, err := netip.ParseAddr(p)
		if err != nil || a.Zone() != "" {
			return fmt.Errorf("%.60q is no address of a name server", s.Address)
		}
		if slices.Contains(d.DNS, a) {
			continue
		}
		if len(d.DNS) == mostDNS {
			return fmt.Errorf("more than %d name servers", mostDNS)
		}
		d.DNS = append(d.DNS, a)
	}
	return nil
}

// addr reads an address of one family.
func addr(s string, v6 bool) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Is4() == v6 || a.Is4In6() || a.Zone() != "" {
		return a, fmt.Errorf("%.60q is no address of IPv%d", s, map[bool]int{false: 4, true: 6}[v6])
	}
	return a, nil
}

// prefix reads an address with the length of its network's prefix: ADDRESS/BITS, or an address and a mask.
func prefix(s, mask string, v6 bool) (netip.Prefix, error) {
	host, length, has := strings.Cut(s, "/")
	a, err := addr(host, v6)
	if err != nil {
		return netip.Prefix{}, err
	}
	if has {
		p, err := netip.ParsePrefix(host + "/" + length)
		if err != nil {
			return p, fmt.Errorf("%.60q has no length of a prefix", s)
		}
		return p, nil
	}
	m, err := addr(mask, v6)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("netmask %w", err)
	}
	ones := 0
	for _, b := range m.AsSlice() {
		ones += bits.OnesCount8(b)
	}
	p := netip.PrefixFrom(a, ones)
	if all, err := allOnes(v6).Prefix(ones); err != nil || all.Addr() != m {
		return p, fmt.Errorf("netmask %s has ones after zeros", m)
	}
	return p, nil
}

func allOnes(v6 bool) netip.Addr {
	if !v6 {
		return netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return netip.AddrFrom16([16]byte(slices.Repeat([]byte{255}, 16)))
}
