package cli

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) portCommand() *cobra.Command {
	return group(&cobra.Command{Use: "port", Short: "Network ports of machines"},
		p.portCreate(), p.portList(), p.portDelete())
}

func (p *program) portCreate() *cobra.Command {
	var port client.NewPort
	var noBoot bool
	return p.online(&cobra.Command{
		Use: "create NAME MAC", Short: "Create a network port of a node",
		Long:              "Create a network port of a node. Inspection creates ports by itself.",
		Args:              wants("a node and a MAC address", func(args []string) bool { return len(args) == 2 }),
		ValidArgsFunction: p.completeNode,
	}, []option{
		opt("no-boot", &noBoot, "the machine does not boot from this port"),
		opt("physical-network", &port.PhysicalNetwork, "name of the network it is on"),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		n, err := c.Node(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		port.NodeUUID, port.Address, port.PXEEnabled = n.UUID, args[1], new(!noBoot)
		made, err := c.CreatePort(ctx, port)
		if err != nil {
			return about(args[0], err)
		}
		return p.result(made, "port %s of %s is made (%s)", made.Address, args[0], made.UUID)
	})
}

func (p *program) portList() *cobra.Command {
	var node string
	return p.online(&cobra.Command{Use: "list", Short: "List ports"},
		[]option{opt("node", &node, "only of this node").offering(p.completeNode)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			ports, err := c.Ports(ctx, node)
			if err != nil {
				return about(node, err)
			}
			names := map[string]string{}
			if !p.values() {
				nodes, err := c.Nodes(ctx, nil)
				if err != nil {
					return err
				}
				for i := range nodes {
					names[nodes[i].UUID] = label(&nodes[i])
				}
			}
			return list(p, ports, []string{"ADDRESS", "NODE", "BOOTS", "NETWORK", "UUID"},
				func(port *rest.Port) []string {
					return []string{port.Address, names[port.NodeUUID], choose(port.PXEEnabled, "yes", "no"),
						dash(string(port.PhysicalNetwork)), port.UUID}
				})
		})
}

func (p *program) portDelete() *cobra.Command {
	return p.online(&cobra.Command{
		Use: "delete MAC|UUID...", Short: "Delete ports", Aliases: []string{"rm"},
		Args: wants("MAC addresses or UUIDs of ports; `ingot port list` shows them",
			func(args []string) bool { return len(args) > 0 }),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, nil, func(ctx context.Context, c *client.Client, args []string) error {
		for _, arg := range args {
			id := arg
			if strings.Contains(arg, ":") {
				port, err := c.PortByAddress(ctx, arg)
				if err != nil {
					return err
				}
				if port == nil {
					return fmt.Errorf("there is no port with address %s; `ingot port list` shows those there are", arg)
				}
				id = port.UUID
			}
			if err := c.DeletePort(ctx, id); err != nil {
				return err
			}
			if err := p.say("port %s is deleted", arg); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *program) driverCommand() *cobra.Command {
	return group(&cobra.Command{Use: "driver", Short: "Hardware types and their properties"},
		p.driverList(), p.driverShow(), p.driverMatrix())
}

func (p *program) driverList() *cobra.Command {
	return p.online(&cobra.Command{Use: "list", Short: "List hardware types"}, nil,
		func(ctx context.Context, c *client.Client, _ []string) error {
			drivers, err := c.Drivers(ctx)
			if err != nil {
				return err
			}
			return list(p, drivers, []string{"NAME", "CONDUCTORS"}, func(d *client.Driver) []string {
				return []string{d.Name, strings.Join(d.Hosts, ", ")}
			})
		})
}

func (p *program) driverShow() *cobra.Command {
	return p.online(&cobra.Command{
		Use: "show DRIVER", Short: "Show the properties that a hardware type needs",
		ValidArgsFunction: p.completeDriver(), Args: oneArg("a hardware type; `ingot driver list` shows them"),
	}, nil, func(ctx context.Context, c *client.Client, args []string) error {
		props, err := c.DriverProperties(ctx, args[0])
		if err != nil {
			return err
		}
		if p.values() {
			return p.print(props)
		}
		all, err := c.Capabilities(ctx)
		if err == nil {
			err = p.showType(all, args[0])
		} else if status(err) == http.StatusNotFound {
			err = nil // a plain Ironic does not say
		}
		if err != nil {
			return err
		}
		return p.table([]string{"DRIVER INFO", "MEANING"}, mapped(slices.Sorted(maps.Keys(props)),
			func(k *string) []string { return []string{*k, props[*k]} }))
	})
}

// completeDriver completes an argument with the names of hardware types.
func (p *program) completeDriver() completion {
	return p.completeNames(func(c *client.Client, ctx context.Context) ([]string, error) {
		drivers, err := c.Drivers(ctx)
		return mapped(drivers, func(d *client.Driver) string { return d.Name }), err
	})
}
