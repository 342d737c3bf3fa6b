package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/enrol"
)

func (p *program) nodeCreate() *cobra.Command {
	var (
		m                  = enrol.Machine{Node: client.NewNode{Driver: "ipmi"}}
		n                  = &m.Node
		passwordFile, file string
		networkData        string
		info, props, extra []string
		dry                bool
	)
	return p.online(&cobra.Command{
		Use:   "create NAME | -f FILE",
		Short: "Enrol a machine, or all those of a list",
		Long: `Enrol a machine: a name and the address and credentials of its controller (BMC) are enough.
The password may also come from --bmc-password-file or $INGOT_BMC_PASSWORD, where other users of this host don't see it.

With --file, the machines of a list are enrolled: CSV whose first line has the keys, or YAML, or JSON as Ironic's clients read it. Keys are the
names of the flags with underscores (name, bmc, bmc_user, bmc_password_file, mac, ...) and the fields of nodes in the API; what a machine
does not say is taken from the flags. The whole list is checked before anything is done. Machines that are there already are left alone, so that the
same list can be given again, also a longer one.`,
		Example: `  ingot node create web1 --bmc 192.0.2.10 --bmc-user admin --bmc-password-file pw
  ingot node create web2 --driver redfish --bmc 192.0.2.11 --bmc-user admin --bmc-password-file pw
  ingot node create lab1 --driver fake-hardware
  ingot node create -f rack7.csv --driver redfish --bmc-user admin --bmc-password-file pw --dry-run`,
		Args:              wants("one name, or --file", func(args []string) bool { return len(args) < 2 }),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, []option{
		opt("file,f", &file, "list of machines, CSV (FILE.csv) or YAML; - is standard input, which is YAML"),
		opt("dry-run", &dry, "with --file: say what would be done, and do nothing"),
		opt("driver", &n.Driver, "hardware type").offering(p.completeDriver()),
		opt("bmc", &m.BMC, "address of the controller, HOST or HOST:PORT; of type redfish also a URL"),
		opt("bmc-user", &m.User, "user name at the controller"),
		opt("bmc-password", &m.Password, "password at the controller"),
		opt("bmc-password-file", &passwordFile, "file with the password"),
		opt("mac", &m.MACs, "also create a port with this MAC address (optional: inspection creates ports)"),
		opt("boot-mode", &m.BootMode, "bios or uefi (default: what the machine is set to)", "bios", "uefi"),
		opt("driver-info", &info, "KEY=VALUE for the driver"),
		opt("property", &props, "KEY=VALUE about the hardware"),
		opt("extra", &extra, "KEY=VALUE of your own"),
		opt("resource-class", &n.ResourceClass, "resource class"),
		opt("description", &n.Description, "description"),
		opt("owner", &n.Owner, "owner"),
		opt("uuid", &n.UUID, "UUID (default: a new one)"),
		opt("boot-interface", &n.BootIf, "ipxe, redfish-virtual-media, ... (default: the type's)").freeText(),
		opt("network-data", &networkData, "file with network_data.json: addresses of the agent without DHCP"),
		opt("network-interface", &n.NetworkIf, "noop, flat, switch or neutron (default: the type's)", "noop", "flat",
			"switch", "neutron"),
	}, func(ctx context.Context, c *client.Client, args []string) (err error) {
		if len(args) == 1 {
			n.Name = args[0]
		}
		for _, o := range []struct {
			flag string
			list []string
			to   *map[string]any
		}{{"driver-info", info, &n.DriverInfo}, {"property", props, &n.Properties}, {"extra", extra, &n.Extra}} {
			if *o.to, err = assignments(o.flag, o.list); err != nil {
				return err
			}
		}
		if networkData != "" {
			if n.NetworkData, err = networkDataIn(networkData); err != nil {
				return err
			}
		}
		if m.BMC != "" && !enrol.KnowsBMC(n.Driver) {
			return usage("--bmc is for machines of type ipmi, redfish and idrac; use --driver-info for %s", n.Driver)
		}
		if file != "" && (n.Name != "" || n.UUID != "" || n.Description != "" || m.BMC != "" || len(m.MACs) > 0) {
			return usage("with --file, names, addresses, UUIDs and descriptions come from the list")
		}
		if file == "" && dry {
			return usage("--dry-run needs --file")
		}
		if m.BMC != "" || file != "" && passwordFile != "" || m.Password != "" {
			if m.Password, err = p.secret(m.Password, passwordFile, "Password at the controller: "); err != nil {
				return err
			}
		} else if file != "" {
			m.Password = p.getenv("INGOT_BMC_PASSWORD")
		}
		if file != "" {
			return p.createAll(ctx, c, file, m, dry)
		}
		node, err := m.Enrolment()
		if errors.Is(err, enrol.ErrNoBMC) {
			return usage("where is the machine's controller? Say --bmc ADDRESS, or choose another --driver")
		}
		if err != nil {
			return err
		}
		made, err := create(ctx, c, node, m.MACs)
		if err != nil {
			return err
		}
		if err := p.result(made, "%s is enrolled (%s)", label(made), made.UUID); err != nil || p.values() {
			return err
		}
		p.note("Next: ingot node manage %s", label(made))
		return nil
	})
}

// create makes a node and its ports. The node is also returned when a port was not made.
func create(ctx context.Context, c *client.Client, n client.NewNode, macs []string) (*rest.Node, error) {
	made, err := c.CreateNode(ctx, n)
	if err != nil {
		return nil, err
	}
	for _, mac := range macs {
		if _, err := c.CreatePort(ctx, client.NewPort{NodeUUID: made.UUID, Address: mac}); err != nil {
			return made, about(label(made), fmt.Errorf("the node was made, its port %s was not: %w", mac, err))
		}
	}
	return made, nil
}

// enrolled is the outcome for a machine of a list.
type enrolled struct {
	From   string `json:"from"` // line N, or an address
	Name   string `json:"name"`
	UUID   string `json:"uuid,omitempty"`
	Result string `json:"result"` // created, there already, would be created, failed
	Error  string `json:"error,omitempty"`
}

// createAll enrols the machines of a list, one after the other. One that fails does not keep the others from it.
func (p *program) createAll(ctx context.Context, c *client.Client, file string, defaults enrol.Machine,
	dry bool) error {
	data, err := p.read(file)
	if err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	machines, err := enrol.Read(file, data, defaults)
	if err != nil {
		return fmt.Errorf("nothing was done; %s has faults:\n%w", file, err)
	}
	there, err := enrolledNodes(ctx, c)
	if err != nil {
		return err
	}
	all := make([]enrolled, len(machines))
	failed := 0
	for i := range machines {
		m := &machines[i]
		n, err := m.Enrolment()
		all[i] = enrolled{From: fmt.Sprintf("line %d", m.Line), Name: cmp.Or(n.Name, n.UUID), UUID: n.UUID,
			Result: "would be created"}
		var node *rest.Node
		if err == nil {
			node, err = there.find(n)
		}
		switch {
		case err != nil:
		case node != nil:
			all[i].UUID, all[i].Result = node.UUID, "there already"
		case !dry:
			var made *rest.Node
			if made, err = create(ctx, c, n, m.MACs); made != nil {
				all[i].UUID = made.UUID
			}
			all[i].Result = "created"
		}
		if err != nil {
			failed++
			all[i].Result, all[i].Error = "failed", err.Error()
		}
		if ctx.Err() != nil {
			all = all[:i+1]
			break
		}
	}
	if err := p.showEnrolled(all); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d of %d machines; the same command goes on", len(all), len(machines))
	case failed > 0:
		return fmt.Errorf("%d of %d machines failed; correct them and give the list again: those that are there are left alone",
			failed, len(machines))
	}
	return nil
}

