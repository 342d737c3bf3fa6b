// Package record keeps the record of a job in its node: at which step it is, what of the agent's plan is done, and what
// stays of it when it is over; and it reads from the marks of a boot how far a machine came.
//
// Everything here is done to the copy of a node that its caller stores, or not. Nothing looks at the machine, or at the
// time of another conductor.
package record

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// ToNext moves a job to its first step that is not done, and forgets where in the last one it was.
func ToNext(j *node.Job) {
	j.Index = len(j.Steps)
	for i, s := range j.Steps {
		if s.Status != node.StepDone {
			j.Index = i
			break
		}
	}
	j.Note, j.Attempt, j.Detail = "", 0, ""
	j.BegunAt, j.NotBefore, j.PlanSent = time.Time{}, time.Time{}, time.Time{}
	j.PlanID, j.PlanGen, j.PlanFirst = "", 0, 0
}

// AbortReason says how far a job was when it was ended on request.
func AbortReason(j *node.Job) string {
	s := j.Current()
	switch {
	case j.Why != "":
		return j.Why
	case s == nil:
		return "by request, the " + string(j.Phase) + " operation was " + j.Detail
	}
	when := "during"
	if s.Status == node.StepPending {
		when = "before"
	}
	return fmt.Sprintf("by request, the %s operation was %s %s step %s", j.Phase, j.Detail, when, s.Name)
}

// Pausable reports whether a job is at the beginning of a step, where it may wait until its node is out of maintenance.
// Steps that clean up after failed work go on: they leave no machine on that was off.
func Pausable(n *node.Node, s *node.JobStep) bool {
	j := n.Job
	return s.Status == node.StepPending && j.Failure == "" && (!s.InBand || j.PlanID == "" || j.PlanSent.IsZero())
}

// Shorten stores the result of a job's step i apart from the node if it is too long to be kept with it, by itself or
// with those of the other steps. What follows from it has been taken out of it before.
func Shorten(j *node.Job, i int, effects *node.SideEffects) {
	s, all := &j.Steps[i], 0
	for i := range j.Steps {
		all += len(j.Steps[i].Result)
	}
	if omitted := fmt.Appendf(nil, `{"omitted_bytes":%d}`, len(s.Result)); len(s.Result) > len(omitted) &&
		(len(s.Result) > limit.KeptResult || all > limit.KeptResults) {
		s.ResultRef = rand.Text()
		effects.Results = append(effects.Results, node.LargeResult{Ref: s.ResultRef, Doc: s.Result})
		s.Result = omitted
	}
}

// Remember keeps what came out of a node's job, which is over. Results have been shortened before.
func Remember(n *node.Node) {
	j := *n.Job
	j.EndedAt = time.Now().UTC()
	j.Steps = slices.Clone(j.Steps)
	for i := range j.Steps {
		j.Steps[i].Args, j.Steps[i].Memory = nil, nil // may hold secrets
	}
	past := map[node.Phase]*node.Job{}
	maps.Copy(past, n.Past)
	past[j.Phase] = &j
	n.Past = past
}
