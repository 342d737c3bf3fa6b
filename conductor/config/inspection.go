package config

import "time"

// Inspection says what is made of what an inspection finds. Names and meaning are those of Ironic's section inspector;
// docs/howto/inspection.md tells of each hook.
type Inspection struct {
	// DefaultHooks stands for $default_hooks in Hooks.
	DefaultHooks []string `yaml:"default_hooks"`
	// Hooks are the hooks that are run, in this order.
	Hooks []string `yaml:"hooks"`
	// AddPorts says of which interfaces ports are made: all, active (with an address), pxe (the one booted from) or
	// disabled.
	AddPorts string `yaml:"add_ports"`
	// KeepPorts says which ports a node keeps: all, present (those that the machine has) or added (those that AddPorts
	// makes).
	KeepPorts string `yaml:"keep_ports"`
	// UpdatePXEEnabled sets pxe_enabled of ports that were there to whether the machine was booted from them.
	UpdatePXEEnabled bool `yaml:"update_pxe_enabled"`
	// OverwriteExisting lets inspections overwrite what operators set; else they follow the hardware only in what
	// inspections set.
	OverwriteExisting bool `yaml:"overwrite_existing"`
	// CPUCapabilities are capabilities that flags of the processors stand for, as FLAG:CAPABILITY.
	CPUCapabilities []string `yaml:"cpu_capabilities"`
	// PCIDeviceAlias are names under which PCI devices are counted, as VENDOR:PRODUCT:NAME with four hexadecimal digits
	// each.
	PCIDeviceAlias []string `yaml:"pci_device_alias"`
	// KnownAccelerators is a YAML file with a list pci_devices; empty means those that are built in.
	KnownAccelerators string `yaml:"known_accelerators"`
	// PhysicalNetworkCIDRMap are physical networks by the addresses of their machines, as CIDR:NAME.
	PhysicalNetworkCIDRMap []string `yaml:"physical_network_cidr_map"`
	// DiskPartitioningSpacing leaves a gigabyte out of local_gb.
	DiskPartitioningSpacing bool `yaml:"disk_partitioning_spacing"`
	// ExtraHardwareStrict drops extra hardware data that is not wholly understood.
	ExtraHardwareStrict bool `yaml:"extra_hardware_strict"`
	// LLDPTimeout is how long an inspection waits until a switch was heard on every link that has a carrier, whole
	// seconds up to 90; zero takes what was heard since the agent started.
	LLDPTimeout time.Duration `yaml:"lldp_timeout"`
	// RulesFile has inspection rules of this site, as a YAML list; they are read at the start and can't be changed by
	// the API.
	RulesFile string `yaml:"rules_file"`
	// MaskSecrets says from which rules passwords in the inventory are kept: always (from all), never, or sensitive
	// (from those that are not).
	MaskSecrets string `yaml:"mask_secrets"`
}

// Discovery is what becomes of machines that nobody told of.
type Discovery struct {
	// Enabled boots the agent on any machine that asks, and has it enrolled: whoever is on the provisioning network can
	// then make nodes.
	Enabled bool `yaml:"enabled"`
	// Driver is the hardware type of such nodes.
	Driver string `yaml:"driver"`
	// Interfaces are interfaces of such nodes that are not the type's defaults, as KIND=NAME.
	Interfaces []string `yaml:"interfaces"`
	// LimitPerHour is how many unknown machines are booted in an hour, and how many nodes made, at most.
	LimitPerHour int `yaml:"limit_per_hour"`
}
