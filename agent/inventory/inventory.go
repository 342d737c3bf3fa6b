// Package inventory describes a machine, under the JSON names of ironic-python-agent.
//
// Everything is read from sysfs, procfs and SMBIOS below a root directory; only interface addresses, the BMC, the
// health of disks, firmware versions of network cards and switch data (LLDP) come from methods of the machine. ghw
// provides processors, memory, the machine's maker and its BIOS. It is not used for disks and network interfaces, which
// it reads from udev's database and with ethtool, both missing in the ramdisk; nor for PCI devices (it needs a list of
// their names) and NUMA nodes (it merges equal core numbers of two sockets). A probe that fails loses its part of the
// inventory and adds a line to Report.Errors; it never fails the whole. Sizes are bytes unless the name says otherwise.
// A null in JSON means that the machine does not expose the value.
package inventory

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/raid"
	"github.com/ingot-metal/ingot/agent/inventory/smbios"
	"github.com/ingot-metal/ingot/proto/lldp"
)

// Inventory is ironic-python-agent's inventory.
type Inventory struct {
	Interfaces   []Interface  `json:"interfaces"`
	CPU          CPU          `json:"cpu"`
	Disks        []disk.Disk  `json:"disks"`
	Memory       Memory       `json:"memory"`
	BMCAddress   *string      `json:"bmc_address"`
	BMCV6Address *string      `json:"bmc_v6address"`
	BMCMAC       *string      `json:"bmc_mac"`
	SystemVendor SystemVendor `json:"system_vendor"`
	Boot         Boot         `json:"boot"`
	Hostname     string       `json:"hostname"`
}

// Interface is a hardware network interface.
type Interface struct {
	Name        string     `json:"name"`
	MACAddress  string     `json:"mac_address"`
	IPv4Address *string    `json:"ipv4_address"`
	IPv6Address *string    `json:"ipv6_address"`
	HasCarrier  bool       `json:"has_carrier"`
	LLDP        []lldp.TLV `json:"lldp"`    // pairs of type and hexadecimal value; null when no neighbour was heard
	Vendor      *string    `json:"vendor"`  // PCI vendor id: "0x8086"
	Product     *string    `json:"product"` // PCI device id
	ClientID    *string    `json:"client_id"`
	BIOSDevName *string    `json:"biosdevname"`
	SpeedMbps   *int       `json:"speed_mbps"`
	PCIAddress  *string    `json:"pci_address"`
	Driver      *string    `json:"driver"`
}

// CPU describes the processors; a machine with different sockets shows the first and lists all in CPUs.
type CPU struct {
	ModelName    string   `json:"model_name"`
	Frequency    string   `json:"frequency"` // MHz
	Count        int      `json:"count"`     // threads
	Architecture string   `json:"architecture"`
	Flags        []string `json:"flags"`
	SocketCount  int      `json:"socket_count"`
	CPUs         []Socket `json:"cpus"`
}

// Socket is one processor package.
type Socket struct {
	ID           int    `json:"id"`
	ModelName    string `json:"model_name"`
	Count        int    `json:"count"` // threads
	Cores        int    `json:"cores"`
	Architecture string `json:"architecture"`
}

// Memory is the memory available to the kernel and the installed memory.
type Memory struct {
	Total      uint64 `json:"total"`
	PhysicalMB uint64 `json:"physical_mb"`
}

// SystemVendor is the machine's maker.
type SystemVendor struct {
	ProductName  string   `json:"product_name"`
	SerialNumber string   `json:"serial_number"`
	Manufacturer string   `json:"manufacturer"`
	Firmware     Firmware `json:"firmware"`
}

// Firmware is the machine's BIOS.
type Firmware struct {
	Vendor    string `json:"vendor"`
	Version   string `json:"version"`
	BuildDate string `json:"build_date"`
}

