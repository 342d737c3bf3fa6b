// Package inventory reads what a Redfish service lists of a machine: processors, memory, drives and network cards.
//
// Document is the result in the form in which the agent sends an inventory, so that the same hooks and rules use both.
// Sizes are bytes but for memory, which is MiB. What a service does not list is zero or left out; texts are cleaned,
// and the number of requests is bounded by the controller package.
package inventory

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
)

// Machine is the result.
type Machine struct {
	Manufacturer, Model, Serial string
	// BootMode is "bios" or "uefi", "" when it is not known; SecureBoot nil.
	BootMode   string
	SecureBoot *bool

	CPUs, Sockets  int // CPUs are threads
	CPUModel, Arch string
	MHz            int
	MemoryMB       int
	Disks          []Disk
	Interfaces     []Interface
}

// Disk is a drive.
type Disk struct {
	Name, Vendor, Model, Serial, WWN string
	Size                             int64
	Rotational                       bool
}

// Interface is a network card's port. MAC has lower case and colons.
type Interface struct {
	Name, MAC string
	Mbps      int
	Up        *bool
}

type link = schemas.Link

// Read reads a machine.
func Read(ctx context.Context, c *controller.Controller, s *controller.System) (*Machine, error) {
	ctx = controller.Bounded(ctx)
	m := &Machine{BootMode: map[schemas.BootSourceOverrideMode]string{schemas.LegacyBootSourceOverrideMode: "bios",
		schemas.UEFIBootSourceOverrideMode: "uefi"}[s.Boot.BootSourceOverrideMode]}
	var doc struct {
		Manufacturer, Model, SerialNumber                      string
		Processors, Memory, Storage, SimpleStorage, SecureBoot link
		EthernetInterfaces                                     link
		ProcessorSummary                                       struct{ Count, LogicalProcessorCount int }
		MemorySummary                                          struct{ TotalSystemMemoryGiB float64 }
	}
	if _, err := c.Read(ctx, s.Path, &doc); err != nil {
		return nil, err
	}
	m.Manufacturer, m.Model, m.Serial = c.Clean(doc.Manufacturer), c.Clean(doc.Model), c.Clean(doc.SerialNumber)
	var secure struct{ SecureBootCurrentBoot string }
	ok, err := c.Try(ctx, string(doc.SecureBoot), &secure)
	if err != nil {
		return nil, err
	}
	if ok && secure.SecureBootCurrentBoot != "" {
		m.SecureBoot = new(secure.SecureBootCurrentBoot == "Enabled")
	}
	for _, read := range []func() error{
		func() error { return m.processors(ctx, c, string(doc.Processors)) },
		func() error { return m.memory(ctx, c, string(doc.Memory), doc.MemorySummary.TotalSystemMemoryGiB) },
		func() error { return m.storage(ctx, c, string(doc.Storage), string(doc.SimpleStorage)) },
		func() (err error) { m.Interfaces, err = Interfaces(ctx, c, string(doc.EthernetInterfaces)); return err },
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	m.CPUs = cmp.Or(m.CPUs, doc.ProcessorSummary.LogicalProcessorCount, doc.ProcessorSummary.Count)
	return m, nil
}

// arches are instruction sets, and architectures where a service lists no more, in the words of Linux.
var arches = map[string]string{"x86": "i686", "x86-64": "x86_64", "IA-64": "ia64", "ARM-A32": "armv7l",
	"ARM-A64": "aarch64", "PowerISA": "ppc64le", "MIPS64": "mips64", "RV64": "riscv64",
	"arch x86": "x86_64", "arch ARM": "aarch64", "arch Power": "ppc64le", "arch RISC-V": "riscv64"}

func (m *Machine) processors(ctx context.Context, c *controller.Controller, path string) error {
	type processor struct {
		ProcessorType, ProcessorArchitecture, InstructionSet, Model string
		MaxSpeedMHz                                                 float64
		TotalThreads, TotalCores                                    int
		Status                                                      struct{ State string }
	}
	return controller.Each(ctx, c, path, func(_ string, p *processor) {
		if p.ProcessorType != "CPU" && p.ProcessorType != "" || p.Status.State == "Absent" {
			return
		}
		m.Sockets++
		m.CPUs += max(p.TotalThreads, p.TotalCores, 0)
		m.MHz = max(m.MHz, int(p.MaxSpeedMHz))
		m.CPUModel = cmp.Or(m.CPUModel, c.Clean(p.Model))
		m.Arch = cmp.Or(m.Arch, arches[p.InstructionSet], arches["arch "+p.ProcessorArchitecture])
	})
}

// memory takes the service's own sum where there is one.
func (m *Machine) memory(ctx context.Context, c *controller.Controller, path string, sumGiB float64) error {
	const most = 1 << 30 // MiB; more is no memory
	if mb := sumGiB * 1024; mb >= 1 && mb < most {
		m.MemoryMB = int(mb)
		return nil
	}
	type module struct {
		CapacityMiB float64
		Status      struct{ State string }
	}
	return controller.Each(ctx, c, path, func(_ string, d *module) {
		if d.Status.State != "Absent" && d.CapacityMiB > 0 && d.CapacityMiB < most {
			m.MemoryMB += int(d.CapacityMiB)
		}
	})
}

// storage reads drives, or where a service lists none of them the devices of older ones.
func (m *Machine) storage(ctx context.Context, c *controller.Controller, path, simple string) error {
	type storage struct{ Drives []link }
	var drives []string
	err := controller.Each(ctx, c, path, func(_ string, s *storage) {
		for _, d := range s.Drives {
			if !slices.Contains(drives, string(d)) {
				drives = append(drives, string(d))
			}
		}
	})
	if err != nil {
		return err
	}
	for _, at := range drives {
		var d struct {
			Name, Manufacturer, Model, SerialNumber, MediaType string
			CapacityBytes                                      float64
			Identifiers                                        []struct{ DurableName, DurableNameFormat string }
			Status                                             struct{ State string }
		}
		ok, err := c.Try(ctx, at, &d)
		if err != nil {
			return err
		}
		if !ok || d.Status.State == "Absent" || d.CapacityBytes < 1 || d.CapacityBytes > 1<<60 {
			continue
		}
		disk := Disk{Name: c.Clean(d.Name), Vendor: c.Clean(d.Manufacturer), Model: c.Clean(d.Model),
			Serial: c.Clean(d.SerialNumber), Size: int64(d.CapacityBytes), Rotational: d.MediaType == "HDD"}
		for _, id := range d.Identifiers {
			if id.DurableNameFormat == "NAA" && id.DurableName != "" {
				disk.WWN = "0x" + strings.TrimPrefix(strings.ToLower(c.Clean(id.DurableName)), "0x")
			}
		}
		if slices.ContainsFunc(m.Disks, func(o Disk) bool { return o.Name == disk.Name }) {
			disk.Name += fmt.Sprint(" #", len(m.Disks)+1) // a root device is found again by its name
		}
		m.Disks = append(m.Disks, disk)
	}
	if len(m.Disks) > 0 {
		return nil
	}
	type old struct {
		Devices []struct {
			Name, Manufacturer, Model string
			CapacityBytes             float64
		}
	}
	return controller.Each(ctx, c, simple, func(_ string, s *old) {
		for _, d := range s.Devices {
			if d.CapacityBytes >= 1 && d.CapacityBytes <= 1<<60 {
				m.Disks = append(m.Disks, Disk{Name: c.Clean(d.Name), Vendor: c.Clean(d.Manufacturer),
					Model: c.Clean(d.Model), Size: int64(d.CapacityBytes)})
			}
		}
	})
}

// Interfaces reads the machine's network cards, without those that have no MAC address and those that are switched off.
func Interfaces(ctx context.Context, c *controller.Controller, path string) ([]Interface, error) {
	type card struct {
		ID                              string `json:"Id"`
		MACAddress, PermanentMACAddress string
		LinkStatus                      string
		SpeedMbps                       float64
		Status                          struct{ State string }
	}
	var out []Interface
	err := controller.Each(ctx, c, path, func(_ string, e *card) {
		mac := strings.ToLower(strings.ReplaceAll(cmp.Or(e.MACAddress, e.PermanentMACAddress), "-", ":"))
		hw, err := net.ParseMAC(mac)
		if err != nil || len(hw) != 6 || slices.Max(hw) == 0 || e.Status.State == "Disabled" ||
			e.Status.State == "Absent" {
			return
		}
		i := Interface{Name: cmp.Or(c.Clean(e.ID), mac), MAC: hw.String(), Mbps: max(0, int(e.SpeedMbps))}
		if e.LinkStatus != "" {
			i.Up = new(e.LinkStatus == "LinkUp")
		}
		if !slices.ContainsFunc(out, func(o Interface) bool { return o.MAC == i.MAC }) {
			out = append(out, i)
		}
	})
	return out, err
}

// smallestRoot is the least size of a disk that a system is installed on, as in Ironic.
const smallestRoot = 4 << 30

// Document is the machine as the agent would have sent it: inventory, and what the agent says beside it.
func (m *Machine) Document() (json.RawMessage, error) {
	type object = map[string]any
	orNull := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	disks, interfaces := []any{}, []any{}
	var root object
	for _, d := range m.Disks {
		o := object{"name": d.Name, "vendor": orNull(d.Vendor), "model": d.Model, "serial": orNull(d.Serial),
			"wwn": orNull(d.WWN), "size": d.Size, "rotational": d.Rotational}
		if disks = append(disks, o); d.Size >= smallestRoot && (root == nil || d.Size < root["size"].(int64)) {
			root = o
		}
	}
	for _, i := range m.Interfaces {
		interfaces = append(interfaces, object{"name": i.Name, "mac_address": i.MAC, "ipv4_address": nil,
			"ipv6_address": nil, "has_carrier": i.Up, "speed_mbps": i.Mbps, "lldp": nil})
	}
	boot := object{"pxe_interface": nil, "current_boot_mode": orNull(m.BootMode)}
	if m.SecureBoot != nil {
		boot["secure_boot"] = *m.SecureBoot
	}
	doc := object{"inventory": object{
		"cpu": object{"count": m.CPUs, "socket_count": m.Sockets, "model_name": m.CPUModel, "architecture": m.Arch,
			"frequency": m.MHz, "flags": []any{}},
		"memory": object{"total": int64(m.MemoryMB) << 20, "physical_mb": m.MemoryMB},
		"disks":  disks, "interfaces": interfaces, "boot": boot, "bmc_address": nil, "bmc_v6address": nil,
		"system_vendor": object{"manufacturer": m.Manufacturer, "product_name": m.Model, "serial_number": m.Serial},
	}}
	if root != nil {
		doc["root_disk"] = root
	}
	return json.Marshal(doc)
}
