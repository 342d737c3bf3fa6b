package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// verb is a change of provision state as a command.
type verb struct {
	name, target, short string
	wanted              []string // states in which it has ended well
	next                string   // what to do then; %s is the node
	question            string   // asked first on a terminal; %s is the node
}

var verbs = []verb{
	{name: "manage", target: "manage", short: "Check a machine's credentials, or take it back from a failure",
		wanted: []string{"manageable"}, next: "ingot node inspect %s"},
	{name: "inspect", target: "inspect", short: "Boot the agent and look at the hardware",
		wanted: []string{"manageable"}, next: "ingot node provide %s"},
	{name: "provide", target: "provide", short: "Clean a machine and make it available",
		wanted: []string{"available", "manageable"}, next: "ingot node deploy %s --image URL --checksum sha256:HEX"},
	{name: "undeploy", target: "deleted", short: "Tear an instance down and clean the machine",
		wanted:   []string{"available", "manageable"},
		question: "This turns %s off and erases what its instance is made of. Go on?"},
	{name: "adopt", target: "adopt", short: "Take over a machine that is already deployed, without touching it",
		wanted: []string{"active"}},
	{name: "abort", target: "abort", short: "Stop what a machine is waiting in",
		wanted: []string{"manageable", "available", "inspect failed", "clean failed", "deploy failed"}},
	{name: "unhold", target: "unhold", short: "End the step that holds a machine's work, which goes on",
		wanted: []string{"active", "manageable", "available"}},
}

// waiting says whether a command waits for the end of what it asked for.
type waiting struct{ wait, noWait bool }

// options are the flags of a command that waits until then unless it is told not to. Scripts for openstack have --wait.
func (w *waiting) options(until string) []option {
	w.wait = true
	return []option{opt("wait", &w.wait, "wait until "+until),
		opt("no-wait", &w.noWait, "return as soon as the conductor has accepted the request")}
}

func (w *waiting) skips() bool { return w.noWait || !w.wait }

func (p *program) verbCommands() []*cobra.Command {
	return mapped(verbs, func(v *verb) *cobra.Command {
		var w waiting
		var yes bool
		options := w.options("that is done")
		if v.question != "" {
			options = append(options, opt("yes,y", &yes, "don't ask"))
		}
		return p.online(&cobra.Command{Use: v.name + " NAME...", Short: v.short, Args: nodes,
			ValidArgsFunction: p.completeNode}, options,
			func(ctx context.Context, c *client.Client, args []string) error {
				if v.question != "" {
					if err := p.confirm(yes, fmt.Sprintf(v.question, strings.Join(args, ", "))); err != nil {
						return err
					}
				}
				for _, name := range args {
					if err := c.Provision(ctx, name, client.ProvisionRequest{Target: v.target}); err != nil {
						return about(name, err)
					}
				}
				next := ""
				if len(args) == 1 && v.next != "" {
					next = fmt.Sprintf(v.next, args[0])
				}
				return p.finish(ctx, c, args, w.skips(), next, v.wanted...)
			})
	})
}

// finish waits for nodes, unless noWait is set, and prints their states.
func (p *program) finish(ctx context.Context, c *client.Client, names []string, noWait bool, next string,
	wanted ...string) error {
	for _, name := range names {
		if noWait {
			if !p.values() {
				p.note("%s: taken on. Look at it with: ingot node watch %s", name, name)
			}
			continue
		}
		if err := p.wait(ctx, c, name, wanted...); err != nil {
			return err
		}
	}
	if p.values() {
		for _, name := range names {
			n, err := c.Node(ctx, name)
			if err != nil {
				return about(name, err)
			}
			if err := p.print(n); err != nil {
				return err
			}
		}
		return nil
	}
	if next != "" && !noWait {
		p.note("Next: %s", next)
	}
	return nil
}

