package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Request is a client's request with a verb.
type Request struct {
	Verb        node.Verb
	ConfigDrive any            // for active and rebuild: string or object; nil leaves the present one
	CleanSteps  []node.JobStep // for clean: Interface, Name, Args, in the order they are to run
	// for active and rebuild: Interface, Name, Args, Priority; they replace or join the usual ones
	DeploySteps []node.JobStep
	// ServiceSteps are like CleanSteps, for service.
	ServiceSteps []node.JobStep
	// Runbook names the runbook whose steps are to run, for clean and service; it goes without steps of the request's
	// own.
	Runbook string
	// RunbookByName: nodes that the runbook may run on have the trait of its name, as in older versions of the API, and
	// not one of its traits.
	RunbookByName bool
	// RescuePassword is for rescue: what opens the machine while it is rescued. Only a hash of it is stored, and
	// removed afterwards. It may be empty when instance_info has ssh keys.
	RescuePassword string
	// DisableRamdisk runs clean or service steps without booting the agent; only steps of the conductor's can run so.
	DisableRamdisk bool
	User           string // for the history

	rescueHash string         // of RescuePassword
	network    map[string]any // for a config drive that has no network_data
}

// forSteps returns the part of the request that decides on the steps of its job.
func (r Request) forSteps() program.Request {
	return program.Request{Verb: r.Verb, CleanSteps: r.CleanSteps, DeploySteps: r.DeploySteps,
		ServiceSteps: r.ServiceSteps, Runbook: r.Runbook, RunbookByName: r.RunbookByName,
		DisableRamdisk: r.DisableRamdisk, User: r.User}
}

// LockedError says that something is under way on the node that does not go together with the request. The same request
// may work later.
type LockedError struct {
	NodeUUID, Holder, Doing string
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("node %s is locked by host %s: %s; please retry after the current operation is completed",
		e.NodeUUID, e.Holder, e.Doing)
}

func (e *Engine) locked(n *node.Node, doing string) error {
	return &LockedError{n.UUID, cmp.Or(n.Reservation, e.ownerOf(n)), doing}
}

// InvalidError says that a request can't be carried out as it is.
type InvalidError = node.InvalidError

// Provision carries out a verb, or begins to: when it returns nil, the request is stored and will be worked on whatever
// happens. Errors are *node.TransitionError, *LockedError, *InvalidError, or the store's.
func (e *Engine) Provision(ctx context.Context, ident string, r Request) error {
	if err := r.hashRescue(); err != nil {
		return err
	}
	var image described
	if r.Verb == node.Deploy || r.Verb == node.Rebuild {
		n, err := e.db.Node(ctx, ident)
		if err == nil && Allowed(n, r.Verb) == nil { // else there is nothing to look up for
			if err = e.networkFault(ctx, n); err == nil {
				image, err = e.describe(ctx, n)
			}
			if err == nil {
				r.network, err = e.networkData(ctx, n, r.ConfigDrive)
			}
		}
		if err != nil {
			return err
		}
	}
	var gone, ahead string // plan of the job that this request ends
	n, err := e.request(ctx, ident, func(n *node.Node, effects *node.SideEffects) error {
		gone, ahead = "", ""
		image.apply(n)
		if n.Job != nil {
			gone = n.Job.PlanID
		}
		if n.Job.IsAhead() {
			ahead = gone
		}
		return e.provision(ctx, n, effects, r)
	})
	if err != nil {
		return err
	}
	if r.Verb != node.Delete {
		e.cancelGone(ctx, n.UUID, ahead)
	} else {
		// The agent, if one runs, gets no notice: its machine is about to lose power.
		if gone != "" {
			if err := e.agents().CancelPlan(ctx, n.UUID, gone); err != nil {
				e.log.Debug("cancel plan", "node", n.UUID, "err", err)
			}
		}
		e.agents().CloseSession(n.UUID)
	}
	e.wake(n.UUID)
	return nil
}

// provision decides on a request inside the transaction that stores its outcome.
func (e *Engine) provision(ctx context.Context, n *node.Node, effects *node.SideEffects, r Request) error {
	if _, _, err := node.Next(n.Provision, n.TargetProvision, r.Verb); err != nil {
		return err
	}
	if n.Job != nil && n.Job.Phase == node.PhasePower {
		return e.locked(n, "a power action is under way ("+n.TargetPower+")")
	}
	if n.Job != nil && n.Job.Failure != "" && !n.Job.IsAhead() {
		return e.locked(n, "failed work is being cleaned up")
	}
	w := workOf(r.Verb)
	if err := w.allowed(n); err != nil {
		return err
	}
	if _, err := e.fastTrack(n); err != nil {
		return err
	}
	planner := e.planner()
	named, err := planner.WithRunbook(ctx, n, r.forSteps())
	if err != nil {
		return err
	}
	e.history(n, effects, "provisioning", "INFO", fmt.Sprintf("%s requested in state %s", w.name(), n.Provision),
		r.User)

	if r.ConfigDrive != nil {
		n.InstanceInfo = node.With(n.InstanceInfo, "configdrive", r.ConfigDrive)
	}
	if drive, ok := n.InstanceInfo["configdrive"].(map[string]any); ok && r.network != nil {
		n.InstanceInfo = node.With(n.InstanceInfo, "configdrive", any(node.With(drive, "network_data", any(r.network))))
	}
	if w.act != nil {
		if err := w.act(e, n, effects, r); err != nil || w.steps == nil {
			return err
		}
	}
	job, err := w.job(ctx, planner, n, named)
	if err != nil {
		return err
	}
	n.SetLastError("", "")
	clearFault(n, node.FaultClean)
	clearFault(n, node.FaultService)
	if n.Job.IsAhead() {
		job = e.takeOverAhead(n, effects, n.Job, job)
	}
	if b := n.Boot; b != nil && !b.Kept && (job == nil || job.Adopted == "") {
		b.Ended = true // of the job before this one
	}
	n.Job = job
	if err := e.setState(n, effects, r.Verb); err != nil {
		return err
	}
	if job == nil || job.IsAhead() {
		return nil
	}
	noteProject(ctx, job)
	e.mark(n, effects, node.MarkRequested, string(job.Phase))
	e.startFlow(n, effects)
	if len(job.Steps) == 0 { // nothing to do on the way, such as cleaning that is switched off
		return e.finish(n, effects)
	}
	return nil
}

// newJob is a job that begins now.
func newJob(phase node.Phase, target node.State, steps []node.JobStep, requester string) *node.Job {
	return &node.Job{ID: uuid.NewString(), StartedAt: time.Now().UTC(), Requester: requester, Phase: phase,
		Target: target, Steps: steps}
}
