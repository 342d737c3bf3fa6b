package config

// Hardware says which hardware types and interfaces nodes may have; an empty list allows all. The names are those of
// Ironic's options. Package conductor/hardware/driver checks at the start whether the names exist and go together.
type Hardware struct {
	EnabledTypes                []string `yaml:"enabled_types"`
	EnabledBIOSInterfaces       []string `yaml:"enabled_bios_interfaces"`
	DefaultBIOSInterface        string   `yaml:"default_bios_interface"`
	EnabledBootInterfaces       []string `yaml:"enabled_boot_interfaces"`
	DefaultBootInterface        string   `yaml:"default_boot_interface"`
	EnabledConsoleInterfaces    []string `yaml:"enabled_console_interfaces"`
	DefaultConsoleInterface     string   `yaml:"default_console_interface"`
	EnabledDeployInterfaces     []string `yaml:"enabled_deploy_interfaces"`
	DefaultDeployInterface      string   `yaml:"default_deploy_interface"`
	EnabledFirmwareInterfaces   []string `yaml:"enabled_firmware_interfaces"`
	DefaultFirmwareInterface    string   `yaml:"default_firmware_interface"`
	EnabledInspectInterfaces    []string `yaml:"enabled_inspect_interfaces"`
	DefaultInspectInterface     string   `yaml:"default_inspect_interface"`
	EnabledManagementInterfaces []string `yaml:"enabled_management_interfaces"`
	DefaultManagementInterface  string   `yaml:"default_management_interface"`
	EnabledNetworkInterfaces    []string `yaml:"enabled_network_interfaces"`
	DefaultNetworkInterface     string   `yaml:"default_network_interface"`
	EnabledPowerInterfaces      []string `yaml:"enabled_power_interfaces"`
	DefaultPowerInterface       string   `yaml:"default_power_interface"`
	EnabledRAIDInterfaces       []string `yaml:"enabled_raid_interfaces"`
	DefaultRAIDInterface        string   `yaml:"default_raid_interface"`
	EnabledRescueInterfaces     []string `yaml:"enabled_rescue_interfaces"`
	DefaultRescueInterface      string   `yaml:"default_rescue_interface"`
	EnabledStorageInterfaces    []string `yaml:"enabled_storage_interfaces"`
	DefaultStorageInterface     string   `yaml:"default_storage_interface"`
	EnabledVendorInterfaces     []string `yaml:"enabled_vendor_interfaces"`
	DefaultVendorInterface      string   `yaml:"default_vendor_interface"`
}

// kind is one of the kinds of interfaces that a node has, with its settings.
type kind struct {
	name     string
	enabled  *[]string
	standard *string // of nodes that choose none
}

func (h *Hardware) kinds() []kind {
	return []kind{
		{"bios", &h.EnabledBIOSInterfaces, &h.DefaultBIOSInterface},
		{"boot", &h.EnabledBootInterfaces, &h.DefaultBootInterface},
		{"console", &h.EnabledConsoleInterfaces, &h.DefaultConsoleInterface},
		{"deploy", &h.EnabledDeployInterfaces, &h.DefaultDeployInterface},
		{"firmware", &h.EnabledFirmwareInterfaces, &h.DefaultFirmwareInterface},
		{"inspect", &h.EnabledInspectInterfaces, &h.DefaultInspectInterface},
		{"management", &h.EnabledManagementInterfaces, &h.DefaultManagementInterface},
		{"network", &h.EnabledNetworkInterfaces, &h.DefaultNetworkInterface},
		{"power", &h.EnabledPowerInterfaces, &h.DefaultPowerInterface},
		{"raid", &h.EnabledRAIDInterfaces, &h.DefaultRAIDInterface},
		{"rescue", &h.EnabledRescueInterfaces, &h.DefaultRescueInterface},
		{"storage", &h.EnabledStorageInterfaces, &h.DefaultStorageInterface},
		{"vendor", &h.EnabledVendorInterfaces, &h.DefaultVendorInterface},
	}
}

// Enabled returns the enabled interfaces by kind.
func (h Hardware) Enabled() map[string][]string {
	out := map[string][]string{}
	for _, k := range h.kinds() {
		out[k.name] = *k.enabled
	}
	return out
}

// Default returns the default interfaces by kind.
func (h Hardware) Default() map[string]string {
	out := map[string]string{}
	for _, k := range h.kinds() {
		out[k.name] = *k.standard
	}
	return out
}
