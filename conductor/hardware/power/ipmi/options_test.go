package ipmi

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

func TestKey(t *testing.T) {
	for _, tt := range []struct {
		info power.Info
		want string
	}{
		{power.Info{"ipmi_address": "192.0.2.1"}, "ipmi:192.0.2.1:623"},
		{power.Info{"ipmi_address": "BMC1.example.org", "ipmi_port": "6230"}, "ipmi:bmc1.example.org:6230"},
		{power.Info{"ipmi_address": "2001:db8::1", "ipmi_port": float64(623)}, "ipmi:[2001:db8::1]:623"},
		{power.Info{"ipmi_address": "[fe80::1%eth0]"}, "ipmi:[fe80::1%eth0]:623"},
	} {
		d, err := Open(tt.info, nil)
		if err != nil {
			t.Errorf("Open(%v): %v", tt.info, err)
			continue
		}
		if got := d.Key(); got != tt.want {
			t.Errorf("Key of %v = %q, want %q", tt.info, got, tt.want)
		}
	}
}

func TestBadInfo(t *testing.T) {
	for _, tt := range []struct {
		info power.Info
		want string
	}{
		{nil, "ipmi_address is missing"},
		{power.Info{"ipmi_address": "192.0.2.1:623"}, "ipmi_port"},
		{power.Info{"ipmi_address": "a b"}, "ipmi_address"},
		{power.Info{"ipmi_address": "a", "ipmi_port": "70000"}, "ipmi_port"},
		{power.Info{"ipmi_address": "a", "ipmi_port": "x"}, "ipmi_port"},
		{power.Info{"ipmi_address": "a", "ipmi_username": "12345678901234567"}, "ipmi_username"},
		{power.Info{"ipmi_address": "a", "ipmi_password": "123456789012345678901"}, "ipmi_password"},
		{power.Info{"ipmi_address": "a", "ipmi_priv_level": "GOD"}, "ipmi_priv_level"},
		{power.Info{"ipmi_address": "a", "ipmi_cipher_suite": "0"}, "ipmi_cipher_suite"},
		{power.Info{"ipmi_address": "a", "ipmi_protocol_version": "1.5"}, "ipmi_protocol_version"},
		{power.Info{"ipmi_address": "a", "ipmi_bridging": "single"}, "ipmi_bridging"},
		{power.Info{"ipmi_address": "a", "ipmi_hex_kg_key": "00"}, "ipmi_hex_kg_key"},
		{power.Info{"ipmi_address": "a", "ipmi_disable_boot_timeout": "perhaps"}, "ipmi_disable_boot_timeout"},
	} {
		_, err := Open(tt.info, nil)
		if power.KindOf(err) != power.Config || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Open(%v) = %v, want kind %q and %q", tt.info, err, power.Config, tt.want)
		}
	}
	_, err := Open(power.Info{"ipmi_port": "x", "ipmi_password": "secret-too-long-for-ipmi"}, nil)
	if err == nil || !strings.Contains(err.Error(), "ipmi_address") || !strings.Contains(err.Error(), "ipmi_port") {
		t.Errorf("Open: %v, want all faults at once", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("error shows the password: %v", err)
	}
}

func TestPropertiesAreRead(t *testing.T) {
	for _, p := range Properties {
		if p.Description == "" || !strings.HasPrefix(p.Name, "ipmi_") {
			t.Errorf("property %+v", p)
		}
	}
}
