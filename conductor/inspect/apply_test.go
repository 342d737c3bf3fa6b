package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// found is the machine and the node of the tests of Ironic's rules.
func found() *hook.Found {
	f := &hook.Found{
		Node: &node.Node{UUID: "1be26c0b-03f2-4d2e-ae87-c02d7f33c123", Name: "dell-1", Driver: "fake-hardware",
			Provision: node.Inspecting, DriverInfo: map[string]any{"ipmi_password": "s3cret"},
			Properties: map[string]any{"capabilities": "boot_mode:uefi,other:value"},
			Extra:      map[string]any{"to_delete": "value", "list": []any{"existing"}},
			Traits:     []string{"CUSTOM_OLD"}},
		Ports: []*node.Port{
			{UUID: "aaaaaaaa-03f2-4d2e-ae87-c02d7f33c123", Address: "2a:03:9c:53:4e:46",
				Extra: map[string]any{"to_delete": "value", "tags": []any{"existing"}}},
			{Address: "2a:03:9c:53:4e:47"}},
		Wrote: map[string]any{},
	}
	for text, into := range map[string]*map[string]any{
		`{"cpu": {"count": 4, "architecture": "x86_64"}, "memory": {"physical_mb": 16384}, "bmc_address": "192.168.1.100", "bmc_v6address": null, "empty_field": "",
			"system_vendor": {"manufacturer": "Dell Inc.", "product_name": "PowerEdge R640", "firmware": {"version": "1.10"}},
			"boot": {"current_boot_mode": "uefi"}, "disks": [{"name": "/dev/sda", "size": 5}],
			"interfaces": [{"name": "eth0", "mac_address": "2a:03:9c:53:4e:46", "has_carrier": true}], "bmc": {"password": "hush", "user": "root"}}`: &f.Inventory,
		`{"plugin": "data", "auto_discovered": true, "test_list": ["item1"], "nested": {"only": 1}, "hostile": "{node.driver_info[ipmi_address]}"}`: &f.PluginData,
	} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			panic(err)
		}
	}
	return f
}

// yamlRule reads one condition, action or rule as the documentation writes them.
func fromYAML(t *testing.T, s string) map[string]any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	m, ok := jsonLike(v).(map[string]any)
	if !ok {
		t.Fatalf("%s is not an object", s)
	}
	return m
}

