package engine

import (
	"encoding/json"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestFlowsHaveLinesOfTheirOwn: cleaning, deployment and service end in lines that clients find by their types, whether
// they went well or not; other work, and a cleaning that is switched off, has none.
func TestFlowsHaveLinesOfTheirOwn(t *testing.T) {
	e := &Engine{}
	steps := []node.JobStep{{Interface: "deploy", Name: "boot_agent"},
		{Interface: "bios", Name: "apply", Args: json.RawMessage(`{"password":"hush","a":1}`)}}
	const list = `[deploy.boot_agent, bios.apply {"a":1,"password":"******"}]`
	for _, c := range []struct {
		phase  node.Phase
		target node.State
		kind   string // "": none
		title  string
	}{
		{node.PhaseClean, node.Available, "automated_cleaning", "Automated Cleaning"},
		{node.PhaseClean, node.Manageable, "manual_cleaning", "Manual Cleaning"},
		{node.PhaseDeploy, node.Active, "deployment", "Deployment"},
		{node.PhaseService, node.Active, "servicing", "Servicing"},
		{node.PhaseInspect, node.Manageable, "", ""},
		{node.PhasePower, "", "", ""},
	} {
		n := &node.Node{Provision: node.Cleaning, TargetProvision: node.Manageable,
			Job: &node.Job{Phase: c.phase, Target: c.target, Steps: steps, Index: 1, Requester: "ann", Project: "p1"}}
		check := func(what string, l node.HistoryEntry, kind, severity, event string) {
			t.Helper()
			if l.Type != kind || l.Severity != severity || l.Event != event || l.User != "ann" || l.Project != "p1" ||
				l.State != node.Cleaning || l.Target != node.Manageable || l.Seconds != nil {
				t.Errorf("%s of %s: %+v, want %s %s %q", what, c.phase, l, kind, severity, event)
			}
		}
		if c.kind == "" {
			if _, ok := flowOf(n.Job); ok {
				t.Errorf("%s is a flow", c.phase)
			}
			check("end", e.doneLine(n, "2s"), "provisioning", "INFO", string(c.phase)+" is done after 2s")
			kind := "provisioning"
			if c.phase == node.PhasePower {
				kind = "power"
			}
			check("failure", e.failedLine(n, "why"), kind, "ERROR", string(c.phase)+" failed: why")
			continue
		}
		if f, ok := flowOf(n.Job); !ok || f.kind != c.kind {
			t.Errorf("%s to %s is %+v, %v", c.phase, c.target, f, ok)
		}
		check("end", e.doneLine(n, "2s"), c.kind+"_end", "INFO", c.title+" completed successfully with steps="+list+
			" after 2s")
		check("failure", e.failedLine(n, "why"), c.kind+"_end", "ERROR", c.title+" failed at step 'bios.apply': why")
		n.Job.Abort = true
		check("abort", e.failedLine(n, "by request"), c.kind+"_end", "ERROR",
			c.title+" aborted at step 'bios.apply': by request")
		n.Job.Index = len(steps)
		check("abort behind the last", e.failedLine(n, "by request"), c.kind+"_end", "ERROR",
			c.title+" aborted: by request")
		n.Job.Steps = nil
		if _, ok := flowOf(n.Job); ok {
			t.Errorf("%s without steps is a flow", c.phase)
		}
	}
}
