package agentv1

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
)

// maxAddress bounds the address of a conductor, in bytes: a host name has at most 253.
const maxAddress = 255

var (
	hostName = regexp.MustCompile(
		`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)
	zone = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,15}$`) // an interface's name
)

// MaxConductors bounds the conductors that an agent's boot parameters or a Welcome may name.
const MaxConductors = 8

// CheckAddress reports what is wrong with the HOST:PORT of a conductor's listener for agents: a name or IP address
// (IPv6 in brackets) that one machine can have, and a port other than 0.
func CheckAddress(hostport string) error {
	if len(hostport) > maxAddress {
		return fmt.Errorf("an address of %d bytes, more than the %d allowed", len(hostport), maxAddress)
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return fmt.Errorf("%q is not HOST:PORT", hostport)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q has no port between 1 and 65535", hostport)
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil && !hostName.MatchString(host), err == nil && !zone.MatchString(ip.Zone()):
		return fmt.Errorf("%q has neither a host name nor an IP address", hostport)
	case err == nil && (ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return fmt.Errorf("%q is no address of one machine", hostport)
	}
	return nil
}
