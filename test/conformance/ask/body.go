package ask

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// field is a stored member, with its possible values.
type field struct {
	name  string
	valid []any // nil: see right
}

func list(v ...any) []any { return v }

// instance is a UUID that no seed made.
const instance = "0a0a0a0a-1111-4222-8333-444444444444"

var (
	extra = field{"extra",
		list(object{}, object{"a": 1}, object{"big": 9007199254740993, "deep": object{"x": []any{1, nil}}})}

	nodeFields = []field{
		{"name", nil}, {"resource_class", list("class", "CLASS.b")}, {"description", list("a machine", "ä")},
		{"owner", list("them")}, {"lessee", list("guest")},
		{"properties", list(object{"cpus": 2}, object{"capabilities": "boot_mode:uefi", "memory_mb": "1024"})}, extra,
		{"driver_info", list(object{"address": "192.0.2.1", "password": "x"})},
		{"instance_info", list(object{"display_name": "web"}, object{})}, {"automated_clean", list(true, false)},
		{"conductor_group", list("")}, {"shard", list("s1")}, {"network_data", list(object{})},
		{"protected", nil}, {"protected_reason", nil}, {"retired", nil}, {"retired_reason", list("old")},
		{"maintenance", nil}, {"instance_uuid", list(instance)}, {"chassis_uuid", nil},
		{"driver", list("fake-hardware")}, {"bios_interface", list("fake", "no-bios")},
		{"boot_interface", list("fake")}, {"console_interface", list("fake", "no-console")},
		{"deploy_interface", list("fake")}, {"inspect_interface", list("fake", "no-inspect")},
		{"management_interface", list("fake")}, {"network_interface", list("noop")}, {"power_interface", list("fake")},
		{"raid_interface", list("fake", "no-raid")}, {"rescue_interface", list("fake", "no-rescue")},
		{"storage_interface", list("noop", "fake")}, {"vendor_interface", list("fake", "no-vendor")},
	}
	portFields = []field{{"address", nil}, extra, {"pxe_enabled", list(true, false)},
		{"physical_network", list("net1")},
		{"local_link_connection",
			list(object{}, object{"switch_id": "0a:1b:2c:3d:4e:5f", "port_id": "1", "switch_info": "s"})},
		{"is_smartnic", list(false, true)}, {"node_uuid", nil}, {"portgroup_uuid", nil}}
	groupFields = []field{{"address", nil}, extra, {"name", nil}, {"standalone_ports_supported", list(true, false)},
		{"mode", list("active-backup", "802.3ad")}, {"properties", list(object{"miimon": 100})}, {"node_uuid", nil}}
	chassisFields = []field{{"description", list("a row")}, extra}
	allocFields   = []field{{"name", nil}, {"resource_class", list("none")},
		{"traits", list([]any{}, []any{"CUSTOM_A"})}, {"candidate_nodes", list([]any{})}, extra,
		{"owner", list("them")}, {"node", nil}}
	templateFields = []field{{"name", nil}, extra,
		{"steps", list([]any{
			object{"interface": "bios", "step": "apply_configuration", "args": object{"settings": []any{}},
				"priority": 150}})}}
	connectorFields = []field{{"type", list("iqn", "ip", "wwpn")}, {"connector_id", nil}, extra, {"node_uuid", nil}}
	targetFields    = []field{{"volume_type", list("iscsi")}, {"boot_index", nil}, {"volume_id", list("vol-1")},
		{"properties", list(object{"target_iqn": "i"})}, extra, {"node_uuid", nil}}

	fields = map[string][]field{"/v1/nodes": nodeFields, "/v1/ports": portFields, "/v1/portgroups": groupFields,
		"/v1/chassis": chassisFields, "/v1/allocations": allocFields, "/v1/deploy_templates": templateFields,
		"/v1/volume/connectors": connectorFields, "/v1/volume/targets": targetFields}
)

// value is a right value of a field.
func (m *maker) value(collection string, f field) any {
	switch m.count++; {
	case f.valid != nil:
		return one(m, f.valid...)
	case f.name == "node_uuid" || f.name == "node":
		return m.node
	case f.name == "portgroup_uuid":
		return m.ids["portgroup"]
	case f.name == "chassis_uuid":
		return m.ids["chassis"]
	case f.name == "address":
		return one(m, m.address(), strings.ToUpper(m.address()))
	case f.name == "boot_index":
		return m.count
	case f.name == "connector_id":
		return fmt.Sprint("c", m.count, "-", m.scene)
	case f.name == "name" && collection == "/v1/deploy_templates":
		return fmt.Sprintf("CUSTOM_N%d_%d_%d", m.seed&0xffff, m.scene, m.count)
	case f.name == "name":
		return fmt.Sprintf("other-%d-%d-%d", m.seed&0xffff, m.scene, m.count)
	}
	return one[any](m, true, false, "x")
}

