package ramdiskdeploy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
)

const sum = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func with(info map[string]any) *node.Node { return &node.Node{UUID: "the-node", InstanceInfo: info} }

func TestOf(t *testing.T) {
	for name, c := range map[string]struct {
		info map[string]any
		want Workload
	}{
		"kernel alone": {map[string]any{"kernel": "http://h/k"}, Workload{Kernel: "http://h/k"}},
		"all of it": {map[string]any{"kernel": "https://h:8443/k?sig=a%20b&x=1", "ramdisk": "rd.cpio.zst",
			"kernel_append_params": " root=nfs  ip=dhcp ", "kernel_checksum": "SHA256:" + strings.ToUpper(sum),
			"ramdisk_checksum": sum + sum, "configdrive": map[string]any{"user_data": "x"}},
			Workload{Kernel: "https://h:8443/k?sig=a%20b&x=1", Ramdisk: "http://c/images/rd.cpio.zst",
				Params: "root=nfs ip=dhcp", KernelDigest: "sha256:" + sum, RamdiskDigest: "sha512:" + sum + sum,
				Drive: []byte(`{"user_data":"x"}`)}},
		"arguments by Ironic's older name": {map[string]any{"kernel": "k", "ramdisk_kernel_arguments": "a=b init=/x"},
			Workload{Kernel: "http://c/images/k", Params: "a=b init=/x"}},
		"both names, the same": {
			map[string]any{"kernel": "k", "ramdisk_kernel_arguments": "a", "kernel_append_params": "a"},
			Workload{Kernel: "http://c/images/k", Params: "a"}},
		"ISO": {map[string]any{"boot_iso": "http://h/x.iso", "configdrive": ""},
			Workload{ISO: "http://h/x.iso"}},
	} {
		got, err := Of(with(c.info), "http://c/images/")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(c.want, *got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
}

func TestOfRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		info map[string]any
		want string
	}{
		"nothing":       {nil, "nothing to boot"},
		"ramdisk alone": {map[string]any{"ramdisk": "http://h/r"}, "nothing to boot"},
		"both": {map[string]any{"kernel": "http://h/k", "boot_iso": "http://h/i"},
			"one or the other"},
		"not a text":  {map[string]any{"kernel": 7}, "kernel is not a text"},
		"file":        {map[string]any{"kernel": "file:///etc/shadow"}, "not an http or https URL"},
		"path":        {map[string]any{"kernel": "../secret/k"}, "not an http or https URL"},
		"hidden name": {map[string]any{"kernel": ".htpasswd"}, "nor the name of a file"},
		"script injection": {map[string]any{"kernel": "http://h/k\nchain http://evil/"},
			"not an http or https URL"},
		"second command": {map[string]any{"kernel": "http://h/k || shell"}, "can't stand in a boot script"},
		"expansion":      {map[string]any{"kernel": "http://h/${net0/mac}"}, "can't stand in a boot script"},
		"comment":        {map[string]any{"kernel": "http://h/k#x"}, "can't stand in a boot script"},
		"too long": {map[string]any{"kernel": "http://h/" + strings.Repeat("k", 2000)},
			"can't stand in a boot script"},
		"expansion in params": {map[string]any{"kernel": "http://h/k", "kernel_append_params": "a=${x}"},
			"characters other than"},
		"line in params": {map[string]any{"kernel": "http://h/k", "kernel_append_params": "a\nb|c"},
			"characters other than"},
		"initrd": {map[string]any{"kernel": "http://h/k", "kernel_append_params": "initrd=x"},
			"set by the conductor alone"},
		"default": {map[string]any{"kernel": "http://h/k", "kernel_append_params": "%default% x"},
			"Ingot's own ramdisk"},
		"params differ": {
			map[string]any{"kernel": "http://h/k", "kernel_append_params": "a", "ramdisk_kernel_arguments": "b"},
			"they differ"},
		"params of ISO": {map[string]any{"boot_iso": "http://h/i", "kernel_append_params": "a"},
			"boots by itself"},
		"drive of ISO": {map[string]any{"boot_iso": "http://h/i", "configdrive": map[string]any{}},
			"config drive"},
		"drive at a URL": {map[string]any{"kernel": "http://h/k", "configdrive": "https://h/drive"},
			"given as a URL"},
		"digest": {
			map[string]any{"kernel": "http://h/k", "kernel_checksum": "d41d8cd98f00b204e9800998ecf8427e"},
			"not a SHA-256"},
		"digest of another kind": {map[string]any{"kernel": "http://h/k", "kernel_checksum": "sha512:" + sum},
			"not a SHA-256"},
		"digest of nothing": {map[string]any{"kernel": "http://h/k", "ramdisk_checksum": sum},
			"of what it does not have"},
	} {
		if _, err := Of(with(c.info), "http://c/images"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want something of %q", name, err, c.want)
		}
	}
	if _, err := Of(with(map[string]any{"kernel": "k"}), ""); err == nil {
		t.Error("a file of a conductor that serves none: no error")
	}
}

func TestBoots(t *testing.T) {
	at := func(name string, inBand bool) *node.Job {
		return &node.Job{Steps: []node.JobStep{{Interface: "deploy", Name: name, InBand: inBand}}}
	}
	failed := at("boot_instance", false)
	failed.Failure = "x"
	for _, c := range []struct {
		state node.State
		job   *node.Job
		want  bool
	}{
		{node.Active, nil, true},
		{node.Active, &node.Job{Phase: node.PhasePower}, true},
		{node.Available, nil, false},
		{node.Deploying, at("deploy", false), false},
		{node.Deploying, at(Step, false), true},
		{node.Deploying, at("boot_instance", false), true},
		{node.DeployWait, at("boot_instance", false), true},
		{node.Deploying, failed, false},
		{node.DeployWait, at("load_ramdisk", true), false},
		{node.Unrescuing, at("boot_instance", false), true},
		{node.Rescue, nil, false},
		{node.Deleting, at("power_off_instance", false), false},
		{node.CleanWait, at("boot_agent", false), false},
		{node.DeployFailed, nil, false},
	} {
		if got := Boots(&node.Node{Provision: c.state, Job: c.job}); got != c.want {
			t.Errorf("Boots(%s, %+v) = %v, want %v", c.state, c.job, got, c.want)
		}
	}
}

// FuzzOf: what passes has no character that a boot script or a command line gives a meaning to.
func FuzzOf(f *testing.F) {
	f.Add("http://h/k", "a=b", "vmlinuz")
	f.Add("https://u:p@h/k?x=${y}", "a b\tc", "r\n")
	f.Fuzz(func(t *testing.T, kernel, params, ramdisk string) {
		w, err := Of(with(map[string]any{"kernel": kernel, "kernel_append_params": params, "ramdisk": ramdisk}),
			"http://c/images")
		if err != nil {
			return
		}
		for _, s := range []string{w.Kernel, w.Params, w.Ramdisk} {
			if strings.ContainsAny(s, "${}#|\\\"'`\n\r\t\x00<>") || s != w.Params && strings.Contains(s, " ") {
				t.Fatalf("%q passed", s)
			}
		}
	})
}
