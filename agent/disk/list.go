package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// List reads the machine's disks from sysfs below root, ordered by name. A disk with several paths is listed once.
// Devices without use for an operating system are left out: loop, RAM, compressed RAM, optical, floppy and
// device-mapper devices, arrays, boot areas of flash chips, hidden paths of multipath NVMe, empty card readers, and
// virtual drives of a BMC.
func List(ctx context.Context, root string) ([]Disk, error) {
	entries, err := os.ReadDir(filepath.Join(root, "sys/block"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without a single block driver loaded
	}
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var disks []Disk
	for _, e := range entries {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if !Candidate(e.Name()) {
			continue
		}
		d, err := read(root, e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // unplugged meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read about disk %s: %w", e.Name(), err)
		}
		if d.Size > 0 && !virtualMedia(d) {
			disks = append(disks, d)
		}
	}
	disks = joinPaths(root, disks)
	sort.Slice(disks, func(i, j int) bool { return nameLess(disks[i].Name, disks[j].Name) })
	return disks, nil
}

var notADisk = regexp.MustCompile(
	`^(loop|ram|zram|sr|scd|fd|dm-|md|nbd|nullb|mtdblock|drbd|rbd|pmem\d+s?\.|mmcblk\d+(boot|rpmb|gp)|nvme\d+c\d+n)`)

// Candidate reports whether a block device of this name in sysfs may be a disk, judging by the name only.
func Candidate(name string) bool { return !notADisk.MatchString(name) }

// virtualMediaName matches the names of a BMC's virtual USB drives.
var virtualMediaName = regexp.MustCompile(
	`(?i)virtual|idrac|\bilo\b|lifecycle|megarac|\bami\b|\bimm\b|ir-vfd|ocdrv|secupd`)

func virtualMedia(d Disk) bool {
	return d.Removable && virtualMediaName.MatchString(d.Vendor+" "+d.Model)
}

// nameLess sorts sdb before sdaa, and nvme2n1 before nvme10n1.
func nameLess(a, b string) bool {
	if len(a) != len(b) {
		return len(a) < len(b) && prefix(a) == prefix(b) || prefix(a) < prefix(b)
	}
	return a < b
}

func prefix(name string) string {
	name = filepath.Base(name)
	for _, p := range []string{"nvme", "sd", "vd", "xvd", "mmcblk", "dasd"} {
		if strings.HasPrefix(name, p) {
			return p
		}
	}
	return name
}

// attributes reads small files of one directory.
type attributes string

func (a attributes) bytes(name string) []byte {
	b, _ := os.ReadFile(filepath.Join(string(a), name)) // nothing when there is none
	return b
}

// text returns a file's content without the padding that devices put around their strings.
func (a attributes) text(name string) string { return clean(string(a.bytes(name))) }

func (a attributes) number(name string) int64 { return ParseNumber(a.text(name)) }

// ParseNumber parses a number in sysfs; 0 if it is none or out of range.
func ParseNumber(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0 // of a number out of range ParseInt returns the nearest
	}
	return n
}

// clean turns a device's text into one line of printable text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == 0 {
			return -1
		}
		if r < 0x20 || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return strings.Join(strings.Fields(s), " ")
}

func read(root, name string) (Disk, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(root, "sys/block", name))
	if err != nil {
		return Disk{}, err
	}
	block, device := attributes(real), attributes(filepath.Join(real, "device"))
	if block.number("hidden") == 1 {
		return Disk{}, fs.ErrNotExist
	}
	d := Disk{
		Name:            "/dev/" + strings.ReplaceAll(name, "!", "/"), // sysfs can't have a slash in a name
		Size:            block.number("size") * 512,                   // always in units of 512 bytes
		Rotational:      block.number("queue/rotational") == 1,
		LogicalSectors:  int(block.number("queue/logical_block_size")),
		PhysicalSectors: int(block.number("queue/physical_block_size")),
		ReadOnly:        block.number("ro") == 1,
		Removable:       block.number("removable") == 1,
		Model:           device.text("model"),
		Vendor:          device.text("vendor"),
		Number:          block.text("dev"),
	}
	d.LogicalSectors = cmp.Or(d.LogicalSectors, 512)
	d.PhysicalSectors = cmp.Or(d.PhysicalSectors, d.LogicalSectors)
	if t, err := strconv.Atoi(device.text("type")); err == nil && t != 0 && t != 14 && t != 20 {
		return Disk{}, fs.ErrNotExist // a SCSI device that is no disk: enclosure, optical, tape
	}
	readNames(&d, block, device)
	base, err := filepath.EvalSymlinks(filepath.Join(root, "sys"))
	if err != nil {
		return Disk{}, err
	}
	t := topology(base, real)
	d.HCTL, d.Tran = t.hctl, t.tran
	if t.path != "" {
		d.ByPath = "/dev/disk/by-path/" + t.path
	}
	for _, p := range t.also {
		d.ByPathAlso = append(d.ByPathAlso, "/dev/disk/by-path/"+p)
	}
	return d, nil
}

// readNames finds serial number and world wide name. Their location depends on the transport: virtio in the block
// directory, NVMe the serial in the controller's and the name in the namespace's, SCSI and SATA (which the kernel
// translates to SCSI) in vital product data.
func readNames(d *Disk, block, device attributes) {
	d.Serial = cmp.Or(block.text("serial"), device.text("serial"), serialOfPage80(device.bytes("vpd_pg80")))
	wwid := cmp.Or(block.text("wwid"), device.text("wwid"))
	switch kind, rest, _ := strings.Cut(wwid, "."); {
	case kind == "naa":
		setWWN(d, rest)
	case kind == "eui" && !strings.HasPrefix(filepath.Base(d.Name), "nvme"):
		setWWN(d, rest)
	case wwid != "" && strings.HasPrefix(filepath.Base(d.Name), "nvme"):
		d.WWN, d.WWNWithExtension = wwid, wwid
	default:
		setWWN(d, wwnOfPage83(device.bytes("vpd_pg83")))
	}
}

// setWWN splits hexadecimal digits as udev's ID_WWN properties do: a registered extended name has 32 digits, of which
// the last 16 are the vendor's.
func setWWN(d *Disk, digits string) {
	digits = strings.ToLower(strings.TrimPrefix(digits, "0x"))
	if digits == "" || strings.Trim(digits, "0123456789abcdef") != "" || strings.Trim(digits, "0") == "" {
		return
	}
	d.WWN, d.WWNWithExtension = "0x"+digits, "0x"+digits
	if len(digits) == 32 {
		d.WWN, d.WWNVendorExtension = "0x"+digits[:16], "0x"+digits[16:]
	}
}
