package lab_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// Each DHCP server and each relay of Debian serves in the lab's network, with the configuration that is written for it:
// a client where the machines are gets an address and, in mode off, the boot file.
func TestForeignServers(t *testing.T) {
	needs(t)
	for _, s := range []site.Site{
		{DHCP: site.Dnsmasq, Netboot: site.Off, Relay: site.Dhcrelay},
		{DHCP: site.Dhcpd, Netboot: site.Off, Relay: site.Dnsmasq},
		{DHCP: site.Kea, Netboot: site.Off, MTU: 1400},
		{DHCP: site.Dnsmasq, Netboot: site.Proxy, SameHost: true, BootFile: "pxelinux.0"},
	} {
		t.Run(strings.Join([]string{s.DHCP, s.Relay, s.Netboot}, "-"), func(t *testing.T) {
			l := up(t, func(o *lab.Options) { o.Site = s })
			want, from := "undionly.kpxe", "10.77.0."
			if s.BootFile != "" {
				want = s.BootFile
			}
			if s.Relay != "" {
				from = "10.77.1."
			}
			offer := discover(t, l)
			if offer.BootFileName != want && offer.BootFileNameOption() != want ||
				!strings.HasPrefix(offer.YourIPAddr.String(), from) {
				t.Errorf("offered: %s", offer.Summary())
			}
			if s.Relay != "" && (len(offer.Router()) != 1 || offer.Router()[0].String() != "10.77.1.1") {
				t.Errorf("router %v", offer.Router())
			}
			status := l.Status()
			for _, v := range status.Services {
				if v.PID == 0 || v.Failure != "" {
					t.Errorf("service %+v", v)
				}
			}
			// A server that died is reported with its last words.
			v := status.Services[len(status.Services)-1]
			if err := unix.Kill(v.PID, unix.SIGKILL); err != nil || v.What != "dhcp" || v.Name != s.DHCP {
				t.Fatalf("%+v: %v", v, err)
			}
			kit.Eventually(t, time.Minute, "the lab reports that its DHCP server died", func() bool {
				v := l.Status().Services[len(status.Services)-1]
				return v.PID == 0 && strings.Contains(v.Failure, "killed")
			})
			if err := l.Down(context.Background()); err != nil {
				t.Error(err)
			}
			left, _ := os.ReadDir("/run/netns")
			for _, e := range left {
				if strings.HasPrefix(e.Name(), l.Namespace) {
					t.Errorf("namespace %s is still there", e.Name())
				}
			}
		})
	}
}

// discover asks for an address as PXE firmware does, from a card on the machines' segment.
func discover(t *testing.T, l *lab.Lab) *dhcpv4.DHCPv4 {
	t.Helper()
	bridge := "prov"
	if l.Status().Services[0].What == "relay" {
		bridge = "rack"
	}
	kit.Run(t, "ip", "-n", l.Namespace, "link", "add", "client", "type", "veth", "peer", "name", "client2")
	kit.Run(t, "ip", "-n", l.Namespace, "link", "set", "client2", "master", bridge, "up")
	kit.Run(t, "ip", "-n", l.Namespace, "link", "set", "client", "up")
	var c *nclient4.Client
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 0x99}
	err := l.In(func() (err error) {
		c, err = nclient4.New("client", nclient4.WithHWAddr(mac), nclient4.WithTimeout(5*time.Second),
			nclient4.WithRetry(12))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	offer, err := c.DiscoverOffer(t.Context(),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00000:UNDI:002001")),
		dhcpv4.WithOption(dhcpv4.OptClientArch(0)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionBootfileName, dhcpv4.OptionRouter))
	if err != nil {
		t.Fatal(err)
	}
	return offer
}
