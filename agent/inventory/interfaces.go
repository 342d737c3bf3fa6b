package inventory

import (
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

// interfaces lists the network interfaces that are hardware, by name. addresses may be nil.
func interfaces(root string, addresses func(string) ([]netip.Prefix, error)) ([]Interface, error) {
	dir := filepath.Join(root, "sys/class/net")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var all []Interface
	var errs []error
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		// A bridge, a VLAN or the loopback has no device; type 1 is Ethernet (ARPHRD_ETHER).
		if _, err := os.Stat(filepath.Join(p, "device")); err != nil || read(p, "type") != "1" {
			continue
		}
		mac, err := net.ParseMAC(read(p, "address"))
		if err != nil {
			errs = append(errs, fmt.Errorf("interface %s: %w", e.Name(), err))
			continue
		}
		i := Interface{
			Name: e.Name(), MACAddress: mac.String(), HasCarrier: read(p, "carrier") == "1",
			Vendor: text(read(p, "device/vendor")), Product: text(read(p, "device/device")),
			Driver: text(linkName(p, "device/driver")), PCIAddress: text(pciOf(filepath.Join(p, "device"))),
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

// pick chooses the address of each family that others can use: a global one before a link-local one.
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

// linkName is the last element of where a link points.
func linkName(elem ...string) string {
	to, err := os.Readlink(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// pciOf climbs from a device to the PCI function it hangs on: a virtio or USB device lies a few levels below.
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

// pciDevices lists the PCI bus by address.
func pciDevices(root string) ([]PCIDevice, error) {
	dir := filepath.Join(root, "sys/bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return []PCIDevice{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list PCI devices: %w", err)
	}
	all := []PCIDevice{}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		hex := func(name string) string { return strings.TrimPrefix(read(p, name), "0x") }
		d := PCIDevice{VendorID: hex("vendor"), ProductID: hex("device"), Class: hex("class"), Revision: hex("revision"), Bus: e.Name()}
		if n, err := strconv.Atoi(read(p, "numa_node")); err == nil && n >= 0 {
			d.NUMANodeID = &n
		}
		all = append(all, d)
	}
	return all, nil
}
