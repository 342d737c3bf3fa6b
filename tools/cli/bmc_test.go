package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
	testkit "github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
)

// TestDiscover finds a controller, and enrols its machine from the table, once.
func TestDiscover(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	dir := t.TempDir()
	b := kit.Start(t, kit.Personality(t, "dell-idrac9"))
	at := strings.TrimPrefix(b.Service.URL(), "https://")
	put := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	seen, _, err := u.run("bmc", "discover", at, "127.0.0.1:1")
	if err != nil || !strings.Contains(seen, at) || !strings.Contains(seen, "Dell") ||
		strings.Contains(seen, "127.0.0.1:1 ") {
		t.Fatalf("a discovery: %v\n%s", err, seen)
	}
	if out := u.ok("bmc", "discover", "127.0.0.1:1"); !strings.Contains(out, "nothing answers") {
		t.Errorf("one address where nothing is: %s", out)
	}
	list, pw := put("controllers", seen), put("pw", kit.Password+"\n")
	enrol := func(args ...string) []string {
		return append([]string{"bmc", "discover", "--enrol", "--bmc-user", "admin", "--bmc-password-file", pw}, args...)
	}
	u.fails(enrol(at), "1 of 1 controllers are in no list that you have seen", "--yes")
	u.fails(append(enrol("-f", list), "--bmc-password-file", put("wrong", "x")), "1 of 1 failed")
	for _, want := range []string{"created", "there already"} {
		if out := u.ok(enrol("-f", list)...); !strings.Contains(out, want) || strings.Contains(out, kit.Password) {
			t.Errorf("want %q: %s", want, out)
		}
	}
	if out := u.ok(enrol(at, "--yes")...); !strings.Contains(out, "there already") {
		t.Errorf("again, without a list: %s", out)
	}
	out, _, err := u.run("node", "show", kit.UUID.String(), "-o", "json")
	var n struct {
		Driver string
		Info   map[string]string `json:"driver_info"`
	}
	if err != nil || json.Unmarshal([]byte(out), &n) != nil || n.Driver != "redfish" ||
		n.Info["redfish_address"] != at || n.Info["redfish_username"] != "admin" ||
		n.Info["redfish_verify_ca"] != string(b.Service.CertificatePEM()) {
		t.Errorf("the node: %v\n%s", err, out)
	}

	// Another controller with the same UUID of its machine: which of the two has it is not known.
	other := strings.TrimPrefix(kit.Start(t, kit.Personality(t, "generic")).Service.URL(), "https://")
	both, _, err := u.run(enrol(at, other, "--yes")...)
	if err == nil || strings.Count(both, "reports the same UUID") != 2 {
		t.Errorf("two with one UUID: %v\n%s", err, both)
	}
	moved, _, err := u.run(enrol(other, "--yes")...)
	if err == nil || !strings.Contains(moved, "its node has the controller "+at) {
		t.Errorf("a machine behind another controller: %v\n%s", err, moved)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{words("bmc discover"), "where?"},
		{words("bmc discover 10.0.0.0/8"), "smaller network"},
		{words("bmc discover 127.0.0.1:1 --bmc-user admin"), "without --enrol"},
		{words("bmc discover 127.0.0.1:1 --enrol"), "--enrol needs --bmc-user"},
		{words("bmc discover -f /nonexistent"), "no such file"},
	} {
		u.fails(c.args, c.want)
	}
}

