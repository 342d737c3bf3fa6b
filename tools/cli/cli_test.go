package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

// user is somebody who types commands at a conductor.
type user struct {
	t   *testing.T
	url string
	env map[string]string
}

// run carries out a command line and returns what it printed.
func (u *user) run(args ...string) (stdout, stderr string, err error) {
	u.t.Helper()
	var out, errs bytes.Buffer
	err = Run(u.t.Context(), args, strings.NewReader(""), &out, &errs, func(k string) string {
		if k == "INGOT_ENDPOINT" {
			return u.url
		}
		return u.env[k]
	})
	return out.String(), errs.String(), err
}

func (u *user) ok(args ...string) string {
	u.t.Helper()
	out, errs, err := u.run(args...)
	if err != nil {
		u.t.Fatalf("ingot %s: %s\n%s%s", strings.Join(args, " "), Message(err), out, errs)
	}
	return out + errs
}

// fails wants a command to fail with all these words in what the user reads.
func (u *user) fails(args []string, words ...string) {
	u.t.Helper()
	out, _, err := u.run(args...)
	if err == nil {
		u.t.Fatalf("ingot %s went well: %s", strings.Join(args, " "), out)
	}
	for _, w := range words {
		if !strings.Contains(Message(err), w) {
			u.t.Errorf("ingot %s says %q, want %q in it", strings.Join(args, " "), Message(err), w)
		}
	}
}

func words(s string) []string { return strings.Fields(s) }

