//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestDatabasesThatAreRefused: with a database that can't be used ingotd ends with one sentence, without the password,
// and has started nothing: it says nothing else, and its data directory has nothing but a lock.
func TestDatabasesThatAreRefused(t *testing.T) {
	c := pgserver.New(t)
	name, good := c.Database(t)
	readOnly, only := c.Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(secret, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(pgserver.Password)
	start := func(dir, url string, args ...string) (string, error) {
		args = append([]string{"--data-dir", dir, "--listen", kit.FreeAddr(t), "--set", "store.url=" + url, "--set",
			"store.password_file=" + secret, "--set", "agents.listen=127.0.0.1:0", "--set",
			"agents.advertise=127.0.0.1:1", "--set", "peer.listen=127.0.0.1:0"}, args...)
		cmd := exec.CommandContext(t.Context(), made.Program(t, "ingotd"), args...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if len(out) > 0 {
			t.Errorf("it wrote %s", out)
		}
		return errs.String(), err
	}
	refused := func(t *testing.T, url string, words ...string) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "data")
		out, err := start(dir, url)
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 1 {
			t.Fatalf("it ended with %v: %s", err, out)
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("%q does not say %q", out, w)
			}
		}
		out = strings.TrimPrefix(out, "ingotd: the configuration is not valid:\n")
		if strings.Count(out, "\n") != 1 || strings.Contains(out, "passw0rd") || len(out) > 500 {
			t.Errorf("this is not one sentence without a password: %q", out)
		}
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != "lock" {
				t.Errorf("the data directory has %s", e.Name())
			}
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	query := func(database, statement string) {
		t.Helper()
		if _, err := c.Query(t.Context(), database, statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func()
		url     string
		words   []string
	}{
		{"another scheme", nil, "mysql://u@h/d", []string{"store.url", "postgres://USER@HOST"}},
		{"a password inside", nil, "postgres://u:passw0rd@h/d", []string{"store.password_file"}},
		{"no server", nil, "postgres://u@127.0.0.1:1/d?sslmode=disable", []string{"127.0.0.1:1", "can't be reached"}},
		{"no such database", nil, strings.Replace(good, "/"+name, "/none", 1), []string{"does not exist", "createdb"}},
		{"an old server", nil, pgserver.Old(t), []string{"is version 12.9", "needs 15 or later"}},
		{"read only", func() { query(readOnly, "ALTER DATABASE "+readOnly+" SET default_transaction_read_only = on") }, only,
			[]string{"may only be read"}},
		{"wrong password", func() { write("another-passw0rd") }, good,
			[]string{"refuses user ingot", "store.password_file"}},
		{"newer schema", func() {
			write(pgserver.Password)
			query(name, "CREATE TABLE goose_db_version (id SERIAL PRIMARY KEY, version_id BIGINT NOT NULL, "+
				"is_applied BOOLEAN NOT NULL, tstamp TIMESTAMP NOT NULL DEFAULT now()); "+
				"INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, true), (99, true)")
		}, good, []string{"has schema 99, newer than", "Start the newer program again"}},
		{"a standby", func() {
			if err := errors.Join(c.Stop(), c.MakeStandby(), c.Start()); err != nil {
				t.Fatal(err)
			}
		}, good, []string{"is a standby", "primary"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.prepare != nil {
				tt.prepare()
			}
			refused(t, tt.url, tt.words...)
		})
	}
}
