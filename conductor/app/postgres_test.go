//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestOnPostgreSQL: ingotd on a database of PostgreSQL: killed and started again, with a second one beside it, while
// the server restarts or is busy with others, and with the commands that need the database. The password is nowhere in
// its output.
func TestOnPostgreSQL(t *testing.T) {
	c := pgserver.New(t)
	name, url := c.Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := ingotd.Start(t, kit.FreeAddr(t), "store.url="+url, "store.password_file="+secret)
	ask := func(method, path, body string) (int, http.Header, string) {
		t.Helper()
		return p.Ask(method, path, body, map[string]string{"X-OpenStack-Ironic-API-Version": "1.80"})
	}
	if status, _, answer := ask("POST", "/v1/nodes", `{"name": "n", "driver": "fake-hardware"}`); status != 201 {
		t.Fatalf("create: %d %s", status, answer)
	}
	p.Kill()
	p.Again()
	if status, _, answer := ask("GET", "/v1/nodes/n", ""); status != 200 {
		t.Fatalf("after a kill: %d %s", status, answer)
	}
	if _, err := os.Stat(filepath.Join(p.Dir, "ingot.db")); err == nil {
		t.Error("there is a database of SQLite beside it")
	}

	run := func(dir string, args ...string) (string, error) {
		cmd := exec.Command(made.Program(t, "ingotd"), append(args, "--data-dir", dir)...)
		cmd.Env = append(os.Environ(), "INGOT_STORE_URL="+url, "INGOT_STORE_PASSWORD_FILE="+secret)
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), pgserver.Password) {
			t.Errorf("%s shows the password: %s", args, out)
		}
		return string(out), err
	}
	if out, err := run(t.TempDir(), "--listen", kit.FreeAddr(t), "--set", "agents.advertise=127.0.0.1:1"); err == nil ||
		!strings.Contains(out, "works with PostgreSQL at 127.0.0.1") {
		t.Errorf("a second ingotd: %v, %s", err, out)
	}
	if out, err := run(p.Dir, "backup", filepath.Join(t.TempDir(), "b")); err == nil ||
		!strings.Contains(out, "pg_dump") {
		t.Errorf("backup: %v, %s", err, out)
	}
	if out, err := run(p.Dir, "restore", filepath.Join(t.TempDir(), "b")); err == nil ||
		!strings.Contains(out, "pg_restore") {
		t.Errorf("restore: %v, %s", err, out)
	}
	if out, _ := run(p.Dir, "doctor"); !strings.Contains(out, "answers, and can be written to") {
		t.Errorf("doctor: %s", out)
	}

	const patch = `[{"op": "add", "path": "/description", "value": "x"}]`
	const ended = `SELECT COUNT(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LOCK%' `
	others := make(chan error, 1)
	go func() {
		_, err := c.Query(t.Context(), name, `LOCK TABLE nodes; SELECT pg_sleep(600)`)
		others <- err
	}()
	ingotd.Wait(t, "another client has a lock", func() bool {
		n, err := c.Query(t.Context(), name, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'`)
		return err == nil && n == "1"
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		status, header, answer := ask("PATCH", "/v1/nodes/n", patch)
		if status != 503 || header.Get("Retry-After") == "" || !strings.Contains(answer, "nothing was changed") {
			t.Errorf("PATCH beside another client: %d, Retry-After %q, %s", status, header.Get("Retry-After"), answer)
		}
	}()
	ingotd.Wait(t, "the request is answered", func() bool {
		// An administrator ends what waits for the lock.
		if _, err := c.Query(t.Context(), name, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock'`); err != nil {
			t.Error(err)
		}
		select {
		case <-answered:
			return true
		default:
			return false
		}
	})
	if n, err := c.Query(t.Context(), name, ended); err != nil || n != "1" {
		t.Errorf("%s other clients were ended, %v", n, err)
	}
	if err := <-others; err == nil {
		t.Error("the other client was not ended")
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for path, body := range map[string]string{"/v1/nodes/n": patch, "/v1/nodes": ""} {
		method := map[bool]string{true: "PATCH", false: "GET"}[body != ""]
		if status, header, answer := ask(method, path, body); status != 503 || header.Get("Retry-After") == "" {
			t.Errorf("%s %s without a server: %d, Retry-After %q, %s", method, path, status, header.Get("Retry-After"),
				answer)
		}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ingotd.Wait(t, "writes go on", func() bool {
		status, _, _ := ask("PATCH", "/v1/nodes/n", patch)
		return status == 200
	})
	p.Kill()
	if out, err := run(p.Dir, "key", "rotate"); err != nil {
		t.Errorf("key rotate: %v, %s", err, out)
	}
	p.Again()
	if status, _, answer := ask("GET", "/v1/nodes/n", ""); status != 200 || !strings.Contains(answer, `"x"`) {
		t.Errorf("after the rotation: %d %s", status, answer)
	}
	if strings.Contains(p.Log.String(), pgserver.Password) {
		t.Error("the log has the password")
	}
}
