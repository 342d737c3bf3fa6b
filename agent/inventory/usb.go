package inventory

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// USBDevice is a device on a USB bus, including hubs and the controllers themselves. The first three names are those of
// ironic-python-agent's collector usb-devices.
type USBDevice struct {
	Product string `json:"product"`
	Vendor  string `json:"vendor"`
	Handle  string `json:"handle"` // "USB:1:2": bus and number

	VendorID  string `json:"vendor_id"`
	ProductID string `json:"product_id"`
	Class     string `json:"class"` // two hexadecimal digits; "00": each interface has its own
	Serial    string `json:"serial,omitempty"`
	Path      string `json:"path"` // "1-3.2": its place in the tree of hubs
	SpeedMbps string `json:"speed_mbps,omitempty"`
}

// usbDevices lists the USB buses.
func usbDevices(root string) ([]USBDevice, error) {
	dir := filepath.Join(root, "sys/bus/usb/devices")
	entries, err := folder(dir, "USB devices")
	if err != nil {
		return nil, err
	}
	all := []USBDevice{}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if strings.Contains(e.Name(), ":") || read(p, "idVendor") == "" {
			continue // an interface of a device
		}
		bus, _ := strconv.Atoi(read(p, "busnum"))
		number, _ := strconv.Atoi(read(p, "devnum"))
		all = append(all,
			USBDevice{Product: read(p, "product"), Vendor: read(p, "manufacturer"),
				Handle: fmt.Sprintf("USB:%d:%d", bus, number), VendorID: read(p, "idVendor"),
				ProductID: read(p, "idProduct"), Class: read(p, "bDeviceClass"), Serial: read(p, "serial"),
				Path: e.Name(), SpeedMbps: read(p, "speed")})
	}
	return all, nil
}
