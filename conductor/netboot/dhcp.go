package netboot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// bootServerPort is the port of the boot server that a ProxyDHCP offer sends PXE clients to.
const bootServerPort = 4011

// Boot programs: what DHCP may offer. All of them are served over TFTP and below /loader/ over HTTP.
const (
	biosLoader = "undionly.kpxe"
	uefiLoader = "snponly.efi"
)

// Vendor classes that boot firmware sends in option 60.
const (
	classPXE   = "PXEClient"
	classHTTP  = "HTTPClient"
	classAgent = "ingot-agent" // sent by our own agent (agent/machine/netup)
)

const (
	optUUID      = dhcpv4.GenericOptionCode(97)  // RFC 4578: client machine identifier
	optEtherboot = dhcpv4.GenericOptionCode(175) // iPXE's own
)

var (
	// preferUs is iPXE's priority of an offer (suboption 1), a signed byte. Of offers with the same priority iPXE takes
	// the boot file of the server that leases the address, so that a ProxyDHCP offer needs a higher one to count beside
	// a server with a boot file of its own.
	preferUs = []byte{1, 1, 127}
	// noProxyDHCP makes iPXE not wait for a ProxyDHCP server: suboption 176, one byte, 1. It has no meaning in a
	// ProxyDHCP offer.
	noProxyDHCP = []byte{176, 1, 1}
	// bootThisFile is PXE_DISCOVERY_CONTROL (suboption 6) with bit 3: no discovery, boot the file that is named beside
	// it.
	bootThisFile = dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation, []byte{6, 1, 8, 255})
)

// firmware is the kind of program that sent a DHCP request.
type firmware int

const (
	plain    firmware = iota // an operating system, or the agent
	ipxe                     // wants a script
	biosPXE                  //
	uefiPXE                  //
	uefiHTTP                 // UEFI HTTP boot
	foreign                  // boots, but on an architecture that there is nothing for
)

// request holds the parts of a packet that the answer depends on.
type request struct {
	packet    *dhcpv4.DHCPv4
	typ       dhcpv4.MessageType
	mac       string
	guids     []string
	firmware  firmware
	arch      string
	requested netip.Addr // option 50
	client    netip.Addr // ciaddr
	relay     netip.Addr // giaddr
	server    netip.Addr // option 54
}

// read parses a packet. It returns an error for packets that must not be answered.
func read(m *dhcpv4.DHCPv4) (request, error) {
	q := request{packet: m, typ: m.MessageType(), requested: addr(m.RequestedIPAddress()), client: addr(m.ClientIPAddr),
		relay: addr(m.GatewayIPAddr), server: addr(m.ServerIdentifier())}
	if m.OpCode != dhcpv4.OpcodeBootRequest {
		return q, errors.New("not a request")
	}
	if m.HWType != iana.HWTypeEthernet || len(m.ClientHWAddr) != 6 {
		return q, fmt.Errorf("hardware type %s is not Ethernet", m.HWType)
	}
	if q.typ == dhcpv4.MessageTypeNone {
		return q, errors.New("BOOTP without DHCP")
	}
	q.mac = m.ClientHWAddr.String()
	if u := m.Options.Get(optUUID); len(u) == 17 && u[0] == 0 {
		q.guids = guidTexts(u[1:])
	}
	q.firmware, q.arch = who(m)
	return q, nil
}

