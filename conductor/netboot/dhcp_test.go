package netboot

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/node"
)

var testMAC = net.HardwareAddr{0x52, 0x54, 0, 0x12, 0x34, 0x56}

// guidBytes is option 97 of a machine with this GUID: type 0, then the bytes, the first three fields little-endian.
var guidBytes = []byte{0, 0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
	0xff}

func conf(mode Mode) Config {
	return Config{
		Mode: mode, Address: netip.MustParseAddr("10.77.0.1"), Prefix: netip.MustParsePrefix("10.77.0.1/24"),
		RangeStart: netip.MustParseAddr("10.77.0.50"), RangeEnd: netip.MustParseAddr("10.77.0.52"),
		LeaseTime: time.Hour, HTTPPort: 8080, TFTP: true, LoaderDir: "there", TokenLife: 15 * time.Minute,
		Conductor: "10.77.0.1:6386", CA: strings.Repeat("ab", 32),
	}
}

// packet makes what a machine sends. The shapes of the firmwares below are those seen on the wire of SeaBIOS with iPXE,
// of OVMF's own PXE and HTTP boot, and of a Linux client.
func packet(t testing.TB, typ dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithMessageType(typ), dhcpv4.WithHwAddr(testMAC)}, mods...)...)
	if err != nil {
		t.Fatal(err)
	}
	// Through its bytes, as it would come in.
	if m, err = dhcpv4.FromBytes(m.ToBytes()); err != nil {
		t.Fatal(err)
	}
	return m
}

func raw(code uint8, b ...byte) dhcpv4.Modifier {
	return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), b)
}

func pxe(arch iana.Arch, class string) []dhcpv4.Modifier {
	return []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(fmt.Sprintf("%s:Arch:%05d:UNDI:003016", class, arch))),
		dhcpv4.WithOption(dhcpv4.OptClientArch(arch)), raw(94, 1, 3, 16), raw(97, guidBytes...),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionBootfileName, dhcpv4.OptionTFTPServerName),
	}
}

func ipxePacket(arch iana.Arch) []dhcpv4.Modifier {
	return append(pxe(arch, classPXE), raw(77, []byte("iPXE")...),
		raw(175, 0xb1, 5, 1, 0x1a, 0xf4, 0x10, 0x41, 0xeb, 3, 1, 0, 0, 23, 1, 1))
}