// nodeListed makes the verbs that run a list of steps.
func (p *program) nodeListed(verb, short, example, end string,
	request func(steps []client.Step, runbook string) client.ProvisionRequest) *cobra.Command {
	var steps []string
	var file, runbook string
	var w waiting
	var dry bool
	return local(&cobra.Command{
		Use: verb + " NAME", Short: short,
		Example: "  ingot node " + verb + " web1 --step " + example + "\n  ingot node " + verb +
			" web1 --steps steps.yaml --dry-run",
		Args: oneNode, ValidArgsFunction: p.completeNode,
	}, append(w.options("the steps are done"), []option{
		opt("step", &steps, `INTERFACE.STEP, or INTERFACE.STEP={"arg": "value"}; in the order they are to run`),
		opt("steps", &file,
			"a file with the steps instead, - is the standard input: a list of objects with interface, step and args, in YAML or JSON"),
		opt("runbook", &runbook, "a runbook instead"),
		opt("dry-run", &dry, "show the steps that would run, and do nothing"),
	}...), func(ctx context.Context, args []string) error {
		given := map[bool]int{}
		for _, is := range []bool{len(steps) > 0, file != "", runbook != ""} {
			given[is]++
		}
		if given[true] != 1 {
			return usage("which steps? Say either --step INTERFACE.STEP, such as --step %s, or --steps FILE, or --runbook NAME", example)
		}
		list, err := stepArguments(steps)
		if err == nil && file != "" {
			list, err = p.readSteps(file)
		}
		if err != nil {
			return err
		}
		c, err := p.client(ctx)
		if err != nil {
			return err
		}
		r := request(list, runbook)
		if dry {
			return p.showPlan(ctx, c, args[0], r)
		}
		if err := c.Provision(ctx, args[0], r); err != nil {
			return about(args[0], err)
		}
		return p.finish(ctx, c, args, w.skips(), "", end)
	})
}

func (p *program) nodeClean() *cobra.Command {
	return p.nodeListed("clean", "Run cleaning steps of your choice", "deploy.erase_devices_metadata", "manageable",
		func(steps []client.Step, runbook string) client.ProvisionRequest {
			return client.ProvisionRequest{Target: "clean", CleanSteps: steps, Runbook: runbook}
		})
}

func (p *program) nodeService() *cobra.Command {
	return p.nodeListed("service", "Run steps on a machine that is in use, which is restarted for it",
		"deploy.burnin_memory", "active", func(steps []client.Step, runbook string) client.ProvisionRequest {
			return client.ProvisionRequest{Target: "service", ServiceSteps: steps, Runbook: runbook}
		})
}

// readSteps reads steps from a file, or from the standard input, in YAML or JSON.
func (p *program) readSteps(name string) ([]client.Step, error) {
	b, err := p.read(name)
	if err != nil {
		return nil, fmt.Errorf("read the steps: %w", err)
	}
	var list []struct {
		Interface string         `yaml:"interface"`
		Step      string         `yaml:"step"`
		Args      map[string]any `yaml:"args"`
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf(
			"read the steps of %s, which have to be a list of objects with interface, step and args: %w", name, err)
	}
	var steps []client.Step
	for i, s := range list {
		if s.Interface == "" || s.Step == "" {
			return nil, fmt.Errorf("read the steps of %s: number %d has no interface, or no step", name, i+1)
		}
		if s.Args == nil {
			s.Args = map[string]any{}
		}
		steps = append(steps, client.Step{Interface: s.Interface, Step: s.Step, Args: s.Args})
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("read the steps of %s: there are none", name)
	}
	return steps, nil
}

// stepArguments reads steps as INTERFACE.STEP[={...}].
func stepArguments(list []string) ([]client.Step, error) {
	var steps []client.Step
	for _, s := range list {
		name, raw, hasArgs := strings.Cut(s, "=")
		iface, step, ok := strings.Cut(name, ".")
		if !ok || iface == "" || step == "" {
			return nil, usage("--step %q is not of the form INTERFACE.STEP", s)
		}
		st := client.Step{Interface: iface, Step: step, Args: map[string]any{}}
		if hasArgs {
			if err := exact.Unmarshal([]byte(raw), &st.Args); err != nil {
				return nil, usage("--step %s: the arguments are not a JSON object: %v", name, err)
			}
		}
		steps = append(steps, st)
	}
	return steps, nil
}

