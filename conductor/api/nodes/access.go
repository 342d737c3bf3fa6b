package nodes

import (
	"net/http"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Marks in place of values that a lessee may not see, in Ironic's words.
const (
	redactedLock   = "** Redacted - requires baremetal:node:get:reservation permission. **"
	redactedInside = "** Redacted - Requires baremetal:node:get:driver_internal_info permission. **"
	redactedDriver = "** Redacted - requires baremetal:node:get:driver_info permission. **"
)

// patchRules say who may change which attribute of a node. Owners may change any other attribute. Where Ironic has no
// rule for an attribute it lets every lessee change it; here maintenance, resource_class and automated_clean have the
// rules of the other ways to change them, or of attributes that describe the machine.
var patchRules = func() map[string]access.Rule {
	m := map[string]access.Rule{
		"instance_info": access.NodeUpdateInstanceInfo, "instance_name": access.NodeUpdateInstanceInfo,
		"extra": access.NodeUpdateExtra, "driver_info": access.NodeUpdateDriverInfo,
		"properties": access.NodeUpdateProperties, "chassis_uuid": access.NodeUpdateChassis,
		"instance_uuid": access.NodeUpdateInstance, "lessee": access.NodeUpdateLessee, "owner": access.NodeUpdateOwner,
		"driver": access.NodeUpdateInterfaces, "network_data": access.NodeUpdateNetworkData,
		"conductor_group": access.NodeUpdateGroup, "name": access.NodeUpdateName, "retired": access.NodeUpdateRetired,
		"retired_reason": access.NodeUpdateRetired, "shard": access.NodeUpdateShard,
		"parent_node": access.NodeUpdateParent, "disable_power_off": access.NodeUpdatePowerOff,
		"maintenance": access.NodeMaintenance, "maintenance_reason": access.NodeMaintenance,
		"resource_class": access.NodeUpdateProperties, "automated_clean": access.NodeUpdateProperties,
		"description": access.NodeUpdate, "protected": access.NodeUpdate, "protected_reason": access.NodeUpdate,
	}
	for _, kind := range driver.Kinds {
		m[kind+"_interface"] = access.NodeUpdateInterfaces
	}
	return m
}()

// conceal hides fields about the site's insides from a node's lessee.
func conceal(c *call.Call, n *node.Node, out *rest.Node) {
	o := access.Of(n)
	if c.Actor.All || c.Actor.May(access.NodeListAll, o) {
		return
	}
	if !c.SeesInsides(o) {
		out.LastError = call.RedactedError
	}
	if !c.Actor.May(access.NodeGetReservation, o) {
		out.Reservation = redactedLock
	}
	if !c.Actor.May(access.NodeGetInternal, o) {
		out.DriverInternalInfo = map[string]any{"content": redactedInside}
	}
	if !c.Actor.May(access.NodeGetDriverInfo, o) {
		out.DriverInfo = map[string]any{"content": redactedDriver}
	}
}

// mayPatch asks whether the actor may change all that a patch changes. n is the node as it is in the transaction.
func mayPatch(c *call.Call, n *node.Node, patch *rest.Patch) error {
	if c.Actor.All {
		return nil
	}
	if !c.Actor.MaySee(n) {
		return rest.NotFound("Node %s could not be found.", c.Path["node"])
	}
	roots := patch.Roots()
	if len(roots) == 0 {
		return c.May(access.NodeUpdate, n)
	}
	for _, root := range roots {
		rule, ok := patchRules[root]
		if !ok {
			rule = access.NodeUpdateDriverInfo
		}
		if root == "automated_clean" {
			if v, set := patch.Value(root); set && v != nil {
				if on, err := document.Boolean(root, v); err == nil && !on {
					rule = access.NodeDisableCleaning
				}
			}
		}
		if err := c.May(rule, n); err != nil {
			return err
		}
		if root == "owner" && n.Provision == node.Active && !c.Actor.May(access.NodeUpdateOwnerActive, access.Of(n)) {
			return rest.Conflict("Cannot update owner of node %q while it is in state %q.", n.UUID, n.Provision)
		}
	}
	return nil
}

// own makes a new node the property of the project whose administrator makes it; those of the system make nodes for
// anybody.
func own(c *call.Call, n *node.Node) *rest.Error {
	if c.Actor.May(access.NodeCreate, access.Object{}) {
		return nil
	}
	if n.Owner != "" && n.Owner != c.Actor.ProjectID {
		return rest.Fault(http.StatusBadRequest,
			"Cannot create a node as a project scoped admin with an owner other than your own project.")
	}
	n.Owner = c.Actor.ProjectID
	return nil
}
