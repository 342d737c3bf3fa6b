package hook

import (
	"fmt"
	"maps"
	"slices"
)

// Hook is one line of the table.
type Hook struct {
	Name  string
	Needs []string // hooks that must be before it
	About string   // description, for the docs
	// Before runs ahead of all hooks' Run; nil does nothing. An error fails the inspection, with nothing of it done.
	Before, Run func(*Found, *Settings) error
}

// table is the only list of hooks.
var table = []Hook{
	{Name: "ramdisk-error", Before: ramdiskError, About: "fails the inspection if the ramdisk says that it failed"},
	{Name: "validate-interfaces", Before: validateInterfaces,
		About: "keeps the machine's interfaces that can be used (`all_interfaces`), and of those the ones that `add_ports` asks for (`valid_interfaces`); fails if none is left"},
	{Name: "ports", Needs: []string{"validate-interfaces"}, Run: ports,
		About: "makes ports of the valid interfaces, and removes those that `keep_ports` does not keep"},
	{Name: "architecture", Run: architecture, About: "property `cpu_arch`"},
	{Name: "accelerators", Run: acceleratorsFound,
		About: "property `accelerators`: the known ones among the PCI devices"},
	{Name: "boot-mode", Run: bootMode, About: "capability `boot_mode`: the mode the machine was booted in"},
	{Name: "cpu-capabilities", Run: cpuCapabilities,
		About: "a capability `true` for each of the processors' flags that `cpu_capabilities` names"},
	{Name: "cpus", Run: cpus, About: "property `cpus`: the number of threads"},
	{Name: "extra-hardware", Run: extraHardware,
		About: "turns the list `data` of the tool hardware-detect into an object `extra`"},
	{Name: "local-link-connection", Needs: []string{"validate-interfaces"}, Run: localLink,
		About: "`local_link_connection` of ports, by what the switches say (LLDP)"},
	{Name: "memory", Run: memory, About: "property `memory_mb`: the installed memory"},
	{Name: "parse-lldp", Run: parseLLDP, About: "reads what the switches say (LLDP) into `parsed_lldp`"},
	{Name: "pci-devices", Run: pciDevices,
		About: "capabilities that count the PCI devices that `pci_device_alias` names"},
	{Name: "physical-network", Needs: []string{"validate-interfaces"}, Run: physicalNetwork,
		About: "`physical_network` of ports, by the interfaces' addresses and `physical_network_cidr_map`"},
	{Name: "raid-device", Run: raidDevice,
		About: "property `root_device`: the one disk that was not there at the inspection before"},
	{Name: "root-device", Run: rootDevice,
		About: "property `local_gb`: the size of the disk that `root_device` in the properties chooses, less a gigabyte"},
	{Name: "secure-boot", Run: secureBoot,
		About: "capability `secure_boot`: whether the firmware checks signatures, where a controller says so"},
}

// Find returns a hook by name, or nil.
func Find(name string) *Hook {
	if i := slices.IndexFunc(table, func(h Hook) bool { return h.Name == name }); i >= 0 {
		return &table[i]
	}
	return nil
}

// Names lists all hooks as the table has them.
func Names() []string {
	var out []string
	for _, h := range table {
		out = append(out, h.Name)
	}
	return out
}

// Run runs the hooks that are configured. After an error f is half done and to be thrown away, but for its plugin data.
func Run(f *Found, s *Settings) error {
	f.Wrote = maps.Clone(f.Wrote)
	hooks := slices.Clone(s.hooks)
	for _, name := range outOfBand {
		if h := Find(name); f.OutOfBand && !slices.Contains(hooks, h) {
			hooks = append(hooks, h)
		}
	}
	for _, step := range []func(*Hook) func(*Found, *Settings) error{
		func(h *Hook) func(*Found, *Settings) error { return h.Before },
		func(h *Hook) func(*Found, *Settings) error { return h.Run },
	} {
		for _, h := range hooks {
			if run := step(h); run != nil {
				if err := run(f, s); err != nil {
					return fmt.Errorf("inspection hook %s: %w", h.Name, err)
				}
			}
		}
	}
	return nil
}