// wrong is a value that few fields take.
func (m *maker) wrong() any {
	return one[any](m, 17, -1, 1.5, true, "", "x", object{"a": 1}, []any{"a"}, []any{}, "a b", "ü", "true", "NULL",
		object{}, absent)
}

// long is too long for most fields.
func (m *maker) long() string { return strings.Repeat("x", one(m, 81, 256, 300, 5000)) }

// body makes a right body for a route.
func (m *maker) body(r Route) any {
	if r.Method == "PATCH" {
		return []any{object{"op": "add", "path": "/extra/a", "value": one[any](m, 1, "x", object{"b": nil})}}
	}
	if fs := fields[r.Path]; fs != nil && r.Method == "POST" {
		return m.create(r.Path, fs)
	}
	return m.action(r)
}

// create makes a body that makes something.
func (m *maker) create(path string, fs []field) object {
	b := object{"uuid": m.uuid()}
	switch path {
	case "/v1/nodes":
		b["driver"] = one(m, "fake-hardware", "fake-hardware", "fake-hardware", "ipmi", "manual-management")
	case "/v1/ports":
		b["node_uuid"], b["address"] = m.node, m.address()
	case "/v1/portgroups":
		b["node_uuid"] = m.node
	case "/v1/allocations":
		b["resource_class"] = one(m, "class", "none")
	case "/v1/deploy_templates":
		b["name"], b["steps"] = m.value(path, fs[0]), template("")["steps"]
	case "/v1/volume/connectors":
		b["node_uuid"], b["type"], b["connector_id"] = m.node, "ip", fmt.Sprint("c", m.count, "-", m.scene)
	case "/v1/volume/targets":
		b["node_uuid"], b["volume_type"], b["boot_index"], b["volume_id"] = m.node, "iscsi", 1+m.count, "vol"
	}
	return b
}

// action returns a valid body for a route that is not a collection.
func (m *maker) action(r Route) any {
	switch r.Path[strings.LastIndex(r.Path, "/")+1:] {
	case "power":
		b := object{"target": one(m, "power on", "power off", "rebooting", "soft power off", "soft rebooting")}
		if m.chance(20) {
			b["timeout"] = one[any](m, 10, "5", 1.5)
		}
		return b
	case "provision":
		return m.verb()
	case "maintenance":
		return one[any](m, object{"reason": "broken"}, object{}, object{"reason": nil})
	case "boot_device":
		return object{"boot_device": "pxe", "persistent": one[any](m, true, false)}
	case "console":
		return object{"enabled": one[any](m, true, false, "yes")}
	case "boot_mode":
		return object{"target": one(m, "uefi", "bios")}
	case "secure_boot":
		return object{"target": one[any](m, true, false, "on")}
	case "raid":
		return one[any](m, object{"logical_disks": []any{object{"size_gb": 100, "raid_level": "1"}}}, object{},
			object{"logical_disks": []any{}}, object{"logical_disks": []any{object{"size_gb": "x"}}})
	case "traits":
		return object{"traits": one[any](m, []any{"CUSTOM_A"}, []any{}, []any{"CUSTOM_A", "HW_CPU_X86_VMX",
			"CUSTOM_A"})}
	case "vifs":
		return object{"id": one(m, m.ids["vif"], "vif-1")}
	case "{indicator}":
		return object{"state": one(m, "on", "off", "blinking")}
	case "events":
		return object{"events": []any{object{"event": "network.bind_port", "port_id": instance,
			"mac_address": "de:ad:ca:fe:ba:be", "status": "ACTIVE", "device_id": instance}}}
	case "{node}": // a heartbeat
		return object{"callback_url": "https://192.0.2.1:9999", "agent_token": "x"}
	case "allocation", "{trait}", "inject_nmi":
		return object{}
	}
	return one[any](m, object{}, object{"bar": "baz"})
}

// verb is a change of provision state with what it needs.
func (m *maker) verb() object {
	b := object{"target": one(m, "manage", "provide", "active", "deleted", "rebuild", "inspect", "abort", "adopt",
		"rescue",
		"unrescue", "clean", "hold", "unhold", "undeploy")}
	switch {
	case b["target"] == "clean":
		b["clean_steps"] = one[any](m, []any{object{"interface": "deploy", "step": "erase_devices"}}, []any{},
			[]any{object{"interface": "bogus", "step": "x"}}, "x")
	case b["target"] == "rescue":
		b["rescue_password"] = one[any](m, "secret", "", 17)
	case m.chance(20):
		b[one(m, "configdrive", "clean_steps", "rescue_password", "deploy_steps", "disable_ramdisk")] = one[any](m,
			"eA==",
			object{}, []any{}, nil, true)
	}
	return b
}

