package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/enrol"
)

// moving has the flags of a move to another hardware type.
type moving struct {
	to, user, passwordFile, verifyCA string
	dry                              bool
	password                         string
}

func (p *program) bmcMove() *cobra.Command {
	var m moving
	return p.online(&cobra.Command{
		Use:   "move --to redfish|ipmi NODE...",
		Short: "Have machines' controllers spoken to by Redfish instead of IPMI, or back",
		Long: `Change the hardware type of nodes whose controllers speak both IPMI and Redfish. Nothing is done to the machines, which may be in use.

The address stays, and what driver_info says of the earlier type is kept, so that the way back needs no password. The user's name is kept unless
--bmc-user names another; the password is needed once for each type. Interfaces of the earlier type become the new type's defaults, all others stay.
A node that is in use is in maintenance while it is changed. One that does not validate afterwards is changed back.`,
		Example: `  ingot bmc move --to redfish --dry-run web1 web2
  INGOT_BMC_PASSWORD=secret ingot bmc move --to redfish --verify-ca false web1 web2`,
		Args:              nodes,
		ValidArgsFunction: p.completeNode,
	}, []option{
		opt("to", &m.to, "the hardware type: redfish or ipmi"),
		opt("bmc-user", &m.user, "user name at the controllers (default: that of the earlier type)"),
		opt("bmc-password-file", &m.passwordFile, "file with the password, or take $INGOT_BMC_PASSWORD"),
		opt("verify-ca", &m.verifyCA, "redfish_verify_ca: true (default), false, or a file in the conductor's folder").freeText(),
		opt("dry-run", &m.dry, "only report what would be done"),
	}, func(ctx context.Context, c *client.Client, args []string) error { return p.move(ctx, c, m, args) })
}

// outcome is a row of the report on a node.
type outcome struct {
	Name   string `json:"name"`
	Result string `json:"result"` // moved, would be moved, there already, changed, failed
	Change string `json:"change,omitempty"`
	Error  string `json:"error,omitempty"`
}

func (p *program) move(ctx context.Context, c *client.Client, m moving, names []string) error {
	if !enrol.KnowsBMC(m.to) {
		return usage("--to is redfish or ipmi")
	}
	if m.verifyCA != "" && m.to != "redfish" {
		return usage("--verify-ca is for redfish")
	}
	m.password = p.getenv("INGOT_BMC_PASSWORD")
	if m.passwordFile != "" {
		var err error
		if m.password, err = p.secret("", m.passwordFile, ""); err != nil {
			return err
		}
	}
	return p.eachNode(ctx, names, func(row *outcome) error { return moveOne(ctx, c, m, row) })
}

// eachNode does something with some nodes, one after the other, and prints a row for each.
func (p *program) eachNode(ctx context.Context, names []string, do func(row *outcome) error) error {
	all, failed := make([]outcome, len(names)), 0
	for i, name := range names {
		all[i] = outcome{Name: name, Result: "failed"}
		if ctx.Err() != nil {
			all[i].Error = "not reached: interrupted"
		} else if err := do(&all[i]); err != nil {
			all[i].Result, all[i].Error = "failed", err.Error()
		}
		if all[i].Error != "" {
			failed++
		}
	}
	if p.values() {
		if err := p.print(all); err != nil {
			return err
		}
	} else if err := p.table([]string{"NAME", "RESULT", "CHANGE", "ERROR"},
		mapped(all, func(m *outcome) []string {
			return []string{m.Name, m.Result, cmp.Or(m.Change, "-"), cmp.Or(m.Error, "-")}
		})); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, len(all))
	}
	return nil
}

// moveOne moves one node and notes what came of it.
func moveOne(ctx context.Context, c *client.Client, m moving, row *outcome) error {
	var tag string
	n, err := c.Tag(&tag).Node(ctx, row.Name)
	if err != nil {
		return err
	}
	row.Name = label(n)
	switch {
	case n.Driver == m.to:
		row.Result = "there already"
		return nil
	case !enrol.KnowsBMC(n.Driver):
		return fmt.Errorf("it is of type %s, which has no address of a controller to move", n.Driver)
	}
	patch, change, err := movePatch(n, m)
	if err != nil {
		return err
	}
	if row.Change = change; m.dry {
		row.Result = "would be moved"
		return nil
	}
	held := false
	if !n.Maintenance && !slices.Contains([]string{"enroll", "manageable", "available"}, string(n.ProvisionState)) {
		if err := c.SetMaintenance(ctx, n.UUID, true, "its hardware type is changed"); err != nil {
			return err
		}
		held, tag = true, "" // its version is another
	}
	// What was begun is ended, whatever becomes of the command.
	ctx = context.WithoutCancel(ctx)
	_, err = c.IfMatch(tag).UpdateDriver(ctx, n.UUID, patch)
	if err == nil {
		if err = valid(ctx, c, n.UUID); err != nil {
			err = errors.Join(err, moveBack(ctx, c, n))
		}
	}
	if held {
		err = errors.Join(err, c.SetMaintenance(ctx, n.UUID, false, ""))
	}
	if err == nil {
		row.Result = "moved"
	}
	return err
}

