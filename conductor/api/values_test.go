package api

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/rest"
)

const jsonType = "application/json"

// TestNumbersStayAsSent walks the routes that take a PATCH: whatever holds free-form values keeps numbers as they were
// written.
func TestNumbersStayAsSent(t *testing.T) {
	f, fill := routesFixture(t)
	numbers := []string{"1732350000123456789", "12345678901234567890", "9007199254740993", "1.0", "-0.5", "100"}
	doc := `{"a": 1732350000123456789, "b": 12345678901234567890, "c": {"d": [9007199254740993, 1.0]}, "e": -0.5, "f": 100}`
	check := func(method, path, body string) bool {
		t.Helper()
		code, text := f.send(method, path, jsonType, body)
		if code == 400 && strings.Contains(text, "Cannot patch /") {
			return false
		}
		for _, n := range numbers {
			if code != 200 || !strings.Contains(text, n) {
				t.Errorf("%s %s %s = %d without %s: %s", method, path, body, code, n, text)
			}
		}
		return true
	}
	kept := 0
	for _, rt := range f.srv.table() {
		if rt.Method != "PATCH" {
			continue
		}
		path := fill(rt.Path)
		for _, field := range []string{"extra", "properties", "driver_info", "instance_info"} {
			if check("PATCH", path, `[{"op": "add", "path": "/`+field+`", "value": `+doc+`}]`) {
				check("GET", path, "")
				kept++
			}
			if field == "extra" {
				// what is there already stays, too
				check("PATCH", path, `[{"op": "add", "path": "/extra/more", "value": 5}]`)
			}
		}
	}
	if kept < 11 {
		t.Errorf("%d fields of free form", kept)
	}
	if code, _ := f.send("PATCH", "/v1/nodes/owned", jsonType,
		`[{"op": "add", "path": "/extra/x", "value": 1e999}]`); code != 400 {
		t.Errorf("a number that no client can read = %d", code)
	}
}

// TestFirstChangeIsTimed: however soon after it was made a thing is changed, the time of the change is shown.
func TestFirstChangeIsTimed(t *testing.T) {
	f, _ := routesFixture(t)
	for _, tt := range []struct{ path, body string }{
		{"/v1/chassis", `{}`},
		{"/v1/nodes", `{"driver": "fake-hardware"}`},
		{"/v1/portgroups", `{"node_uuid": "` + ownedNode + `"}`},
		{"/v1/ports", `{"node_uuid": "` + ownedNode + `", "address": "02:00:00:00:77:01"}`},
		{"/v1/volume/connectors", `{"node_uuid": "` + ownedNode +
			`", "type": "iqn", "connector_id": "iqn.2026-11.org.example:a"}`},
	} {
		one := tt.path + "/" + f.make(tt.path, tt.body)
		if at := f.want(200, "GET", one, "")["updated_at"]; at != nil {
			t.Errorf("a new %s has updated_at %v", tt.path, at)
		}
		if at := f.want(200, "PATCH", one, `[{"op": "add", "path": "/extra/a", "value": 1}]`)["updated_at"]; at == nil {
			t.Errorf("a changed %s has no updated_at", tt.path)
		}
	}
	port := "/v1/ports/" + f.make("/v1/ports", `{"node_uuid": "`+ownedNode+`", "address": "02:00:00:00:77:02"}`)
	if at := f.want(200, "PATCH", port, `[]`)["updated_at"]; at != nil {
		t.Errorf("a port that was not changed has updated_at %v", at)
	}
}

