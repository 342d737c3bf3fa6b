package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) poolCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Short: "Pools of warm nodes: available, with the agent already booted"}
	cmd.AddCommand(p.poolSet(), p.poolShow(), p.poolList(), p.poolDelete())
	return cmd
}

var onePool = oneArg("the name of one pool; `ingot pool list` shows them")

func (p *program) completePool(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := p.client(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	pools, err := c.Pools(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, pool := range pools {
		if strings.HasPrefix(pool.Name, prefix) {
			out = append(out, pool.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
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
		ValidArgsFunction: p.completePool,
		Long: `Say how many of the available machines of a resource class or a conductor group are kept warm: booted into the agent, so that a
deployment needs no firmware. What is not given stays as it is.

A machine belongs to one pool: the one that names its resource class and its group, else its class, else its group. A pool
never has more machines on than its limits allow, whatever is wanted. Those that fail or are turned off are replaced, and rest for a
while that doubles with each failure. With an image, each warm machine has it written ahead, and verified, but for its partition table.`,
		Example: `  ingot pool set web --resource-class large --count 3 --max-on 4
  ingot pool set rack1 --conductor-group rack1 --percent 20 --max-watts 2000 --watts-per-node 350
  ingot pool set web --image https://example.org/debian-12.raw.zst --checksum sha256:7f3c...`,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.class, "resource-class", "", "resource class of the nodes; '' means any")
	fl.StringVar(&f.group, "conductor-group", "", "conductor group of the nodes; '' means the group without a name")
	fl.BoolVar(&f.anyGroup, "any-group", false, "nodes of any conductor group")
	fl.IntVar(&f.count, "count", 0, "number of nodes to keep warm")
	fl.IntVar(&f.percent, "percent", 0, "or percentage to keep warm, nodes in use included")
	fl.IntVar(&f.maxOn, "max-on", 0, "highest number of nodes that are powered on; 0 means no limit")
	fl.IntVar(&f.maxWatts, "max-watts", 0, "highest power of all running nodes in watts; 0 means no limit")
	fl.IntVar(&f.watts, "watts-per-node", 0, "power in watts of a node without 'watts' in its properties")
	fl.StringVar(&f.image, "image", "", "URL of an image that is written ahead")
	fl.StringVar(&f.checksum, "checksum", "", "its sha256:HEX or sha512:HEX")
	fl.BoolVar(&f.noImage, "no-image", false, "write no image ahead")
	fl.StringVar(&f.description, "description", "", "description")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		name := args[0]
		policy, err := f.policy(cmd.Flags().Changed)
		if err != nil {
			return err
		}
		was, err := c.Pool(ctx, name)
		var answer *rest.Error
		switch {
		case errors.As(err, &answer) && answer.Status == http.StatusNotFound:
		case err != nil:
			return err
		default:
			policy = merged(was, policy)
		}
		pool, err := c.SetPool(ctx, name, policy)
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(pool)
		}
		what := "changed"
		if was == nil {
			what = "made"
		}
		fmt.Fprintf(p.stdout, "pool %s is %s: %d of %d machines are to be warm, %d are\n", name, what, pool.Wanted,
			pool.Matching, pool.Warm)
		if pool.Matching == 0 {
			p.note("There is no machine like that: see RESOURCE CLASS in `ingot node show`.")
		}
		return nil
	})
	return cmd
}

// policy is what the flags say, as the API has it. changed tells which were given.
func (f *poolFlags) policy(changed func(string) bool) (map[string]any, error) {
	out := map[string]any{}
	for name, v := range map[string]any{"description": f.description, "resource_class": f.class,
		"conductor_group": f.group, "count": f.count, "percent": f.percent, "max_on": f.maxOn, "max_watts": f.maxWatts,
		"watts_per_node": f.watts} {
		if changed(strings.ReplaceAll(name, "_", "-")) {
			out[name] = v
		}
	}
	for name, v := range out {
		if k, ok := v.(int); ok && k < 0 {
			return nil, usage("--%s %d: it can't be less than none", strings.ReplaceAll(name, "_", "-"), k)
		}
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

// aheadImage is what the flags say of an image that is written ahead; nil when there is none.
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
	for k, v := range changes {
		out[k] = v
	}
	return out
}

func (p *program) poolList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the pools of warm machines", Args: cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		pools, err := c.Pools(ctx)
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(pools)
		}
		rows := make([][]string, len(pools))
		for i, pool := range pools {
			rows[i] = []string{pool.Name, machinesOf(&pool), strconv.Itoa(pool.Matching), strconv.Itoa(pool.Wanted),
				strconv.Itoa(pool.Warm), strconv.Itoa(pool.Warming), limited(pool.On, pool.MaxOn, ""),
				dash(string(pool.Short))}
		}
		return table(p.stdout, []string{"NAME", "MACHINES", "MATCHING", "WANTED", "WARM", "WARMING", "ON", "WHY FEWER"},
			rows)
	})
	return cmd
}