// Boot describes the current boot.
type Boot struct {
	CurrentBootMode string  `json:"current_boot_mode"` // "bios" or "uefi"
	PXEInterface    *string `json:"pxe_interface"`     // address of the interface the firmware booted from

	// Beyond ironic-python-agent's. Null on a machine without UEFI, or one whose variables can't be read.
	SecureBoot   *bool `json:"secure_boot"`
	SetupMode    *bool `json:"setup_mode"`    // keys can be enrolled without being signed
	FirmwareBits int   `json:"firmware_bits"` // 32 or 64; 0 without UEFI
}

// Report is the result of the step inspect. Fields beside the inventory have the names of ironic-python-agent's
// collectors if it has one: pci_devices, usb_devices, numa_topology, dmi, lldp_raw.
type Report struct {
	Inventory     Inventory   `json:"inventory"`
	BootInterface *string     `json:"boot_interface"`
	RootDisk      any         `json:"root_disk"` // disk.Choice, or null
	PCIDevices    []PCIDevice `json:"pci_devices"`
	USBDevices    []USBDevice `json:"usb_devices"`
	NUMA          *NUMA       `json:"numa_topology"`
	DMI           any         `json:"dmi"` // smbios.Description, or null
	// LLDPRaw has every interface with an LLDP listener; without a neighbour its list is empty. Null: no listener.
	LLDPRaw map[string][]lldp.TLV `json:"lldp_raw"`

	// Beyond ironic-python-agent's.
	LLDP         map[string]lldp.Neighbour `json:"parsed_lldp"`
	Accelerators []Accelerator             `json:"accelerators"`
	TPM          TPM                       `json:"tpm"`
	Firmware     []FirmwareVersion         `json:"firmware_versions"`
	DiskHealth   []DiskHealth              `json:"disk_health"`
	SoftwareRAID []raid.Known              `json:"software_raid"`
	Errors       []string                  `json:"errors"`
}

