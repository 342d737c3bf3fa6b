package ask

import (
	"fmt"
	"strings"
)

// field is a member of what is stored, and values that it takes.
type field struct {
	name  string
	valid []any
}

func list(v ...any) []any { return v }

var (
	extra = field{"extra",
		list(object{}, object{"a": 1}, object{"big": 9007199254740993, "deep": object{"x": []any{1, nil}}})}

	nodeFields = []field{
		{"name", nil}, {"resource_class", list("class", "CLASS.b")}, {"description", list("a machine", "ä")},
		{"owner", nil}, {"lessee", list("guest")},
		{"properties", list(object{"cpus": 2}, object{"capabilities": "boot_mode:uefi", "memory_mb": "1024"})}, extra,
		{"driver_info", list(object{"address": "192.0.2.1", "password": "x"})},
		{"instance_info", list(object{"display_name": "web"}, object{})}, {"automated_clean", list(true, false)},
		{"conductor_group", list("")}, {"shard", list("s1")}, {"network_data", list(object{})}, {"protected", nil},
		{"protected_reason", nil}, {"retired", nil}, {"instance_uuid", list("0a0a0a0a-1111-4222-8333-444444444444")},
		{"chassis_uuid", list(UUIDPrefix + "ffff-0000-4000-8000-000000000000")}, {"driver", list("fake-hardware")},
		{"bios_interface", list("fake", "no-bios")}, {"boot_interface", list("fake")},
		{"deploy_interface", list("fake")}, {"rescue_interface", list("fake", "no-rescue")},
		{"network_interface", list("noop")}, {"storage_interface", list("noop", "fake")},
		{"raid_interface", list("fake", "no-raid")}, {"vendor_interface", list("fake", "no-vendor")},
		{"console_interface", list("fake", "no-console")},
	}
	portFields = []field{{"address", list("52:54:00:aa:bb:cc", "52-54-00-AA-BB-CD", "52:54:00:AA:BB:CE")}, extra,
		{"pxe_enabled", list(true, false)}, {"physical_network", list("net1")}, {"name", list("eth0", "eth_1")},
		{"local_link_connection",
			list(object{}, object{"switch_id": "0a:1b:2c:3d:4e:5f", "port_id": "1", "switch_info": "s"})},
		{"is_smartnic", list(false)}, {"node_uuid", nil}, {"portgroup_uuid", nil}}
	groupFields = []field{{"address", list("52:54:00:aa:bb:dd")}, extra, {"name", list("bond0")},
		{"standalone_ports_supported", list(true, false)}, {"mode", list("active-backup", "802.3ad")},
		{"properties", list(object{"miimon": 100})}, {"node_uuid", nil}}
	chassisFields = []field{{"description", list("a row")}, extra}
	allocFields   = []field{{"name", nil}, {"resource_class", list("class")},
		{"traits", list([]any{}, []any{"CUSTOM_A"})}, {"candidate_nodes", list([]any{})}, extra,
		{"owner", list("them")}}
	templateFields = []field{{"name", list("CUSTOM_X")}, extra,
		{"steps", list([]any{
			object{"interface": "bios", "step": "apply_configuration", "args": object{"settings": []any{}},
				"priority": 150}})}}
	connectorFields = []field{{"type", list("iqn", "ip", "wwpn")}, {"connector_id", list("iqn.2026-01.org:x")}, extra,
		{"node_uuid", nil}}
	targetFields = []field{{"volume_type", list("iscsi")}, {"boot_index", list(0, 1)}, {"volume_id", list("vol-1")},
		{"properties", list(object{"target_iqn": "i"})}, extra, {"node_uuid", nil}}

	fields = map[string][]field{"/v1/nodes": nodeFields, "/v1/ports": portFields, "/v1/portgroups": groupFields,
		"/v1/chassis": chassisFields, "/v1/allocations": allocFields, "/v1/deploy_templates": templateFields,
		"/v1/volume/connectors": connectorFields, "/v1/volume/targets": targetFields}
)

// wrong is a value that few fields take.
func (m *maker) wrong() any {
	return one[any](m, nil, 17, -1, 1.5, true, "", "x", strings.Repeat("x", 256), strings.Repeat("y", 5000),
		object{"a": 1}, []any{"a"}, []any{}, "a b", "ü", "true", "NULL")
}

func (m *maker) value(f field) any {
	switch {
	case m.chance(30):
		return m.wrong()
	case f.name == "node_uuid":
		return m.node
	case f.name == "portgroup_uuid":
		return m.ids["portgroup"]
	case f.name == "name" && f.valid == nil:
		m.count++
		return fmt.Sprintf("other-%d-%d-%d", m.seed&0xffff, m.scene, m.count)
	case f.valid == nil:
		return one[any](m, true, false, "x")
	}
	return one(m, f.valid...)
}

// body makes a body for a route.
func (m *maker) body(r Route) string {
	if m.chance(3) {
		return one(m, "", "{", "null", "[]", "17", `"x"`, "{}", "{}}", `{"a": NaN}`)
	}
	if r.Method == "PATCH" {
		return m.patch(r)
	}
	if fs := fields[r.Path]; fs != nil && r.Method == "POST" {
		return m.create(r.Path, fs)
	}
	b := m.action(r)
	if o, ok := b.(object); ok && m.chance(15) {
		if m.chance(40) || len(o) == 0 {
			o["bogus"] = 1
		} else {
			for _, k := range []string{"target", "reason", "boot_device", "enabled", "traits", "id", "state",
				"persistent"} {
				if _, has := o[k]; has {
					o[k] = m.wrong()
					break
				}
			}
		}
	}
	return text(b)
}

