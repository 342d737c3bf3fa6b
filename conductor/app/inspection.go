package app

import (
	"fmt"
	"os"
	"strings"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// inspection returns the options of inspections.
func inspection(cfg config.Config) (inspect.Options, error) {
	c := cfg.Inspection
	hooks, err := hook.Prepare(hook.Options{
		DefaultHooks: c.DefaultHooks, Hooks: c.Hooks, AddPorts: c.AddPorts, KeepPorts: c.KeepPorts,
		UpdatePXEEnabled: c.UpdatePXEEnabled, Overwrite: c.OverwriteExisting, CPUCapabilities: c.CPUCapabilities,
		PCIDeviceAliases: c.PCIDeviceAlias, KnownAccelerators: c.KnownAccelerators,
		PhysicalNetworks: c.PhysicalNetworkCIDRMap, DiskSpacing: c.DiskPartitioningSpacing,
		ExtraHardwareStrict: c.ExtraHardwareStrict,
	})
	if err != nil {
		return inspect.Options{}, err
	}
	o := inspect.Options{Hooks: hooks, Mask: inspect.Masking(c.MaskSecrets), LLDPTimeout: c.LLDPTimeout}
	if c.RulesFile != "" {
		b, err := os.ReadFile(c.RulesFile)
		if err != nil {
			return o, fmt.Errorf("inspection.rules_file: %w", err)
		}
		if o.BuiltIn, err = inspect.ParseRules(b); err != nil {
			return o, fmt.Errorf("inspection.rules_file %s: %w", c.RulesFile, err)
		}
	}
	return o, nil
}

// discovery returns how unknown machines become nodes; nil: they don't.
func discovery(cfg config.Config, types *driver.Table) (*agents.Discovery, error) {
	d := cfg.Discovery
	if !d.Enabled {
		return nil, nil
	}
	out := &agents.Discovery{Driver: d.Driver, LimitPerHour: d.LimitPerHour, TokenLife: cfg.Netboot.TokenLife}
	for _, i := range d.Interfaces {
		kind, name, _ := strings.Cut(i, "=")
		out.Interfaces = node.With(out.Interfaces, kind, name)
	}
	hw, ok := types.ByName(d.Driver)
	if !ok {
		return nil, fmt.Errorf("discovery.driver: %q is no hardware type that is enabled", d.Driver)
	}
	if err := hw.Check(out.Interfaces); err != nil {
		return nil, fmt.Errorf("discovery.interfaces: %w", err)
	}
	return out, nil
}
