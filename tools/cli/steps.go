package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// planned are the kinds of work that can be planned, and their targets.
var planned = map[string]string{"clean": "clean", "service": "service", "deploy": "active", "provide": "provide",
	"inspect": "inspect", "manage": "manage"}

func (p *program) nodePlan() *cobra.Command {
	var what, runbook string
	var steps []string
	cmd := &cobra.Command{
		Use:   "plan NAME --for deploy|clean|service|provide|inspect|manage",
		Short: "Show the steps that an operation would run, without running them",
		Example: `  ingot node plan web1 --for clean --step deploy.erase_devices
  ingot node plan web1 --for deploy`,
		Args: oneNode, ValidArgsFunction: p.completeNode,
	}
	cmd.Flags().StringVar(&what, "for", "", "deploy, clean, service, provide (automated cleaning), inspect or manage")
	cmd.Flags().StringArrayVar(&steps, "step", nil,
		`INTERFACE.STEP, INTERFACE.STEP={"arg": "value"}, and for deploy INTERFACE.STEP:PRIORITY[={...}]`)
	cmd.Flags().StringVar(&runbook, "runbook", "", "instead of steps, for clean and service")
	complete(cmd, "for", "deploy", "clean", "service", "provide", "inspect", "manage")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		target, ok := planned[what]
		if !ok {
			return usage("--for %q is none of deploy, clean, service, provide, inspect, manage", what)
		}
		r := client.ProvisionRequest{Target: target, Runbook: runbook}
		var err error
		switch {
		case what == "deploy":
			r.DeploySteps, err = deployStepArguments(steps)
		case what == "clean":
			r.CleanSteps, err = stepArguments(steps)
		case what == "service":
			r.ServiceSteps, err = stepArguments(steps)
		case len(steps) > 0:
			return usage("--step goes with --for deploy, clean or service")
		}
		if err != nil {
			return err
		}
		if (what == "clean" || what == "service") && len(steps) == 0 && runbook == "" {
			return usage("which steps? Say --step INTERFACE.STEP or --runbook NAME; the automated cleaning is --for provide")
		}
		return p.showPlan(ctx, c, args[0], r)
	})
	return cmd
}

// showPlan prints what a request would do.
func (p *program) showPlan(ctx context.Context, c *client.Client, name string, r client.ProvisionRequest) error {
	plan, err := c.Plan(ctx, name, r)
	if err != nil {
		return about(name, err)
	}
	if p.output == "json" {
		return p.printJSON(plan)
	}
	t := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PRIORITY\tSTEP\tBY\tABORT\tARGUMENTS")
	for _, s := range plan.Steps {
		by, abort, args := "conductor", "at its end", ""
		if s.InBand {
			by = "agent"
		}
		if s.Abortable {
			abort = "at once"
		}
		if len(s.Args) > 0 {
			b, err := json.Marshal(s.Args)
			if err != nil {
				return err
			}
			args = string(b)
		}
		fmt.Fprintf(t, "%d\t%s.%s\t%s\t%s\t%s\n", s.Priority, s.Interface, s.Step, by, abort, args)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if plan.Refused != "" {
		p.note("Now it would be refused: %s", plan.Refused)
	}
	return nil
}

func (p *program) nodeSteps() *cobra.Command {
	var results bool
	cmd := &cobra.Command{
		Use: "steps NAME", Short: "Show the progress of the steps on a node, and the results of earlier ones",
		Args: oneNode, ValidArgsFunction: p.completeNode}
	cmd.Flags().BoolVar(&results, "results", false, "with the results of steps")
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		s, err := c.Steps(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		if p.output == "json" {
			return p.printJSON(s)
		}
		if s.Job == nil && len(s.Past) == 0 {
			fmt.Fprintf(p.stdout, "nothing has been done on %s yet\n", args[0])
			return nil
		}
		if s.Job != nil {
			fmt.Fprintf(p.stdout, "%s, since %s\n", s.Job.Phase, s.Job.StartedAt.Local().Format("2006-01-02 15:04:05"))
			if s.Job.Detail != "" {
				fmt.Fprintf(p.stdout, "  %s\n", s.Job.Detail)
			}
			if err := p.stepTable(s.Job.Steps, results); err != nil {
				return err
			}
		}
		for _, j := range s.Past {
			fmt.Fprintf(p.stdout, "%s, ended %s\n", j.Phase, j.EndedAt.Local().Format("2006-01-02 15:04:05"))
			if j.Failure != "" {
				fmt.Fprintf(p.stdout, "  failed: %s\n", j.Failure)
			}
			if err := p.stepTable(j.Steps, results); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

func (p *program) stepTable(steps []rest.JobStep, results bool) error {
	t := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
	for _, s := range steps {
		took := "-"
		if !s.StartedAt.IsZero() && !s.EndedAt.IsZero() {
			took = span(s.EndedAt.Sub(s.StartedAt.Time))
		}
		result := ""
		if results && s.Result != nil {
			b, err := json.Marshal(s.Result)
			if err != nil {
				return err
			}
			result = string(b)
		}
		fmt.Fprintf(t, "  %s.%s\t%s\t%s\t%s\n", s.Interface, s.Step, s.Status, took, result)
	}
	return t.Flush()
}
