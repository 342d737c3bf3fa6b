package netboot

import (
	"net"
	"net/url"
	"testing"

	find "github.com/ingot-metal/ingot/agent/machine/mdns"
	"github.com/ingot-metal/ingot/conductor/netboot/mdns"
	"github.com/ingot-metal/ingot/test/kit"
)

// A machine finds the conductor by multicast DNS, and finds none when none announces itself.
func TestFoundByMulticastDNSOnTheWire(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	kit.Run(t, "ip", "-n", machine, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	kit.Run(t, "ip", "-n", machine, "link", "set", "eth0", "up")
	look := func() (at string, err error) {
		in(t, machine, func() error {
			at, err = find.Find(t.Context())
			return nil
		})
		return at, err
	}
	if at, err := look(); err == nil {
		t.Errorf("found %q without a conductor", at)
	}
	stop, err := mdns.Start(mdns.Config{Interface: "prov", Hostname: "c1", Addresses: []net.IP{{10, 77, 0, 1}},
		API: &url.URL{Scheme: "http", Host: "10.77.0.1:6385"}, Agents: "10.77.0.1:6386"})
	if err != nil {
		t.Fatal(err)
	}
	if at, err := look(); err != nil || at != "10.77.0.1:6386" {
		t.Errorf("found %q, %v", at, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if at, err := look(); err == nil {
		t.Errorf("found %q after the conductor stopped", at)
	}
}
