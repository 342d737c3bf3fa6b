package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// ListenFrames opens a raw socket on an interface: each Read returns one Ethernet frame of the type, with its header,
// including those to the multicast groups. Frames sent by this machine are left out. Close ends a waiting Read.
// errors.Is(err, os.ErrNotExist): the interface does not exist (any more).
func (Machine) ListenFrames(ifname string, etherType uint16, groups []net.HardwareAddr) (io.ReadCloser, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: %v", ifname, os.ErrNotExist, err)
	}
	// Without a protocol at first, or the socket would receive from all interfaces until bind.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: open a raw socket: %w", ifname, err)
	}
	f := os.NewFile(uintptr(fd), "frames of "+ifname)
	var wire [2]byte
	binary.BigEndian.PutUint16(wire[:], etherType)
	for _, g := range groups {
		req := &unix.PacketMreq{Ifindex: int32(i.Index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(g))}
		copy(req.Address[:], g)
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, req); err != nil {
			f.Close()
			return nil, fmt.Errorf("listen on %s for %s: %w", ifname, g, err)
		}
	}
	// A kernel older than 4.20 lacks this option; the reader then gets the machine's own frames.
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	if err := unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(wire[:]), Ifindex: i.Index}); err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on %s: %w", ifname, err)
	}
	return packets{f}, nil
}

// packets continues after the link goes down, which a packet socket reports once as an error.
type packets struct{ *os.File }

func (p packets) Read(b []byte) (int, error) {
	for {
		n, err := p.File.Read(b)
		if errors.Is(err, unix.ENETDOWN) {
			continue
		}
		return n, err
	}
}

// LinkFirmware returns the version of an interface's firmware; empty when unknown to its driver.
func (Machine) LinkFirmware(ifname string) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("ask about firmware: %w", err)
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, ifname)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("ask about firmware: %w", err)
	}
	if v := unix.ByteSliceToString(info.Fw_version[:]); v != "N/A" {
		return v, nil
	}
	return "", nil
}
