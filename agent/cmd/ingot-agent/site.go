package main

import (
	"context"
	"log/slog"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/agent/step/site"
)

// withSite adds the site's steps below folder to the agent's own. The error lists invalid steps, which are left out: a
// ramdisk with such steps is not built, and no conductor would accept the table of one that was damaged later.
func withSite(table []step.Step, folder string, m linux.Machine, log *slog.Logger) ([]step.Step, error) {
	more, err := site.Load(folder, m, func(ctx context.Context) (any, error) {
		r, err := inventory.Collect(ctx, m, inventory.Options{Log: log})
		if err != nil {
			return nil, err
		}
		return r.Inventory, nil
	})
	return append(table, more...), err
}
