package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) poolCommand() *cobra.Command {
	return group(&cobra.Command{Use: "pool", Short: "Pools of warm nodes: available, with the agent already booted"},
		p.poolSet(), p.poolShow(), p.poolList(), p.poolDelete())
}

var onePool = oneArg("the name of one pool; `ingot pool list` shows them")

func (p *program) completePool() completion {
	return p.completeNames(func(c *client.Client, ctx context.Context) ([]string, error) {
		pools, err := c.Pools(ctx)
		return mapped(pools, func(pool *rest.Pool) string { return pool.Name }), err
	})
}

// poolFlags are those of `ingot pool set`.
type poolFlags struct {
	description, group, class, image, checksum string
	anyGroup, noImage                          bool
	count, percent, maxOn, maxWatts, watts     int
}

func (p *program) poolSet() *cobra.Command {
	var f poolFlags
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Make a pool of warm machines, or change one", Args: onePool,
		ValidArgsFunction: p.completePool(),
		Long: `Say how many of the available machines of a resource class or a conductor group are kept warm: booted into the agent, so that a
deployment needs no firmware. What is not given stays as it is.

A machine belongs to one pool: the one that names its resource class and its group, else its class, else its group. A pool
never has more machines on than its limits allow, whatever is wanted. Those that fail or are turned off are replaced, and rest for a
while that doubles with each failure. With an image, each warm machine has it written ahead, and verified, but for its partition table.`,
		Example: `  ingot pool set web --resource-class large --count 3 --max-on 4
  ingot pool set rack1 --conductor-group rack1 --percent 20 --max-watts 2000 --watts-per-node 350
  ingot pool set web --image https://example.org/debian-12.raw.zst --checksum sha256:7f3c...`,
	}
	return p.online(cmd, []option{
		opt("resource-class", &f.class, "resource class of the nodes; '' means any"),
		opt("conductor-group", &f.group, "conductor group of the nodes; '' means the group without a name"),
		opt("any-group", &f.anyGroup, "nodes of any conductor group"),
		opt("count", &f.count, "number of nodes to keep warm"),
		opt("percent", &f.percent, "or percentage to keep warm, nodes in use included"),
		opt("max-on", &f.maxOn, "highest number of nodes that are powered on; 0 means no limit"),
		opt("max-watts", &f.maxWatts, "highest power of all running nodes in watts; 0 means no limit"),
		opt("watts-per-node", &f.watts, "power in watts of a node without 'watts' in its properties"),
		opt("image", &f.image, "URL of an image that is written ahead"),
		opt("checksum", &f.checksum, "its sha256:HEX or sha512:HEX"),
		opt("no-image", &f.noImage, "write no image ahead"),
		opt("description", &f.description, "description"),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		name := args[0]
		policy, err := f.policy(cmd.Flags().Changed)
		if err != nil {
			return err
		}
		was, err := c.Pool(ctx, name)
		switch {
		case status(err) == http.StatusNotFound:
		case err != nil:
			return err
		default:
			policy = merged(was, policy)
		}
		pool, err := c.SetPool(ctx, name, policy)
		if err != nil {
			return err
		}
		if err := p.result(pool, "pool %s is %s: %d of %d machines are to be warm, %d are", name,
			choose(was == nil, "made", "changed"), pool.Wanted, pool.Matching, pool.Warm); err != nil ||
			p.values() || pool.Matching > 0 {
			return err
		}
		p.note("There is no machine like that: see RESOURCE CLASS in `ingot node show`.")
		return nil
	})
}

