package cli

import "github.com/spf13/cobra"

// toolCommands are the commands that do not talk to a conductor.
func (p *program) toolCommands() []*cobra.Command {
	return []*cobra.Command{p.ramdiskCommand(), p.imageCommand(), p.labCommand()}
}