// spoil makes the body of a request what the value says, in the member called name or in any.
func (m *maker) spoil(d *draft, name, value string) {
	o, ok := d.body.(object)
	if !ok {
		o = object{}
	}
	d.body = o
	fs := fields[d.route.Path]
	switch {
	case name != "": // a field
		i := slices.IndexFunc(fs, func(f field) bool { return f.name == name })
		o[name] = m.value(d.route.Path, fs[i])
	case len(fs) > 0:
		f := one(m, fs...)
		o[f.name], name = m.value(d.route.Path, f), f.name
	case len(o) > 0:
		name = one(m, keys(o)...)
	default:
		name = "reason"
		o[name] = "x"
	}
	switch value {
	case "wrong type":
		o[name] = m.wrong()
	case "null":
		o[name] = nil
	case "too long":
		o[name] = m.long()
	case "unknown":
		o[one(m, "bogus", "id", "created_at", "node_id", "links")] = one[any](m, 1, nil, "x")
	case "duplicate":
		raw := text(o)
		raw = raw[:len(raw)-1] + "," + text(name) + ":" + text(one(m, o[name], m.wrong())) + "}"
		d.raw = &raw
	case "wrong case":
		o[strings.ToUpper(name[:1])+name[1:]] = o[name]
		delete(o, name)
	case "encoded":
		raw := escaped(o)
		d.raw = &raw
	case "missing":
		delete(o, one(m, keys(o)...))
	case "malformed":
		d.raw = m.malformed()
	case "none":
		raw := ""
		d.raw = &raw
	}
}

func keys(o object) []string {
	var names []string
	for k := range o {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

func (m *maker) malformed() *string {
	raw := one(m, "{", "null", "[]", "17", `"x"`, "{}}", `{"a": NaN}`, "\xef\xbb\xbf{}", "{\"a\": 1,}", "[[[[[[",
		"'x'", "\x00",
		"true", `{"a": "\ud800"}`)
	return &raw
}

// escaped is JSON in which letters are written by their numbers.
func escaped(v any) string {
	var b strings.Builder
	inside := false
	for i, r := range text(v) {
		switch {
		case r == '"':
			inside = !inside
			b.WriteRune(r)
		case inside && unicode.IsLetter(r) && i%2 == 0 && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// patch makes the body of a PATCH what the value says, of the field called name or of any.
func (m *maker) patch(d *draft, name, value string) {
	collection := d.route.collection()
	fs := fields[collection]
	if fs == nil {
		fs = chassisFields
	}
	f := one(m, fs...)
	if name != "" {
		f = fs[slices.IndexFunc(fs, func(f field) bool { return f.name == name })]
	}
	verb, what, _ := strings.Cut(value, " ")
	op := object{"op": verb, "path": "/" + f.name, "value": m.value(collection, f)}
	ops := []any{op}
	switch value {
	case "remove unknown":
		op["path"] = one(m, "/bogus", "/extra/bogus", "/uuid", "/created_at", "/properties/none", "/provision_state")
	case "duplicate":
		op["op"] = "add"
		ops = append(ops, object{"op": one(m, "add", "replace", "remove", "test"), "path": "/" + f.name,
			"value": one(m, op["value"], m.wrong())})
	case "deep":
		root := one(m, "extra", "extra", "properties", "driver_info", "instance_info", "local_link_connection")
		op["op"] = one(m, "add", "replace", "remove")
		op["path"] = "/" + root + one(m, "/a", "/b", "/a/b", "/", "/deep/x/0", "/deep/x/-", "/~0", "/~1x", "/a~b")
		op["value"] = one[any](m, 1, "x", object{}, nil, 9007199254740993)
	case "malformed":
		switch m.IntN(5) {
		case 0:
			d.raw = m.malformed()
		case 1:
			op["op"] = one[any](m, "move", "copy", "bogus", "ADD", 1, nil)
		case 2:
			op["path"] = one[any](m, "name", "", "/", 17, "/NAME", nil, "/extra/")
			op["op"] = "add"
		case 3:
			delete(op, one(m, "op", "path", "value"))
		case 4:
			op["op"], op["bogus"] = "add", 1
		}
	}
	switch what {
	case "wrong type":
		op["value"] = m.wrong()
	case "null":
		op["value"] = nil
	case "too long":
		op["value"] = m.long()
	case "unknown":
		if verb == "add" {
			op["path"] = one(m, "/bogus", "/links", "/uuid", "/created_at", "/provision_state", "/power_state")
		}
	case "wrong case":
		op["path"] = "/" + strings.ToUpper(f.name[:1]) + f.name[1:]
	case "encoded":
		raw := escaped(ops)
		d.raw = &raw
	}
	if op["op"] == "remove" && m.chance(80) {
		delete(op, "value")
	}
	d.body = ops
}
