package hook

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Options is the configuration of hooks, with Ironic's names and meaning.
type Options struct {
	DefaultHooks []string // stands for $default_hooks in Hooks
	Hooks        []string

	AddPorts         string // all, active, pxe, disabled
	KeepPorts        string // all, present, added
	UpdatePXEEnabled bool   // of ports that were there
	Overwrite        bool   // what operators set

	CPUCapabilities     []string // FLAG:NAME
	PCIDeviceAliases    []string // VENDOR:PRODUCT:NAME
	KnownAccelerators   string   // file; "": those that are built in
	PhysicalNetworks    []string // CIDR:NAME
	DiskSpacing         bool     // a gigabyte of local_gb is left for partitioning
	ExtraHardwareStrict bool
}

// Settings is Options, checked and ready for use. Make it with Prepare.
type Settings struct {
	hooks            []*Hook
	AddPorts         string
	KeepPorts        string
	UpdatePXEEnabled bool
	Overwrite        bool
	CPUCapabilities  [][2]string
	Aliases          map[[2]string]string // by vendor and product
	Accelerators     []map[string]any
	Networks         []Network
	DiskSpacing      bool
	StrictExtra      bool
}

// DefaultOptions returns the options of a configuration that sets none. The first hooks, up to $default_hooks, are
// Ironic's; the others are on because they do no harm: they fill in empty values. Ports are made of all interfaces, so
// that a machine can be deployed to networks other than the one that it boots from.
func DefaultOptions() Options {
	return Options{
		DefaultHooks: []string{"ramdisk-error", "validate-interfaces", "ports", "architecture"},
		Hooks:        []string{defaultHooks, "memory", "cpus", "root-device", "parse-lldp", "local-link-connection"},
		AddPorts:     "all", KeepPorts: "all", DiskSpacing: true,
		CPUCapabilities: []string{"vmx:cpu_vt", "svm:cpu_vt", "aes:cpu_aes", "pse:cpu_hugepages",
			"pdpe1gb:cpu_hugepages_1g", "smx:cpu_txt"},
	}
}

// Default prepares the default options.
func Default() *Settings {
	s, err := Prepare(DefaultOptions())
	if err != nil {
		panic(err) // a test holds that it is not so
	}
	return s
}

// Network is a subnet and the physical network that it means.
type Network struct {
	Prefix netip.Prefix
	Name   string
}

// defaultHooks stands for Options.DefaultHooks in a list of hooks.
const defaultHooks = "$default_hooks"

var pciID = regexp.MustCompile(`^[0-9a-f]{4}$`)

// Prepare checks options and reads the file that they name. All faults come at once.
func Prepare(o Options) (*Settings, error) {
	var faults []error
	bad := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("inspection.%s: %s", key, fmt.Sprintf(format, args...)))
	}
	s := &Settings{AddPorts: o.AddPorts, KeepPorts: o.KeepPorts, UpdatePXEEnabled: o.UpdatePXEEnabled,
		Overwrite: o.Overwrite, Aliases: map[[2]string]string{}, DiskSpacing: o.DiskSpacing,
		StrictExtra: o.ExtraHardwareStrict}

	var names []string
	for _, name := range o.Hooks {
		if name == defaultHooks {
			names = append(names, o.DefaultHooks...)
			continue
		}
		names = append(names, name)
	}
	for i, name := range names {
		h := Find(name)
		if h == nil {
			bad("hooks", "there is no hook %q; there are %s", name, strings.Join(Names(), ", "))
			continue
		}
		if slices.Contains(names[:i], name) {
			bad("hooks", "%s is there twice", name)
			continue
		}
		for _, need := range h.Needs {
			if !slices.Contains(names[:i], need) {
				bad("hooks", "%s needs %s before it", name, need)
			}
		}
		s.hooks = append(s.hooks, h)
	}
	oneOf := func(key, v string, allowed ...string) {
		if !slices.Contains(allowed, v) {
			bad(key, "%q is none of %s", v, strings.Join(allowed, ", "))
		}
	}
	oneOf("add_ports", o.AddPorts, "all", "active", "pxe", "disabled")
	oneOf("keep_ports", o.KeepPorts, "all", "present", "added")
	for _, c := range o.CPUCapabilities {
		flag, name, ok := strings.Cut(c, ":")
		if !ok || flag == "" || name == "" || strings.ContainsAny(name, ":,") {
			bad("cpu_capabilities", "%q is not FLAG:CAPABILITY, such as vmx:cpu_vt", c)
			continue
		}
		s.CPUCapabilities = append(s.CPUCapabilities, [2]string{flag, name})
	}
	for _, a := range o.PCIDeviceAliases {
		p := strings.SplitN(a, ":", 3)
		if len(p) != 3 || !pciID.MatchString(strings.ToLower(p[0])) || !pciID.MatchString(strings.ToLower(p[1])) ||
			p[2] == "" || strings.ContainsAny(p[2], ":,") {
			bad("pci_device_alias", "%q is not VENDOR:PRODUCT:NAME, such as 10de:1eb8:gpu_t4", a)
			continue
		}
		s.Aliases[[2]string{strings.ToLower(p[0]), strings.ToLower(p[1])}] = p[2]
	}
	for _, m := range o.PhysicalNetworks {
		i := strings.LastIndexByte(m, ':')
		if i < 0 || i == len(m)-1 {
			bad("physical_network_cidr_map", "%q is not CIDR:NAME, such as 192.0.2.0/24:physnet1", m)
			continue
		}
		p, err := netip.ParsePrefix(m[:i])
		if err != nil {
			bad("physical_network_cidr_map", "%q: %v", m, err)
			continue
		}
		s.Networks = append(s.Networks, Network{p.Masked(), m[i+1:]})
	}
	var err error
	if s.Accelerators, err = accelerators(o.KnownAccelerators); err != nil {
		bad("known_accelerators", "%v", err)
	}
	return s, errors.Join(faults...)
}

// knownAccelerators are the devices known without a file: NVIDIA's, by the ids of the PCI ID repository.
var knownAccelerators = func() []map[string]any {
	var out []map[string]any
	for _, d := range [][2]string{{"1eb8", "Tesla T4"}, {"1df6", "GV100GL"}, {"2236", "A10"}, {"2235", "A40"},
		{"26b9", "L40S"}, {"26ba", "L20"}} {
		out = append(out,
			map[string]any{"vendor_id": "10de", "device_id": d[0], "type": "GPU", "device_info": "NVIDIA Corporation " +
				d[1]})
	}
	return out
}()

// accelerators reads a file of accelerators in Ironic's form: pci_devices, a list of objects with vendor_id, device_id
// and anything else.
func accelerators(file string) ([]map[string]any, error) {
	if file == "" {
		return knownAccelerators, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Devices []map[string]any `yaml:"pci_devices"`
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if doc.Devices == nil {
		return nil, fmt.Errorf("%s has no list pci_devices", file)
	}
	for i, d := range doc.Devices {
		for _, key := range []string{"vendor_id", "device_id"} {
			// YAML takes ids of digits alone for numbers.
			id := strings.ToLower(fmt.Sprint(d[key]))
			if d[key] == nil || !pciID.MatchString(id) {
				return nil, fmt.Errorf("%s: device %d of pci_devices has no %s of four hexadecimal digits, in quotes",
					file, i+1, key)
			}
			d[key] = id
		}
	}
	return doc.Devices, nil
}
