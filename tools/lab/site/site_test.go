package site

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

func TestFill(t *testing.T) {
	for _, tt := range []struct {
		in   Site
		want string // mode, or what is said
	}{
		{Site{}, Server},
		{Site{DHCP: Kea}, Proxy},
		{Site{Netboot: Off}, Off},
		{Site{DHCP: Dhcpd, Netboot: Off, Relay: Dnsmasq, MTU: 1400}, Off},
		{Site{DHCP: Dnsmasq, BootFile: "pxelinux.0", Delay: time.Second, Silent: time.Second}, Proxy},
		{Site{DHCP: "udhcpd"}, "it is dnsmasq, dhcpd or kea"},
		{Site{DHCP: Kea, Relay: "cisco"}, "it is dhcrelay or dnsmasq"},
		{Site{Netboot: "on"}, "it is server, proxy or off"},
		{Site{DHCP: Dnsmasq, Netboot: Server}, "two DHCP servers on one network"},
		{Site{Relay: Dhcrelay}, "its own segment only"},
		{Site{Netboot: Proxy}, "no server would give machines an address"},
		{Site{Netboot: Off, Relay: Dhcrelay}, "no server would give machines an address"},
		{Site{DHCP: Kea, Netboot: Off, BootFile: "x"}, "for netboot proxy"},
		{Site{DHCP: Kea, SameHost: true, Relay: Dhcrelay}, "the one address"},
		{Site{DHCP: Kea, SameHost: true, Delay: time.Second}, "its cable"},
		{Site{Delay: time.Second}, "there is none"},
		{Site{DHCP: Kea, MTU: 9000}, "MTU is 576 to 1500"},
	} {
		got, err := tt.in.Fill()
		if said := got.Netboot; err == nil && said != tt.want {
			t.Errorf("Fill(%+v) has mode %s, want %s", tt.in, said, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Fill(%+v) = %v, want %q", tt.in, err, tt.want)
		}
	}
}

// All servers offer the same: the conductor's files in mode off, none of them in mode proxy, where one may have its
// own.
func TestConfigurations(t *testing.T) {
	net := netip.MustParsePrefix("10.77.0.0/24")
	for _, dhcp := range []string{Dnsmasq, Dhcpd, Kea} {
		for _, s := range []Site{
			{DHCP: dhcp}, {DHCP: dhcp, BootFile: "pxelinux.0"}, {DHCP: dhcp, Netboot: Off},
			{DHCP: dhcp, Netboot: Off, Relay: Dnsmasq, MTU: 1400},
		} {
			s, err := s.Fill()
			if err != nil {
				t.Fatal(err)
			}
			p := s.Server(s.Plan(net), "/lab")
			text := p.Files["/lab/dhcp.conf"]
			if dhcp == Kea && !json.Valid([]byte(text)) {
				t.Errorf("%+v: not JSON:\n%s", s, text)
			}
			for word, want := range map[string]bool{
				"10.77.0.50": true, "10.77.1.50": s.Relay != "", "10.77.1.1": s.Relay != "",
				"http://10.77.0.1:8080/boot.ipxe?mac=${netX/mac}": s.Netboot == Off,
				"http://10.77.0.1:8080/loader/snponly.efi":        s.Netboot == Off, "HTTPClient": s.Netboot == Off,
				"undionly.kpxe": s.Netboot == Off, "pxelinux.0": s.BootFile != "", "1400": s.MTU == 1400,
			} {
				// JSON writes & in an escape; the words end before it.
				if got := strings.Contains(text, word); got != want {
					t.Errorf("%+v: %q in the configuration: %v, want %v\n%s", s, word, got, want, text)
				}
			}
		}
	}
}

// The lab's servers have the lines that the docs tell people to write.
func TestDocumentedLines(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/howto/dhcp-servers.md")
	if err != nil {
		t.Fatal(err)
	}
	for dhcp, text := range offTexts {
		if !strings.Contains(string(doc), "\n```"+dhcp+"\n"+text+"\n```\n") {
			t.Errorf("docs/howto/dhcp-servers.md has other lines for %s than these:\n%s", dhcp, text)
		}
	}
}

// In mode proxy the relay's second address is the conductor's, and in mode off it has none.
func TestRelays(t *testing.T) {
	for _, relay := range []string{Dhcrelay, Dnsmasq} {
		for mode, both := range map[string]bool{Proxy: true, Off: false} {
			s, err := Site{DHCP: Kea, Relay: relay, Netboot: mode}.Fill()
			if err != nil {
				t.Fatal(err)
			}
			p := s.RelayProgram(s.Plan(netip.MustParsePrefix("10.77.0.0/24")), "/lab")
			text := strings.Join(p.Args, " ") + p.Files["/lab/relay.conf"]
			if !strings.Contains(text, "10.77.0.2") || strings.Contains(text+"\n", "10.77.0.1\n") != both {
				t.Errorf("%s, %s: %s", relay, mode, text)
			}
		}
	}
}

func TestPackages(t *testing.T) {
	if got := (Site{}).Packages(); len(got) != 0 {
		t.Errorf("nothing needs %v", got)
	}
	if got := strings.Join((Site{DHCP: Dnsmasq, Relay: Dnsmasq}).Packages(), " "); got != "dnsmasq-base" {
		t.Errorf("dnsmasq twice is %q", got)
	}
	out := "Inst liblog4cplus-2.0.5 (2.0.8-1 Debian:12 [amd64])\nInst libc6 [2.36-9] (2.37-1 Debian [amd64])\nConf kea (2 x)\nInst kea-common:amd64 (2.2.0-6 Debian [amd64])\n"
	var got []string
	for _, m := range inst.FindAllStringSubmatch(out, -1) {
		got = append(got, m[1]+" "+m[3]+m[2])
	}
	if want := "liblog4cplus-2.0.5 2.0.8-1,libc6 2.37-1 [2.36-9],kea-common 2.2.0-6"; strings.Join(got, ",") != want {
		t.Errorf("apt's plan is read as %v, want %s", got, want)
	}
}
