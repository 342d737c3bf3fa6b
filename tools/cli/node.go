package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

func (p *program) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Enrol, show and deploy nodes"}
	cmd.AddCommand(p.nodeCreate(), p.nodeList(), p.nodeShow(), p.nodeSet(), p.nodeDelete(), p.nodeWatch())
	cmd.AddCommand(p.verbCommands()...)
	cmd.AddCommand(p.nodeDeploy(), p.nodePower(), p.nodeMaintenance(), p.nodeBootDevice(), p.nodeConsole())
	cmd.AddCommand(p.nodeRescue(), p.nodeUnrescue(), p.nodeResetNetwork())
	cmd.AddCommand(p.nodeQuarantine(), p.nodeUnquarantine(), p.nodeBreakLock(), p.nodePlan(), p.nodeSteps(),
		p.nodeWarm(), p.nodeCool())
	cmd.AddCommand(p.nodeValidate(), p.nodeHistory(), p.nodeInventory(), p.nodeExplainRootDevice(), p.nodeTimeline(),
		p.nodeLogs())
	return cmd
}

// assignments reads arguments KEY=VALUE. A value that is a JSON object, list, number or boolean is taken as that.
func assignments(flag string, list []string) (map[string]any, error) {
	m := map[string]any{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usage("--%s %q is not of the form KEY=VALUE", flag, kv)
		}
		m[k] = value(v)
	}
	return m, nil
}

func value(s string) any {
	if s == "" || !strings.ContainsAny(s[:1], `{[tf-0123456789"`) {
		return s
	}
	var v any
	if exact.Unmarshal([]byte(s), &v) != nil {
		return s
	}
	// Long numbers are names (serials, WWNs), which a float would spoil; and so is what JSON would write otherwise.
	if n, ok := v.(json.Number); ok {
		return string(n)
	}
	return v
}

// secret gets a password: from a flag, a file, the environment, or by asking.
func (p *program) secret(given, file, env, question string) (string, error) {
	switch {
	case given != "" && file != "":
		return "", usage("a password was given twice, by itself and in a file")
	case given != "":
		return given, nil
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	}
	if v := p.getenv(env); v != "" || question == "" {
		return v, nil
	}
	f, ok := p.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return "", nil
	}
	fmt.Fprint(p.stderr, question)
	b, err := term.ReadPassword(int(f.Fd()))
	fmt.Fprintln(p.stderr)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return string(b), nil
}

