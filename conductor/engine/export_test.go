package engine

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/program"
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

// hostWorld is an available node with deploy interface iscsi, and a conductor that knows one host for that.
func hostWorld(t *testing.T) (*world, *machine) {
	t.Helper()
	w := newWorld(t)
	w.cfg.AgentSteps, w.cfg.AllowExport = catalog.BuiltinSteps(), true
	w.cfg.Writers = []program.Writer{{Address: "192.0.2.7", Initiator: "iqn.2004-10.com.example:writer"}}
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	w.edit(m, func(n *node.Node) {
		n.Interfaces = map[string]string{"deploy": "iscsi"}
		n.InstanceInfo = map[string]any{"image_source": "http://images/debian.qcow2", "image_os_hash_algo": "sha256",
			"image_os_hash_value": strings.Repeat("ab", 32), "image_memory": 4096.0, "root_gb": 20.0,
			"root_device": map[string]any{"name": "/dev/vda"}}
	})
	return w, m
}

// lentBy waits until the machine lends its disk as another export than before.
func (w *world) lentBy(m *machine, before string) *Export {
	w.t.Helper()
	var x *Export
	w.until(m, "an export", func(n *node.Node) bool {
		var err error
		if x, err = w.current().eng.ExportOf(n); err != nil {
			w.t.Fatal(err)
		}
		return x != nil && x.ID != before
	})
	return x
}

// TestWrittenByHost: with deploy interface iscsi the agent lends the disk in place of writing the image. The host gets
// the image's address and digest, and a password that no other run of the step has; a conductor that dies changes
// nothing of that, a machine that is started anew does.
func TestWrittenByHost(t *testing.T) {
	w, m := hostWorld(t)
	written := m.hold("export_disk")
	m.mu.Lock()
	held := m.behave["export_disk"]
	var given []string
	m.behave["export_disk"] = func(a *agent, s node.PlanStep) (node.StepResult, bool) {
		m.mu.Lock()
		given = append(given, string(s.Args))
		m.mu.Unlock()
		held(a, s)
		a.facts["image"] = "of the host"
		return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{}`)}, true
	}
	m.mu.Unlock()
	w.must(m, node.Deploy)
	first := w.lentBy(m, "")
	if first.Portal != "192.0.2.50:3260" || first.Initiator != "iqn.2004-10.com.example:writer" ||
		first.Image["image_source"] != "http://images/debian.qcow2" || first.Image["image_type"] != "whole-disk" ||
		first.Image["image_os_hash_value"] != strings.Repeat("ab", 32) || first.Image["root_device"] != nil ||
		first.Image["image_memory"] != nil {
		t.Errorf("the export is %+v of %+v", first, first.Lent)
	}
	w.kill()
	w.start(nil)
	if again := w.lentBy(m, ""); again.ID != first.ID || again.Password != first.Password {
		t.Error("the export is another one after the conductor died")
	}
	m.pull()
	second := w.lentBy(m, first.ID)
	if second.Password == first.Password {
		t.Error("an initiator of before the machine was started anew knows the password")
	}
	if err := w.current().eng.ExportFailed(t.Context(), m.id, first.ID, "too late", "writer"); err == nil ||
		!strings.Contains(err.Error(), "that has ended") {
		t.Errorf("the failure of an earlier export: %v", err)
	}
	written()
	n := w.untilState(m, node.Active)
	var names []string
	for _, s := range n.Past[node.PhaseDeploy].Steps {
		names = append(names, s.Name)
	}
	if want := []string{catalog.StepBootAgent, "export_disk", "prepare_instance_boot", catalog.StepTearDown,
		catalog.StepSwitchNetwork, catalog.StepBootInstance}; !slices.Equal(names, want) {
		t.Errorf("the deployment had the steps %v, want %v", names, want)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, x := range []*Export{first, second} {
		if len(given) != 2 || !strings.Contains(given[i], `"initiator_address":"192.0.2.7"`) ||
			!strings.Contains(given[i], `"chap_password":"`+x.Password+`"`) || len(x.Password) < 12 {
			t.Fatalf("the steps got %q", given)
		}
	}
	if m.writes != 0 || m.content != "of the host " {
		t.Errorf("%d images written by the agent, the disk has %q", m.writes, m.content)
	}
	if x, err := w.current().eng.ExportOf(n); x != nil || err != nil {
		t.Errorf("an active node lends its disk: %+v, %v", x, err)
	}
}

// TestHostFails: the deployment ends with the host's reason, and the next one is another export.
func TestHostFails(t *testing.T) {
	w, m := hostWorld(t)
	defer m.hold("export_disk")()
	w.must(m, node.Deploy)
	x := w.lentBy(m, "")
	for _, why := range []string{"", " ", strings.Repeat("x", maxReason+1)} {
		if err := w.current().eng.ExportFailed(t.Context(), m.id, x.ID, why, "writer"); err == nil {
			t.Errorf("a reason of %d bytes is taken", len(why))
		}
	}
	if err := w.current().eng.ExportFailed(t.Context(), m.id, x.ID, "the digest is wrong", "writer"); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.DeployFailed)
	if !strings.Contains(n.LastError, "could not do it: the digest is wrong") {
		t.Errorf("the last error is %q", n.LastError)
	}
	w.must(m, node.Deploy)
	if next := w.lentBy(m, x.ID); next.Password == x.Password {
		t.Error("two deployments have one password")
	}
}

func TestHostIsRefused(t *testing.T) {
	w, m := hostWorld(t)
	deploy := func(steps ...node.JobStep) error {
		return w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy, DeploySteps: steps})
	}
	set := func(key string, v any) {
		w.edit(m, func(n *node.Node) { n.InstanceInfo = node.With(n.InstanceInfo, key, v) })
	}
	refused := func(words string, err error) {
		t.Helper()
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
	refused("has steps of its own", deploy(lends(lending)...))
	refused("has steps of its own", deploy(node.JobStep{Interface: "deploy", Name: "write_image", Priority: 80}))
	set("image_type", "partition")
	refused("writes whole-disk images", deploy())
	set("image_type", "")
	set("image_os_hash_value", nil)
	refused("no digest of the image", deploy())
	v, err := w.current().eng.Validate(t.Context(), m.id)
	if err != nil || *v["deploy"].Result || !strings.Contains(v["deploy"].Reason, "digest") {
		t.Errorf("validate says %+v, %v", v["deploy"], err)
	}
	w.kill()
	w.cfg.Writers = nil
	w.start(nil)
	set("image_os_hash_value", strings.Repeat("ab", 32))
	refused("export.writers", deploy())
}
