package config

import "time"

// Inspection configures hooks and rules for the results of an inspection. Names and meaning are those of Ironic's
// section inspector; docs/howto/inspection.md describes each hook.
type Inspection struct {
	DefaultHooks            []string      `yaml:"default_hooks"`
	Hooks                   []string      `yaml:"hooks"`
	AddPorts                string        `yaml:"add_ports"`
	KeepPorts               string        `yaml:"keep_ports"`
	UpdatePXEEnabled        bool          `yaml:"update_pxe_enabled"`
	OverwriteExisting       bool          `yaml:"overwrite_existing"`
	CPUCapabilities         []string      `yaml:"cpu_capabilities"`
	PCIDeviceAlias          []string      `yaml:"pci_device_alias"`
	KnownAccelerators       string        `yaml:"known_accelerators"`
	PhysicalNetworkCIDRMap  []string      `yaml:"physical_network_cidr_map"`
	DiskPartitioningSpacing bool          `yaml:"disk_partitioning_spacing"`
	ExtraHardwareStrict     bool          `yaml:"extra_hardware_strict"`
	LLDPTimeout             time.Duration `yaml:"lldp_timeout"`
	RulesFile               string        `yaml:"rules_file"`
	MaskSecrets             string        `yaml:"mask_secrets"`
}

// Discovery configures how unknown machines become nodes.
type Discovery struct {
	Enabled      bool     `yaml:"enabled"`
	Driver       string   `yaml:"driver"`
	Interfaces   []string `yaml:"interfaces"`
	LimitPerHour int      `yaml:"limit_per_hour"`
}
