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
	return p.onNode(&cobra.Command{Use: "quarantine NAME --reason TEXT",
		Short: "Mark a machine in use as broken: it won't become available after its instance"},
		[]option{opt("reason", &reason, "reason")},
		func(ctx context.Context, c *client.Client, name string) error {
			if reason == "" {
				return usage("--reason is missing: say what is wrong with the machine")
			}
			if _, err := c.Quarantine(ctx, name, reason); err != nil {
				return err
			}
			return p.say("%s is in quarantine: %s", name, reason)
		})
}

func (p *program) nodeUnquarantine() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "unquarantine NAME", Short: "Take a machine out of quarantine"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			if err := c.Unquarantine(ctx, name); err != nil {
				return err
			}
			return p.say("%s is not in quarantine", name)
		})
}

func (p *program) nodeBreakLock() *cobra.Command {
	var yes bool
	return p.onNode(&cobra.Command{
		Use: "break-lock NAME", Short: "Break the lock of a node; the operation that runs on it fails"},
		[]option{opt("yes,y", &yes, "don't ask")},
		func(ctx context.Context, c *client.Client, name string) error {
			l, err := c.Lock(ctx, name)
			if err != nil {
				return err
			}
			if !l.Locked {
				return p.say("%s is not locked", name)
			}
			if err := p.confirm(yes, fmt.Sprintf("%s is held by %s for %s: %s. What is under way will have failed, "+
				"and the state of the machine will be unknown. Break the lock?", name, l.Holder,
				time.Duration(l.AgeSeconds*float64(time.Second)).Round(time.Second), l.Purpose)); err != nil {
				return err
			}
			if l, err = c.BreakLock(ctx, name); err != nil {
				return err
			}
			return p.say("the lock of %s on %s is broken (%s)", l.Holder, name, l.Purpose)
		})
}
