package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/tools/demo"
	"github.com/ingot-metal/ingot/tools/lab"
)

func (p *program) labDemo() *cobra.Command {
	var firmware, dir, ingotd string
	var down bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Show the main job in a virtual rack: a powered-off machine becomes a running Debian",
		Long: `Show the main job live, in a virtual rack of one machine. It builds the ramdisk and a Debian 12 image the first time (run it in
Ingot's source), brings up the rack "demo" with a conductor, and takes the machine from power-off to a login prompt by the same
commands that you would type; then it gives the machine back and deploys it once more without a reboot. At the end it shows both times and where
every second went, and leaves the rack up until "ingot lab down --name demo".
Ctrl-C takes everything down.`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&firmware, "firmware", "bios", "bios or uefi")
	f.StringVar(&dir, "dir", "build", "folder for what is built and for the rack's files")
	f.StringVar(&ingotd, "ingotd", "", "the conductor's program (default: beside this one)")
	f.BoolVar(&down, "down", false, "take the rack down at the end instead of leaving it up")
	complete(cmd, "firmware", "bios", "uefi")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if firmware != "bios" && firmware != "uefi" {
			return usage("--firmware %q is neither bios nor uefi", firmware)
		}
		if os.Geteuid() != 0 {
			return errors.New("the demo needs root, for a network namespace and virtual machines: run it with sudo")
		}
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		if ingotd == "" {
			ingotd = filepath.Join(filepath.Dir(self), "ingotd")
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		if ingotd, err = filepath.Abs(ingotd); err != nil {
			return err
		}
		return demo.Run(cmd.Context(), demo.Options{
			Firmware: lab.Firmware(firmware), Dir: dir, Ingotd: ingotd, Self: []string{self, "lab", "run"},
			Out: p.terminal, Stay: !down, Command: func(ctx context.Context, endpoint string, args ...string) error {
				return Run(ctx, append([]string{"--endpoint", endpoint}, args...), nothing{}, p.terminal, p.stderr,
					p.getenv)
			},
		})
	}
	return cmd
}

// nothing is an input that has ended.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }
