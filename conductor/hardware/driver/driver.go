// Package driver is the one table of hardware types: which power, management, boot, deploy, ... interfaces go together,
// by the names and with the defaults that clients of the API know.
//
// A hardware type is the value of a node's "driver" field. For each kind of interface it lists the supported ones, the
// preferred first. A Table is the part of that which the configuration enables: the default is the configured one, else
// the first that is supported and enabled; a node may choose another one by "<kind>_interface". Only interfaces that
// Ingot really has are listed, so the table is also the capability matrix that the API shows (GET /v1/drivers,
// /ingot/v1/capabilities) and that docs/reference/hardware.md is made from. The power drivers are in
// conductor/hardware/power, the other interfaces in conductor/hardware; this package only names them.
package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Kinds of interface, in the order in which they are shown.
var Kinds = []string{"vendor", "power", "console", "deploy", "rescue", "bios", "inspect", "boot", "raid", "storage",
	"management", "network", "firmware"}

// Type is a hardware type.
type Type struct {
	Name string
	// Description is one line for people.
	Description string
	// Interfaces lists the enabled ones of each kind, the default first.
	Interfaces map[string][]string
	// Properties describes what driver_info may hold.
	Properties []power.Property

	// any takes every enabled interface, whether listed or not: for tests of combinations.
	any   bool
	table *Table
}

// Default returns the default interface of a kind.
func (t *Type) Default(kind string) string {
	if e := t.Interfaces[kind]; len(e) > 0 {
		return e[0]
	}
	return ""
}

// Enabled returns the interfaces of a kind that nodes of this type may choose.
func (t *Type) Enabled(kind string) []string { return slices.Clone(t.Interfaces[kind]) }

// network plugs are the same for all types: noop does not touch switches and gives the instance no address, flat keeps
// serving the instance on the provisioning network, switch moves the machine's switch ports from VLAN to VLAN, neutron
// has OpenStack's network service do it.
var networks = []string{"noop", "flat", "switch", "neutron"}

// fakeProperties are those of the fakes.
var fakeProperties = []power.Property{
	{Name: "fake_id", Description: "name of the machine in memory; default is the node's UUID."},
	{Name: "fake_delay",
		Description: "how long everything takes that has no delay of its own: seconds (2), a duration (500ms), or a range (1,5) of which each act picks at random, short more often than long; default is no time."},
	{Name: "fake_power_delay", Description: "how long a power action takes."},
	{Name: "fake_management_delay", Description: "how long boot mode, Secure Boot and indicators take."},
	{Name: "fake_deploy_delay", Description: "how long each step of a deployment takes."},
	{Name: "fake_clean_delay", Description: "how long the automated cleaning takes."},
	{Name: "fake_inspect_delay", Description: "how long an inspection takes."},
	{Name: "fake_raid_delay", Description: "how long each RAID step takes."},
	{Name: "fake_bios_delay", Description: "how long each BIOS step takes."},
	{Name: "fake_firmware_delay", Description: "how long each firmware step takes."},
	{Name: "fake_rescue_delay", Description: "how long rescue and unrescue take."},
	{Name: "fake_vendor_delay", Description: "how long each vendor method or step takes."},
	{Name: "fake_console_delay", Description: "how long it takes to start a console."},
	{Name: "fake_fail",
		Description: "what fails: an object such as {\"deploy.write_image\": \"message\", \"power.on\": 2}. A text fails every time with that message, a number so many times before it works, an object has both (message, times)."},
	{Name: "fake_inventory",
		Description: "what inspection finds, as an object: cpus, cpu_arch, memory_mb, disks_gb (a list), macs (a list), vendor, product, serial, boot_mode. With it inspection also sets the node's properties and makes its ports."},
}

// deploys are the deploy interfaces of real machines.
var deploys = []string{"direct", "custom-agent", "ramdisk", "iscsi"}

// netboots are the boot interfaces of the network.
var netboots = []string{"ipxe", "pxe", "http-ipxe", "http"}

// redfishInterfaces and redfishProperties are those of hardware type redfish, and with other names of idrac.
var redfishInterfaces = map[string][]string{
	"vendor": {"redfish", "no-vendor"}, "power": {"redfish"}, "console": {"no-console"},
	"deploy": deploys, "rescue": {"agent", "no-rescue"}, "bios": {"redfish", "no-bios"},
	"storage": {"noop"}, "inspect": {"agent", "redfish", "no-inspect"},
	"boot": append(slices.Clone(netboots), "redfish-virtual-media", "redfish-https"),
	"raid": {"redfish", "no-raid", "agent"}, "management": {"redfish"}, "network": networks,
	"firmware": {"redfish", "no-firmware"},
}

var redfishProperties = []power.Property{
	{Name: "redfish_address",
		Description: "address of the node's controller, with or without scheme (https): a host name or IP address, a port if it is not the scheme's, and the path of the service root if it is not /redfish/v1.",
		Required:    true},
	{Name: "redfish_system_id",
		Description: "path of the machine at the service, such as /redfish/v1/Systems/1; needed only where there are several."},
	{Name: "redfish_username", Description: "user name of an account with administrator's privileges."},
	{Name: "redfish_password", Description: "its password."},
	{Name: "redfish_auth_type",
		Description: "authentication: session, basic, or auto; auto makes a session and uses basic where there are none. Default is auto."},
	{Name: "redfish_verify_ca",
		Description: "whether to check the controller's certificate: true (the certificate authorities of the conductor's host), false (not at all), the name of a file in the folder redfish.ca_dir, or certificates in PEM. Default is true."},
	{Name: "firmware_update_unresponsive_bmc_wait",
		Description: "seconds that a new firmware version may take to be shown after an update whose setting has no wait. Default is 900."},
	{Name: "external_http_url",
		Description: "address at which the node's controller reaches the conductor's HTTP server, for virtual media. Default is netboot.external_http_url."},
	{Name: "kernel_append_params",
		Description: "additional parameters for the kernel of the ramdisk: words of letters, digits and _.,:/=@%+- only."},
}

