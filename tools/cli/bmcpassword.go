package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
)

func (p *program) bmcPassword() *cobra.Command {
	var file string
	return p.online(&cobra.Command{
		Use:   "password NODE...",
		Short: "Set a new password at machines' controllers, and in their nodes",
		Long: `Set a new password for the account that nodes of type redfish use at their controllers. The conductor does it, since only it has the present
one: it stores the new one beside that, sets it, logs in with it, and then forgets the earlier one. If it is interrupted at any point, both are
kept, and the next reading of the machine's power finds out which is right.

The machines are not touched. An account that IPMI uses, too, has the new password there as well, on most controllers.`,
		Example:           `  ingot bmc password --new-password-file pw web1 web2`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: p.completeNode,
	}, []option{
		opt("new-password-file", &file, "file with the new password, or take $INGOT_BMC_NEW_PASSWORD (default: ask)"),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		password := p.getenv("INGOT_BMC_NEW_PASSWORD")
		if password == "" || file != "" {
			var err error
			if password, err = p.newPassword(file); err != nil {
				return err
			}
		}
		if password == "" {
			return usage("the new password is empty")
		}
		return p.eachNode(ctx, args, func(row *outcome) error {
			if err := c.SetControllerPassword(ctx, row.Name, password); err != nil {
				return err
			}
			row.Result = "changed"
			return nil
		})
	})
}

// newPassword reads a new password from a file, or asks for it twice.
func (p *program) newPassword(file string) (string, error) {
	if file != "" {
		return p.secret("", file, "")
	}
	first, _, err := p.ask("New password at the controllers: ")
	if err != nil {
		return "", err
	}
	second, _, err := p.ask("Once more: ")
	if err == nil && first != second {
		err = usage("the two passwords differ")
	}
	return first, err
}
