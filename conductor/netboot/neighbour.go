package netboot

import (
	"context"
	"crypto/subtle"
	"net"
	"net/netip"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/node"
)

// The owner of a fetch. An address proves little: it may have been another machine's a minute ago. So a fetch over TFTP
// or HTTP counts as a node's only by the content of the request (a boot script's URLs hold a key of the boot), or by
// the MAC in the kernel's neighbour table. That one is looked up when data has just gone to the machine and come back,
// so it is current. Machines behind a router have none; of those only the request's content counts.

// maxMachines bounds the number of remembered MACs that are no ports.
const maxMachines = 10_000

// client is the node whose machine has an address now, or nil when that is not known.
func (s *Server) client(ctx context.Context, ip netip.Addr) *node.Node {
	if mac := s.neighbour(ip); mac != "" {
		return s.nodeOf(ctx, mac)
	}
	return nil
}

// nodeOf is the node that a MAC is a port of, or that a machine without a port was recognised as when it asked to boot;
// nil when there is none.
func (s *Server) nodeOf(ctx context.Context, mac string) *node.Node {
	s.mu.Lock()
	uuid := s.machines[mac]
	s.mu.Unlock()
	if p, err := s.store.PortByMAC(ctx, mac); err == nil {
		uuid = p.NodeUUID
	}
	if uuid == "" {
		return nil
	}
	n, err := s.store.Node(ctx, uuid)
	if err != nil {
		return nil
	}
	return n
}

// recognised remembers as which node's a machine was recognised.
func (s *Server) recognised(mac string, n *node.Node) {
	if n.UUID == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.machines) >= maxMachines {
		clear(s.machines)
	}
	s.machines[mac] = n.UUID
}

// bootKeyLen is how much of a token's hash names a boot: too much to guess, and too little to be of use for anything
// else.
const bootKeyLen = 16

// bootKey identifies a node's boot in the URLs of a boot script.
func bootKey(nodeUUID, tokenHash string) string { return nodeUUID + "." + tokenHash[:bootKeyLen] }

// nodeOfKey is the node whose newest boot script has a key; nil when none has.
func (s *Server) nodeOfKey(ctx context.Context, key string) *node.Node {
	uuid, _, _ := strings.Cut(key, ".")
	if len(uuid) != 36 { // the store would take a node's name as well
		return nil
	}
	n, err := s.store.Node(ctx, uuid)
	if err != nil || n.Boot == nil || len(n.Boot.TokenHash) < bootKeyLen || subtle.ConstantTimeCompare([]byte(key),
		[]byte(bootKey(n.UUID, n.Boot.TokenHash))) != 1 {
		return nil
	}
	return n
}

// arpRequest is struct arpreq of linux/if_arp.h.
type arpRequest struct {
	protocol unix.RawSockaddrInet4
	hardware unix.RawSockaddr
	flags    int32
	netmask  unix.RawSockaddr
	device   [16]byte
}

// kernelNeighbour is the MAC at which the kernel reaches an address on the provisioning network; "" when it does not
// know one.
func (s *Server) kernelNeighbour(ip netip.Addr) string {
	name := s.link()
	if !ip.Is4() || name == "" {
		return ""
	}
	r := arpRequest{protocol: unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: ip.As4()}}
	if len(name) >= len(r.device) {
		return ""
	}
	copy(r.device[:], name)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.short(err)
		return ""
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGARP,
		uintptr(unsafe.Pointer(&r))); errno != 0 {
		return ""
	}
	const complete = 2 // ATF_COM
	if r.flags&complete == 0 || r.hardware.Family != unix.ARPHRD_ETHER {
		return ""
	}
	mac := make(net.HardwareAddr, 6)
	for i := range mac {
		mac[i] = byte(r.hardware.Data[i])
	}
	return mac.String()
}

// linkOf is the interface that has an address; "" when none has.
func linkOf(a netip.Addr) string {
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, ifi := range all {
		if _, err := prefixOf(ifi.Name, a); err == nil {
			return ifi.Name
		}
	}
	return ""
}
