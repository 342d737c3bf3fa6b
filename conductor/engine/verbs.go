package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/node"
)

// work is a row of the table of work on nodes, from the request to the end. A new verb is a row, and the functions that
// it needs.
type work struct {
	verb   node.Verb  // that requests it; "" for work that the engine begins by itself
	title  string     // of the verb, for people; "": the verb itself
	phase  node.Phase // of its job; "": it has none
	target node.State // to which its job leads
	flow   namedFlow  // its name in the history, where it is a list of steps

	// check refuses work that the node's state allows but other settings forbid.
	check []func(n *node.Node) error
	// act is done to the node at once, in the transaction that stores the request; nil: nothing.
	act func(e *Engine, n *node.Node, effects *node.SideEffects, r Request) error
	// steps returns those of the job; nil: act is the whole work. A request that only changes the state has no job.
	steps func(ctx context.Context, m program.Planner, n *node.Node, r program.Request) ([]node.JobStep, error)
	// next is called when all steps are done. It returns the verb by which the node leaves its state, or "" when next
	// itself has ended the job.
	next func(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error)
	// undo reverts the parts of failed work that must not stay; nil: nothing.
	undo func(e *Engine, n *node.Node)

	aside  bool // the node's state has no part in it
	keeps  bool // the agent may be kept at its end
	opens  bool // the agent goes on when it is done
	pauses bool // it waits at the beginning of a step while the node is in maintenance
}

// works is the one table of verbs, and of work that the engine begins by itself.
func works() []work {
	return []work{
		{verb: node.Manage, phase: node.PhaseVerify, target: node.Manageable,
			steps: phase(node.PhaseVerify), next: done},
		{verb: node.Inspect, phase: node.PhaseInspect, target: node.Manageable, keeps: true, pauses: true,
			act: beginInspection, steps: inspection, next: inspected},
		{verb: node.Provide, phase: node.PhaseClean, target: node.Available, keeps: true, pauses: true,
			flow:  namedFlow{"automated_cleaning", "Automated Cleaning"},
			check: checks(notRetired, notQuarantined("provide")), steps: automatedCleaning, next: cleaned,
			undo: setFault(node.FaultClean)},
		{verb: node.Clean, phase: node.PhaseClean, target: node.Manageable, keeps: true, pauses: true,
			flow:  namedFlow{"manual_cleaning", "Manual Cleaning"},
			check: checks(notInMaintenance("cleaning")), steps: manualCleaning, next: cleaned,
			undo: setFault(node.FaultClean)},
		{verb: node.Deploy, title: "deploy", phase: node.PhaseDeploy, target: node.Active, pauses: true,
			flow:  namedFlow{"deployment", "Deployment"},
			check: checks(notInMaintenance("provisioning"), notQuarantined("deploy")), steps: deployment,
			next: nowActive},
		{verb: node.Rebuild, phase: node.PhaseDeploy, target: node.Active, pauses: true,
			flow:  namedFlow{"deployment", "Deployment"},
			check: checks(notInMaintenance("provisioning"), unprotected), steps: deployment, next: nowActive},
		{verb: node.Delete, title: "undeploy", phase: node.PhaseDelete, target: node.Available,
			check: checks(unprotected), steps: phase(node.PhaseDelete), next: tornDown},
		{verb: node.Adopt, phase: node.PhaseAdopt, target: node.Active, steps: adoption, next: nowActive},
		{verb: node.Service, phase: node.PhaseService, target: node.Active, pauses: true,
			flow:  namedFlow{"servicing", "Servicing"},
			check: checks(notInMaintenance("service")), steps: servicing, next: serviced,
			undo: setFault(node.FaultService)},
		{verb: node.DoRescue, phase: node.PhaseRescue, target: node.Rescue, opens: true, pauses: true,
			check: checks(notInMaintenance("rescuing")), act: beginRescue, steps: rescueSteps(node.PhaseRescue),
			next: rescued, undo: func(_ *Engine, n *node.Node) { instance.ForgetRescue(n) }},
		{verb: node.Unrescue, phase: node.PhaseUnresc, target: node.Active,
			check: checks(notInMaintenance("unrescuing")), steps: rescueSteps(node.PhaseUnresc), next: done},
		{verb: node.Abort, check: checks(abortable), act: requestAbort},
		{verb: node.Unhold, act: func(e *Engine, n *node.Node, effects *node.SideEffects, _ Request) error {
			return e.setState(n, effects, node.Unhold)
		}},

		{phase: node.PhasePower, aside: true, next: powerChanged, undo: (*Engine).endPower},
		{phase: node.PhaseWarm, aside: true, pauses: true, next: warmed, undo: (*Engine).failAhead},
		{phase: node.PhaseCool, aside: true, next: cooled, undo: (*Engine).failAhead},
		{phase: node.PhaseDiscover, aside: true, next: discovered},
	}
}