func (p *program) nodeCreate() *cobra.Command {
	var (
		n                                           client.NewNode
		bmc, user, password, passwordFile, bootMode string
		info, props, extra, macs                    []string
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Enrol a machine",
		Long: `Enrol a machine: a name and the address and credentials of its controller (BMC) are enough.
The password may also come from --bmc-password-file or $INGOT_BMC_PASSWORD, where other users of this host don't see it.`,
		Example: `  ingot node create web1 --bmc 192.0.2.10 --bmc-user admin --bmc-password-file pw
  ingot node create lab1 --driver fake-hardware`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s wants one name", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&n.Driver, "driver", "ipmi", "hardware type")
	f.StringVar(&bmc, "bmc", "", "address of the controller, HOST or HOST:PORT")
	f.StringVar(&user, "bmc-user", "", "user name at the controller")
	f.StringVar(&password, "bmc-password", "", "password at the controller")
	f.StringVar(&passwordFile, "bmc-password-file", "", "file with the password")
	f.StringArrayVar(&macs, "mac", nil, "also create a port with this MAC address (optional: inspection creates ports)")
	f.StringVar(&bootMode, "boot-mode", "", "bios or uefi (default: what the machine is set to)")
	f.StringArrayVar(&info, "driver-info", nil, "KEY=VALUE for the driver")
	f.StringArrayVar(&props, "property", nil, "KEY=VALUE about the hardware")
	f.StringArrayVar(&extra, "extra", nil, "KEY=VALUE of your own")
	f.StringVar(&n.ResourceClass, "resource-class", "", "resource class")
	f.StringVar(&n.Description, "description", "", "description")
	f.StringVar(&n.Owner, "owner", "", "owner")
	f.StringVar(&n.UUID, "uuid", "", "UUID (default: a new one)")
	f.StringVar(&n.NetworkIf, "network-interface", "", "noop or flat (default: the type's)")
	complete(cmd, "boot-mode", "bios", "uefi")
	complete(cmd, "network-interface", "noop", "flat")
	p.completeDriver(cmd)
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		var err error
		if len(args) == 1 {
			n.Name = args[0]
		}
		if n.DriverInfo, err = assignments("driver-info", info); err != nil {
			return err
		}
		if n.Properties, err = assignments("property", props); err != nil {
			return err
		}
		if n.Extra, err = assignments("extra", extra); err != nil {
			return err
		}
		if bootMode != "" {
			n.Properties["capabilities"] = "boot_mode:" + bootMode
		}
		if bmc == "" && n.Driver == "ipmi" && n.DriverInfo["ipmi_address"] == nil {
			return usage("where is the machine's controller? Say --bmc ADDRESS, or choose another --driver")
		}
		if bmc != "" {
			if n.Driver != "ipmi" {
				return usage("--bmc is for machines of type ipmi; use --driver-info for %s", n.Driver)
			}
			host, port := splitBMC(bmc)
			n.DriverInfo["ipmi_address"] = host
			if port != "" {
				n.DriverInfo["ipmi_port"] = port
			}
			if user != "" {
				n.DriverInfo["ipmi_username"] = user
			}
			pw, err := p.secret(password, passwordFile, "INGOT_BMC_PASSWORD", "Password at the controller: ")
			if err != nil {
				return err
			}
			if pw != "" {
				n.DriverInfo["ipmi_password"] = pw
			}
		}
		made, err := c.CreateNode(ctx, n)
		if err != nil {
			return err
		}
		for _, mac := range macs {
			if _, err := c.CreatePort(ctx, client.NewPort{NodeUUID: made.UUID, Address: mac}); err != nil {
				return about(label(made), fmt.Errorf("the node was made, its port %s was not: %w", mac, err))
			}
		}
		if p.output == "json" {
			return p.printJSON(made)
		}
		fmt.Fprintf(p.stdout, "%s is enrolled (%s)\n", label(made), made.UUID)
		p.note("Next: ingot node manage %s", label(made))
		return nil
	})
	return cmd
}

// splitBMC splits HOST:PORT, where HOST may be an IPv6 address, with brackets if there is a port.
func splitBMC(s string) (host, port string) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, port, _ = strings.Cut(rest, "]")
		return host, strings.TrimPrefix(port, ":")
	}
	if strings.Count(s, ":") == 1 {
		host, port, _ = strings.Cut(s, ":")
		return host, port
	}
	return s, ""
}

// label is how to call a node: by its name, if it has one.
func label(n *rest.Node) string {
	if n.Name != "" {
		return string(n.Name)
	}
	return n.UUID
}

func (p *program) nodeList() *cobra.Command {
	var filter []string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List machines",
		Example: `  ingot node list
  ingot node list --filter provision_state=available --filter resource_class=gold`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringArrayVar(&filter, "filter", nil,
		"KEY=VALUE, a filter of the API: provision_state, driver, resource_class, maintenance, owner, ...")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		q := url.Values{}
		for _, kv := range filter {
			k, v, ok := strings.Cut(kv, "=")
			if !ok {
				return usage("--filter %q is not of the form KEY=VALUE", kv)
			}
			q.Set(k, v)
		}
		nodes, err := c.Nodes(ctx, q)
		if err != nil {
			return err
		}
		if p.output == "json" {
			if nodes == nil {
				nodes = []rest.Node{}
			}
			return p.printJSON(nodes)
		}
		if len(nodes) == 0 {
			p.note("There are no nodes%s. Enrol one: ingot node create NAME --bmc ADDRESS --bmc-user USER",
				map[bool]string{true: " that the filters let through"}[len(q) > 0])
			return nil
		}
		return table(p.stdout, []string{"NAME", "STATE", "POWER", "DRIVER", "UUID", "NOTE"}, nodeRows(nodes))
	})
	return cmd
}

