package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
)

func (p *program) nodeQuarantine() *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: "quarantine NAME --reason TEXT",
		Short: "Mark a machine in use as broken: it won't become available after its instance", Args: oneNode,
		ValidArgsFunction: p.completeNode}
	cmd.Flags().StringVar(&reason, "reason", "", "reason")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		if reason == "" {
			return usage("--reason is missing: say what is wrong with the machine")
		}
		if _, err := c.Quarantine(ctx, args[0], reason); err != nil {
			return about(args[0], err)
		}
		fmt.Fprintf(p.stdout, "%s is in quarantine: %s\n", args[0], reason)
		return nil
	})
	return cmd
}

func (p *program) nodeUnquarantine() *cobra.Command {
	cmd := &cobra.Command{Use: "unquarantine NAME", Short: "Take a machine out of quarantine", Args: oneNode,
		ValidArgsFunction: p.completeNode}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		if err := c.Unquarantine(ctx, args[0]); err != nil {
			return about(args[0], err)
		}
		fmt.Fprintf(p.stdout, "%s is not in quarantine\n", args[0])
		return nil
	})
	return cmd
}

func (p *program) nodeBreakLock() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "break-lock NAME", Short: "Break the lock of a node; the operation that runs on it fails",
		Args: oneNode, ValidArgsFunction: p.completeNode}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		l, err := c.Lock(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		if !l.Locked {
			fmt.Fprintf(p.stdout, "%s is not locked\n", args[0])
			return nil
		}
		held := fmt.Sprintf("%s is held by %s for %s: %s", args[0], l.Holder,
			time.Duration(l.AgeSeconds*float64(time.Second)).Round(time.Second), l.Purpose)
		if err := p.confirm(yes,
			held+". What is under way will have failed, and nobody will know how the machine stands. Break the lock?"); err != nil {
			return err
		}
		if l, err = c.BreakLock(ctx, args[0]); err != nil {
			return about(args[0], err)
		}
		fmt.Fprintf(p.stdout, "the lock of %s on %s is broken (%s)\n", l.Holder, args[0], l.Purpose)
		return nil
	})
	return cmd
}
