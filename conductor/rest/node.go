package rest

// Node is a machine as the API shows it.
type Node struct {
	UUID                 string         `json:"uuid"`
	CreatedAt            NullTime       `json:"created_at"`
	UpdatedAt            NullTime       `json:"updated_at"`
	AutomatedClean       *bool          `json:"automated_clean"`
	BIOSInterface        Null           `json:"bios_interface"`
	BootInterface        Null           `json:"boot_interface"`
	BootMode             Null           `json:"boot_mode"`
	CleanStep            map[string]any `json:"clean_step"`
	ConductorGroup       string         `json:"conductor_group"`
	ConsoleEnabled       bool           `json:"console_enabled"`
	ConsoleInterface     Null           `json:"console_interface"`
	DeployInterface      Null           `json:"deploy_interface"`
	DeployStep           map[string]any `json:"deploy_step"`
	Description          Null           `json:"description"`
	DisablePowerOff      bool           `json:"disable_power_off"`
	Driver               string         `json:"driver"`
	DriverInfo           map[string]any `json:"driver_info"`
	DriverInternalInfo   map[string]any `json:"driver_internal_info"`
	Extra                map[string]any `json:"extra"`
	Fault                Null           `json:"fault"`
	FirmwareInterface    Null           `json:"firmware_interface"`
	Health               Null           `json:"health"`
	InspectionFinishedAt NullTime       `json:"inspection_finished_at"`
	InspectionStartedAt  NullTime       `json:"inspection_started_at"`
	InspectInterface     Null           `json:"inspect_interface"`
	InstanceInfo         map[string]any `json:"instance_info"`
	InstanceName         Null           `json:"instance_name"`
	InstanceUUID         Null           `json:"instance_uuid"`
	LastError            Null           `json:"last_error"`
	Lessee               Null           `json:"lessee"`
	Maintenance          bool           `json:"maintenance"`
	MaintenanceReason    Null           `json:"maintenance_reason"`
	ManagementInterface  Null           `json:"management_interface"`
	Name                 Null           `json:"name"`
	NetworkData          map[string]any `json:"network_data"`
	NetworkInterface     Null           `json:"network_interface"`
	Owner                Null           `json:"owner"`
	ParentNode           Null           `json:"parent_node"`
	PowerInterface       Null           `json:"power_interface"`
	PowerState           Null           `json:"power_state"`
	Properties           map[string]any `json:"properties"`
	Protected            bool           `json:"protected"`
	ProtectedReason      Null           `json:"protected_reason"`
	ProvisionState       Null           `json:"provision_state"`
	ProvisionUpdatedAt   NullTime       `json:"provision_updated_at"`
	RAIDConfig           map[string]any `json:"raid_config"`
	RAIDInterface        Null           `json:"raid_interface"`
	RescueInterface      Null           `json:"rescue_interface"`
	Reservation          Null           `json:"reservation"`
	ResourceClass        Null           `json:"resource_class"`
	Retired              bool           `json:"retired"`
	RetiredReason        Null           `json:"retired_reason"`
	SecureBoot           *bool          `json:"secure_boot"`
	ServiceStep          map[string]any `json:"service_step"`
	Shard                Null           `json:"shard"`
	StorageInterface     Null           `json:"storage_interface"`
	TargetPowerState     Null           `json:"target_power_state"`
	TargetProvisionState Null           `json:"target_provision_state"`
	TargetRAIDConfig     map[string]any `json:"target_raid_config"`
	Traits               []string       `json:"traits"`
	VendorInterface      Null           `json:"vendor_interface"`
	Links                []Link         `json:"links"`
	Conductor            Null           `json:"conductor"`
	AllocationUUID       Null           `json:"allocation_uuid"`
	ChassisUUID          Null           `json:"chassis_uuid"`
	Ports                []Link         `json:"ports"`
	States               []Link         `json:"states"`
	Portgroups           []Link         `json:"portgroups"`
	Volume               []Link         `json:"volume"`
}

