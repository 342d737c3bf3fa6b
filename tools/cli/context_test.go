package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

// TestContexts: with several sites each command works on the one that is named or in use, with the credentials of that
// one alone.
func TestContexts(t *testing.T) {
	env := map[string]string{"HOME": t.TempDir()}
	run := func(args ...string) (string, error) {
		t.Helper()
		var out, errs bytes.Buffer
		err := Run(t.Context(), args, nil, &out, &errs, func(key string) string { return env[key] })
		return out.String() + errs.String(), err
	}
	ok := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("ingot %v: %s\n%s", args, Message(err), out)
		}
		return out
	}
	t.Chdir(t.TempDir()) // has no clouds.yaml
	if out := ok("context", "list"); !strings.Contains(out, "ingot context set") {
		t.Errorf("without contexts: %s", out)
	}
	for _, name := range []string{"north", "south"} {
		ok("context", "set", name, "--endpoint", bench.Start(t, nil).URL)
		ok("node", "create", "of-"+name, "--driver", "fake-hardware", "--context", name)
	}
	ok("context", "use", "south")
	if out := ok("node", "list"); !strings.Contains(out, "of-south") || strings.Contains(out, "of-north") {
		t.Errorf("the one in use: %s", out)
	}
	if out := ok("node", "list", "--context", "north", "-o", "name"); out != "of-north\n" {
		t.Errorf("the one that is named: %s", out)
	}
	env["OS_CLOUD"] = "north"
	if out := ok("node", "list", "-o", "name"); out != "of-north\n" {
		t.Errorf("that of OS_CLOUD: %s", out)
	}
	delete(env, "OS_CLOUD")
	if out := ok("context", "list", "-o", "csv"); !strings.Contains(out, "south,*,http://") {
		t.Errorf("the list: %s", out)
	}
	if _, err := run("node", "list", "--context", "east"); err == nil ||
		!strings.Contains(Message(err), "there are: north, south") {
		t.Errorf("one that does not exist: %v", err)
	}

	// What the environment has for one site does not go to another.
	var got http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		http.Error(w, `{"error_message": "no"}`, http.StatusUnauthorized)
	}))
	defer other.Close()
	ok("context", "set", "east", "--endpoint", other.URL)
	env["OS_AUTH_TYPE"], env["OS_USERNAME"], env["OS_PASSWORD"] = "http_basic", "root", "secret"
	if out, err := run("node", "list", "--context", "east"); err == nil || got == nil {
		t.Errorf("a server that refuses: %s", out)
	}
	if got.Get("Authorization") != "" || got.Get("X-Auth-Token") != "" {
		t.Errorf("the environment's password was sent to another site: %v", got)
	}
	ok("context", "set", "east", "--user", "eve")
	if _, err := run("node", "list", "--context", "east"); err == nil || got.Get("Authorization") == "" {
		t.Errorf("its own password was not sent: %v", got)
	}
	ok("context", "delete", "east")
}

// TestContextsThatCanNotWork are refused when they are set, not when they are used.
func TestContextsThatCanNotWork(t *testing.T) {
	home := t.TempDir()
	text := filepath.Join(home, "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`"rack1:6385" is not an address`:     {"--endpoint", "rack1:6385"},
		"text is no file with certificates":  {"--endpoint", "https://rack1", "--cacert", text},
		"other is no file with certificates": {"--endpoint", "https://rack1", "--cacert", filepath.Join(home, "other")},
	} {
		var out strings.Builder
		err := Run(t.Context(), append([]string{"context", "set", "east"}, args...), strings.NewReader(""), &out, &out,
			func(name string) string { return map[string]string{"HOME": home}[name] })
		if err == nil || !strings.Contains(Message(err), want) {
			t.Errorf("context set %v: %v, want %q", args, err, want)
		}
	}
}
