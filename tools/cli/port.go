package cli

import (
	"context"
	"errors"
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
	cmd := &cobra.Command{Use: "port", Short: "Network ports of machines"}
	cmd.AddCommand(p.portCreate(), p.portList(), p.portDelete())
	return cmd
}

func (p *program) portCreate() *cobra.Command {
	var port client.NewPort
	var noBoot bool
	cmd := &cobra.Command{
		Use: "create NAME MAC", Short: "Create a network port of a node",
		Long: "Create a network port of a node. Inspection creates ports by itself.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("%s wants a node and a MAC address", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: p.completeNode,
	}
	cmd.Flags().BoolVar(&noBoot, "no-boot", false, "the machine does not boot from this port")
	cmd.Flags().StringVar(&port.PhysicalNetwork, "physical-network", "", "name of the network it is on")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		n, err := c.Node(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		port.NodeUUID, port.Address = n.UUID, args[1]
		boot := !noBoot
		port.PXEEnabled = &boot
		made, err := c.CreatePort(ctx, port)
		if err != nil {
			return about(args[0], err)
		}
		if p.output == "json" {
			return p.printJSON(made)
		}
		fmt.Fprintf(p.stdout, "port %s of %s is made (%s)\n", made.Address, args[0], made.UUID)
		return nil
	})
	return cmd
}

func (p *program) portList() *cobra.Command {
	var node string
	cmd := &cobra.Command{Use: "list", Short: "List ports", Args: cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions}
	cmd.Flags().StringVar(&node, "node", "", "only of this node")
	if err := cmd.RegisterFlagCompletionFunc("node",
		func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return p.completeNode(cmd, nil, prefix)
		}); err != nil {
		panic(err)
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		ports, err := c.Ports(ctx, node)
		if err != nil {
			return about(node, err)
		}
		if p.output == "json" {
			if ports == nil {
				ports = []rest.Port{}
			}
			return p.printJSON(ports)
		}
		nodes, err := c.Nodes(ctx, nil)
		if err != nil {
			return err
		}
		names := map[string]string{}
		for i := range nodes {
			names[nodes[i].UUID] = label(&nodes[i])
		}
		rows := make([][]string, len(ports))
		for i, port := range ports {
			rows[i] = []string{port.Address, names[port.NodeUUID],
				map[bool]string{true: "yes", false: "no"}[port.PXEEnabled], dash(string(port.PhysicalNetwork)),
				port.UUID}
		}
		return table(p.stdout, []string{"ADDRESS", "NODE", "BOOTS", "NETWORK", "UUID"}, rows)
	})
	return cmd
}

func (p *program) portDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete MAC|UUID...", Short: "Delete ports", Aliases: []string{"rm"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s wants MAC addresses or UUIDs of ports; `ingot port list` shows them",
					cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
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
			fmt.Fprintf(p.stdout, "port %s is deleted\n", arg)
		}
		return nil
	})
	return cmd
}

func (p *program) driverCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "driver", Short: "Hardware types and their properties"}
	list := &cobra.Command{Use: "list", Short: "List hardware types", Args: cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions}
	list.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		drivers, err := c.Drivers(ctx)
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(drivers)
		}
		rows := make([][]string, len(drivers))
		for i, d := range drivers {
			rows[i] = []string{d.Name, strings.Join(d.Hosts, ", ")}
		}
		return table(p.stdout, []string{"NAME", "CONDUCTORS"}, rows)
	})
	show := &cobra.Command{
		Use: "show DRIVER", Short: "Show the properties that a hardware type needs", ValidArgsFunction: p.driverNames,
		Args: oneArg("a hardware type; `ingot driver list` shows them"),
	}
	show.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		props, err := c.DriverProperties(ctx, args[0])
		if err != nil {
			return err
		}
		if p.output == "json" {
			return p.printJSON(props)
		}
		all, err := c.Capabilities(ctx)
		var answer *rest.Error
		if err == nil {
			err = p.showType(all, args[0])
		} else if errors.As(err, &answer) && answer.Status == http.StatusNotFound {
			err = nil // a plain Ironic does not tell
		}
		if err != nil {
			return err
		}
		var rows [][]string
		for _, k := range slices.Sorted(maps.Keys(props)) {
			rows = append(rows, []string{k, props[k]})
		}
		return table(p.stdout, []string{"DRIVER INFO", "MEANING"}, rows)
	})
	cmd.AddCommand(list, show, p.driverMatrix())
	return cmd
}

func (p *program) driverNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := p.client(cmd.Context())
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	drivers, err := c.Drivers(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, d := range drivers {
		names = append(names, d.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeDriver completes the flag --driver.
func (p *program) completeDriver(cmd *cobra.Command) {
	err := cmd.RegisterFlagCompletionFunc("driver",
		func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return p.driverNames(cmd, nil, prefix)
		})
	if err != nil {
		panic(err)
	}
}
