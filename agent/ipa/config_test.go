package ipa

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestParse holds which boot parameters are an Ironic's, and what is taken from them.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		line  string
		ok    bool
		check func(Config) bool
	}{
		{"", false, nil},
		{"console=ttyS0 BOOTIF=01-52-54-00-12-34-56", false, nil},
		{"ipa-api-url=http://192.0.2.1:6385 ingot.token=x ingot.conductor=192.0.2.9:6386", false, nil},
		{"ipa-api-url=http://192.0.2.1:6385 ingot.token=x", false, nil},
		{"ipa-api-url=http://192.0.2.1:6385 ipa-debug=1 selinux=0 troubleshoot=0 text", true, func(c Config) bool {
			return slices.Equal(c.APIs, []string{"http://192.0.2.1:6385"}) && c.Port == 9999 && c.Guard &&
				c.Lookup == 600*time.Second && c.Token == "" && len(c.Callbacks) == 0 &&
				slices.Equal(c.Hosts(), []string{"192.0.2.1:6385"})
		}},
		{"ipa-api-url=http://a:1 ipa-api-url=https://b,https://[2001:db8::1]:6385/baremetal", true, func(c Config) bool {
			return slices.Equal(c.Hosts(), []string{"b:443", "[2001:db8::1]:6385"})
		}},
		{"ipa-api-url=mdns", true, func(c Config) bool { return slices.Equal(c.Hosts(), []string{"mdns"}) }},
		{"boot_method=vmedia ipa-agent-token=" + strings.Repeat("t", 43), true, func(c Config) bool {
			return slices.Equal(c.APIs, []string{"mdns"}) && len(c.Token) == 43
		}},
		{"boot_method=vmedia ingot.token=x", false, nil},
		{"ipa-inspection-callback-url=http://192.0.2.1:5050/v1/continue", true, func(c Config) bool {
			return len(c.APIs) == 0 && slices.Equal(c.Hosts(), []string{"192.0.2.1:5050"})
		}},
		{"ipa-api-url=http://a/ ipa-inspection-collectors=default,logs,pci-devices", true, func(c Config) bool {
			return slices.Equal(c.Callbacks, []string{"http://a/v1/continue_inspection"}) && len(c.Collectors) == 3
		}},
		{"ipa-api-url=http://a ipa-insecure=1 ipa-listen-host=:: ipa-listen-port=9000 ipa-advertise-host=[fd00::7] " +
			"ipa-advertise-port=443 ipa-lookup-timeout=30 ipa-guard-special-filesystems=False " +
			"ipa-inject-files-priority=50 ipa-tls-min-version=1.3 ipa-global-request-id=req-1", true,
			func(c Config) bool {
				return c.Insecure && c.Listen.Is6() && c.Port == 9000 && c.Advertised == "fd00::7" &&
					c.PublicPort == 443 && c.Lookup == 30*time.Second && !c.Guard && c.InjectFiles == 50 &&
					c.TLSMin == "1.3" && c.RequestID == "req-1"
			}},
	} {
		got, ok, err := Parse(c.line)
		if err != nil || ok != c.ok || c.check != nil && !c.check(got) {
			t.Errorf("%s: %+v, %v, %v", c.line, got, ok, err)
		}
	}
	for line, want := range map[string]string{
		"ipa-api-url=ftp://a":                               "neither an http or https URL nor mdns",
		"ipa-api-url=http://a ipa-listen-port=0":            "no TCP port",
		"ipa-api-url=http://a ipa-listen-host=eth0":         "no IP address",
		"ipa-api-url=http://a ipa-insecure=perhaps":         "neither true nor false",
		"ipa-api-url=http://a ipa-lookup-timeout=soon":      "no number of seconds",
		"ipa-api-url=http://a ipa-tls-min-version=1.0":      "neither 1.2 nor 1.3",
		"ipa-api-url=http://a ipa-advertise-protocol=http":  "https alone",
		"ipa-api-url=http://a ipa-inject-files-priority=-1": "no priority",
	} {
		if _, _, err := Parse(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
