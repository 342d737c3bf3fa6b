package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's IPMI interface: include/uapi/linux/ipmi.h.
const (
	ipmiSendCommand  = 0x8028690d // _IOR('i', 13, struct ipmi_req)
	ipmiReceiveTrunc = 0xc030690b // _IOWR('i', 11, struct ipmi_recv)
	ipmiSystemAddr   = 0x0c       // the BMC itself, on
	ipmiBMCChannel   = 0x0f       // this channel
	ipmiResponse     = 1          // a received message of this type answers a command
)

const (
	ipmiTimeout = 2 * time.Second // for one command
	ipmiAppears = 3 * time.Second // for /dev/ipmi0, while the driver is still initializing the BMC
)

type ipmiSystem struct {
	kind    int32
	channel int16
	_       [2]uint8 // LUN 0, and padding
}

type ipmiMsg struct {
	netFn, command uint8
	length         uint16
	_              uint32
	data           *byte
}

type ipmiReq struct {
	addr    *ipmiSystem
	addrLen uint32
	_       uint32
	id      int64
	msg     ipmiMsg
}

type ipmiRecv struct {
	kind    int32
	_       uint32
	addr    *ipmiSystem
	addrLen uint32
	_       uint32
	id      int64
	msg     ipmiMsg
}

// IPMI sends a command to the BMC through the kernel's driver (KCS and others) and returns the answer, completion code
// first. Without a BMC the error is os.ErrNotExist.
//
// u-root's package ipmi is not used: it passes the kernel the address of a stack variable, which may move, and waits
// ten seconds for each answer regardless of the caller's context.
func (Machine) IPMI(ctx context.Context, netFn, command byte, data []byte) ([]byte, error) {
	f, err := openIPMI(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the BMC: %w", err)
	}
	defer f.Close()
	fd := int(f.Fd())

	buf := make([]byte, max(len(data), 1))
	copy(buf, data)
	addr := &ipmiSystem{kind: ipmiSystemAddr, channel: ipmiBMCChannel}
	req := &ipmiReq{addr: addr, addrLen: uint32(unsafe.Sizeof(*addr)), id: 1,
		msg: ipmiMsg{netFn: netFn, command: command, length: uint16(len(data)), data: &buf[0]}}
	if err := ioctlPtr(fd, ipmiSendCommand, unsafe.Pointer(req)); err != nil {
		return nil, fmt.Errorf("send to the BMC: %w", err)
	}
	runtime.KeepAlive(req)
	runtime.KeepAlive(buf)

	deadline := time.Now().Add(ipmiTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	answer := make([]byte, 1024)
	for {
		ms := int(time.Until(deadline).Milliseconds())
		if ms <= 0 || ctx.Err() != nil {
			return nil, errors.New("the BMC does not answer")
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, min(ms, 200))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("wait for the BMC: %w", err)
		}
		if n <= 0 {
			continue
		}
		recv := &ipmiRecv{addr: &ipmiSystem{}, addrLen: uint32(unsafe.Sizeof(ipmiSystem{})),
			msg: ipmiMsg{length: uint16(len(answer)), data: &answer[0]}}
		if err := ioctlPtr(fd, ipmiReceiveTrunc, unsafe.Pointer(recv)); err != nil {
			return nil, fmt.Errorf("receive from the BMC: %w", err)
		}
		// This descriptor is not shared and has sent one command; other messages are events.
		if recv.kind == ipmiResponse && recv.id == 1 {
			return answer[:min(int(recv.msg.length), len(answer))], nil
		}
	}
}

func openIPMI(ctx context.Context) (*os.File, error) {
	const device, driver = "/dev/ipmi0", "/sys/bus/platform/drivers/ipmi_si"
	begin := time.Now()
	for {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
		bound, _ := os.ReadDir(driver)
		// Entries besides bind, unbind, uevent and module are devices of the driver.
		if len(bound) <= 4 || time.Since(begin) > ipmiAppears {
			return nil, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