// TestMove changes the hardware type of nodes, after a dry run; one that can't be moved is left as it was.
func TestMove(t *testing.T) {
	u := &user{t: t, url: ingotd.Start(t, testkit.FreeAddr(t)).URL}
	u.ok(words("node create web1 --driver ipmi --bmc 192.0.2.7:6230 --bmc-user ops --bmc-password secret-1")...)
	u.ok(words("node create web2 --driver ipmi --bmc 192.0.2.8 --bmc-user ops --bmc-password secret-1")...)
	u.ok(words("node create toy --driver fake-hardware")...)
	pw := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(pw, []byte("secret-2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	show := func() string {
		t.Helper()
		return u.ok("node", "show", "web1")
	}
	before := show()
	u.fails(words("bmc move --to redfish web1"), "1 of 1 failed")
	out := u.ok("bmc", "move", "--to", "redfish", "--bmc-password-file", pw, "--dry-run", "web1", "web2")
	if strings.Count(out, "would be moved") != 2 || !strings.Contains(out, "ipmi to redfish at 192.0.2.7 as ops") ||
		strings.Contains(out, "secret") || show() != before {
		t.Errorf("a dry run: %s\n%s", out, show())
	}
	move := func(args ...string) []string {
		return append([]string{"bmc", "move", "--to", "redfish", "--bmc-password-file", pw}, args...)
	}
	out, _, err := u.run(move("web1", "toy", "none")...)
	if err == nil || !strings.Contains(err.Error(), "2 of 3 failed") || strings.Count(out, "failed") != 2 ||
		!strings.Contains(out, "moved") || !strings.Contains(out, "fake-hardware") {
		t.Errorf("one of three: %v\n%s", err, out)
	}
	if is := show(); !strings.Contains(is, "redfish_address") || !strings.Contains(is, "ipmi_address") ||
		!strings.Contains(is, "management: redfish") || strings.Contains(is, "ipmitool") {
		t.Errorf("after the move: %s", is)
	}
	if out := u.ok(move("web1")...); !strings.Contains(out, "there already") {
		t.Errorf("again: %s", out)
	}
	u.fails(move("web2", "--verify-ca", "../etc/passwd"), "1 of 1 failed")
	if is := u.ok("node", "show", "web2"); !strings.Contains(is, "driver       ipmi") ||
		!strings.Contains(is, "ipmitool") {
		t.Errorf("one that does not validate: %s", is)
	}
	if out := u.ok(words("bmc move --to ipmi web1")...); !strings.Contains(out, "moved") {
		t.Errorf("back, without a password: %s", out)
	}
	if is := show(); !strings.Contains(is, "ipmitool") {
		t.Errorf("after the way back: %s", is)
	}
	u.fails(words("bmc move --to toy web1"), "redfish or ipmi")
	u.fails(words("bmc move --to ipmi --verify-ca false web1"), "for redfish")
}

// TestPassword sets a controller's password through the conductor, by a file and by the environment, and reports on
// each node.
func TestPassword(t *testing.T) {
	u := &user{t: t, url: ingotd.Start(t, testkit.FreeAddr(t), "fetch.allow=127.0.0.0/8").URL}
	b := kit.Start(t, kit.Personality(t, "dell-idrac9"))
	file := func(text string) string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	u.ok("node", "create", "web1", "--driver", "redfish", "--bmc", b.Service.URL(), "--bmc-user", "admin",
		"--bmc-password-file", file(kit.Password), "--driver-info", "redfish_verify_ca=false")
	u.ok(words("node create old --driver ipmi --bmc 192.0.2.7 --bmc-user ops --bmc-password secret-1")...)
	pw := file("canary-new-1\n")
	out, _, err := u.run("bmc", "password", "--new-password-file", pw, "web1", "old", "none")
	if err == nil || !strings.Contains(err.Error(), "2 of 3 failed") || !strings.Contains(out, "changed") ||
		strings.Contains(out+err.Error(), "canary") {
		t.Errorf("one of three: %v\n%s", err, out)
	}
	if is := b.Service.Password(); is != "canary-new-1" {
		t.Errorf("the controller's password is %q", is)
	}
	if out := u.ok("bmc", "password", "--new-password-file", file("canary-new-2"), "web1"); !strings.Contains(out,
		"changed") {
		t.Errorf("again: %s", out)
	}
	if is := b.Service.Password(); is != "canary-new-2" {
		t.Errorf("the controller's password is %q", is)
	}
	u.fails(words("bmc password web1"), "empty")
	u.fails([]string{"bmc", "password", "--new-password-file", file("short"), "web1"}, "1 of 1 failed")
	if is := b.Service.Password(); is != "canary-new-2" {
		t.Errorf("after one that is too short: %q", is)
	}
}
