//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestMigrateStore moves an ingotd to PostgreSQL and back: it shows the same nodes, ports, resources and histories each
// time. One that runs is refused on either side, and each other fault is said in one sentence.
func TestMigrateStore(t *testing.T) {
	c := pgserver.New(t)
	_, url := c.Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command(made.Program(t, "ingotd"), append([]string{"migrate-store"}, args...)...)
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), pgserver.Password) {
			t.Errorf("%s shows the password: %s", args, out)
		}
		return string(out), err
	}
	must := func(out string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	refused := func(words string, args ...string) {
		t.Helper()
		out, err := run(args...)
		if err == nil || !strings.Contains(out, words) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: %v, %q, want one sentence with %q", args, err, out, words)
		}
	}
	ask := func(p *ingotd.Process, method, path, body string) string {
		t.Helper()
		status, _, answer := p.Ask(method, path, body, map[string]string{"X-OpenStack-Ironic-API-Version": "1.80"})
		if status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
		return answer
	}
	paths := []string{"/v1/nodes/detail", "/v1/ports/detail", "/v1/chassis?detail=true", "/v1/nodes/n2/history?detail=true",
		"/v1/deploy_templates?detail=true"}
	state := func(p *ingotd.Process) (all []any) {
		t.Helper()
		for _, path := range paths {
			var v any
			if err := json.Unmarshal([]byte(strings.ReplaceAll(ask(p, "GET", path, ""), p.URL, "")), &v); err != nil {
				t.Fatal(err)
			}
			all = append(all, v)
		}
		return all
	}

	p := ingotd.Start(t, kit.FreeAddr(t))
	ask(p, "POST", "/v1/chassis", `{"description": "rack", "uuid": "0cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1d"}`)
	ask(p, "POST", "/v1/deploy_templates", `{"name": "CUSTOM_X", "steps": [{"interface": "deploy", "step": "write_image",
		"args": {}, "priority": 80}]}`)
	for i := range 3 {
		ask(p, "POST", "/v1/nodes", fmt.Sprintf(`{"name": "n%d", "driver": "fake-hardware", "driver_info": {"password": "canary"},
			"uuid": "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1%d", "chassis_uuid": "0cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1d"}`, i, i))
		ask(p, "POST", "/v1/ports", fmt.Sprintf(`{"node_uuid": "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1%d",
			"address": "52:54:00:00:00:0%d"}`, i, i))
	}
	ask(p, "PUT", "/v1/nodes/n2/states/provision", `{"target": "manage"}`)
	ingotd.Wait(t, "the node is manageable", func() bool {
		return strings.Contains(ask(p, "GET", "/v1/nodes/n2", ""), `"provision_state":"manageable"`)
	})
	want := state(p)
	there := []string{"--data-dir", p.Dir, "--password-file", secret, "--from", "sqlite:", "--to", url}
	dry := func(args []string) []string { return append([]string{"--dry-run"}, args...) }
	refused("another ingotd uses the data directory "+p.Dir, there...)
	refused("another ingotd uses the data directory "+p.Dir, dry(there)...)
	p.Kill()
	refused("takes --from URL and --to URL", "--from", "sqlite:")
	refused("--to is none of the addresses", "--from", "sqlite:", "--to", "mysql://u:"+pgserver.Password+"@h/d")
	refused("--to: store.url holds a password", "--from", "sqlite:", "--to", "postgres://u:"+pgserver.Password+"@h/d")
	refused("one of the two databases has to be SQLite", "--from", "sqlite:"+p.Dir, "--to", "sqlite:"+t.TempDir())
	refused("ingot.db can't be read", "--from", "sqlite:"+filepath.Join(p.Dir, "none"), "--to", url)
	refused("no such file", "--from", "sqlite:", "--to", url, "--password-file", secret+"x")
	if out := must(run(dry(there)...)); !strings.Contains(out, "nodes            3\n") ||
		!strings.Contains(out, "This was a dry run") {
		t.Errorf("dry run: %s", out)
	}
	if out := must(run(there...)); !strings.Contains(out, "set store.url to it, and keep "+p.Dir) {
		t.Errorf("move: %s", out)
	}
	refused("is not empty", there...)

	p.Change("store.url="+url, "store.password_file="+secret)
	p.Again()
	if d := cmp.Diff(want, state(p)); d != "" {
		t.Errorf("on PostgreSQL (-SQLite +PostgreSQL):\n%s", d)
	}
	back := append([]string(nil), "--data-dir", p.Dir, "--password-file", secret, "--from", url, "--to", "sqlite:")
	elsewhere := append(append([]string(nil), back[:len(back)-1]...), "sqlite:"+filepath.Join(t.TempDir(), "new"))
	refused("another ingotd works with PostgreSQL at", elsewhere...)
	refused("another ingotd uses the data directory", back...)
	ask(p, "DELETE", "/v1/nodes/n0", "")
	want = state(p)
	p.Kill()
	refused("ingot.db is there already: move it away", back...)
	if out := must(run(elsewhere...)); !strings.Contains(out, "Copy the other files of the data directory ("+p.Dir+")") {
		t.Errorf("move to another directory: %s", out)
	}
	for _, name := range []string{"ingot.db", "ingot.db-wal", "ingot.db-shm"} {
		if err := os.Remove(filepath.Join(p.Dir, name)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if out := must(run(back...)); !strings.Contains(out, "set store.url to sqlite:") || strings.Contains(out, "Copy") {
		t.Errorf("move back: %s", out)
	}
	p.Change("store.url=sqlite:", "store.password_file=")
	p.Again()
	if d := cmp.Diff(want, state(p)); d != "" {
		t.Errorf("on SQLite again (-PostgreSQL +SQLite):\n%s", d)
	}
}
