package probe

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

var own = net.HardwareAddr{0x00, 0x16, 0x3e, 1, 2, 3}

func question(t testing.TB) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := discover(own)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func offer(t testing.TB, m *dhcpv4.DHCPv4, id string, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	r, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(id)))}, mods...)...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The machine that is played has a MAC of its own, always the same and local, and asks for its answers by broadcast.
func TestDiscover(t *testing.T) {
	for own, want := range map[string]string{"00:16:3e:01:02:03": "02:16:3e:01:02:03",
		"52:54:00:01:02:03": "56:54:00:01:02:03"} {
		mac, err := net.ParseMAC(own)
		if err != nil {
			t.Fatal(err)
		}
		m, err := discover(mac)
		if err != nil || m.ClientHWAddr.String() != want || m.ClientHWAddr[0]&3 != 2 || !m.IsBroadcast() ||
			mac.String() != own {
			t.Errorf("discover(%s) = %v, %v, want MAC %s", own, m, err, want)
		}
		if m, err := dhcpv4.FromBytes(m.ToBytes()); err != nil || !Is(m) ||
			m.MessageType() != dhcpv4.MessageTypeDiscover ||
			len(m.Options.Get(dhcpv4.OptionClientMachineIdentifier)) != 17 {
			t.Errorf("on the wire it is %v, %v", m, err)
		}
	}
	if m, err := discover(nil); err == nil {
		t.Errorf("for an interface without a MAC: %v", m)
	}
}

func TestAnswersToOthersAreIgnored(t *testing.T) {
	m := question(t)
	gives := dhcpv4.WithYourIP(net.IP{10, 0, 0, 9})
	for name, spoil := range map[string]func(r *dhcpv4.DHCPv4){
		"transaction":     func(r *dhcpv4.DHCPv4) { r.TransactionID[0]++ },
		"MAC":             func(r *dhcpv4.DHCPv4) { r.ClientHWAddr = own },
		"request":         func(r *dhcpv4.DHCPv4) { r.OpCode = dhcpv4.OpcodeBootRequest },
		"type":            func(r *dhcpv4.DHCPv4) { r.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck)) },
		"offers nothing":  func(r *dhcpv4.DHCPv4) { r.YourIPAddr = net.IPv4zero },
		"what is offered": func(*dhcpv4.DHCPv4) {},
	} {
		r := offer(t, m, "10.0.0.1", gives)
		spoil(r)
		if s, ok := read(r.ToBytes(), netip.Addr{}, m); ok != (name == "what is offered") {
			t.Errorf("%s: read = %+v, %v", name, s, ok)
		}
	}
}

func TestMadeUpServersAreBounded(t *testing.T) {
	m := question(t)
	evil := "\x1b[2J\nlevel=ERROR msg=" + strings.Repeat("x", 200)
	sum := summary{}
	for i := range 3 * limit.ProbeServers {
		r := offer(t, m, fmt.Sprintf("10.0.0.%d", i), dhcpv4.WithOption(dhcpv4.OptBootFileName(evil)),
			dhcpv4.WithOption(dhcpv4.OptTFTPServerName(evil)))
		s, ok := read(r.ToBytes(), netip.MustParseAddr("10.0.0.200"), m)
		if !ok {
			t.Fatal("not read")
		}
		sum.add(s)
	}
	found := sum.servers()
	if len(found) != limit.ProbeServers || !sum.more {
		t.Errorf("%d servers, more %v", len(found), sum.more)
	}
	said := Judge("proxy", netip.Addr{}, found, sum.more)
	if len(said) > limit.ProbeServers+2 {
		t.Errorf("%d things are said", len(said))
	}
	for _, j := range said {
		if len(j.Text) > 500 || strings.ContainsAny(j.Text, "\x1b\n") {
			t.Errorf("said is %q", j.Text)
		}
	}
}

func FuzzRead(f *testing.F) {
	m := question(f)
	f.Add(offer(f, m, "10.0.0.1", dhcpv4.WithYourIP(net.IP{10, 0, 0, 9}),
		dhcpv4.WithOption(dhcpv4.OptBootFileName("http://[::1]:80/x"))).ToBytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		asked := *m
		if got, err := dhcpv4.FromBytes(b); err == nil { // so that what is not the question's is found as well
			asked.TransactionID, asked.ClientHWAddr = got.TransactionID, got.ClientHWAddr
		}
		s, ok := read(b, netip.MustParseAddr("10.0.0.200"), &asked)
		if ok && (!s.ID.IsValid() || len(s.File) > limit.ProbeText || len(s.Next) > limit.ProbeText ||
			strings.ContainsAny(s.File+s.Next, "\x1b\n\x00")) {
			t.Errorf("read = %+v", s)
		}
	})
}

