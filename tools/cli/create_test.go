package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

// TestCreateList enrols a rack from a file, again with one machine more, and with faults.
func TestCreateList(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	file := filepath.Join(t.TempDir(), "rack.csv")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	create := func(more ...string) []string {
		return append([]string{"node", "create", "-f", file, "--driver", "redfish", "--bmc-user", "admin",
			"--bmc-password", "secret-canary"}, more...)
	}
	put("name,bmc,mac\nweb1,192.0.2.1,52:54:00:00:00:01\nweb2,192.0.2.2,\n")
	if out := u.ok(create("--dry-run")...); strings.Count(out, "would be created") != 2 ||
		!strings.Contains(u.ok(words("node list")...), "no nodes") {
		t.Errorf("a dry run says %q, and has done something", out)
	}
	if out := u.ok(create()...); strings.Count(out, "created") != 2 || strings.Contains(out, "canary") {
		t.Errorf("a list of two: %q", out)
	}
	if out := u.ok(words("node show web1")...); !strings.Contains(out, "192.0.2.1") ||
		!strings.Contains(out, "52:54:00:00:00:01") || !strings.Contains(out, "admin") {
		t.Errorf("web1: %s", out)
	}

	// The same list with one more, of which another has failed: what is there stays.
	put("name,bmc,mac\nweb2,192.0.2.2,\nweb3,192.0.2.3,52:54:00:00:00:01\nweb1b,192.0.2.1,\nweb4,192.0.2.4,\n")
	out, _, err := u.run(append(create(), "-o", "json")...)
	var got []enrolled
	if jerr := json.Unmarshal([]byte(out), &got); jerr != nil || len(got) != 4 {
		t.Fatalf("%v: %s, %v", jerr, out, err)
	}
	for i, want := range []struct{ result, fault string }{{"there already", ""},
		{"failed", "its port 52:54:00:00:00:01 was not"}, {"failed", "is that of node web1"}, {"created", ""}} {
		if g := got[i]; g.Result != want.result || !strings.Contains(g.Error, want.fault) ||
			(want.fault == "") != (g.Error == "") {
			t.Errorf("%s: %+v, want %+v", g.From, g, want)
		}
	}
	if err == nil || !strings.Contains(Message(err), "2 of 4 machines failed") {
		t.Errorf("the end: %v", err)
	}

	put("name,bmc\nweb9,192.0.2.9\nweb2,192.0.2.77\n,192.0.2.10\n")
	u.fails(create(), "nothing was done", "line 4: it has neither a name nor a uuid")
	put("name,bmc\nweb2,192.0.2.77\n")
	if out, _, err := u.run(create()...); err == nil || !strings.Contains(out, "with another controller") {
		t.Errorf("a name that is taken: %v, %s", err, out)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{create("web1"), "come from the list"},
		{create("--bmc", "192.0.2.1"), "come from the list"},
		{words("node create web1 --driver fake-hardware --dry-run"), "--dry-run needs --file"},
		{words("node create -f /nonexistent"), "no such file"},
	} {
		u.fails(c.args, c.want)
	}
}

// TestSetPassword: the password goes to the key of the node's own driver.
func TestSetPassword(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL, env: map[string]string{"INGOT_BMC_PASSWORD": "secret-canary"}}
	for _, driver := range []string{"redfish", "ipmi"} {
		u.ok("node", "create", driver, "--driver", driver, "--driver-info", driver+"_address=192.0.2.1")
		u.ok("node", "set", driver, "--bmc-password")
		if out := u.ok("node", "show", driver); strings.Count(out, "_password") != 1 ||
			!strings.Contains(out, driver+"_password") || strings.Contains(out, "canary") {
			t.Errorf("%s: %s", driver, out)
		}
	}
	u.ok(words("node create fake --driver fake-hardware")...)
	u.fails(words("node set fake --bmc-password"), "for machines of type ipmi, redfish and idrac")
	u.ok(words("node set ipmi --driver redfish --driver-info redfish_address=192.0.2.1 --bmc-password")...)
	if out := u.ok("node", "show", "ipmi"); !strings.Contains(out, "redfish_password") {
		t.Errorf("with another driver: %s", out)
	}
}
