package inventory

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
)

// Files of each directory that the inventory reads. Missing files are left out.
var (
	captureFiles = []string{
		"proc/cpuinfo", "proc/meminfo", "proc/sys/kernel/hostname", "proc/sys/kernel/random/boot_id",
		"sys/firmware/dmi/tables/DMI", "sys/firmware/efi/fw_platform_size",
		"sys/firmware/efi/efivars/SecureBoot-" + efiGlobal, "sys/firmware/efi/efivars/SetupMode-" + efiGlobal,
		"sys/firmware/acpi/tables/TPM2", "sys/firmware/acpi/tables/TCPA",
		"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "sys/devices/system/memory/block_size_bytes",
		"sys/firmware/devicetree/base/model", "sys/firmware/devicetree/base/serial-number",
		"sys/firmware/devicetree/base/compatible", "sys/firmware/devicetree/base/chosen/u-boot,version",
	}
	// Directories of links to devices, and the files read of each device; a path with a slash leads into a directory or
	// over a link below it.
	captureDevices = map[string][]string{
		"sys/class/dmi": {"bios_vendor", "bios_version", "bios_date", "sys_vendor", "product_name", "product_serial",
			"product_uuid"},
		"sys/class/net": {"address", "bonding_slave/perm_hwaddr", "type", "carrier", "speed", "device/vendor",
			"device/device", "device/numa_node", "device/driver"},
		"sys/block": {"size", "removable", "ro", "dev", "hidden", "serial", "wwid", "nsid", "queue/rotational",
			"queue/logical_block_size", "queue/physical_block_size", "device/model", "device/vendor", "device/type",
			"device/serial", "device/wwid", "device/vpd_pg80", "device/vpd_pg83", "device/firmware_rev", "device/rev",
			"device/transport", "device/state", "device/access_state"},
		"sys/bus/pci/devices": {"vendor", "device", "class", "revision", "numa_node", "subsystem_vendor",
			"subsystem_device", "driver", "current_link_speed", "current_link_width", "max_link_speed",
			"max_link_width"},
		"sys/bus/usb/devices": {"idVendor", "idProduct", "product", "manufacturer", "serial", "speed", "bDeviceClass",
			"busnum", "devnum"},
		"sys/class/tpm": {"tpm_version_major", "caps", "device/description", "device/caps", "device/driver",
			"device/firmware_node/hid"},
	}
	// Attributes of a software array.
	captureArray = []string{"level", "raid_disks", "degraded", "array_state", "metadata_version", "chunk_size",
		"sync_action", "sync_completed", "uuid"}
	// Files in the directories above a disk that show its connection; a star matches one name.
	captureAbove = []string{"ata_port/*/port_no", "sas_device/*/sas_address", "sas_device/*/phy_identifier",
		"sas_port/*/num_phys", "fc_remote_ports/*/port_name"}
)

// Capture writes a tar archive of the files below root that the inventory is made from. Unpacked, it yields the same
// inventory except for data from outside files (addresses, the BMC, health of disks, neighbours). It holds serial
// numbers and hardware addresses. Unreadable files are left out; the error lists those left out for lack of permission,
// and the archive is usable without them.
func Capture(root string, w io.Writer) error {
	c := capture{root: root, entries: map[string]*tar.Header{}, content: map[string][]byte{}}
	for _, f := range captureFiles {
		c.file(f)
	}
	for dir, names := range captureDevices {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			continue
		}
		c.dir(dir)
		for _, e := range entries {
			link := filepath.Join(dir, e.Name())
			array := dir == "sys/block" && strings.HasPrefix(e.Name(), "md")
			if dir == "sys/block" && !array && !disk.Candidate(e.Name()) {
				continue
			}
			real := c.link(link)
			if real == "" {
				continue
			}
			for _, n := range names {
				c.below(real, n)
			}
			switch {
			case array:
				c.array(real)
			case dir == "sys/block":
				c.above(real)
			}
		}
	}
	for _, pattern := range []string{"sys/devices/system/cpu/cpu[0-9]*",
		"sys/devices/system/node/node[0-9]*/cpu[0-9]*"} {
		for _, p := range c.glob(pattern) {
			dir := cmp.Or(c.link(p), p)
			for _, n := range []string{"online", "topology/physical_package_id", "topology/core_id"} {
				c.file(filepath.Join(dir, n))
			}
		}
	}
	c.files("sys/devices/system/node/node[0-9]*/meminfo")
	// With SMBIOS tables the memory blocks, thousands in a large machine, are not needed.
	if c.content["sys/firmware/dmi/tables/DMI"] == nil {
		c.files("sys/devices/system/memory/memory[0-9]*/online")
		c.files("sys/devices/system/memory/memory[0-9]*/state")
	}
	if err := c.write(w); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	if len(c.denied) > 0 {
		return fmt.Errorf("not captured, because only root may read them: %s", strings.Join(c.denied, ", "))
	}
	return nil
}

