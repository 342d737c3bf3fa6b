package rest

// What follows is, with the tables of fields and the versions in version.go, all that is known of which version brought
// what. The version that brought an address is in the table of routes of conductor/api.

// NodeFilters are the filters of a list of nodes.
var NodeFilters = map[string]Version{
	"chassis_uuid": 1, "instance_uuid": 1, "associated": 1, "maintenance": 1,
	"provision_state": VersionFilterState, "driver": VersionFilterDriver, "resource_class": 21,
	"fault": VersionFilterFault, "conductor_group": VersionConductorGroup, "conductor": VersionConductors,
	"owner": VersionOwner, "description_contains": VersionDescription, "retired": VersionRetired,
	"lessee": VersionLessee, "project": VersionLessee, "shard": VersionShards, "sharded": VersionShards,
	"parent_node": VersionChildren, "include_children": VersionChildren, "instance_name": VersionInstanceName,
}

// Verbs are the targets of PUT states/provision.
var Verbs = map[string]Version{
	"active": 1, "rebuild": 1, "deleted": 1, "deploy": VersionVerbAliases, "undeploy": VersionVerbAliases,
	"manage": VersionManageVerbs, "provide": VersionManageVerbs, "inspect": VersionInspect, "abort": VersionAbort,
	"clean": VersionClean, "adopt": VersionAdopt, "rescue": VersionRescue, "unrescue": VersionRescue,
	"unhold": VersionUnhold, "service": VersionService,
}

// AbortIn are the states in which abort came later than the verb itself.
var AbortIn = map[string]Version{
	"inspect wait": VersionAbortInspect, "inspecting": VersionAbortInspect, "rescue wait": VersionRescue,
	"clean hold": VersionUnhold, "deploy hold": VersionUnhold, "service hold": VersionUnhold,
	"service wait": VersionService, "service failed": VersionService, "wait call-back": VersionAbortDeploy,
}

// ProvisionParameters are what PUT states/provision takes beside its target.
var ProvisionParameters = map[string]Version{
	"configdrive": 1, "clean_steps": VersionClean, "rescue_password": VersionRescue, "deploy_steps": VersionDeploySteps,
	"disable_ramdisk": 70, "service_steps": VersionService, "runbook": VersionRunbooks,
}

// PowerTargets are the targets of PUT states/power.
var PowerTargets = map[string]Version{
	"power on": 1, "power off": 1, "rebooting": 1, "soft power off": VersionSoftPower,
	"soft rebooting": VersionSoftPower,
}

// HeartbeatParameters are what POST heartbeat takes.
var HeartbeatParameters = map[string]Version{
	"callback_url": 22, "agent_version": 36, "agent_token": 22, "agent_verify_ca": 68, "agent_status": 72,
	"agent_status_message": 72,
}

// Rule is something that a version brought and that is neither a name nor an address.
type Rule struct {
	Since Version
	Text  string
}

// Rules are in the order of their versions.
var Rules = []Rule{
	{VersionAvailable, `the state "available" has its name, which was null`},
	{VersionSelectFields, "`fields` chooses what is shown of a node"},
	{VersionURLNames, "names may have all characters that need no escapes in addresses"},
	{VersionEnroll, `new nodes are in state "enroll", before it in "available"`},
	{VersionStateLinks, "drivers have links to their properties"},
	{25, "a node's `chassis_uuid` can be removed"},
	{VersionSoftPower, "PUT states/power takes a `timeout`"},
	{VersionDriverDetails,
		"drivers have a `type` and, in detail, their interfaces; `type` and `detail` choose among them"},
	{VersionRebuildDrive, "`configdrive` goes with rebuild"},
	{VersionInspectWait, `the state "inspect wait" has its name, which was "inspecting"`},
	{VersionAbortInspect, `abort in state "inspect wait"`},
	{VersionDetailQuery, "`detail` is an argument of lists"},
	{VersionResetInterface, "`reset_interfaces` goes with a PATCH of a node's driver"},
	{VersionDriveObject, "`configdrive` may be an object"},
	{57, "allocations take PATCH of `name` and `extra`"},
	{58, "allocations are made for a given `node`"},
	{VersionVendorData, "`configdrive` may hold vendor_data"},
	{62, "lookup gives an agent its token"},
	{64, "`network_type` in a port's local_link_connection"},
	{67, "`port_uuid` and `portgroup_uuid` say where a VIF is attached"},
	{71, "roles have scopes"},
	{74, "BIOS settings tell what is known of them; `fields` and `detail` choose"},
	{VersionDriverFields, "`fields` chooses what is shown of drivers"},
	{79, "an allocation prefers the node of its own name"},
	{80, "a project's administrators may make and delete its own nodes"},
	{VersionContinue, "`continue_inspection` has a name in the version document and takes the UUID of the node"},
	{90, "OVN VTEP keys in a port's local_link_connection, until 1.105"},
	{VersionNoSuffix, `an address that ends in ".json" means just that`},
	{VersionPortNodeName, "a port is made with `node_ident`, which may be a name"},
	{VersionPatchEscapes, "`~0` and `~1` stand for ~ and / in the paths of a PATCH"},
	{99, "ports and port groups are filtered by `conductor_groups`"},
	{105, "no OVN VTEP keys in local_link_connection any more"},
	{106, "port groups are filtered by `shard`"},
	{VersionRequestID, "every answer has X-OpenStack-Request-Id"},
	{VersionServiceNoAgent, "`disable_ramdisk` goes with service"},
	{VersionAbortDeploy, `abort in state "wait call-back"`},
	{VersionRunbookTraits,
		"a new runbook may have any name; a runbook runs on nodes that have one of its traits, before on those with the trait of its name"},
}
