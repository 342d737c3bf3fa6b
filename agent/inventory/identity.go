package inventory

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Identity identifies a machine when its agent enrols.
type Identity struct {
	BootID   string   // the kernel's random name of this boot
	MACs     []string // of all Ethernet interfaces
	UUID     string   // SMBIOS type 1, as the kernel prints it
	Serial   string
	BootMode string // "bios" or "uefi"
}

// Identify reads the identity below root.
func Identify(root string) (Identity, error) {
	id := Identity{
		BootID: read(root, "proc/sys/kernel/random/boot_id"),
		UUID:   strings.ToLower(read(root, "sys/class/dmi/id/product_uuid")),
		Serial: read(root, "sys/class/dmi/id/product_serial"), BootMode: bootMode(root),
	}
	if id.BootID == "" {
		return id, fmt.Errorf("read the boot id below %s: the kernel gives none", root)
	}
	all, err := interfaces(root, nil)
	for _, i := range all {
		id.MACs = append(id.MACs, i.MACAddress)
	}
	return id, err
}

// Links returns the names of the machine's network interfaces that exist so far.
func Links(root string) []string {
	all, _ := interfaces(root, nil)
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// Uptime returns how long the kernel has been up.
func (Identity) Uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
