package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

func template(t *testing.T, w *world, name string, drivers []string, steps ...node.TemplateStep) {
	t.Helper()
	if err := w.store.DeployTemplates().Create(t.Context(),
		&node.DeployTemplate{Head: node.Head{Name: name}, Drivers: drivers, Steps: steps}); err != nil {
		t.Fatal(err)
	}
}

// TestTemplates: the steps of templates whose names are among the instance's traits arrive in the agent's plan, unless
// the request says otherwise, and what can't be is refused before anything is done.
func TestTemplates(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	erase := func(priority int, args string) node.TemplateStep {
		return node.TemplateStep{Interface: "deploy", Step: "erase_devices_metadata", Args: json.RawMessage(args),
			Priority: priority}
	}
	template(t, w, "CUSTOM_ERASE", nil, erase(85, `{"skip_block_devices":[]}`),
		node.TemplateStep{Interface: "deploy", Step: "write_image", Args: json.RawMessage(`{"verify":true}`),
			Priority: 75})
	template(t, w, "CUSTOM_AGAIN", nil, erase(86, `{}`))
	template(t, w, "CUSTOM_OTHER", []string{"ipmi"}, erase(87, `{}`))
	template(t, w, "CUSTOM_WRONG", nil,
		node.TemplateStep{Interface: "deploy", Step: "mine_coins", Args: json.RawMessage(`{}`), Priority: 85})
	template(t, w, "CUSTOM_TYPE", nil, erase(85, `{"skip_block_devices":"/dev/sda"}`))
	template(t, w, "CUSTOM_UNUSED", nil, erase(99, `{}`))
	template(t, w, "CUSTOM_NOIMAGE", nil,
		node.TemplateStep{Interface: "deploy", Step: "write_image", Args: json.RawMessage(`{}`)})

	set := func(info any, has ...string) {
		t.Helper()
		if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
			n.InstanceInfo["traits"], n.Traits = info, has
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	plan := func(asked ...node.JobStep) []string {
		t.Helper()
		steps, err := w.current().eng.planner().Deployment(t.Context(), w.node(m), asked)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range steps {
			if s.InBand {
				got = append(got, fmt.Sprint(s.Name, " ", s.Priority, " ", string(s.Args)))
			}
		}
		return got
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	set(nil, "CUSTOM_ERASE")
	want("a trait of the node that the instance was not asked for with", plan(), "write_image 80 ",
		"prepare_instance_boot 60 ")
	set([]any{"CUSTOM_ERASE", "CUSTOM_OTHER", "CUSTOM_NOTEMPLATE"}, "CUSTOM_ERASE", "CUSTOM_OTHER", "CUSTOM_NOTEMPLATE",
		"CUSTOM_UNUSED")
	want("templates", plan(), `erase_devices_metadata 85 {"skip_block_devices":[]}`, `write_image 75 {"verify":true}`,
		"prepare_instance_boot 60 ")
	want("the request's own steps go before", plan(node.JobStep{Interface: "deploy", Name: "erase_devices_metadata"}),
		`write_image 75 {"verify":true}`, "prepare_instance_boot 60 ")

	var invalid *InvalidError
	for _, c := range []struct {
		info  any
		has   []string
		words string
	}{
		{[]any{"CUSTOM_ERASE"}, nil, "is missing traits CUSTOM_ERASE"},
		{"CUSTOM_ERASE", []string{"CUSTOM_ERASE"}, "A list of strings is expected"},
		{[]any{1.0}, nil, "A list of strings is expected"},
		{[]any{"CUSTOM_ERASE", "CUSTOM_AGAIN"}, []string{"CUSTOM_ERASE", "CUSTOM_AGAIN"},
			"CUSTOM_ERASE and CUSTOM_AGAIN both have step deploy.erase_devices_metadata"},
		{[]any{"CUSTOM_WRONG"}, []string{"CUSTOM_WRONG"},
			"(CUSTOM_WRONG) don't fit this node: there is no step deploy.mine_coins"},
		{[]any{"CUSTOM_TYPE"}, []string{"CUSTOM_TYPE"},
			"argument skip_block_devices of step deploy.erase_devices_metadata is a string, but has to be an array"},
		{[]any{"CUSTOM_NOIMAGE"}, []string{"CUSTOM_NOIMAGE"}, "write_image can't be left out"},
	} {
		set(c.info, c.has...)
		before := w.node(m)
		if err := w.ask(m, node.Deploy); !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("deploy with instance traits %v = %v, want %q", c.info, err, c.words)
		}
		if v, err := w.current().eng.Validate(t.Context(), m.id); err != nil || *v["deploy"].Result ||
			!strings.Contains(v["deploy"].Reason, c.words) {
			t.Errorf("validate with instance traits %v = %+v, %v, want %q", c.info, v["deploy"], err, c.words)
		}
		if n := w.node(m); n.Provision != node.Available || n.Job != nil || n.Version != before.Version {
			t.Errorf("after a refused deployment: %s, job %v, version %d, before %d", n.Provision, n.Job, n.Version,
				before.Version)
		}
	}
	set([]any{"CUSTOM_ERASE"}, "CUSTOM_ERASE")
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	last := m.plansTaken[len(m.plansTaken)-1]
	if last.Steps[0].Name != "erase_devices_metadata" || last.Steps[1].Name != "write_image" ||
		!strings.Contains(string(last.Steps[1].Args), `"verify":true`) {
		t.Errorf("the agent's plan: %v", last.Steps)
	}
}

func TestRunbook(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	b := &node.Runbook{Head: node.Head{Name: "CUSTOM_WIPE"}, Traits: []string{"CUSTOM_WIPE"},
		Steps: []node.TemplateStep{
			{Interface: "deploy", Step: "erase_devices_metadata", Args: json.RawMessage(`{"skip_block_devices":[]}`),
				Order: 2},
		}}
	if err := w.store.Runbooks().Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	eng := w.current().eng
	var invalid *InvalidError
	for _, c := range []struct {
		r     Request
		words string
	}{
		{Request{Verb: node.Clean, Runbook: "CUSTOM_WIPE"}, "has not been approved for use on this node"},
		{Request{Verb: node.Clean, Runbook: "CUSTOM_NONE"}, "Runbook CUSTOM_NONE could not be found."},
		{Request{Verb: node.Provide, Runbook: "CUSTOM_WIPE"}, "only valid when"},
		{Request{Verb: node.Clean, Runbook: "CUSTOM_WIPE",
			CleanSteps: []node.JobStep{{Interface: "deploy", Name: "erase_devices_metadata"}}}, "but not both"},
	} {
		if err := eng.Provision(t.Context(), m.id, c.r); !errors.As(err, &invalid) ||
			!strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v = %v, want %q", c.r, err, c.words)
		}
	}
	if _, err := w.store.UpdateNode(t.Context(), m.id,
		func(n *node.Node) error { n.Traits = []string{"CUSTOM_WIPE"}; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := eng.Provision(t.Context(), m.id, Request{Verb: node.Clean, Runbook: b.UUID}); err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Manageable)
	last := m.plansTaken[len(m.plansTaken)-1]
	if len(last.Steps) != 1 || string(last.Steps[0].Args) != `{"skip_block_devices":[]}` {
		t.Errorf("the agent's plan: %v", last.Steps)
	}
}
