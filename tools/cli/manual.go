package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/tools/cli/manual"
)

// manualCommand writes the manual pages, for those who make packages. It is not in the help.
func (p *program) manualCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "manual FOLDER", Short: "Write the manual pages", Hidden: true,
		Args: oneArg("the folder to write to")}
	return local(cmd, nil, func(_ context.Context, args []string) error {
		day := time.Now()
		if s := p.getenv("SOURCE_DATE_EPOCH"); s != "" {
			seconds, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return usage("SOURCE_DATE_EPOCH %q is not a number of seconds", s)
			}
			day = time.Unix(seconds, 0)
		}
		for name, page := range manual.Pages(cmd.Root(), day) {
			if err := os.WriteFile(filepath.Join(args[0], name), page, 0o644); err != nil {
				return fmt.Errorf("write manual page: %w", err)
			}
		}
		return nil
	})
}