// TestValues has the values of attributes that are taken or refused. The steps build on one another.
func TestValues(t *testing.T) {
	f, _ := routesFixture(t)
	patch := func(op, path, value string) string {
		if op == "remove" {
			return `[{"op": "remove", "path": "` + path + `"}]`
		}
		return `[{"op": "` + op + `", "path": "` + path + `", "value": ` + value + `}]`
	}
	n := "/v1/nodes/" + f.make("/v1/nodes", `{"driver": "fake-hardware", "name": "values"}`)
	c := "/v1/chassis/" + f.make("/v1/chassis", `{"description": ""}`)
	p := "/v1/ports/" + f.make("/v1/ports", `{"node_uuid": "`+ownedNode+`", "address": "02:00:00:00:78:01"}`)
	g := "/v1/portgroups/" + f.make("/v1/portgroups", `{"node_uuid": "`+ownedNode+`", "name": ""}`)
	a := "/v1/allocations/" + f.make("/v1/allocations", `{"resource_class": "none", "name": "", "owner": ""}`)
	post := func(more string) string { return `{"driver": "fake-hardware"` + more + `}` }
	type row struct {
		method, path, body string
		status             int
		says               string
	}
	rows := []row{
		// Sizes are integers, or texts of such.
		{"PATCH", n, patch("add", "/properties/cpus", `"many"`), 400,
			"should be non-negative integers, but provided values are: cpus=many"},
		{"PATCH", n, patch("add", "/properties/memory_mb", `-1`), 400, "memory_mb=-1"},
		{"PATCH", n, patch("add", "/properties/local_gb", `"1.5"`), 400, "local_gb=1.5"},
		{"PATCH", n, patch("add", "/properties/cpus", `""`), 400, "cpus="},
		{"PATCH", n, patch("add", "/properties", `{"cpus": [1], "local_gb": {}}`), 400, "local_gb={}, cpus=[...]"},
		{"POST", "/v1/nodes", post(`, "properties": {"cpus": "x"}`), 400, "cpus=x"},
		{"PATCH", n, patch("add", "/properties", `{"cpus": 1.5, "memory_mb": true, "local_gb": " 8 "}`), 200, `" 8 "`},
		{"PATCH", n, patch("add", "/properties/cpus", `null`), 200, ""},
		// A node's name.
		{"PATCH", n, patch("replace", "/name", `null`), 400, "Cannot change name to invalid name 'None'"},
		{"PATCH", n, patch("replace", "/name", `""`), 400, "Cannot change name to invalid name ''"},
		{"POST", "/v1/nodes", post(`, "name": ""`), 400, "Cannot create node with invalid name ''"},
		{"PATCH", n, patch("remove", "/name", ``), 200, `"name": null`},
		// Empty strings stay.
		{"PATCH", n, patch("replace", "/owner", `""`), 200, `"owner": ""`},
		{"PATCH", n, patch("replace", "/resource_class", `""`), 200, `"resource_class": ""`},
		{"PATCH", n, patch("replace", "/lessee", `""`), 200, `"lessee": ""`},
		{"PATCH", n, patch("replace", "/shard", `""`), 200, `"owner": ""`},
		{"GET", n, "", 200, `"shard": ""`},
		{"PATCH", n, patch("remove", "/shard", ``), 200, `"shard": null`},
		{"POST", "/v1/nodes", post(`, "description": "", "owner": ""`), 201, `"description": ""`},
		{"POST", "/v1/nodes", post(`, "owner": ""`), 201, `"owner": null`},
		{"GET", c, "", 200, `"description": ""`},
		{"PATCH", c, patch("remove", "/description", ``), 200, `"description": null`},
		{"GET", g, "", 200, `"name": ""`},
		{"PUT", n + "/maintenance", `{"reason": ""}`, 202, ""},
		{"PATCH", n, patch("add", "/extra/a", `1`), 200, `"maintenance_reason": ""`},
		{"PATCH", n, patch("add", "/maintenance", `false`), 200, `"maintenance_reason": null`},
		{"PATCH", n, patch("add", "/maintenance", `true`), 200, `"maintenance_reason": null`},
		{"PUT", n + "/maintenance", `{"reason": ""}`, 202, ""},
		{"PUT", n + "/maintenance", `{"reason": null}`, 202, ""},
		{"GET", n, "", 200, `"maintenance_reason": null`},
		{"DELETE", n + "/maintenance", ``, 202, ""},
		// So does no mode of a port group; a new one gets the default.
		{"GET", g, "", 200, `"mode": "active-backup"`},
		{"PATCH", g, patch("replace", "/mode", `null`), 200, `"mode": null`},
		{"PATCH", g, patch("replace", "/mode", `""`), 200, `"mode": ""`},
		{"GET", a, "", 200, `"name": ""`},
		{"PATCH", a, patch("replace", "/name", `null`), 200, `"name": null`},
		{"GET", a, "", 200, `"owner": ""`},
		// An empty string is no UUID and no interface.
		{"PATCH", n, patch("replace", "/instance_uuid", `""`), 400, "Expected UUID for instance_uuid: "},
		{"PATCH", n, patch("replace", "/chassis_uuid", `""`), 400, "Expected UUID for chassis_uuid: "},
		{"PATCH", p, patch("add", "/portgroup_uuid", `""`), 400, "Expected UUID for portgroup_uuid: "},
		{"POST", "/v1/nodes", post(`, "chassis_uuid": ""`), 400, "Expected UUID for chassis_uuid: "},
		{"POST", "/v1/ports", `{"node_uuid": "` + ownedNode + `", "address": "02:00:00:00:78:09", "uuid": ""}`, 400,
			"Expected UUID for uuid: "},
		// The document of a network is whole.
		{"PATCH", n, patch("replace", "/network_data", `null`), 400,
			"Invalid network_data: None is not of type 'object'"},
		{"PATCH", n, patch("add", "/network_data", `{}`), 400, "Invalid network_data: 'links' is a required property"},
		{"PATCH", n, patch("remove", "/network_data", ``), 200, `"network_data": {}`},
		{"POST", "/v1/nodes", post(`, "network_data": {}`), 201, ""},
		// UUIDs are kept in one form.
		{"POST", "/v1/nodes", post(`, "uuid": "bbbbbbbb0000400080000000000000bb"`), 201,
			`"uuid": "bbbbbbbb-0000-4000-8000-0000000000bb"`},
		{"GET", "/v1/nodes/BBBBBBBB-0000-4000-8000-0000000000BB", "", 200, ""},
		{"POST", "/v1/chassis", `{"uuid": "BBBBBBBB0000400080000000000000BB"}`, 201,
			`"uuid": "bbbbbbbb-0000-4000-8000-0000000000bb"`},
		{"POST", "/v1/ports", `{"node_uuid": "` + ownedNode +
			`", "address": "02:00:00:00:78:02", "uuid": "bbbbbbbb0000400080000000000000bb"}`, 201, ""},
		{"POST", "/v1/allocations", `{"resource_class": "x", "uuid": "bbbbbbbb0000400080000000000000bb"}`, 201, ""},
		{"POST", "/v1/chassis", `{"uuid": "bbbbbbbb-00004000-80000000000000bb"}`, 400, "Expected UUID for uuid"},
		{"PATCH", n, patch("add", "/instance_uuid", `"AAAAAAAA00004000800000000000000A"`), 200,
			`"instance_uuid": "aaaaaaaa-0000-4000-8000-00000000000a"`},
		{"PATCH", n, patch("remove", "/instance_uuid", ``), 200, ""},
		// Names that look like a UUID.
		{"PATCH", g, patch("replace", "/name", `"11111111-2222-4333-8444-555555555555"`), 200, ""},
		{"PATCH", a, patch("replace", "/name", `"11111111-2222-4333-8444-555555555555"`), 200, ""},
		{"PATCH", n, patch("replace", "/name", `"11111111-2222-4333-8444-555555555555"`), 400, "invalid name"},
		// What only a new node takes.
		{"POST", "/v1/nodes", post(`, "boot_mode": "uefi", "secure_boot": true`), 201, `"boot_mode": "uefi"`},
		{"POST", "/v1/nodes", post(`, "secure_boot": null`), 201, `"secure_boot": null`},
		{"POST", "/v1/nodes", post(`, "console_enabled": true`), 201, `"console_enabled": true`},
		{"POST", "/v1/nodes", post(`, "retired_reason": "old"`), 201, `"retired_reason": "old"`},
		{"POST", "/v1/nodes", post(`, "boot_mode": "a word that is too long"`), 400, "is too long"},
		{"PATCH", n, patch("add", "/boot_mode", `"uefi"`), 400, "Cannot patch /boot_mode"},
		// A chassis keeps its UUID.
		{"PATCH", c, patch("remove", "/uuid", ``), 400, "Cannot overwrite UUID for an existing Chassis."},
		{"PATCH", c, patch("replace", "/uuid", `null`), 400, "Cannot overwrite UUID for an existing Chassis."},
		// Smart NICs, switches.
		{"POST", "/v1/ports", `{"node_uuid": "` + ownedNode + `", "address": "02:00:00:00:78:03", "is_smartnic": true}`,
			201, ""},
		{"PATCH", p, patch("replace", "/is_smartnic", `true`), 200, `"is_smartnic": true`},
		{"POST", "/v1/ports", `{"node_uuid": "` + ownedNode +
			`", "address": "02:00:00:00:78:04", "local_link_connection": {"switch_id": "ABCDEFABCDEFABCD", "port_id": "e1"}}`, 201, `"abcdefabcdefabcd"`},
		{"POST", "/v1/ports", `{"node_uuid": "` + ownedNode +
			`", "address": "02:00:00:00:78:05", "local_link_connection": {"switch_id": "abcdefabcdefabcde", "port_id": "e1"}}`, 400, "datapath ID"},
		// Traits.
		{"PUT", n + "/traits", `{"traits": ["HW_NO_SUCH"]}`, 400, "does not match '^CUSTOM_[A-Z0-9_]+$'"},
		{"PUT", n + "/traits/STORAGE_NO", "", 400, "does not match"},
		{"PUT", n + "/traits", `{"traits": ["HW_CPU_X86_AVX2", "CUSTOM_A"]}`, 204, ""},
		{"POST", "/v1/allocations", `{"resource_class": "x", "traits": ["HW_NO_SUCH"]}`, 400, "does not match"},
		{"POST", "/v1/deploy_templates",
			`{"name": "HW_NO_SUCH", "steps": [{"interface": "deploy", "step": "x", "args": {}, "priority": 1}]}`, 400,
			"does not match"},
		// VIFs and events.
		{"DELETE", n + "/vifs/bad%20id", "", 400, "Expected UUID or name for vif_id: bad id"},
		{"POST", n + "/vifs", `{"id": "` + strings.Repeat("v", 256) + `"}`, 400, "Expected UUID or name for id: "},
		{"POST", n + "/vifs", `{"id": "v2", "port_uuid": "bogus", "portgroup_uuid": null}`, 204, ""},
		{"POST", "/v1/events", `{"events": [{"event": "network.bind_port", "port_id": "` + ownedNode +
			`", "mac_address": "", "status": "ACTIVE", "device_id": "x"}]}`, 400, "Expected UUID for device_id: x"},
		{"POST", "/v1/events", `{"events": [{"event": "network.bind_port", "port_id": "` + ownedNode +
			`", "mac_address": "", "status": "ACTIVE", "binding:host_id": "h"}]}`, 400,
			"Expected UUID for binding:host_id: h"},
	}
	for _, name := range rest.NodeFields.Names(f.version) {
		if kind, ok := strings.CutSuffix(name, "_interface"); ok {
			rows = append(rows,
				row{"PATCH", n, patch("replace", "/"+name, `""`), 400, "'ironic.hardware.interfaces." + kind +
					"' entrypoint: . Valid interfaces are"},
				row{"POST", "/v1/nodes", post(`, "` + name + `": ""`), 400, "'ironic.hardware.interfaces." + kind +
					"' entrypoint: . Valid interfaces are"},
				row{"PATCH", n, patch("replace", "/"+name, `null`), 200, ""})
		}
	}
	for _, r := range rows {
		code, text := f.send(r.method, r.path, jsonType, r.body)
		flat := strings.ReplaceAll(strings.ReplaceAll(text, `": `, `":`), `\"`, `"`)
		if says := strings.ReplaceAll(r.says, `": `, `":`); code != r.status || !strings.Contains(flat, says) {
			t.Errorf("%s %s %s = %d %.600s, want %d %s", r.method, r.path, r.body, code, text, r.status, r.says)
		}
	}
}