func TestBootFile(t *testing.T) {
	for _, c := range []struct {
		name           string
		mods           []dhcpv4.Modifier
		server, proxy  string // boot file per mode
		class60        string // in mode server
		offersNoProxy  bool
		tftpServerName bool
	}{
		{"BIOS PXE", pxe(iana.INTEL_X86PC, classPXE), "undionly.kpxe", "undionly.kpxe", "", false, true},
		{"BIOS without option 93", []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient"))},
			"undionly.kpxe", "undionly.kpxe", "", false, true},
		{"UEFI PXE, arch 7", pxe(iana.EFI_BC, classPXE), "snponly.efi", "snponly.efi", "", false, true},
		{"UEFI PXE, arch 9", pxe(iana.EFI_X86_64, classPXE), "snponly.efi", "snponly.efi", "", false, true},
		{"UEFI HTTP boot", pxe(iana.EFI_X86_64_HTTP, classHTTP), "http://10.77.0.1:8080/loader/snponly.efi",
			"http://10.77.0.1:8080/loader/snponly.efi", "HTTPClient", false, false},
		{"iPXE", ipxePacket(iana.INTEL_X86PC), "http://10.77.0.1:8080/boot.ipxe",
			"http://10.77.0.1:8080/boot.ipxe?mac=52%3A54%3A00%3A12%3A34%3A56&uuid=33221100-5544-7766-8899-aabbccddeeff",
			"", true, false},
		{"iPXE, user class of RFC 3004", append(pxe(iana.EFI_X86_64, classPXE), raw(77, []byte("\x04iPXE")...)),
			"http://10.77.0.1:8080/boot.ipxe",
			"http://10.77.0.1:8080/boot.ipxe?mac=52%3A54%3A00%3A12%3A34%3A56&uuid=33221100-5544-7766-8899-aabbccddeeff",
			"", true, false},
		{"32-bit UEFI", pxe(iana.EFI_IA32, classPXE), "", "", "", false, false},
		{"ARM UEFI", pxe(iana.EFI_ARM64, classPXE), "", "", "", false, false},
		{"ARM HTTP boot", pxe(iana.EFI_ARM64_HTTP, classHTTP), "", "", "", false, false},
		{"Linux", []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("udhcp 1.35"))}, "", "", "", false,
			false},
		{"nothing said", nil, "", "", "", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, err := read(packet(t, dhcpv4.MessageTypeDiscover, c.mods...))
			if err != nil {
				t.Fatal(err)
			}
			adm := admission{node: &node.Node{}, address: true, boot: true}
			mine := netip.MustParseAddr("10.77.0.50")
			r, err := answer(q, adm, mine, conf(Leases))
			if err != nil {
				t.Fatal(err)
			}
			if r.MessageType() != dhcpv4.MessageTypeOffer || !r.YourIPAddr.Equal(net.IP{10, 77, 0, 50}) {
				t.Errorf("reply %s %s, want an offer of 10.77.0.50", r.MessageType(), r.YourIPAddr)
			}
			if r.BootFileNameOption() != c.server || r.BootFileName != c.server {
				t.Errorf("boot file %q, in the header %q, want %q", r.BootFileNameOption(), r.BootFileName, c.server)
			}
			if got := string(r.Options.Get(dhcpv4.OptionClassIdentifier)); got != c.class60 {
				t.Errorf("option 60 = %q, want %q", got, c.class60)
			}
			if got := string(
				r.Options.Get(dhcpv4.GenericOptionCode(175))) == "\xb0\x01\x01\x01\x01\x7f"; got != c.offersNoProxy {
				t.Errorf("option 175.176 and priority there: %v, want %v", got, c.offersNoProxy)
			}
			if c.server != "" && !r.ServerIPAddr.Equal(net.IP{10, 77, 0, 1}) {
				t.Errorf("siaddr = %s", r.ServerIPAddr)
			}
			if got := r.TFTPServerName() != ""; got != c.tftpServerName {
				t.Errorf("TFTP server name %q", r.TFTPServerName())
			}

			adm.boot = false
			if r, err := answer(q, adm, mine, conf(Leases)); err != nil || r == nil || r.BootFileName != "" ||
				r.BootFileNameOption() != "" || !r.ServerIPAddr.IsUnspecified() {
				t.Errorf("a machine that is admitted to an address alone got %v, %v", r, err)
			}
			adm.address = false
			if r, err := answer(q, adm, mine, conf(Leases)); r != nil || err != nil {
				t.Errorf("a machine that is not admitted got %v, %v", r, err)
			}

			adm = admission{node: &node.Node{}, address: true, boot: true}
			r, err = answerProxy(q, adm, dhcpv4.ServerPort, conf(Proxy))
			if err != nil {
				t.Fatal(err)
			}
			if c.proxy == "" {
				if r != nil {
					t.Errorf("proxy mode answers %v, want silence", r)
				}
				return
			}
			if r.MessageType() != dhcpv4.MessageTypeOffer || !r.YourIPAddr.IsUnspecified() ||
				r.Options.Has(dhcpv4.OptionIPAddressLeaseTime) {
				t.Errorf("a ProxyDHCP offer must give no address: %s", r.Summary())
			}
			got := string(r.Options.Get(dhcpv4.GenericOptionCode(175))) == "\x01\x01\x7f"
			if got != (q.firmware == ipxe) {
				t.Errorf("proxy mode: option 175 = %x", r.Options.Get(dhcpv4.GenericOptionCode(175)))
			}
			if r.BootFileNameOption() != c.proxy {
				t.Errorf("proxy mode: boot file %q, want %q", r.BootFileNameOption(), c.proxy)
			}
			if class := r.ClassIdentifier(); !strings.HasPrefix(q.packet.ClassIdentifier(), class) || class == "" {
				t.Errorf("proxy mode: option 60 = %q", class)
			}
			if q.packet.Options.Has(optUUID) && !slices.Equal(r.Options.Get(optUUID), guidBytes) {
				t.Errorf("proxy mode: option 97 = %x, want it echoed", r.Options.Get(optUUID))
			}
			if class := r.ClassIdentifier(); class == classPXE &&
				!slices.Equal(r.Options.Get(dhcpv4.OptionVendorSpecificInformation), []byte{6, 1, 8, 255}) {
				t.Errorf("proxy mode: option 43 = %x", r.Options.Get(dhcpv4.OptionVendorSpecificInformation))
			}
		})
	}
}