// types is the table. "pxe" is there for clients that request it: with both names a machine's PXE gets iPXE over TFTP,
// and iPXE the rest over HTTP.
var types = []*Type{
	{
		Name:        "fake-hardware",
		Description: "Machines that exist only in memory, to try things out: every interface has a fake that behaves, delays and fails as driver_info says.",
		Interfaces: map[string][]string{
			"vendor": {"fake", "no-vendor"}, "power": {"fake"}, "console": {"fake", "no-console"},
			"deploy": {"fake", "direct", "custom-agent", "ramdisk", "iscsi"}, "rescue": {"fake", "agent", "no-rescue"},
			"bios": {"fake", "no-bios"}, "inspect": {"fake", "agent", "no-inspect"}, "boot": {"fake", "ipxe", "pxe"},
			"raid": {"fake", "agent", "no-raid"}, "storage": {"noop", "fake"}, "management": {"fake"},
			"network": networks, "firmware": {"fake", "no-firmware"},
		},
		Properties: fakeProperties,
		any:        true,
	},
	{
		Name: "ipmi", Description: "Servers whose controller speaks IPMI 2.0 over the network.",
		Interfaces: map[string][]string{
			"vendor": {"ipmitool", "no-vendor"}, "power": {"ipmitool"}, "console": {"no-console"},
			"deploy": deploys, "rescue": {"agent", "no-rescue"}, "bios": {"no-bios"},
			"inspect": {"agent", "no-inspect"},
			"boot":    netboots, "raid": {"no-raid", "agent"}, "storage": {"noop"}, "management": {"ipmitool"},
			"network": networks, "firmware": {"no-firmware"},
		},
		Properties: []power.Property{
			{Name: "ipmi_address", Description: "IP address or hostname of the node's controller.", Required: true},
			{Name: "ipmi_username", Description: "username; default is NULL user."},
			{Name: "ipmi_password", Description: "password."},
			{Name: "ipmi_port", Description: "remote IPMI RMCP port; default is 623."},
			{Name: "ipmi_priv_level",
				Description: "privilege level; default is ADMINISTRATOR. One of ADMINISTRATOR, CALLBACK, OPERATOR, USER."},
			{Name: "ipmi_cipher_suite",
				Description: "The number of the cipher suite to insist on, 17 (AES-128 with SHA256) or 3 (AES-128 with SHA1); by default 17 is tried first, then 3."},
			{Name: "ipmi_disable_boot_timeout",
				Description: "whether to ask the controller not to forget the boot device after 60 seconds; default is true."},
			{Name: "ipmi_protocol_version",
				Description: "the version of the IPMI protocol; only \"2.0\", the default, is spoken."},
			{Name: "kernel_append_params",
				Description: "additional parameters for the kernel of the ramdisk: words of letters, digits and _.,:/=@%+- only."},
		},
	},
	{
		Name: "redfish", Description: "Servers whose controller has a Redfish service.",
		Interfaces: redfishInterfaces, Properties: redfishProperties,
	},
	{
		Name:        "idrac",
		Description: "Dell's servers with iDRAC: redfish under Ironic's names, and the steps that only Dell's controllers have.",
		Interfaces:  twinned(redfishInterfaces), Properties: redfishProperties,
	},
	{
		Name:        "openstack",
		Description: "Virtual bare metal: servers of an OpenStack cloud, turned on and off by Nova.",
		Interfaces: map[string][]string{
			"vendor": {"no-vendor"}, "power": {"openstack"}, "console": {"no-console"},
			// Rescue is not the default: with openstack_boot rebuild it would overwrite the instance.
			"deploy": deploys, "rescue": {"no-rescue", "agent"}, "bios": {"no-bios"},
			"inspect": {"openstack", "agent", "no-inspect"}, "boot": netboots, "raid": {"no-raid", "agent"},
			"storage": {"noop"}, "management": {"openstack"}, "network": networks, "firmware": {"no-firmware"},
		},
		Properties: []power.Property{
			{Name: "openstack_cloud", Required: true,
				Description: "name of the cloud in the file openstack.clouds_file, which has its address and credentials."},
			{Name: "openstack_server", Required: true,
				Description: "UUID of the server in that cloud that is the machine."},
			{Name: "openstack_boot", Required: true,
				Description: "how the server is booted from the network, by what the cloud allows: metadata (libvirt:pxe-first, where Nova is patched), rescue (boots openstack_boot_image beside the disks), or rebuild (writes openstack_boot_image over the root disk)."},
			{Name: "openstack_boot_image",
				Description: "UUID of the image with iPXE, for openstack_boot rescue and rebuild."},
			{Name: "kernel_append_params",
				Description: "additional parameters for the kernel of the ramdisk: words of letters, digits and _.,:/=@%+- only."},
		},
	},
	{
		Name: "manual-management", Description: "Machines without a controller: a person presses the buttons.",
		Interfaces: map[string][]string{
			"vendor": {"no-vendor"}, "power": {"fake", "agent"}, "console": {"no-console"},
			"deploy": deploys, "rescue": {"agent", "no-rescue"}, "bios": {"no-bios"},
			"inspect": {"agent", "no-inspect"}, "boot": netboots, "raid": {"no-raid", "agent"},
			"storage": {"noop"}, "management": {"noop"}, "network": networks, "firmware": {"no-firmware"},
		},
		Properties: []power.Property{
			{Name: "manual_id", Description: "name of the machine; default is the node's UUID."},
			{Name: "kernel_append_params",
				Description: "additional parameters for the kernel of the ramdisk: words of letters, digits and _.,:/=@%+- only."},
		},
	},
}

// Config says what of the table is enabled.
type Config struct {
	// Types are the enabled hardware types; empty: all.
	Types []string
	// Enabled has for each kind the enabled interfaces; a kind that is missing or empty has all.
	Enabled map[string][]string
	// Missing has for each kind the interfaces whose setting is missing, by name: they are not enabled.
	Missing map[string]map[string]string
	// Default has for each kind the default of all types; a kind that is missing has the first that a type supports.
	Default map[string]string
}