// NodeFields is the table of a node's fields.
var NodeFields = Fields[Node]{
	{"uuid", 1, true, func(n *Node) any { return n.UUID }},
	{"created_at", 1, true, func(n *Node) any { return n.CreatedAt }},
	{"updated_at", 1, true, func(n *Node) any { return n.UpdatedAt }},
	{"automated_clean", 47, true, func(n *Node) any { return n.AutomatedClean }},
	{"bios_interface", 40, true, func(n *Node) any { return n.BIOSInterface }},
	{"boot_interface", 31, true, func(n *Node) any { return n.BootInterface }},
	{"boot_mode", VersionBootMode, true, func(n *Node) any { return n.BootMode }},
	{"clean_step", 7, false, func(n *Node) any { return orEmpty(n.CleanStep) }},
	{"conductor_group", VersionConductorGroup, true, func(n *Node) any { return n.ConductorGroup }},
	{"console_enabled", 1, true, func(n *Node) any { return n.ConsoleEnabled }},
	{"console_interface", 31, true, func(n *Node) any { return n.ConsoleInterface }},
	{"deploy_interface", 31, true, func(n *Node) any { return n.DeployInterface }},
	{"deploy_step", 44, false, func(n *Node) any { return orEmpty(n.DeployStep) }},
	{"description", VersionDescription, true, func(n *Node) any { return n.Description }},
	{"disable_power_off", VersionNoPowerOff, true, func(n *Node) any { return n.DisablePowerOff }},
	{"driver", 1, true, func(n *Node) any { return n.Driver }},
	{"driver_info", 1, false, func(n *Node) any { return orEmpty(n.DriverInfo) }},
	{"driver_internal_info", 3, false, func(n *Node) any { return orEmpty(n.DriverInternalInfo) }},
	{"extra", 1, false, func(n *Node) any { return orEmpty(n.Extra) }},
	{"fault", VersionFilterFault, true, func(n *Node) any { return n.Fault }},
	{"firmware_interface", VersionFirmware, true, func(n *Node) any { return n.FirmwareInterface }},
	{"health", VersionHealth, true, func(n *Node) any { return n.Health }},
	{"inspection_finished_at", 6, true, func(n *Node) any { return n.InspectionFinishedAt }},
	{"inspection_started_at", 6, true, func(n *Node) any { return n.InspectionStartedAt }},
	{"inspect_interface", 31, true, func(n *Node) any { return n.InspectInterface }},
	{"instance_info", 1, false, func(n *Node) any { return orEmpty(n.InstanceInfo) }},
	{"instance_name", VersionInstanceName, true, func(n *Node) any { return n.InstanceName }},
	{"instance_uuid", 1, true, func(n *Node) any { return n.InstanceUUID }},
	{"last_error", 1, true, func(n *Node) any { return n.LastError }},
	{"lessee", VersionLessee, true, func(n *Node) any { return n.Lessee }},
	{"maintenance", 1, true, func(n *Node) any { return n.Maintenance }},
	{"maintenance_reason", 1, true, func(n *Node) any { return n.MaintenanceReason }},
	{"management_interface", 31, true, func(n *Node) any { return n.ManagementInterface }},
	{"name", VersionNames, true, func(n *Node) any { return n.Name }},
	{"network_data", 66, false, func(n *Node) any { return orEmpty(n.NetworkData) }},
	{"network_interface", 20, true, func(n *Node) any { return n.NetworkInterface }},
	{"owner", VersionOwner, true, func(n *Node) any { return n.Owner }},
	{"parent_node", VersionChildren, true, func(n *Node) any { return n.ParentNode }},
	{"power_interface", 31, true, func(n *Node) any { return n.PowerInterface }},
	{"power_state", 1, true, func(n *Node) any { return n.PowerState }},
	{"properties", 1, false, func(n *Node) any { return orEmpty(n.Properties) }},
	{"protected", 48, true, func(n *Node) any { return n.Protected }},
	{"protected_reason", 48, true, func(n *Node) any { return n.ProtectedReason }},
	{"provision_state", 1, true, func(n *Node) any { return n.ProvisionState }},
	{"provision_updated_at", 1, true, func(n *Node) any { return n.ProvisionUpdatedAt }},
	{"raid_config", 12, false, func(n *Node) any { return orEmpty(n.RAIDConfig) }},
	{"raid_interface", 31, true, func(n *Node) any { return n.RAIDInterface }},
	{"rescue_interface", VersionRescue, true, func(n *Node) any { return n.RescueInterface }},
	{"reservation", 1, true, func(n *Node) any { return n.Reservation }},
	{"resource_class", 21, true, func(n *Node) any { return n.ResourceClass }},
	{"retired", VersionRetired, true, func(n *Node) any { return n.Retired }},
	{"retired_reason", VersionRetired, true, func(n *Node) any { return n.RetiredReason }},
	{"secure_boot", VersionBootMode, true, func(n *Node) any { return n.SecureBoot }},
	{"service_step", VersionService, false, func(n *Node) any { return orEmpty(n.ServiceStep) }},
	{"shard", VersionShards, true, func(n *Node) any { return n.Shard }},
	{"storage_interface", 33, true, func(n *Node) any { return n.StorageInterface }},
	{"target_power_state", 1, true, func(n *Node) any { return n.TargetPowerState }},
	{"target_provision_state", 1, true, func(n *Node) any { return n.TargetProvisionState }},
	{"target_raid_config", 12, false, func(n *Node) any { return orEmpty(n.TargetRAIDConfig) }},
	{"traits", VersionTraits, false, func(n *Node) any { return orNone(n.Traits) }},
	{"vendor_interface", 31, true, func(n *Node) any { return n.VendorInterface }},
	{"links", 1, false, func(n *Node) any { return orNone(n.Links) }},
	{"conductor", VersionConductors, false, func(n *Node) any { return n.Conductor }},
	{"allocation_uuid", 52, false, func(n *Node) any { return n.AllocationUUID }},
	{"chassis_uuid", 1, false, func(n *Node) any { return n.ChassisUUID }},
	{"ports", 1, false, func(n *Node) any { return orNone(n.Ports) }},
	{"states", VersionStateLinks, false, func(n *Node) any { return orNone(n.States) }},
	{"portgroups", 24, false, func(n *Node) any { return orNone(n.Portgroups) }},
	{"volume", 32, false, func(n *Node) any { return orNone(n.Volume) }},
}

