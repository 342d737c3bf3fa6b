package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/tools/enrol"
)

func (p *program) nodeCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "node", Short: "Enrol, show and deploy nodes"}, p.verbCommands()...)
	return group(cmd, p.nodeCreate(), p.nodeList(), p.nodeShow(), p.nodeSet(), p.nodeDelete(), p.nodeWatch(),
		p.nodeClean(), p.nodeService(),
		p.nodeDeploy(), p.nodePower(), p.nodeMaintenance(), p.nodeBootDevice(), p.nodeConsole(),
		p.nodeRescue(), p.nodeUnrescue(), p.nodeResetNetwork(),
		p.nodeQuarantine(), p.nodeUnquarantine(), p.nodeBreakLock(), p.nodePlan(), p.nodeSteps(),
		p.nodeWarm(), p.nodeCool(),
		p.nodeValidate(), p.nodeHistory(), p.nodeInventory(), p.nodeExplainRootDevice(), p.nodeTimeline(),
		p.nodeHealth(),
		p.nodeLogs())
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
	// Long numbers are names (serials, WWNs), which a float would spoil; so they keep the form in which JSON has them.
	if n, ok := v.(json.Number); ok {
		return string(n)
	}
	return v
}

// secret gets the password of a controller: from a flag, a file, the environment, or by asking.
func (p *program) secret(given, file, question string) (string, error) {
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
	if v := p.getenv("INGOT_BMC_PASSWORD"); v != "" {
		return v, nil
	}
	answer, _, err := p.ask(question)
	return answer, err
}

// label is how to call a node: by its name, if it has one.
func label(n *rest.Node) string {
	return cmp.Or(string(n.Name), n.UUID)
}

func (p *program) nodeList() *cobra.Command {
	var filter []string
	return p.online(&cobra.Command{
		Use:   "list",
		Short: "List machines",
		Example: `  ingot node list
  ingot node list --filter provision_state=available --filter resource_class=gold
  ingot node list -o wide
  ingot node list -o go-template='{{range .}}{{.name}} {{.conductor}}{{"\n"}}{{end}}'
  ingot node list --filter provision_state=manageable -o name | xargs ingot node provide`,
	}, []option{opt("filter", &filter,
		"KEY=VALUE, a filter of the API: provision_state, driver, resource_class, maintenance, owner, ...")},
		func(ctx context.Context, c *client.Client, _ []string) error {
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
			if len(nodes) == 0 && p.format.ForPeople() {
				p.note("There are no nodes%s. Enrol one: ingot node create NAME --bmc ADDRESS --bmc-user USER",
					choose(len(q) > 0, " that the filters let through", ""))
				return nil
			}
			if p.format.Wide() {
				return list(p, nodes, append(slices.Clone(nodeHead), "CLASS", "CONDUCTOR", "OWNER", "INSTANCE"),
					func(n *rest.Node) []string {
						return append(nodeRow(n), dash(string(n.ResourceClass)), dash(string(n.Conductor)),
							dash(string(n.Owner)), dash(string(n.InstanceUUID)))
					})
			}
			return list(p, nodes, nodeHead, nodeRow)
		})
}

// nodeHead are the columns of a table of nodes.
var nodeHead = []string{"NAME", "STATE", "POWER", "DRIVER", "UUID", "NOTE"}

// nodeRow is a row of a table of nodes.
func nodeRow(n *rest.Node) []string {
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
	return []string{dash(string(n.Name)), toward(string(n.ProvisionState), n.TargetProvisionState),
		dash(strings.TrimPrefix(string(n.PowerState), "power ")), n.Driver, n.UUID, strings.Join(notes, "; ")}
}

// toward is a state, and where it is going.
func toward(state string, target rest.Null) string {
	if target != "" {
		state += " → " + string(target)
	}
	return state
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
	return p.onNode(&cobra.Command{Use: "show NAME", Short: "Show a node"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			var tag string
			n, err := c.Tag(&tag).Node(ctx, name)
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(n)
			}
			ports, err := c.Ports(ctx, n.UUID)
			if err != nil {
				return fmt.Errorf("read the ports: %w", err)
			}
			return p.showNode(n, ports, tag)
		})
}

// controllerRows are the rows of docs/reference/redfish-differences.md that apply to a node's controller.
func controllerRows(n *rest.Node) (names []string) {
	list, _ := n.DriverInternalInfo["redfish_rows"].([]any)
	for _, v := range list {
		names = append(names, fmt.Sprint(v))
	}
	return names
}

