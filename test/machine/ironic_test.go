package machine

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ironicsim"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestUnderIronic boots an ISO image whose command line names an Ironic of the newest kind: the agent finds its node,
// serves commands with its own certificate by TLS 1.3, erases the disk's metadata, and switches the machine off.
func TestUnderIronic(t *testing.T) {
	sim := ironicsim.New(t, ironicsim.Newest, "52:54:00:aa:00:01", 30)
	sim.Limit = bootLimit
	sim.Begin("clean", false, ironicsim.Step{Interface: "deploy", Step: "erase_devices_metadata", Priority: 99})
	_, port, err := net.SplitHostPort(kit.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	iso := filepath.Join(t.TempDir(), "agent.iso")
	words := fmt.Sprintf("mitigations=off no_timer_check ipa-api-url=http://%s ipa-advertise-host=127.0.0.1 ipa-advertise-port=%s",
		host(strings.TrimPrefix(sim.URL, "http://")), port)
	kit.Run(t, made.Program(t, "ingot"), "ramdisk", "iso", "--ramdisk", made.Ramdisk(t, made.RamdiskLab), "--append",
		words, "--out", iso)
	disk := kit.TempDisk(t, 5<<30)
	dirtyEnds(t, disk)
	m := kit.Start(t, kit.VM{Timeout: bootLimit, Disks: []string{disk}, Args: []string{"-cdrom", iso, "-boot", "d",
		"-netdev", "user,id=n0,hostfwd=tcp:127.0.0.1:" + port + "-:9999", "-device",
		"virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01,romfile="}})
	sim.WaitState("available")
	if at, _ := sim.Callback(); at != "https://127.0.0.1:"+port {
		t.Errorf("the agent is at %s", at)
	}
	if r, ok := sim.Call("standby.power_off", false, map[string]any{}); !ok || r.Status == "FAILED" {
		t.Errorf("power off: %+v", r)
	}
	<-m.Ended
	for _, want := range []string{"ingot: this machine is node 1be26c0b", "ingot: step erase_devices_metadata",
		"ingot: ending this boot: off"} {
		if !strings.Contains(m.Console(), want) {
			t.Errorf("the console does not say %q:\n%s", want, m.Console())
		}
	}
}
