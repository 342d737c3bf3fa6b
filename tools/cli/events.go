package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// eventsCommand follows what happens.
func (p *program) eventsCommand() *cobra.Command {
	var q client.EventQuery
	cmd := &cobra.Command{
		Use: "events", Short: "Follow events of all nodes until Ctrl-C",
		Long: `Follow what happens to machines and other resources: what is made, changed and deleted, power and provisioning,
maintenance, faults, and how far running work is. A conductor that is restarted meanwhile is waited for, and nothing is missed:
what is not kept any more is said. With -o json each line is one event as GET /ingot/v1/events has it.

Types are Ironic's notifications (baremetal.node.provision_set.end); --type takes the beginning of one as well, and baremetal. may
be left out: --type node.power_set`,
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringSliceVar(&q.Nodes, "node", nil, "only of this node (name or UUID); may be repeated")
	cmd.Flags().StringSliceVar(&q.Types, "type", nil, "only events of this type; may be repeated")
	cmd.Flags().Int64Var(&q.After, "after", -1, "start after the event with this ID; 0 means all stored events")
	if err := cmd.RegisterFlagCompletionFunc("node",
		func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return p.completeNode(cmd, nil, prefix)
		}); err != nil {
		panic(err)
	}
	complete(cmd, "type", "node", "node.create", "node.update", "node.delete", "node.provision_set", "node.power_set",
		"node.maintenance_set", "ingot.node.progress", "port")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		return ignoreCancel(c.Events(ctx, q, func(e rest.Event) error {
			if p.output == "json" {
				b, err := json.Marshal(e)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.stdout, "%s\n", b)
				return err
			}
			_, err := fmt.Fprintln(p.stdout, eventLine(e))
			return err
		}))
	})
	return cmd
}

// eventLine writes an event for people.
func eventLine(e rest.Event) string {
	at := e.Time
	if t, err := time.Parse(time.RFC3339Nano, e.Time); err == nil {
		at = t.Local().Format("15:04:05")
	}
	if e.Message != "" {
		return at + "  " + e.Message
	}
	who := e.NodeName
	if who == "" {
		who = e.NodeUUID
	}
	if e.Kind != "node" {
		what := e.Kind + " " + dash(e.Name)
		if e.Name == "" {
			what = e.Kind + " " + e.UUID
		}
		who = strings.TrimSpace(who + " " + what)
	}
	var said []string
	for _, k := range slices.Sorted(maps.Keys(e.Changed)) {
		said = append(said, fmt.Sprintf("%s %s -> %s", k, orDash(e.Changed[k].From), orDash(e.Changed[k].To)))
	}
	if len(e.Fields) > 0 {
		said = append(said, strings.Join(e.Fields, ", "))
	}
	if pr := e.Progress; pr != nil {
		line := pr.Step + " " + size(pr.Bytes)
		if pr.Total > 0 {
			line += " of " + size(pr.Total)
		}
		said = append(said, line)
	}
	if e.Error != "" {
		said = append(said, e.Error)
	}
	if e.User != "" {
		said = append(said, "by "+e.User)
	}
	return strings.TrimRight(fmt.Sprintf("%s  %s  %s  %s", at, dash(who), strings.TrimPrefix(e.Type, "baremetal."),
		strings.Join(said, "; ")), " ")
}

func orDash(v any) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(v)
}

