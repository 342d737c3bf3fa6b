package machine

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
)

// TestNoRandomGenerator boots the agent on a machine that has no source of random numbers at all. It says so, and is at work, keys and
// TLS and all, without waiting for the kernel to gather some.
func TestNoRandomGenerator(t *testing.T) {
	art, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	d := newDesk(t, plan("inspect-1", node.PhaseInspect, node.PlanStep{Interface: "inspect", Name: "inspect"}))
	console := kit.Boot(t, kit.VM{
		Kernel: filepath.Join(art.ramdisk, "vmlinuz"), Initrd: filepath.Join(art.ramdisk, "initramfs.cpio.zst"), Append: d.cmdline() + " ingot.debug=1",
		NoRandom: true, Timeout: bootLimit, Args: []string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01"},
	})
	var report map[string]any
	d.result("inspect", &report)
	// With ingot.debug=1 the log is on the console, too.
	seeded := strings.Index(console, "ingot: random numbers seeded from timing jitter")
	if seeded < 0 || !strings.Contains(console, `msg="this machine has no random number generator that the kernel trusts; seeded it" from="timing jitter"`) {
		t.Errorf("neither console nor log says where random numbers come from:\n%s", console)
	}
	if at := strings.Index(console, "ingot: node "+d.node.UUID); at < seeded {
		t.Errorf("it was at work before it had random numbers:\n%s", console)
	}
}
