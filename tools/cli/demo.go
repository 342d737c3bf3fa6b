package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/tools/demo"
	"github.com/ingot-metal/ingot/tools/lab"
)

func (p *program) labDemo() *cobra.Command {
	firmware, bmc, dir, ingotd := "bios", "ipmi", "build", ""
	var down, several bool
	return local(&cobra.Command{
		Use: "demo", Short: "Show the main job in a virtual rack: a powered-off machine becomes a running Debian",
		Long: `Show the main job live, in a virtual rack of one machine. It builds the ramdisk and a Debian 12 image the first time (run it in
Ingot's source), brings up the rack "demo" with a conductor, and takes the machine from power-off to a login prompt by the same
commands that you would type; then it gives the machine back and deploys it once more without a reboot. At the end it shows both times and where
every second went, and leaves the rack up until "ingot lab down --name demo".
Ctrl-C takes everything down.`,
	}, []option{
		opt("firmware", &firmware, "bios or uefi", "bios", "uefi"),
		opt("bmc", &bmc, "what the machine's controller speaks: ipmi or redfish", "ipmi", "redfish"),
		opt("dir", &dir, "folder for what is built and for the rack's files"),
		opt("ingotd", &ingotd, "the conductor's program (default: beside this one)"),
		opt("several", &several,
			"three conductors on one PostgreSQL: one is killed, one frozen and the database restarted during the deployment (needs --bmc redfish)"),
		opt("down", &down, "take the rack down at the end instead of leaving it up"),
	}, func(ctx context.Context, _ []string) error {
		if firmware != "bios" && firmware != "uefi" {
			return usage("--firmware %q is neither bios nor uefi", firmware)
		}
		if bmc != string(lab.IPMI) && bmc != string(lab.Redfish) {
			return usage("--bmc %q is neither ipmi nor redfish", bmc)
		}
		if several && bmc != string(lab.Redfish) {
			return usage("--several needs --bmc redfish: one network boot server is enough for its network")
		}
		if os.Geteuid() != 0 {
			return errors.New("the demo needs root, for a network namespace and virtual machines: run it with sudo")
		}
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		ingotd = cmp.Or(ingotd, filepath.Join(filepath.Dir(self), "ingotd"))
		for _, path := range []*string{&dir, &ingotd} {
			if err := absolute(path); err != nil {
				return err
			}
		}
		return demo.Run(ctx, demo.Options{
			Firmware: lab.Firmware(firmware), BMC: lab.BMCKind(bmc), Several: several, Dir: dir, Ingotd: ingotd,
			Self: []string{self, "lab", "run"},
			Out:  p.terminal, Stay: !down, Command: func(ctx context.Context, endpoint string, args ...string) error {
				args = append([]string{"--endpoint", endpoint}, args...)
				return Run(ctx, args, strings.NewReader(""), p.terminal, p.stderr, p.getenv)
			},
		})
	})
}
