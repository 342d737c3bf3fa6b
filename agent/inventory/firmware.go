package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// FirmwareVersion is the version of a component's firmware.
type FirmwareVersion struct {
	Component string `json:"component"` // "bios", "bmc", "nic" or "disk"
	Name      string `json:"name"`      // of the interface or disk; empty for the machine's own
	Version   string `json:"version"`
}

// cards is implemented by a machine that can read the firmware version of network cards.
type cards interface {
	// LinkFirmware returns the version of an interface's firmware; empty when unknown to its driver.
	LinkFirmware(ifname string) (string, error)
}

// getDeviceID is IPMI's command (v2.0, 20.1).
const getDeviceID = 0x01

// firmwareVersions reads the versions of components other than disks.
func firmwareVersions(ctx context.Context, m machine, inv *Inventory) ([]FirmwareVersion, error) {
	all := []FirmwareVersion{}
	add := func(component, name, version string) {
		if version != "" {
			all = append(all, FirmwareVersion{component, name, version})
		}
	}
	add("bios", "", inv.SystemVendor.Firmware.Version)
	if inv.BMCAddress != nil || inv.BMCV6Address != nil {
		ctx, cancel := context.WithTimeout(ctx, bmcLimit)
		// Device id and revision, firmware's major (7 bits) and minor (BCD) number.
		if b, err := ask(ctx, m, netFnApp, getDeviceID); err == nil && len(b) >= 4 {
			add("bmc", "", fmt.Sprintf("%d.%02x", b[2]&0x7f, b[3]))
		}
		cancel()
	}
	var errs []error
	if c, ok := m.(cards); ok {
		for _, i := range inv.Interfaces {
			v, err := c.LinkFirmware(i.Name)
			if err != nil {
				errs = append(errs, fmt.Errorf("interface %s: %w", i.Name, err))
			}
			add("nic", i.Name, v)
		}
	}
	return all, errors.Join(errs...)
}

// diskFirmware returns the version in sysfs, which for SATA is truncated.
func diskFirmware(root, disk string) string {
	dir := filepath.Join(root, "sys/block", strings.ReplaceAll(strings.TrimPrefix(disk, "/dev/"), "/", "!"), "device")
	return cmp.Or(read(dir, "firmware_rev"), read(dir, "rev"))
}

// compare orders by the first pair that differs.
func compare(a1, a2, b1, b2 string) int {
	return cmp.Or(strings.Compare(a1, b1), strings.Compare(a2, b2))
}
