package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestISO boots the image that `ingot ramdisk iso` writes from a CD drive, by a BIOS and by UEFI: the agent enrols with
// a token that is in its own part of the ramdisk and on no command line.
func TestISO(t *testing.T) {
	for _, uefi := range []bool{false, true} {
		t.Run(map[bool]string{false: "bios", true: "uefi"}[uefi], func(t *testing.T) {
			d := newDesk(t)
			params := filepath.Join(t.TempDir(), "params")
			secrets := fmt.Sprintf("ingot.conductor=%s ingot.ca=%s ingot.token=%s", host(d.addr), d.ca.Fingerprint(),
				d.token)
			if err := os.WriteFile(params, []byte(secrets), 0o600); err != nil {
				t.Fatal(err)
			}
			iso := filepath.Join(t.TempDir(), "agent.iso")
			kit.Run(t, made.Program(t, "ingot"), "ramdisk", "iso", "--ramdisk",
				made.Ramdisk(t, made.RamdiskLab), "--params", params, "--append", "mitigations=off no_timer_check", "--out", iso)
			console := kit.Boot(t, kit.VM{UEFI: uefi, Timeout: bootLimit, Args: append(nic(), "-cdrom", iso)})
			for _, want := range []string{"ingot: network: eth0 10.0.2.15/24", "ingot: node " + d.node.UUID} {
				if !strings.Contains(console, want) {
					t.Errorf("the console does not say %q:\n%s", want, console)
				}
			}
			if strings.Contains(console, d.token) {
				t.Error("the token is on the console")
			}
		})
	}
}
