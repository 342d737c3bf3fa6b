package access

// Rule is something that may be done, by the name of Ironic's policy for it without "baremetal:"; those that begin with
// "ingot:" are for what Ironic does not have.
type Rule string

// grants are the ways to satisfy a rule. Each is the least role that suffices; None means that this way does not exist.
type grants struct {
	system        Role // held in the system
	systemService bool // "service" held in the system
	owner         Role // held in the project that owns the object
	ownerService  bool // "service" held there
	lessee        Role // held in the project that leases it
	any           Role // held anywhere
	anyService    bool
}

// The combinations that occur, under the names that Ironic's policy.py has for them.
var (
	systemAdmin  = grants{system: Admin}
	systemMember = grants{system: Member}
	systemReader = grants{system: Reader, systemService: true}

	systemOrProjectReader = grants{system: Reader, systemService: true, owner: Reader, lessee: Reader,
		ownerService: true}
	systemOrOwnerReader   = grants{system: Reader, systemService: true, owner: Reader, ownerService: true}
	systemOrProjectMember = grants{system: Member, systemService: true, owner: Member, lessee: Member}

	systemOrOwnerMemberAndLesseeAdmin = grants{system: Member, systemService: true, owner: Member, lessee: Manager,
		ownerService: true}
	systemMemberOrOwnerLesseeAdmin = grants{system: Member, systemService: true, owner: Manager, lessee: Manager,
		ownerService: true}
	systemMemberOrOwnerMember = grants{system: Member, systemService: true, owner: Member, ownerService: true}
	systemMemberOrOwnerAdmin  = grants{system: Member, systemService: true, owner: Manager, ownerService: true}
	systemAdminOrOwnerAdmin   = grants{system: Admin, systemService: true, owner: Manager, ownerService: true}

	apiReader = grants{any: Reader, anyService: true}

	runbookReader = grants{system: Reader, systemService: true, owner: Reader, anyService: true}
	runbookAdmin  = grants{system: Member, owner: Manager, anyService: true}
)

