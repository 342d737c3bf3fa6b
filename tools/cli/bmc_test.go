package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
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
