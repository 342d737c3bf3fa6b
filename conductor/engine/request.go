package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Request is what a client asks for with a verb.
type Request struct {
	Verb        node.Verb
	ConfigDrive any            // for active and rebuild: string or object; nil leaves what is there
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

	rescueHash string // of RescuePassword
}

// forSteps is what of the request decides on the steps of its job.
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

// InvalidError says that a request can't be carried out as it is.
type InvalidError = node.InvalidError

func invalidf(format string, args ...any) error {
	return &InvalidError{Reason: fmt.Sprintf(format, args...)}
}

// Provision carries out a verb, or begins to: when it returns nil, the request is stored and will be worked on whatever
// happens. Errors are *node.TransitionError, *LockedError, *InvalidError, *HeldError, or the store's.
func (e *Engine) Provision(ctx context.Context, ident string, r Request) error {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return err
	}
	if err := r.hashRescue(); err != nil {
		return err
	}
	var gone, ahead string // plan of the job that this request ends
	n, err = e.change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		gone, ahead = "", ""
		if n.Job != nil {
			gone = n.Job.PlanID
		}
		if n.Job.IsAhead() {
			ahead = gone
		}
		return e.provision(ctx, n, also, r)
	})
	if err != nil {
		return err
	}
	if r.Verb != node.Delete {
		e.cancelGone(ctx, n.UUID, ahead)
	} else {
		// The agent, if there is one, is not told politely: its machine is about to lose power.
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
func (e *Engine) provision(ctx context.Context, n *node.Node, also *node.Also, r Request) error {
	if _, _, err := node.Next(n.Provision, n.TargetProvision, r.Verb); err != nil {
		return err
	}
	if n.Job != nil && n.Job.Phase == node.PhasePower {
		return &LockedError{n.UUID, e.cfg.Hostname, "a power action is under way (" + n.TargetPower + ")"}
	}
	if n.Job != nil && n.Job.Failure != "" && !n.Job.IsAhead() {
		return &LockedError{n.UUID, e.cfg.Hostname, "failed work is being cleaned up"}
	}
	if err := e.allowed(n, r); err != nil {
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
	e.history(n, also, "provisioning", "INFO", fmt.Sprintf("%s requested in state %s", verbName(r.Verb), n.Provision),
		r.User)

	switch r.Verb {
	case node.Abort:
		if n.Job == nil { // service failed: nothing runs
			clearFault(n, node.FaultService)
			n.LastError = ""
			return e.setState(n, also, r.Verb)
		}
		n.Job.Abort = true
		n.Job.Detail = "aborted by " + userName(r.User)
		return nil
	case node.Unhold:
		return e.setState(n, also, r.Verb)
	}
	if r.ConfigDrive != nil {
		if n.InstanceInfo == nil {
			n.InstanceInfo = map[string]any{}
		}
		n.InstanceInfo["configdrive"] = r.ConfigDrive
	}
	if r.Verb == node.DoRescue {
		if err := instance.BeginRescue(n, r.rescueHash); err != nil {
			return err
		}
	}
	job, err := planner.Job(ctx, n, named)
	if err != nil {
		return err
	}
	n.LastError = ""
	clearFault(n, node.FaultClean)
	clearFault(n, node.FaultService)
	if n.Job.IsAhead() {
		job = e.takeOverAhead(n, also, n.Job, job)
	}
	if b := n.Boot; b != nil && !b.Kept && (job == nil || job.Adopted == "") {
		b.Ended = true // of the job before this one
	}
	n.Job = job
	if err := e.setState(n, also, r.Verb); err != nil {
		return err
	}
	if job == nil || job.IsAhead() {
		return nil
	}
	noteProject(ctx, job)
	e.mark(n, also, node.MarkRequested, string(job.Phase))
	e.startFlow(n, also)
	if job.Phase == node.PhaseInspect {
		n.InspectionStartedAt, n.InspectionFinishedAt = time.Now().UTC(), time.Time{}
	}
	if len(job.Steps) == 0 { // nothing to do on the way, such as cleaning that is switched off
		return e.finish(n, also)
	}
	return nil
}

// allowed refuses what the state would allow and something else forbids.
func (e *Engine) allowed(n *node.Node, r Request) error {
	switch r.Verb {
	case node.Delete, node.Rebuild:
		if n.Protected {
			return invalidf("Node %s is protected and cannot be undeployed, rebuilt or deleted", n.UUID)
		}
	case node.Provide:
		if n.Retired {
			return invalidf("The providing operation can't be performed on node %s because it is retired.", n.UUID)
		}
	}
	// As in Ironic: what begins work on an idle machine may begin in maintenance, and pauses; what disturbs an
	// instance, or is a list of somebody's own, may not.
	doing := map[node.Verb]string{node.DoRescue: "rescuing", node.Unrescue: "unrescuing", node.Clean: "cleaning",
		node.Service: "service"}[r.Verb]
	if r.Verb == node.Abort && n.Provision == node.ServiceFailed {
		doing = "abort"
	}
	if n.Maintenance && doing != "" {
		return invalidf("The %s operation can't be performed on node %s because it's in maintenance mode.", doing,
			n.UUID)
	}
	if q := n.Quarantine; q != nil && (r.Verb == node.Provide || r.Verb == node.Deploy) {
		return invalidf("node %s is in quarantine since %s (%s), in which %s is not possible: end the quarantine first",
			n.UUID, q.At.Format(time.RFC3339), q.Reason, verbName(r.Verb))
	}
	return nil
}

func verbName(v node.Verb) string {
	switch v {
	case node.Deploy:
		return "deploy"
	case node.Delete:
		return "undeploy"
	}
	return string(v)
}

func userName(u string) string {
	if u == "" {
		return "request"
	}
	return u
}
