package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/tools/cli/render"
)

func (p *program) nodeWatch() *cobra.Command {
	return p.online(&cobra.Command{
		Use: "watch [NAME]", Short: "Watch a machine's work to its end, or all machines until Ctrl-C",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return oneNode(cmd, args)
			}
			return nil
		},
		ValidArgsFunction: p.completeNode,
	}, nil, func(ctx context.Context, c *client.Client, args []string) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		if len(args) == 0 {
			return ignoreCancel(p.watchAll(ctx, c))
		}
		d := newDisplay(p.stderr)
		end, err := c.Wait(ctx, args[0], d.update, settled...)
		d.end(err == nil)
		if err != nil {
			return ignoreCancel(about(args[0], err))
		}
		return p.say("%s is %s", args[0], end.ProvisionState)
	})
}

// settled are the states in which a machine stays and is well.
var settled = []string{"enroll", "manageable", "available", "active", "rescue"}

// watchAll shows all machines: as a table that is redrawn on a terminal, elsewhere a line for each change.
func (p *program) watchAll(ctx context.Context, c *client.Client) error {
	_, live := isTerminal(p.terminal)
	last := map[string]string{}
	lines := 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		nodes, err := c.Nodes(ctx, nil)
		if err != nil {
			return err
		}
		rows := mapped(nodes, nodeRow)
		if live {
			var b strings.Builder
			if err := render.Table(&b, nodeHead, rows); err != nil {
				return err
			}
			if lines > 0 {
				fmt.Fprintf(p.terminal, "\x1b[%dA\x1b[J", lines)
			}
			fmt.Fprint(p.stdout, b.String())
			lines = strings.Count(b.String(), "\n")
		} else {
			for i, row := range rows {
				now := strings.Join([]string{row[1], row[2], row[5]}, "  ")
				if last[nodes[i].UUID] != now {
					last[nodes[i].UUID] = now
					fmt.Fprintf(p.stdout, "%s  %s  %s\n", time.Now().Format("15:04:05"), label(&nodes[i]), now)
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *program) nodeValidate() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "validate NAME", Short: "Validate the settings of a node"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			v, err := c.Validate(ctx, name)
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(v)
			}
			var rows [][]string
			for _, kind := range []string{"power", "management", "boot", "inspect", "deploy", "network", "storage",
				"bios", "raid", "rescue", "console"} {
				r, ok := v[kind]
				if !ok {
					continue
				}
				result := "-"
				if r.Result != nil {
					result = choose(*r.Result, "ok", "NO")
				}
				rows = append(rows, []string{kind, result, r.Reason})
			}
			return p.table([]string{"INTERFACE", "RESULT", "REASON"}, rows)
		})
}

func (p *program) nodeHistory() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "history NAME", Short: "Show the history of a node"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			events, err := c.History(ctx, name)
			if err != nil {
				return err
			}
			return list(p, events, []string{"TIME", "SEVERITY", "ABOUT", "WHO", "EVENT"},
				func(e *client.Event) []string {
					return []string{when(e.CreatedAt.Time), e.Severity, e.Type, dash(string(e.User)), e.Event}
				})
		})
}

func (p *program) nodeInventory() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "inventory NAME", Short: "Show the inventory of a node"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			inv, err := c.Inventory(ctx, name)
			if err != nil {
				return uninspected(name, err)
			}
			if p.values() {
				return p.print(inv)
			}
			return p.showInventory(inv)
		})
}

// hardware is the part of an inventory that people want to see.
type hardware struct {
	Interfaces []struct {
		Name    string `json:"name"`
		MAC     string `json:"mac_address"`
		IPv4    string `json:"ipv4_address"`
		Carrier bool   `json:"has_carrier"`
		Speed   int    `json:"speed_mbps"`
		Driver  string `json:"driver"`
	} `json:"interfaces"`
	Disks []struct {
		Name       string `json:"name"`
		Model      string `json:"model"`
		Size       uint64 `json:"size"`
		Rotational bool   `json:"rotational"`
		Serial     string `json:"serial"`
		Tran       string `json:"tran"`

		MemberOf []string `json:"member_of"`
	} `json:"disks"`
	CPU struct {
		Model string `json:"model_name"`
		Count int    `json:"count"`
		Arch  string `json:"architecture"`
	} `json:"cpu"`
	Memory struct {
		MB int `json:"physical_mb"`
	} `json:"memory"`
	BMC    string `json:"bmc_address"`
	Vendor struct {
		Product      string `json:"product_name"`
		Serial       string `json:"serial_number"`
		Manufacturer string `json:"manufacturer"`
	} `json:"system_vendor"`
	Boot struct {
		Mode string `json:"current_boot_mode"`
	} `json:"boot"`
}