// who identifies the firmware by its classes and architecture. iPXE names itself in the user class, in the form of RFC
// 3004 or, in old versions, without its length byte.
func who(m *dhcpv4.DHCPv4) (firmware, string) {
	class := m.ClassIdentifier()
	if strings.Contains(string(m.Options.Get(dhcpv4.OptionUserClassInformation)), "iPXE") {
		return ipxe, ""
	}
	http := strings.HasPrefix(class, classHTTP)
	if !http && !strings.HasPrefix(class, classPXE) {
		return plain, ""
	}
	archs := m.ClientArch()
	if len(archs) == 0 {
		archs = []iana.Arch{iana.INTEL_X86PC} // RFC 4578 is newer than some BIOSes
	}
	name := archs[0].String()
	has := func(a ...iana.Arch) bool {
		return slices.ContainsFunc(archs, func(x iana.Arch) bool { return slices.Contains(a, x) })
	}
	switch {
	case http && has(iana.EFI_X86_64_HTTP):
		return uefiHTTP, name
	case http:
		return foreign, name
	case has(iana.EFI_X86_64, iana.EFI_BC): // EDK2 sent 9 before the registry's erratum on 7
		return uefiPXE, name
	case has(iana.INTEL_X86PC):
		return biosPXE, name
	}
	return foreign, name
}

func addr(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// isSystem reports whether the request comes from an operating system other than the one that our agent runs in.
func (q request) isSystem() bool {
	switch q.typ {
	case dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform:
		return q.firmware == plain && q.packet.ClassIdentifier() != classAgent
	}
	return false
}

// want is the address that the machine has in mind.
func (q request) want() netip.Addr {
	if q.client.IsValid() {
		return q.client
	}
	return q.requested
}

// decide says which message answers a request when mine is the address that the machine may have (RFC 2131, section
// 4.3). None is silence.
func (q request) decide(us, mine netip.Addr) dhcpv4.MessageType {
	ackOrNak := func(a netip.Addr) dhcpv4.MessageType {
		if a == mine {
			return dhcpv4.MessageTypeAck
		}
		return dhcpv4.MessageTypeNak
	}
	switch q.typ {
	case dhcpv4.MessageTypeDiscover:
		return dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeInform:
		return dhcpv4.MessageTypeAck
	case dhcpv4.MessageTypeRequest:
		switch {
		case q.server.IsValid() && q.server != us:
			return dhcpv4.MessageTypeNone // it took another server's offer
		case q.server.IsValid(), !q.client.IsValid(): // SELECTING, INIT-REBOOT
			if !q.requested.IsValid() {
				return dhcpv4.MessageTypeNone
			}
			return ackOrNak(q.requested)
		default: // RENEWING, REBINDING
			return ackOrNak(q.client)
		}
	}
	return dhcpv4.MessageTypeNone
}

// bootFile returns the file that the machine is to load next; "" if it boots nothing, or if no file fits it.
func bootFile(q request, c Config) string {
	switch {
	case q.firmware == ipxe:
		return scriptURL(q, c)
	case c.LoaderDir == "":
	case q.firmware == biosPXE && c.TFTP:
		return biosLoader
	case q.firmware == uefiPXE && c.TFTP:
		return uefiLoader
	case q.firmware == uefiHTTP:
		return baseURL(c) + "/loader/" + uefiLoader
	}
	return ""
}

// Option is a DHCP option by the name that dnsmasq knows.
type Option struct{ Name, Value string }

// Options are the DHCP options by which the server of somebody else, such as Neutron's dnsmasq, has a machine boot from
// here: iPXE by TFTP, and iPXE its script by HTTP. Names and tags are those that Ironic gives Neutron.
func (s *Server) Options(mac string, uefi bool) (all []Option) {
	c := s.cfg
	loader := biosLoader
	if uefi {
		loader = uefiLoader
	}
	at := c.bootAddress().String()
	if c.TFTP && c.LoaderDir != "" {
		all = []Option{{"tag:!ipxe,67", loader}, {"66", at}, {"150", at}, {"server-ip-address", at}}
	}
	return append(all, Option{"tag:ipxe,67", scriptURL(request{mac: mac}, c)})
}

// scriptURL returns the URL of iPXE's script. In mode server the leased address identifies the machine; in the other
// modes the URL has to.
func scriptURL(q request, c Config) string {
	u := baseURL(c) + "/boot.ipxe"
	if c.Mode == Leases {
		return u
	}
	v := url.Values{"mac": {q.mac}}
	if len(q.guids) > 0 {
		v.Set("uuid", q.guids[0])
	}
	return u + "?" + v.Encode()
}

// answer makes the reply of mode server: mine is the address that the machine gets, a its admission. Nil: no reply.
func answer(q request, a admission, mine netip.Addr, c Config) (*dhcpv4.DHCPv4, error) {
	typ := q.decide(c.Address, mine)
	if typ == dhcpv4.MessageTypeNone || !a.address {
		return nil, nil
	}
	us := net.IP(c.Address.AsSlice())
	mods := []dhcpv4.Modifier{dhcpv4.WithMessageType(typ), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(us))}
	if typ == dhcpv4.MessageTypeNak {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptMessage("this address is not yours")))
		r, err := dhcpv4.NewReplyFromRequest(q.packet, mods...)
		if err != nil {
			return nil, err
		}
		r.SetBroadcast() // RFC 2131, 4.3.2: its address may be wrong, so unicast would not reach it
		return r, nil
	}
	if q.typ != dhcpv4.MessageTypeInform {
		mods = append(mods, dhcpv4.WithYourIP(mine.AsSlice()),
			dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(c.LeaseTime)),
			dhcpv4.WithOption(dhcpv4.OptRenewTimeValue((c.LeaseTime / 2).Truncate(time.Second))),
			dhcpv4.WithOption(dhcpv4.OptRebindingTimeValue((c.LeaseTime * 7 / 8).Truncate(time.Second))))
	}
	mods = append(mods, dhcpv4.WithNetmask(net.CIDRMask(c.Prefix.Bits(), 32)),
		dhcpv4.WithOption(dhcpv4.OptBroadcastAddress(broadcast(c.Prefix).AsSlice())))
	if c.Gateway.IsValid() {
		mods = append(mods, dhcpv4.WithRouter(c.Gateway.AsSlice()))
	}
	if len(c.DNS) > 0 {
		var ips []net.IP
		for _, d := range c.DNS {
			ips = append(ips, d.AsSlice())
		}
		mods = append(mods, dhcpv4.WithDNS(ips...))
	}
	file := a.offered(q, c)
	if file != "" {
		switch q.firmware {
		case ipxe:
			mods = append(mods,
				dhcpv4.WithOption(dhcpv4.OptGeneric(optEtherboot, slices.Concat(noProxyDHCP, preferUs))))
		case uefiHTTP:
			mods = append(mods, dhcpv4.WithOption(dhcpv4.OptClassIdentifier(classHTTP)))
		}
	}
	if a.sentToDisk(q) {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptClassIdentifier(classPXE)), dhcpv4.WithOption(localBoot))
	}
	return withFile(q, file, c.bootAddress().AsSlice(), mods)
}