func nodeRows(nodes []rest.Node) [][]string {
	rows := make([][]string, len(nodes))
	for i, n := range nodes {
		state := string(n.ProvisionState)
		if n.TargetProvisionState != "" {
			state += " → " + string(n.TargetProvisionState)
		}
		var notes []string
		if n.Maintenance {
			notes = append(notes, strings.TrimSpace("maintenance "+string(n.MaintenanceReason)))
		}
		if n.Fault != "" {
			notes = append(notes, string(n.Fault))
		}
		if n.LastError != "" {
			notes = append(notes, shorten(string(n.LastError), 80))
		}
		rows[i] = []string{dash(string(n.Name)), state, dash(strings.TrimPrefix(string(n.PowerState), "power ")),
			n.Driver, n.UUID, strings.Join(notes, "; ")}
	}
	return rows
}

// shorten cuts a text to one line of at most n characters.
func shorten(s string, n int) string {
	s, _, _ = strings.Cut(s, "\n")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func (p *program) nodeShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "Show a node", Args: oneNode,
		ValidArgsFunction: p.completeNode}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		var tag string
		n, err := c.Tag(&tag).Node(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		if p.output == "json" {
			return p.printJSON(n)
		}
		return p.showNode(ctx, c, n, tag)
	})
	return cmd
}

func (p *program) showNode(ctx context.Context, c *client.Client, n *rest.Node, tag string) error {
	state := string(n.ProvisionState)
	if n.TargetProvisionState != "" {
		state += " → " + string(n.TargetProvisionState)
	}
	pairs := [][2]string{
		{"name", dash(string(n.Name))}, {"uuid", n.UUID}, {"state", state}, {"since", when(n.ProvisionUpdatedAt.Time)},
		{"power", dash(string(n.PowerState))},
	}
	add := func(name, v string) {
		if v != "" && v != "-" {
			pairs = append(pairs, [2]string{name, v})
		}
	}
	add("power target", string(n.TargetPowerState))
	add("last error", string(n.LastError))
	add("fault", string(n.Fault))
	if n.Maintenance {
		add("maintenance", strings.TrimSpace("yes "+string(n.MaintenanceReason)))
	}
	add("locked by", string(n.Reservation))
	add("driver", n.Driver)
	add("driver info", object(n.DriverInfo))
	add("properties", object(n.Properties))
	add("boot mode", string(n.BootMode))
	add("instance", string(n.InstanceUUID))
	add("instance info", object(n.InstanceInfo))
	add("resource class", string(n.ResourceClass))
	add("description", string(n.Description))
	add("owner", string(n.Owner))
	add("lessee", string(n.Lessee))
	add("traits", strings.Join(n.Traits, ", "))
	add("extra", object(n.Extra))
	if n.Protected {
		add("protected", strings.TrimSpace("yes "+string(n.ProtectedReason)))
	}
	if n.Retired {
		add("retired", strings.TrimSpace("yes "+string(n.RetiredReason)))
	}
	ifaces := map[string]any{}
	for k, v := range map[string]rest.Null{"boot": n.BootInterface, "deploy": n.DeployInterface,
		"inspect": n.InspectInterface, "management": n.ManagementInterface, "network": n.NetworkInterface,
		"power": n.PowerInterface} {
		ifaces[k] = string(v)
	}
	add("interfaces", strings.ReplaceAll(object(ifaces), " = ", ": "))
	ports, err := c.Ports(ctx, n.UUID)
	if err != nil {
		return about(label(n), fmt.Errorf("read the ports: %w", err))
	}
	var macs []string
	for _, port := range ports {
		note := ""
		if !port.PXEEnabled {
			note = " (not booted from)"
		}
		macs = append(macs, port.Address+note)
	}
	add("ports", strings.Join(macs, "\n"))
	add("inspected", when(n.InspectionFinishedAt.Time))
	add("conductor", string(n.Conductor))
	add("created", when(n.CreatedAt.Time))
	add("etag", tag)
	return sheet(p.stdout, pairs)
}

