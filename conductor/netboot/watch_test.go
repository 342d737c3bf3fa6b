package netboot

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/netboot/probe"
	"github.com/ingot-metal/ingot/test/kit"
)

const probeTime = time.Second

// Each server that answers on the wire is found, on another host and on this one, and nothing is leased to the probe.
func TestServersOnTheWireAreFound(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	kit.Run(t, "ip", "-n", machine, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	us := netip.MustParseAddr("10.77.0.1")
	pxe := `pxe-service=X86-64_EFI,"other",other.efi`
	for _, c := range []struct {
		name     string
		thisHost bool
		lines    []string
		mode     string
		warning  bool
		want     string
	}{
		{"DHCP server", false, []string{leaseRange}, "server", true,
			"DHCP server 10.77.0.2 gives addresses on this network as well"},
		{"DHCP server", false, []string{leaseRange}, "proxy", false, "DHCP server 10.77.0.2 gives addresses"},
		{"boot file", false, []string{leaseRange, "dhcp-boot=pxelinux.0"}, "proxy", false,
			`offers the boot file "pxelinux.0" of 10.77.0.2`},
		{"boot file", false, []string{leaseRange, "dhcp-boot=pxelinux.0"}, "off", true,
			`lets machines boot "pxelinux.0" of 10.77.0.2, not from this conductor (10.77.0.1)`},
		{"our boot file", false, []string{leaseRange, "dhcp-boot=snponly.efi,,10.77.0.1"}, "off", false,
			`lets machines boot from this conductor: "snponly.efi" of 10.77.0.1`},
		{"DHCP and PXE", false, []string{leaseRange, pxe}, "proxy", true,
			"10.77.0.2 gives addresses and says that it is a PXE server"},
		{"ProxyDHCP", false, []string{"dhcp-range=10.77.0.0,proxy", pxe}, "proxy", true,
			"ProxyDHCP server 10.77.0.2 answers on this network as well"},
		{"ProxyDHCP", false, []string{"dhcp-range=10.77.0.0,proxy", pxe}, "server", true,
			"ProxyDHCP server 10.77.0.2 answers on this network as well"},
		{"this host", true, []string{leaseRange}, "proxy", false, "DHCP server 10.77.0.1 on this host gives addresses"},
	} {
		t.Run(c.name+"/"+c.mode, func(t *testing.T) {
			ns, ifname := machine, "eth0"
			if c.thisHost {
				ns, ifname = "", "prov"
			}
			other := kit.Dnsmasq(t, ns, append([]string{"interface=" + ifname, "except-interface=lo"}, c.lines...)...)
			defer other.Stop()
			var said []probe.Judgement
			kit.Eventually(t, time.Minute, "an answer", func() bool {
				found, more, err := probe.Find(t.Context(), "prov", us, probeTime)
				if err != nil {
					t.Fatal(err)
				}
				said = probe.Judge(c.mode, us, found, more)
				return len(found) > 0
			})
			if said[0].Warning != c.warning || !strings.Contains(said[0].Text, c.want) {
				t.Errorf("said is %+v, want %q, warning %v\n%s", said, c.want, c.warning, other.Log())
			}
			if leases := other.Leases(); leases != "" {
				t.Errorf("the probe has a lease: %s", leases)
			}
		})
	}
}

// A conductor leaves probes alone, its own and others', even when it invites every machine that boots.
func TestProbesAreNotAnswered(t *testing.T) {
	if onWire(t) == "" {
		return
	}
	for _, mode := range []Mode{Leases, Proxy} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, mode, func(c *Config) {
				c.Interface, c.Prefix, c.InviteLimit = "prov", netip.Prefix{}, 100
				c.Invite = func(string) (string, error) { return "token", nil }
			})
			serve(t, r.s)
			found, _, err := probe.Find(t.Context(), "prov", netip.MustParseAddr("10.77.0.1"), probeTime)
			if err != nil || len(found) != 0 {
				t.Errorf("Find = %+v, %v, want no answer", found, err)
			}
			leases, err := r.st.Leases(t.Context())
			if err != nil || len(leases) != 0 || len(r.s.invites.by) != 0 || r.log.count("not answered") != 0 {
				t.Errorf("leases %+v, %v, invitations %v\n%s", leases, err, r.s.invites.by, r.log.b.String())
			}
		})
	}
}

// What answers is said at the start and when it changes, not with each probe.
func TestChangesOnTheWireAreLoggedOnce(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	kit.Run(t, "ip", "-n", machine, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	r := newRig(t, Proxy, func(c *Config) { c.Interface, c.ProbeEvery = "prov", time.Millisecond })
	r.s.probeWait = probeTime
	const none, some = "no DHCP server answers on this network", "DHCP server 10.77.0.2 gives addresses"
	serve(t, r.s)
	kit.Eventually(t, time.Minute, none, func() bool { return r.log.count(none) > 0 })

	other := kit.Dnsmasq(t, machine, "interface=eth0", "except-interface=lo", leaseRange)
	kit.Eventually(t, time.Minute, some, func() bool { return r.log.count(some) > 0 })
	kit.Eventually(t, time.Minute, "ten probes",
		func() bool { return strings.Count(other.Log(), "DHCPDISCOVER(") >= 10 })
	if r.log.count(some) != 1 || r.log.count(none) != 1 {
		t.Errorf("said more than once:\n%s", r.log.b.String())
	}
	other.Stop()
	kit.Eventually(t, time.Minute, "again "+none, func() bool { return r.log.count(none) == 2 })
}
