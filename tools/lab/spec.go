package lab

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// Firmware of a machine. The EFI bit of its controller's boot flags starts a BIOS machine with UEFI; a UEFI machine has
// no BIOS.
type Firmware string

// Kinds of firmware.
const (
	BIOS Firmware = "bios"
	UEFI Firmware = "uefi"
)

// Accel is how QEMU runs a machine's instructions.
type Accel string

// Auto uses KVM when a short boot of Options.ProbeKernel under it succeeded, else TCG, QEMU's emulation.
const (
	Auto Accel = "auto"
	TCG  Accel = "tcg"
	KVM  Accel = "kvm"
)

// BMCKind is the protocol of controllers.
type BMCKind string

// Kinds of controller. With Both the same controller speaks IPMI and Redfish.
const (
	IPMI    BMCKind = "ipmi"
	Redfish BMCKind = "redfish"
	Both    BMCKind = "both"
)

// What a network card boots with: QEMU's own ROM, which is iPXE, or nothing, which leaves it to UEFI's network stack.
const (
	ROMiPXE = "ipxe"
	ROMNone = "none"
)

// Options describe a lab.
type Options struct {
	// Name names the lab and its namespace, ingot-NAME. Two labs of a name can't be up at once; leftovers of one whose
	// program died are removed. Lower case letters, digits and dashes, at most 40. "" is "lab".
	Name string
	// Dir keeps disks, UEFI variables and console logs. "" is a folder of the lab's name below /var/tmp/ingot-lab.
	Dir string
	// Subnet is the provisioning network: an IPv4 /24, the lab's own. Its first address is the host's, .201 and up are
	// the controllers'. The zero value is 10.77.0.0/24. Every lab can have the same.
	Subnet netip.Prefix
	Nodes  []NodeSpec
	// User and Password of all controllers; "" is admin and ingot-lab.
	User, Password string
	// BMC is the protocol of the controllers; "" is IPMI.
	BMC BMCKind
	// Personality names the behaviour of the Redfish services, one of redfish.Personalities; "" is the standard's.
	Personality string
	Accel       Accel
	// Site is the part of the network that is not Ingot's; the zero value is none.
	Site site.Site
	// ProbeKernel is a vmlinuz to try KVM with. "" never uses KVM.
	ProbeKernel string
	Log         *slog.Logger `json:"-"`
}

// NodeSpec describes a machine. Zero values are filled in.
type NodeSpec struct {
	Name      string   // "" is node-0, node-1, ...
	Firmware  Firmware // "" is BIOS
	MemoryMiB int      // 0 is 512
	Disks     []DiskSpec
	NICs      []NICSpec // none is one virtio card
	UUID      uuid.UUID // zero is made from the names of lab and machine, and so stays the same
	Serial    string    // of the machine; "" is made from its name
	IPv6PXE   bool      // let UEFI try PXE over IPv6
	HTTPOnly  bool      // let UEFI boot from the network over HTTP alone, without PXE
	// NoNetBoot lets firmware never boot from the network. It is set where the site has no server for it.
	NoNetBoot bool
	// Kernel, Initrd and Append start the machine without any boot loader, as long as its boot device isn't forced to
	// be the disk. For tests of what runs in a machine: it takes two seconds.
	Kernel, Initrd, Append string
}

// DiskSpec describes a disk.
type DiskSpec struct {
	SizeBytes int64  // 0 is 8 GiB, or the size of File
	Bus       string // virtio, nvme or sata; "" is virtio
	Serial    string // at most 20 characters; "" is made from machine and position
	WWN       string // 16 hexadecimal digits, for sata (WWN) and nvme (EUI-64); "" is none
	File      string // a raw image to use; "" is a new sparse file in the lab's folder
}

