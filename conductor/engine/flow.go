package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// namedFlow is the history's name for work that is a list of steps. Its start and its end have types of their own
// there, as in Ironic, so that clients find them without reading sentences.
type namedFlow struct{ kind, title string }

// flowOf is that of a job; ok is false for other work, and for a job without steps.
func flowOf(j *node.Job) (f namedFlow, ok bool) {
	if len(j.Steps) == 0 {
		return namedFlow{}, false
	}
	f = workOfJob(j).flow
	return f, f.kind != ""
}

// recorded returns the steps of a job for the history: without secret arguments.
func (e *Engine) recorded(steps []node.JobStep) string {
	texts, planner := make([]string, len(steps)), e.planner()
	for i, s := range steps {
		texts[i] = s.Interface + "." + s.Name
		if len(s.Args) > 0 {
			texts[i] += " " + string(planner.Shown(s.Args))
		}
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// startFlow records that a node's job begins.
func (e *Engine) startFlow(n *node.Node, effects *node.SideEffects) {
	if f, ok := flowOf(n.Job); ok {
		e.history(n, effects, f.kind+"_start", "INFO",
			fmt.Sprintf("Starting %s with steps=%s", strings.ToLower(f.title), e.recorded(n.Job.Steps)),
			n.Job.Requester)
	}
}

// doneLine returns the line of the history that ends a node's successful job. It names the state in which the work was
// done.
func (e *Engine) doneLine(n *node.Node, took string) node.HistoryEntry {
	if f, ok := flowOf(n.Job); ok {
		return e.line(n, f.kind+"_end", "INFO",
			fmt.Sprintf("%s completed successfully with steps=%s after %s", f.title, e.recorded(n.Job.Steps), took),
			n.Job.Requester)
	}
	return e.line(n, "provisioning", "INFO", fmt.Sprintf("%s is done after %s", n.Job.Phase, took), n.Job.Requester)
}

// failedLine is the line of the history that says why a node's job failed.
func (e *Engine) failedLine(n *node.Node, reason string) node.HistoryEntry {
	j := n.Job
	kind, event := "provisioning", fmt.Sprintf("%s failed: %s", j.Phase, reason)
	if f, ok := flowOf(j); ok {
		what, at := "failed", ""
		if j.Abort {
			what = "aborted"
		}
		if s := j.Current(); s != nil {
			at = " at step '" + s.Interface + "." + s.Name + "'"
		}
		kind, event = f.kind+"_end", f.title+" "+what+at+": "+reason
	} else if j.Phase == node.PhasePower {
		kind = "power"
	}
	return e.line(n, kind, "ERROR", event, j.Requester)
}

// noteProject keeps with a job the project in which it was requested, for later entries of the history.
func noteProject(ctx context.Context, j *node.Job) {
	if by := node.RequesterOf(ctx); by.User == j.Requester {
		j.Project = by.Project
	}
}
