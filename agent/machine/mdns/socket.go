package mdns

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// leave has what a socket sends to groups leave by the interface of an address.
func leave(conn *net.UDPConn, from net.IP) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInet4Addr(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, [4]byte(from.To4()))
	})
	return errors.Join(err, set)
}
