package netup

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bond is a bond of several links, as described by a port group of the node. Its members get no addresses of their own.
type Bond struct {
	Name    string             // "bond0"
	Mode    string             // "802.3ad", "active-backup", ... named as in the kernel and port groups
	Members []net.HardwareAddr // the addresses of the links
	Address net.HardwareAddr   // of the bond; nil: the boot interface's when it is a member, else the first member's
	Options map[string]string  // properties of the port group: miimon, updelay, downdelay, lacp_rate, xmit_hash_policy
}

// VLAN is a tagged network on a link.
type VLAN struct {
	On      string           // name or address of the link, or "all"
	ID      int              // zero: all that the switch announces (LLDP)
	Address net.HardwareAddr // of the VLAN's link; nil: that of the link that it is on
}

var (
	linkName   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,15}$`)
	errNoBond  = errors.New("this kernel has no bonds: the ramdisk needs the module bonding")
	errNoVLANs = errors.New("this kernel has no VLANs: the ramdisk needs the module 8021q")
)

// ParseBond parses the boot parameter:
// "bond0,mode=802.3ad,members=52:54:00:00:00:01+52:54:00:00:00:02,miimon=100,lacp_rate=fast".
func ParseBond(s string) (Bond, error) {
	words := strings.Split(s, ",")
	b := Bond{Name: words[0], Mode: "active-backup", Options: map[string]string{}}
	if !linkName.MatchString(b.Name) {
		return b, fmt.Errorf("%q is no name for a bond", b.Name)
	}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		var err error
		switch key {
		case "mode":
			b.Mode = value
		case "members":
			for _, m := range strings.Split(value, "+") {
				mac, bad := parseMAC(m)
				err = errors.Join(err, bad)
				b.Members = append(b.Members, mac)
			}
		case "address":
			b.Address, err = parseMAC(value)
		default:
			b.Options[strings.TrimPrefix(key, "bond_")] = value
		}
		if err != nil {
			return b, fmt.Errorf("bond %s: %w", b.Name, err)
		}
	}
	if len(b.Members) == 0 {
		return b, fmt.Errorf("bond %s has no members", b.Name)
	}
	_, err := b.link(b.Members[0])
	return b, err
}

func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%q is no Ethernet address", s)
	}
	return mac, nil
}

// ParseVLANs parses the boot parameter of ironic-python-agent: "eth0.100,52:54:00:00:00:01.200,eth1,all", a name or an
// address with the number of a VLAN, or without one for those that the switch announces.
func ParseVLANs(s string) ([]VLAN, error) {
	var out []VLAN
	for _, w := range strings.Split(s, ",") {
		if w = strings.TrimSpace(w); w == "" {
			continue
		}
		v := VLAN{On: w}
		if on, id, ok := strings.Cut(w, "."); ok {
			n, err := strconv.Atoi(id)
			if err != nil || n < 1 || n > 4094 {
				return nil, fmt.Errorf("%q: %q is no number of a VLAN (1 to 4094)", w, id)
			}
			v = VLAN{On: on, ID: n}
		}
		if mac, err := parseMAC(v.On); err == nil {
			v.On = mac.String()
		} else if !linkName.MatchString(v.On) {
			return nil, fmt.Errorf("%q is neither a link's name nor its address", v.On)
		}
		if v.On == "all" && v.ID != 0 {
			return nil, fmt.Errorf("%q: name the link that VLAN %d is on", w, v.ID)
		}
		out = append(out, v)
	}
	return out, nil
}

// link returns the bond for the kernel.
func (b Bond) link(address net.HardwareAddr) (*netlink.Bond, error) {
	l := netlink.NewLinkBond(netlink.LinkAttrs{Name: b.Name, HardwareAddr: address})
	if l.Mode = netlink.StringToBondMode(b.Mode); l.Mode == netlink.BOND_MODE_UNKNOWN {
		return nil, fmt.Errorf("bond %s: there is no mode %q", b.Name, b.Mode)
	}
	l.Miimon = 100 // without it a bond does not notice a link that is down
	for key, value := range b.Options {
		into := map[string]*int{"miimon": &l.Miimon, "updelay": &l.UpDelay, "downdelay": &l.DownDelay,
			"min_links": &l.MinLinks}[key]
		switch {
		case into != nil:
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("bond %s: %s=%s is no number", b.Name, key, value)
			}
			*into = n
		case key == "lacp_rate":
			if l.LacpRate = netlink.StringToBondLacpRate(value); l.LacpRate == netlink.BOND_LACP_RATE_UNKNOWN {
				return nil, fmt.Errorf("bond %s: lacp_rate is slow or fast, not %q", b.Name, value)
			}
		case key == "xmit_hash_policy":
			if l.XmitHashPolicy = netlink.StringToBondXmitHashPolicy(
				value); l.XmitHashPolicy == netlink.BOND_XMIT_HASH_POLICY_UNKNOWN {
				return nil, fmt.Errorf("bond %s: there is no xmit_hash_policy %q", b.Name, value)
			}
		default:
			return nil, fmt.Errorf("bond %s: %s is not known", b.Name, key)
		}
	}
	return l, nil
}

// address returns the bond's address.
func (b Bond) address(boot net.HardwareAddr) net.HardwareAddr {
	if b.Address != nil {
		return b.Address
	}
	if boot != nil && b.has(boot) {
		return boot
	}
	return b.Members[0]
}

func (b Bond) has(mac net.HardwareAddr) bool {
	return slices.ContainsFunc(b.Members, func(m net.HardwareAddr) bool { return m.String() == mac.String() })
}

// join adds a link to its bond, if it has one, and reports whether it did. A link that can't be bonded is used alone:
// the network of one link is better than none.
func (n *Net) join(l netlink.Link) bool {
	a := l.Attrs()
	i := slices.IndexFunc(n.cfg.Bonds, func(b Bond) bool { return b.has(a.HardwareAddr) })
	if i < 0 || l.Type() == "bond" || l.Type() == "vlan" {
		return false
	}
	b := n.cfg.Bonds[i]
	if err := n.bond(l, b); err != nil {
		n.log.Error("link is not bonded, and used alone", "link", a.Name, "bond", b.Name, "err", err)
		return false
	}
	return true
}

func (n *Net) bond(l netlink.Link, b Bond) error {
	want, err := b.link(b.address(n.cfg.BootIF))
	if err != nil {
		return err
	}
	switch made, err := n.create(want); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("make bond %s: %w", b.Name, errNoBond)
	case err != nil:
		return fmt.Errorf("make bond %s: %w", b.Name, err)
	case made:
		n.log.Info("bond made", "bond", b.Name, "mode", b.Mode, "mac", want.HardwareAddr.String())
	}
	master, err := netlink.LinkByName(b.Name)
	if err != nil {
		return err
	}
	now, err := netlink.LinkByIndex(l.Attrs().Index)
	if err != nil {
		return err
	}
	if now.Attrs().MasterIndex == master.Attrs().Index {
		return nil // an event from before it was added
	}
	if err := netlink.LinkSetDown(now); err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(now, master); err != nil {
		return errors.Join(err, netlink.LinkSetUp(now))
	}
	n.log.Info("link bonded", "link", l.Attrs().Name, "bond", b.Name)
	return netlink.LinkSetUp(now)
}

// remake creates a link, replacing one of the same name: the module bonding creates a bond0 when it is loaded, and an
// earlier worker of this boot may have left its links.
func remake(l netlink.Link) error {
	err := netlink.LinkAdd(l)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	old, err := netlink.LinkByName(l.Attrs().Name)
	if err != nil {
		return err
	}
	if old.Type() != l.Type() {
		return fmt.Errorf("there is a %s of this name", old.Type())
	}
	if err := netlink.LinkDel(old); err != nil {
		return err
	}
	return netlink.LinkAdd(l)
}

// create creates a link managed by this package; false if it exists already. The lock is held all the time, so that the
// kernel's event for the link is not taken for a foreign one.
func (n *Net) create(l netlink.Link) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := l.Attrs().Name
	if n.made[name] != 0 {
		return false, nil
	}
	if err := remake(l); err != nil {
		return false, err
	}
	now, err := netlink.LinkByName(name)
	if err != nil {
		return false, err
	}
	n.made[name] = now.Attrs().Index
	return true, nil
}

// tag creates the configured VLANs of a link.
func (n *Net) tag(name string, mac net.HardwareAddr) {
	for _, v := range n.cfg.VLANs {
		if v.ID != 0 && (v.On == name || v.On == mac.String()) {
			n.vlan(name, v.ID, v.Address)
		}
	}
}

// Heard takes the VLANs that a switch announces on a link, and creates those that the configuration leaves to the
// switch.
func (n *Net) Heard(name string, ids []int) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return
	}
	if i := l.Attrs().MasterIndex; i != 0 { // an announcement to a member applies to the bond
		if l, err = netlink.LinkByIndex(i); err != nil {
			return
		}
		name = l.Attrs().Name
	}
	for _, v := range n.cfg.VLANs {
		if v.ID != 0 || v.On != "all" && v.On != name && v.On != l.Attrs().HardwareAddr.String() {
			continue
		}
		for _, id := range ids {
			n.vlan(name, id, nil)
		}
	}
}

// vlan creates a VLAN's link, once. linkChanged handles it from then on.
func (n *Net) vlan(on string, id int, address net.HardwareAddr) {
	name := fmt.Sprintf("%s.%d", on, id)
	parent, err := netlink.LinkByName(on)
	if err != nil || id < 1 || id > 4094 {
		return
	}
	if len(name) > 15 { // the kernel's limit
		name = fmt.Sprintf("vlan%d.%d", parent.Attrs().Index, id)
	}
	made, err := n.create(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index,
		HardwareAddr: address},
		VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = errNoVLANs
	}
	if err != nil {
		n.log.Error("VLAN not made", "link", on, "vlan", id, "err", err)
	}
	if !made {
		return
	}
	n.log.Info("VLAN made", "link", name)
}