func machinesOf(pool *rest.Pool) string {
	var parts []string
	if pool.ResourceClass != "" {
		parts = append(parts, "class "+string(pool.ResourceClass))
	}
	if pool.ConductorGroup != nil {
		parts = append(parts, "group "+strconv.Quote(*pool.ConductorGroup))
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ", ")
}

func limited(is, limit int, unit string) string {
	if limit == 0 {
		return strconv.Itoa(is) + unit
	}
	return fmt.Sprintf("%d%s of %d%s", is, unit, limit, unit)
}

func (p *program) poolShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "Show the state of a pool, and why a node is not warm",
		Args: onePool, ValidArgsFunction: p.completePool}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		pool, err := c.Pool(ctx, args[0])
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(pool)
		}
		wanted := fmt.Sprintf("%d of %d machines", pool.Wanted, pool.Matching)
		if pool.Percent > 0 {
			wanted += fmt.Sprintf(" (%d %%)", pool.Percent)
		}
		image := "-"
		if pool.Image != nil {
			image = object(pool.Image)
		}
		pairs := [][2]string{{"name", pool.Name}, {"description", dash(string(pool.Description))},
			{"machines", machinesOf(pool)}, {"wanted", wanted}, {"warm", strconv.Itoa(pool.Warm)},
			{"warming", strconv.Itoa(pool.Warming)}, {"on", limited(pool.On, pool.MaxOn, "")}}
		if pool.MaxWatts > 0 || pool.WattsPerNode > 0 {
			pairs = append(pairs, [2]string{"power", limited(pool.Watts, pool.MaxWatts, " W")})
		}
		pairs = append(pairs, [2]string{"image", image})
		if pool.Short != "" {
			pairs = append(pairs, [2]string{"why fewer", string(pool.Short)})
		}
		if err := sheet(p.stdout, pairs); err != nil || len(pool.Nodes) == 0 {
			return err
		}
		fmt.Fprintln(p.stdout)
		var rows [][]string
		for _, n := range pool.Nodes {
			rows = append(rows, warmRow(&n))
		}
		return table(p.stdout, []string{"MACHINE", "STATE", "SINCE", "POWER", "IMAGE", "REASON"}, rows)
	})
	return cmd
}

func warmRow(n *rest.Warm) []string {
	power, image, reason := "off", "-", string(n.Reason)
	if n.On {
		power = "on"
	}
	if n.State == "out" {
		power = "-"
	}
	if n.Staged != "" {
		image = "written"
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
	name := string(n.Name)
	if name == "" {
		name = n.NodeUUID
	}
	return []string{name, n.State, when(n.Since.Time), power, image, dash(reason)}
}

func (p *program) poolDelete() *cobra.Command {
	return p.deletion("pool", cobra.Command{
		Use: "delete NAME", Short: "Delete a pool; the machines that it keeps warm are turned off",
		Args: onePool, ValidArgsFunction: p.completePool}, (*client.Client).DeletePool)
}

func (p *program) nodeWarm() *cobra.Command {
	var image, checksum string
	cmd := &cobra.Command{Use: "warm NAME", Short: "Boot an available node into the agent in advance; it stays available",
		Args: oneNode, ValidArgsFunction: p.completeNode,
		Long: `Boot an available machine into the agent, where it waits, so that a deployment needs no firmware. The machine stays available. With an
image, that is written ahead, too, and verified, but for its partition table. A machine of a pool is the pool's business: see ingot pool.

It is not waited for: ingot node warm NAME --status tells how far it is.`}
	status := cmd.Flags().Bool("status", false, "only report whether it is warm, and why not")
	cmd.Flags().StringVar(&image, "image", "", "URL of an image that is written ahead")
	cmd.Flags().StringVar(&checksum, "checksum", "", "its sha256:HEX or sha512:HEX")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		ahead, err := aheadImage(image, checksum)
		if err != nil {
			return err
		}
		if *status {
			w, err := c.Warmth(ctx, args[0])
			if err != nil {
				return about(args[0], err)
			}
			return p.showWarm(args[0], w)
		}
		w, err := c.Warm(ctx, args[0], ahead)
		if err != nil {
			return about(args[0], err)
		}
		return p.showWarm(args[0], w)
	})
	return cmd
}

func (p *program) nodeCool() *cobra.Command {
	cmd := &cobra.Command{Use: "cool NAME", Short: "Turn a warm machine off", Args: oneNode,
		ValidArgsFunction: p.completeNode}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		w, err := c.Cool(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		if w.Pool != "" {
			p.note("It belongs to pool %s, which may make it warm again; `ingot pool set` says how many it wants.",
				w.Pool)
		}
		return p.showWarm(args[0], w)
	})
	return cmd
}

func (p *program) showWarm(name string, w *rest.Warm) error {
	if p.output == "json" {
		return p.printJSON(w)
	}
	row := warmRow(w)
	text := fmt.Sprintf("%s is %s", name, w.State)
	if w.Staged != "" {
		text += ", with the image " + string(w.Staged)
	}
	if row[5] != "-" {
		text += ": " + row[5]
	}
	fmt.Fprintln(p.stdout, text)
	return nil
}
