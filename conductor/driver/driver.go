// Package driver is the one table of hardware types: which power, management, boot, deploy, ... interfaces go together, by the
// names and with the defaults that clients of the API know.
//
// A hardware type is what a node's "driver" field says. For each kind of interface it lists what is enabled, the first being the
// default; a node may choose another one by "<kind>_interface". Only what Ingot really does is listed, so the table is also the
// capability matrix that the API shows (GET /v1/drivers). How a power driver talks to a controller is the business of
// conductor/power; this package only names it.
package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
)

// Kinds of interface, in the order in which they are shown.
var Kinds = []string{"vendor", "power", "console", "deploy", "rescue", "bios", "inspect", "boot", "raid", "storage", "management", "network"}

// Type is a hardware type.
type Type struct {
	Name string
	// Interfaces lists for each kind what is enabled; the first is the default.
	Interfaces map[string][]string
	// Properties describes what driver_info may hold.
	Properties []power.Property
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

// network plugs are the same for all types: noop leaves switches alone and gives the instance no address, flat keeps serving
// the instance on the provisioning network.
var networks = []string{"noop", "flat"}

// types is the table. "pxe" is there for clients that ask for it: with both names a machine's PXE gets iPXE over TFTP, and iPXE the
// rest over HTTP.
var types = []*Type{
	{
		Name: "fake-hardware",
		Interfaces: map[string][]string{
			"vendor": {"no-vendor"}, "power": {"fake"}, "console": {"no-console"}, "deploy": {"fake", "direct"},
			"rescue": {"no-rescue"}, "bios": {"no-bios"}, "inspect": {"fake", "agent", "no-inspect"}, "boot": {"fake", "ipxe", "pxe"},
			"raid": {"no-raid"}, "storage": {"noop"}, "management": {"fake"}, "network": networks,
		},
		Properties: []power.Property{
			{Name: "fake_id", Description: "name of the machine in memory; default is the node's UUID."},
			{Name: "fake_delay", Description: "how long a power action takes, such as 2s; default is no time."},
		},
	},
	{
		Name: "ipmi",
		Interfaces: map[string][]string{
			"vendor": {"no-vendor"}, "power": {"ipmitool"}, "console": {"no-console"}, "deploy": {"direct"},
			"rescue": {"no-rescue"}, "bios": {"no-bios"}, "inspect": {"agent", "no-inspect"}, "boot": {"ipxe", "pxe"},
			"raid": {"no-raid"}, "storage": {"noop"}, "management": {"ipmitool"}, "network": networks,
		},
		Properties: []power.Property{
			{Name: "ipmi_address", Description: "IP address or hostname of the node's controller.", Required: true},
			{Name: "ipmi_username", Description: "username; default is NULL user."},
			{Name: "ipmi_password", Description: "password."},
			{Name: "ipmi_port", Description: "remote IPMI RMCP port; default is 623."},
			{Name: "ipmi_priv_level", Description: "privilege level; default is ADMINISTRATOR. One of ADMINISTRATOR, CALLBACK, OPERATOR, USER."},
			{Name: "ipmi_cipher_suite", Description: "The number of the cipher suite to insist on, 17 (AES-128 with SHA256) or 3 (AES-128 with SHA1); by default 17 is tried first, then 3."},
			{Name: "ipmi_disable_boot_timeout", Description: "whether to ask the controller not to forget the boot device after 60 seconds; default is true."},
			{Name: "ipmi_protocol_version", Description: "the version of the IPMI protocol; only \"2.0\", the default, is spoken."},
			{Name: "kernel_append_params", Description: "additional parameters for the kernel of the ramdisk: words of letters, digits and _.,:/=@%+- only."},
		},
	},
	{
		Name: "manual-management",
		Interfaces: map[string][]string{
			"vendor": {"no-vendor"}, "power": {"fake"}, "console": {"no-console"}, "deploy": {"direct"},
			"rescue": {"no-rescue"}, "bios": {"no-bios"}, "inspect": {"agent", "no-inspect"}, "boot": {"ipxe", "pxe"},
			"raid": {"no-raid"}, "storage": {"noop"}, "management": {"noop"}, "network": networks,
		},
		Properties: []power.Property{
			{Name: "manual_id", Description: "name of the machine; default is the node's UUID."},
			{Name: "kernel_append_params", Description: "additional parameters for the kernel of the ramdisk: words of letters, digits and _.,:/=@%+- only."},
		},
	},
}

// Names returns the names of all hardware types, sorted.
func Names() []string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.Name
	}
	slices.Sort(names)
	return names
}

// ByName returns a hardware type; ok is false if there is none of that name.
func ByName(name string) (t *Type, ok bool) {
	i := slices.IndexFunc(types, func(t *Type) bool { return t.Name == name })
	if i < 0 {
		return nil, false
	}
	return types[i], true
}

// InterfaceError says that a hardware type has no such interface.
type InterfaceError struct {
	Type, Kind, Name string
	Valid            []string
}

func (e *InterfaceError) Error() string {
	return fmt.Sprintf("hardware type %s has no %s interface %s; it has %s", e.Type, e.Kind, e.Name, strings.Join(e.Valid, ", "))
}

// Check returns an *InterfaceError for the first chosen interface that the type does not have, in the order of Kinds.
// chosen is a node's Interfaces.
func (t *Type) Check(chosen map[string]string) error {
	for _, kind := range Kinds {
		name := chosen[kind]
		if name != "" && !slices.Contains(t.Interfaces[kind], name) {
			return &InterfaceError{Type: t.Name, Kind: kind, Name: name, Valid: slices.Sorted(slices.Values(t.Interfaces[kind]))}
		}
	}
	return nil
}

// Interfaces returns the interface of each kind that a node uses: its choice, else its type's default. A node whose type is not
// known has only its choices.
func Interfaces(n *node.Node) map[string]string {
	used := map[string]string{}
	if t, ok := ByName(n.Driver); ok {
		for _, kind := range Kinds {
			used[kind] = t.Default(kind)
		}
	}
	maps.Copy(used, n.Interfaces)
	return used
}