// powerTargets are the words of `node power`: what is asked for, the same with --soft, and how it ends.
var powerTargets = map[string]struct{ target, soft, end string }{
	"on": {"power on", "", "power on"}, "off": {"power off", "soft power off", "power off"},
	"reboot": {"rebooting", "soft rebooting", "power on"}, "status": {},
}

func (p *program) nodePower() *cobra.Command {
	var w waiting
	var soft bool
	var timeout time.Duration
	return p.online(&cobra.Command{
		Use: "power on|off|reboot|status NAME", Short: "Turn a machine on or off",
		Example:           `  ingot node power off web1 --soft`,
		Args:              wants("on, off, reboot or status, and a node", func(args []string) bool { return len(args) == 2 }),
		ValidArgsFunction: p.completeWord("on", "off", "reboot", "status"),
	}, append(w.options("the machine is on or off"),
		opt("soft", &soft, "ask the operating system, don't just cut the power"),
		opt("timeout", &timeout, "how long it may take (default: the conductor's choice)"),
	), func(ctx context.Context, c *client.Client, args []string) error {
		word, name := args[0], args[1]
		t, ok := powerTargets[word]
		if !ok {
			return usage("power %q is not known: use on, off, reboot or status", word)
		}
		if soft && word != "status" {
			if t.target = t.soft; t.soft == "" {
				return usage("--soft goes with off and reboot")
			}
		}
		if t.target != "" {
			if err := c.Power(ctx, name, t.target, timeout); err != nil {
				return about(name, err)
			}
			if !w.skips() {
				if err := p.waitPower(ctx, c, name, t.end); err != nil {
					return about(name, err)
				}
			}
		}
		n, err := c.Node(ctx, name)
		if err != nil {
			return about(name, err)
		}
		return p.result(map[string]any{"name": n.Name, "uuid": n.UUID, "power_state": n.PowerState,
			"target_power_state": n.TargetPowerState}, "%s", toward(dash(string(n.PowerState)), n.TargetPowerState))
	})
}

func (p *program) nodeMaintenance() *cobra.Command {
	var reason string
	return p.online(&cobra.Command{
		Use: "maintenance on|off NAME", Short: "Put a machine into maintenance, or take it out",
		Args: wants("on or off, and a node", func(args []string) bool {
			return len(args) == 2 && (args[0] == "on" || args[0] == "off")
		}),
		ValidArgsFunction: p.completeWord("on", "off"),
	}, []option{opt("reason", &reason, "why")}, func(ctx context.Context, c *client.Client, args []string) error {
		if err := c.SetMaintenance(ctx, args[1], args[0] == "on", reason); err != nil {
			return about(args[1], err)
		}
		return p.say("maintenance of %s is %s", args[1], args[0])
	})
}

func (p *program) nodeBootDevice() *cobra.Command {
	var persistent bool
	return p.online(&cobra.Command{
		Use: "boot-device NAME [DEVICE]", Short: "Show or choose what a machine boots from",
		Args: wants("a node, and to change it a device: pxe, disk, cdrom, bios",
			func(args []string) bool { return len(args) == 1 || len(args) == 2 }),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"pxe", "disk", "cdrom", "bios"}, noFiles
			}
			return p.completeNode(cmd, args, prefix)
		},
	}, []option{opt("persistent", &persistent, "from now on, not only next time")},
		func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 2 {
				if err := c.SetBootDevice(ctx, args[0], args[1], persistent); err != nil {
					return about(args[0], err)
				}
			}
			d, err := c.BootDevice(ctx, args[0])
			if err != nil {
				return about(args[0], err)
			}
			return p.result(d, "%s%s", dash(string(d.Device)),
				choose(d.Persistent != nil && *d.Persistent, " (from now on)", ""))
		})
}
