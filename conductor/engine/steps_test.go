package engine

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

func TestRefusals(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	set := func(f func(*node.Node)) {
		t.Helper()
		if _, err := w.store.UpdateNode(ctx, m.id, func(n *node.Node) error { f(n); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	info := func(kv ...string) map[string]any {
		out := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = kv[i+1]
		}
		return out
	}
	eng := w.current().eng
	var invalid *InvalidError
	for _, c := range []struct {
		info  map[string]any
		words string
	}{
		{nil, "no image_source"},
		{info("image_source", "file:///etc/passwd"), "not an http"},
		{info("image_source", "http://u:secret@h/i"), "no digest"},
		{info("image_source", "http://h/i", "image_os_hash_value", "ab"), "image_os_hash_algo"},
		{info("image_source", "http://h/i", "image_os_hash_value", "ab", "image_os_hash_algo", "md5"), "allow_md5"},
		{info("image_source", "http://h/i", "image_os_hash_value", "ab", "image_os_hash_algo", "sha1"), "sha1"},
		{info("image_source", "http://h/i", "image_checksum", strings.Repeat("ab", 16)), "allow_md5"},
		{info("image_source", "http://", "image_checksum", strings.Repeat("ab", 32)), "not an http"},
		{info("image_source", "https://:80/i", "image_checksum", strings.Repeat("ab", 32)), "not an http"},
		{info("image_source", "http://h/i", "image_checksum", "file:///etc/sums"), "neither a digest nor"},
		{info("image_source", "http://h/i", "image_checksum", "/etc/sums"), "neither a digest nor"},
		{info("image_source", "http://h/i", "image_checksum", "http://u:secret@/sums"), "neither a digest nor"},
		{info("image_source", "http://h/i", "image_checksum", strings.Repeat("ab", 20)), "SHA-1"},
		{info("image_source", "http://h/i", "image_checksum", "abc"), "has 3 characters"},
		{info("image_source", "http://h/i", "image_checksum", "sha512:"+strings.Repeat("ab", 32)),
			"has 128 hexadecimal"},
		{info("image_source", "http://h/i", "image_os_hash_algo", "sha256", "image_os_hash_value",
			strings.Repeat("zz", 32)), "no hexadecimal"},
		{info("image_source", "http://h/i", "image_os_hash_algo", "sha512", "image_os_hash_value",
			strings.Repeat("ab", 32)), "has 128 hexadecimal"},
		{info("image_source", "http://h/i", "image_checksum", strings.Repeat("ab", 32), "image_signature",
			"https:///s"), "image_signature"},
		{info("image_source", "http://h/i", "image_checksum", strings.Repeat("ab", 32), "configdrive",
			"/var/lib/drive"), "configdrive"},
		{info("image_source", "http://h/i", "image_checksum", strings.Repeat("ab", 32), "configdrive", "file:///drive"),
			"configdrive"},
	} {
		set(func(n *node.Node) { n.InstanceInfo = c.info })
		if err := w.ask(m, node.Deploy); !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("deploy of %v = %v, want an InvalidError with %q", c.info, err, c.words)
		}
		v, err := eng.Validate(ctx, m.id)
		if err != nil || *v["deploy"].Result || !strings.Contains(v["deploy"].Reason, c.words) || !*v["power"].Result ||
			v["rescue"].Result != nil {
			t.Errorf("Validate with %v = %+v, %v", c.info, v, err)
		}
	}
	for _, c := range []struct {
		mirrors any
		words   string
	}{
		{"http://h/i", "not a list"},
		{[]any{"http://h/i", 7}, "not an http"},
		{[]any{"http://h/i", "ftp://u:secret@h/i"}, "not an http"},
		{make([]any, 17), "not a list of at most"},
	} {
		n := &node.Node{
			InstanceInfo: map[string]any{"image_source": "http://h/i", "image_checksum": strings.Repeat("ab", 32),
				"image_mirrors": c.mirrors}}
		if err := eng.site().CheckImage(n); !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("image_mirrors %v: %v, want an InvalidError with %q", c.mirrors, err, c.words)
		}
	}
	set(func(n *node.Node) {
		n.InstanceInfo = info("image_source", "http://h/i", "image_checksum", strings.Repeat("ab", 32))
	})
	if err := eng.Provision(ctx, m.id,
		Request{Verb: node.Deploy,
			DeploySteps: []node.JobStep{{Interface: "deploy", Name: "write_configdrive", Priority: 70}}}); !errors.As(
		err, &invalid) ||
		!strings.Contains(err.Error(), "no config drive") {
		t.Errorf("deploy with a step write_configdrive and no config drive = %v", err)
	}
	set(func(n *node.Node) { n.InstanceInfo["configdrive"] = "ZHJpdmU=" })
	for _, c := range []struct {
		steps []node.JobStep
		words string // of the refusal; none: it is taken
	}{
		{[]node.JobStep{{Name: "write_image"}}, "write_image can't be left out"},
		{[]node.JobStep{{Name: "prepare_instance_boot"}}, "prepare_instance_boot can't be left out"},
		{[]node.JobStep{{Name: "write_configdrive", Priority: 59}}, "has to run before"},
		{[]node.JobStep{{Name: "write_configdrive", Priority: 60}}, "has to run before"},
		{[]node.JobStep{{Name: "write_configdrive", Priority: 90}}, "has to run before"},
		{[]node.JobStep{{Name: "write_image", Priority: 50}}, "has to run before"},
		{[]node.JobStep{{Name: "prepare_instance_boot", Priority: 85}}, "has to run before"},
		{[]node.JobStep{{Name: "erase_devices_metadata", Priority: 80}}, "has to run before"},
		{[]node.JobStep{{Name: "erase_devices_metadata", Priority: 65}}, "has to run before"},
		{[]node.JobStep{{Name: "erase_devices_metadata", Priority: 45}}, "has to run before"},
		{[]node.JobStep{{Name: "boot_instance", Priority: 45}}, "has to run before"},
		{[]node.JobStep{{Name: "switch_to_tenant_network", Priority: 50}}, "has to run before"},
		{[]node.JobStep{{Name: "erase_devices_metadata", Priority: 80}, {Name: "write_image", Priority: 80}}, ""},
		{[]node.JobStep{{Name: "write_image", Priority: 99}, {Name: "write_configdrive", Priority: 98},
			{Name: "prepare_instance_boot", Priority: 41}}, ""},
		{[]node.JobStep{{Name: "write_configdrive"}}, ""},
	} {
		for i := range c.steps {
			c.steps[i].Interface = "deploy"
		}
		_, err := eng.planner().Deployment(ctx, w.node(m), c.steps)
		if refused := errors.As(err, &invalid); refused != (c.words != "") || refused &&
			!strings.Contains(err.Error(), c.words) || !refused && err != nil {
			t.Errorf("deploy with steps %v = %v, want %q", c.steps, err, c.words)
		}
	}
	for _, c := range []struct {
		step  node.JobStep
		words string
	}{
		{node.JobStep{Interface: "deploy", Name: "mine_coins", Priority: 50}, "no step deploy.mine_coins"},
		{node.JobStep{Interface: "deploy", Name: "erase_devices_metadata", Priority: 10}, "does not lie between"},
		{node.JobStep{Interface: "deploy", Name: "erase_devices_metadata", Priority: 90,
			Args: json.RawMessage(`{"x":1}`)}, "no argument x"},
		{node.JobStep{Interface: "deploy", Name: "boot_instance", Priority: 0}, "can't be left out"},
		{node.JobStep{Interface: "deploy", Name: "write_image", Priority: 80,
			Args: json.RawMessage(`{"allow_unverified":true}`)}, "conductor's configuration"},
		{node.JobStep{Interface: "deploy", Name: "write_image", Priority: 80,
			Args: json.RawMessage(`{"allow_md5":true}`)}, "conductor's configuration"},
		{node.JobStep{Interface: "deploy", Name: "prepare_instance_boot", Priority: 0}, "can't be left out"},
	} {
		err := eng.Provision(ctx, m.id, Request{Verb: node.Deploy, DeploySteps: []node.JobStep{c.step}})
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("deploy with step %v = %v, want %q", c.step, err, c.words)
		}
	}
	var transition *node.TransitionError
	if err := w.ask(m, node.Rebuild); !errors.As(err, &transition) {
		t.Errorf("rebuild of an available node = %v", err)
	}
	if err := w.current().eng.Provision(ctx, "unknown", Request{Verb: node.Manage}); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("manage of an unknown node = %v", err)
	}
	w.must(m, node.Manage)
	if err := eng.Provision(ctx, m.id, Request{Verb: node.Clean}); !errors.As(err, &invalid) {
		t.Errorf("clean without steps = %v", err)
	}
	for name, words := range map[string][]string{
		"mine_coins": {"no step deploy.mine_coins", "erase_devices_metadata"},
	} {
		err := eng.Provision(ctx, m.id,
			Request{Verb: node.Clean, CleanSteps: []node.JobStep{{Interface: "deploy", Name: name}}})
		for _, want := range words {
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("clean with step %s = %v, want an InvalidError with %q", name, err, want)
			}
		}
	}
	set(func(n *node.Node) { n.Retired = true })
	if err := w.ask(m, node.Provide); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "retired") {
		t.Errorf("provide of a retired node = %v", err)
	}
	set(func(n *node.Node) { n.Retired, n.Provision, n.Protected = false, node.Active, true })
	var protected *node.ProtectedError
	if err := w.ask(m, node.Delete); !errors.As(err, &protected) {
		t.Errorf("undeploy of a protected node = %v", err)
	}
	if err := w.ask(m, node.DoRescue); !errors.As(err, &invalid) {
		t.Errorf("rescue = %v", err)
	}
	// A node of a conductor that does not live is taken over.
	set(func(n *node.Node) { n.Conductor, n.Protected = "c2", false })
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
}