func TestProxyPorts(t *testing.T) {
	adm := admission{node: &node.Node{}, address: true, boot: true}
	mods := append(pxe(iana.EFI_X86_64, classPXE), dhcpv4.WithClientIP(net.IP{192, 0, 2, 7}))
	for _, c := range []struct {
		typ  dhcpv4.MessageType
		port int
		want dhcpv4.MessageType
	}{
		{dhcpv4.MessageTypeDiscover, 67, dhcpv4.MessageTypeOffer},
		{dhcpv4.MessageTypeRequest, 67, dhcpv4.MessageTypeNone},
		{dhcpv4.MessageTypeRequest, 4011, dhcpv4.MessageTypeAck},
		{dhcpv4.MessageTypeInform, 4011, dhcpv4.MessageTypeAck},
		{dhcpv4.MessageTypeDiscover, 4011, dhcpv4.MessageTypeNone},
	} {
		q, err := read(packet(t, c.typ, mods...))
		if err != nil {
			t.Fatal(err)
		}
		r, err := answerProxy(q, adm, c.port, conf(Proxy))
		if err != nil {
			t.Fatal(err)
		}
		got := dhcpv4.MessageTypeNone
		if r != nil {
			got = r.MessageType()
		}
		if got != c.want {
			t.Errorf("%s on port %d: %s, want %s", c.typ, c.port, got, c.want)
		}
		if c.want == dhcpv4.MessageTypeAck {
			from := &net.UDPAddr{IP: net.IP{192, 0, 2, 7}, Port: 1068}
			if to := destination(q, r, from, c.port); to.String() != from.String() {
				t.Errorf("the answer goes to %s, want %s", to, from)
			}
		}
	}
}

// A relay sends an answer on to the address in it, or by broadcast: a ProxyDHCP offer has no address.
func TestProxyAnswersWithoutAddressAreBroadcast(t *testing.T) {
	relay := dhcpv4.WithGatewayIP(net.IP{192, 0, 2, 1})
	client := dhcpv4.WithClientIP(net.IP{192, 0, 2, 7})
	for _, c := range []struct {
		name string
		typ  dhcpv4.MessageType
		port int
		mods []dhcpv4.Modifier
		want bool
		to   string
	}{
		{"offer", dhcpv4.MessageTypeDiscover, 67, nil, true, "255.255.255.255:68"},
		{"offer through a relay", dhcpv4.MessageTypeDiscover, 67, []dhcpv4.Modifier{relay}, true, "192.0.2.1:67"},
		{"ACK", dhcpv4.MessageTypeRequest, 4011, []dhcpv4.Modifier{client}, false, "192.0.2.7:68"},
		{"ACK without an address", dhcpv4.MessageTypeRequest, 4011, nil, true, "255.255.255.255:68"},
		{"ACK, broadcast asked for", dhcpv4.MessageTypeRequest, 4011,
			[]dhcpv4.Modifier{client, dhcpv4.WithBroadcast(true)}, true, "192.0.2.7:68"},
	} {
		q, err := read(packet(t, c.typ, append(pxe(iana.EFI_X86_64, classPXE), c.mods...)...))
		if err != nil {
			t.Fatal(err)
		}
		r, err := answerProxy(q, admission{node: &node.Node{}, address: true, boot: true}, c.port, conf(Proxy))
		if err != nil || r == nil {
			t.Fatalf("%s: %v, %v", c.name, r, err)
		}
		if r.IsBroadcast() != c.want {
			t.Errorf("%s: broadcast %v, want %v", c.name, r.IsBroadcast(), c.want)
		}
		if to := destination(q, r, nil, c.port).String(); to != c.to {
			t.Errorf("%s goes to %s, want %s", c.name, to, c.to)
		}
	}
}