func (m *maker) create(path string, fs []field) string {
	b := object{"uuid": m.uuid()}
	switch path {
	case "/v1/nodes":
		b["driver"] = one(m, "fake-hardware", "fake-hardware", "fake-hardware", "ipmi", "nobody")
	case "/v1/ports":
		b["node_uuid"], b["address"] = m.node, m.address()
	case "/v1/portgroups":
		b["node_uuid"] = m.node
	case "/v1/allocations":
		b["resource_class"] = one(m, "class", "none")
	case "/v1/deploy_templates":
		b = m.template(b["uuid"].(string))
	case "/v1/volume/connectors":
		b["node_uuid"], b["type"], b["connector_id"] = m.node, "ip", fmt.Sprint("c", m.count, "-", m.scene)
	case "/v1/volume/targets":
		b["node_uuid"], b["volume_type"], b["boot_index"], b["volume_id"] = m.node, "iscsi", m.count, "vol"
	}
	for range m.IntN(3) {
		f := one(m, fs...)
		b[f.name] = m.value(f)
	}
	switch m.IntN(20) {
	case 0:
		b["bogus"] = 1
	case 1:
		b["uuid"] = one[any](m, m.node, "x", 17, nil)
	case 2:
		delete(b, one(m, "driver", "node_uuid", "address", "name", "type", "volume_type"))
	}
	return text(b)
}

func (m *maker) patch(r Route) string {
	collection := r.Path[:strings.LastIndex(r.Path, "/")]
	fs := fields[collection]
	if fs == nil {
		fs = chassisFields
	}
	var ops []any
	for range 1 + m.IntN(2) {
		f := one(m, fs...)
		op := object{"op": one(m, "add", "replace", "replace", "add", "remove", "test"), "path": "/" + f.name}
		if strings.HasPrefix(f.name, "extra") || strings.HasSuffix(f.name, "_info") || f.name == "properties" {
			if m.chance(60) {
				op["path"] = "/" + f.name + one(m, "/a", "/b", "/a/b", "/", "/deep/x/0", "/deep/x/-")
				f = field{"x", list(1, "x", object{}, nil)}
			}
		}
		if op["op"] != "remove" || m.chance(10) {
			op["value"] = m.value(f)
		}
		switch m.IntN(25) {
		case 0:
			op["path"] = one[any](m, "/uuid", "/created_at", "/links", "/bogus", "name", "", "/", 17,
				"/provision_state", "/NAME")
		case 1:
			op["op"] = one[any](m, "move", "copy", "bogus", "ADD", 1, nil)
		case 2:
			delete(op, one(m, "op", "path", "value"))
		case 3:
			op["bogus"] = 1
		}
		ops = append(ops, op)
	}
	return text(ops)
}

// action makes the body of what is no collection.
func (m *maker) action(r Route) any {
	last := r.Path[strings.LastIndex(r.Path, "/")+1:]
	switch last {
	case "power":
		b := object{"target": one(m, "power on", "power off", "rebooting", "soft power off", "soft rebooting", "bogus")}
		if m.chance(20) {
			b["timeout"] = one[any](m, 10, 0, -1, "x", nil)
		}
		return b
	case "provision":
		b := object{"target": one(m, "manage", "provide", "active", "deleted", "rebuild", "inspect", "abort", "adopt",
			"rescue", "unrescue", "clean", "hold", "bogus", "unhold")}
		switch {
		case b["target"] == "clean" && m.chance(80):
			b["clean_steps"] = one[any](m, []any{object{"interface": "deploy", "step": "erase_devices"}}, []any{},
				[]any{object{"interface": "bogus", "step": "x"}}, "x")
		case b["target"] == "rescue" && m.chance(80):
			b["rescue_password"] = one[any](m, "secret", "", 17)
		case m.chance(8):
			b[one(m, "configdrive", "clean_steps", "rescue_password", "deploy_steps")] = one[any](m, "eA==", object{},
				[]any{}, nil)
		}
		return b
	case "maintenance":
		return one[any](m, object{"reason": "broken"}, object{}, nil, object{"reason": nil})
	case "boot_device":
		return object{"boot_device": one[any](m, "pxe", "disk", "bogus"), "persistent": one[any](m, true, false)}
	case "console":
		return object{"enabled": one[any](m, true, false, "yes")}
	case "boot_mode":
		return object{"target": one(m, "uefi", "bios", "bogus")}
	case "secure_boot":
		return object{"target": one[any](m, true, false, "on")}
	case "raid":
		return one[any](m, object{"logical_disks": []any{object{"size_gb": 100, "raid_level": "1"}}}, object{},
			object{"logical_disks": []any{}}, object{"logical_disks": []any{object{"size_gb": "x"}}})
	case "traits":
		return object{"traits": one[any](m, []any{"CUSTOM_A"}, []any{}, []any{"CUSTOM_A", "HW_CPU_X86_VMX", "CUSTOM_A"},
			[]any{"x"}, []any{17})}
	case "vifs":
		return object{"id": one(m, "5eed0000-0000-4000-8000-00000000000f", "vif-1")}
	case "{indicator}":
		return object{"state": one(m, "on", "off", "blinking")}
	case "allocation", "{trait}", "inject_nmi":
		return object{}
	}
	return one[any](m, object{}, object{"bar": "baz"}, object{"method": "first_method"})
}
