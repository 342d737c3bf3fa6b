package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// device is a block device that is measured: a loop device with direct I/O over a file that is allocated, or over a
// file of a file system of our own, which lets data through at a given speed and counts it.
type device struct {
	path    string // /dev/loopN
	backing string // the file that holds the bytes
	size    int64
	counter string // file with the number of bytes that were written; empty: not counted

	throttle *throttle // of its writers; nil: unlimited

	end []func() error
}

// fastDevice makes a device that gives several GB/s and not only takes them, in memory: a virtual disk that is written
// at such a speed is seldom read at it. dir is where it goes when there is to be none in memory.
func (b *bench) fastDevice(ctx context.Context, dir string, size int64) (*device, error) {
	if b.ram == "" {
		return newDevice(ctx, dir, size, 0)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(b.ram, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", b.ram, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < size+size/4 {
		return nil, fmt.Errorf(
			"the fast device takes %d MiB of memory, and %s has room for %d: make the image smaller (-size), or put the device on a disk (-ram '')", size/mib, b.ram, free/mib)
	}
	ram, err := os.MkdirTemp(b.ram, "ingot-bench")
	if err != nil {
		return nil, err
	}
	d, err := newDevice(ctx, ram, size, 0)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(ram))
	}
	d.end = append([]func() error{func() error { return os.Remove(ram) }}, d.end...)
	return d, nil
}

// inMemory reports whether files in dir are in memory, where direct I/O is impossible.
func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// newDevice makes one. A rate of 0 is as fast as it goes.
func newDevice(ctx context.Context, dir string, size, rate int64) (d *device, err error) {
	d = &device{backing: filepath.Join(dir, "disk"), size: size}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := d.dirty(); err != nil {
		return d, err
	}
	over := d.backing
	d.end = append(d.end, func() error { return os.Remove(d.backing) })
	if rate > 0 {
		mount := filepath.Join(dir, "mount")
		d.counter = filepath.Join(mount, "written")
		if err := os.Mkdir(mount, 0o700); err != nil {
			return d, err
		}
		// A separate process: the kernel must never wait for the one that it serves.
		cmd := exec.CommandContext(ctx, os.Args[0], "device", mount, d.backing, strconv.FormatInt(rate, 10))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return d, err
		}
		if err := cmd.Start(); err != nil {
			return d, err
		}
		d.end = append(d.end, func() error {
			return errors.Join(run("umount", mount), cmd.Wait(), os.Remove(mount))
		})
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return d, fmt.Errorf("paced device: %w", err)
		}
		over = filepath.Join(mount, "disk")
	}
	direct := "--direct-io=on"
	if inMemory(dir) {
		direct = "--direct-io=off"
	}
	name, err := output("losetup", "--find", "--show", direct, over)
	if err != nil {
		return d, err
	}
	d.path = name
	d.end = append(d.end, func() error { return run("losetup", "--detach", name) })
	return d, nil
}

func (d *device) close() error {
	var errs []error
	for i := len(d.end) - 1; i >= 0; i-- {
		errs = append(errs, d.end[i]())
	}
	d.end = nil
	return errors.Join(errs...)
}

// dirty fills the disk with old data, bypassing the rate limit.
func (d *device) dirty() error {
	flags := os.O_RDWR | os.O_CREATE
	if !inMemory(filepath.Dir(d.backing)) {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(d.backing, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := aligned(4 << 20)
	defer unix.Munmap(buf)
	copy(buf, bytes.Repeat([]byte{0xa5}, len(buf)))
	for off := int64(0); off < d.size; off += int64(len(buf)) {
		if _, err := f.WriteAt(buf[:min(int64(len(buf)), d.size-off)], off); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if d.path == "" {
		return nil
	}
	return run("blockdev", "--flushbufs", d.path)
}

// written is how many bytes of data have come to the device so far.
func (d *device) written() (int64, error) {
	if d.counter == "" {
		return 0, nil
	}
	b, err := os.ReadFile(d.counter)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func aligned(n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err) // no memory
	}
	return b
}

// serveDevice is the process of a paced device: a file system with a file "disk", and a file "written" with the number
// of written bytes. Holes cost nothing and count as nothing: a disk does not store them either.
func serveDevice(mount, backing string, rate int64) error {
	f, err := os.OpenFile(backing, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	p := &pacer{rate: rate}
	root := &fs.Inode{}
	server, err := fs.Mount(mount, root, &fs.Options{
		MountOptions: fuse.MountOptions{MaxWrite: 1 << 20, DirectMount: true, FsName: "paced", Name: "paced",
			DisableXAttrs: true, DisableSplice: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("disk",
				root.NewPersistentInode(ctx, &pacedFile{f: f, size: st.Size(), p: p},
					fs.StableAttr{Mode: syscall.S_IFREG}), false)
			root.AddChild("written",
				root.NewPersistentInode(ctx, &countFile{p: p}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
		},
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", mount, err)
	}
	fmt.Println("ready")
	server.Wait()
	return nil
}

// pacer lets bytes through at a rate.
type pacer struct {
	rate  int64
	total atomic.Int64
	mu    sync.Mutex
	next  time.Time
}

// burst is the time for which a disk's own buffer takes data at once.
const burst = 20 * time.Millisecond

func (p *pacer) pass(n int) {
	p.total.Add(int64(n))
	p.mu.Lock()
	now := time.Now()
	if floor := now.Add(-burst); p.next.Before(floor) {
		p.next = floor
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	wait := p.next.Sub(now)
	p.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	}
}

type pacedFile struct {
	fs.Inode
	f    *os.File
	size int64
	p    *pacer
}

var _ = interface {
	fs.NodeOpener
	fs.NodeReader
	fs.NodeWriter
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeFsyncer
	fs.NodeAllocater
}((*pacedFile)(nil))

func (p *pacedFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (p *pacedFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blksize = syscall.S_IFREG|0o600, uint64(p.size), 4096
	return 0
}

func (p *pacedFile) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return p.Getattr(ctx, h, out)
}

// Buffers that come from the kernel are not aligned for direct I/O.
var bounce = sync.Pool{New: func() any { b := aligned(1 << 20); return &b }}

func (p *pacedFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	b := bounce.Get().(*[]byte)
	defer bounce.Put(b)
	n, err := p.f.ReadAt((*b)[:min(len(dest), len(*b))], off)
	if n == 0 && err != nil {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(dest[:copy(dest, (*b)[:n])]), 0
}

func (p *pacedFile) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	b := bounce.Get().(*[]byte)
	defer bounce.Put(b)
	n, err := p.f.WriteAt((*b)[:copy(*b, data)], off)
	if err != nil {
		return 0, fs.ToErrno(err)
	}
	p.p.pass(n)
	return uint32(n), 0
}

func (p *pacedFile) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return fs.ToErrno(unix.Fdatasync(int(p.f.Fd())))
}

func (p *pacedFile) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	return fs.ToErrno(unix.Fallocate(int(p.f.Fd()), mode, int64(off), int64(size)))
}

// countFile shows the number of bytes that have arrived.
type countFile struct {
	fs.Inode
	p *pacer
}

func (c *countFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (c *countFile) Read(_ context.Context, _ fs.FileHandle, _ []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	text := strconv.FormatInt(c.p.total.Load(), 10) + "\n"
	return fuse.ReadResultData([]byte(text[min(off, int64(len(text))):])), 0
}