func (p *program) showNode(n *rest.Node, ports []rest.Port, tag string) error {
	flagged := func(is bool, reason rest.Null) string {
		return choose(is, strings.TrimSpace("yes "+string(reason)), "")
	}
	ifaces := map[string]any{"boot": string(n.BootInterface), "deploy": string(n.DeployInterface),
		"inspect": string(n.InspectInterface), "management": string(n.ManagementInterface),
		"network": string(n.NetworkInterface), "power": string(n.PowerInterface)}
	macs := mapped(ports, func(port *rest.Port) string {
		return port.Address + choose(port.PXEEnabled, "", " (not booted from)")
	})
	return p.sheet(append([][2]string{
		{"name", dash(string(n.Name))}, {"uuid", n.UUID},
		{"state", toward(string(n.ProvisionState), n.TargetProvisionState)}, {"since", when(n.ProvisionUpdatedAt.Time)},
		{"power", dash(string(n.PowerState))}},
		filled([][2]string{
			{"power target", string(n.TargetPowerState)},
			{"last error", string(n.LastError)},
			{"fault", string(n.Fault)},
			{"maintenance", flagged(n.Maintenance, n.MaintenanceReason)},
			{"locked by", string(n.Reservation)},
			{"driver", n.Driver},
			{"driver info", object(n.DriverInfo)},
			{"controller rows", strings.Join(controllerRows(n), ", ")},
			{"properties", object(n.Properties)},
			{"boot mode", string(n.BootMode)},
			{"instance", string(n.InstanceUUID)},
			{"instance info", object(n.InstanceInfo)},
			{"resource class", string(n.ResourceClass)},
			{"description", string(n.Description)},
			{"owner", string(n.Owner)},
			{"lessee", string(n.Lessee)},
			{"traits", strings.Join(n.Traits, ", ")},
			{"extra", object(n.Extra)},
			{"protected", flagged(n.Protected, n.ProtectedReason)},
			{"retired", flagged(n.Retired, n.RetiredReason)},
			{"interfaces", strings.ReplaceAll(object(ifaces), " = ", ": ")},
			{"ports", strings.Join(macs, "\n")},
			{"inspected", when(n.InspectionFinishedAt.Time)},
			{"conductor", string(n.Conductor)},
			{"created", when(n.CreatedAt.Time)},
			{"etag", tag},
		}...)...))
}

func (p *program) nodeSet() *cobra.Command {
	attributes := []string{"name", "description", "resource_class", "owner", "lessee", "driver", "instance_uuid",
		"automated_clean", "protected", "protected_reason", "retired", "retired_reason", "network_interface",
		"deploy_interface", "inspect_interface", "boot_interface"}
	objects := map[string]string{"driver-info": "driver_info", "property": "properties", "extra": "extra",
		"instance-info": "instance_info"}
	texts, lists := map[string]*string{}, map[string]*[]string{}
	var unset []string
	var bmcPassword bool
	var match, networkData string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change the attributes of a node",
		Example: `  ingot node set web1 --driver-info ipmi_address=192.0.2.11 --bmc-password
  ingot node set web1 --property 'root_device={"serial":"S123"}' --unset extra/rack`,
	}
	options := []option{
		opt("if-match", &match, "change it only if its ETag is still this one; node show prints it, with its quotes"),
		opt("bmc-password", &bmcPassword, "set the controller's password: ask for it, or take $INGOT_BMC_PASSWORD"),
		opt("network-data", &networkData, "file with network_data.json: addresses of the agent without DHCP"),
		opt("unset", &unset, "remove an attribute, or a key of one: owner, extra/rack"),
	}
	for _, attribute := range attributes {
		name := strings.ReplaceAll(attribute, "_", "-")
		texts[name] = new(string)
		options = append(options, opt(name, texts[name], attribute))
	}
	for name, attribute := range objects {
		lists[name] = new([]string)
		options = append(options, opt(name, lists[name], "KEY=VALUE in "+attribute+"; the value may be JSON"))
	}
	return p.onNode(cmd, options, func(ctx context.Context, c *client.Client, node string) error {
		var patch []rest.Operation
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			if cmd.Flags().Changed(name) {
				patch = append(patch,
					rest.Operation{Op: "add", Path: "/" + strings.ReplaceAll(name, "-", "_"), Value: *texts[name]})
			}
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
			driver := *texts["driver"]
			if driver == "" {
				n, err := c.Node(ctx, node)
				if err != nil {
					return err
				}
				driver = n.Driver
			}
			if !enrol.KnowsBMC(driver) {
				return usage("--bmc-password is for machines of type ipmi, redfish and idrac; use --driver-info for %s", driver)
			}
			pw, err := p.secret("", "", "Password at the controller: ")
			if err != nil {
				return err
			}
			patch = append(patch,
				rest.Operation{Op: "add", Path: "/driver_info/" + enrol.BMCKey(driver, "password"), Value: pw})
		}
		if networkData != "" {
			data, err := networkDataIn(networkData)
			if err != nil {
				return err
			}
			patch = append(patch, rest.Operation{Op: "add", Path: "/network_data", Value: data})
		}
		for _, path := range unset {
			patch = append(patch, rest.Operation{Op: "remove", Path: "/" + strings.TrimPrefix(path, "/")})
		}
		if len(patch) == 0 {
			return usage("nothing to change; see `%s --help`", cmd.CommandPath())
		}
		// a variable of a script that was not set: without an ETag nothing would be compared
		if cmd.Flags().Changed("if-match") && match == "" {
			return usage("--if-match has no ETag; `ingot node show %s` prints it", node)
		}
		n, err := c.IfMatch(match).UpdateNode(ctx, node, patch)
		if err != nil {
			return err
		}
		return p.result(n, "%s is changed", label(n))
	})
}

func (p *program) nodeDelete() *cobra.Command {
	return p.online(&cobra.Command{
		Use: "delete NAME...", Short: "Delete nodes", Aliases: []string{"rm"}, Args: nodes,
		ValidArgsFunction: p.completeNode,
	}, nil, func(ctx context.Context, c *client.Client, args []string) error {
		for _, name := range args {
			if err := c.DeleteNode(ctx, name); err != nil {
				return about(name, err)
			}
			if err := p.say("%s is deleted", name); err != nil {
				return err
			}
		}
		return nil
	})
}
