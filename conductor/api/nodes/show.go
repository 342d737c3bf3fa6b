package nodes

import (
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Show makes the API's representation of a node: secrets masked, interfaces filled in, states named as in this version.
// names are the fields that will be shown, none means all: other fields that are expensive to make are left out.
func (s *Handlers) Show(c *call.Call, n *node.Node, names ...string) rest.Node {
	path := "nodes/" + n.UUID
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	links := func(name, path string) []rest.Link {
		if !wanted(name) {
			return nil
		}
		return rest.Links(c.Base, path)
	}
	masked := func(name string, m map[string]any, names ...string) map[string]any {
		if !wanted(name) {
			return nil
		}
		return redact.Map(m, names...)
	}
	var used map[string]string
	if len(names) == 0 ||
		slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "_interface") }) {
		used = s.drivers.Interfaces(n)
	}
	iface := func(kind string) rest.Null { return rest.Null(used[kind]) }
	conductor := s.ownerOf(n)
	updated := rest.NullTime{Time: n.UpdatedAt}
	if n.Version <= 1 {
		updated = rest.NullTime{} // nothing has happened since it was made
	}
	out := rest.Node{
		UUID:                 n.UUID,
		CreatedAt:            rest.NullTime{Time: n.CreatedAt},
		UpdatedAt:            updated,
		AutomatedClean:       n.AutomatedClean,
		BIOSInterface:        iface("bios"),
		BootInterface:        iface("boot"),
		BootMode:             rest.Null(n.BootMode),
		ConductorGroup:       n.ConductorGroup,
		ConsoleEnabled:       n.ConsoleEnabled,
		ConsoleInterface:     iface("console"),
		DeployInterface:      iface("deploy"),
		Description:          rest.Text(n.Description, "description", n.Blank),
		DisablePowerOff:      n.DisablePowerOff,
		Driver:               n.Driver,
		DriverInfo:           masked("driver_info", n.DriverInfo),
		DriverInternalInfo:   internalInfo(n),
		Extra:                n.Extra,
		Fault:                rest.Null(n.Fault),
		FirmwareInterface:    iface("firmware"),
		Health:               rest.Null(n.Health),
		InspectionFinishedAt: rest.NullTime{Time: n.InspectionFinishedAt},
		InspectionStartedAt:  rest.NullTime{Time: n.InspectionStartedAt},
		InspectInterface:     iface("inspect"),
		InstanceInfo:         masked("instance_info", n.InstanceInfo, "configdrive", "image_url"),
		InstanceName:         rest.Null(n.InstanceName),
		InstanceUUID:         rest.Null(n.InstanceUUID),
		LastError:            rest.Null(n.LastError),
		Lessee:               rest.Text(n.Lessee, "lessee", n.Blank),
		Maintenance:          n.Maintenance,
		MaintenanceReason:    rest.Text(n.MaintenanceReason, "maintenance_reason", n.Blank),
		ManagementInterface:  iface("management"),
		Name:                 rest.Null(n.Name),
		NetworkData:          n.NetworkData,
		NetworkInterface:     iface("network"),
		Owner:                rest.Text(n.Owner, "owner", n.Blank),
		ParentNode:           rest.Null(n.ParentNode),
		PowerInterface:       iface("power"),
		PowerState:           rest.Null(n.Power),
		Properties:           n.Properties,
		Protected:            n.Protected,
		ProtectedReason:      rest.Text(n.ProtectedReason, "protected_reason", n.Blank),
		ProvisionState:       rest.Null(n.Provision),
		ProvisionUpdatedAt:   call.UpdatedAt(n.ProvisionUpdatedAt, n.CreatedAt),
		RAIDConfig:           n.RAIDConfig,
		RAIDInterface:        iface("raid"),
		RescueInterface:      iface("rescue"),
		Reservation:          rest.Null(n.Reservation),
		ResourceClass:        rest.Text(n.ResourceClass, "resource_class", n.Blank),
		Retired:              n.Retired,
		RetiredReason:        rest.Text(n.RetiredReason, "retired_reason", n.Blank),
		SecureBoot:           n.SecureBoot,
		Shard:                rest.Text(n.Shard, "shard", n.Blank),
		StorageInterface:     iface("storage"),
		TargetPowerState:     rest.Null(n.TargetPower),
		TargetProvisionState: rest.Null(n.TargetProvision),
		TargetRAIDConfig:     n.TargetRAID,
		Traits:               n.Traits,
		VendorInterface:      iface("vendor"),
		Links:                links("links", path),
		Conductor:            rest.Null(conductor),
		AllocationUUID:       rest.Null(n.AllocationUUID),
		ChassisUUID:          rest.Null(n.ChassisUUID),
		Ports:                links("ports", path+"/ports"),
		States:               links("states", path+"/states"),
		Portgroups:           links("portgroups", path+"/portgroups"),
		Volume:               links("volume", path+"/volume"),
	}
	if st := n.Job.Current(); st != nil {
		step := map[string]any{"interface": st.Interface, "step": st.Name, "priority": st.Priority}
		switch n.Job.Phase {
		case node.PhaseClean:
			out.CleanStep = step
		case node.PhaseDeploy:
			out.DeployStep = step
		case node.PhaseService:
			out.ServiceStep = step
		}
	}
	conceal(c, n, &out)
	return out.For(c.Version)
}

// internalInfo shows the steps of the work in progress under the names that Ironic keeps them by.
func internalInfo(n *node.Node) map[string]any {
	info := map[string]any{}
	if len(n.ControllerRows) > 0 {
		info["redfish_rows"] = n.ControllerRows
	}
	if n.Job == nil {
		return info
	}
	var key string
	switch n.Job.Phase {
	case node.PhaseClean:
		key = "clean_step"
	case node.PhaseDeploy:
		key = "deploy_step"
	case node.PhaseService:
		key = "service_step"
	default:
		return info
	}
	steps := make([]any, len(n.Job.Steps))
	for i, st := range n.Job.Steps {
		steps[i] = map[string]any{"interface": st.Interface, "step": st.Name, "priority": st.Priority,
			"abortable": st.Abortable}
	}
	info[key+"s"] = steps
	info[key+"_index"] = n.Job.Index
	return info
}
