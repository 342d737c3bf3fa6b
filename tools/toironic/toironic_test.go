package toironic_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/tools/toironic"
)

type object = toironic.Object

const (
	one   = "00000000-0000-4000-8000-000000000001"
	two   = "00000000-0000-4000-8000-000000000002"
	three = "00000000-0000-4000-8000-000000000003"
)

func things() toironic.Things {
	return toironic.Things{
		Drivers: []object{{"name": "ipmi", "default_boot_interface": "ipxe", "default_network_interface": "noop"}},
		Chassis: []object{{"uuid": two, "description": "a rack", "extra": object{}, "links": []any{}}},
		Nodes: []object{
			{"uuid": two, "name": "child", "driver": "ipmi", "provision_state": "available", "parent_node": one,
				"boot_interface": "ipxe", "network_interface": "switch", "automated_clean": nil},
			{"uuid": one, "name": "web1", "driver": "ipmi", "provision_state": "active", "reservation": nil,
				"driver_info": object{"ipmi_address": "192.0.2.1", "ipmi_password": "******",
					"other_password": "******"},
				"instance_info": object{"image_source": "http://x", "root_gb": "10", "configdrive": "******", "n": 3.0},
				"instance_uuid": three, "traits": []any{"CUSTOM_A"}, "boot_interface": "pxe", "protected": true,
				"protected_reason": "it's $(reboot)\n`x`", "maintenance": true, "disable_power_off": false},
			{"uuid": three, "name": "busy", "driver": "ipmi", "provision_state": "clean wait"},
		},
		Ports: []object{{"uuid": two, "node_uuid": one, "portgroup_uuid": three, "address": "52:54:00:00:00:01",
			"pxe_enabled": false, "vendor": "v"}},
		Portgroups: []object{{"uuid": three, "node_uuid": one, "name": "bond0", "mode": "802.3ad"}},
		Allocations: []object{{"uuid": three, "node_uuid": one, "state": "active", "name": "a"},
			{"uuid": two, "state": "error"}},
		Templates: []object{{"uuid": one, "name": "CUSTOM_A", "steps": []any{object{"step": "s", "interface": "bios"}}},
			{"uuid": two, "name": "CUSTOM_B", "steps": []any{object{"args": object{"password": "******"}}}}},
		Runbooks: []object{{"uuid": one, "name": "CUSTOM_R", "steps": []any{}}},
		Rules: []object{{"uuid": one, "priority": 1.0, "phase": "main", "actions": []any{object{"op": "fail"}},
			"conditions": []any{}}, {"uuid": two, "actions": nil, "sensitive": true}},
		Targets: []object{{"uuid": one, "node_uuid": one, "volume_type": "iscsi", "volume_id": "v", "boot_index": 0.0,
			"properties": object{"auth_password": "******", "target_lun": 1.0}}},
		Connectors: []object{{"uuid": one, "node_uuid": three, "type": "iqn", "connector_id": "c"}},
	}
}

func built(t *testing.T, version int) (object, string, *toironic.Result) {
	t.Helper()
	r, err := toironic.Make(things(), toironic.Secrets{"web1": {"ipmi_password": "s3cret"}}, 82, "ironic.json")
	if version != 82 {
		r, err = toironic.Make(things(), nil, 115, "ironic.json")
	}
	if err != nil {
		t.Fatal(err)
	}
	var file object
	if err := json.Unmarshal(r.File, &file); err != nil {
		t.Fatal(err)
	}
	return file, string(r.Script), r
}

func TestFile(t *testing.T) {
	file, _, r := built(t, 82)
	nodes := file["nodes"].([]any)
	if len(nodes) != 2 || r.Nodes != 2 || len(file["chassis"].([]any)) != 1 {
		t.Fatalf("the file has %v", file)
	}
	web, child := nodes[0].(object), nodes[1].(object) // a parent comes first
	if web["uuid"] != one || child["uuid"] != two {
		t.Errorf("order: %v, %v", web["uuid"], child["uuid"])
	}
	info := web["driver_info"].(object)
	if info["ipmi_password"] != "s3cret" || len(info) != 2 || strings.Contains(string(r.File), "******") {
		t.Errorf("driver_info: %v", info)
	}
	if web["boot_interface"] != "pxe" || child["boot_interface"] != nil || child["network_interface"] != nil {
		t.Errorf("interfaces: %v, %v", web, child)
	}
	if child["parent_node"] != nil || web["disable_power_off"] != nil || web["instance_uuid"] != nil {
		t.Errorf("attributes that 1.82 does not take: %v, %v", web, child)
	}
	group := web["portgroups"].([]any)[0].(object)
	port := group["ports"].([]any)[0].(object)
	if port["pxe_enabled"] != false || port["vendor"] != nil || web["ports"] != nil {
		t.Errorf("ports: %v", group)
	}
	newer, _, _ := built(t, 115)
	if n := newer["nodes"].([]any)[1].(object); n["parent_node"] != one {
		t.Errorf("in 1.115: %v", n)
	}
}

func TestScript(t *testing.T) {
	_, script, r := built(t, 82)
	before := ""
	for _, want := range []string{"/ironic.json\n", "baremetal deploy template create CUSTOM_A",
		"volume target create", "node set " + two + " --no-automated-clean", "node provide " + two,
		"node unset " + two + " --automated-clean ||\n\topenstack baremetal node set " + two + " --automated-clean",
		"node add trait " + one + " CUSTOM_A", "node manage " + one,
		"node adopt " + one, "--protected", "maintenance set " + one, "allocation create --uuid=" + three} {
		_, rest, ok := strings.Cut(script, want)
		if !ok || !strings.HasPrefix(script, before) {
			t.Fatalf("no %q in its place:\n%s", want, script)
		}
		before = strings.TrimSuffix(script, rest)
	}
	for _, not := range []string{"CUSTOM_B", "runbook", "inspection rule create", "connector create", "--instance-uuid",
		"auth_password=", "configdrive="} {
		if strings.Contains(strings.SplitN(script, "set -eu", 2)[1], not) {
			t.Errorf("the script has %q:\n%s", not, script)
		}
	}
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{`node ` + three + ` ("busy"): it is being worked on (clean wait)`,
		"its parent_node, which is for newer", "its UUID, it gets another",
		"secret other_password", "instance_info: the secret configdrive", "network interface switch", "steps have secrets",
		"such objects are of version 1.92", "secret auth_password", "allocation " + two, "vendor"} {
		if !strings.Contains(notes, want) || !strings.Contains(script, "# Not carried: ") {
			t.Errorf("the notes do not have %q:\n%s", want, notes)
		}
	}
	if _, script, _ := built(t, 115); !strings.Contains(script, "baremetal runbook create --name=CUSTOM_R") ||
		!strings.Contains(script, "inspection rule create --uuid="+one) {
		t.Errorf("in 1.115:\n%s", script)
	}
}

// TestWordsAreQuoted: what clients of the API wrote is no command of the script, and arrives as it was.
func TestWordsAreQuoted(t *testing.T) {
	_, script, _ := built(t, 82)
	cmd := exec.Command("sh")
	cmd.Stdin = strings.NewReader("openstack() { for w in \"$@\"; do printf '<%s>' \"$w\"; done; echo; }\n" + script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"<--protected-reason=it's $(reboot)\n`x`>", `<--instance-info=root_gb="10">`,
		"<--instance-info=n=3>", "<--instance-info=image_source=http://x>"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
