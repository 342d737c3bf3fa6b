package nodes

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/conductor/store"
)

// patchable are the attributes that PATCH may change.
var patchable = func() []string {
	names := []string{"automated_clean", "chassis_uuid", "conductor_group", "description", "disable_power_off",
		"driver", "driver_info", "extra", "instance_info", "instance_name", "instance_uuid", "lessee", "maintenance",
		"name", "network_data", "owner", "parent_node", "properties", "protected", "protected_reason", "resource_class",
		"retired", "retired_reason", "shard"}
	for _, kind := range kinds {
		names = append(names, kind+"_interface")
	}
	slices.Sort(names)
	return names
}()

// kinds are the kinds of interface that nodes show: those that a version offered has a field for.
var kinds = slices.DeleteFunc(slices.Clone(driver.Kinds), func(kind string) bool {
	_, ok := rest.NodeFields.Since(kind + "_interface")
	return !ok
})

// attributes returns the present values of all attributes that can be set, as JSON values of the caller's own.
func attributes(n *node.Node) map[string]any {
	text := document.OrNull
	blank := func(s, name string) any { return document.Kept(s, name, n.Blank) }
	d := map[string]any{
		"automated_clean": nil, "chassis_uuid": text(n.ChassisUUID), "conductor_group": n.ConductorGroup,
		"description": blank(n.Description, "description"), "driver": n.Driver, "driver_info": rest.Clone(n.DriverInfo),
		"extra": rest.Clone(n.Extra), "instance_info": rest.Clone(n.InstanceInfo),
		"instance_uuid": text(n.InstanceUUID), "lessee": blank(n.Lessee, "lessee"), "maintenance": n.Maintenance,
		"name": text(n.Name), "network_data": rest.Clone(n.NetworkData), "owner": blank(n.Owner, "owner"),
		"properties": rest.Clone(n.Properties), "protected": n.Protected,
		"protected_reason": blank(n.ProtectedReason, "protected_reason"),
		"resource_class":   blank(n.ResourceClass, "resource_class"), "retired": n.Retired,
		"retired_reason": blank(n.RetiredReason, "retired_reason"), "shard": blank(n.Shard, "shard"),
		"disable_power_off": n.DisablePowerOff, "instance_name": text(n.InstanceName),
		"parent_node": text(n.ParentNode),
	}
	if n.AutomatedClean != nil {
		d["automated_clean"] = *n.AutomatedClean
	}
	for _, kind := range kinds {
		d[kind+"_interface"] = text(n.Interfaces[kind])
	}
	return d
}

