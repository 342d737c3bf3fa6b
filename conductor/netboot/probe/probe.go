// Package probe finds out which DHCP servers and boot servers answer on a network, and says whether that fits the
// conductor's mode.
//
// Find broadcasts a DHCPDISCOVER as UEFI firmware does and collects the offers. It takes none of them, so no address is
// leased. The machine that it plays has always the same MAC, made from the interface's own, so that no server keeps
// more than one address for it. The packet goes through the kernel, which loops a broadcast back: servers on this host
// hear it as well. What comes back may be made up: it is counted, cut and cleaned. A server that answers only machines
// that it knows is not found.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/netboot/rawudp"
)

// Wait is how long offers are collected. Servers look with a ping of one to three seconds whether an address is free
// before they offer it.
const Wait = 6 * time.Second

// userClass marks the packet as a conductor's probe, for other conductors. Its length comes first (RFC 3004).
const userClass = "\x0bingot-probe"

// Is reports whether a packet is the probe of a conductor.
func Is(m *dhcpv4.DHCPv4) bool {
	return string(m.Options.Get(dhcpv4.OptionUserClassInformation)) == userClass
}

// Server is one that answered.
type Server struct {
	ID    netip.Addr // by which it calls itself
	From  netip.Addr // where its answer came from: a relay's address may be another
	Gives bool       // addresses
	PXE   bool       // it says that it is a boot server
	File  string     // to boot; clean
	Next  string     // the name or address of the host that has the file; clean
}

// Find probes the network of an interface, from an address of this host there. More reports that more servers answered
// than are returned.
func Find(ctx context.Context, ifname string, from netip.Addr,
	wait time.Duration) (found []Server, more bool, err error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, false, fmt.Errorf("interface %s: %w", ifname, err)
	}
	m, err := discover(i.HardwareAddr)
	if err != nil {
		return nil, false, err
	}
	in, err := rawudp.Listen(ifname, dhcpv4.ClientPort, true)
	if err != nil {
		return nil, false, err
	}
	defer in.Close()
	out, err := rawudp.NewSender(ifname, from)
	if err != nil {
		return nil, false, err
	}
	defer out.Close()
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()

	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), dhcpv4.ServerPort)
	end := time.Now().Add(wait)
	sum := summary{}
	for n, left := 0, limit.ProbeAnswers; n < 2; n++ { // twice, because a packet may be lost
		if err := out.Send(m.ToBytes(), dhcpv4.ClientPort, to); err != nil {
			return nil, false, fmt.Errorf("send a DHCPDISCOVER on %s: %w", ifname, err)
		}
		until := end
		if n == 0 {
			until = time.Now().Add(wait / 3)
		}
		if err := in.SetDeadline(until); err != nil {
			return nil, false, err
		}
		for ; left > 0; left-- {
			p, err := in.Receive()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, false, errors.Join(ctx.Err(), fmt.Errorf("receive DHCP offers on %s: %w", ifname, err))
			}
			if s, ok := read(p.Payload, p.From.Addr(), m); ok {
				sum.add(s)
			}
		}
	}
	return sum.servers(), sum.more, nil
}

// discover makes the question. Its MAC is the interface's with the bit of locally administered addresses, or without
// it.
func discover(own net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	if len(own) != 6 {
		return nil, errors.New("only an Ethernet interface has machines to boot")
	}
	mac := slices.Clone(own)
	if mac[0] ^= 2; mac[0]&2 == 0 {
		mac[0] ^= 6 // it was local already: another local one
	}
	return dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithHwAddr(mac),
		dhcpv4.WithBroadcast(true), // no host has this MAC: an answer sent to it alone would not arrive
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(fmt.Sprintf("PXEClient:Arch:%05d:UNDI:003016", iana.EFI_BC))),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_BC)),
		dhcpv4.WithGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 3, 16}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, append(make([]byte, 11), mac...)),
		dhcpv4.WithGeneric(dhcpv4.OptionUserClassInformation, []byte(userClass)),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1472)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter,
			dhcpv4.OptionVendorSpecificInformation, dhcpv4.OptionServerIdentifier, dhcpv4.OptionClassIdentifier,
			dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName))
}

// read takes an answer to a question apart.
func read(b []byte, from netip.Addr, asked *dhcpv4.DHCPv4) (Server, bool) {
	m, err := dhcpv4.FromBytes(b)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != asked.TransactionID ||
		m.ClientHWAddr.String() != asked.ClientHWAddr.String() || m.MessageType() != dhcpv4.MessageTypeOffer {
		return Server{}, false
	}
	s := Server{ID: addr(m.ServerIdentifier()), From: from, Gives: addr(m.YourIPAddr).IsValid(),
		File: text(m.BootFileNameOption())}
	if !s.ID.IsValid() {
		s.ID = from
	}
	class := m.ClassIdentifier()
	s.PXE = strings.HasPrefix(class, "PXEClient") || strings.HasPrefix(class, "HTTPClient")
	s.File = cmp.Or(s.File, text(m.BootFileName))
	if s.Next = text(m.TFTPServerName()); s.Next == "" {
		if a := addr(m.ServerIPAddr); a.IsValid() {
			s.Next = a.String()
		}
	}
	if u, err := url.Parse(s.File); err == nil && u.Host != "" {
		s.Next = text(u.Hostname())
	}
	return s, s.Gives || s.PXE || s.File != ""
}

func addr(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

func text(s string) string {
	s, _, _ = strings.Cut(s, "\x00")
	return clean.Line(s, limit.ProbeText)
}

// summary collects servers. One that leases addresses and one that only boots are two, even on one host.
type summary struct {
	by   map[key]Server
	more bool
}

type key struct {
	id    netip.Addr
	gives bool
}

func (s *summary) add(one Server) {
	k := key{one.ID, one.Gives}
	if _, known := s.by[k]; !known && len(s.by) >= limit.ProbeServers {
		s.more = true
		return
	}
	if s.by == nil {
		s.by = map[key]Server{}
	}
	s.by[k] = one
}

func (s *summary) servers() []Server {
	return slices.SortedFunc(maps.Values(s.by), func(a, b Server) int {
		if c := a.ID.Compare(b.ID); c != 0 || a.Gives == b.Gives {
			return c
		}
		if a.Gives {
			return -1
		}
		return 1
	})
}
