package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory allocates size bytes from the kernel, outside of Go's heap, touches all of them, and locks them if allowed.
func (Machine) Memory(ctx context.Context, size int64) (interface {
	Words() []uint64
	Locked() bool
	Physical(offset int64) (uint64, bool)
	Close() error
}, error) {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map memory: %w", err)
	}
	r := &region{b: b, locked: true}
	const piece = 256 << 20 // small enough to be stopped in between
	for at := 0; at < len(b) && r.locked; at += piece {
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), r.Close())
		}
		r.locked = unix.Mlock(b[at:min(at+piece, len(b))]) == nil
	}
	return r, nil
}

type region struct {
	b      []byte
	locked bool
}

// Words returns the region; the mapping is aligned to pages.
func (r *region) Words() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(r.b))), len(r.b)/8)
}

func (r *region) Locked() bool { return r.locked }

// Physical returns the physical address of a byte. Only root can read it.
func (r *region) Physical(offset int64) (uint64, bool) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	page := int64(os.Getpagesize())
	addr := int64(uintptr(unsafe.Pointer(unsafe.SliceData(r.b)))) + offset
	var e [8]byte
	if _, err := f.ReadAt(e[:], addr/page*8); err != nil {
		return 0, false
	}
	// Bit 63: present; bits 0 to 54: the page frame, zero without permission.
	v := binary.NativeEndian.Uint64(e[:])
	frame := v & (1<<55 - 1)
	return frame*uint64(page) + uint64(addr%page), v>>63 == 1 && frame != 0
}

func (r *region) Close() error {
	if r.b == nil {
		return nil
	}
	b := r.b
	r.b = nil
	if err := unix.Munmap(b); err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	return nil
}
