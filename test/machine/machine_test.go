// Package machine holds tests of the agent in a QEMU machine, without a conductor's engine: the machine is booted
// directly from kernel and ramdisk, or from a disk that ingot-agent wrote. Needs root.
package machine

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// Machines are emulated on shared processors: limits are many times the usual duration.
const (
	bootLimit = 10 * time.Minute // boot of the agent and its steps
	osLimit   = 8 * time.Minute  // from power-on to the login prompt of the tiny system
)

// nic is a network card that leads to this machine. The firmware need not start a boot ROM for it.
func nic() []string {
	return []string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01,romfile="}
}

// agentOf is a machine that starts the agent from a ramdisk, for d, with more arguments of QEMU.
func agentOf(t *testing.T, ramdisk string, d *desk, args ...string) kit.VM {
	t.Helper()
	dir := made.Ramdisk(t, ramdisk)
	return kit.VM{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initramfs.cpio.zst"),
		Append: d.cmdline(), Timeout: bootLimit, Args: args}
}

// tinyServer serves the tiny system to machines; the function gives the step that writes it, with more arguments.
func tinyServer(t *testing.T) (write func(more map[string]any) node.PlanStep) {
	t.Helper()
	tiny := made.Image(t, made.Tiny)
	files := httptest.NewServer(http.FileServer(http.Dir(tiny.Dir)))
	t.Cleanup(files.Close)
	zst := tiny.File(tiny.Zst)
	return func(more map[string]any) node.PlanStep {
		args := map[string]any{
			"image_source":       "http://" + host(files.Listener.Addr().String()) + "/" + zst.File,
			"image_os_hash_algo": "sha256", "image_os_hash_value": zst.SHA256,
		}
		maps.Copy(args, more)
		data, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		return node.PlanStep{Interface: "deploy", Name: "write_image", Args: data}
	}
}

// prepareBoot is the step that makes a written disk bootable.
var prepareBoot = node.PlanStep{Interface: "deploy", Name: "prepare_instance_boot"}