// TestConditions has the examples of Ironic's documentation of rules first, then the cases of its tests, then what is
// different here.
func TestConditions(t *testing.T) {
	for _, c := range []struct {
		condition string
		want      bool
		fault     string
	}{
		// The documentation.
		{`{op: contains, args: {value: "{inventory[system_vendor][manufacturer]}", regex: "(?i)dell"}}`, true, ""},
		{`{op: is-true, args: {value: "{plugin_data[auto_discovered]}"}}`, true, ""},
		{`{op: eq, args: {values: ["{node.driver}", "idrac"]}}`, false, ""},
		{`{op: eq, args: {values: ["{node.driver}", "fake-hardware"]}}`, true, ""},
		{`{op: "!eq", args: {values: ["{node.driver}", "idrac"]}}`, true, ""},
		{`{op: "! contains", args: {value: "{inventory[system_vendor][manufacturer]}", regex: "(?i)dell"}}`, false, ""},
		{`{op: eq, args: {values: ["{inventory[system_vendor][product_name]}", "{item}"]}, loop: ["HPE ProLiant DL380 Gen10", "PowerEdge R640", "Cisco UCS"], multiple: any}`, true, ""},
		{`{op: eq, args: {values: ["{inventory[system_vendor][product_name]}", "{item}"]}, loop: ["HPE ProLiant DL380 Gen10", "Cisco UCS"]}`, false, ""},

		// Each condition, true and false.
		{`{op: eq, args: {values: [5, 5]}}`, true, ""},
		{`{op: eq, args: {values: [5, 10]}}`, false, ""},
		{`{op: eq, args: {values: [5]}}`, true, ""},
		{`{op: eq, args: {values: [5, 5, 6]}}`, false, ""},
		{`{op: lt, args: {values: [5, 10]}}`, true, ""},
		{`{op: lt, args: {values: [10, 5]}}`, false, ""},
		{`{op: lt, args: {values: [1, 2, 2]}}`, false, ""},
		{`{op: gt, args: {values: [10, 5]}}`, true, ""},
		{`{op: gt, args: {values: [5, 10]}}`, false, ""},
		{`{op: is-empty, args: {value: ""}}`, true, ""},
		{`{op: is-empty, args: {value: "not empty"}}`, false, ""},
		{`{op: is-empty, args: {value: []}}`, true, ""},
		{`{op: is-empty, args: {value: {}}}`, true, ""},
		{`{op: is-empty, args: {value: null}}`, true, ""},
		{`{op: is-empty, args: {value: 0}}`, false, ""},
		{`{op: in-net, args: {address: 192.168.1.5, subnet: 192.168.1.0/24}}`, true, ""},
		{`{op: in-net, args: {address: 10.0.0.1, subnet: 192.168.1.0/24}}`, false, ""},
		{`{op: in-net, args: {address: "2001:db8::7", subnet: "2001:db8::/64"}}`, true, ""},
		{`{op: in-net, args: {address: "{inventory[bmc_address]}", subnet: 192.168.1.100}}`, true, ""},
		{`{op: matches, args: {value: abc123, regex: 'abc\d+'}}`, true, ""},
		{`{op: matches, args: {value: xyz123, regex: 'abc\d+'}}`, false, ""},
		{`{op: matches, args: {value: abc123x, regex: 'abc\d+'}}`, false, ""},
		{`{op: matches, args: {value: abc123, regex: '^abc\d+$'}}`, true, ""},
		{`{op: matches, args: {value: ax, regex: 'a|b'}}`, false, ""},
		{`{op: contains, args: {value: test-abc123-end, regex: 'abc\d+'}}`, true, ""},
		{`{op: contains, args: {value: test-xyz-end, regex: 'abc\d+'}}`, false, ""},
		{`{op: contains, args: {value: "{inventory[interfaces]}", regex: "'name': 'eth0'"}}`, true, ""},
		{`{op: contains, args: [testvalue, test]}`, true, ""},
		{`{op: one-of, args: {value: b, values: [a, b, c]}}`, true, ""},
		{`{op: one-of, args: {value: z, values: [a, b, c]}}`, false, ""},
		{`{op: one-of, args: {value: test, values: []}}`, false, ""},
		{`{op: one-of, args: {value: null, values: [a, b]}}`, false, ""},
		{`{op: one-of, args: {value: test}}`, false, ""},
		{`{op: is-none, args: {value: null}}`, true, ""},
		{`{op: is-none, args: {value: something}}`, false, ""},
		{`{op: is-true, args: {value: true}}`, true, ""},
		{`{op: is-true, args: {value: false}}`, false, ""},
		{`{op: is-true, args: {value: "yes"}}`, true, ""},
		{`{op: is-true, args: {value: "TRUE"}}`, true, ""},
		{`{op: is-true, args: {value: "no"}}`, false, ""},
		{`{op: is-true, args: {value: 1}}`, true, ""},
		{`{op: is-true, args: {value: 0.1}}`, true, ""},
		{`{op: is-true, args: {value: 0}}`, false, ""},
		{`{op: is-true, args: {value: null}}`, false, ""},
		{`{op: is-true, args: {value: {}}}`, false, ""},
		{`{op: is-false, args: {value: false}}`, true, ""},
		{`{op: is-false, args: {value: true}}`, false, ""},
		{`{op: is-false, args: {value: "no"}}`, true, ""},
		{`{op: is-false, args: {value: "FALSE"}}`, true, ""},
		{`{op: is-false, args: {value: "yes"}}`, false, ""},
		{`{op: is-false, args: {value: 0}}`, true, ""},
		{`{op: is-false, args: {value: 1}}`, false, ""},
		{`{op: is-false, args: {value: null}}`, true, ""},

		// Loops.
		{`{op: eq, args: {values: [1, "{item}"]}, loop: [1, 2, 3, 4], multiple: any}`, true, ""},
		{`{op: eq, args: {values: [1, "{item}"]}, loop: [1, 2, 3, 4], multiple: all}`, false, ""},
		{`{op: eq, args: {values: [1, "{item}"]}, loop: [1, 2, 3, 4], multiple: first}`, true, ""},
		{`{op: eq, args: {values: [2, "{item}"]}, loop: [1, 2, 3, 4], multiple: first}`, false, ""},
		{`{op: eq, args: {values: [1, "{item}"]}, loop: [1, 2, 3, 4], multiple: last}`, false, ""},
		{`{op: eq, args: {values: [4, "{item}"]}, loop: [1, 2, 3, 4], multiple: last}`, true, ""},
		{`{op: contains, args: {value: "{item}", regex: "4"}, loop: [test4, value5, string6], multiple: any}`, true,
			""},
		{`{op: contains, args: {value: "{item}", regex: "4"}, loop: [test4, value5, string6], multiple: all}`, false,
			""},
		{`{op: contains, args: {value: "{item}", regex: "4"}, loop: [test4, value5, string6], multiple: last}`, false,
			""},
		{`{op: contains, args: {value: "{inventory[system_vendor][product_name]}", regex: "{item}"}, loop: ["R64.$", "^HPE"]}`, true, ""},
		{`{op: one-of, args: {value: "{inventory[cpu][architecture]}", values: ["{item}"]}, loop: [x86_64, aarch64, ppc64le], multiple: any}`, true, ""},
		{`{op: one-of, args: {value: "{inventory[cpu][architecture]}", values: ["{item}"]}, loop: [x86_64, aarch64, ppc64le], multiple: all}`, false, ""},
		{`{op: one-of, args: {value: "{inventory[cpu][architecture]}", values: ["{item}"]}, loop: [x86_64, aarch64, ppc64le], multiple: last}`, false, ""},
		{`{op: "!eq", args: {values: ["{node.driver}", "{item}"]}, loop: [ipmi, redfish], multiple: all}`, true, ""},
		{`{op: eq, args: {values: ["{item[a]}", "{item[b]}"]}, loop: {a: "{inventory[cpu][architecture]}", b: x86_64}}`,
			true, ""},
		{`{op: eq, args: {values: [1, 2]}, loop: []}`, false, ""},

		// Places without anything in them.
		{`{op: is-empty, args: {value: "{inventory[i.do.not.exist]}"}}`, true, ""},
		{`{op: is-empty, args: {value: "{inventory[bmc_address]}"}}`, false, ""},
		{`{op: is-empty, args: {value: "{inventory[bmc_v6address]}"}}`, true, ""},
		{`{op: is-empty, args: {value: "{inventory[empty_field]}"}}`, true, ""},
		// stays as it is
		{`{op: eq, args: {values: ["{inventory[missing][key]}", "{{inventory[missing][key]}}"]}}`, true, ""},
		{`{op: in-net, args: {address: "{inventory[bmc_v6address]}", subnet: "::/0"}}`, false, ""},

		// A condition sees a place that stands alone as what it is.
		{`{op: eq, args: {values: ["{inventory[cpu][count]}", 4]}}`, true, ""},
		{`{op: eq, args: {values: ["{inventory[cpu][count]}", "4"]}}`, true, ""},
		{`{op: lt, args: {values: ["{inventory[cpu][count]}", 16]}}`, true, ""},
		{`{op: gt, args: {values: ["{inventory[memory][physical_mb]}", "9000"]}}`, true, ""},
		{`{op: gt, args: {values: ["16", "9"]}}`, true, ""},
		{`{op: gt, args: {values: ["16", "9"], force_strings: true}}`, false, ""},
		{`{op: eq, args: {values: ["{inventory[system_vendor][firmware][version]}", "1.1"]}}`, false, ""}, // no number
		{`{op: one-of, args: {value: "{inventory[cpu][count]}", values: [2, 4]}}`, true, ""},
		{`{op: is-none, args: {value: "{inventory[bmc_v6address]}"}}`, true, ""},
		{`{op: is-none, args: {value: "{inventory[nothing]}"}}`, true, ""},
		{`{op: is-true, args: {value: "{inventory[interfaces][0][has_carrier]}"}}`, true, ""},

		// Secrets.
		{`{op: eq, args: {values: ["{inventory[bmc][password]}", "***"]}}`, true, ""},
		{`{op: contains, args: {value: "{inventory[bmc]}", regex: "hush"}}`, false, ""},
		{`{op: eq, args: {values: ["{node.driver_info[ipmi_password]}", "***"]}}`, true, ""},

		// What can't be judged fails.
		{`{op: in-net, args: {address: 192.168.1.1, subnet: "{inventory[boot][current_boot_mode]}"}}`, false,
			"is not a network"},
		{`{op: matches, args: {value: a, regex: "{item}"}, loop: ["[unclosed"]}`, false, "invalid regular expression"},
		{`{op: eq, args: {values: "{inventory[boot][current_boot_mode]}"}}`, false, "values is not a list"},
		{`{op: lt, args: {values: ["{inventory[cpu][architecture]}", 4]}}`, false, "can't be compared"},
		{`{op: eq, args: {values: [1, 1], force_strings: perhaps}}`, false, "force_strings"},
	} {
		sc := &scope{found: found(), mask: true}
		got, err := sc.holds(fromYAML(t, c.condition))
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: %v, want %s", c.condition, err, c.fault)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s = %v, %v; want %v", c.condition, got, err, c.want)
		}
	}
}