// assign sets the attributes of a node from a document; one that is absent or null gets its default. It makes all
// checks that do not depend on the node's previous state.
func (s *Handlers) assign(n *node.Node, d map[string]any) *rest.Error {
	var err *rest.Error
	text := func(name string) string {
		v, _ := d[name].(string)
		return v
	}
	flag := func(name string) bool {
		if d[name] == nil || err != nil {
			return false
		}
		var b bool
		b, err = document.Boolean(name, d[name])
		return b
	}
	object := func(name string) map[string]any {
		m, _ := d[name].(map[string]any)
		if m == nil {
			m = map[string]any{}
		}
		return m
	}
	at := node.Node{UUID: n.UUID, Driver: text("driver"), ConductorGroup: strings.ToLower(text("conductor_group"))}
	moves := at.ConductorGroup != "" && (at.ConductorGroup != n.ConductorGroup || at.Driver != n.Driver)
	hw, ok := s.drivers.ByName(at.Driver)
	if n.Driver, n.ConductorGroup = at.Driver, at.ConductorGroup; !ok || moves && (!s.several || s.ownerOf(&at) == "") {
		return rest.BadRequest(
			"No valid host was found. Reason: No conductor service registered which supports driver %s for conductor group %q.", n.Driver, n.ConductorGroup)
	}
	n.Interfaces = nil
	for _, kind := range kinds {
		if name, ok := d[kind+"_interface"].(string); ok {
			n.Interfaces = node.With(n.Interfaces, kind, name)
		}
	}
	var wrong *driver.InterfaceError
	var notHere *driver.IncompatibleError
	if cerr := hw.Check(n.Interfaces); errors.As(cerr, &notHere) {
		return rest.BadRequest("%v", notHere)
	} else if errors.As(cerr, &wrong) {
		valid := make([]any, len(wrong.Valid))
		for i, v := range wrong.Valid {
			valid[i] = v
		}
		return rest.BadRequest(
			"Could not find the following interface in the 'ironic.hardware.interfaces.%s' entrypoint: %s. Valid interfaces are %s%s.", wrong.Kind, wrong.Name, rest.Repr(valid), wrong.Hint())
	}
	if ch, ok := d["chassis_uuid"].(string); ok && !document.IsUUID(ch) {
		return rest.BadRequest("Expected UUID for chassis_uuid: %s", ch)
	}
	n.ChassisUUID = strings.ToLower(text("chassis_uuid"))
	n.InstanceUUID = ""
	if in, ok := d["instance_uuid"].(string); ok {
		if n.InstanceUUID, ok = document.UUID(in); !ok {
			return rest.BadRequest("Expected UUID for instance_uuid: %s", in)
		}
	}
	n.Name, n.Description, n.Owner, n.Lessee = text("name"), text("description"), text("owner"), text("lessee")
	n.ResourceClass, n.Shard, n.ParentNode = text("resource_class"), text("shard"), text("parent_node")
	// Hints that no agent understands are refused when they are set. Stored ones don't block other changes.
	for name, was := range map[string]map[string]any{"instance_info": n.InstanceInfo, "properties": n.Properties} {
		if v := object(name)["root_device"]; !reflect.DeepEqual(v, was["root_device"]) {
			if _, err := instance.RootDeviceHints(v); err != nil {
				return rest.BadRequest("%s: %s", name, err)
			}
		}
	}
	if p := object("properties"); !reflect.DeepEqual(p, n.Properties) {
		if err := checkSizes(n.UUID, p); err != nil {
			return err
		}
	}
	called := n.InstanceInfo[displayName]
	n.DriverInfo, n.Extra, n.InstanceInfo = object("driver_info"), object("extra"), object("instance_info")
	n.Properties, n.NetworkData = object("properties"), object("network_data")
	nameInstance(n, text("instance_name"), called)
	n.AutomatedClean = nil
	if d["automated_clean"] != nil {
		n.AutomatedClean = new(flag("automated_clean"))
	}
	n.Maintenance, n.Protected, n.Retired = flag("maintenance"), flag("protected"), flag("retired")
	n.DisablePowerOff = flag("disable_power_off")
	n.ProtectedReason, n.RetiredReason = text("protected_reason"), text("retired_reason")
	kept := slices.IndexFunc(n.Blank, isReason) >= 0
	n.Blank = document.Blank(d, "description", "lessee", "owner", "protected_reason", "resource_class",
		"retired_reason", "shard")
	if kept {
		n.Blank = append(n.Blank, "maintenance_reason")
	}
	return err
}

// isReason reports whether a name is that of the reason of maintenance, which PATCH clears but never sets.
func isReason(name string) bool { return name == "maintenance_reason" }

// sizes are the properties that schedulers count with.
var sizes = []string{"local_gb", "cpus", "memory_mb"}

// wholeNumber is a text that stands for an integer of at least 0.
var wholeNumber = regexp.MustCompile(`^\s*(\+?[0-9]+(_[0-9]+)*|-0+)\s*$`)