func TestLifeOfAMachine(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}

	if out := u.ok(words("node list")...); !strings.Contains(out, "ingot node create") {
		t.Errorf("an empty list says %q", out)
	}
	if out := u.ok(words(
		"node create n1 --driver fake-hardware --property cpus=4 --mac 52:54:00:00:00:01")...); !strings.Contains(out,
		"Next: ingot node manage n1") {
		t.Errorf("create says %q", out)
	}
	u.fails(words("node create n1 --driver fake-hardware"), "already exists")
	u.fails(words("node create n2"), "--bmc")
	u.fails(words("node provide n1"), "can not be performed", "In this state it can do: manage")
	u.fails(words("node manage absent"), "could not be found", "ingot node list")
	u.fails(words("node deploy n1 --image http://x/i"), `state "enroll"`, "ingot node VERB n1")
	u.fails(words("node manage"), "one node")
	u.fails(words("node list -o xml"), "table, wide, json, yaml, csv, name or go-template=TEXT")
	u.fails([]string{"node", "list", "-o", "go-template={{.name"}, "an example")
	for format, want := range map[string]string{"name": "n1\n", "csv": "NAME,STATE,POWER,DRIVER,UUID,NOTE\nn1,enroll,",
		"yaml": "- ", "wide": "CONDUCTOR", "go-template={{range .}}{{.name}}={{.provision_state}}{{end}}": "n1=enroll\n"} {
		if out := u.ok("node", "list", "-o", format); !strings.Contains(out, want) {
			t.Errorf("-o %s prints %q, want %q in it", format, out, want)
		}
	}
	u.fails(words("node list --nonsense"), "--help")

	if out := u.ok(words("node manage n1")...); !strings.Contains(out, "n1 is manageable") ||
		!strings.Contains(out, "ingot node inspect n1") {
		t.Errorf("manage says %q", out)
	}
	u.ok(words("node inspect n1")...)
	u.ok(words("node provide n1")...)
	if out := u.ok(words("node list")...); !strings.Contains(out, "n1") || !strings.Contains(out, "available") {
		t.Errorf("list says %q", out)
	}
	u.ok(words("node power on n1")...)
	if out := u.ok(words("node power status n1")...); !strings.Contains(out, "power on") {
		t.Errorf("power status says %q", out)
	}
	u.ok(words("node boot-device n1 pxe --persistent")...)
	u.ok(words("node maintenance on n1 --reason testing")...)
	if out := u.ok(words("node show n1")...); !strings.Contains(out, "testing") ||
		!strings.Contains(out, "52:54:00:00:00:01") || !strings.Contains(out, "cpus = 4") {
		t.Errorf("show says %q", out)
	}
	u.ok(words("node maintenance off n1")...)
	u.ok("node", "set", "n1", "--description", "the first", "--extra", `list=[1,2]`, "--unset", "properties/cpus")
	u.fails(words("node set n1"), "nothing to change")
	_, tag, _ := strings.Cut(u.ok(words("node show n1")...), "etag")
	tag, _, _ = strings.Cut(strings.TrimSpace(tag), "\n")
	u.ok("node", "set", "n1", "--if-match", tag, "--extra", "who=me")
	u.fails([]string{"node", "set", "n1", "--if-match", tag, "--extra", "who=you"}, "was changed since",
		"ingot node show n1")
	u.fails([]string{"node", "set", "n1", "--if-match", "", "--extra", "who=you"}, "has no ETag")
	if out := u.ok(words("node show n1")...); !strings.Contains(out, "who = me") {
		t.Errorf("a change by an old ETag was made: %s", out)
	}

	key := filepath.Join(t.TempDir(), "id.pub")
	if err := os.WriteFile(key, []byte("ssh-ed25519 AAAA me@here\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	u.fails(words("node deploy n1 --image http://x/i --checksum sha256:12"), "64 hexadecimal digits")
	u.ok("node", "deploy", "n1", "--image", "http://example.org/i.raw.zst", "--checksum",
		"sha256:"+strings.Repeat("ab", 32), "--hostname", "web", "--ssh-key", key, "--root-device",
		"serial=123456789012345678901")
	u.fails(words("node deploy n1 --image http://x/i"), "--rebuild", "undeploy")
	var n rest.Node
	out, _, err := u.run(words("node show n1 -o json")...)
	if err != nil || json.Unmarshal([]byte(out), &n) != nil {
		t.Fatalf("show -o json: %v %s", err, out)
	}
	hints, _ := n.InstanceInfo["root_device"].(map[string]any)
	if n.ProvisionState != "active" || n.InstanceInfo["configdrive"] != rest.Masked ||
		n.InstanceInfo["image_os_hash_algo"] != "sha256" || hints["serial"] != "123456789012345678901" {
		t.Errorf("deployed node = %s", out)
	}
	u.ok(words("node validate n1")...)
	if out := u.ok(words("node history n1")...); !strings.Contains(out, "deploy requested") {
		t.Errorf("history says %q", out)
	}
	u.ok(words("node timeline n1")...)
	if out := u.ok(words("node health n1")...); !strings.Contains(out, "nothing was read yet") {
		t.Errorf("health says %q", out)
	}
	u.ok(words("node logs n1")...)
	u.ok(words("node watch n1")...)
	u.fails(words("node inventory n1"), "ingot node inspect n1")
	u.fails(words("node delete n1"), "while it is in provision state")
	u.fails(words("node console n1"), "--bmc")
	u.ok(words("node undeploy n1 --yes")...)
	if out := u.ok(words("port list --node n1")...); !strings.Contains(out, "52:54:00:00:00:01") {
		t.Errorf("port list says %q", out)
	}
	u.ok(words("port create n1 52:54:00:00:00:02 --no-boot")...)
	u.ok(words("port delete 52:54:00:00:00:01 52:54:00:00:00:02")...)
	u.fails(words("port delete 52:54:00:00:00:01"), "no port")
	u.ok(words("driver list")...)
	if out := u.ok(words("driver show ipmi")...); !strings.Contains(out, "ipmi_address") {
		t.Errorf("driver show says %q", out)
	}
	u.ok(words("node delete n1")...)
}

func TestCompletion(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	u.ok(words("node create web1 --driver fake-hardware")...)
	u.ok(words("node create web2 --driver fake-hardware")...)
	u.ok(words("node create db1 --driver fake-hardware")...)
	for _, tc := range []struct{ line, want string }{
		{"node show w", "web1 web2"},
		{"node power o", "on off reboot status"},
		{"node power on d", "db1"},
		{"node create x --driver ", "fake-hardware idrac ipmi manual-management openstack redfish"},
		{"node list -o ", "table wide json yaml csv name go-template="},
	} {
		args := append([]string{"__complete"}, strings.Split(tc.line, " ")...)
		out, _, err := u.run(args...)
		if err != nil {
			t.Fatalf("complete %q: %v", tc.line, err)
		}
		var got []string
		for line := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
			if !strings.HasPrefix(line, ":") {
				got = append(got, line)
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%q completes to %q, want %q", tc.line, got, tc.want)
		}
	}
	if out := u.ok("completion", "bash"); !strings.Contains(out, "__complete") {
		t.Error("no completion script for bash")
	}
	u.url = "http://127.0.0.1:1"
	if _, _, err := u.run("__complete", "node", "show", ""); err != nil {
		t.Errorf("completion without a conductor: %v", err)
	}
}

func TestNoConductor(t *testing.T) {
	u := &user{t: t, url: "http://127.0.0.1:1"}
	u.fails(words("node list"), "127.0.0.1:1", "Is ingotd running there?", "INGOT_ENDPOINT")
	u.fails(words("node list --endpoint nonsense"), "http")
}

func TestCancelledWaitSaysThatWorkGoesOn(t *testing.T) {
	if got := Message(about("n1", context.Canceled)); !strings.Contains(got, "ingot node watch n1") {
		t.Errorf("Message = %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	disk := filepath.Join(t.TempDir(), "disk.raw")
	writeDisk(t, disk, 6<<20)
	for _, line := range []string{"image publish " + disk + " -o " + t.TempDir(), "image inspect " + disk} {
		err := Run(ctx, words(line), strings.NewReader(""), io.Discard, io.Discard, func(string) string { return "" })
		if !errors.Is(err, context.Canceled) || strings.Contains(Message(err), "node") {
			t.Errorf("ingot %s says %q", line, Message(err))
		}
	}
}

// TestMistypedCommands: a script must not take the help for a success.
func TestMistypedCommands(t *testing.T) {
	u := &user{t: t}
	u.fails(words("bogus"), "unknown command")
	u.fails(words("image bogus"), `unknown command "bogus" for "ingot image"`, "build, inspect, publish, verify")
	u.fails(words("image push x"), `unknown command "push"`)
	u.fails(words("-o json node bogus"), `unknown command "bogus"`, "deploy")
	u.fails(words("erase bogus"), `unknown command "bogus"`, "verify")
	u.fails(words("completion bogus"), "unknown command")
	for _, line := range []string{"", "image", "image --help", "node", "completion", "help image"} {
		if out := u.ok(words(line)...); !strings.Contains(out, "Available Commands") {
			t.Errorf("ingot %s says %q", line, out)
		}
	}
}

func TestConfigDrive(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	d := deployment{hostname: "web", sshKeys: []string{file("a.pub", "# mine\nssh-ed25519 AAA a\nssh-rsa BBB b\n")},
		userData: file("ud", "#cloud-config\n"), meta: []string{"role=db"}}
	drive, err := d.configDrive("n1")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(drive)
	for _, want := range []string{`"hostname":"web"`, `"ssh-ed25519 AAA a"`, `"ssh-rsa BBB b"`, `"role":"db"`,
		`"user_data":"#cloud-config\n"`, `"uuid":"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("config drive %s has no %s", b, want)
		}
	}
	if drive, err := (&deployment{}).configDrive("n1"); drive != nil || err != nil {
		t.Errorf("without options: %v, %v", drive, err)
	}
	if _, err := (&deployment{sshKeys: []string{file("id", "-----BEGIN OPENSSH PRIVATE KEY-----\n")}}).configDrive(
		"n1"); err == nil || !strings.Contains(err.Error(), "private key") {
		t.Errorf("a private key: %v", err)
	}
	if _, err := (&deployment{driveFile: file("iso", "x"), hostname: "h"}).configDrive("n1"); err == nil {
		t.Error("a whole config drive goes with parts of one")
	}
	packed, err := (&deployment{driveFile: file("iso", "CD001")}).configDrive("n1")
	if s, ok := packed.(string); err != nil || !ok || !strings.HasPrefix(s, "H4sI") {
		t.Errorf("packed drive = %v, %v", packed, err)
	}
}

func TestConsoleOf(t *testing.T) {
	b, err := consoleOf(
		map[string]any{"ipmi_address": "192.0.2.1", "ipmi_port": float64(6230), "ipmi_username": "admin",
			"ipmi_cipher_suite": "3"}, "", "")
	if err != nil || b.host != "192.0.2.1" || b.port != 6230 || b.user != "admin" || len(b.suites) != 1 ||
		b.suites[0] != 3 {
		t.Errorf("consoleOf = %+v, %v", b, err)
	}
	b, err = consoleOf(nil, "[2001:db8::1]:624", "root")
	if err != nil || b.host != "2001:db8::1" || b.port != 624 || b.user != "root" || len(b.suites) != 2 {
		t.Errorf("consoleOf = %+v, %v", b, err)
	}
	if _, err := consoleOf(map[string]any{"ipmi_address": "h", "ipmi_port": "x"}, "", ""); err == nil {
		t.Error("took a port that is no number")
	}
}

func TestValue(t *testing.T) {
	for in, want := range map[string]any{"4": 4.0, "true": true, "text": "text", "007": "007",
		"123456789012345678901": "123456789012345678901", "1e3": "1e3", "0x50": "0x50", "": "",
		"falsehood": "falsehood", `"5"`: "5"} {
		if got := value(in); got != want {
			t.Errorf("value(%q) = %#v, want %#v", in, got, want)
		}
	}
	if m, ok := value(`{"serial":"x"}`).(map[string]any); !ok || m["serial"] != "x" {
		t.Error("an object is not read as one")
	}
}
