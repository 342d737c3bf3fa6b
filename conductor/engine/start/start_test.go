package start

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestStartOrder: the request goes before the instance, that before the node, that before the configuration.
func TestStartOrder(t *testing.T) {
	o := Options{Method: Kexec, Signs: []string{"dhcp"}}
	n := &node.Node{InstanceInfo: map[string]any{}, DriverInfo: map[string]any{}}
	check := func(asked, method, sign string, seconds int) {
		t.Helper()
		a, err := o.Choose(n, json.RawMessage(asked))
		if err != nil || a.Method != method || strings.Join(a.Signs, " ") != sign || a.Seconds != seconds {
			t.Errorf("start %+v, %v; want %q, %q, %d", a, err, method, sign, seconds)
		}
	}
	check("", Kexec, "dhcp", 0)
	n.DriverInfo["boot_instance"], n.DriverInfo["sign_of_life"], n.DriverInfo["sign_of_life_timeout"] = "reboot",
		"port:22", "60"
	check("", "", "port:22", 60)
	n.InstanceInfo["boot_instance"], n.InstanceInfo["sign_of_life"] = "kexec", []any{"port:80", "dhcp"}
	check("", Kexec, "port:80 dhcp", 60)
	n.InstanceInfo["sign_of_life_timeout"] = json.Number("90")
	check(`{"method":"reboot","sign_of_life":["port:1"]}`, "", "port:1", 90)
	check(`{"sign_of_life":"none"}`, Kexec, "", 0)
	check(`{}`, Kexec, "port:80 dhcp", 90)
}