// policy builds the policy of the API from the flags. changed reports whether a flag was given.
func (f *poolFlags) policy(changed func(string) bool) (map[string]any, error) {
	out := map[string]any{}
	for name, v := range map[string]any{"description": f.description, "resource-class": f.class,
		"conductor-group": f.group, "count": f.count, "percent": f.percent, "max-on": f.maxOn, "max-watts": f.maxWatts,
		"watts-per-node": f.watts} {
		if !changed(name) {
			continue
		}
		if k, ok := v.(int); ok && k < 0 {
			return nil, usage("--%s %d: it can't be less than none", name, k)
		}
		out[strings.ReplaceAll(name, "-", "_")] = v
	}
	switch {
	case changed("count") && changed("percent"):
		return nil, usage("--count and --percent don't go together: give one of them")
	case changed("count"):
		out["percent"] = 0
	case changed("percent"):
		if f.percent > 100 {
			return nil, usage("--percent %d: it can't be more than all", f.percent)
		}
		out["count"] = 0
	}
	if f.anyGroup {
		if changed("conductor-group") {
			return nil, usage("--any-group and --conductor-group don't go together")
		}
		out["conductor_group"] = nil
	}
	image, err := aheadImage(f.image, f.checksum)
	switch {
	case err != nil:
		return nil, err
	case f.noImage && image != nil:
		return nil, usage("--no-image and --image don't go together")
	case f.noImage:
		out["image"] = nil
	case image != nil:
		out["image"] = image
	}
	if len(out) == 0 {
		return nil, usage("nothing is said about the pool: see `ingot pool set --help`")
	}
	return out, nil
}

// aheadImage is the image to be written ahead, from the flags; nil when they name none.
func aheadImage(image, checksum string) (map[string]any, error) {
	switch {
	case image == "" && checksum != "":
		return nil, usage("--checksum is given without --image")
	case image == "":
		return nil, nil
	case checksum == "":
		return nil, usage("--checksum is missing: an image that is written ahead is verified")
	}
	return (&deployment{image: image, checksum: checksum}).instanceInfo()
}

// merged is a pool's policy with changes.
func merged(was *rest.Pool, changes map[string]any) map[string]any {
	out := map[string]any{"description": string(was.Description), "resource_class": string(was.ResourceClass),
		"conductor_group": was.ConductorGroup, "count": was.Count, "percent": was.Percent, "max_on": was.MaxOn,
		"max_watts": was.MaxWatts, "watts_per_node": was.WattsPerNode}
	if was.Image != nil {
		out["image"] = was.Image
	}
	maps.Copy(out, changes)
	return out
}

func (p *program) poolList() *cobra.Command {
	return p.online(&cobra.Command{Use: "list", Short: "List the pools of warm machines"}, nil,
		func(ctx context.Context, c *client.Client, _ []string) error {
			pools, err := c.Pools(ctx)
			if err != nil {
				return err
			}
			head := []string{"NAME", "MACHINES", "MATCHING", "WANTED", "WARM", "WARMING", "ON", "WHY FEWER"}
			return list(p, pools, head, func(pool *rest.Pool) []string {
				return []string{pool.Name, machinesOf(pool), strconv.Itoa(pool.Matching), strconv.Itoa(pool.Wanted),
					strconv.Itoa(pool.Warm), strconv.Itoa(pool.Warming), limited(pool.On, pool.MaxOn, ""),
					dash(string(pool.Short))}
			})
		})
}

func machinesOf(pool *rest.Pool) string {
	var parts []string
	if pool.ResourceClass != "" {
		parts = append(parts, "class "+string(pool.ResourceClass))
	}
	if pool.ConductorGroup != nil {
		parts = append(parts, "group "+strconv.Quote(*pool.ConductorGroup))
	}
	return cmp.Or(strings.Join(parts, ", "), "all")
}

func limited(is, limit int, unit string) string {
	if limit == 0 {
		return strconv.Itoa(is) + unit
	}
	return fmt.Sprintf("%d%s of %d%s", is, unit, limit, unit)
}

