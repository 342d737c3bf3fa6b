package machine

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/boot/kexec"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestKexecLocked installs on a machine whose kernel is locked down as under Secure Boot: a kernel whose signature is
// not trusted is not loaded, and the result says what stands in the way. The deployment is done all the same, and the
// conductor has the machine switched off.
func TestKexecLocked(t *testing.T) {
	d := newDesk(t, plan("deploy-1", node.PhaseDeploy, tinyServer(t)(nil), prepareBoot,
		node.PlanStep{Interface: "deploy", Name: "load_kernel"}))
	vm := agentOf(t, made.RamdiskLab, d, nic()...)
	vm.Append += " lockdown=integrity"
	vm.Disks = []string{kit.TempDisk(t, 5<<30)}
	console := kit.Boot(t, vm)
	var r kexec.Result
	d.result("load_kernel", &r)
	// The lab's firmware has no keys, so that the agent's kernel trusts none but those it was built with.
	if r.Loaded || !strings.Contains(r.Reason, "the agent's kernel is locked down") ||
		!strings.Contains(r.Reason, "its signature") || r.Kernel == "" {
		t.Errorf("load_kernel = %+v", r)
	}
	if !strings.Contains(console, "the conductor ends this boot: off") {
		t.Errorf("the console:\n%s", console)
	}
}
