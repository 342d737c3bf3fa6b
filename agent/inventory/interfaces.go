package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// interfaces lists the hardware network interfaces by name. addresses may be nil.
func interfaces(root string, addresses func(string) ([]netip.Prefix, error)) ([]Interface, error) {
	dir := filepath.Join(root, "sys/class/net")
	entries, err := folder(dir, "network interfaces")
	if err != nil {
		return nil, err
	}
	var all []Interface
	var errs []error
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		// A bridge, a VLAN or the loopback has no device.
		kind := read(p, "type")
		if _, err := os.Stat(filepath.Join(p, "device")); err != nil || kind != arpEthernet && kind != arpInfiniBand {
			continue
		}
		// A member of a bond has the bond's address; its permanent one is in a separate file.
		mac, err := net.ParseMAC(cmp.Or(read(p, "bonding_slave/perm_hwaddr"), read(p, "address")))
		if err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", e.Name(), err))
			continue
		}
		var client string
		if kind == arpInfiniBand {
			mac, client = infiniBand(mac)
		}
		i := Interface{
			Name: e.Name(), MACAddress: mac.String(), HasCarrier: read(p, "carrier") == "1",
			Vendor: text(read(p, "device/vendor")), Product: text(read(p, "device/device")),
			Driver: text(linkName(p, "device/driver")), PCIAddress: text(pciOf(filepath.Join(p, "device"))),
			ClientID: text(client),
		}
		// A link that is down gives an error or -1.
		if n, err := strconv.Atoi(read(p, "speed")); err == nil && n > 0 {
			i.SpeedMbps = &n
		}
		if addresses != nil {
			list, err := addresses(e.Name())
			if err != nil {
				errs = append(errs, fmt.Errorf("addresses of %s: %w", e.Name(), err))
			}
			i.IPv4Address, i.IPv6Address = pick(list)
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Interface) int { return strings.Compare(a.Name, b.Name) })
	return all, errors.Join(errs...)
}

// Link types of the kernel (ARPHRD_*).
const arpEthernet, arpInfiniBand = "1", "32"

// infiniBand derives the MAC address (the GUID without its middle) and the DHCP client id of an InfiniBand port from
// the 20 bytes of hardware address, as ironic-python-agent does.
func infiniBand(hw net.HardwareAddr) (mac net.HardwareAddr, client string) {
	if len(hw) != 20 {
		return hw, ""
	}
	guid := hw[12:]
	return slices.Concat(guid[:3], guid[5:]), "ff:00:00:00:00:00:02:00:00:02:c9:00:" + guid.String()
}

// pick chooses for each family the address that others can use: a global one before a link-local one.
func pick(list []netip.Prefix) (v4, v6 *string) {
	for _, p := range list {
		a := p.Addr().WithZone("").Unmap()
		slot := &v6
		if a.Is4() {
			slot = &v4
		}
		if *slot == nil || !a.IsLinkLocalUnicast() && netip.MustParseAddr(**slot).IsLinkLocalUnicast() {
			*slot = text(a.String())
		}
	}
	return v4, v6
}

// linkName returns the last path element of a link's target.
func linkName(elem ...string) string {
	to, err := os.Readlink(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// pciOf finds the PCI function that a device is attached to: a virtio or USB device is a few levels below it.
func pciOf(device string) string {
	p, err := filepath.EvalSymlinks(device)
	if err != nil {
		return ""
	}
	for ; len(p) > 1; p = filepath.Dir(p) {
		if base := filepath.Base(p); pciAddress.MatchString(base) {
			return base
		}
	}
	return ""
}
