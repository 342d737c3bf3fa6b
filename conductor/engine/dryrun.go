package engine

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Dry is the work that a request would begin.
type Dry struct {
	// nil when the request is a change of state only; the arguments of its steps are those they would run with
	Job *node.Job
	// Refused is why the request would be refused now although its steps make sense, such as the node's state; nil: it
	// would be taken.
	Refused error
}

// DryRun returns what a request would do, and does nothing. Faults of the steps themselves are an *InvalidError, as
// they are for Provision.
func (e *Engine) DryRun(ctx context.Context, ident string, r Request) (Dry, error) {
	stored, err := e.db.Node(ctx, ident)
	if err != nil {
		return Dry{}, err
	}
	n := stored.Clone()
	d, w := Dry{Refused: Allowed(n, r.Verb)}, workOf(r.Verb)
	if r.Verb == node.Deploy || r.Verb == node.Rebuild {
		image, err := e.describe(ctx, n)
		if err != nil {
			return Dry{}, err
		}
		image.apply(n)
	}
	planner := e.planner()
	named, err := planner.WithRunbook(ctx, n, r.forSteps())
	if err != nil {
		return Dry{}, err
	}
	if r.ConfigDrive != nil {
		n.InstanceInfo = node.With(n.InstanceInfo, "configdrive", r.ConfigDrive)
	}
	if r.Verb == node.DoRescue {
		if r.RescuePassword != "" {
			r.rescueHash = redact.Stars
		}
		if err := instance.BeginRescue(n, r.rescueHash); err != nil {
			return Dry{}, err
		}
	}
	if r.Verb == node.Manage {
		n.Provision = node.Enroll // from any other state there is nothing to plan
	}
	if d.Job, err = w.job(ctx, planner, n, named); err != nil || d.Job == nil {
		return Dry{}, err
	}
	for i := range d.Job.Steps {
		s := &d.Job.Steps[i]
		if s.InBand {
			if s.Args, err = planner.Args(n, d.Job, *s); err != nil {
				return Dry{}, err
			}
		}
		s.Args = planner.Shown(s.Args)
	}
	return d, nil
}