// checkSizes refuses sizes that no scheduler can read. Fractions and booleans are taken for the integers that Ironic
// makes of them.
func checkSizes(uuid string, properties map[string]any) *rest.Error {
	var bad []string
	for _, name := range sizes {
		v := properties[name]
		switch x := exact.Plain(v).(type) {
		case nil, bool:
			continue
		case float64:
			if x > -1 {
				continue
			}
		case string:
			if wholeNumber.MatchString(x) {
				continue
			}
			if len(x) < 80 {
				bad = append(bad, name+"="+x)
				continue
			}
		}
		bad = append(bad, name+"="+rest.Shown(v))
	}
	if len(bad) > 0 {
		return rest.BadRequest(
			"The following properties for node %s should be non-negative integers, but provided values are: %s", uuid,
			strings.Join(bad, ", "))
	}
	return nil
}

// displayName is where Nova keeps the name of the instance, in instance_info.
const displayName = "display_name"

// nameInstance keeps the name of the instance and its older place in instance_info equal: the changed one counts, the
// name before the other. called is the previous value in instance_info.
func nameInstance(n *node.Node, name string, called any) {
	switch now := n.InstanceInfo[displayName]; {
	case name != n.InstanceName && name == "":
		delete(n.InstanceInfo, displayName)
	case name != n.InstanceName:
		n.InstanceInfo[displayName] = name
	case !reflect.DeepEqual(now, called):
		name, _ = now.(string)
	}
	n.InstanceName = name
}

// parent replaces the node that n's parent_node names by its UUID. Nodes that are missing, invisible, or of another
// owner get the same error.
func (s *Handlers) parent(ctx context.Context, c *call.Call, n *node.Node) *rest.Error {
	ident := n.ParentNode
	if ident == "" {
		return nil
	}
	p, err := s.find.Visible(ctx, c, ident)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return rest.Fault(http.StatusInternalServerError, "The node %s could not be read; try again.", ident)
	}
	if err != nil || p.Owner != n.Owner {
		return BadParent(ident)
	}
	n.ParentNode = p.UUID
	return nil
}

// BadParent is the error for a parent node that does not exist.
func BadParent(ident string) *rest.Error {
	return rest.BadRequest("Unable to apply the requested parent_node '%s'. Requested value was invalid.", ident)
}

func (s *Handlers) patchNode(ctx context.Context, c *call.Call) (*call.Reply, error) {
	reset, err := c.Flag("reset_interfaces")
	if err != nil {
		return nil, err
	}
	if reset != nil && c.Version < rest.VersionResetInterface {
		return nil, rest.NotAcceptable()
	}
	patch, err := rest.ParsePatch(c.Body, c.Version, known(s.newest, rest.NodeFields, patchable))
	if err != nil {
		return nil, err
	}
	for _, root := range patch.Roots() {
		// Removing an attribute that the version lacks leaves it unchanged, in Ironic too.
		if since, _ := rest.NodeFields.Since(root); since > c.Version && !patch.Removes(root) {
			return nil, rest.NotAcceptable()
		}
	}
	if reset != nil && *reset && !slices.Contains(patch.Roots(), "driver") {
		return nil, rest.BadRequest("The reset_interfaces parameter can only be used when changing the node's driver.")
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if name, set := patch.Value("name"); set && (name == nil || name == "") { // it is taken away by "remove" only
		return nil, rest.BadRequest("Node %s: Cannot change name to invalid name '%s'", c.Path["node"],
			map[bool]string{true: "None"}[name == nil])
	}
	n, nerr = s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		if err := mayPatch(c, n, patch); err != nil {
			return err
		}
		if err := s.applyPatch(ctx, c, n, patch, reset != nil && *reset); err != nil {
			return err
		}
		return nil
	})
	if nerr != nil {
		return nil, nerr
	}
	return &call.Reply{Status: http.StatusOK, Body: item(c, new(s.Show(c, n)), nil), ETag: n.Tag()}, nil
}

// known returns the names that a server up to version newest knows: attributes newer than all supported versions do not
// exist.
func known[T any](newest rest.Version, fields rest.Fields[T], names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		since, _ := fields.Since(name)
		return since > newest
	})
}

