package machine

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestNoRandomGenerator boots the agent on a machine that has no source of random numbers at all. It says so, and is at
// work, keys and TLS and all, without waiting for the kernel to gather some.
func TestNoRandomGenerator(t *testing.T) {
	d := newDesk(t, plan("inspect-1", node.PhaseInspect, node.PlanStep{Interface: "inspect", Name: "inspect"}))
	vm := agentOf(t, made.RamdiskLab, d, nic()...)
	vm.Append += " ingot.debug=1"
	vm.NoRandom = true
	console := kit.Boot(t, vm)
	var report map[string]any
	d.result("inspect", &report)
	// With ingot.debug=1 the log is on the console, too.
	seeded := strings.Index(console, "ingot: random numbers seeded from timing jitter")
	if seeded < 0 ||
		!strings.Contains(console,
			`msg="this machine has no random number generator that the kernel trusts; seeded it" from="timing jitter"`) {
		t.Errorf("neither console nor log says where random numbers come from:\n%s", console)
	}
	if at := strings.Index(console, "ingot: node "+d.node.UUID); at < seeded {
		t.Errorf("it was at work before it had random numbers:\n%s", console)
	}
}
