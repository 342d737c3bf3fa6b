package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kit "github.com/ingot-metal/ingot/test/kit/redfish"
)

// TestProbe shows what a controller is, keeps its answers, and shows them again.
func TestProbe(t *testing.T) {
	u, dir := &user{t: t}, t.TempDir()
	b := kit.Start(t, kit.Personality(t, "dell-idrac9"))
	at := strings.TrimPrefix(b.Service.URL(), "https://")
	pw, file := filepath.Join(dir, "pw"), filepath.Join(dir, "dell.zip")
	if err := os.WriteFile(pw, []byte(kit.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := u.ok("bmc", "probe", at)
	if !strings.Contains(seen, "Dell") || !strings.Contains(seen, "only the service root was read") {
		t.Errorf("without a user name: %s", seen)
	}
	account := []string{"bmc", "probe", at, "--bmc-user", "admin", "--bmc-password-file", pw}
	seen = u.ok(append(account, "--save", file)...)
	facts := []string{"PowerEdge R640", "virtual media", "dell-same-state", "/redfish/v1/Systems"}
	for _, want := range facts {
		if !strings.Contains(seen, want) {
			t.Errorf("%q is not in %s", want, seen)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	u.fails(append(account, "--save", file), "exists: choose another name")
	seen = u.ok("bmc", "probe", "--from", file)
	for _, want := range facts {
		if !strings.Contains(seen, want) {
			t.Errorf("from the file: %q is not in %s", want, seen)
		}
	}
	u.fails([]string{"bmc", "probe"}, "name one address")
	u.fails([]string{"bmc", "probe", at, "--private"}, "--private is for --save")
	u.fails([]string{"bmc", "probe", "127.0.0.1:1"}, "nothing answers")
	u.fails([]string{"bmc", "probe", "--from", pw}, "this is no archive of a probe")
	u.fails([]string{"bmc", "probe", at, at}, "name one address")
	u.fails([]string{"bmc", "probe", at, "--bmc-user", "nobody", "--bmc-password-file", pw},
		"wrong user name or password")
}