// workOf finds the row of a verb.
func workOf(v node.Verb) work {
	all := works()
	i := slices.IndexFunc(all, func(w work) bool { return w.verb == v && v != "" })
	if i < 0 {
		return work{}
	}
	return all[i]
}

// workOfJob finds the row of a job.
func workOfJob(j *node.Job) (found work) {
	for _, w := range works() {
		if w.phase == j.Phase && (found.phase == "" || found.target != j.Target) {
			found = w
		}
	}
	return found
}

// Allowed refuses a verb that does not fit the node's state or settings. Errors are *node.TransitionError,
// *node.ProtectedError or *InvalidError.
func Allowed(n *node.Node, v node.Verb) error {
	if _, _, err := node.Next(n.Provision, n.TargetProvision, v); err != nil {
		return &node.TransitionError{UUID: n.UUID, State: n.Provision, Verb: v}
	}
	return workOf(v).allowed(n)
}

func (w work) name() string { return cmp.Or(w.title, string(w.verb)) }

// allowed refuses work that the node's state allows but other settings forbid.
func (w work) allowed(n *node.Node) error {
	for _, check := range w.check {
		if err := check(n); err != nil {
			return err
		}
	}
	return nil
}

// job makes the job of a request; nil when the request is a change of state only, such as giving up on failed work.
func (w work) job(ctx context.Context, m program.Planner, n *node.Node, r program.Request) (*node.Job, error) {
	if to, _, err := node.Next(n.Provision, n.TargetProvision, w.verb); err == nil && to.IsStable() {
		return nil, nil
	}
	if w.steps == nil {
		return nil, node.Invalidf("%s is not supported", w.verb)
	}
	steps, err := w.steps(ctx, m, n, r)
	if err != nil {
		return nil, err
	}
	return newJob(w.phase, w.target, steps, r.User), m.Check(n, steps)
}

func checks(list ...func(*node.Node) error) []func(*node.Node) error { return list }

func unprotected(n *node.Node) error {
	if n.Protected {
		return &node.ProtectedError{UUID: n.UUID}
	}
	return nil
}

func notRetired(n *node.Node) error {
	if n.Retired {
		return node.Invalidf("The providing operation can't be performed on node %s because it is retired.", n.UUID)
	}
	return nil
}

// notInMaintenance: as in Ironic, work on an idle machine may begin in maintenance, and pauses; work that disturbs an
// instance, or is a list of the client's own steps, may not.
func notInMaintenance(doing string) func(*node.Node) error {
	return func(n *node.Node) error {
		if n.Maintenance {
			return node.Invalidf("The %s operation can't be performed on node %s because it's in maintenance mode.", doing,
				n.UUID)
		}
		return nil
	}
}

func notQuarantined(what string) func(*node.Node) error {
	return func(n *node.Node) error {
		if q := n.Quarantine; q != nil {
			return node.Invalidf(
				"node %s is in quarantine since %s (%s), in which %s is not possible: end the quarantine first", n.UUID,
				q.At.Format(time.RFC3339), q.Reason, what)
		}
		return nil
	}
}

func abortable(n *node.Node) error {
	if n.Provision == node.ServiceFailed {
		return notInMaintenance("abort")(n)
	}
	return nil
}

// requestAbort has the job end as soon as its step allows it.
func requestAbort(e *Engine, n *node.Node, effects *node.SideEffects, r Request) error {
	if n.Job == nil { // service failed: nothing runs
		clearFault(n, node.FaultService)
		n.SetLastError("", "")
		return e.setState(n, effects, r.Verb)
	}
	n.Job.Abort = true
	n.Job.Detail = "aborted by " + cmp.Or(r.User, "request")
	return nil
}

func beginInspection(_ *Engine, n *node.Node, _ *node.SideEffects, _ Request) error {
	n.InspectionStartedAt, n.InspectionFinishedAt = time.Now().UTC(), time.Time{}
	return nil
}

func beginRescue(_ *Engine, n *node.Node, _ *node.SideEffects, r Request) error {
	return instance.BeginRescue(n, r.rescueHash)
}

// The steps of each.

type stepsFunc = func(context.Context, program.Planner, *node.Node, program.Request) ([]node.JobStep, error)

func phase(p node.Phase) stepsFunc {
	return func(_ context.Context, m program.Planner, n *node.Node, _ program.Request) ([]node.JobStep, error) {
		return m.OutOfBand(n, p), nil
	}
}