// What is said of each kind of server, in each mode.
func TestJudge(t *testing.T) {
	us := netip.MustParseAddr("10.0.0.1")
	other := netip.MustParseAddr("10.0.0.2")
	gives := Server{ID: other, From: other, Gives: true}
	with := func(s Server, file, next string, pxe bool) Server {
		s.File, s.Next, s.PXE = file, next, pxe
		return s
	}
	ours, foreign := with(gives, "snponly.efi", "10.0.0.1", false), with(gives, "pxelinux.0", "10.0.0.3", false)
	proxy := with(Server{ID: other, From: other}, "", "", true)
	for _, c := range []struct {
		name, mode string
		found      []Server
		more       bool
		want       []string // a warning begins with "!"
	}{
		{"alone", "server", nil, false, []string{"no other DHCP server"}},
		{"a second server", "server", []Server{gives}, false, []string{"!DHCP server 10.0.0.2 gives addresses"}},
		{"a proxy", "server", []Server{proxy}, false, []string{"!ProxyDHCP server 10.0.0.2 answers"}},
		{"no addresses", "proxy", nil, false, []string{"!no DHCP server answers"}},
		{"addresses", "proxy", []Server{gives}, false, []string{"DHCP server 10.0.0.2 gives addresses"}},
		{"boot file", "proxy", []Server{foreign}, false,
			[]string{`DHCP server 10.0.0.2 gives addresses, and offers the boot file "pxelinux.0" of 10.0.0.3; what this conductor offers has priority`}},
		{"PXE server that gives addresses", "proxy", []Server{with(foreign, "x", "", true)}, false,
			[]string{"!DHCP server 10.0.0.2 gives addresses and says that it is a PXE server"}},
		{"two proxies", "proxy", []Server{gives, proxy}, false,
			[]string{"DHCP server", "!ProxyDHCP server 10.0.0.2 answers"}},
		{"a proxy alone", "proxy", []Server{proxy}, false, []string{"!ProxyDHCP server", "!no DHCP server answers"}},
		{"none", "off", nil, false, []string{"!no DHCP server answers"}},
		{"points here", "off", []Server{ours}, false,
			[]string{`DHCP server 10.0.0.2 lets machines boot from this conductor: "snponly.efi" of 10.0.0.1`}},
		{"points elsewhere", "off", []Server{foreign}, false,
			[]string{`!DHCP server 10.0.0.2 lets machines boot "pxelinux.0" of 10.0.0.3, not from this conductor (10.0.0.1)`}},
		{"no boot file", "off", []Server{gives}, false,
			[]string{"DHCP server 10.0.0.2 gives addresses, and offers UEFI firmware nothing"}},
		{"another's proxy", "off", []Server{gives, proxy}, false,
			[]string{"DHCP server", "!ProxyDHCP server 10.0.0.2 says that it is a PXE server"}},
		{"on this host", "proxy", []Server{{ID: us, From: us, Gives: true}}, false,
			[]string{"DHCP server 10.0.0.1 on this host gives addresses"}},
		{"through a relay", "proxy", []Server{{ID: other, From: us, Gives: true}}, false,
			[]string{"DHCP server 10.0.0.2 (answer from 10.0.0.1) gives addresses"}},
		{"made up", "proxy", []Server{gives}, true, []string{"DHCP server", "!more than 8 DHCP servers"}},
	} {
		t.Run(c.mode+"/"+c.name, func(t *testing.T) {
			said := Judge(c.mode, us, c.found, c.more)
			if len(said) != len(c.want) {
				t.Fatalf("said is %+v, want %q", said, c.want)
			}
			for i, j := range said {
				want, warning := strings.CutPrefix(c.want[i], "!")
				if !strings.HasPrefix(j.Text, want) || j.Warning != warning || warning != (j.Remedy != "") {
					t.Errorf("said is %+v, want %q", j, c.want[i])
				}
			}
		})
	}
}

func TestMerge(t *testing.T) {
	a, b := Server{ID: netip.MustParseAddr("10.0.0.1"), Gives: true}, Server{ID: netip.MustParseAddr("10.0.0.1")}
	now := a
	now.File = "new"
	if got := Merge([]Server{now}, []Server{a, b}); len(got) != 2 || got[0] != now || got[1] != b {
		t.Errorf("Merge = %+v", got)
	}
}