// answerProxy makes the reply of mode proxy: no address, only what to boot. port is the one that the packet came in on.
func answerProxy(q request, a admission, port int, c Config) (*dhcpv4.DHCPv4, error) {
	file := a.offered(q, c)
	if file == "" && !a.sentToDisk(q) {
		return nil, nil
	}
	if q.relay.IsValid() && (q.firmware == biosPXE || q.firmware == uefiPXE) && file != "" {
		file = namedFile(q.mac, file) // it comes from another network, so that its MAC is not seen when it fetches that
	}
	var typ dhcpv4.MessageType
	switch {
	case port == dhcpv4.ServerPort && q.typ == dhcpv4.MessageTypeDiscover:
		typ = dhcpv4.MessageTypeOffer
	case port == bootServerPort && (q.typ == dhcpv4.MessageTypeRequest || q.typ == dhcpv4.MessageTypeInform):
		typ = dhcpv4.MessageTypeAck
	default:
		return nil, nil // requests on port 67 are for the server that leases addresses
	}
	us := net.IP(c.Address.AsSlice())
	class := classPXE
	if q.firmware == uefiHTTP {
		class = classHTTP
	}
	mods := []dhcpv4.Modifier{dhcpv4.WithMessageType(typ), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(us)),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)), dhcpv4.WithOptionCopied(q.packet, optUUID)}
	switch {
	case a.sentToDisk(q):
		mods = append(mods, dhcpv4.WithOption(localBoot))
	case class == classPXE:
		mods = append(mods, dhcpv4.WithOption(bootThisFile))
	}
	if q.firmware == ipxe {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptGeneric(optEtherboot, preferUs)))
	}
	r, err := withFile(q, file, c.bootAddress().AsSlice(), mods)
	if r != nil {
		r.YourIPAddr = net.IPv4zero
		if q.client.IsValid() {
			r.ClientIPAddr = q.packet.ClientIPAddr
		} else {
			// No address exists to which a relay could send this by unicast (RFC 2131, section 4.1), whatever the
			// machine requested.
			r.SetBroadcast()
		}
	}
	return r, err
}

