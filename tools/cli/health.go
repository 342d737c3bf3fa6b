package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
)

func (p *program) nodeHealth() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "health NAME",
		Short: "Show what the controller said of the machine last: failing parts, sensors, events",
		Long: `Show what a node's controller said of its machine when the conductor asked it last: health, parts that have failed or are going to, sensors,
and the newest entries of its event log. The controller is not asked again.

  ingot node health web-1
  ingot node health web-1 -o json`}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			h, err := c.MachineHealth(ctx, name)
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(h)
			}
			if h.Error != "" {
				p.note("%s: the newest attempt failed, at %s: %s", name, h.TriedAt.Format(time.RFC3339), h.Error)
			}
			if h.ReadAt.IsZero() {
				p.note("%s: nothing was read yet. Only idle machines with Redfish are (health.interval).", name)
				return nil
			}
			if err := p.say("%s: %s, read at %s", name, dash(string(h.Health)),
				h.ReadAt.Format(time.RFC3339)); err != nil {
				return err
			}
			var rows [][]string
			for _, x := range h.Parts {
				what := "has failed"
				if x.Predicted {
					what = "is going to fail"
				}
				rows = append(rows, []string{x.Kind, x.Name, what, dash(string(x.Health)), ""})
			}
			for _, x := range h.Sensors {
				most := ""
				if x.Critical != nil {
					most = "critical at " + number(*x.Critical)
				}
				value := "-"
				if x.Value != nil {
					value = number(*x.Value) + " " + x.Unit
				}
				rows = append(rows, []string{x.Kind, x.Name, value, dash(string(x.Health)), most})
			}
			for _, x := range h.Log {
				at := "-"
				if !x.Time.IsZero() {
					at = x.Time.Format(time.RFC3339)
				}
				rows = append(rows, []string{"event", x.ID, at, dash(string(x.Severity)), x.Message})
			}
			return p.table([]string{"KIND", "NAME", "VALUE", "HEALTH", "DETAIL"}, rows)
		})
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