// PatchableIn are the states in which a node that is heading somewhere may be patched all the same: it has stopped
// there.
var PatchableIn = []node.State{node.DeployFailed, node.InspectFailed, node.InspectWait, node.CleanFailed, node.Error,
	node.Verifying, node.AdoptFailed, node.RescueFailed, node.UnrescueFailed, node.ServiceHold, node.ServiceFailed}

// interfacesIn are the states in which interfaces and resource class may be changed.
var interfacesIn = []node.State{node.Enroll, node.Manageable, node.Inspecting, node.InspectWait, node.Available}

// applyPatch changes n inside a transaction.
func (s *Handlers) applyPatch(ctx context.Context, c *call.Call, n *node.Node, patch *rest.Patch,
	reset bool) *rest.Error {
	was := *n
	roots := patch.Roots()
	if n.Reservation != "" {
		return finder.LockedBy(n)
	}
	releasing := n.Maintenance && slices.Equal(roots, []string{"instance_uuid"}) && patch.Removes("instance_uuid")
	switch {
	case n.TargetProvision == node.None || releasing || slices.Contains(PatchableIn, n.Provision):
	// as it was when waiting had no name of its own
	case n.Provision == node.Inspecting && c.Version < rest.VersionInspectWait:
	case n.Provision == node.Inspecting:
		return rest.Conflict(`Cannot update node "%s" while it is in state "%s".`, n.UUID, n.Provision)
	default:
		return rest.Conflict("Node %s can not be updated while a state transition is in progress.", c.Path["node"])
	}
	d := attributes(n)
	if err := patch.Apply(d); err != nil {
		return err
	}
	if fault := patchedSchema.Check(d); fault != "" {
		return rest.BadRequest("Schema error for patch: %s", fault)
	}
	if reset {
		for _, kind := range kinds {
			if name := kind + "_interface"; !slices.Contains(roots, name) {
				d[name] = nil
			}
		}
	}
	used := s.drivers.Interfaces(&was)
	// an interface may be "changed" to its present value in every state
	roots = slices.DeleteFunc(roots, func(root string) bool {
		kind, isInterface := strings.CutSuffix(root, "_interface")
		v, set := patch.Value(root)
		return isInterface && set && !patch.Removes(root) && v == used[kind]
	})
	for _, root := range roots {
		if strings.HasSuffix(root, "_interface") && !n.Maintenance && !slices.Contains(interfacesIn, n.Provision) {
			return frozen(&was, root, true)
		}
	}
	unmask(d, "driver_info", was.DriverInfo)
	unmask(d, "instance_info", was.InstanceInfo)
	if err := s.assign(n, d); err != nil {
		return err
	}
	// A flag that ends takes its reason along, whatever the same patch says of it. One that is removed has ended, too.
	if was.Protected && !n.Protected {
		n.ProtectedReason = ""
	}
	if !n.Retired && (was.Retired || d["retired"] == nil) {
		n.RetiredReason = ""
	}
	if err := c.Resent([]string{"driver_info"}, was.DriverInfo, n.DriverInfo, true); err != nil {
		return err
	}
	if err := c.Resent([]string{"instance_info"}, was.InstanceInfo, n.InstanceInfo, true); err != nil {
		return err
	}
	if slices.Contains(roots, "parent_node") {
		if err := s.parent(ctx, c, n); err != nil {
			return err
		}
	}
	if slices.Contains(roots, "network_data") { // stored data does not block other changes
		// an empty document is none; it is taken away by "remove" only
		switch sent, set := patch.Value("network_data"); {
		case set && sent == nil:
			return rest.BadRequest("Invalid network_data: None is not of type 'object'")
		case set && len(n.NetworkData) == 0:
			return rest.BadRequest("Invalid network_data: 'links' is a required property")
		}
		if err := checkNetworkData(n.NetworkData); err != nil {
			return err
		}
	}
	return checkChange(c, &was, n, roots)
}

