package driver

import "slices"

// Interface is an interface of hardware types, with its features.
type Interface struct {
	Kind, Name  string
	Description string
	// Features are what calls of the API find it able to do; for a "no-..." there are none.
	Features []string
	// Verbs are the targets of PUT states/provision that it carries out.
	Verbs []string
}

// interfaces is the table. A test compares it with the names in types, and conductor/app tests that the implementation
// of each interface has these features.
var interfaces = described([]Interface{
	{Kind: "power", Name: "ipmitool", Description: "asks the controller over IPMI 2.0",
		Features: []string{"power on", "power off", "rebooting", "soft power off", "soft rebooting"}},
	{Kind: "power", Name: "redfish", Description: "asks the controller's Redfish service",
		Features: []string{"power on", "power off", "rebooting", "soft power off", "soft rebooting"}},
	{Kind: "power", Name: "fake",
		Description: "fake-hardware: a machine in memory. manual-management: a person who presses the buttons and is told which", Features: []string{"power on", "power off", "rebooting", "soft power off", "soft rebooting"}},
	{Kind: "power", Name: "openstack", Description: "asks Nova, the compute service of an OpenStack cloud",
		Features: []string{"power on", "power off", "rebooting", "soft power off", "soft rebooting"}},
	{Kind: "power", Name: "agent",
		Description: "a machine without a controller: its agent restarts it, a person turns it on",
		Features:    []string{"rebooting"}},
	{Kind: "management", Name: "ipmitool", Description: "asks the controller over IPMI 2.0",
		Features: []string{"boot device", "nmi"}},
	{Kind: "management", Name: "redfish", Description: "asks the controller's Redfish service",
		Features: []string{"boot device", "boot mode", "secure boot", "nmi", "indicators", "virtual media", "health"}},
	{Kind: "management", Name: "openstack",
		Description: "boots a server as openstack_boot says",
		Features:    []string{"boot device"}},
	{Kind: "management", Name: "fake", Description: "remembers what it was told",
		Features: []string{"boot device", "boot mode", "secure boot", "indicators", "virtual media"}},
	{Kind: "management", Name: "noop", Description: "leaves the boot order to the machine"},
	{Kind: "boot", Name: "ipxe",
		Description: "boots the ramdisk over the network: DHCP, TFTP or HTTP, iPXE, then HTTP"},
	{Kind: "boot", Name: "pxe", Description: "ipxe under another name"},
	{Kind: "boot", Name: "http-ipxe",
		Description: "the same, and UEFI loads iPXE by HTTP, without TFTP, where the controller can choose that"},
	{Kind: "boot", Name: "http", Description: "http-ipxe under another name"},
	{Kind: "boot", Name: "redfish-https",
		Description: "has the machine's UEFI load the image of redfish-virtual-media by HTTP, from the address that its controller gives it"},
	{Kind: "boot", Name: "redfish-virtual-media",
		Description: "boots the ramdisk from an image in the controller's virtual drive, without DHCP, TFTP and iPXE"},
	{Kind: "boot", Name: "fake", Description: "boots nothing"},
	{Kind: "deploy", Name: "direct", Description: "has the agent stream an image onto the disk",
		Verbs: []string{"active", "rebuild", "deleted", "provide", "clean", "service"}},
	{Kind: "deploy", Name: "custom-agent",
		Description: "boots the agent for the steps that the site or the request names, which install the system; no image is written",
		Verbs:       []string{"active", "rebuild", "deleted", "provide", "clean", "service"}},
	{Kind: "deploy", Name: "ramdisk",
		Description: "has the machine boot a kernel with its ramdisk, or an ISO image, into memory at each start; nothing is written to a disk", Verbs: []string{"active", "rebuild", "deleted", "provide", "clean", "service"}},
	{Kind: "deploy", Name: "iscsi",
		Description: "has the agent lend the disk, and a host that export.writers names stream the image onto it",
		Verbs:       []string{"active", "rebuild", "deleted", "provide", "clean", "service"}},
	{Kind: "deploy", Name: "fake",
		Description: "pretends, in as much time and with as many failures as driver_info says",
		Verbs:       []string{"active", "rebuild", "deleted", "provide", "clean", "service"}},
	{Kind: "inspect", Name: "agent", Description: "has the agent look at the hardware", Verbs: []string{"inspect"}},
	{Kind: "inspect", Name: "redfish", Description: "asks the controller's Redfish service, without booting the machine",
		Verbs: []string{"inspect"}},
	{Kind: "inspect", Name: "openstack",
		Description: "asks Nova and Neutron", Verbs: []string{"inspect"}},
	{Kind: "inspect", Name: "fake", Description: "makes an inventory of what driver_info says (fake_inventory)",
		Verbs: []string{"inspect"}},
	{Kind: "inspect", Name: "no-inspect", Description: "no inspection"},
	{Kind: "network", Name: "noop", Description: "leaves switches alone and gives the instance no address"},
	{Kind: "network", Name: "flat", Description: "keeps serving the instance on the provisioning network",
		Features: []string{"vifs"}},
	{Kind: "network", Name: "switch",
		Description: "moves the machine's switch ports from VLAN to VLAN, as the table in switches.file says",
		Features:    []string{"vifs"}},
	{Kind: "network", Name: "neutron",
		Description: "has Neutron bring machines to the networks of their work and of their tenants, as neutron.url says",
		Features:    []string{"vifs"}},
	{Kind: "console", Name: "fake", Description: "a console to nowhere", Features: []string{"console"}},
	{Kind: "console", Name: "no-console", Description: "no console"},
	{Kind: "raid", Name: "fake", Description: "records logical disks", Features: []string{"raid"}},
	{Kind: "raid", Name: "agent",
		Description: "software RAID by the agent: its steps make the arrays of target_raid_config",
		Features:    []string{"raid"}},
	{Kind: "raid", Name: "redfish",
		Description: "makes volumes on RAID controllers through the controller's Redfish service", Features: []string{"raid"}},
	{Kind: "raid", Name: "no-raid", Description: "no RAID"},
	{Kind: "bios", Name: "fake", Description: "records BIOS settings", Features: []string{"bios"}},
	{Kind: "bios", Name: "redfish", Description: "reads and changes BIOS settings at the controller's Redfish service",
		Features: []string{"bios"}},
	{Kind: "bios", Name: "no-bios", Description: "no BIOS settings"},
	{Kind: "firmware", Name: "fake", Description: "records firmware versions", Features: []string{"firmware"}},
	{Kind: "firmware", Name: "redfish",
		Description: "reads firmware versions at the controller's Redfish service, and updates firmware by URL",
		Features:    []string{"firmware"}},
	{Kind: "firmware", Name: "no-firmware", Description: "no firmware updates"},
	{Kind: "rescue", Name: "fake", Description: "pretends to boot a rescue system",
		Verbs: []string{"rescue", "unrescue"}},
	{Kind: "rescue", Name: "agent",
		Description: "boots the agent, which lets people log in by ssh with a password or a key",
		Verbs:       []string{"rescue", "unrescue"}},
	{Kind: "rescue", Name: "no-rescue", Description: "no rescue"},
	{Kind: "storage", Name: "noop", Description: "local disks only"},
	{Kind: "storage", Name: "fake", Description: "attaches nothing"},
	{Kind: "vendor", Name: "fake", Description: "the methods of Ironic's fake", Features: []string{"vendor passthru"}},
	{Kind: "vendor", Name: "ipmitool", Description: "restarts the controller, and sends it commands",
		Features: []string{"vendor passthru"}},
	{Kind: "vendor", Name: "redfish", Description: "subscriptions to the events of the controller's Redfish service",
		Features: []string{"vendor passthru"}},
	{Kind: "vendor", Name: "no-vendor", Description: "no vendor methods"},
})

// Find returns what an interface does; ok is false if there is none of that kind and name.
func Find(kind, name string) (i Interface, ok bool) {
	at := slices.IndexFunc(interfaces, func(i Interface) bool { return i.Kind == kind && i.Name == name })
	if at < 0 {
		return Interface{}, false
	}
	return interfaces[at], true
}