func TestDecide(t *testing.T) {
	us, other, mine, wrong := netip.MustParseAddr("10.77.0.1"), net.IP{10, 77, 0, 2}, net.IP{10, 77, 0, 50},
		net.IP{10, 99, 0, 50}
	req := func(ip net.IP) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ip)) }
	srv := func(ip net.IP) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ip)) }
	for _, c := range []struct {
		name string
		typ  dhcpv4.MessageType
		mods []dhcpv4.Modifier
		want dhcpv4.MessageType
		to   string // destination
	}{
		{"discover", dhcpv4.MessageTypeDiscover, nil, dhcpv4.MessageTypeOffer, "255.255.255.255:68"},
		{"selecting us", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{srv(us.AsSlice()), req(mine)},
			dhcpv4.MessageTypeAck, "255.255.255.255:68"},
		{"selecting another server", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{srv(other), req(mine)},
			dhcpv4.MessageTypeNone, ""},
		{"selecting the wrong address", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{srv(us.AsSlice()), req(wrong)},
			dhcpv4.MessageTypeNak, "255.255.255.255:68"},
		{"init-reboot", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{req(mine)}, dhcpv4.MessageTypeAck,
			"255.255.255.255:68"},
		{"init-reboot on another network", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{req(wrong)},
			dhcpv4.MessageTypeNak, "255.255.255.255:68"},
		{"renewing", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{dhcpv4.WithClientIP(mine)}, dhcpv4.MessageTypeAck,
			"10.77.0.50:68"},
		{"rebinding a wrong address", dhcpv4.MessageTypeRequest,
			[]dhcpv4.Modifier{dhcpv4.WithClientIP(wrong), dhcpv4.WithBroadcast(true)}, dhcpv4.MessageTypeNak,
			"255.255.255.255:68"},
		{"request of nothing", dhcpv4.MessageTypeRequest, nil, dhcpv4.MessageTypeNone, ""},
		{"inform", dhcpv4.MessageTypeInform, []dhcpv4.Modifier{dhcpv4.WithClientIP(mine)}, dhcpv4.MessageTypeAck,
			"10.77.0.50:68"},
		{"through a relay", dhcpv4.MessageTypeDiscover, []dhcpv4.Modifier{dhcpv4.WithGatewayIP(net.IP{10, 77, 0, 9})},
			dhcpv4.MessageTypeOffer, "10.77.0.9:67"},
		{"an offer of somebody else", dhcpv4.MessageTypeOffer, nil, dhcpv4.MessageTypeNone, ""},
	} {
		q, err := read(packet(t, c.typ, c.mods...))
		if err != nil {
			t.Fatal(err)
		}
		if got := q.decide(us, netip.MustParseAddr("10.77.0.50")); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
			continue
		}
		r, err := answer(q, admission{node: &node.Node{}, address: true}, netip.MustParseAddr("10.77.0.50"),
			conf(Leases))
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			if c.want != dhcpv4.MessageTypeNone {
				t.Errorf("%s: silence", c.name)
			}
			continue
		}
		if to := destination(q, r, nil, 67).String(); to != c.to {
			t.Errorf("%s goes to %s, want %s", c.name, to, c.to)
		}
		if c.want == dhcpv4.MessageTypeNak && (!r.YourIPAddr.IsUnspecified() || !r.IsBroadcast()) {
			t.Errorf("%s: a NAK with address %s, broadcast %v", c.name, r.YourIPAddr, r.IsBroadcast())
		}
		if c.name == "inform" && (!r.YourIPAddr.IsUnspecified() || r.Options.Has(dhcpv4.OptionIPAddressLeaseTime)) {
			t.Errorf("inform was answered with a lease")
		}
		if c.name == "renewing" && r.IPAddressLeaseTime(0) != time.Hour {
			t.Errorf("lease time %s", r.IPAddressLeaseTime(0))
		}
	}
}

