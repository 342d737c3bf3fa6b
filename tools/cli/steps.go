package cli

import (
	"context"
	"fmt"
	"strconv"

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
	return p.onNode(&cobra.Command{
		Use:   "plan NAME --for deploy|clean|service|provide|inspect|manage",
		Short: "Show the steps that an operation would run, without running them",
		Example: `  ingot node plan web1 --for clean --step deploy.erase_devices
  ingot node plan web1 --for deploy`,
	}, []option{
		opt("for", &what, "deploy, clean, service, provide (automated cleaning), inspect or manage",
			"deploy", "clean", "service", "provide", "inspect", "manage"),
		opt("step", &steps, `INTERFACE.STEP, INTERFACE.STEP={"arg": "value"}, and for deploy INTERFACE.STEP:PRIORITY[={...}]`),
		opt("runbook", &runbook, "instead of steps, for clean and service"),
	}, func(ctx context.Context, c *client.Client, name string) error {
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
		return p.showPlan(ctx, c, name, r)
	})
}

// showPlan prints what a request would do.
func (p *program) showPlan(ctx context.Context, c *client.Client, name string, r client.ProvisionRequest) error {
	plan, err := c.Plan(ctx, name, r)
	if err != nil {
		return about(name, err)
	}
	if p.values() {
		return p.print(plan)
	}
	if err := p.table([]string{"PRIORITY", "STEP", "BY", "ABORT", "ARGUMENTS"},
		mapped(plan.Steps, func(s *rest.PlanStep) []string {
			args := ""
			if len(s.Args) > 0 {
				args = compact(s.Args)
			}
			return []string{strconv.Itoa(s.Priority), s.Interface + "." + s.Step,
				choose(s.InBand, "agent", "conductor"), choose(s.Abortable, "at once", "at its end"), args}
		})); err != nil {
		return err
	}
	if plan.Refused != "" {
		p.note("Now it would be refused: %s", plan.Refused)
	}
	return nil
}

func (p *program) nodeSteps() *cobra.Command {
	var results bool
	return p.onNode(&cobra.Command{
		Use: "steps NAME", Short: "Show the progress of the steps on a node, and the results of earlier ones",
	}, []option{opt("results", &results, "with the results of steps")},
		func(ctx context.Context, c *client.Client, name string) error {
			s, err := c.Steps(ctx, name)
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(s)
			}
			if s.Job == nil && len(s.Past) == 0 {
				return p.say("nothing has been done on %s yet", name)
			}
			if j := s.Job; j != nil {
				head := fmt.Sprintf("%s, since %s", j.Phase, when(j.StartedAt.Time))
				if err := p.stepTable(head, string(j.Detail), j.Steps, results); err != nil {
					return err
				}
			}
			for _, j := range s.Past {
				failure := ""
				if j.Failure != "" {
					failure = "failed: " + string(j.Failure)
				}
				head := fmt.Sprintf("%s, ended %s", j.Phase, when(j.EndedAt.Time))
				if err := p.stepTable(head, failure, j.Steps, results); err != nil {
					return err
				}
			}
			return nil
		})
}

// stepTable prints the steps of a job under its head and a detail, if there is one.
func (p *program) stepTable(head, detail string, steps []rest.JobStep, results bool) error {
	fmt.Fprintln(p.stdout, head)
	if detail != "" {
		fmt.Fprintf(p.stdout, "  %s\n", detail)
	}
	return p.table(nil, mapped(steps, func(s *rest.JobStep) []string {
		result := ""
		if results && s.Result != nil {
			result = compact(s.Result)
		}
		return []string{"  " + s.Interface + "." + s.Step, s.Status, dash(took(s)), result}
	}))
}

// took is how long a step ran; empty while that is not known.
func took(s *rest.JobStep) string {
	if s.StartedAt.IsZero() || s.EndedAt.IsZero() {
		return ""
	}
	return span(s.EndedAt.Sub(s.StartedAt.Time))
}