// frozen is the answer to a change of an attribute that the state of the node does not allow; moved: maintenance would.
func frozen(was *node.Node, root string, moved bool) *rest.Error {
	return rest.Conflict(
		"Node %s can not have %s updated unless it is in one of allowed (enroll, inspecting, inspect wait, manageable, available) states%s. Current state is '%s'.",
		was.UUID, root, map[bool]string{true: " or in maintenance mode"}[moved], was.Provision)
}

// patchedSchema is the schema of the attributes after a patch: that of a new node, with those that only PATCH can set.
var patchedSchema = func() *rest.Schema {
	s := *schema
	s.Props = map[string]*rest.Schema{"protected": document.OptionalFlag, "protected_reason": document.OptionalText}
	maps.Copy(s.Props, schema.Props)
	return &s
}()

func unmask(d map[string]any, name string, stored map[string]any) {
	if sent, ok := d[name].(map[string]any); ok {
		redact.Restore(sent, stored)
	}
}

// checkChange refuses what depends on how the node was before.
func checkChange(c *call.Call, was, n *node.Node, roots []string) *rest.Error {
	for _, root := range roots {
		moved := root == "driver" && was.Driver != n.Driver
		class := root == "resource_class" && was.ResourceClass != "" && was.ResourceClass != n.ResourceClass
		if moved && !n.Maintenance && !slices.Contains(interfacesIn, n.Provision) ||
			class && !slices.Contains(interfacesIn, n.Provision) {
			return frozen(was, root, moved)
		}
	}
	switch {
	case was.ChassisUUID != "" && n.ChassisUUID == "" && c.Version < rest.VersionNoChassis:
		return rest.NotAcceptable()
	case was.Name != n.Name && n.Name != "" && slices.Contains(document.ReservedNames, n.Name):
		return rest.BadRequest("The word %q is reserved and can not be used as a node name. Reserved words are: %s.",
			n.Name, strings.Join(document.ReservedNames, ", "))
	case was.Name != n.Name && n.Name != "" && !document.ValidName(c.Version, n.Name):
		return rest.BadRequest("Node %s: Cannot change name to invalid name '%s'", n.UUID, n.Name)
	case was.InstanceUUID != "" && n.InstanceUUID != "" && was.InstanceUUID != n.InstanceUUID:
		return rest.Conflict("Node %s is associated with instance %s.", n.UUID, was.InstanceUUID)
	case was.AllocationUUID != "" && n.InstanceUUID == "" && !n.Maintenance &&
		!slices.Contains(interfacesIn, n.Provision):
		return rest.Conflict(
			"Node %s with an allocation can not have instance_uuid removed unless it is in one of allowed (enroll, manageable, inspecting, inspect wait, available) states or in maintenance mode. Current state is '%s'.", n.UUID, n.Provision)
	case n.Protected && !was.Protected && n.Provision != node.Active && n.Provision != node.Rescue:
		return rest.Conflict(
			"Node %s can only be made protected in provision states 'active' or 'rescue', the current state is '%s'",
			n.UUID, n.Provision)
	case !n.Protected && n.ProtectedReason != "" && n.ProtectedReason != was.ProtectedReason:
		return rest.BadRequest("The protected_reason field can only be set when protected is True")
	case n.Retired && !was.Retired && n.Provision == node.Available:
		return rest.Conflict(
			"Node %s can not have 'retired' set in provision state 'available', the current state is '%s'", n.UUID,
			n.Provision)
	case !n.Retired && n.RetiredReason != "" && n.RetiredReason != was.RetiredReason:
		return rest.BadRequest("The retired_reason field can only be set when retired is True")
	case was.Driver != n.Driver && n.ConsoleEnabled:
		return rest.Conflict(
			"Node %s can not update the driver while the console is enabled. Please stop the console first.", n.UUID)
	}
	if !n.Maintenance {
		n.MaintenanceReason = ""
		n.Blank = slices.DeleteFunc(n.Blank, isReason)
		if was.Maintenance {
			n.Fault = ""
		}
	}
	return nil
}
