package compat

import (
	"os"
	"os/exec"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

// TestOpenstackSDK runs openstacksdk, the library beneath Nova, Ansible and the command line, from Debian's python3-openstacksdk.
func TestOpenstackSDK(t *testing.T) {
	c := bench.Start(t, nil)
	// Debian's own Python, whichever else is first in the path: the package belongs to it.
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "testdata/sdk.py", c.URL)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("openstacksdk: %v\n%s", err, out)
	}
}