// Table has the enabled hardware types. It does not change and is safe for concurrent use.
type Table struct {
	types   []*Type             // by name
	enabled map[string][]string // of all types, by kind, sorted
	missing map[string]map[string]string
}

// all is the table with everything enabled.
var all = func() *Table {
	t, err := New(Config{})
	if err != nil {
		panic("driver: the table of hardware types contradicts itself: " + err.Error())
	}
	return t
}()

// All is the table with everything enabled.
func All() *Table { return all }

// Names are those of All.
func Names() []string { return all.Names() }

// ByName finds a hardware type in All.
func ByName(name string) (*Type, bool) { return all.ByName(name) }

// Interfaces are those of All.
func Interfaces(n *node.Node) map[string]string { return all.Interfaces(n) }

// New makes a table. It returns everything that is wrong with the configuration at once: names that don't exist, and
// types that are left without an interface of some kind.
func New(c Config) (*Table, error) {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	t := &Table{enabled: map[string][]string{}, missing: c.Missing}
	known := map[string][]string{}
	for _, typ := range types {
		for kind, names := range typ.Interfaces {
			known[kind] = append(known[kind], names...)
		}
	}
	for _, kind := range Kinds {
		slices.Sort(known[kind])
		known[kind] = slices.Compact(known[kind])
		t.enabled[kind] = known[kind]
		if len(c.Enabled[kind]) > 0 {
			t.enabled[kind] = slices.Sorted(slices.Values(c.Enabled[kind]))
		}
		for _, name := range slices.Sorted(maps.Keys(c.Missing[kind])) {
			if slices.Contains(c.Enabled[kind], name) {
				bad("enabled_%s_interfaces: %s needs the setting %s", kind, name, c.Missing[kind][name])
			}
			t.enabled[kind] = slices.DeleteFunc(slices.Clone(t.enabled[kind]), func(e string) bool { return e == name })
		}
		for _, name := range t.enabled[kind] {
			if !slices.Contains(known[kind], name) {
				bad("enabled_%s_interfaces: there is no %s interface %q; there are %s", kind, kind, name,
					strings.Join(known[kind], ", "))
			}
		}
		if d := c.Default[kind]; d != "" && !slices.Contains(t.enabled[kind], d) {
			bad("default_%s_interface: %q is not enabled; enabled are %s%s", kind, d, strings.Join(t.enabled[kind], ", "),
				setting(c.Missing[kind][d]))
		}
	}
	for kind := range c.Enabled {
		if !slices.Contains(Kinds, kind) {
			bad("enabled_%s_interfaces: there is no kind of interface %q", kind, kind)
		}
	}
	for kind := range c.Default {
		if !slices.Contains(Kinds, kind) {
			bad("default_%s_interface: there is no kind of interface %q", kind, kind)
		}
	}
	for _, name := range c.Types {
		if !slices.ContainsFunc(types, func(typ *Type) bool { return typ.Name == name }) {
			bad("enabled_hardware_types: there is no hardware type %q; there are %s", name,
				strings.Join(typeNames(), ", "))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	for _, typ := range types {
		if len(c.Types) > 0 && !slices.Contains(c.Types, typ.Name) {
			continue
		}
		own := &Type{Name: typ.Name, Description: typ.Description, Properties: typ.Properties,
			Interfaces: map[string][]string{}, any: typ.any, table: t}
		for _, kind := range Kinds {
			for _, name := range typ.Interfaces[kind] {
				switch {
				case !slices.Contains(t.enabled[kind], name):
				case name == c.Default[kind]:
					own.Interfaces[kind] = slices.Insert(own.Interfaces[kind], 0, name)
				default:
					own.Interfaces[kind] = append(own.Interfaces[kind], name)
				}
			}
			if d := c.Default[kind]; d != "" && !slices.Contains(typ.Interfaces[kind], d) && !typ.any {
				bad("default_%s_interface: %s is not supported by the enabled hardware type %s, which has %s", kind, d,
					typ.Name, strings.Join(typ.Interfaces[kind], ", "))
			} else if len(own.Interfaces[kind]) == 0 {
				bad("enabled_%s_interfaces: the enabled hardware type %s supports none of them; enable one of %s", kind,
					typ.Name, strings.Join(typ.Interfaces[kind], ", "))
			}
		}
		t.types = append(t.types, own)
	}
	slices.SortFunc(t.types, func(a, b *Type) int { return strings.Compare(a.Name, b.Name) })
	return t, errors.Join(faults...)
}

func typeNames() []string {
	var names []string
	for _, typ := range types {
		names = append(names, typ.Name)
	}
	slices.Sort(names)
	return names
}

// Names returns the names of all hardware types, sorted.
func (t *Table) Names() []string {
	names := make([]string, len(t.types))
	for i, typ := range t.types {
		names[i] = typ.Name
	}
	return names
}

// ByName returns a hardware type; ok is false if none of that name is enabled.
func (t *Table) ByName(name string) (typ *Type, ok bool) {
	i := slices.IndexFunc(t.types, func(t *Type) bool { return t.Name == name })
	if i < 0 {
		return nil, false
	}
	return t.types[i], true
}

// Interfaces returns the interface of each kind that a node uses: its choice, else its type's default. A node whose
// type is not known has only its choices.
func (t *Table) Interfaces(n *node.Node) map[string]string {
	used := make(map[string]string, len(Kinds))
	if typ, ok := t.ByName(n.Driver); ok {
		for _, kind := range Kinds {
			used[kind] = typ.Default(kind)
		}
	}
	maps.Copy(used, n.Interfaces)
	return used
}

// Interface returns the interface of one kind that a node uses, "" when it has none.
func (t *Table) Interface(n *node.Node, kind string) string {
	if name := n.Interfaces[kind]; name != "" {
		return name
	}
	if typ, ok := t.ByName(n.Driver); ok {
		return typ.Default(kind)
	}
	return ""
}

// InterfaceError says that no interface of a kind has this name, or none that is enabled.
type InterfaceError struct {
	Type, Kind, Name string
	Valid            []string // of all types, sorted
	Needs            string   // the setting of the conductor without which it is not enabled; empty: there is none
}

func (e *InterfaceError) Error() string {
	return fmt.Sprintf("no %s interface %s is enabled; enabled are %s%s", e.Kind, e.Name, strings.Join(e.Valid, ", "),
		e.Hint())
}

// Hint says how the interface is enabled, after the end of an error; it can be empty.
func (e *InterfaceError) Hint() string { return setting(e.Needs) }

func setting(key string) string {
	if key == "" {
		return ""
	}
	return "; set " + key + " of the conductor to have it"
}

// IncompatibleError says that an interface exists, but not for this hardware type.
type IncompatibleError struct {
	Type, Kind, Name string
	Valid            []string // of this type, the default first
}

func (e *IncompatibleError) Error() string {
	return fmt.Sprintf("%s interface implementation '%s' is not supported by hardware type %s.", e.Kind, e.Name, e.Type)
}

// Check returns an *InterfaceError or *IncompatibleError for the first chosen interface that the type can't have, in
// the order of Kinds. chosen is a node's Interfaces.
func (t *Type) Check(chosen map[string]string) error {
	for _, kind := range Kinds {
		name, set := chosen[kind]
		switch {
		case !set || slices.Contains(t.Interfaces[kind], name):
		case !slices.Contains(t.table.enabled[kind], name):
			return &InterfaceError{Type: t.Name, Kind: kind, Name: name, Valid: slices.Clone(t.table.enabled[kind]),
				Needs: t.table.missing[kind][name]}
		case !t.any:
			return &IncompatibleError{Type: t.Name, Kind: kind, Name: name, Valid: t.Enabled(kind)}
		}
	}
	return nil
}