// enrolledFleet is the nodes that are there, by name and UUID, and by controller.
type enrolledFleet struct{ names, controllers map[string]*rest.Node }

func enrolledNodes(ctx context.Context, c *client.Client) (*enrolledFleet, error) {
	nodes, err := c.Nodes(ctx, nil)
	if err != nil {
		return nil, err
	}
	f := &enrolledFleet{map[string]*rest.Node{}, map[string]*rest.Node{}}
	for i := range nodes {
		n := &nodes[i]
		f.names[string(n.Name)], f.names[n.UUID] = n, n
		f.controllers[enrol.Controller(n.Driver, n.DriverInfo)] = n
	}
	delete(f.names, "")
	delete(f.controllers, "")
	return f, nil
}

// find looks for a machine of a list. A name or a controller that belongs to another machine is an error.
func (f *enrolledFleet) find(n client.NewNode) (*rest.Node, error) {
	mine := enrol.Controller(n.Driver, n.DriverInfo)
	there := f.names[n.Name]
	if there == nil {
		there = f.names[n.UUID]
	}
	if there == nil {
		if other := f.controllers[mine]; other != nil {
			return nil, fmt.Errorf("its controller %s is that of node %s", mine, label(other))
		}
		return nil, nil
	}
	if his := enrol.Controller(there.Driver, there.DriverInfo); his != mine || there.Driver != n.Driver {
		return nil, fmt.Errorf("a node of this name is there, with another controller: driver %s, controller %q",
			there.Driver, his)
	}
	return there, nil
}

func (p *program) showEnrolled(all []enrolled) error {
	if p.values() {
		return p.print(all)
	}
	return p.table([]string{"FROM", "NAME", "RESULT", "UUID", "ERROR"}, mapped(all, func(e *enrolled) []string {
		return []string{e.From, e.Name, e.Result, cmp.Or(e.UUID, "-"), cmp.Or(e.Error, "-")}
	}))
}