// withFile finishes a reply whose file is to be fetched from an address. The boot file goes into the header, where
// firmware of all ages looks, and into option 67, where it may be longer; a URL that does not fit the header's 128
// bytes goes into the option alone.
func withFile(q request, file string, from net.IP, mods []dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	if file != "" {
		mods = append(mods, dhcpv4.WithServerIP(from), dhcpv4.WithOption(dhcpv4.OptBootFileName(file)))
		if !strings.Contains(file, "://") {
			mods = append(mods, dhcpv4.WithOption(dhcpv4.OptTFTPServerName(from.String())))
		}
	}
	r, err := dhcpv4.NewReplyFromRequest(q.packet, mods...)
	if err != nil {
		return nil, fmt.Errorf("answer DHCP request of %s: %w", q.mac, err)
	}
	if q.typ == dhcpv4.MessageTypeInform || q.client.IsValid() {
		r.ClientIPAddr = q.packet.ClientIPAddr
	}
	if len(file) < 128 {
		r.BootFileName = file
	}
	return r, nil
}

// destination returns where a reply goes (RFC 2131, section 4.1). A machine without an address is reached by broadcast
// whatever it requested: a unicast frame would need an entry in the neighbour table first.
func destination(q request, r *dhcpv4.DHCPv4, from *net.UDPAddr, port int) *net.UDPAddr {
	switch {
	case q.relay.IsValid():
		return &net.UDPAddr{IP: q.packet.GatewayIPAddr, Port: dhcpv4.ServerPort}
	case port == bootServerPort && from != nil && !from.IP.IsUnspecified():
		return from // the client's port is its own choice here
	case r.MessageType() != dhcpv4.MessageTypeNak && q.client.IsValid():
		return &net.UDPAddr{IP: q.packet.ClientIPAddr, Port: dhcpv4.ClientPort}
	}
	return &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}
}

// guidTexts turns option 97's 16 bytes into text in both byte orders that firmware uses; none for GUIDs that vendors
// forgot to set.
func guidTexts(b []byte) []string {
	if len(b) != 16 {
		return nil
	}
	same := true
	for _, x := range b {
		same = same && x == b[0]
	}
	if same { // all zeros, all ones
		return nil
	}
	text := func(b []byte) string {
		return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	}
	swapped := append([]byte(nil), b...)
	binary.LittleEndian.PutUint32(swapped, binary.BigEndian.Uint32(b))
	binary.LittleEndian.PutUint16(swapped[4:], binary.BigEndian.Uint16(b[4:]))
	binary.LittleEndian.PutUint16(swapped[6:], binary.BigEndian.Uint16(b[6:]))
	return []string{text(b), text(swapped)}
}

// parseMAC reads an Ethernet address in any of the usual notations.
func parseMAC(s string) (string, bool) {
	m, err := net.ParseMAC(strings.TrimSpace(s))
	if err != nil || len(m) != 6 {
		return "", false
	}
	return m.String(), true
}