// CaptureTo writes a capture to a file, compressed with gzip if its name ends in gz.
func CaptureTo(root, file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	if !strings.HasSuffix(file, "gz") {
		return errors.Join(Capture(root, f), f.Close())
	}
	z := gzip.NewWriter(f)
	return errors.Join(Capture(root, z), z.Close(), f.Close())
}

type capture struct {
	root    string
	entries map[string]*tar.Header
	content map[string][]byte
	denied  []string
}

func (c *capture) glob(pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(c.root, pattern))
	for i, p := range found {
		found[i], _ = filepath.Rel(c.root, p)
	}
	return found
}

func (c *capture) files(pattern string) {
	for _, p := range c.glob(pattern) {
		c.file(p)
	}
}

func (c *capture) dir(rel string) {
	if rel != "." && c.entries[rel] == nil {
		c.entries[rel] = &tar.Header{Typeflag: tar.TypeDir, Name: rel + "/", Mode: 0o755}
	}
}

// file adds a file.
func (c *capture) file(rel string) {
	path := filepath.Join(c.root, rel)
	if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() {
		return
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		c.denied = append(c.denied, "/"+rel)
	}
	if err != nil {
		return // some sysfs files return an error, such as the speed of a link that is down
	}
	c.content[rel] = b
	c.entries[rel] = &tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: int64(len(b))}
}

// link adds a link and returns the directory it leads to, below the root; empty when it is no link or dangling.
func (c *capture) link(rel string) string {
	path := filepath.Join(c.root, rel)
	to, err := os.Readlink(path)
	if err != nil {
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			c.dir(rel)
			return rel
		}
		return ""
	}
	c.entries[rel] = &tar.Header{Typeflag: tar.TypeSymlink, Name: rel, Linkname: to, Mode: 0o777}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	base, err := filepath.EvalSymlinks(c.root)
	if err != nil {
		return ""
	}
	if rel, err = filepath.Rel(base, real); err != nil || strings.HasPrefix(rel, "..") {
		return ""
	}
	c.dir(rel)
	return rel
}

// below adds the file or link that a path leads to from a directory.
func (c *capture) below(dir, name string) {
	parts := strings.Split(name, "/")
	for _, p := range parts[:len(parts)-1] {
		if dir = c.link(filepath.Join(dir, p)); dir == "" {
			return
		}
	}
	last := filepath.Join(dir, parts[len(parts)-1])
	if fi, err := os.Lstat(filepath.Join(c.root, last)); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		c.link(last)
		return
	}
	c.file(last)
}

// above adds the files above a disk that show its connection, and the neighbouring SCSI hosts, which are counted.
func (c *capture) above(dir string) {
	for ; strings.Contains(dir, "/devices/"); dir = filepath.Dir(dir) {
		for _, pattern := range captureAbove {
			c.files(filepath.Join(dir, pattern))
		}
		for _, p := range c.glob(filepath.Join(dir, "host[0-9]*")) {
			c.dir(p)
		}
	}
}

// array adds the attributes of an array and of its members.
func (c *capture) array(dir string) {
	for _, n := range captureArray {
		c.file(filepath.Join(dir, "md", n))
	}
	for _, m := range c.glob(filepath.Join(dir, "md", "dev-*")) {
		c.file(filepath.Join(m, "state"))
		c.file(filepath.Join(m, "slot"))
		if part := c.link(filepath.Join(m, "block")); part != "" {
			c.file(filepath.Join(part, "partition"))
		}
	}
}

func (c *capture) write(w io.Writer) error {
	t := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		if err := t.WriteHeader(c.entries[name]); err != nil {
			return err
		}
		if _, err := t.Write(c.content[name]); err != nil {
			return err
		}
	}
	return t.Close()
}
