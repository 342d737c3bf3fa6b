package app

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/config"
)

// TestSocketsThatAreHandedOverAreGuarded: what the service manager opens is no way around api.insecure_listen.
func TestSocketsThatAreHandedOverAreGuarded(t *testing.T) {
	open := &net.TCPAddr{IP: net.IPv4zero, Port: 6385}
	for _, c := range []struct {
		auth     string
		insecure bool
		at       net.Addr
		ok       bool
	}{
		{"none", false, open, false}, {"none", false, &net.TCPAddr{IP: net.IPv6unspecified}, false},
		{"none", false, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, false}, {"none", true, open, true},
		{"none", false, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, true},
		{"none", false, &net.TCPAddr{IP: net.IPv6loopback}, true}, {"none", false, &net.UnixAddr{Name: "/run/x"}, true},
		{"http_basic", false, open, true}, {"keystone", false, open, true},
	} {
		cfg := config.Default()
		cfg.API.Auth, cfg.API.InsecureListen = c.auth, c.insecure
		if err := guarded(cfg, c.at); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "api.auth") {
			t.Errorf("auth %s, insecure %v, at %s: %v", c.auth, c.insecure, c.at, err)
		}
	}
}

func TestKeystonePasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw")
	read := func() (string, error) { return password(config.Keystone{PasswordFile: file}) }
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "api.keystone.password_file") {
		t.Errorf("a missing file: %v", err)
	}
	for _, want := range []string{"one", "two words "} {
		if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := read(); err != nil || got != want {
			t.Errorf("password = %q, %v, want %q", got, err, want)
		}
	}
	if got, err := password(config.Keystone{Password: "x"}); err != nil || got != "x" {
		t.Errorf("password = %q, %v", got, err)
	}
}