// NodeSelectable are the fields that ?fields= may name. Ironic selects from another table, without these.
var NodeSelectable = NodeFields.Without("created_at", "updated_at", "links", "ports", "portgroups", "states", "volume")

// NodeListFields are the fields of a list without detail.
var NodeListFields = []string{"instance_uuid", "maintenance", "power_state", "provision_state", "uuid", "name", "links"}

// For returns a copy of the node with its states named as in version v.
func (n Node) For(v Version) Node {
	n.ProvisionState = Null(StateFor(v, string(n.ProvisionState)))
	n.TargetProvisionState = Null(StateFor(v, string(n.TargetProvisionState)))
	return n
}

// States is the answer of GET states.
type States struct {
	ConsoleEnabled       bool           `json:"console_enabled"`
	LastError            Null           `json:"last_error"`
	PowerState           Null           `json:"power_state"`
	ProvisionState       Null           `json:"provision_state"`
	TargetPowerState     Null           `json:"target_power_state"`
	TargetProvisionState Null           `json:"target_provision_state"`
	ProvisionUpdatedAt   NullTime       `json:"provision_updated_at"`
	RAIDConfig           map[string]any `json:"raid_config"`
	TargetRAIDConfig     map[string]any `json:"target_raid_config"`
	BootMode             Null           `json:"boot_mode"`
	SecureBoot           *bool          `json:"secure_boot"`
}

// StatesFields is the table of States.
var StatesFields = Fields[States]{
	{"console_enabled", 1, false, func(s *States) any { return s.ConsoleEnabled }},
	{"last_error", 1, false, func(s *States) any { return s.LastError }},
	{"power_state", 1, false, func(s *States) any { return s.PowerState }},
	{"provision_state", 1, false, func(s *States) any { return s.ProvisionState }},
	{"target_power_state", 1, false, func(s *States) any { return s.TargetPowerState }},
	{"target_provision_state", 1, false, func(s *States) any { return s.TargetProvisionState }},
	{"provision_updated_at", 1, false, func(s *States) any { return s.ProvisionUpdatedAt }},
	{"raid_config", 12, false, func(s *States) any { return orEmpty(s.RAIDConfig) }},
	{"target_raid_config", 12, false, func(s *States) any { return orEmpty(s.TargetRAIDConfig) }},
	{"boot_mode", VersionBootMode, false, func(s *States) any { return s.BootMode }},
	{"secure_boot", VersionBootMode, false, func(s *States) any { return s.SecureBoot }},
}

// orNone makes nil lists empty ones.
func orNone[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
