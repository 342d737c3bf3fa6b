package app

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
)

// TestPhoneHomeAddress: deployed systems are told an address at which they reach this conductor, and none where there
// is none.
func TestPhoneHomeAddress(t *testing.T) {
	for _, c := range []struct {
		set, public, addr, want string
	}{
		{"", "", "", ""},
		{"", "", "192.0.2.1", "http://192.0.2.1:8080"},
		{"", "https://ingot.example", "192.0.2.1", "https://ingot.example"},
		{"http://198.51.100.1", "https://ingot.example", "192.0.2.1", "http://198.51.100.1"},
	} {
		cfg := config.Default()
		cfg.Deploy.PhoneHomeURL, cfg.API.PublicURL = c.set, c.public
		addr, _ := netip.ParseAddr(c.addr)
		if got := engineConfig(cfg, addr, nil); got.PhoneHomeURL != c.want || got.BootInstance != "reboot" ||
			got.KexecDelay <= 0 || got.SignTimeout <= 0 {
			t.Errorf("%+v: %q; %+v", c, got.PhoneHomeURL, got)
		}
	}
}

// TestPhoneHomeKey: tokens are good as long as the data directory is the same, and another's are not.
func TestPhoneHomeKey(t *testing.T) {
	key := func(dir string) []byte {
		ca, err := agents.OpenCA(dir)
		if err != nil {
			t.Fatal(err)
		}
		k, err := ca.PhoneHomeKey()
		if err != nil || len(k) < 32 {
			t.Fatalf("key of %d bytes, %v", len(k), err)
		}
		return k
	}
	dir := t.TempDir()
	first := key(dir)
	if !bytes.Equal(first, key(dir)) || bytes.Equal(first, key(t.TempDir())) {
		t.Error("the key is not the data directory's own")
	}
}