func TestReadRefuses(t *testing.T) {
	reply := packet(t, dhcpv4.MessageTypeOffer)
	reply.OpCode = dhcpv4.OpcodeBootReply
	infiniband := packet(t, dhcpv4.MessageTypeDiscover)
	infiniband.HWType = iana.HWTypeInfiniband
	bootp := packet(t, dhcpv4.MessageTypeDiscover)
	bootp.DeleteOption(dhcpv4.OptionDHCPMessageType)
	for name, m := range map[string]*dhcpv4.DHCPv4{"reply": reply, "InfiniBand": infiniband, "BOOTP": bootp} {
		if _, err := read(m); err == nil {
			t.Errorf("read accepts %s", name)
		}
	}
}

func TestGUIDTexts(t *testing.T) {
	want := []string{"33221100-5544-7766-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"}
	if got := guidTexts(guidBytes[1:]); !slices.Equal(got, want) {
		t.Errorf("guidTexts = %v, want %v", got, want)
	}
	if got := guidTexts(make([]byte, 16)); got != nil {
		t.Errorf("guidTexts of zeros = %v, want nothing", got)
	}
	if got := spellings("00112233-4455-6677-8899-AABBCCDDEEFF"); len(got) != 2 || got[0] != want[1] ||
		got[1] != want[0] {
		t.Errorf("spellings = %v", got)
	}
	if got := spellings("not a uuid"); got != nil {
		t.Errorf("spellings of nonsense = %v", got)
	}
}

