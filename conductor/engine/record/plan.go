package record

import (
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// PlanRange is the range of steps of the job's present plan. Steps of it may be done.
func PlanRange(j *node.Job) (from, to int) {
	to = j.PlanFirst
	for to < len(j.Steps) && j.Steps[to].InBand {
		to++
	}
	return j.PlanFirst, to
}

// PlanAnew gives up the present plan; the next look makes a new one. Data that steps of the old one left in the agent's
// memory is lost with it, so steps that leave any (such as an image that is written, and not committed yet) run again,
// and those before them if they are repeatable; else done steps, which may have taken hours, stay done.
func PlanAnew(j *node.Job, table catalog.Table, why string) {
	from, to := PlanRange(j)
	lost := to
	if i := slices.IndexFunc(j.Steps[from:to], table.InMemory); i >= 0 {
		lost = from + i
	}
	kept := slices.Clone(j.Steps[:from])
	j.Index = -1
	for i, s := range j.Steps[from:to] {
		r, known := table.Find(s.Interface, s.Name)
		again := lost < to && (from+i >= lost || r.Repeatable || !known)
		if again && s.Under {
			continue // the step that requested it will request it again
		}
		if again || s.Status != node.StepDone {
			s.Status, s.Result, s.StartedAt, s.EndedAt, s.RunsAgain = node.StepPending, nil, time.Time{}, time.Time{},
				time.Time{}
			if j.Index < 0 {
				j.Index = len(kept)
			}
		}
		kept = append(kept, s)
	}
	if j.Index < 0 {
		j.Index = len(kept) // only the plan's end was not received
	}
	j.Steps = append(kept, j.Steps[to:]...)
	j.PlanID, j.PlanSent, j.Detail = "", time.Time{}, why
}

// Touched reports whether any step of the present plan has begun.
func Touched(j *node.Job) bool {
	from, to := PlanRange(j)
	return slices.ContainsFunc(j.Steps[from:to], func(s node.JobStep) bool { return s.Status != node.StepPending })
}

// PlanStep finds the step of a job that a result of the present plan is about: the plan's step of that index, or one
// that it requested.
func PlanStep(j *node.Job, r node.StepRef) (*node.JobStep, int) {
	from, to := PlanRange(j)
	at, k := -1, -1
	for i := from; i < to; i++ {
		if j.Steps[i].Under {
			continue
		}
		if k++; k == r.Index {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, 0
	}
	if s := &j.Steps[at]; s.Status != node.StepDone && (r.Name == "" || r.Name == s.Name) {
		return s, at
	}
	last := -1
	for i := at + 1; i < to && j.Steps[i].Under; i++ {
		if j.Steps[i].Name != r.Name {
			continue
		}
		if last = i; j.Steps[i].Status != node.StepDone {
			break
		}
	}
	if last >= 0 {
		return &j.Steps[last], last
	}
	if r.Name == j.Steps[at].Name {
		return &j.Steps[at], at // once more
	}
	return nil, 0
}

// Insert adds the steps that a step requested after it: the agent runs them before it goes on with its plan.
func Insert(j *node.Job, table catalog.Table, at int, next []node.PlanStep) error {
	args := 0
	for _, s := range j.Steps {
		args += len(s.Args)
	}
	for _, a := range next {
		args += len(a.Args)
	}
	if n := len(j.Steps) + len(next); n > limit.JobSteps || args > limit.JobArgs {
		return fmt.Errorf("the job would have %d steps with %d bytes of arguments, and may have %d with %d", n, args,
			limit.JobSteps, limit.JobArgs)
	}
	var asked []node.JobStep
	for _, a := range next {
		s, _ := table.Find(a.Interface, a.Name) // the agent itself refuses unknown steps
		s.Interface, s.Name = a.Interface, a.Name
		st := catalog.InBand(s, a.Args, j.Steps[at-1].Priority)
		if a.Stall > 0 {
			st.Stall = a.Stall
		}
		st.Under = true
		asked = append(asked, st)
	}
	j.Steps = slices.Insert(j.Steps, at, asked...)
	return nil
}
