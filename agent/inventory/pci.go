package inventory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PCIDevice is a device on the PCI bus. The first six names are those of ironic-python-agent's collector pci-devices.
type PCIDevice struct {
	VendorID   string `json:"vendor_id"` // four hexadecimal digits, as are the other ids
	ProductID  string `json:"product_id"`
	Class      string `json:"class"` // six digits: class, subclass, programming interface
	Revision   string `json:"revision"`
	Bus        string `json:"bus"` // "0000:00:03.0"
	NUMANodeID *int   `json:"numa_node_id"`

	SubsystemVendorID  string `json:"subsystem_vendor_id,omitempty"`
	SubsystemProductID string `json:"subsystem_product_id,omitempty"`
	Driver             string `json:"driver,omitempty"`
	// Link is the current and the maximum link of the device: a card that runs slower than both ends support deserves a
	// check.
	Link *PCILink `json:"link,omitempty"`
}

// PCILink is the state of a PCI Express link, in the kernel's words: "8.0 GT/s PCIe" and a number of lanes.
type PCILink struct {
	Speed    string `json:"speed"`
	Width    int    `json:"width"`
	MaxSpeed string `json:"max_speed"`
	MaxWidth int    `json:"max_width"`
}

// Accelerator is a graphics processor or another computing device. Names need a list of devices; the conductor's hook
// has one.
type Accelerator struct {
	Type       string  `json:"type"` // "GPU" or "accelerator"
	VendorID   string  `json:"vendor_id"`
	DeviceID   string  `json:"device_id"`
	Class      string  `json:"class"`
	PCIAddress string  `json:"pci_address"`
	NUMANodeID *int    `json:"numa_node_id"`
	Driver     *string `json:"driver"`
}

// pciDevices lists the PCI bus by address.
func pciDevices(root string) ([]PCIDevice, error) {
	dir := filepath.Join(root, "sys/bus/pci/devices")
	entries, err := folder(dir, "PCI devices")
	if err != nil {
		return nil, err
	}
	all := []PCIDevice{}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		hex := func(name string) string { return strings.TrimPrefix(read(p, name), "0x") }
		d := PCIDevice{VendorID: hex("vendor"), ProductID: hex("device"), Class: hex("class"),
			Revision: hex("revision"), Bus: e.Name(), SubsystemVendorID: hex("subsystem_vendor"),
			SubsystemProductID: hex("subsystem_device"), Driver: linkName(p, "driver")}
		if n, err := strconv.Atoi(read(p, "numa_node")); err == nil && n >= 0 {
			d.NUMANodeID = &n
		}
		width, _ := strconv.Atoi(read(p, "current_link_width"))
		most, _ := strconv.Atoi(read(p, "max_link_width"))
		if width > 0 && most > 0 && most != 255 { // 255: a root complex's integrated device, without a link
			d.Link = &PCILink{Speed: read(p, "current_link_speed"), Width: width, MaxSpeed: read(p, "max_link_speed"),
				MaxWidth: most}
		}
		all = append(all, d)
	}
	return all, nil
}

// folder lists a folder of sysfs; nil when there is none.
func folder(dir, what string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	return entries, nil
}

// accelerators selects computing devices: displays (class 03, with 0302 for the 3D controllers of servers) and
// processing accelerators (class 12). A BMC's graphics is a display too, recognizable by its vendor.
func accelerators(devices []PCIDevice) []Accelerator {
	all := []Accelerator{}
	for _, d := range devices {
		var kind string
		switch {
		case strings.HasPrefix(d.Class, "03"):
			kind = "GPU"
		case strings.HasPrefix(d.Class, "12"):
			kind = "accelerator"
		default:
			continue
		}
		all = append(all,
			Accelerator{Type: kind, VendorID: d.VendorID, DeviceID: d.ProductID, Class: d.Class, PCIAddress: d.Bus,
				NUMANodeID: d.NUMANodeID, Driver: text(d.Driver)})
	}
	return all
}
