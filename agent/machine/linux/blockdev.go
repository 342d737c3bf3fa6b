package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is an open disk. It is an alias of the same interface that package disk declares, so that neither needs the
// other.
//
// Offsets and lengths are whole logical sectors. Any buffer works: those unsuitable for direct I/O go through a bounce
// buffer, so for speed pass memory aligned to 4096 bytes.
type Device = interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	SectorSize() int
	Number() (major, minor uint32)
	Punch(off, n int64) error
	Sync() error
	RereadPartitions() error
	Close() error
}

const (
	memAlign   = 4096
	bounceSize = 1 << 20
)

// ErrNoDisk is the error for a directory or a character device.
var ErrNoDisk = errors.New("neither a block device nor a plain file")

// OpenExclusive opens a block device, or a plain file, for reading and writing. A block device can't be opened
// exclusively or mounted by others meanwhile (O_EXCL; EBUSY if it already is), and reads and writes bypass the page
// cache. On a plain file O_EXCL has no meaning without O_CREAT, so a whole-file lock replaces it.
func OpenExclusive(ctx context.Context, path string) (Device, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return openBlock(path)
	case unix.S_IFREG:
		return openFile(path)
	}
	return nil, fmt.Errorf("open %s: %w", path, ErrNoDisk)
}

func openBlock(path string) (Device, error) {
	fd, err := openRetry(path, unix.O_RDWR|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open exclusively", Path: path, Err: err}
	}
	d := &device{f: os.NewFile(uintptr(fd), path), path: path, block: true, direct: true}
	if err := d.measure(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func openFile(path string) (Device, error) {
	d := &device{path: path, direct: true, sector: 512}
	fd, err := openRetry(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC)
	if errors.Is(err, unix.EINVAL) { // tmpfs and others without direct I/O
		d.direct = false
		fd, err = openRetry(path, unix.O_RDWR|unix.O_CLOEXEC)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	d.f = os.NewFile(uintptr(fd), path)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = unix.EBUSY
		}
		return nil, errors.Join(&os.PathError{Op: "open exclusively", Path: path, Err: err}, d.f.Close())
	}
	st, err := d.f.Stat()
	if err != nil {
		return nil, errors.Join(err, d.f.Close())
	}
	d.size = st.Size() - st.Size()%int64(d.sector)
	return d, nil
}

func openRetry(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

type device struct {
	f      *os.File
	path   string
	block  bool
	direct bool
	size   int64
	sector int
	major  uint32
	minor  uint32
}

// ReadOnly reports whether a device is write-protected. Not all drivers refuse to open it then, which is right for
// readers.
func (d *device) ReadOnly() (bool, error) {
	if !d.block {
		return false, nil
	}
	var ro int32
	if err := ioctlPtr(int(d.f.Fd()), unix.BLKROGET, unsafe.Pointer(&ro)); err != nil {
		return false, &os.PathError{Op: "read write protection of", Path: d.path, Err: err}
	}
	return ro != 0, nil
}

func (d *device) measure() error {
	fd := int(d.f.Fd())
	sector, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return &os.PathError{Op: "read sector size of", Path: d.path, Err: err}
	}
	var size uint64
	if err := ioctlPtr(fd, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return &os.PathError{Op: "read size of", Path: d.path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: d.path, Err: err}
	}
	d.sector, d.size = sector, int64(size)
	d.major, d.minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	return nil
}

func (d *device) Size() int64              { return d.size }
func (d *device) SectorSize() int          { return d.sector }
func (d *device) Number() (uint32, uint32) { return d.major, d.minor }
func (d *device) Sync() error              { return d.f.Sync() }
func (d *device) Close() error             { return d.f.Close() }

func (d *device) ReadAt(p []byte, off int64) (int, error) {
	if !d.bounce(p) {
		return d.f.ReadAt(p, off)
	}
	return d.through(p, off, func(b []byte, off int64, p []byte) (int, error) {
		n, err := d.f.ReadAt(b, off)
		copy(p, b[:n])
		return n, err
	})
}

func (d *device) WriteAt(p []byte, off int64) (int, error) {
	// A write past the end would make a plain file grow, unlike a disk.
	if off < 0 || off+int64(len(p)) > d.size {
		return 0, &os.PathError{Op: "write past the end of", Path: d.path, Err: unix.ENOSPC}
	}
	if !d.bounce(p) {
		return d.f.WriteAt(p, off)
	}
	return d.through(p, off, func(b []byte, off int64, p []byte) (int, error) {
		copy(b, p)
		return d.f.WriteAt(b, off)
	})
}

func (d *device) bounce(p []byte) bool {
	return d.direct && len(p) > 0 && uintptr(unsafe.Pointer(&p[0]))%memAlign != 0
}

// through transfers p in pieces through aligned memory.
func (d *device) through(p []byte, off int64, move func(b []byte, off int64, p []byte) (int, error)) (int, error) {
	buf := bounces.Get().(*[]byte)
	defer bounces.Put(buf)
	done := 0
	for done < len(p) {
		part := p[done:min(done+bounceSize, len(p))]
		n, err := move((*buf)[:len(part)], off+int64(done), part)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

var bounces = sync.Pool{New: func() any { b := aligned(bounceSize); return &b }}

func aligned(n int) []byte {
	b := make([]byte, n+memAlign)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) % memAlign)
	return b[skip : skip+n : skip+n]
}

// Punch makes a range read as zero. On a block device PUNCH_HOLE becomes a write-zeroes request that the kernel may not
// replace by writing: either the device promises zeros or the call fails, and it is never slow. (BLKZEROOUT falls back
// silently, BLKDISCARD promises nothing.)
func (d *device) Punch(off, n int64) error {
	return d.release("punch a hole into", unix.ENODEV, func() error {
		return unix.Fallocate(int(d.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
}

// release makes a call that a signal may interrupt and that a device need not support; lacking is then its
// error, besides EOPNOTSUPP. For other calls the same number can be a fault: a device that is gone.
func (d *device) release(what string, lacking unix.Errno, call func() error) error {
	for {
		err := call()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil:
			return nil
		case errors.Is(err, errors.ErrUnsupported), errors.Is(err, lacking):
			return fmt.Errorf("%s %s: %w", what, d.path, errors.ErrUnsupported)
		}
		return &os.PathError{Op: what, Path: d.path, Err: err}
	}
}

// Discard discards a range of a block device. Its content afterwards is undefined. (On a plain file it is a hole.)
func (d *device) Discard(off, n int64) error {
	if !d.block {
		return d.Punch(off, n)
	}
	span := [2]uint64{uint64(off), uint64(n)}
	return d.release("discard blocks of", unix.ENOTTY, func() error {
		return ioctlPtr(int(d.f.Fd()), unix.BLKDISCARD, unsafe.Pointer(&span))
	})
}

// RereadPartitions makes the kernel read the partition table again.
func (d *device) RereadPartitions() error {
	if !d.block {
		return nil
	}
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, d.f.Fd(), unix.BLKRRPART, 0)
	// EINVAL: a device that can't have partitions (a loop device without partition scan), which is not an error.
	if errno == 0 || errno == unix.EINVAL {
		return nil
	}
	return &os.PathError{Op: "re-read the partition table of", Path: d.path, Err: errno}
}

func ioctlPtr(fd int, req uint, p unsafe.Pointer) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(p))
	if errno != 0 {
		return errno
	}
	return nil
}