// machine is the part of the machine that this package uses.
type machine interface {
	// Root is the directory that contains sys, proc and dev.
	Root() string
	// Addresses returns an interface's addresses.
	Addresses(ifname string) ([]netip.Prefix, error)
	// IPMI sends a command to the BMC and returns the answer, completion code first. errors.Is(err, os.ErrNotExist): no
	// BMC.
	IPMI(ctx context.Context, netFn, command byte, data []byte) ([]byte, error)
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// Options select the data to collect.
type Options struct {
	BootIF net.HardwareAddr // the interface the firmware booted from, nil if unknown
	// LLDP is how long to wait for the neighbours of all interfaces with a carrier; zero uses frames already received.
	LLDP time.Duration
	Log  *slog.Logger // nil is silent
}

// Collect takes the inventory.
func Collect(ctx context.Context, m machine, o Options) (*Report, error) {
	bootIF, log := o.BootIF, o.Log
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	root := m.Root()
	r := &Report{Errors: []string{}}
	// probe runs one part; an error is recorded and logged, and the other parts still run.
	probe := func(what string, f func() error) {
		begin := time.Now()
		err := guard(f)
		if err != nil {
			r.Errors = append(r.Errors, fmt.Sprintf("%s: %v", what, err))
			log.Warn("a part of the inventory is missing", "part", what, "err", err)
		}
		log.Debug("inventory", "part", what, "took", time.Since(begin))
	}
	probe("devices", func() error { return m.Settle(ctx) })
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	inv := &r.Inventory
	links := make(chan error, 1)
	go func() { links <- settleLinks(ctx, m) }()
	probe("cpu", func() (err error) { inv.CPU, err = processors(root, log); return err })
	probe("disks", func() (err error) { inv.Disks, err = disk.List(ctx, root); return err })
	probe("memory", func() (err error) { inv.Memory, err = memory(root, log); return err })
	probe("pci", func() (err error) { r.PCIDevices, err = pciDevices(root); return err })
	probe("usb", func() (err error) { r.USBDevices, err = usbDevices(root); return err })
	probe("numa", func() (err error) { r.NUMA, err = numa(root); return err })
	probe("bmc", func() error { return bmc(ctx, m, inv) })
	probe("tpm", func() error { r.TPM = tpm(root); return nil })
	probe("links", func() error { return <-links })
	probe("interfaces", func() (err error) { inv.Interfaces, err = interfaces(root, m.Addresses); return err })
	probe("dmi", func() error {
		tables, err := dmiTables(root)
		if tables != nil {
			r.DMI = smbios.Describe(tables)
			nameByBoard(inv.Interfaces, inv.CPU.Flags, tables)
		}
		return err
	})
	probe("system", func() (err error) { inv.SystemVendor, err = systemVendor(root, log); return err })
	probe("firmware versions", func() (err error) { r.Firmware, err = firmwareVersions(ctx, m, inv); return err })
	probe("disk health", func() (err error) {
		r.DiskHealth, err = diskHealth(ctx, m, inv.Disks, &r.Firmware)
		return err
	})
	probe("software raid", func() error { return arrays(ctx, m, r) })
	probe("lldp", func() error { return neighbours(ctx, m, o.LLDP, r) })
	if inv.Interfaces == nil {
		inv.Interfaces = []Interface{}
	}
	if inv.Disks == nil {
		inv.Disks = []disk.Disk{}
	}
	if r.DiskHealth == nil {
		r.DiskHealth = []DiskHealth{}
	}
	if r.SoftwareRAID == nil {
		r.SoftwareRAID = []raid.Known{}
	}
	r.Accelerators = accelerators(r.PCIDevices)
	inv.Hostname = read(root, "proc/sys/kernel/hostname")
	inv.Boot = Boot{CurrentBootMode: bootMode(root), PXEInterface: text(bootIF.String()),
		SecureBoot: efiFlag(root, "SecureBoot"), SetupMode: efiFlag(root, "SetupMode"),
		FirmwareBits: firmwareBits(root)}
	r.BootInterface = bootInterface(inv.Interfaces, bootIF)
	return r, ctx.Err()
}

// arraysLimit is the time limit for reading array metadata from disks.
const arraysLimit = time.Minute

// arrays lists software arrays, and puts arrays that stand for their disks among the disks.
func arrays(ctx context.Context, m machine, r *Report) (err error) {
	ctx, cancel := context.WithTimeout(ctx, arraysLimit)
	defer cancel()
	var raw func(ctx context.Context, path string, p []byte, off int64) error
	if d, ok := m.(interface {
		ReadRaw(ctx context.Context, path string, p []byte, off int64) error
	}); ok {
		raw = d.ReadRaw
	}
	r.SoftwareRAID, err = raid.Survey(ctx, m.Root(), raw)
	r.Inventory.Disks = raid.AddTo(r.Inventory.Disks, r.SoftwareRAID)
	return err
}

// settleLinks waits, on a freshly booted machine, until its links have a carrier or had time to get one.
func settleLinks(ctx context.Context, m machine) error {
	if s, ok := m.(interface{ SettleLinks(context.Context) error }); ok {
		return s.SettleLinks(ctx)
	}
	return nil
}

// bootInterface is the interface that the firmware named, or else the first with an address, by which the agent was
// presumably booted.
func bootInterface(all []Interface, bootIF net.HardwareAddr) *string {
	for _, i := range all {
		if bootIF != nil && i.MACAddress == bootIF.String() {
			return text(i.MACAddress)
		}
	}
	for _, i := range all {
		if i.IPv4Address != nil || i.IPv6Address != nil {
			return text(i.MACAddress)
		}
	}
	return nil
}

func bootMode(root string) string {
	if _, err := os.Stat(filepath.Join(root, "sys/firmware/efi")); err == nil {
		return "uefi"
	}
	return "bios"
}

// guard turns a panic over malformed firmware data into an error of one probe.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// read returns a small file's text without surrounding space; empty if it does not exist.
func read(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.TrimRight(string(b), "\x00"))
}

// text returns s for JSON: null when empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
