package config

// Hardware says which hardware types and interfaces nodes may have; what is empty has all that there are. The names are
// those of Ironic's options. Whether the names exist and go together is checked at the start, by conductor/hardware/driver.
type Hardware struct {
	// EnabledTypes are the hardware types; empty: all.
	EnabledTypes []string `yaml:"enabled_types"`
	// EnabledBIOSInterfaces are the bios interfaces that nodes may have; empty: all.
	EnabledBIOSInterfaces []string `yaml:"enabled_bios_interfaces"`
	// DefaultBIOSInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultBIOSInterface string `yaml:"default_bios_interface"`
	// EnabledBootInterfaces are the boot interfaces that nodes may have; empty: all.
	EnabledBootInterfaces []string `yaml:"enabled_boot_interfaces"`
	// DefaultBootInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultBootInterface string `yaml:"default_boot_interface"`
	// EnabledConsoleInterfaces are the console interfaces that nodes may have; empty: all.
	EnabledConsoleInterfaces []string `yaml:"enabled_console_interfaces"`
	// DefaultConsoleInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultConsoleInterface string `yaml:"default_console_interface"`
	// EnabledDeployInterfaces are the deploy interfaces that nodes may have; empty: all.
	EnabledDeployInterfaces []string `yaml:"enabled_deploy_interfaces"`
	// DefaultDeployInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultDeployInterface string `yaml:"default_deploy_interface"`
	// EnabledFirmwareInterfaces are the firmware interfaces that nodes may have; empty: all.
	EnabledFirmwareInterfaces []string `yaml:"enabled_firmware_interfaces"`
	// DefaultFirmwareInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultFirmwareInterface string `yaml:"default_firmware_interface"`
	// EnabledInspectInterfaces are the inspect interfaces that nodes may have; empty: all.
	EnabledInspectInterfaces []string `yaml:"enabled_inspect_interfaces"`
	// DefaultInspectInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultInspectInterface string `yaml:"default_inspect_interface"`
	// EnabledManagementInterfaces are the management interfaces that nodes may have; empty: all.
	EnabledManagementInterfaces []string `yaml:"enabled_management_interfaces"`
	// DefaultManagementInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultManagementInterface string `yaml:"default_management_interface"`
	// EnabledNetworkInterfaces are the network interfaces that nodes may have; empty: all.
	EnabledNetworkInterfaces []string `yaml:"enabled_network_interfaces"`
	// DefaultNetworkInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultNetworkInterface string `yaml:"default_network_interface"`
	// EnabledPowerInterfaces are the power interfaces that nodes may have; empty: all.
	EnabledPowerInterfaces []string `yaml:"enabled_power_interfaces"`
	// DefaultPowerInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultPowerInterface string `yaml:"default_power_interface"`
	// EnabledRAIDInterfaces are the raid interfaces that nodes may have; empty: all.
	EnabledRAIDInterfaces []string `yaml:"enabled_raid_interfaces"`
	// DefaultRAIDInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultRAIDInterface string `yaml:"default_raid_interface"`
	// EnabledRescueInterfaces are the rescue interfaces that nodes may have; empty: all.
	EnabledRescueInterfaces []string `yaml:"enabled_rescue_interfaces"`
	// DefaultRescueInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultRescueInterface string `yaml:"default_rescue_interface"`
	// EnabledStorageInterfaces are the storage interfaces that nodes may have; empty: all.
	EnabledStorageInterfaces []string `yaml:"enabled_storage_interfaces"`
	// DefaultStorageInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultStorageInterface string `yaml:"default_storage_interface"`
	// EnabledVendorInterfaces are the vendor interfaces that nodes may have; empty: all.
	EnabledVendorInterfaces []string `yaml:"enabled_vendor_interfaces"`
	// DefaultVendorInterface is that of nodes that don't choose one; empty: the first that a node's hardware type
	// supports.
	DefaultVendorInterface string `yaml:"default_vendor_interface"`
}

// Enabled gives the enabled interfaces by kind.
func (h Hardware) Enabled() map[string][]string {
	return map[string][]string{
		"bios":       h.EnabledBIOSInterfaces,
		"boot":       h.EnabledBootInterfaces,
		"console":    h.EnabledConsoleInterfaces,
		"deploy":     h.EnabledDeployInterfaces,
		"firmware":   h.EnabledFirmwareInterfaces,
		"inspect":    h.EnabledInspectInterfaces,
		"management": h.EnabledManagementInterfaces,
		"network":    h.EnabledNetworkInterfaces,
		"power":      h.EnabledPowerInterfaces,
		"raid":       h.EnabledRAIDInterfaces,
		"rescue":     h.EnabledRescueInterfaces,
		"storage":    h.EnabledStorageInterfaces,
		"vendor":     h.EnabledVendorInterfaces,
	}
}

// Default gives the default interfaces by kind.
func (h Hardware) Default() map[string]string {
	return map[string]string{
		"bios":       h.DefaultBIOSInterface,
		"boot":       h.DefaultBootInterface,
		"console":    h.DefaultConsoleInterface,
		"deploy":     h.DefaultDeployInterface,
		"firmware":   h.DefaultFirmwareInterface,
		"inspect":    h.DefaultInspectInterface,
		"management": h.DefaultManagementInterface,
		"network":    h.DefaultNetworkInterface,
		"power":      h.DefaultPowerInterface,
		"raid":       h.DefaultRAIDInterface,
		"rescue":     h.DefaultRescueInterface,
		"storage":    h.DefaultStorageInterface,
		"vendor":     h.DefaultVendorInterface,
	}
}
