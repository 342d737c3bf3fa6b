// Package rootdevice chooses the disk of a machine for the operating system: how disks are identified, the meaning of
// root device hints, which disk they choose, and why not another.
//
// The agent decides with it, on its disks. The conductor refuses hints with it that agents would not understand, and
// tools show with it what the agent would decide, from the inventory of the last inspection. It reads and writes
// nothing.
//
// Keys, operators and their meaning are Ironic's (ironic_python_agent/device_hints.py and oslo.utils' specs_matcher),
// and hints that work there choose the same disk here, with three exceptions. Disks are rarely whole GiB, while
// local_gb and all tools show them so: a whole number for size also means a disk that is a fraction of a GiB larger.
// <or> and <range-in> for size, and <all-in> for text, which Ironic lists but can't evaluate, work. An unknown property
// of a disk fits no hint, not even s!=, where Ironic compares with the word "none".
package rootdevice

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
)

// Disk is one whole block device, under ironic-python-agent's names. Empty strings are null in JSON.
type Disk struct {
	Name               string // "/dev/sda"
	Model              string
	Size               int64 // bytes
	Rotational         bool
	WWN                string
	Serial             string
	Vendor             string
	WWNWithExtension   string
	WWNVendorExtension string
	HCTL               string
	ByPath             string // "/dev/disk/by-path/pci-0000:00:04.0"
	LogicalSectors     int    // size of a logical sector
	PhysicalSectors    int
	Tran               string // "nvme", "sata", "sas", "usb", "virtio", "fc", "iscsi", "mmc" or ""

	// In addition to ironic-python-agent's; in JSON only if set.
	ByPathAlso []string // older udev names of the same path
	ReadOnly   bool     // according to the kernel
	Removable  bool

	// Paths lists the paths of a disk with more than one: it is in the list once, by the name of the path in use, which
	// is the first.
	Paths []Path

	// MemberOf lists the UUIDs of arrays that replace the disk because it, or a partition of it, is a member: such a
	// disk is not used for installations.
	MemberOf []string

	// Number is the device number, "254:0": valid only in this boot, and not in JSON.
	Number string
}

// Path is one of several paths to a disk.
type Path struct {
	Name   string `json:"name"` // "/dev/sdb"
	ByPath string `json:"by_path"`
	HCTL   string `json:"hctl"`
	// the kernel's words: "running", "running, active/optimized", "offline"; empty if there is none
	State string `json:"state"`
}

type diskJSON struct {
	Name               string   `json:"name"`
	Model              *string  `json:"model"`
	Size               int64    `json:"size"`
	Rotational         bool     `json:"rotational"`
	WWN                *string  `json:"wwn"`
	Serial             *string  `json:"serial"`
	Vendor             *string  `json:"vendor"`
	WWNWithExtension   *string  `json:"wwn_with_extension"`
	WWNVendorExtension *string  `json:"wwn_vendor_extension"`
	HCTL               *string  `json:"hctl"`
	ByPath             *string  `json:"by_path"`
	LogicalSectors     int      `json:"logical_sectors"`
	PhysicalSectors    int      `json:"physical_sectors"`
	Tran               *string  `json:"tran"`
	ByPathAlso         []string `json:"by_path_also,omitempty"`
	ReadOnly           bool     `json:"read_only,omitempty"`
	Removable          bool     `json:"removable,omitempty"`
	Paths              []Path   `json:"paths,omitempty"`
	MemberOf           []string `json:"member_of,omitempty"`
}

func (d Disk) json() diskJSON {
	null := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return diskJSON{
		Name: d.Name, Model: null(d.Model), Size: d.Size, Rotational: d.Rotational, WWN: null(d.WWN),
		Serial: null(d.Serial), Vendor: null(d.Vendor), WWNWithExtension: null(d.WWNWithExtension),
		WWNVendorExtension: null(d.WWNVendorExtension), HCTL: null(d.HCTL), ByPath: null(d.ByPath),
		LogicalSectors: d.LogicalSectors, PhysicalSectors: d.PhysicalSectors, Tran: null(d.Tran),
		ByPathAlso: d.ByPathAlso, ReadOnly: d.ReadOnly, Removable: d.Removable, Paths: d.Paths, MemberOf: d.MemberOf,
	}
}

