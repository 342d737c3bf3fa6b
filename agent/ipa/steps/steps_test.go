package steps

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/ipa/command"
	"github.com/ingot-metal/ingot/agent/ipa/ironic"
	"github.com/ingot-metal/ingot/agent/step"
)

// TestImageArguments holds how image_info becomes arguments of write_image, and which are refused.
func TestImageArguments(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		info, node string
		set        ironic.Settings
		want       map[string]any // of the arguments; or
		refused    string
	}{
		"whole disk": {info: `{"id":"d","urls":["http://a/d"],"disk_format":"raw","os_hash_algo":"sha512",
			"os_hash_value":"ab","checksum":"cd","stream_raw_images":true,"container_format":"bare","node_uuid":"u","a_new_key":{}}`,
			want: map[string]any{"image_source": "http://a/d", "image_type": "whole-disk", "allow_md5": true,
				"image_disk_format": "raw", "image_os_hash_algo": "sha512", "image_os_hash_value": "ab",
				"image_checksum": "cd"}},
		"mirrors, MD5 off": {info: `{"urls":["http://a/d","http://b/d"]}`, set: ironic.Settings{MD5: &no},
			want: map[string]any{"image_source": "http://a/d", "image_mirrors": []any{"http://b/d"},
				"image_type": "whole-disk", "allow_md5": false}},
		"hints and CA of the node": {info: `{"urls":["http://a/d"]}`,
			node: `{"uuid":"u","properties":{"root_device":{"size":10}},"driver_info":{"image_ca":"PEM"}}`,
			want: map[string]any{"image_source": "http://a/d", "image_type": "whole-disk", "allow_md5": true,
				"root_device": map[string]any{"size": 10.0}, "image_ca": "PEM"}},
		"partition": {info: `{"urls":["http://a/d"],"image_type":"partition","root_gb":"10","root_mb":10240,"swap_mb":512,
			"ephemeral_mb":2048,"ephemeral_format":"ext4","preserve_ephemeral":"True","deploy_boot_mode":"uefi",
			"boot_option":"local","disk_label":null,"kernel":"k","ramdisk":"r"}`,
			want: map[string]any{"image_source": "http://a/d", "image_type": "partition", "allow_md5": true,
				"root_gb": 10.0, "swap_mb": 512.0, "ephemeral_gb": 2.0, "ephemeral_format": "ext4",
				"preserve_ephemeral": true}},
		"a user of the server": {info: `{"urls":["http://a/d"],"image_server_auth_strategy":"http_basic",
			"image_server_user":"u","image_server_password":"p@ss"}`,
			want: map[string]any{"image_source": "http://u:p%40ss@a/d", "image_type": "whole-disk", "allow_md5": true}},
		"no URL":         {info: `{"urls":[]}`, refused: "names no URL"},
		"half a GiB":     {info: `{"urls":["http://a"],"image_type":"partition","root_gb":1.5}`, refused: "whole number"},
		"negative":       {info: `{"urls":["http://a"],"image_type":"partition","swap_mb":-1}`, refused: "whole number"},
		"authentication": {info: `{"urls":["http://a"],"image_server_auth_strategy":"digest"}`, refused: "digest"},
		"a header in two lines": {info: `{"urls":["http://a"],"image_request_authorization":"` +
			base64.StdEncoding.EncodeToString([]byte("Bearer x\r\nHost: b")) + `"}`, refused: "no base64 of a header"},
		"a format": {info: `{"urls":["http://a"],"disk_format":"vhd"}`,
			set: ironic.Settings{Formats: []string{"raw", "qcow2"}}, refused: "permits only raw, qcow2"},
	} {
		var info imageInfo
		if err := json.Unmarshal([]byte(c.info), &info); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var n node
		if c.node != "" {
			if err := json.Unmarshal([]byte(c.node), &n); err != nil {
				t.Fatal(err)
			}
		}
		got, _, err := info.args(n, c.set)
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || step.AsError(err).Remedy == "" {
				t.Errorf("%s: %v, want %q and a remedy", name, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var plain map[string]any
		if err := json.Unmarshal(b, &plain); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, plain); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestImageAccess: proxies and a header come along, the header for the image's host alone.
func TestImageAccess(t *testing.T) {
	var info imageInfo
	if err := json.Unmarshal([]byte(`{"urls":["https://a:8443/d"],"proxies":{"http":"http://p:1","https":"http://p:2"},
		"no_proxy":"b,c","image_request_authorization":"`+base64.StdEncoding.EncodeToString([]byte("Bearer x"))+`"}`),
		&info); err != nil {
		t.Fatal(err)
	}
	_, a, err := info.args(node{}, ironic.Settings{})
	if err != nil || a.HTTPProxy != "http://p:1" || a.HTTPSProxy != "http://p:2" || a.NoProxy != "b,c" ||
		a.Authorization != "Bearer x" || a.Host != "a:8443" {
		t.Errorf("%+v, %v", a, err)
	}
}

// like is a step that declares arguments.
func like(name string, args ...string) step.Step {
	s := step.Step{Row: step.Row{Interface: "deploy", Name: name}}
	for _, a := range args {
		s.Args = append(s.Args, step.Arg{Name: a})
	}
	return s
}

// TestArgumentsFromTheNode holds what the steps take from the node, and that a command's own arguments go first.
func TestArgumentsFromTheNode(t *testing.T) {
	const everything = `{"uuid":"u",
		"driver_info":{"agent_burnin_cpu_timeout":60,"agent_burnin_memory_timeout":"90","agent_burnin_memory_vm-bytes":"50%",
			"agent_burnin_fio_disk_loops":2,"agent_burnin_fio_network_runtime":30,
			"agent_burnin_fio_network_config":{"partner":"192.0.2.9","role":"writer"}},
		"driver_internal_info":{"disk_erasure_concurrency":3,"agent_erase_skip_read_only":true,
			"agent_continue_if_secure_erase_failed":true},
		"instance_info":{"root_device":{"serial":"i"}},
		"properties":{"root_device":{"serial":"p"},"skip_block_devices":[{"serial":"k"}],"inject_files":[{"path":"/a"}]},
		"target_raid_config":{"logical_disks":[1]},"raid_config":{"logical_disks":[{"uuid":"arr"}]}}`
	n, err := parseNode(json.RawMessage(everything))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step  step.Step
		given string
		guard bool
		want  string
	}{
		{like("erase_devices", "skip_block_devices", "arrays", "continue_if_secure_erase_failed"), ``, true,
			`{"arrays":["arr"],"concurrency":3,"continue_if_secure_erase_failed":true,"skip_block_devices":[{"serial":"k"}],"skip_read_only":true}`},
		{like("erase_devices_metadata", "skip_block_devices"), `{"concurrency":1}`, false,
			`{"concurrency":1,"guard_special_filesystems":false,"skip_block_devices":[{"serial":"k"}],"skip_read_only":true}`},
		{like("create_configuration"), `{"create_root_volume":false}`, true,
			`{"create_root_volume":false,"target_raid_config":{"logical_disks":[1]}}`},
		{like("burnin_cpu"), ``, true, `{"runtime":60}`},
		{like("burnin_memory"), ``, true, `{"percent":50,"runtime":90}`},
		{like("burnin_disk", "skip_block_devices"), `{"destructive":true}`, true,
			`{"destructive":true,"loops":2,"skip_block_devices":[{"serial":"k"}]}`},
		{like("burnin_network"), ``, true, `{"partner":"192.0.2.9","role":"writer","runtime":30}`},
		{like("inject_files"), ``, true, `{"files":[{"path":"/a"}],"root_device":{"serial":"i"}}`},
		{like("inject_files"), `{"files":[{"path":"/b"}]}`, true,
			`{"files":[{"path":"/b"}],"root_device":{"serial":"i"}}`},
		{like("clean_uefi_nvram"), `{"match_patterns":["x"]}`, true, `{"match_patterns":["x"]}`},
	} {
		got, err := argsOf(c.step, n, json.RawMessage(c.given), c.guard)
		if err != nil || string(got) != c.want {
			t.Errorf("%s %s: %s, %v, want %s", c.step.Name, c.given, got, err, c.want)
		}
	}
	if _, err := argsOf(like("burnin_network"), node{}, nil, true); err == nil ||
		!strings.Contains(step.AsError(err).Remedy, "agent_burnin_fio_network_config") {
		t.Errorf("burnin_network without a partner: %v", err)
	}
	if _, err := argsOf(like("burnin_cpu"), n, json.RawMessage(`[1]`), true); err == nil {
		t.Error("a list of arguments is taken")
	}
}

// settled is a machine whose devices are there.
type settled struct{}

func (settled) Settle(context.Context) error { return nil }

// TestStepsThatAreListed: Ironic's steps have Ironic's priorities; parts of ours are not listed, those of a site are.
func TestStepsThatAreListed(t *testing.T) {
	ok := func(context.Context, *step.Call) (step.Outcome, error) { return step.Outcome{}, nil }
	var all []step.Step
	for _, row := range []step.Row{{Interface: "deploy", Name: "erase_devices"},
		{Interface: "deploy", Name: "erase_devices_metadata", Priority: step.In{step.Clean: 7}},
		{Interface: "deploy", Name: "write_image"}, {Interface: "deploy", Name: "write_configdrive"},
		{Interface: "inspect", Name: "inspect"}, {Interface: "raid", Name: "apply_configuration"},
		{Interface: "deploy", Name: "inject_files"},
		{Interface: "site", Name: "flash", Priority: step.In{step.Clean: 42, step.Service: step.OnRequest}}} {
		all = append(all, step.Step{Row: row, Run: ok})
	}
	r, err := New(Options{Table: all, Version: "1", Machine: settled{}, InjectFiles: 50}, Done{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[step.Phase]map[string]int{
		step.Clean:   {"erase_devices": 10, "erase_devices_metadata": 99, "flash": 42},
		step.Deploy:  {"erase_devices_metadata": 0, "write_image": 0, "apply_configuration": 0, "inject_files": 50},
		step.Service: {"write_image": 0, "apply_configuration": 0, "inject_files": 0, "flash": 0}}
	for _, k := range Kinds {
		got := map[string]int{}
		steps, _ := r.List(k)[string(k.Phase)+"_steps"].(map[string]any)
		for _, s := range steps[Manager].([]shown) {
			got[s.Step] = s.Priority
		}
		if d := cmp.Diff(want[k.Phase], got); d != "" {
			t.Errorf("%s (-want +got):\n%s", k.Phase, d)
		}
	}
}

// TestEnds holds what the conductor gets of a step's end: the RAID configuration itself, words for things that Ironic
// can't do, and the step as it was sent.
func TestEnds(t *testing.T) {
	run := func(o step.Outcome, err error) step.Func {
		return func(context.Context, *step.Call) (step.Outcome, error) { return o, err }
	}
	table := []step.Step{
		{Row: step.Row{Interface: "raid", Name: "create_configuration", Args: []step.Arg{{Name: "target_raid_config"}}},
			Run: run(step.Outcome{Result: map[string]any{
				"raid_config": map[string]any{"logical_disks": []int{1}}}}, nil)},
		{Row: step.Row{Interface: "raid", Name: "delete_configuration"}, Run: run(step.Outcome{}, nil)},
		{Row: step.Row{Interface: "deploy", Name: "erase_pstore"}, Run: run(step.Outcome{Kind: step.Reboot}, nil)},
		{Row: step.Row{Interface: "deploy", Name: "clean_uefi_nvram"},
			Run: run(step.Outcome{}, step.Failf("clear the CMOS", "the store is full"))},
	}
	r, err := New(Options{Table: table, Version: "1", Machine: settled{},
		Status: func(string, ...any) {}, Progress: func(string, step.Progress) {}}, Done{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ iface, name, want, fault string }{
		{"raid", "create_configuration", `{"clean_result":{"logical_disks":[1]},"clean_step":{"interface":"raid","step":"create_configuration","x":7}}`, ""},
		{"raid", "delete_configuration", `{"clean_result":null,"clean_step":{"interface":"raid","step":"delete_configuration","x":7}}`, ""},
		{"deploy", "erase_pstore", "", "asks for a reboot or a person"},
		{"deploy", "clean_uefi_nvram", "", "the store is full; remedy: clear the CMOS"},
		{"deploy", "burnin_gpu", "", `no clean step "burnin_gpu"`},
	} {
		params := command.Params{"node": json.RawMessage(`{"uuid":"u"}`),
			"step": json.RawMessage(`{"interface":"` + c.iface + `","step":"` + c.name + `","x":7}`)}
		got, err := r.Execute(t.Context(), Kinds[0], params, ironic.Settings{})
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) ||
				!strings.HasPrefix(err.Error(), "Clean step failed") {
				t.Errorf("%s: %v, want %q", c.name, err, c.fault)
			}
			continue
		}
		b, _ := json.Marshal(got)
		if err != nil || string(b) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, b, err, c.want)
		}
	}
}

