package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// eventsCommand follows what happens.
func (p *program) eventsCommand() *cobra.Command {
	q := client.EventQuery{After: -1}
	return p.online(&cobra.Command{
		Use: "events", Short: "Follow events of all nodes until Ctrl-C",
		Long: `Follow what happens to machines and other resources: what is made, changed and deleted, power and provisioning,
maintenance, faults, and how far running work is. A conductor that is restarted meanwhile is waited for, and nothing is missed:
what is not kept any more is said. With -o json each line is one event as GET /ingot/v1/events has it.

Types are Ironic's notifications (baremetal.node.provision_set.end); --type takes the beginning of one as well, and baremetal. may
be left out: --type node.power_set`,
	}, []option{
		opt("node", (*commaList)(&q.Nodes), "only of this node (name or UUID); may be repeated").offering(p.completeNode),
		opt("type", (*commaList)(&q.Types), "only events of this type; may be repeated", "node", "node.create",
			"node.update", "node.delete", "node.provision_set", "node.power_set", "node.maintenance_set",
			"ingot.node.progress", "port"),
		opt("after", &q.After, "start after the event with this ID; 0 means all stored events"),
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		return ignoreCancel(c.Events(ctx, q, func(e rest.Event) error {
			if !p.values() {
				return p.say("%s", eventLine(e))
			}
			if !p.format.JSON() {
				return p.print(e)
			}
			b, err := json.Marshal(e) // a line for each
			if err != nil {
				return err
			}
			return p.say("%s", b)
		}))
	})
}

// eventLine writes an event for people.
func eventLine(e rest.Event) string {
	at := clock(e.Time, "15:04:05")
	if e.Message != "" {
		return at + "  " + e.Message
	}
	who := cmp.Or(e.NodeName, e.NodeUUID)
	if e.Kind != "node" {
		who = strings.TrimSpace(who + " " + e.Kind + " " + cmp.Or(e.Name, e.UUID))
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
	q := client.LogQuery{Limit: 100}
	return p.online(&cobra.Command{Use: "log", Short: "Search the events of all nodes, deleted ones included"}, []option{
		opt("node", &q.Node, "only of this node (name or UUID)").offering(p.completeNode),
		opt("user", &q.User, "what this user asked for"),
		opt("project", &q.Project, "asked for by this project, or on machines that it owns or leases"),
		opt("type", &q.Type,
			"about this only: provisioning, deployment_start, deployment_end (and so for automated_cleaning, manual_cleaning, servicing), power, boot, monitoring, enrolment",
			"provisioning", "deployment_start", "deployment_end", "automated_cleaning_start", "automated_cleaning_end",
			"manual_cleaning_start", "manual_cleaning_end", "servicing_start", "servicing_end", "power", "boot",
			"monitoring", "enrolment"),
		opt("severity", &q.Severity, "INFO, WARNING or ERROR", "INFO", "WARNING", "ERROR"),
		opt("text", &q.Text, "only entries that contain these words"),
		opt("since", &q.Since, "not before this time (2026-01-31T12:00:00Z), or this long ago (24h)"),
		opt("until", &q.Until, "before this time, or this long ago"),
		opt("limit,n", &q.Limit, "show at most this many entries, the newest"),
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		if q.Limit < 1 {
			return usage("--limit %d is not a number of lines", q.Limit)
		}
		lines, err := c.Log(ctx, q)
		if err != nil {
			return err
		}
		if !p.values() {
			slices.Reverse(lines) // for reading, the newest comes last
		}
		return list(p, lines, []string{"TIME", "NODE", "SEVERITY", "ABOUT", "WHO", "EVENT"},
			func(l *rest.LogEntry) []string {
				return []string{when(l.CreatedAt.Time),
					cmp.Or(string(l.NodeName), l.NodeUUID) + choose(l.Deleted, " (deleted)", ""), l.Severity,
					l.EventType, dash(string(l.User)), l.Event}
			})
	})
}

// driverMatrix shows which type has which interfaces.
func (p *program) driverMatrix() *cobra.Command {
	return p.online(&cobra.Command{
		Use: "matrix", Short: "Show which hardware type has which interfaces, the default first",
	}, nil, func(ctx context.Context, c *client.Client, _ []string) error {
		all, err := c.Capabilities(ctx)
		if err != nil {
			return err
		}
		if p.values() {
			return p.print(all)
		}
		rows := map[string][]string{}
		for _, t := range all.HardwareTypes {
			for kind := range t.Interfaces {
				rows[kind] = []string{kind}
			}
		}
		head := []string{"INTERFACE"}
		for _, t := range all.HardwareTypes {
			head = append(head, strings.ToUpper(t.Name))
			for kind := range rows {
				rows[kind] = append(rows[kind], dash(strings.Join(t.Interfaces[kind].Enabled, ", ")))
			}
		}
		return p.table(head,
			mapped(slices.Sorted(maps.Keys(rows)), func(kind *string) []string { return rows[*kind] }))
	})
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
			rows = append(rows, []string{choose(n == 0, kind, ""), iface, what})
		}
	}
	if err := p.table([]string{"INTERFACE", "NAME", "WHAT IT DOES"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout)
	return nil
}
