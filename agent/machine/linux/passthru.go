package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nvmeAdminCmd is struct nvme_passthru_cmd of include/uapi/linux/nvme_ioctl.h.
type nvmeAdminCmd struct {
	opcode, flags uint8
	_             uint16
	nsid          uint32
	_             [2]uint32 // command double words 2 and 3
	_             uint64    // metadata
	addr          uint64
	_             uint32 // length of metadata
	dataLen       uint32
	cdw10         [6]uint32
	timeoutMs     uint32
	result        uint32
}

const nvmeIoctlAdminCmd = 0xc0484e41 // _IOWR('N', 0x41, struct nvme_admin_cmd)

// NVMeAdmin sends an admin command to the controller of a namespace's block device. cdw holds command double words 10
// to 15; the direction of the data is in the opcode's last two bits. status is the device's, err means that the device
// was not reached. A command that outlives ctx continues in the device; its result is lost.
func (Machine) NVMeAdmin(ctx context.Context, device string, opcode uint8, nsid uint32, cdw [6]uint32, data []byte,
	timeout time.Duration) (result uint32, status uint16, err error) {
	buf := aligned(max(len(data), 1))[:len(data)]
	copy(buf, data)
	var cmd *nvmeAdminCmd
	err = passthru(ctx, device, func(fd uintptr) error {
		var pin runtime.Pinner
		defer pin.Unpin()
		cmd = &nvmeAdminCmd{opcode: opcode, nsid: nsid, cdw10: cdw, dataLen: uint32(len(buf)),
			timeoutMs: milliseconds(timeout)}
		if len(buf) > 0 {
			pin.Pin(&buf[0])
			cmd.addr = uint64(uintptr(unsafe.Pointer(&buf[0])))
		}
		r, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, nvmeIoctlAdminCmd, uintptr(unsafe.Pointer(cmd)))
		if errno != 0 {
			return errno
		}
		status = uint16(r)
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("send NVMe admin command 0x%02x to %s: %w", opcode, device, err)
	}
	copy(data, buf)
	return cmd.result, status, nil
}

// sgIOHeader is struct sg_io_hdr of include/scsi/sg.h.
type sgIOHeader struct {
	interfaceID, direction int32
	cmdLen, senseMax       uint8
	_                      uint16
	dataLen                uint32
	data, cmd, sense       *byte
	timeoutMs, flags       uint32
	_                      int32
	_                      *byte
	status, _, _, senseLen uint8
	hostStatus, drvStatus  uint16
	residual               int32
	_                      [2]uint32
}

const (
	sgIO         = 0x2285
	sgNone       = -1
	sgToDevice   = -2
	sgFromDevice = -3
)

// SCSI sends a command to a SCSI or SATA disk; out means that data goes to it. status and sense are the device's, n is
// the number of bytes moved, err means that the device was not reached. A command that outlives ctx continues in the
// device.
func (Machine) SCSI(ctx context.Context, device string, cdb []byte, out bool, data []byte,
	timeout time.Duration) (status uint8, sense []byte, n int, err error) {
	if len(cdb) == 0 || len(cdb) > 16 {
		return 0, nil, 0, fmt.Errorf("a SCSI command of %d bytes", len(cdb))
	}
	buf := aligned(max(len(data), 1))[:len(data)]
	copy(buf, data)
	cmd, sb := append([]byte(nil), cdb...), make([]byte, 252)
	var h *sgIOHeader
	err = passthru(ctx, device, func(fd uintptr) error {
		h = &sgIOHeader{interfaceID: 'S', direction: sgNone, cmdLen: uint8(len(cmd)), cmd: &cmd[0],
			senseMax: uint8(len(sb)), sense: &sb[0], timeoutMs: milliseconds(timeout)}
		if len(buf) > 0 {
			h.data, h.dataLen, h.direction = &buf[0], uint32(len(buf)), sgFromDevice
			if out {
				h.direction = sgToDevice
			}
		}
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, sgIO, uintptr(unsafe.Pointer(h)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err == nil && h.hostStatus != 0 {
		err = fmt.Errorf("the controller says 0x%02x: %w", h.hostStatus, unix.EIO)
	}
	if err != nil {
		return 0, nil, 0, fmt.Errorf("send SCSI command 0x%02x to %s: %w", cdb[0], device, err)
	}
	copy(data, buf)
	return h.status, sb[:min(int(h.senseLen), len(sb))], max(0, len(buf)-int(h.residual)), nil
}

// passthru runs an ioctl, which can't be interrupted and may take hours, in a goroutine; the caller stops waiting when
// ctx ends.
func passthru(ctx context.Context, device string, ioctl func(fd uintptr) error) error {
	// Root needs only read access, and closing then does not trigger a scan of the disk.
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer f.Close()
		err := ioctl(f.Fd())
		if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func milliseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 1), 1<<31-1))
}
