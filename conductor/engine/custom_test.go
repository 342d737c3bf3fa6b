package engine

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// installStep is a site's own step that installs a system.
var installStep = steparg.Row{Interface: "deploy", Name: "install_ours", Args: []steparg.Arg{
	{Name: "image_source", Type: "string", Given: true}, {Name: "configdrive", Type: "any", Given: true, Secret: true},
	{Name: "root_device", Type: "object", Given: true}, {Name: "image_checksum", Type: "string"},
	{Name: "stream", Type: "string"}}}

// ofSite is a machine whose node has deploy interface custom-agent, available, and whose agent has installStep.
func ofSite(t *testing.T) (*world, *machine) {
	t.Helper()
	w := newWorld(t)
	w.cfg = kexecConfig("kexec") // which such a deployment does not take from the configuration
	w.cfg.AgentSteps = append(slices.Clone(w.cfg.AgentSteps), installStep)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	w.edit(m, func(n *node.Node) {
		n.Interfaces = map[string]string{"deploy": "custom-agent"}
		n.InstanceInfo["root_device"] = map[string]any{"name": "/dev/vda"}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behave["install_ours"] = func(_ *agent, s node.PlanStep) (node.StepResult, bool) {
		m.mu.Lock()
		m.bootable, m.content = true, string(s.Args)
		m.mu.Unlock()
		return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{}`)}, true
	}
	return w, m
}

func installs(args string) []node.JobStep {
	return []node.JobStep{{Interface: "deploy", Name: "install_ours", Priority: 80, Args: json.RawMessage(args)}}
}

// TestCustomAgent: a deployment by a site's own step has the agent's boot and end around it, no image is written, and
// the step knows of the node what its manifest calls given.
func TestCustomAgent(t *testing.T) {
	w, m := ofSite(t)
	if err := w.current().eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: w.driveOf("n1"),
			DeploySteps: installs(`{"stream":"stable"}`)}); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.Active)
	var names []string
	for _, s := range n.Past[node.PhaseDeploy].Steps {
		names = append(names, s.Name)
	}
	if want := []string{catalog.StepBootAgent, "install_ours", catalog.StepTearDown, catalog.StepSwitchNetwork,
		catalog.StepBootInstance}; !slices.Equal(names, want) {
		t.Errorf("the deployment had the steps %v, want %v", names, want)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	want := `{"configdrive":"http://drive-of/n1","image_source":"http://images/n1","root_device":{"name":"/dev/vda"},"stream":"stable"}`
	if m.content != want || m.writes != 0 || m.kexecs != 0 || m.osStarted != 1 {
		t.Errorf("the step got %s, want %s; %d images written, %d starts by kexec, %d of the disk", m.content, want,
			m.writes, m.kexecs, m.osStarted)
	}
}

// TestCustomAgentWithoutSteps: the machine boots what its disk has; and the node's settings are no fault without an
// image, since it may need none.
func TestCustomAgentWithoutSteps(t *testing.T) {
	w, m := ofSite(t)
	w.edit(m, func(n *node.Node) { n.InstanceInfo = map[string]any{} })
	if v, err := w.current().eng.Validate(t.Context(), m.id); err != nil || !*v["deploy"].Result {
		t.Errorf("Validate = %+v, %v", v["deploy"], err)
	}
	m.mu.Lock()
	m.bootable = true
	m.mu.Unlock()
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes != 0 || m.osStarted != 1 {
		t.Errorf("%d images written, %d starts of the disk", m.writes, m.osStarted)
	}
}

// TestCustomAgentWritesImage: a request that names write_image has the whole of a deployment by direct.
func TestCustomAgentWritesImage(t *testing.T) {
	w, m := ofSite(t)
	asked := []node.JobStep{{Interface: "deploy", Name: "write_image", Priority: 80},
		{Interface: "deploy", Name: catalog.StepBootInstance, Priority: 20,
			Args: json.RawMessage(`{"method":"reboot"}`)}}
	if err := w.current().eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: w.driveOf("n1"), DeploySteps: asked}); err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Active)
	checkDeployed(t, m, 1)
}

// TestCustomAgentRefuses: what could only fail on the machine.
func TestCustomAgentRefuses(t *testing.T) {
	w, m := ofSite(t)
	for _, c := range []struct {
		step, args string
		priority   int
		info       map[string]any
		words      string
	}{
		{"prepare_instance_boot", "", 60, nil, "deploy.write_image can't be left out: the machine would have no image"},
		{"write_configdrive", "", 70, map[string]any{"configdrive": "http://h/drive"}, "works on the image that deploy.write_image wrote"},
		{"load_kernel", "", 50, nil, "works on the image that deploy.write_image wrote"},
		{"install_ours", `{"disk":1}`, 80, nil, "disk"},
		{"install_ours", "", 30, nil, "does not lie between the start (100) and the end (40) of the agent"},
		{"install_ours", "", 80, map[string]any{"root_device": "x y"}, "root_device"},
		{"install_ours", "", 80, map[string]any{"boot_instance": "kexec"}, "load_kernel can't be left out"},
		{"write_image", "", 80, map[string]any{}, "no image_source"},
	} {
		if c.info != nil {
			w.edit(m, func(n *node.Node) { n.InstanceInfo = c.info })
		}
		_, err := w.current().eng.planner().Deployment(t.Context(), w.node(m), []node.JobStep{
			{Interface: "deploy", Name: c.step, Priority: c.priority, Args: json.RawMessage(c.args)}})
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s with %s and instance_info %v: %v, want %q", c.step, c.args, c.info, err, c.words)
		}
	}
}
