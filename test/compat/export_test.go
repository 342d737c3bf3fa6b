package compat

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/compat/bench"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

// TestExportIsTaken: the openstack command carries out what ingot export ironic writes, and another conductor then has
// what the first one has. The other one is an Ingot here, too.
func TestExportIsTaken(t *testing.T) {
	kit.NeedPrograms(t, "curl")
	a := bench.Start(t, nil)
	var parent string
	for i, n := range []node.Node{
		{Name: "enrolled", Provision: node.Enroll}, {Name: "managed", Provision: node.Manageable},
		{Name: "free", Provision: node.Available, ResourceClass: "large", Traits: []string{"CUSTOM_A", "CUSTOM_B"}},
		{Name: "web1", Provision: node.Active, InstanceUUID: "00000000-0000-4000-8000-000000000091", Owner: "o",
			InstanceInfo: map[string]any{"image_source": "http://192.0.2.1/x", "root_gb": "10"}, Protected: true,
			ProtectedReason: "it's $(false)", Extra: map[string]any{"n": 3.0}},
		{Name: "broken", Provision: node.CleanFailed, TargetProvision: node.Available, Maintenance: true,
			MaintenanceReason: "a `disk`"},
		{Name: "rescued", Provision: node.Rescue, Interfaces: map[string]string{"deploy": "ramdisk"}},
		{Name: "busy", Provision: node.CleanWait, TargetProvision: node.Available, Maintenance: true},
		{Name: "child", Provision: node.Enroll},
	} {
		n.Driver = "fake-hardware"
		if n.Name == "child" {
			n.ParentNode = parent
		}
		if err := a.Store.CreateNode(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			parent = n.UUID
		}
		group := node.Portgroup{Head: node.Head{NodeUUID: n.UUID, Name: "bond-" + n.Name}, Mode: "802.3ad"}
		if err := a.Store.Portgroups().Create(t.Context(), &group); err != nil {
			t.Fatal(err)
		}
		for j, of := range []string{"", group.UUID} {
			port := node.Port{NodeUUID: n.UUID, PortgroupUUID: of, PXEEnabled: j == 0,
				Address: fmt.Sprintf("52:54:00:00:%02x:%02x", i, j)}
			if err := a.Store.CreatePort(t.Context(), &port); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := ingotd.Start(t, kit.FreeAddr(t))
	dir := t.TempDir()
	export := exec.CommandContext(t.Context(), made.Program(t, "ingot"), "export", "ironic", "--dir", dir, "--endpoint",
		a.URL, "--api-version", "1.78")
	out, err := export.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "7 nodes are in") || !strings.Contains(string(out), "busy") {
		t.Fatalf("export: %v\n%s", err, out)
	}
	if info, err := os.Stat(filepath.Join(dir, "ironic.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file, which may hold passwords: %v, %v", info, err)
	}
	bin := openstack.Start(t).Install([]string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + b.URL})
	script := exec.CommandContext(t.Context(), "sh", "ironic.sh")
	script.Dir = dir
	script.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("ironic.sh: %v\n%s", err, out)
	}
	want, got := exported(t, a.URL), exported(t, b.URL)
	for _, all := range []map[string]map[string]any{want, got} {
		for _, n := range all {
			for key, v := range n {
				if ids, ok := v.([]any); ok && len(key) == 17 && ids[1] != nil {
					ids[1] = "a group" // 1.78 gives it another UUID
				}
			}
		}
	}
	for uuid, n := range want {
		n["parent_node"] = nil // newer than 1.78
		switch n["provision_state"] {
		case "rescue":
			n["provision_state"] = "active"
		case "clean failed":
			n["provision_state"] = "manageable"
		case "clean wait":
			delete(want, uuid)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("there (-want +got):\n%s", d)
	}
}

// exported are the nodes of a conductor by UUID, as far as they are carried.
func exported(t *testing.T, url string) map[string]map[string]any {
	t.Helper()
	c, err := client.New(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]any{}
	nodes, err := c.Objects(t.Context(), "/v1/nodes?detail=true&include_children=true", "nodes")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		o := map[string]any{}
		for _, name := range []string{"name", "provision_state", "resource_class", "traits", "instance_uuid",
			"instance_info", "owner", "extra", "protected", "protected_reason", "maintenance", "maintenance_reason",
			"deploy_interface", "parent_node", "driver", "automated_clean"} {
			o[name] = n[name]
		}
		out[n["uuid"].(string)] = o
	}
	ports, err := c.Objects(t.Context(), "/v1/ports?detail=true", "ports")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		if n := out[p["node_uuid"].(string)]; n != nil {
			n[p["address"].(string)] = []any{p["uuid"], p["portgroup_uuid"], p["pxe_enabled"]}
		}
	}
	return out
}