func TestPool(t *testing.T) {
	now := time.Now()
	ip := netip.MustParseAddr
	p, err := newPool(conf(Leases))
	if err != nil {
		t.Fatal(err)
	}
	pick := func(mac, want string, leases ...node.Lease) string {
		t.Helper()
		w := netip.Addr{}
		if want != "" {
			w = ip(want)
		}
		a, err := p.pick(mac, w, leases, now, nil)
		if err != nil {
			return err.Error()[:13]
		}
		return a.String()
	}
	a := node.Lease{MAC: "a", IP: "10.77.0.50", ExpiresAt: now.Add(time.Hour)}
	b := node.Lease{MAC: "b", IP: "10.77.0.51", ExpiresAt: now.Add(-time.Hour)}
	c := node.Lease{MAC: "c", IP: "10.77.0.52", ExpiresAt: now.Add(-time.Minute)}
	for _, x := range []struct {
		name, got, want string
	}{
		{"the first free one", pick("x", ""), "10.77.0.50"},
		{"the one it wants", pick("x", "10.77.0.52"), "10.77.0.52"},
		{"not one outside the range", pick("x", "10.77.0.9"), "10.77.0.50"},
		{"its own, though another is free", pick("b", "10.77.0.52", a, b), "10.77.0.51"},
		{"not a leased one", pick("x", "10.77.0.50", a), "10.77.0.51"},
		{"never had before expired", pick("x", "", a, b), "10.77.0.52"},
		{"the longest expired", pick("x", "", a, b, c), "10.77.0.51"},
		{"an own lease outside a changed range", pick("d", "", node.Lease{MAC: "d", IP: "10.77.0.99"}), "10.77.0.50"},
	} {
		if x.got != x.want {
			t.Errorf("%s: %s, want %s", x.name, x.got, x.want)
		}
	}
	full := []node.Lease{a, {MAC: "b", IP: "10.77.0.51", ExpiresAt: now.Add(time.Hour)},
		{MAC: "c", IP: "10.77.0.52", ExpiresAt: now.Add(time.Hour)}}
	if got := pick("x", "", full...); got != "all addresses" {
		t.Errorf("full: %s", got)
	}
	p.offered("x", ip("10.77.0.50"), now)
	if got := pick("y", "10.77.0.50"); got != "10.77.0.51" {
		t.Errorf("an offered address was given to another: %s", got)
	}
	if got := pick("x", ""); got != "10.77.0.50" {
		t.Errorf("the same machine asks again: %s", got)
	}
	p.decline(ip("10.77.0.50"), now)
	if got := pick("a", "", a); got != "10.77.0.51" {
		t.Errorf("a declined address was given again: %s", got)
	}
	now = now.Add(declineTime)
	if got := pick("a", "", node.Lease{MAC: "a", IP: "10.77.0.50"}); got != "10.77.0.50" {
		t.Errorf("after a while: %s", got)
	}

	for name, spoil := range map[string]func(*Config){
		"range outside": func(c *Config) { c.RangeEnd = ip("10.78.0.1") },
		"backwards":     func(c *Config) { c.RangeStart, c.RangeEnd = c.RangeEnd, c.RangeStart },
		"gateway":       func(c *Config) { c.Gateway = ip("192.0.2.1") },
		"lease time":    func(c *Config) { c.LeaseTime = time.Second },
	} {
		c := conf(Leases)
		spoil(&c)
		if _, err := newPool(c); err == nil {
			t.Errorf("%s: newPool accepts it", name)
		}
	}
	small := conf(Leases)
	small.RangeStart, small.RangeEnd, small.Prefix = ip("10.77.0.0"), ip("10.77.0.3"),
		netip.MustParsePrefix("10.77.0.1/30")
	if p, err = newPool(small); err != nil {
		t.Fatal(err)
	}
	if got := pick("x", ""); got != "10.77.0.2" {
		t.Errorf("in a /30 with the conductor at .1: %s, want .2", got)
	}
}

func FuzzAnswer(f *testing.F) {
	m, err := dhcpv4.New(
		append([]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithHwAddr(testMAC)},
			ipxePacket(iana.INTEL_X86PC)...)...)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.ToBytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := dhcpv4.FromBytes(b)
		if err != nil {
			return
		}
		q, err := read(m)
		if err != nil {
			return
		}
		adm := admission{node: &node.Node{}, address: true, boot: true}
		if r, err := answer(q, adm, netip.MustParseAddr("10.77.0.50"), conf(Leases)); err == nil && r != nil {
			r.ToBytes()
		}
		if r, err := answerProxy(q, adm, 67, conf(Proxy)); err == nil && r != nil {
			r.ToBytes()
		}
	})
}

func TestSolicitor(t *testing.T) {
	eui := net.ParseIP("fe80::5054:ff:fe12:3456")
	random := net.ParseIP("fe80::1234:5678:9abc:def0")
	head := []byte{133, 0, 0, 0, 0, 0, 0, 0}
	option := []byte{1, 1, 2, 0, 0, 0, 0, 9}
	other := []byte{14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range []struct {
		name string
		b    []byte
		from net.IP
		want string
	}{
		{"option", slices.Concat(head, option), random, "02:00:00:00:00:09"},
		{"behind another option", slices.Concat(head, other, option), random, "02:00:00:00:00:09"},
		{"address", head, eui, "52:54:00:12:34:56"},
		{"neither", head, random, ""},
		{"option of length zero", slices.Concat(head, []byte{1, 0, 1, 1, 1, 1, 1, 1}), random, ""},
		{"cut off", slices.Concat(head, option[:5]), eui, "52:54:00:12:34:56"},
		{"nothing", nil, random, ""},
	} {
		if got := solicitor(c.b, c.from); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
