package config

import (
	"bytes"
	"strings"
	"testing"
)

func TestDiscoveryIsChecked(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"discovery.driver=redfish", ""},
		{"discovery.driver=", "discovery.driver: is needed"},
		{"discovery.limit_per_hour=0", "discovery.limit_per_hour: 0 is less than 1"},
		{"discovery.interfaces=network", `discovery.interfaces: "network" is not KIND=NAME`},
		{"discovery.interfaces=network=noop,deploy=direct", ""},
		{"inspection.mask_secrets=perhaps", "inspection.mask_secrets"},
		{"inspection.hooks=$default_hooks,pci-devices", ""},
	} {
		_, _, err := Load([]string{"--config", lab(t), "--set", "discovery.enabled=true", "--set", c.set}, nil,
			&bytes.Buffer{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.set, err, c.want)
		}
	}
	if Default().Discovery.Enabled {
		t.Error("discovery is on by default")
	}
}