func (p *program) showInventory(inv *client.Inventory) error {
	var h hardware
	if err := json.Unmarshal(inv.Inventory, &h); err != nil {
		return fmt.Errorf("read the inventory: %w", err)
	}
	var disks, nics []string
	for _, d := range h.Disks {
		line := joined(d.Name, size(d.Size), d.Tran, choose(d.Rotational, "spinning", ""), d.Model, "serial",
			dash(d.Serial))
		if len(d.MemberOf) > 0 {
			line += " member of " + strings.Join(d.MemberOf, " and ")
		}
		disks = append(disks, line)
	}
	for _, n := range h.Interfaces {
		speed := ""
		if n.Speed > 0 {
			speed = fmt.Sprintf("%d Mb/s", n.Speed)
		}
		nics = append(nics, joined(n.Name, n.MAC, n.IPv4, choose(n.Carrier, "up", "down"), speed, n.Driver))
	}
	pairs := [][2]string{
		{"system", dash(strings.TrimSpace(h.Vendor.Manufacturer + " " + h.Vendor.Product))},
		{"serial", dash(h.Vendor.Serial)},
		{"cpu", fmt.Sprintf("%d × %s (%s)", h.CPU.Count, strings.TrimSpace(h.CPU.Model), h.CPU.Arch)},
		{"memory", size(uint64(h.Memory.MB) << 20)}, {"boot mode", dash(h.Boot.Mode)}, {"bmc", dash(h.BMC)},
		{"disks", dash(strings.Join(disks, "\n"))}, {"interfaces", dash(strings.Join(nics, "\n"))},
	}
	pairs = append(pairs,
		filled([2]string{"software RAID", strings.Join(arrays(inv.PluginData["software_raid"]), "\n")})...)
	var root *struct {
		Name string `json:"name"`
		Why  string `json:"why"`
	}
	if json.Unmarshal(inv.PluginData["root_disk"], &root) == nil && root != nil {
		pairs = append(pairs, [2]string{"root disk", strings.TrimSpace(root.Name + "\n" + root.Why)})
	}
	return p.sheet(pairs)
}

// joined is words with one space each, without those that are empty.
func joined(all ...string) string { return strings.Join(strings.Fields(strings.Join(all, " ")), " ") }

// arrays describes each software array in a line.
func arrays(raw json.RawMessage) (out []string) {
	var all []struct {
		Name     string `json:"name"`
		Volume   string `json:"volume_name"`
		UUID     string `json:"uuid"`
		Level    string `json:"raid_level"`
		Size     uint64 `json:"size"`
		State    string `json:"state"`
		Devices  int    `json:"raid_disks"`
		Degraded int    `json:"degraded"`
		Members  []struct {
			Name  string `json:"name"`
			State string `json:"state"`
		} `json:"members"`
	}
	if json.Unmarshal(raw, &all) != nil {
		return nil // a hook's or a rule's
	}
	for _, a := range all {
		line := fmt.Sprintf("%s level %s %s %s", dash(a.Name), a.Level, size(a.Size), a.State)
		if a.Degraded > 0 {
			line += fmt.Sprintf(", %d of %d missing", a.Degraded, a.Devices)
		}
		if a.Volume != "" {
			line += ", name " + a.Volume
		}
		line += ", uuid " + dash(a.UUID)
		for _, m := range a.Members {
			line += ", " + strings.TrimPrefix(m.Name, "/dev/") + " " + m.State
		}
		out = append(out, line)
	}
	return out
}

func (p *program) nodeLogs() *cobra.Command {
	var follow bool
	return p.onNode(&cobra.Command{Use: "logs NAME", Short: "Show the log of the agent on a machine"},
		[]option{opt("follow,f", &follow, "go on until Ctrl-C")},
		func(ctx context.Context, c *client.Client, name string) error {
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
			defer stop()
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for after := uint64(0); ; {
				logs, err := c.Logs(ctx, name, after)
				if err != nil {
					return ignoreCancel(err)
				}
				for _, l := range logs.Lines {
					if err := p.result(l, "%s %-5s %s", clock(l.At, "15:04:05.000"), l.Level, l.Text); err != nil {
						return err
					}
				}
				after = logs.Next
				if !follow {
					return nil
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil
				}
			}
		})
}
