package agentv1

import (
	"strings"
	"testing"
)

func TestCheckAddress(t *testing.T) {
	long := strings.Repeat("a", 63) + "."
	for in, ok := range map[string]bool{
		"192.0.2.1:6386": true, "[fd00::1]:6386": true, "[fe80::1%eth0]:6386": true, "conductor.example:1": true,
		"a:65535": true, strings.Repeat(long, 3) + "abc:6386": true,
		"": false, "192.0.2.1": false, ":6386": false, "192.0.2.1:0": false, "192.0.2.1:65536": false, "a:-1": false,
		"a:https": false, "a:+1": false, "0.0.0.0:1": false, "[::]:1": false, "224.0.0.251:1": false,
		"[ff02::1]:1":       false,
		"255.255.255.255:1": false, "a b:1": false, "a/b:1": false, "user@host:1": false, "unix:///x:1": false,
		"a\n:1": false, "fd00::1:6386": false, "mdns": false, "-a:1": false, "a..b:1": false, "1\x1b[2J:1": false,
		"[fe80::1%\x1b]:1": false, "[fe80::1%a b]:1": false,
		strings.Repeat(long, 4) + "a:6386": false,
	} {
		if err := CheckAddress(in); (err == nil) != ok {
			t.Errorf("CheckAddress(%q) = %v, want ok=%v", in, err, ok)
		}
	}
}
