package compat

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestEverySubcommand walks through all that `openstack baremetal` can be told, against an ingotd as it is shipped.
// What there is to tell is asked of the client itself, so that a newer one that knows more fails here until the walk
// does too.
func TestEverySubcommand(t *testing.T) {
	p := ingotd.Start(t, kit.FreeAddr(t))
	// Debian's own Python, to which the client belongs
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "testdata/walk.py", p.URL)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "OS_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	home := t.TempDir()
	cmd.Env = append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME="+home, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the walk: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	for line := range strings.Lines(p.Log.String()) {
		if strings.Contains(line, "level=ERROR") && !strings.Contains(line, "aborted by request") {
			t.Errorf("ingotd had an error: %s", line)
		}
	}
}

// TestAgentRAID: the RAID interface called agent takes and keeps a configuration, and refuses an invalid one; an
// unknown step is refused, too.
func TestAgentRAID(t *testing.T) {
	p := ingotd.Start(t, kit.FreeAddr(t))
	want := func(status int, method, path, body string) string {
		t.Helper()
		got, _, out := p.Ask(method, path, body, nil)
		if got != status {
			t.Fatalf("%s %s = %d %s, want %d", method, path, got, out, status)
		}
		return out
	}
	for _, driver := range []string{"ipmi", "redfish", "idrac", "manual-management", "fake-hardware"} {
		want(201, "POST", "/v1/nodes", `{"driver":"`+driver+`","name":"`+driver+
			`","raid_interface":"agent","driver_info":{"ipmi_address":"192.0.2.1"}}`)
		// Ironic keeps what its agent can't make, too, and says so when it is to be made.
		want(204, "PUT", "/v1/nodes/"+driver+"/states/raid",
			`{"logical_disks":[{"size_gb":"MAX","raid_level":"5","controller":"software"}]}`)
		want(204, "PUT", "/v1/nodes/"+driver+"/states/raid",
			`{"logical_disks":[{"size_gb":"MAX","raid_level":"1","controller":"software"}]}`)
		want(400, "PUT", "/v1/nodes/"+driver+"/states/raid", `{"logical_disks":[{"size_gb":"MAX","raid_level":"one"}]}`)
		if out := want(200, "GET", "/v1/nodes/"+driver+"/states", ""); !strings.Contains(out,
			`"target_raid_config":{"logical_disks":[{"controller":"software","raid_level":"1","size_gb":"MAX"}]}`) {
			t.Errorf("states of the node of type %s: %s", driver, out)
		}
	}
	want(202, "PUT", "/v1/nodes/fake-hardware/states/provision", `{"target":"manage"}`)
	ingotd.Wait(t, "the node is manageable", func() bool {
		return strings.Contains(want(200, "GET", "/v1/nodes/fake-hardware/states", ""),
			`"provision_state":"manageable"`)
	})
	out := want(400, "PUT", "/v1/nodes/fake-hardware/states/provision",
		`{"target":"clean","clean_steps":[{"interface":"raid","step":"create_configuration"}]}`)
	if !strings.Contains(out, "create_configuration") {
		t.Errorf("the refusal does not name the step: %s", out)
	}
}
