package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

func names(steps []node.JobStep) string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Interface+"."+s.Name)
	}
	return strings.Join(out, " ")
}

// fixed are steps of every node's interfaces.
type fixed []hardware.Step

func (f fixed) Steps(*node.Node) []hardware.Step { return f }
func (f fixed) All() []hardware.Step             { return f }

func (f fixed) Step(_ *node.Node, iface, name string) (hardware.Step, bool) {
	for _, s := range f {
		if s.Interface == iface && s.Name == name {
			return s, true
		}
	}
	return hardware.Step{}, false
}

// TestPriorities: the configuration moves steps, adds them and leaves them out, of the agent and of what is behind
// interfaces.
func TestPriorities(t *testing.T) {
	w := newWorld(t)
	w.cfg.AgentSteps = outcomeSteps()
	w.cfg.Priorities = map[node.Phase]map[string]int{
		node.PhaseClean: {"deploy.erase_devices_metadata": 0, "deploy.b": 50, "bios.factory_reset": 60,
			"bios.only_deploy": 70},
		node.PhaseDeploy: {"deploy.c": 85, "deploy.write_configdrive": 65},
	}
	e := w.start(nil).eng
	e.SetPlugs(fixed{
		{Interface: "bios", Name: "factory_reset", Priority: map[node.Phase]int{node.PhaseClean: 0}},
		{Interface: "bios", Name: "only_deploy", Priority: map[node.Phase]int{node.PhaseDeploy: 0}},
	})
	n := w.node(w.add("n1"))
	if got, want := names(e.planner().Cleaning(n)),
		"deploy.boot_agent bios.factory_reset deploy.b deploy.power_off_agent"; got != want {
		t.Errorf("cleaning is %s, want %s", got, want)
	}
	n.InstanceInfo["configdrive"] = map[string]any{}
	steps, err := e.planner().Deployment(t.Context(), n, []node.JobStep{{Interface: "deploy", Name: "c", Priority: 75}})
	if want := "deploy.deploy deploy.write_image deploy.c deploy.write_configdrive deploy.prepare_instance_boot deploy.tear_down_agent deploy.switch_to_tenant_network deploy.boot_instance"; err != nil || names(steps) != want {
		t.Errorf("deployment is %s, %v, want %s", names(steps), err, want)
	}
}

// TestUnknownPriorities: overrides that match no step are reported.
func TestUnknownPriorities(t *testing.T) {
	e := New(nil, nil, nil, nil, Config{Priorities: map[node.Phase]map[string]int{
		node.PhaseClean: {"deploy.erase_devices": 10, "deploy.erase_device": 10, "bios.factory_reset": 20,
			"raid.erase_devices": 1},
		node.PhaseDeploy: {"deploy.boot_instance": 50, "deploy.inject_files": 65},
	}}, nil)
	e.SetPlugs(fixed{{Interface: "bios", Name: "factory_reset"}})
	if got, want := e.UnknownPriorities(),
		[]string{"clean: deploy.erase_device", "clean: raid.erase_devices",
			"deploy: deploy.boot_instance"}; !slices.Equal(got, want) {
		t.Errorf("UnknownPriorities = %q, want %q", got, want)
	}
}

// TestServiceNeedsWord: in service only what the agent's table gives a priority for, if only by Asked, may be asked
// for.
func TestServiceNeedsWord(t *testing.T) {
	w := newWorld(t)
	w.cfg.AgentSteps = outcomeSteps()
	e := w.start(nil).eng
	n := w.node(w.add("n1"))
	if _, err := workOf(node.Service).job(t.Context(), e.planner(), n,
		program.Request{ServiceSteps: listed("a")}); err != nil {
		t.Errorf("a step that may be asked for: %v", err)
	}
	if _, err := workOf(node.Service).job(t.Context(), e.planner(), n,
		program.Request{ServiceSteps: listed("erase_devices_metadata")}); err == nil ||
		!strings.Contains(err.Error(), "can't run on a node with an instance") {
		t.Errorf("a step that may not: %v", err)
	}
}

// TestDryRun: the plan with its arguments, ranges held, secrets out, nothing changed.
func TestDryRun(t *testing.T) {
	w := newWorld(t)
	w.cfg.AgentSteps = outcomeSteps()
	e := w.start(nil).eng
	m := w.add("n1")
	w.walk(m, node.Available)
	if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.InstanceInfo["image_source"] = "https://me:pass@images/n1?token=x"
		n.InstanceInfo["image_pull_secret"] = "pssst"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	was := w.node(m)
	d, err := e.DryRun(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: map[string]any{"user_data": "root password"},
			DeploySteps: []node.JobStep{
				{Interface: "deploy", Name: "a", Priority: 90, Args: json.RawMessage(`{"n":9}`)}}})
	if err != nil || d.Refused != nil {
		t.Fatal(err, d.Refused)
	}
	var got []string
	for _, s := range d.Job.Steps {
		if s.InBand {
			got = append(got, fmt.Sprintf("%d %s %s", s.Priority, s.Name, s.Args))
		}
	}
	want := []string{
		`90 a {"n":9}`, `80 write_image {"image_os_hash_algo":"sha256","image_os_hash_value":"abababababababababababababababababababababababababababababababab","image_pull_secret":"******","image_source":"https://me:******@images/n1?token=******"}`,
		`70 write_configdrive {"configdrive":"******"}`, `60 prepare_instance_boot {}`}
	if !slices.Equal(got, want) {
		t.Errorf("the plan is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := w.node(m); n.Version != was.Version || n.Job != nil || n.Provision != node.Available {
		t.Errorf("the node was changed: version %d after %d, job %v", n.Version, was.Version, n.Job)
	}
	var invalid *InvalidError
	for args, words := range map[string]string{`{"n":10}`: "is 10, but has to be at most 9",
		`{"n":"x"}`: "has to be an integer", `{"m":1}`: "no argument m"} {
		r := Request{Verb: node.Clean,
			CleanSteps: []node.JobStep{{Interface: "deploy", Name: "a", Args: json.RawMessage(args)}}}
		d, err := e.DryRun(t.Context(), m.id, r)
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, %v; want %q", args, d, err, words)
		}
	}
	// The steps make sense, the time does not.
	d, err = e.DryRun(t.Context(), m.id, Request{Verb: node.Clean, CleanSteps: listed("a")})
	var transition *node.TransitionError
	if err != nil || !errors.As(d.Refused, &transition) ||
		names(d.Job.Steps) != "deploy.boot_agent deploy.a deploy.power_off_agent" {
		t.Errorf("cleaning of an available node: %+v, %v", d, err)
	}
	// What the node says is held to the declarations, too, before anything is begun.
	if _, err := w.store.UpdateNode(t.Context(), m.id,
		func(n *node.Node) error { n.Properties["skip_block_devices"] = "sda"; return nil }); err != nil {
		t.Fatal(err)
	}
	w.must(m, node.Manage)
	if err := w.ask(m, node.Provide); !errors.As(err, &invalid) ||
		!strings.Contains(err.Error(),
			"skip_block_devices of step deploy.erase_devices_metadata is a string, but has to be an array") {
		t.Errorf("provide with a node that says nonsense: %v", err)
	}
}
