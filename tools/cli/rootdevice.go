package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/proto/rootdevice"
)

func (p *program) nodeExplainRootDevice() *cobra.Command {
	var given []string
	return p.onNode(&cobra.Command{
		Use:   "explain-root-device NAME",
		Short: "Show the disk that a deployment would choose, and why",
		Long: `Show which disk a deployment would take, and why not another.

It looks at the disks of the last inspection with the hints that a deployment would use: root_device of the node's instance_info, else of
its properties. With --hint it shows what other hints would do; nothing is changed.`,
		Example: `  ingot node explain-root-device web1
  ingot node explain-root-device web1 --hint 'size=>= 400' --hint rotational=false
  ingot node explain-root-device web1 --hint 'serial=<or> S123 <or> S124' -o json`,
	}, []option{
		opt("hint", &given, "KEY=VALUE in place of the node's root_device; may be given several times"),
	}, func(ctx context.Context, c *client.Client, name string) error {
		n, err := c.Node(ctx, name)
		if err != nil {
			return err
		}
		inv, err := c.Inventory(ctx, name)
		if err != nil {
			return uninspected(name, err)
		}
		var found struct {
			Disks []rootdevice.Disk `json:"disks"`
		}
		if err := json.Unmarshal(inv.Inventory, &found); err != nil {
			return fmt.Errorf("read the inventory: %w", err)
		}
		source, hints, err := hintsFor(n, given)
		if err != nil {
			return err
		}
		x := explained{Source: source, Explanation: rootdevice.Explain(found.Disks, hints)}
		if err = p.showExplained(x, hints, n.InspectionFinishedAt); err == nil && x.Err != nil {
			return advise(x.Err, "%s", x.Err.Remedy)
		}
		return err
	})
}

// explained is an explanation with where its hints come from.
type explained struct {
	Source string
	rootdevice.Explanation
}

// MarshalJSON puts the source beside the explanation's own fields.
func (x explained) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(x.Explanation)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, `{"hints_from":%s,`, compact(x.Source)), b[1:]...), nil
}

// hintsFor gives the hints that a deployment of the node would use, or those given, and says where they are from.
func hintsFor(n *rest.Node, given []string) (string, rootdevice.Hints, error) {
	if len(given) > 0 {
		m, err := assignments("hint", given)
		if err != nil {
			return "", nil, err
		}
		raw, err := json.Marshal(m)
		if err != nil {
			return "", nil, err
		}
		hints, err := rootdevice.ParseHints(raw)
		if err != nil {
			return "", nil, usage("%v", err)
		}
		return "--hint", hints, nil
	}
	source, hints, err := rootdevice.HintsOf(n.InstanceInfo, n.Properties)
	if err != nil {
		return "", nil, advise(fmt.Errorf("%s of %s: %w", source, label(n), err), "Correct it with `ingot node set %s`", label(n))
	}
	return source, hints, nil
}

func (p *program) showExplained(x explained, hints rootdevice.Hints, inspected rest.NullTime) error {
	if p.values() {
		return p.print(x)
	}
	from := "no hints: the smallest disk of at least 4 GiB"
	if hints != nil {
		from = hints.String() + " (" + x.Source + ")"
	}
	fmt.Fprintf(p.stdout, "hints      %s\ninspected  %s\n\n", from, when(inspected.Time))
	var rows [][]string
	for _, v := range x.Verdicts {
		rows = append(rows,
			[]string{choose(v.Chosen, "yes", "no"), v.Disk.Name, rootdevice.HumanSize(v.Disk.Size),
				dash(strings.TrimSpace(v.Disk.Vendor + " " + v.Disk.Model)), dash(v.Disk.Serial), v.Why})
		if len(v.Checks) < 2 {
			continue
		}
		for _, c := range v.Checks {
			rows = append(rows,
				[]string{"", "", "", "", "", "  " + choose(c.Fits, "fits: ", "does not fit: ") + c.String()})
		}
	}
	return p.table([]string{"CHOSEN", "DISK", "SIZE", "MODEL", "SERIAL", "WHY"}, rows)
}
