package linux

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Segments returns the number of segments sent on a connection, and of retransmitted ones.
func (Machine) Segments(c *net.TCPConn) (sent, again int64, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("ask about a connection: %w", err)
	}
	var info *unix.TCPInfo
	var ierr error
	if err := raw.Control(func(fd uintptr) {
		info, ierr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		ierr = err
	}
	if ierr != nil {
		return 0, 0, fmt.Errorf("ask about a connection: %w", ierr)
	}
	return int64(info.Segs_out), int64(info.Total_retrans), nil
}