func (p *program) nodeSet() *cobra.Command {
	plain := map[string]string{"name": "name", "description": "description", "resource-class": "resource_class",
		"owner": "owner", "lessee": "lessee", "driver": "driver", "instance-uuid": "instance_uuid",
		"automated-clean": "automated_clean", "protected": "protected", "protected-reason": "protected_reason",
		"retired": "retired", "retired-reason": "retired_reason", "network-interface": "network_interface",
		"deploy-interface": "deploy_interface", "inspect-interface": "inspect_interface",
		"boot-interface": "boot_interface"}
	objects := map[string]string{"driver-info": "driver_info", "property": "properties", "extra": "extra",
		"instance-info": "instance_info"}
	texts, lists := map[string]*string{}, map[string]*[]string{}
	var unset []string
	var bmcPassword bool
	var match string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change the attributes of a node",
		Example: `  ingot node set web1 --driver-info ipmi_address=192.0.2.11 --bmc-password
  ingot node set web1 --property 'root_device={"serial":"S123"}' --unset extra/rack`,
		Args: oneNode, ValidArgsFunction: p.completeNode,
	}
	f := cmd.Flags()
	for _, name := range slices.Sorted(maps.Keys(plain)) {
		texts[name] = f.String(name, "", plain[name])
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		lists[name] = f.StringArray(name, nil, "KEY=VALUE in "+objects[name]+"; the value may be JSON")
	}
	f.StringVar(&match, "if-match", "",
		"change it only if its ETag is still this one; node show prints it, with its quotes")
	f.BoolVar(&bmcPassword, "bmc-password", false,
		"set the controller's password: ask for it, or take $INGOT_BMC_PASSWORD")
	f.StringArrayVar(&unset, "unset", nil, "remove an attribute, or a key of one: owner, extra/rack")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		var patch []rest.Operation
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			if !f.Changed(name) {
				continue
			}
			patch = append(patch, rest.Operation{Op: "add", Path: "/" + plain[name], Value: *texts[name]})
		}
		for _, name := range slices.Sorted(maps.Keys(lists)) {
			m, err := assignments(name, *lists[name])
			if err != nil {
				return err
			}
			for _, k := range slices.Sorted(maps.Keys(m)) {
				patch = append(patch, rest.Operation{Op: "add", Path: "/" + objects[name] + "/" + k, Value: m[k]})
			}
		}
		if bmcPassword {
			pw, err := p.secret("", "", "INGOT_BMC_PASSWORD", "Password at the controller: ")
			if err != nil {
				return err
			}
			patch = append(patch, rest.Operation{Op: "add", Path: "/driver_info/ipmi_password", Value: pw})
		}
		for _, path := range unset {
			patch = append(patch, rest.Operation{Op: "remove", Path: "/" + strings.TrimPrefix(path, "/")})
		}
		if len(patch) == 0 {
			return usage("nothing to change; see `%s --help`", cmd.CommandPath())
		}
		// a variable of a script that was not set: without an ETag nothing would be compared
		if f.Changed("if-match") && match == "" {
			return usage("--if-match has no ETag; `ingot node show %s` prints it", args[0])
		}
		n, err := c.IfMatch(match).UpdateNode(ctx, args[0], patch)
		if err != nil {
			return about(args[0], err)
		}
		if p.output == "json" {
			return p.printJSON(n)
		}
		fmt.Fprintf(p.stdout, "%s is changed\n", label(n))
		return nil
	})
	return cmd
}

func (p *program) nodeDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME...", Short: "Delete nodes", Aliases: []string{"rm"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return oneNode(cmd, args)
			}
			return nil
		},
		ValidArgsFunction: p.completeNode,
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		for _, name := range args {
			if err := c.DeleteNode(ctx, name); err != nil {
				return about(name, err)
			}
			fmt.Fprintf(p.stdout, "%s is deleted\n", name)
		}
		return nil
	})
	return cmd
}