func inspection(_ context.Context, m program.Planner, n *node.Node, _ program.Request) ([]node.JobStep, error) {
	return m.Inspection(n)
}

func automatedCleaning(_ context.Context, m program.Planner, n *node.Node, _ program.Request) ([]node.JobStep, error) {
	return m.Cleaning(n), nil
}

func manualCleaning(_ context.Context, m program.Planner, n *node.Node, r program.Request) ([]node.JobStep, error) {
	return m.Listed(n, node.PhaseClean, r.CleanSteps, r.DisableRamdisk)
}

func servicing(_ context.Context, m program.Planner, n *node.Node, r program.Request) ([]node.JobStep, error) {
	return m.Listed(n, node.PhaseService, r.ServiceSteps, r.DisableRamdisk)
}

func deployment(ctx context.Context, m program.Planner, n *node.Node, r program.Request) ([]node.JobStep, error) {
	return m.Deployment(ctx, n, r.DeploySteps)
}

func adoption(_ context.Context, m program.Planner, n *node.Node, _ program.Request) ([]node.JobStep, error) {
	steps := m.Conductor(node.PhaseAdopt)
	if b := n.Boot; b != nil && b.Kept { // what runs on the machine is not the instance
		steps = append(m.Conductor(node.PhaseCool), steps...)
	}
	return steps, nil
}

func rescueSteps(p node.Phase) stepsFunc {
	return func(_ context.Context, m program.Planner, n *node.Node, _ program.Request) ([]node.JobStep, error) {
		return m.Rescue(n, p)
	}
}

// What follows each.

func done(*Engine, *node.Node, *node.SideEffects) (node.Verb, error) { return node.Done, nil }

func inspected(_ *Engine, n *node.Node, _ *node.SideEffects) (node.Verb, error) {
	n.InspectionFinishedAt = time.Now().UTC()
	return node.Done, nil
}

func nowActive(_ *Engine, n *node.Node, _ *node.SideEffects) (node.Verb, error) {
	n.DeployedBy = n.Job.Requester
	return node.Done, nil
}

func serviced(_ *Engine, n *node.Node, _ *node.SideEffects) (node.Verb, error) {
	clearFault(n, node.FaultService)
	return node.Done, nil
}

func cleaned(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	j := n.Job
	clearFault(n, node.FaultClean)
	if q := n.Quarantine; q != nil && j.Target == node.Available {
		n.SetLastError(fmt.Sprintf(
			"The node is in quarantine since %s (%s), so it stays manageable instead of becoming available; end the quarantine when the machine is well again.",
			q.At.Format(time.RFC3339), strings.TrimSuffix(q.Reason, ".")), node.FaultQuarantined)
		e.history(n, effects, "provisioning", "WARNING",
			"the node does not become available: it is in quarantine ("+q.Reason+")", j.Requester)
		return node.ToMgmt, nil
	}
	if j.Target == node.Manageable || n.Retired {
		return node.ToMgmt, nil
	}
	return node.Done, nil
}

// tornDown begins the cleaning that follows a tear-down.
func tornDown(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	j := n.Job
	e.closeBoot(n)
	n.InstanceInfo, n.InstanceUUID, n.InstanceName, n.DeployedBy, n.DriveWindow = nil, "", "", "", nil
	e.history(n, effects, "provisioning", "INFO", fmt.Sprintf("%s is done after %s, cleaning follows", j.Phase, took(j)),
		j.Requester)
	record.Remember(n)
	n.Job = newJob(node.PhaseClean, node.Available, e.planner().Cleaning(n), j.Requester)
	n.Job.Project = j.Project
	if err := e.setState(n, effects, node.Clean); err != nil {
		return "", err
	}
	if len(n.Job.Steps) == 0 {
		return "", e.finish(n, effects)
	}
	e.mark(n, effects, node.MarkRequested, string(n.Job.Phase))
	e.startFlow(n, effects)
	return "", nil
}

func powerChanged(e *Engine, n *node.Node, effects *node.SideEffects) (node.Verb, error) {
	e.history(n, effects, "power", "INFO", fmt.Sprintf("%s is done after %s", n.TargetPower, took(n.Job)),
		n.Job.Requester)
	e.endPower(n)
	return "", nil
}

func (e *Engine) endPower(n *node.Node) {
	n.Job, n.TargetPower = nil, ""
	e.reserve(n, false)
}

func setFault(fault string) func(*Engine, *node.Node) {
	return func(_ *Engine, n *node.Node) { n.Fault = fault }
}

// took is how long a job has taken so far, for people.
func took(j *node.Job) time.Duration { return time.Since(j.StartedAt).Round(time.Millisecond) }