func (p *program) poolShow() *cobra.Command {
	return p.online(&cobra.Command{Use: "show NAME", Short: "Show the state of a pool, and why a node is not warm",
		Args: onePool, ValidArgsFunction: p.completePool()}, nil,
		func(ctx context.Context, c *client.Client, args []string) error {
			pool, err := c.Pool(ctx, args[0])
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(pool)
			}
			wanted := fmt.Sprintf("%d of %d machines", pool.Wanted, pool.Matching)
			if pool.Percent > 0 {
				wanted += fmt.Sprintf(" (%d %%)", pool.Percent)
			}
			pairs := [][2]string{{"name", pool.Name}, {"description", dash(string(pool.Description))},
				{"machines", machinesOf(pool)}, {"wanted", wanted}, {"warm", strconv.Itoa(pool.Warm)},
				{"warming", strconv.Itoa(pool.Warming)}, {"on", limited(pool.On, pool.MaxOn, "")}}
			if pool.MaxWatts > 0 || pool.WattsPerNode > 0 {
				pairs = append(pairs, [2]string{"power", limited(pool.Watts, pool.MaxWatts, " W")})
			}
			pairs = append(pairs, [2]string{"image", object(pool.Image)})
			pairs = append(pairs, filled([2]string{"why fewer", string(pool.Short)})...)
			if err := p.sheet(pairs); err != nil || len(pool.Nodes) == 0 {
				return err
			}
			fmt.Fprintln(p.stdout)
			return p.table([]string{"MACHINE", "STATE", "SINCE", "POWER", "IMAGE", "REASON"},
				mapped(pool.Nodes, warmRow))
		})
}

func warmRow(n *rest.Warm) []string {
	power, image, reason := choose(n.On, "on", "off"), choose(n.Staged != "", "written", "-"), string(n.Reason)
	if n.State == "out" {
		power = "-"
	}
	if n.StageFault != "" {
		image = "failed: " + string(n.StageFault)
	}
	if n.LastFailure != "" && !strings.Contains(reason, string(n.LastFailure)) {
		if reason != "" {
			reason += "; "
		}
		reason += "last failure: " + string(n.LastFailure)
	}
	return []string{cmp.Or(string(n.Name), n.NodeUUID), n.State, when(n.Since.Time), power, image, dash(reason)}
}

func (p *program) poolDelete() *cobra.Command {
	return p.deletion("pool", &cobra.Command{
		Use: "delete NAME", Short: "Delete a pool; the machines that it keeps warm are turned off",
		Args: onePool, ValidArgsFunction: p.completePool()}, (*client.Client).DeletePool)
}

func (p *program) nodeWarm() *cobra.Command {
	var image, checksum string
	var status bool
	return p.onNode(&cobra.Command{Use: "warm NAME",
		Short: "Boot an available node into the agent in advance; it stays available",
		Long: `Boot an available machine into the agent, where it waits, so that a deployment needs no firmware. The machine stays available. With an
image, that is written ahead, too, and verified, but for its partition table. A machine of a pool is the pool's business: see ingot pool.

The command does not wait: ingot node warm NAME --status shows the progress.`},
		[]option{
			opt("status", &status, "only report whether it is warm, and why not"),
			opt("image", &image, "URL of an image that is written ahead"),
			opt("checksum", &checksum, "its sha256:HEX or sha512:HEX"),
		},
		func(ctx context.Context, c *client.Client, name string) error {
			ahead, err := aheadImage(image, checksum)
			if err != nil {
				return err
			}
			if status {
				w, err := c.Warmth(ctx, name)
				return p.showWarm(name, w, err)
			}
			w, err := c.Warm(ctx, name, ahead)
			return p.showWarm(name, w, err)
		})
}

func (p *program) nodeCool() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "cool NAME", Short: "Turn a warm machine off"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			w, err := c.Cool(ctx, name)
			if err == nil && w.Pool != "" {
				p.note("It belongs to pool %s, which may make it warm again; `ingot pool set` says how many it wants.",
					w.Pool)
			}
			return p.showWarm(name, w, err)
		})
}

// showWarm prints how a node is kept ready, unless that could not be asked for.
func (p *program) showWarm(name string, w *rest.Warm, err error) error {
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s is %s", name, w.State)
	if w.Staged != "" {
		text += ", with the image " + string(w.Staged)
	}
	if reason := warmRow(w)[5]; reason != "-" {
		text += ": " + reason
	}
	return p.result(w, "%s", text)
}
