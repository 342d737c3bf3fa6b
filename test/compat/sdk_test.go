package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// clouds names the endpoint for tests of openstacksdk, under the names that they look for. Nothing but bare metal is
// there.
const clouds = `clouds:
  ingot: &ingot
    auth_type: none
    has_compute: false
    has_image: false
    auth: {endpoint: "%[1]s"}
    baremetal_endpoint_override: "%[1]s"
  devstack: *ingot
  devstack-alt: *ingot
  devstack-admin: *ingot
`

// sdkDiffers are tests of openstacksdk that fail on purpose, with the last line of what they say.
// docs/reference/ironic-differences.md has the reasons.
var sdkDiffers = map[string]string{
	"openstack.tests.functional.baremetal.test_baremetal_node.TestBareMetalNode.test_node_power_state": "testtools.matchers._impl.MismatchError: 'power off' is not None",
}

// sdkUncalled are methods of openstacksdk that are for a cloud with Neutron. Each other one is called.
var sdkUncalled = []string{"attach_port_to_machine", "detach_port_from_machine", "list_ports_attached_to_machine"}

// TestOpenstackSDK runs openstacksdk, the library beneath Nova, Ansible and the command line, from Debian's
// python3-openstacksdk: the functional tests that this package brings, and calls of every method that they leave out.
func TestOpenstackSDK(t *testing.T) {
	p := ingotd.Start(t, kit.FreeAddr(t))
	home := t.TempDir()
	file := filepath.Join(home, "clouds.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, clouds, p.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), debian.Python, "testdata/sdk.py", p.URL)
	cmd.Env = append(append(os.Environ(), unpack(t, "python3-oslotest", "python3-requests-mock").Env...), "HOME="+home,
		"OS_CLIENT_CONFIG_FILE="+file, "OS_TEST_TIMEOUT=300", "PYTHONDONTWRITEBYTECODE=1")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("openstacksdk: %v\n%s\n%s", err, out, said.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var got struct {
		Ran, Methods      int
		Failed            map[string]string
		Skipped, Uncalled []string
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
		t.Fatalf("the result of openstacksdk's tests: %v\n%s", err, out)
	}
	for id, text := range got.Failed {
		if sdkDiffers[id] != text {
			t.Errorf("%s: %s", id, text)
		}
	}
	for id := range sdkDiffers {
		if got.Failed[id] == "" {
			t.Errorf("%s passes, and is said to fail", id)
		}
	}
	if got.Ran < 70 || len(got.Skipped) > 0 {
		t.Errorf("%d tests of openstacksdk were run, skipped: %v", got.Ran, got.Skipped)
	}
	if fmt.Sprint(got.Uncalled) != fmt.Sprint(sdkUncalled) {
		t.Errorf("methods that were not called: %v, want %v", got.Uncalled, sdkUncalled)
	}
	t.Logf("openstacksdk: %d of %d tests passed, %d of %d methods called; %v CPU", got.Ran-len(got.Failed), got.Ran,
		got.Methods-len(got.Uncalled), got.Methods, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
}