// NICSpec describes a network card on the provisioning network.
type NICSpec struct {
	Model string // virtio, e1000 or e1000e; "" is virtio
	MAC   string // "" is made from the position
	ROM   string // ROMiPXE or ROMNone; "" is ROMiPXE
	// Elsewhere plugs the card into another, empty network, and firmware does not boot from it.
	Elsewhere bool
	// Socket is that of a switch's port (vswitch.ServeSocket) into which the card is plugged, in place of the
	// provisioning network.
	Socket string
}

var (
	nameRE = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)
	wwnRE  = regexp.MustCompile(`^(0x)?[0-9a-fA-F]{16}$`)
)

const firstController = 201

// fill returns o with every default put in, or all that is wrong with it.
func (o Options) fill() (Options, error) {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	o.Name = cmp.Or(o.Name, "lab")
	if !nameRE.MatchString(o.Name) {
		bad("lab name %q: use lower case letters, digits and dashes, at most 40", o.Name)
	}
	o.Dir = cmp.Or(o.Dir, filepath.Join("/var/tmp/ingot-lab", o.Name))
	if abs, err := filepath.Abs(o.Dir); err != nil {
		bad("lab folder: %w", err)
	} else {
		o.Dir = abs
	}
	if !o.Subnet.IsValid() {
		o.Subnet = netip.MustParsePrefix("10.77.0.0/24")
	}
	if !o.Subnet.Addr().Is4() || o.Subnet.Bits() != 24 {
		bad("subnet %s: it must be an IPv4 network of 24 bits", o.Subnet)
	}
	o.Subnet = o.Subnet.Masked()
	o.User = cmp.Or(o.User, "admin")
	o.Password = cmp.Or(o.Password, "ingot-lab")
	if len(o.User) > 16 || len(o.Password) > 20 {
		bad("controllers take user names of 16 and passwords of 20 bytes")
	}
	switch o.BMC {
	case "":
		o.BMC = IPMI
	case IPMI, Redfish, Both:
	default:
		bad("controllers %q: they are ipmi, redfish or both", o.BMC)
	}
	if _, ok := redfish.ByName(o.Personality); !ok {
		bad("personality %q: it is one of %s", o.Personality, strings.Join(redfish.Personalities(), ", "))
	} else if o.Personality != "" && o.BMC == IPMI {
		bad("personality %s: it is of controllers that speak Redfish", o.Personality)
	}
	switch o.Accel {
	case "":
		o.Accel = Auto
	case Auto, TCG, KVM:
	default:
		bad("accelerator %q: it is auto, tcg or kvm", o.Accel)
	}
	var err error
	if o.Site, err = o.Site.Fill(); err != nil {
		errs = append(errs, err)
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if n := len(o.Nodes); n > 254-firstController {
		bad("%d machines: a lab has at most %d", n, 254-firstController)
	}
	o.Nodes = slices.Clone(o.Nodes)
	names, macs := map[string]bool{}, map[string]bool{}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if err := n.fill(o, i); err != nil {
			errs = append(errs, err)
		}
		if names[n.Name] {
			bad("two machines are called %s", n.Name)
		}
		names[n.Name] = true
		for _, nic := range n.NICs {
			if macs[nic.MAC] {
				bad("two network cards have the address %s", nic.MAC)
			}
			macs[nic.MAC] = true
		}
	}
	return o, errors.Join(errs...)
}