// TestOwnSteps: steps that a client adds, moves, overrides and leaves out arrive in the agent's plan as asked.
func TestOwnSteps(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	err := w.current().eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1", DeploySteps: []node.JobStep{
			{Interface: "deploy", Name: "erase_devices_metadata", Priority: 85,
				Args: json.RawMessage(`{"skip_block_devices":[{"name":"/dev/vdb"}]}`)},
			{Interface: "deploy", Name: "write_configdrive", Priority: 0},
			{Interface: "deploy", Name: "write_image", Priority: 75, Args: json.RawMessage(`{"verify":true}`)},
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Active)
	var got []string
	for _, s := range m.plansTaken[len(m.plansTaken)-1].Steps {
		got = append(got, s.Name+" "+string(s.Args))
	}
	want := []string{
		`erase_devices_metadata {"skip_block_devices":[{"name":"/dev/vdb"}]}`,
		`write_image {"image_os_hash_algo":"sha256","image_os_hash_value":"abababababababababababababababababababababababababababababababab","image_source":"http://images/n1","verify":true}`,
		`prepare_instance_boot {}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the plan is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestInjectFiles: the node's own files come before those of the request, in a step that runs when it is asked for, and
// in its place only.
func TestInjectFiles(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.Properties["inject_files"] = []any{map[string]any{"path": "/etc/a", "content": ""}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ask := func(priority int, args string) error {
		return w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy, DeploySteps: []node.JobStep{
			{Interface: "deploy", Name: "inject_files", Priority: priority, Args: json.RawMessage(args)}}})
	}
	var invalid *InvalidError
	for _, priority := range []int{85, 55} {
		if err := ask(priority, ""); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "between theirs") {
			t.Errorf("with priority %d: %v", priority, err)
		}
	}
	if err := ask(75, `{"files":"x"}`); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "files of step") {
		t.Errorf("files that are no list: %v", err)
	}
	if err := ask(65, `{"files":[{"path":"/etc/b","content":""}],"verify_ca":false}`); err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Active)
	var got []string
	for _, s := range m.plansTaken[len(m.plansTaken)-1].Steps {
		got = append(got, s.Name+" "+string(s.Args))
	}
	want := `inject_files {"files":[{"content":"","path":"/etc/a"},{"content":"","path":"/etc/b"}],"verify_ca":false}`
	if len(got) != 3 || got[1] != want {
		t.Errorf("the plan is\n%s\nwant in the middle\n%s", strings.Join(got, "\n"), want)
	}
}

// TestInjectInService: a service of an instance may put files into it, on the disk that the node's hints name; a
// runbook's or request's list is refused only for what is wrong with it.
func TestInjectInService(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Active)
	if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.Properties["inject_files"] = []any{map[string]any{"path": "/etc/a", "content": ""}}
		n.Properties["root_device"] = map[string]any{"serial": "S1"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ask := func(args string) error {
		return w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Service, ServiceSteps: []node.JobStep{
			{Interface: "deploy", Name: "inject_files", Args: json.RawMessage(args)}}})
	}
	var invalid *InvalidError
	if err := ask(`{"files":"x"}`); !errors.As(err, &invalid) || !strings.Contains(err.Error(), "files of step") {
		t.Errorf("files that are no list: %v", err)
	}
	before := len(m.plansTaken)
	if err := ask(`{"files":[{"path":"/etc/b","content":""}]}`); err != nil {
		t.Fatal(err)
	}
	w.untilState(m, node.Active)
	if len(m.plansTaken) != before+1 {
		t.Fatalf("the agent took %d plans, want one more than %d", len(m.plansTaken), before)
	}
	p := m.plansTaken[before]
	want := `{"files":[{"content":"","path":"/etc/a"},{"content":"","path":"/etc/b"}],"root_device":{"serial":"S1"}}`
	if len(p.Steps) != 1 || string(p.Steps[0].Args) != want || p.Phase != node.PhaseService {
		t.Errorf("the plan is %+v, want one step with %s", p, want)
	}
}

// TestAllowMD5: an MD5 sum passes where the configuration says so, and the agent is told that it may.
func TestAllowMD5(t *testing.T) {
	w := newWorld(t)
	w.cfg.AllowMD5 = true
	w.start(nil)
	m := w.add("n1")
	w.walk(m, node.Available)
	if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.InstanceInfo = map[string]any{"image_source": "http://images/n1", "image_os_hash_algo": "md5",
			"image_os_hash_value": strings.Repeat("ab", 16)}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	for _, s := range m.plansTaken[len(m.plansTaken)-1].Steps {
		if s.Name == "write_image" && !strings.Contains(string(s.Args), `"allow_md5":true`) {
			t.Errorf("write_image %s", s.Args)
		}
	}
}

func TestManualClean(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	err := w.current().eng.Provision(t.Context(), m.id,
		Request{Verb: node.Clean, CleanSteps: []node.JobStep{{Interface: "deploy", Name: "erase_devices_metadata"}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := w.node(m); n.TargetProvision != node.Manageable {
		t.Errorf("a manual clean heads for %q", n.TargetProvision)
	}
	w.untilState(m, node.Manageable)
	if len(m.plansTaken) != 1 {
		t.Errorf("plans: %v", m.plansTaken)
	}
}

// TestOutcomes: what else a step can end with than done and failed.
func TestOutcomes(t *testing.T) {
	once := func(r node.StepResult) func(*agent, node.PlanStep) (node.StepResult, bool) {
		first := true
		return func(*agent, node.PlanStep) (node.StepResult, bool) {
			was := first
			first = false
			return r, was
		}
	}
	t.Run("reboot", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		w.walk(m, node.Available)
		m.behave["erase_devices_metadata"] = once(node.StepResult{Outcome: node.OutcomeReboot})
		boots := m.pxeBoots
		err := w.current().eng.Provision(t.Context(), m.id,
			Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1", DeploySteps: []node.JobStep{
				{Interface: "deploy", Name: "erase_devices_metadata", Priority: 85}}})
		if err != nil {
			t.Fatal(err)
		}
		w.untilState(m, node.Active)
		checkDeployed(t, m, 1)
		if m.pxeBoots != boots+2 {
			t.Errorf("the agent was booted %d times for the deployment, want 2", m.pxeBoots-boots)
		}
		last := m.plansTaken[len(m.plansTaken)-1]
		if last.Steps[0].Name != "write_image" {
			t.Errorf("after the restart the plan begins with %s", last.Steps[0].Name)
		}
	})
	t.Run("hold", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		w.walk(m, node.Available)
		m.behave["erase_devices_metadata"] = once(node.StepResult{Outcome: node.OutcomeHold})
		err := w.current().eng.Provision(t.Context(), m.id,
			Request{Verb: node.Deploy, ConfigDrive: "http://drive-of/n1", DeploySteps: []node.JobStep{
				{Interface: "deploy", Name: "erase_devices_metadata", Priority: 85}}})
		if err != nil {
			t.Fatal(err)
		}
		w.until(m, "deploy hold", func(n *node.Node) bool { return n.Provision == node.DeployHold })
		w.kill()
		w.start(nil) // a hold outlives the conductor
		time.Sleep(20 * time.Millisecond)
		if n := w.node(m); n.Provision != node.DeployHold {
			t.Fatalf("a held node went on to %s", n.Provision)
		}
		w.must(m, node.Unhold)
		w.untilState(m, node.Active)
		checkDeployed(t, m, 1)
	})
	t.Run("unknown", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		w.walk(m, node.Available)
		m.behave["write_image"] = once(node.StepResult{Outcome: "dance"})
		w.must(m, node.Deploy)
		wantError(t, w.untilState(m, node.DeployFailed), "dance")
	})
	t.Run("nonsense inventory", func(t *testing.T) {
		w := newWorld(t)
		w.start(nil)
		m := w.add("n1")
		w.must(m, node.Manage)
		w.untilState(m, node.Manageable)
		m.behave["inspect"] = once(
			node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{"inventory":[]}`)})
		w.must(m, node.Inspect)
		wantError(t, w.untilState(m, node.InspectFailed), "inventory")
	})
}