// logCommand searches what happened.
func (p *program) logCommand() *cobra.Command {
	var q client.LogQuery
	cmd := &cobra.Command{
		Use: "log", Short: "Search the events of all nodes, deleted ones included",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&q.Node, "node", "", "only of this node (name or UUID)")
	f.StringVar(&q.User, "user", "", "what this user asked for")
	f.StringVar(&q.Project, "project", "", "asked for by this project, or on machines that it owns or leases")
	f.StringVar(&q.Type, "type", "",
		"about this only: provisioning, deployment_start, deployment_end (and so for automated_cleaning, manual_cleaning, servicing), power, boot, monitoring, enrolment")
	f.StringVar(&q.Severity, "severity", "", "INFO, WARNING or ERROR")
	f.StringVar(&q.Text, "text", "", "only entries that contain these words")
	f.StringVar(&q.Since, "since", "", "not before this time (2026-01-31T12:00:00Z), or this long ago (24h)")
	f.StringVar(&q.Until, "until", "", "before this time, or this long ago")
	f.IntVarP(&q.Limit, "limit", "n", 100, "show at most this many entries, the newest")
	complete(cmd, "type", "provisioning", "deployment_start", "deployment_end", "automated_cleaning_start",
		"automated_cleaning_end", "manual_cleaning_start", "manual_cleaning_end", "servicing_start", "servicing_end",
		"power", "boot", "monitoring", "enrolment")
	complete(cmd, "severity", "INFO", "WARNING", "ERROR")
	if err := cmd.RegisterFlagCompletionFunc("node",
		func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return p.completeNode(cmd, nil, prefix)
		}); err != nil {
		panic(err)
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		if q.Limit < 1 {
			return usage("--limit %d is not a number of lines", q.Limit)
		}
		lines, err := c.Log(ctx, q)
		if err != nil {
			return err
		}
		if p.output == "json" {
			if lines == nil {
				lines = []rest.LogEntry{}
			}
			return p.printJSON(lines)
		}
		slices.Reverse(lines) // for reading, the newest comes last
		rows := make([][]string, len(lines))
		for i, l := range lines {
			name := string(l.NodeName)
			if name == "" {
				name = l.NodeUUID
			}
			if l.Deleted {
				name += " (deleted)"
			}
			rows[i] = []string{when(l.CreatedAt.Time), name, l.Severity, l.EventType, dash(string(l.User)), l.Event}
		}
		return table(p.stdout, []string{"TIME", "NODE", "SEVERITY", "ABOUT", "WHO", "EVENT"}, rows)
	})
	return cmd
}

// driverMatrix shows which type has which interfaces.
func (p *program) driverMatrix() *cobra.Command {
	cmd := &cobra.Command{
		Use: "matrix", Short: "Show which hardware type has which interfaces, the default first",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		all, err := c.Capabilities(ctx)
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(all)
		}
		kinds := map[string]bool{}
		head := []string{"INTERFACE"}
		for _, t := range all.HardwareTypes {
			head = append(head, strings.ToUpper(t.Name))
			for kind := range t.Interfaces {
				kinds[kind] = true
			}
		}
		var rows [][]string
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			row := []string{kind}
			for _, t := range all.HardwareTypes {
				row = append(row, dash(strings.Join(t.Interfaces[kind].Enabled, ", ")))
			}
			rows = append(rows, row)
		}
		return table(p.stdout, head, rows)
	})
	return cmd
}

// showType writes what is known of a hardware type and its interfaces.
func (p *program) showType(all *rest.Capabilities, name string) error {
	i := slices.IndexFunc(all.HardwareTypes, func(t rest.HardwareType) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	t := all.HardwareTypes[i]
	fmt.Fprintf(p.stdout, "%s: %s\n\n", t.Name, t.Description)
	var rows [][]string
	for _, kind := range slices.Sorted(maps.Keys(t.Interfaces)) {
		for n, iface := range t.Interfaces[kind].Enabled {
			what := ""
			if at := slices.IndexFunc(all.Interfaces,
				func(i rest.HardwareInterface) bool { return i.Kind == kind && i.Name == iface }); at >= 0 {
				what = all.Interfaces[at].Description
			}
			label := kind
			if n > 0 {
				label = ""
			}
			rows = append(rows, []string{label, iface, what})
		}
	}
	if err := table(p.stdout, []string{"INTERFACE", "NAME", "WHAT IT DOES"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout)
	return nil
}