// typed reports whether an interface belongs to one hardware type.
func typed(name string) bool {
	return strings.HasPrefix(name, "ipmi") || strings.HasPrefix(name, "redfish") || strings.HasPrefix(name, "idrac")
}

// interfacesOf are the interfaces of a node by the names of their attributes.
func interfacesOf(n *rest.Node) map[string]string {
	return map[string]string{"bios_interface": string(n.BIOSInterface), "boot_interface": string(n.BootInterface),
		"console_interface": string(n.ConsoleInterface), "deploy_interface": string(n.DeployInterface),
		"firmware_interface": string(n.FirmwareInterface), "inspect_interface": string(n.InspectInterface),
		"management_interface": string(n.ManagementInterface), "network_interface": string(n.NetworkInterface),
		"power_interface": string(n.PowerInterface), "raid_interface": string(n.RAIDInterface),
		"rescue_interface": string(n.RescueInterface), "storage_interface": string(n.StorageInterface),
		"vendor_interface": string(n.VendorInterface)}
}

// movePatch is the change that moves a node, and what it does in words.
func movePatch(n *rest.Node, m moving) (patch []rest.Operation, words string, err error) {
	set := func(path string, v any) { patch = append(patch, rest.Operation{Op: "add", Path: path, Value: v}) }
	get := func(driver, key string) string {
		v, _ := n.DriverInfo[driver+"_"+key].(string)
		return v
	}
	set("/driver", m.to)
	address := get(m.to, "address")
	if address == "" {
		// of Redfish it may be a URL, whose port is that of the other service
		_, host, is := strings.Cut(get(n.Driver, "address"), "://")
		if !is {
			host = get(n.Driver, "address")
		}
		host, _, _ = strings.Cut(host, "/")
		if address, _ = enrol.SplitBMC(host); address == "" {
			return nil, "", fmt.Errorf("driver_info has no %s_address", n.Driver)
		}
		set("/driver_info/"+m.to+"_address", address)
	}
	user := cmp.Or(m.user, get(m.to, "username"), get(n.Driver, "username"))
	if user != get(m.to, "username") {
		set("/driver_info/"+m.to+"_username", user)
	}
	switch {
	case m.password != "":
		set("/driver_info/"+m.to+"_password", m.password)
	case n.DriverInfo[m.to+"_password"] == nil:
		return nil, "", errors.New("it has no password of this type yet: give --bmc-password-file or $INGOT_BMC_PASSWORD")
	}
	if m.verifyCA != "" {
		set("/driver_info/redfish_verify_ca", m.verifyCA)
	}
	var reset []string
	for name, is := range interfacesOf(n) {
		kind := strings.TrimSuffix(name, "_interface")
		switch {
		case is == "":
		case typed(is), strings.HasPrefix(is, "no-"): // which a type with more does not keep
			reset = append(reset, kind)
		default:
			set("/"+name, is)
		}
	}
	slices.Sort(reset)
	return patch, fmt.Sprintf("%s to %s at %s as %s; defaults for %s", n.Driver, m.to, address, cmp.Or(user, "nobody"),
		strings.Join(reset, ", ")), nil
}

// valid says what the conductor has against the node's driver_info and interfaces.
func valid(ctx context.Context, c *client.Client, uuid string) error {
	all, err := c.Validate(ctx, uuid)
	if err != nil {
		return err
	}
	for _, kind := range []string{"power", "management", "boot"} {
		if v, has := all[kind]; has && v.Result != nil && !*v.Result {
			return fmt.Errorf("it does not validate, so it was changed back: %s: %s", kind, v.Reason)
		}
	}
	return nil
}

// moveBack gives a node the type and interfaces that it had.
func moveBack(ctx context.Context, c *client.Client, n *rest.Node) error {
	patch := []rest.Operation{{Op: "add", Path: "/driver", Value: n.Driver}}
	for name, is := range interfacesOf(n) {
		if is != "" {
			patch = append(patch, rest.Operation{Op: "add", Path: "/" + name, Value: is})
		}
	}
	_, err := c.UpdateDriver(ctx, n.UUID, patch)
	return err
}