func (n *NodeSpec) fill(o Options, i int) error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("machine %s: "+format, append([]any{n.Name}, a...)...))
	}
	n.Name = cmp.Or(n.Name, fmt.Sprintf("node-%d", i))
	if !nameRE.MatchString(n.Name) {
		bad("name: use lower case letters, digits and dashes, at most 40")
	}
	switch n.Firmware {
	case "":
		n.Firmware = BIOS
	case BIOS, UEFI:
	default:
		bad("firmware %q: it is bios or uefi", n.Firmware)
	}
	n.NoNetBoot = n.NoNetBoot || o.Site.Netboot == site.Off && o.Site.DHCP == ""
	n.MemoryMiB = cmp.Or(n.MemoryMiB, 512)
	if n.MemoryMiB < 64 {
		bad("%d MiB of memory are too few", n.MemoryMiB)
	}
	n.UUID = cmp.Or(n.UUID, uuid.NewSHA1(uuid.NameSpaceDNS, []byte(n.Name+"."+o.Name+".lab.ingot")))
	n.Serial = cmp.Or(n.Serial, strings.ToUpper("LAB-"+n.Name))
	n.Disks = slices.Clone(n.Disks)
	for j := range n.Disks {
		d := &n.Disks[j]
		d.Bus = cmp.Or(d.Bus, "virtio")
		if !slices.Contains([]string{"virtio", "nvme", "sata"}, d.Bus) {
			bad("disk %d: bus %q: it is virtio, nvme or sata", j, d.Bus)
		}
		if d.Bus == "sata" && j > 5 {
			bad("disk %d: the machine has six SATA ports", j)
		}
		d.Serial = cmp.Or(d.Serial, fmt.Sprintf("%.16s-D%d", strings.ToUpper(n.Name), j))
		if len(d.Serial) > 20 {
			bad("disk %d: serial number %q is longer than 20 characters", j, d.Serial)
		}
		if d.WWN != "" && (!wwnRE.MatchString(d.WWN) || d.Bus == "virtio") {
			bad("disk %d: WWN %q: it is 16 hexadecimal digits, on sata and nvme", j, d.WWN)
		}
		if d.SizeBytes < 0 {
			bad("disk %d: size %d", j, d.SizeBytes)
		}
		if d.SizeBytes == 0 && d.File == "" {
			d.SizeBytes = 8 << 30
		}
	}
	if len(n.NICs) == 0 {
		n.NICs = []NICSpec{{}}
	}
	n.NICs = slices.Clone(n.NICs)
	for j := range n.NICs {
		nic := &n.NICs[j]
		nic.Model = cmp.Or(nic.Model, "virtio")
		if !slices.Contains([]string{"virtio", "e1000", "e1000e"}, nic.Model) {
			bad("network card %d: model %q: it is virtio, e1000 or e1000e", j, nic.Model)
		}
		nic.ROM = cmp.Or(nic.ROM, ROMiPXE)
		if nic.ROM != ROMiPXE && nic.ROM != ROMNone {
			bad("network card %d: ROM %q: it is ipxe or none", j, nic.ROM)
		}
		nic.MAC = cmp.Or(nic.MAC, fmt.Sprintf("52:54:00:77:%02x:%02x", j, i+1))
		if m, err := net.ParseMAC(nic.MAC); err != nil || len(m) != 6 || m[0]&1 != 0 {
			bad("network card %d: %q is no address of a card", j, nic.MAC)
		} else {
			nic.MAC = m.String()
		}
	}
	return errors.Join(errs...)
}

// ParseDisk reads a disk as BUS:SIZE[:SERIAL], such as nvme:20G or virtio:8192M:DISK-1. SIZE is in MiB (M), GiB (G) or
// TiB (T).
func ParseDisk(s string) (DiskSpec, error) {
	part := strings.SplitN(s, ":", 3)
	bad := fmt.Errorf("disk %q: write it as BUS:SIZE[:SERIAL], such as nvme:20G", s)
	if len(part) < 2 || part[1] == "" {
		return DiskSpec{}, bad
	}
	shift, ok := map[byte]uint{'M': 20, 'G': 30, 'T': 40}[part[1][len(part[1])-1]]
	n, err := strconv.ParseInt(part[1][:len(part[1])-1], 10, 64)
	if !ok || err != nil || n < 1 || n > 1<<50>>shift {
		return DiskSpec{}, bad
	}
	d := DiskSpec{Bus: part[0], SizeBytes: n << shift}
	if len(part) == 3 {
		d.Serial = part[2]
	}
	return d, nil
}