// TestPlaces has the cases of Ironic's tests of interpolation.
func TestPlaces(t *testing.T) {
	item := map[string]any{"key": "value", "nested": map[string]any{"deep": "nested_value"}}
	for _, c := range []struct {
		text, want string
		lacking    string
	}{
		{"{inventory[cpu][architecture]}", "x86_64", ""},
		{"{inventory[interfaces][0][mac_address]}", "2a:03:9c:53:4e:46", ""},
		{"{plugin_data[plugin]}", "data", ""},
		{"{node.driver}", "fake-hardware", ""},
		{"{item}", "{'key': 'value', 'nested': {'deep': 'nested_value'}}", ""},
		{"{item[key]}", "value", ""},
		{"{item[nested][deep]}", "nested_value", ""},
		{"CPU: {inventory[cpu][count]}, Item: {item[key]}", "CPU: 4, Item: value", ""},
		{"https://{inventory[bmc_address]}", "https://192.168.1.100", ""},
		{"{plugin_data[auto_discovered]} {inventory[bmc_v6address]} {inventory[disks]}",
			"True None [{'name': '/dev/sda', 'size': 5}]", ""},
		{"{inventory[cpu][architecture]!r} {item[key]!s}", "'x86_64' value", ""},
		{"{{literally}} {node.name}", "{literally} dell-1", ""},
		{"{node.extra[list][0]}", "existing", ""},
		{"{plugin_data[hostile]}", "{node.driver_info[ipmi_address]}", ""}, // a machine's words are no places
		// As the documentation warns: these are left as they are.
		{"{inventory.bmc_address}", "{inventory.bmc_address}", "write [bmc_address]"},
		{"{node[driver]}", "{node[driver]}", "write {node.ATTRIBUTE}"},
		{"{inventory[missing][key]}", "{inventory[missing][key]}", "there is no missing"},
		{"{inventory[interfaces][1][name]}", "{inventory[interfaces][1][name]}", "there is no item 1"},
		{"{inventory[cpu][count]:>8}", "{inventory[cpu][count]:>8}", "format specifications"},
		{"{node.job}", "{node.job}", "no attribute job"},
		{"{nothing}", "{nothing}", "there is no nothing"},
		{"{0}", "{0}", "does not begin with the name"},
		{"half {node.name", "half {node.name", "has a { without }"},
		{"half} {node.name}", "half} {node.name}", "has a } without {"},
	} {
		var lacking []string
		sc := &scope{found: found(), item: item, loops: true, mask: true,
			lacking: func(_ string, err error) { lacking = append(lacking, err.Error()) }}
		if got := sc.fill(c.text, false, false); got != c.want {
			t.Errorf("%q gives %q, want %q", c.text, got, c.want)
		}
		if len(lacking) != min(len(c.lacking), 1) || c.lacking != "" && !strings.Contains(lacking[0], c.lacking) {
			t.Errorf("%q: %q, want %q", c.text, lacking, c.lacking)
		}
	}
	sc := &scope{found: found(), item: item, loops: true, mask: true}
	got := sc.fill(map[string]any{"normal": "value", "{item[key]}": "{inventory[cpu][architecture]}",
		"nested": map[string]any{"address": "{inventory[bmc_address]}"},
		"list":   []any{"normal_value", "{item[key]}", []any{"{item[nested][deep]}"}}}, false, false)
	want := map[string]any{"normal": "value", "value": "x86_64", "nested": map[string]any{"address": "192.168.1.100"},
		"list": []any{"normal_value", "value", []any{"nested_value"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nested places (-want +got):\n%s", diff)
	}
}

// TestActions has the examples of Ironic's documentation first, then the cases of its tests.
func TestActions(t *testing.T) {
	for _, c := range []struct {
		action, changes, fault string
	}{
		{`{op: set-attribute, args: {path: /driver, value: idrac}}`, `node/driver: fake-hardware -> idrac`, ""},
		{`{op: set-attribute, args: {path: /driver_info/redfish_address, value: "https://{inventory[bmc_address]}"}}`,
			`node/driver_info/redfish_address: None -> https://192.168.1.100`, ""},
		{`{op: set-attribute, args: {path: "{item[path]}", value: "{item[value]}"}, loop: [{path: /driver_info/ipmi_username, value: admin},
			{path: /driver_info/ipmi_password, value: password}, {path: /driver_info/ipmi_address, value: "{inventory[bmc_address]}"}]}`,
			`node/driver_info/ipmi_address: None -> 192.168.1.100; node/driver_info/ipmi_password: *** -> ***; node/driver_info/ipmi_username: None -> admin`, ""},
		{`{op: set-attribute, args: {path: "{item[path]}", value: "{item[value]}"}, loop: {path: driver_info/ipmi_address, value: "{inventory[bmc_address]}"}}`,
			`node/driver_info/ipmi_address: None -> 192.168.1.100`, ""},
		{`{op: set-attribute, args: {path: /properties/capabilities, value: {cpu_arch: "{inventory[cpu][architecture]}", bmc_address: "{inventory[bmc_address]}"}}}`,
			`node/properties/capabilities: boot_mode:uefi,other:value -> {'bmc_address': '192.168.1.100', 'cpu_arch': 'x86_64'}`, ""},
		{`{op: log, args: {msg: "Configured iDRAC driver for Dell server {node.name}", level: info}}`,
			`INFO Configured iDRAC driver for Dell server dell-1`, ""},
		{`{op: log, args: {msg: "Matched node {node.name}", level: warning}}`, `WARNING Matched node dell-1`, ""},
		{`{op: log, args: {msg: plain}}`, `INFO plain`, ""},
		{`{op: fail, args: {msg: "Node has insufficient CPU cores (minimum 4 required)"}}`, ``,
			"action 1 (fail): Node has insufficient CPU cores (minimum 4 required)"},
		{`{op: fail, args: {msg: "only {inventory[cpu][count]} threads"}}`, ``, "only 4 threads"},

		// Paths.
		{`{op: set-attribute, args: {path: driver_info/new, value: {new_key: test_value}}}`,
			`node/driver_info/new/new_key: None -> test_value`, ""},
		{`{op: set-attribute, args: {path: driver_info.next.nested.deeper, value: {next_key: test_value}}}`,
			`node/driver_info/next/nested/deeper/next_key: None -> test_value`, ""},
		{`{op: set-attribute, args: {path: extra.count, value: 5}}`, `node/extra/count: None -> 5`, ""},
		{`{op: set-attribute, args: {path: resource_class, value: "{inventory[system_vendor][product_name]}"}}`,
			`node/resource_class: None -> PowerEdge R640`, ""},
		{`{op: set-attribute, args: {path: boot_interface, value: ipxe}}`, `node/boot_interface: None -> ipxe`, ""},
		{`{op: set-attribute, args: {path: maintenance, value: "true"}}`, `node/maintenance: False -> True`, ""},
		{`{op: set-attribute, args: {path: automated_clean, value: false}}`, `node/automated_clean: None -> False`, ""},
		{`{op: set-attribute, args: {path: driver.some_key, value: test}}`, ``,
			"driver is not an object, so it has no some_key"},
		{`{op: set-attribute, args: {path: provision_state, value: active}}`, ``,
			"provision_state is no attribute that rules can change"},
		{`{op: set-attribute, args: {path: name, value: "two words"}}`, ``, "is no valid name"},
		{`{op: set-attribute, args: {path: driver_info, value: text}}`, ``, "driver_info: must be an object"},

		{`{op: extend-attribute, args: {path: extra/list, value: new}}`,
			`node/extra/list: ['existing'] -> ['existing', 'new']`, ""},
		{`{op: extend-attribute, args: {path: extra/list, value: existing}}`,
			`node/extra/list: ['existing'] -> ['existing', 'existing']`, ""},
		{`{op: extend-attribute, args: {path: extra/list, value: existing, unique: true}}`, ``, ""},
		{`{op: extend-attribute, args: {path: extra/fresh/list, value: new, unique: true}}`,
			`node/extra/fresh/list: None -> ['new']`, ""},
		{`{op: extend-attribute, args: {path: driver, value: new_item}}`, ``, "driver is not a list"},
		{`{op: del-attribute, args: {path: extra/to_delete}}`, `node/extra/to_delete: value -> None`, ""},
		{`{op: del-attribute, args: {path: extra/not/there}}`, ``, ""},
		{`{op: del-attribute, args: {path: name}}`, `node/name: dell-1 -> None`, ""},
		{`{op: del-attribute, args: {path: driver.nonexistent_key}}`, ``,
			"driver is not an object, so it has no nonexistent_key"},
		{`{op: del-attribute, args: {path: nonsense}}`, ``, "nonsense is no attribute"},

		{`{op: set-capability, args: {name: memory_class, value: high}}`,
			`node/properties/capabilities: boot_mode:uefi,other:value -> boot_mode:uefi,other:value,memory_class:high`,
			""},
		{`{op: set-capability, args: {name: boot_mode, value: bios}}`,
			`node/properties/capabilities: boot_mode:uefi,other:value -> boot_mode:bios,other:value`, ""},
		{`{op: set-capability, args: {name: "a,b", value: x}}`, ``, "capability"},
		{`{op: unset-capability, args: {name: boot_mode}}`,
			`node/properties/capabilities: boot_mode:uefi,other:value -> other:value`, ""},
		{`{op: unset-capability, args: {name: none}}`, ``, ""},
		{`{op: add-trait, args: {name: CUSTOM_HIGH_MEMORY}}`,
			`node/traits: ['CUSTOM_OLD'] -> ['CUSTOM_HIGH_MEMORY', 'CUSTOM_OLD']`, ""},
		{`{op: add-trait, args: {name: CUSTOM_OLD}}`, ``, ""},
		{`{op: add-trait, args: {name: high memory}}`, ``, "is not a trait"},
		{`{op: remove-trait, args: {name: CUSTOM_OLD}}`, `node/traits: ['CUSTOM_OLD'] -> None`, ""},
		{`{op: remove-trait, args: {name: CUSTOM_NONE}}`, ``, ""},

		{`{op: set-plugin-data, args: {path: test_key, value: test_value}}`, `plugin_data/test_key: None -> test_value`,
			""},
		{`{op: set-plugin-data, args: {path: a.b, value: "{inventory[cpu][count]}"}}`, `plugin_data/a/b: None -> 4`,
			""},
		{`{op: extend-plugin-data, args: {path: test_list, value: item2}}`,
			`plugin_data/test_list: ['item1'] -> ['item1', 'item2']`, ""},
		{`{op: extend-plugin-data, args: {path: test_list, value: item1, unique: true}}`, ``, ""},
		{`{op: unset-plugin-data, args: {path: plugin}}`, `plugin_data/plugin: data -> None`, ""},
		{`{op: unset-plugin-data, args: {path: nested.only}}`, `plugin_data/nested: {'only': 1} -> None`, ""},
		{`{op: unset-plugin-data, args: {path: not.there}}`, ``, ""},

		{`{op: set-port-attribute, args: {port_id: aaaaaaaa-03f2-4d2e-ae87-c02d7f33c123, path: extra/a, value: test_value}}`, `port/2a:03:9c:53:4e:46/extra/a: None -> test_value`, ""},
		{`{op: set-port-attribute, args: {port_id: "{inventory[interfaces][0][mac_address]}", path: physical_network, value: physnet1}}`, `port/2a:03:9c:53:4e:46/physical_network: None -> physnet1`, ""},
		{`{op: set-port-attribute, args: {port_id: "2A:03:9C:53:4E:47", path: pxe_enabled, value: "true"}}`,
			`port/2a:03:9c:53:4e:47/pxe_enabled: False -> True`, ""},
		{`{op: extend-port-attribute, args: {port_id: "2a:03:9c:53:4e:46", path: extra/tags, value: new_tag}}`,
			`port/2a:03:9c:53:4e:46/extra/tags: ['existing'] -> ['existing', 'new_tag']`, ""},
		{`{op: del-port-attribute, args: {port_id: "2a:03:9c:53:4e:46", path: extra/to_delete}}`,
			`port/2a:03:9c:53:4e:46/extra/to_delete: value -> None`, ""},
		{`{op: set-port-attribute, args: {port_id: nowhere, path: extra, value: test}}`, ``,
			`the node has no port "nowhere"`},
		{`{op: set-port-attribute, args: {port_id: "2a:03:9c:53:4e:46", path: address, value: "2a:03:9c:53:4e:99"}}`,
			``, "address is no attribute"},

		{`{op: log, args: {msg: test message, level: "{item}"}, loop: [invalid_level]}`, ``,
			`invalid log level "invalid_level"`},
		{`{op: api-call, args: {url: "https://hooks.example/{node.name}"}}`, `GET https://hooks.example/dell-1`, ""},
		{`{op: api-call, args: {url: "ftp://hooks.example/"}}`, ``, "not an http or https URL"},
		{`{op: api-call, args: {url: "http://hooks.example/", timeout: 0}}`, ``, "timeout"},
		{`{op: api-call, args: {url: "http://hooks.example/", retries: -1}}`, ``, "retries"},
		// What can't be filled in stays as it is, and that is said.
		{`{op: set-attribute, args: {path: extra/x, value: "{inventory[nothing]}"}}`,
			`node/extra/x: None -> {inventory[nothing]}; WARNING inspection rule r: action 1 (set-attribute): "{inventory[nothing]}" stays as it is, since it can't be filled in: {inventory[nothing]}: there is no nothing`, ""},
	} {
		r := &node.InspectionRule{Head: node.Head{UUID: "r"}, Phase: PhaseMain,
			Actions: []map[string]any{fromYAML(t, c.action)}}
		rep := Check(found(), r, Options{})
		var got []string
		for _, ch := range rep.Changes {
			got = append(got, fmt.Sprintf("%s: %s -> %s", ch.Path, pyString(ch.From), pyString(ch.To)))
		}
		for _, n := range rep.Notes {
			got = append(got, n.Severity+" "+n.Text)
		}
		for _, url := range rep.Calls {
			got = append(got, "GET "+url)
		}
		if s := strings.Join(got, "; "); s != strings.ReplaceAll(c.changes, "nested: {'only': 1}", "nested/only: 1") {
			t.Errorf("%s\n  does  %s\n  wants %s", c.action, s, c.changes)
		}
		if (c.fault == "") != (rep.Failure == "") || !strings.Contains(rep.Failure, c.fault) {
			t.Errorf("%s fails with %q, want %q", c.action, rep.Failure, c.fault)
		}
	}
}

// dell is the full example of Ironic's documentation.
const dell = `
- uuid: "rule-dell-bmc-setup"
  description: "Configure iDRAC driver for auto-discovered Dell servers"
  priority: 100
  sensitive: true
  phase: main
  conditions:
    - op: contains
      args:
        value: "{inventory[system_vendor][manufacturer]}"
        regex: "(?i)dell"
    - op: is-true
      args:
        value: "{plugin_data[auto_discovered]}"
  actions:
    - op: set-attribute
      args:
        path: "/driver"
        value: "idrac"
    - op: set-attribute
      args:
        path: "/driver_info/redfish_address"
        value: "https://{inventory[bmc_address]}"
    - op: set-attribute
      args:
        path: "/driver_info/redfish_username"
        value: "root"
    - op: log
      args:
        msg: "Configured iDRAC driver for Dell server {node.name}"
        level: info
`

func TestFullExample(t *testing.T) {
	rules, err := ParseRules([]byte(dell))
	if err != nil {
		t.Fatal(err)
	}
	f := found()
	if err := Run(f, nil, Options{BuiltIn: rules}); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"ipmi_password": "s3cret", "redfish_address": "https://192.168.1.100",
		"redfish_username": "root"}
	if f.Node.Driver != "idrac" || !reflect.DeepEqual(f.Node.DriverInfo, want) {
		t.Errorf("driver %s, driver_info %v, want %v", f.Node.Driver, f.Node.DriverInfo, want)
	}
	// The rule is sensitive: the report says that it logged, but not what.
	if len(f.Notes) != 1 || strings.Contains(f.Notes[0].Text, "dell-1") ||
		!strings.Contains(f.Notes[0].Text, "rule-dell-bmc-setup") {
		t.Errorf("notes = %v", f.Notes)
	}
	f = found()
	f.Inventory["system_vendor"].(map[string]any)["manufacturer"] = "HPE"
	if err := Run(f, nil, Options{BuiltIn: rules}); err != nil || f.Node.Driver != "fake-hardware" ||
		len(f.Notes) != 0 {
		t.Errorf("of another vendor: driver %s, notes %v, %v", f.Node.Driver, f.Notes, err)
	}
}

// TestOrderOfRules: by priority over stored and built-in ones, those made first among equals; later ones see what
// earlier ones did.
func TestOrderOfRules(t *testing.T) {
	rule := func(id string, priority int) *node.InspectionRule {
		return &node.InspectionRule{Head: node.Head{UUID: id}, Phase: PhaseMain, Priority: priority,
			Actions: []map[string]any{
				{"op": "extend-plugin-data", "args": map[string]any{"path": "order", "value": id}}}}
	}
	f := found()
	err := Run(f, []*node.InspectionRule{rule("low", 0), rule("high", 9999), rule("high too", 9999)},
		Options{BuiltIn: []*node.InspectionRule{rule("first", 100000), rule("last", -1), rule("also low", 0)}})
	if err != nil {
		t.Fatal(err)
	}
	if got := pyString(f.PluginData["order"]); got != "['first', 'high', 'high too', 'low', 'also low', 'last']" {
		t.Errorf("order is %s", got)
	}
}

// TestSensitiveRulesLeakNothing: whatever way a sensitive rule fails or is checked, nothing of what it does or what it
// saw is told.
func TestSensitiveRulesLeakNothing(t *testing.T) {
	for _, parts := range []string{
		`{actions: [{op: fail, args: {msg: "hush {node.name}"}}]}`,
		`{actions: [{op: set-attribute, args: {path: hush/dell-1, value: hush}}]}`,
		`{actions: [{op: set-attribute, args: {path: extra/a, value: "hush {inventory[dell-1]}"}}, {op: log, args: {msg: hush}}]}`,
		`{actions: [{op: api-call, args: {url: "https://hush.example/dell-1"}}]}`,
		`{conditions: [{op: matches, args: {value: dell-1, regex: "{item}"}, loop: ["[hush"]}], actions: [{op: fail, args: {msg: a}}]}`,
	} {
		doc := fromYAML(t, parts)
		r := &node.InspectionRule{Head: node.Head{UUID: "the-rule"}, Sensitive: true, Phase: PhaseMain}
		for key, into := range map[string]*[]map[string]any{"conditions": &r.Conditions, "actions": &r.Actions} {
			list, _ := doc[key].([]any)
			for _, p := range list {
				*into = append(*into, p.(map[string]any))
			}
		}
		f := found()
		err := Run(f, []*node.InspectionRule{r}, Options{})
		shown := fmt.Sprint(err, f.Notes, Check(found(), r, Options{}))
		for _, bad := range []string{"hush", "dell-1", "set-attribute", "fail)"} {
			if strings.Contains(shown, bad) {
				t.Errorf("%s shows %s: %s", parts, bad, shown)
			}
		}
		if !strings.Contains(shown, "the-rule") {
			t.Errorf("%s: the rule is not named: %s", parts, shown)
		}
	}
}

func TestMasking(t *testing.T) {
	for _, c := range []struct {
		mask      Masking
		sensitive bool
		want      string
	}{{"", false, "***"}, {MaskAlways, true, "***"}, {MaskNever, false, "hush"}, {MaskSensitive, false, "***"},
		{MaskSensitive, true, "hush"}} {
		f := found()
		r := &node.InspectionRule{Phase: PhaseMain, Sensitive: c.sensitive,
			Actions: []map[string]any{
				{"op": "set-attribute",
					"args": map[string]any{
						"path":  "extra/seen",
						"value": "{inventory[bmc][password]} {node.driver_info[ipmi_password]}"}}}}
		if err := Run(f, []*node.InspectionRule{r}, Options{Mask: c.mask}); err != nil ||
			f.Node.Extra["seen"] != c.want+" ***" {
			t.Errorf("mask %q, sensitive %v: seen %v, %v; want %s", c.mask, c.sensitive, f.Node.Extra["seen"], err,
				c.want)
		}
	}
}

func TestRunStopsAtFailure(t *testing.T) {
	f := found()
	fail := &node.InspectionRule{Head: node.Head{UUID: "no-old-cpu"},
		Description: "Reject nodes with insufficient CPU cores.", Phase: PhaseMain, Priority: 50,
		Conditions: []map[string]any{
			{"op": "lt", "args": map[string]any{"values": []any{"{inventory[cpu][count]}", 8.0}}}},
		Actions: []map[string]any{{"op": "log", "args": map[string]any{"msg": "a"}},
			{"op": "fail", "args": map[string]any{"msg": "too few"}}}}
	never := &node.InspectionRule{
		Phase:   PhaseMain,
		Actions: []map[string]any{{"op": "set-attribute", "args": map[string]any{"path": "name", "value": "x"}}}}
	err := Run(f, []*node.InspectionRule{never, fail}, Options{})
	var rule *RuleError
	if !errors.As(err, &rule) || rule.Rule != fail ||
		err.Error() != "inspection rule no-old-cpu (Reject nodes with insufficient CPU cores): action 2 (fail): too few" || f.Node.Name != "dell-1" {
		t.Errorf("Run = %v, name %s", err, f.Node.Name)
	}
}

func TestCall(t *testing.T) {
	r := &node.InspectionRule{Head: node.Head{UUID: "r"}, Phase: PhaseMain,
		Actions: []map[string]any{{"op": "api-call", "args": map[string]any{
			"url": "http://h/", "headers": map[string]any{"X-Token": "t"}, "timeout": 2.0, "retries": 1.0,
			"backoff_factor": 0.5}}}}
	var got []Call
	answer := error(nil)
	o := Options{Call: func(c Call) error { got = append(got, c); return answer }}
	if err := Run(found(), []*node.InspectionRule{r}, o); err != nil {
		t.Fatal(err)
	}
	want := []Call{{Rule: "r", URL: "http://h/", Headers: map[string]string{"X-Token": "t"}, Timeout: 2 * time.Second,
		Retries: 1, Backoff: time.Second / 2}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
	answer = errors.New("status 500")
	if err := Run(found(), []*node.InspectionRule{r}, o); err == nil ||
		!strings.Contains(err.Error(), "action 1 (api-call): status 500") {
		t.Errorf("Run = %v", err)
	}
	if Calls(nil) || !Calls([]*node.InspectionRule{r}) {
		t.Error("Calls does not find the rule that makes requests")
	}
}

// TestAddressOfBMC: a machine that enrolled itself reports the address of its BMC, and no setting is changed.
func TestAddressOfBMC(t *testing.T) {
	for _, c := range []struct {
		driver, v4, v6 string
		had, want      map[string]any
		note           bool
	}{
		{"ipmi", "192.0.2.7", "2001:db8::7/64", nil, map[string]any{"ipmi_address": "192.0.2.7"}, false},
		{"ipmi", "0.0.0.0", "2001:db8::7/64", nil, map[string]any{"ipmi_address": "2001:db8::7"}, false},
		{"ipmi", "", "::/0", nil, nil, true},
		{"ipmi", "192.0.2.7", "", map[string]any{"ipmi_address": "bmc.example"},
			map[string]any{"ipmi_address": "bmc.example"}, false},
		{"redfish", "192.0.2.7", "", nil, map[string]any{"redfish_address": "https://192.0.2.7"}, false},
		{"idrac", "192.0.2.7", "", nil, map[string]any{"redfish_address": "https://192.0.2.7"}, false},
		{"redfish", "", "2001:db8::7", nil, map[string]any{"redfish_address": "https://[2001:db8::7]"}, false},
		{"manual-management", "192.0.2.7", "", nil, nil, false},
	} {
		f := &hook.Found{
			Node: &node.Node{Driver: c.driver, DriverInfo: c.had, Provision: node.Enroll,
				DiscoveredAt: time.Now()},
			Inventory: map[string]any{"bmc_address": c.v4, "bmc_v6address": c.v6}, PluginData: map[string]any{}}
		if err := Run(f, nil, Options{}); err != nil || !reflect.DeepEqual(f.Node.DriverInfo, c.want) ||
			(len(f.Notes) > 0) != c.note || f.PluginData["auto_discovered"] != true {
			t.Errorf("%+v: driver_info %v, notes %v, plugin data %v, %v", c, f.Node.DriverInfo, f.Notes, f.PluginData,
				err)
		}
		f.Node.DiscoveredAt = time.Time{}
		f.Node.DriverInfo, f.PluginData = nil, map[string]any{}
		if err := Run(f, nil, Options{}); err != nil || f.Node.DriverInfo != nil ||
			f.PluginData["auto_discovered"] != nil {
			t.Errorf("%+v, made by somebody: driver_info %v, %v", c, f.Node.DriverInfo, err)
		}
	}
}

func TestParseRules(t *testing.T) {
	rules, err := ParseRules(
		[]byte(`[{"actions": [{"op": "fail", "args": {"msg": "a"}}], "priority": -5, "conditions": [{"op": "eq", "args": {"values": [1, 2]}}]}, {uuid: mine, actions: [{op: log, args: [b]}]}]`))
	if err != nil || len(rules) != 2 || rules[0].UUID != "00000000-0000-0000-0000-000000000000" ||
		rules[0].Priority != -5 || rules[1].UUID != "mine" || rules[1].Phase != PhaseMain {
		t.Fatalf("ParseRules = %+v, %v", rules, err)
	}
	if v := rules[0].Conditions[0]["args"].(map[string]any)["values"].([]any)[0]; v != 1.0 {
		t.Errorf("a number is a %T", v)
	}
	for text, want := range map[string]string{
		`{}`:                         "not a list of rules",
		`[{uuid: a}]`:                "rule 1 (a): a rule must have at least one action",
		`[{actions: [{op: frobn}]}]`: `unsupported action operator "frobn"`,
		`[{phase: other, actions: [{op: log, args: [b]}]}]`:                                        "invalid phase",
		`[{uuid: a, actions: [{op: log, args: [b]}]}, {uuid: a, actions: [{op: log, args: [b]}]}]`: "that of another rule",
		`[{conditions: [{op: eq, args: {values: 5}}], actions: [{op: log, args: [b]}]}]`:           "values must be a list",
		`[{conditions: [{op: "!!eq", args: {values: [5]}}], actions: [{op: log, args: [b]}]}]`:     "unsupported condition",
		`[{actions: [{op: add-trait, args: {name: CUSTOM_A, other: b}}]}]`:                         "unexpected argument(s): other",
	} {
		if _, err := ParseRules([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRules(%s) = %v, want %s", text, err, want)
		}
	}
}

// FuzzApply: whatever a rule says that was let in, applying it does not panic, and it changes neither the inventory nor
// what it may not.
func FuzzApply(f *testing.F) {
	f.Add(dell)
	f.Add(`[{conditions: [{op: eq, args: [["{item}", 4], true], loop: [1, {a: b}], multiple: last}], actions: [{op: set-port-attribute, args: ["2a:03:9c:53:4e:46", "extra.a.b", "{inventory!r}"]}]}]`)
	f.Add(`[{actions: [{op: set-attribute, args: {path: "{item}", value: ["{plugin_data}"]}, loop: ["extra//a", "/", "driver_info.x"]}, {op: unset-plugin-data, args: [nested/only]}]}]`)
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := ParseRules([]byte(text))
		if err != nil {
			return
		}
		m := found()
		before := pyRepr(m.Inventory)
		_ = Run(m, rules, Options{Call: func(Call) error { return nil }})
		if m.Node.UUID != found().Node.UUID || m.Node.Provision != node.Inspecting || pyRepr(m.Inventory) != before {
			t.Errorf("%s changed what it may not", text)
		}
		if !slices.IsSorted(m.Node.Traits) {
			t.Errorf("traits %v", m.Node.Traits)
		}
	})
}
