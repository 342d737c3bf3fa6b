package cli

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/tools/writer"
)

// writerCommand is the program that runs on hosts of export.writers.
func (p *program) writerCommand() *cobra.Command {
	agent, atOnce := "ingot-agent", 4
	return p.online(&cobra.Command{
		Use: "writer", Short: "Write the disks that machines lend to this host",
		Long: `For nodes with deploy interface iscsi a host writes the image, over iSCSI, in place of the machine's agent. This command
runs on that host until it is stopped: as root, with open-iscsi and ingot-agent installed, and the host's address and
initiator (/etc/iscsi/initiatorname.iscsi) in the conductor's export.writers.

  ingot writer --endpoint https://ingot.example:6385

Its user needs the role admin or service in the system.`,
		Args: cobra.NoArgs,
	}, []option{
		opt("agent", &agent, "the program ingot-agent"),
		opt("at-once", &atOnce, "disks that are written at the same time").freeText(),
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		return writer.Run(ctx, writer.Options{Conductor: c, Agent: agent, AtOnce: atOnce,
			Log: slog.New(slog.NewTextHandler(p.stderr, nil))})
	})
}