// Rules about nodes and their parts.
const (
	NodeCreate         Rule = "node:create"
	NodeCreateOwn      Rule = "node:create:self_owned_node" // the project becomes the owner
	NodeList           Rule = "node:list"                   // the nodes that the project owns or leases
	NodeListAll        Rule = "node:list_all"
	NodeGet            Rule = "node:get"
	NodeGetLastError   Rule = "node:get:last_error"
	NodeGetReservation Rule = "node:get:reservation"
	NodeGetInternal    Rule = "node:get:driver_internal_info"
	NodeGetDriverInfo  Rule = "node:get:driver_info"
	NodeDelete         Rule = "node:delete" // with node:delete:self_owned_node in it

	NodeUpdate             Rule = "node:update"
	NodeUpdateExtra        Rule = "node:update_extra"
	NodeUpdateInstanceInfo Rule = "node:update_instance_info"
	NodeUpdateDriverInfo   Rule = "node:update:driver_info"
	NodeUpdateProperties   Rule = "node:update:properties"
	NodeUpdateChassis      Rule = "node:update:chassis_uuid"
	NodeUpdateInstance     Rule = "node:update:instance_uuid"
	NodeUpdateLessee       Rule = "node:update:lessee"
	NodeUpdateOwner        Rule = "node:update:owner"
	NodeUpdateOwnerActive  Rule = "node:update_owner_provisioned"
	NodeUpdateInterfaces   Rule = "node:update:driver_interfaces"
	NodeUpdateNetworkData  Rule = "node:update:network_data"
	NodeUpdateGroup        Rule = "node:update:conductor_group"
	NodeUpdateName         Rule = "node:update:name"
	NodeUpdateRetired      Rule = "node:update:retired"
	NodeUpdateShard        Rule = "node:update:shard"
	NodeUpdateParent       Rule = "node:update:parent_node"
	NodeUpdatePowerOff     Rule = "node:update:disable_power_off"
	NodeDisableCleaning    Rule = "node:disable_cleaning"

	NodeValidate       Rule = "node:validate"
	NodeMaintenance    Rule = "node:set_maintenance"
	NodeGetBootDevice  Rule = "node:get_boot_device"
	NodeSetBootDevice  Rule = "node:set_boot_device"
	NodeGetIndicator   Rule = "node:get_indicator_state"
	NodeSetIndicator   Rule = "node:set_indicator_state"
	NodeNMI            Rule = "node:inject_nmi"
	NodeGetStates      Rule = "node:get_states"
	NodePower          Rule = "node:set_power_state"
	NodeBootMode       Rule = "node:set_boot_mode"
	NodeSecureBoot     Rule = "node:set_secure_boot"
	NodeProvision      Rule = "node:set_provision_state"
	NodeRAID           Rule = "node:set_raid_state"
	NodeGetConsole     Rule = "node:get_console"
	NodeSetConsole     Rule = "node:set_console_state"
	NodeVIFList        Rule = "node:vif:list"
	NodeVIFAttach      Rule = "node:vif:attach"
	NodeVIFDetach      Rule = "node:vif:detach"
	NodeTraitsList     Rule = "node:traits:list"
	NodeTraitsSet      Rule = "node:traits:set"
	NodeTraitsDelete   Rule = "node:traits:delete"
	NodeBIOS           Rule = "node:bios:get"
	NodeFirmware       Rule = "node:firmware:get"
	NodeHistory        Rule = "node:history:get"
	NodeInventory      Rule = "node:inventory:get"
	NodeMediaAttach    Rule = "node:vmedia:attach"
	NodeMediaDetach    Rule = "node:vmedia:detach"
	NodeMediaGet       Rule = "node:vmedia:get"
	NodeVendorPassthru Rule = "node:vendor_passthru"
)

// Rules about other resources.
const (
	PortGet    Rule = "port:get"
	PortList   Rule = "port:list"
	PortCreate Rule = "port:create"
	PortUpdate Rule = "port:update"
	PortDelete Rule = "port:delete"

	PortgroupGet    Rule = "portgroup:get"
	PortgroupList   Rule = "portgroup:list"
	PortgroupCreate Rule = "portgroup:create"
	PortgroupUpdate Rule = "portgroup:update"
	PortgroupDelete Rule = "portgroup:delete"

	VolumeGet        Rule = "volume:get"
	VolumeList       Rule = "volume:list"
	VolumeCreate     Rule = "volume:create"
	VolumeUpdate     Rule = "volume:update"
	VolumeDelete     Rule = "volume:delete"
	VolumeProperties Rule = "volume:view_target_properties"

	ChassisGet    Rule = "chassis:get"
	ChassisCreate Rule = "chassis:create"
	ChassisUpdate Rule = "chassis:update"
	ChassisDelete Rule = "chassis:delete"

	DriverGet      Rule = "driver:get"
	DriverPassthru Rule = "driver:vendor_passthru"
	ConductorGet   Rule = "conductor:get"
	ShardsGet      Rule = "shards:get"
	EventsPost     Rule = "events:post"

	AllocationGet    Rule = "allocation:get"
	AllocationList   Rule = "allocation:list"
	AllocationCreate Rule = "allocation:create"            // with the project as its owner
	AllocationAny    Rule = "allocation:create_restricted" // with any owner
	AllocationUpdate Rule = "allocation:update"
	AllocationDelete Rule = "allocation:delete"

	TemplateGet    Rule = "deploy_template:get"
	TemplateCreate Rule = "deploy_template:create"
	TemplateUpdate Rule = "deploy_template:update"
	TemplateDelete Rule = "deploy_template:delete"

	RunbookGet    Rule = "runbook:get" // public ones may be read by every reader
	RunbookList   Rule = "runbook:list"
	RunbookCreate Rule = "runbook:create"
	RunbookUpdate Rule = "runbook:update"
	RunbookPublic Rule = "runbook:update:public"
	RunbookOwner  Rule = "runbook:update:owner"
	RunbookDelete Rule = "runbook:delete"
	RunbookUse    Rule = "runbook:use" // public ones may be used by every member

	InspectionRuleGet    Rule = "inspection_rule:get"
	InspectionRuleCreate Rule = "inspection_rule:create"
	InspectionRuleUpdate Rule = "inspection_rule:update"
	InspectionRuleDelete Rule = "inspection_rule:delete"
)

// Rules about what Ironic does not have.
const (
	IngotProgress   Rule = "ingot:node:progress"   // how far the work in progress is
	IngotLogs       Rule = "ingot:node:logs"       // the agent's log, which describes the site's insides
	IngotQuarantine Rule = "ingot:node:quarantine" // mark a deployed node as failed
	IngotBreakLock  Rule = "ingot:node:lock"
	IngotExports    Rule = "ingot:exports" // for hosts that write disks: with it come the passwords of these
	IngotAdmin      Rule = "ingot:admin"   // changes of objects without an owner
	IngotRead       Rule = "ingot:read"    // reading objects without an owner
	IngotEvents     Rule = "ingot:events"  // the stream and the log, which hold only events that the reader may see
)

var rules = map[Rule]grants{
	NodeCreate:         {system: Admin, systemService: true},
	NodeCreateOwn:      {any: Admin, anyService: true},
	NodeList:           apiReader,
	NodeListAll:        systemReader,
	NodeGet:            systemOrProjectReader,
	NodeGetLastError:   systemOrOwnerReader,
	NodeGetReservation: systemOrOwnerReader,
	NodeGetInternal:    systemOrOwnerReader,
	NodeGetDriverInfo:  systemOrOwnerReader,
	NodeDelete:         {system: Admin, owner: Admin},

	NodeUpdate:             systemOrProjectMember,
	NodeUpdateExtra:        systemOrProjectMember,
	NodeUpdateInstanceInfo: systemOrOwnerMemberAndLesseeAdmin,
	NodeUpdateDriverInfo:   systemMemberOrOwnerMember,
	NodeUpdateProperties:   systemMemberOrOwnerMember,
	NodeUpdateChassis:      systemAdmin,
	NodeUpdateInstance:     systemMemberOrOwnerMember,
	NodeUpdateLessee:       systemMemberOrOwnerMember,
	NodeUpdateOwner:        systemMember,
	NodeUpdateOwnerActive:  systemAdmin,
	NodeUpdateInterfaces:   systemMemberOrOwnerAdmin,
	NodeUpdateNetworkData:  systemMemberOrOwnerMember,
	NodeUpdateGroup:        systemMember,
	NodeUpdateName:         systemMemberOrOwnerMember,
	NodeUpdateRetired:      systemMemberOrOwnerMember,
	NodeUpdateShard:        systemAdmin,
	NodeUpdateParent:       systemMember,
	NodeUpdatePowerOff:     systemAdmin,
	NodeDisableCleaning:    systemAdmin,

	NodeValidate:       systemOrOwnerMemberAndLesseeAdmin,
	NodeMaintenance:    systemOrOwnerMemberAndLesseeAdmin,
	NodeGetBootDevice:  systemMemberOrOwnerAdmin,
	NodeSetBootDevice:  systemMemberOrOwnerAdmin,
	NodeGetIndicator:   systemOrProjectReader,
	NodeSetIndicator:   systemMemberOrOwnerMember,
	NodeNMI:            systemMemberOrOwnerAdmin,
	NodeGetStates:      systemOrProjectReader,
	NodePower:          systemOrProjectMember,
	NodeBootMode:       systemOrProjectMember,
	NodeSecureBoot:     systemOrProjectMember,
	NodeProvision:      systemOrOwnerMemberAndLesseeAdmin,
	NodeRAID:           systemMemberOrOwnerMember,
	NodeGetConsole:     systemMemberOrOwnerMember,
	NodeSetConsole:     systemMemberOrOwnerMember,
	NodeVIFList:        systemOrProjectReader,
	NodeVIFAttach:      systemOrOwnerMemberAndLesseeAdmin,
	NodeVIFDetach:      systemOrOwnerMemberAndLesseeAdmin,
	NodeTraitsList:     systemOrProjectReader,
	NodeTraitsSet:      systemMemberOrOwnerAdmin,
	NodeTraitsDelete:   systemMemberOrOwnerAdmin,
	NodeBIOS:           systemOrProjectReader,
	NodeFirmware:       systemOrProjectReader,
	NodeHistory:        systemOrOwnerReader,
	NodeInventory:      systemOrOwnerReader,
	NodeMediaAttach:    systemOrProjectMember,
	NodeMediaDetach:    systemOrProjectMember,
	NodeMediaGet:       systemOrProjectReader,
	NodeVendorPassthru: systemAdmin,

	PortGet:    systemOrProjectReader,
	PortList:   apiReader,
	PortCreate: systemAdminOrOwnerAdmin,
	PortUpdate: systemMemberOrOwnerAdmin,
	PortDelete: systemAdminOrOwnerAdmin,

	PortgroupGet:    systemOrProjectReader,
	PortgroupList:   apiReader,
	PortgroupCreate: systemAdminOrOwnerAdmin,
	PortgroupUpdate: systemMemberOrOwnerAdmin,
	PortgroupDelete: systemAdminOrOwnerAdmin,

	VolumeGet:        systemOrProjectReader,
	VolumeList:       apiReader,
	VolumeCreate:     systemMemberOrOwnerLesseeAdmin,
	VolumeUpdate:     systemOrOwnerMemberAndLesseeAdmin,
	VolumeDelete:     systemMemberOrOwnerLesseeAdmin,
	VolumeProperties: {system: Reader, systemService: true, any: Admin},

	ChassisGet:    systemReader,
	ChassisCreate: systemAdmin,
	ChassisUpdate: systemMember,
	ChassisDelete: systemAdmin,

	DriverGet:      systemReader,
	DriverPassthru: systemAdmin,
	ConductorGet:   systemReader,
	ShardsGet:      systemReader,
	EventsPost:     systemAdmin,

	AllocationGet:    {system: Reader, systemService: true, owner: Reader},
	AllocationList:   apiReader,
	AllocationCreate: {system: Member, any: Member},
	AllocationAny:    systemMember,
	AllocationUpdate: {system: Member, owner: Member},
	AllocationDelete: {system: Member, owner: Member},

	TemplateGet:    systemReader,
	TemplateCreate: systemAdmin,
	TemplateUpdate: systemAdmin,
	TemplateDelete: systemAdmin,

	RunbookGet:    runbookReader,
	RunbookList:   apiReader,
	RunbookCreate: {system: Member, any: Manager, anyService: true},
	RunbookUpdate: runbookAdmin,
	RunbookPublic: systemMember,
	RunbookOwner:  systemMember,
	RunbookDelete: runbookAdmin,
	RunbookUse:    runbookAdmin,

	InspectionRuleGet:    systemReader,
	InspectionRuleCreate: systemAdmin,
	InspectionRuleUpdate: systemAdmin,
	InspectionRuleDelete: systemAdmin,

	IngotProgress:   systemOrProjectReader,
	IngotLogs:       systemOrOwnerReader,
	IngotQuarantine: systemMemberOrOwnerMember,
	IngotBreakLock:  systemAdmin,
	IngotExports:    {system: Admin, systemService: true},
	IngotAdmin:      systemAdmin,
	IngotRead:       systemReader,
	IngotEvents:     apiReader,
}
