package engine

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
)

const lending = `{"initiator_name":"iqn.2026-01.example:w","initiator_address":"192.0.2.7","chap_user":"u","chap_password":"canary-password"}`

func lends(args string) []node.JobStep {
	return []node.JobStep{{Interface: "deploy", Name: "export_disk", Priority: 80, Args: json.RawMessage(args)}}
}

// exportWorld is a node, available, whose instance_info has no image, and whose agent pretends to lend its disk.
func exportWorld(t *testing.T, allow bool) (*world, *machine) {
	t.Helper()
	w := newWorld(t)
	w.cfg.AgentSteps, w.cfg.AllowExport = catalog.BuiltinSteps(), allow
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	w.edit(m, func(n *node.Node) {
		n.InstanceInfo = map[string]any{"root_device": map[string]any{"name": "/dev/vda"}}
	})
	return w, m
}

// TestExportInPlaceOfAnImage: another host writes the disk, and the usual steps go on; a conductor that dies meanwhile
// is no reason to lend it again.
func TestExportInPlaceOfAnImage(t *testing.T) {
	w, m := exportWorld(t, true)
	written := m.hold("export_disk")
	m.mu.Lock()
	held := m.behave["export_disk"]
	given, runs := "", 0
	m.behave["export_disk"] = func(a *agent, s node.PlanStep) (node.StepResult, bool) {
		m.mu.Lock()
		given, runs = string(s.Args), runs+1
		m.mu.Unlock()
		held(a, s)
		a.facts["image"] = "of another host"
		return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{}`)}, true
	}
	m.mu.Unlock()
	if err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy, ConfigDrive: w.driveOf("n1"),
		DeploySteps: lends(lending)}); err != nil {
		t.Fatal(err)
	}
	w.until(m, "the export", func(*node.Node) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return runs == 1
	})
	w.kill()
	w.start(nil)
	written()
	n := w.untilState(m, node.Active)
	var names []string
	for _, s := range n.Past[node.PhaseDeploy].Steps {
		names = append(names, s.Name)
	}
	if want := []string{catalog.StepBootAgent, "export_disk", "write_configdrive", "prepare_instance_boot",
		catalog.StepTearDown, catalog.StepSwitchNetwork, catalog.StepBootInstance}; !slices.Equal(names, want) {
		t.Errorf("the deployment had the steps %v, want %v", names, want)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if runs != 1 || m.writes != 0 || m.content != "of another host http://drive-of/n1" ||
		!strings.Contains(given, `"root_device":{"name":"/dev/vda"}`) {
		t.Errorf("%d exports, %d images written, the disk has %q; the step got %s", runs, m.writes, m.content, given)
	}
	text := string(w.current().eng.planner().Shown(json.RawMessage(given)))
	if strings.Contains(text, "canary") {
		t.Errorf("the arguments are shown with the password: %s", text)
	}
}

func TestExportIsRefused(t *testing.T) {
	off, m := exportWorld(t, false)
	on, other := exportWorld(t, true)
	for _, c := range []struct {
		w     *world
		m     *machine
		r     Request
		words string
	}{
		{off, m, Request{Verb: node.Deploy, DeploySteps: lends(lending)}, "have its export.allow set"},
		{on, other, Request{Verb: node.Deploy, DeploySteps: append(lends(lending),
			node.JobStep{Interface: "deploy", Name: "write_image", Priority: 80})}, "both write the disk"},
		{on, other, Request{Verb: node.Deploy, DeploySteps: lends(`{}`)}, "initiator_name"},
		{on, other, Request{Verb: node.Deploy}, "image_source"},
	} {
		err := c.w.current().eng.Provision(t.Context(), c.m.id, c.r)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: %v, want %q", c.r, err, c.words)
		}
	}
	on.must(other, node.Manage)
	on.untilState(other, node.Manageable)
	err := on.current().eng.Provision(t.Context(), other.id, Request{Verb: node.Clean, CleanSteps: lends(lending)})
	if err == nil || !strings.Contains(err.Error(), "is part of a deployment") {
		t.Errorf("an export in cleaning: %v", err)
	}
}