// MarshalJSON uses ironic-python-agent's names, with null for unknown values.
func (d Disk) MarshalJSON() ([]byte, error) { return json.Marshal(d.json()) }

// UnmarshalJSON decodes MarshalJSON's form.
func (d *Disk) UnmarshalJSON(b []byte) error {
	var j diskJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	*d = Disk{
		Name: j.Name, Model: text(j.Model), Size: j.Size, Rotational: j.Rotational, WWN: text(j.WWN),
		Serial: text(j.Serial), Vendor: text(j.Vendor), WWNWithExtension: text(j.WWNWithExtension),
		WWNVendorExtension: text(j.WWNVendorExtension), HCTL: text(j.HCTL), ByPath: text(j.ByPath),
		LogicalSectors: j.LogicalSectors, PhysicalSectors: j.PhysicalSectors, Tran: text(j.Tran),
		ByPathAlso: j.ByPathAlso, ReadOnly: j.ReadOnly, Removable: j.Removable, Paths: j.Paths, MemberOf: j.MemberOf,
	}
	return nil
}

// String describes the disk for an operator: name, model, size, serial.
func (d Disk) String() string {
	parts := []string{d.Name}
	if m := strings.TrimSpace(d.Vendor + " " + d.Model); m != "" {
		parts = append(parts, m)
	}
	parts = append(parts, HumanSize(d.Size))
	if d.Serial != "" {
		parts = append(parts, "serial "+d.Serial)
	}
	return strings.Join(parts, ", ")
}

// HumanSize formats a size in the usual unit for disks.
func HumanSize(n int64) string { return humanize.IBytesN(uint64(max(n, 0)), 3) }

// Identity identifies a disk. At least one of WWN, Serial and ByPath is set. A disk with several paths has no ByPath:
// the path in use may change.
type Identity struct {
	Name   string `json:"name"` // its name at that time; not compared
	Serial string `json:"serial"`
	WWN    string `json:"wwn"`
	Size   int64  `json:"size"`
	ByPath string `json:"by_path"`
}

// Identity returns the disk's identity.
func (d Disk) Identity() Identity {
	wwn := cmp.Or(d.WWNWithExtension, d.WWN)
	id := Identity{Name: d.Name, Serial: d.Serial, WWN: wwn, Size: d.Size, ByPath: d.ByPath}
	if len(d.Paths) > 0 {
		id.ByPath = ""
	}
	return id
}

// Differs describes the difference between two identities, or returns "".
func (id Identity) Differs(other Identity) string {
	var diffs []string
	for _, f := range []struct{ what, want, is string }{
		{"wwn", id.WWN, other.WWN}, {"serial", id.Serial, other.Serial}, {"path", id.ByPath, other.ByPath},
	} {
		if f.what == "path" && f.want == "" && id.WWN != "" {
			continue // it had several paths, and may have one left
		}
		if f.want != f.is {
			diffs = append(diffs, fmt.Sprintf("%s is %q, not %q", f.what, f.is, f.want))
		}
	}
	if id.Size != other.Size {
		diffs = append(diffs, fmt.Sprintf("size is %d, not %d", other.Size, id.Size))
	}
	return strings.Join(diffs, ", ")
}

// Same reports whether two disks have the same hardware identity.
func (id Identity) Same(other Identity) bool {
	return id.WWN == other.WWN && id.Serial == other.Serial && (id.WWN != "" || id.Serial != "")
}

// Error is an error with the remedy for an operator.
type Error struct {
	Err    error
	Remedy string
	// NoDisk means that there is no disk at all: one may still appear.
	NoDisk bool
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