// FuzzExecute: whatever a command has as step and node is a result or an error in words.
func FuzzExecute(f *testing.F) {
	f.Add(`{"interface":"deploy","step":"write_image","args":{"image_info":{"urls":["http://[::1"]}}}`, `{"uuid":"u"}`)
	f.Add(`{"step":"erase_devices","args":{"methods":7}}`, `{"uuid":"u","properties":{"skip_block_devices":{}}}`)
	f.Add(`{"step":"burnin_network"}`, `{"uuid":"u","driver_info":{"agent_burnin_fio_network_config":[]}}`)
	nothing := func(context.Context, *step.Call) (step.Outcome, error) { return step.Outcome{}, nil }
	var table []step.Step
	for name := range priorities {
		iface, bare, _ := strings.Cut(name, ".")
		table = append(table, step.Step{Row: step.Row{Interface: iface, Name: bare}, Run: nothing})
	}
	for _, name := range hidden {
		iface, bare, _ := strings.Cut(name, ".")
		table = append(table, step.Step{Row: step.Row{Interface: iface, Name: bare}, Run: nothing})
	}
	r, err := New(Options{Table: table, Version: "1", Machine: settled{},
		Status: func(string, ...any) {}, Progress: func(string, step.Progress) {}}, Done{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s, n string) {
		for _, k := range Kinds {
			p := command.Params{"step": json.RawMessage(s), "node": json.RawMessage(n)}
			if k.CheckStep(p) != nil {
				continue
			}
			if _, err := r.Execute(t.Context(), k, p, ironic.Settings{}); err != nil && len(err.Error()) < 10 {
				t.Errorf("error %q", err)
			}
		}
	})
}
