package standalone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
	"golang.org/x/sys/unix"
)

// storage identifies a file or block device independently of its path.
type storage struct {
	block      bool
	dev, inode uint64 // of a block device: its number, and 0
}

func storageOf(path string) (storage, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return storage{}, false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return storage{block: true, dev: uint64(st.Rdev)}, true
	case unix.S_IFREG:
		return storage{dev: uint64(st.Dev), inode: st.Ino}, true
	}
	return storage{}, false
}

func (s storage) sys() string {
	return fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(s.dev), unix.Minor(s.dev))
}

// behind returns the backing file or block device of a loop device.
func (s storage) behind() (storage, bool) {
	if !s.block {
		return s, false
	}
	name, err := os.ReadFile(filepath.Join(s.sys(), "loop/backing_file"))
	if err != nil {
		return s, false
	}
	return storageOf(strings.TrimSuffix(string(name), "\n"))
}

// bottom returns the storage that a write to s ends up in: s itself, or the backing file of a loop device.
func (s storage) bottom() storage {
	for range 8 {
		b, ok := s.behind()
		if !ok {
			break
		}
		s = b
	}
	return s
}

// under adds everything that s is stored on: the disk of a partition, the members of an array, the backing file of a
// loop device; with files set, also the device of a file's file system.
func (s storage) under(all []storage, files bool) []storage {
	if slices.Contains(all, s) {
		return all
	}
	all = append(all, s)
	add := func(number string) {
		var major, minor uint32
		if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err == nil {
			all = storage{block: true, dev: unix.Mkdev(major, minor)}.under(all, files)
		}
	}
	if !s.block {
		if !files {
			return all
		}
		if on := (storage{block: true, dev: s.dev}); isThere(on.sys()) { // not so with tmpfs and btrfs
			all = on.under(all, files)
		}
		return all
	}
	if b, ok := s.behind(); ok {
		all = b.under(all, files)
	}
	real, err := filepath.EvalSymlinks(s.sys())
	if err != nil {
		return all
	}
	if isThere(filepath.Join(real, "partition")) {
		number, _ := os.ReadFile(filepath.Join(filepath.Dir(real), "dev"))
		add(string(number))
	}
	members, _ := filepath.Glob(filepath.Join(real, "slaves/*/dev"))
	for _, m := range members {
		number, _ := os.ReadFile(m)
		add(string(number))
	}
	return all
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// apart refuses an image that is on the target disk: it would be overwritten before it is read. Locks don't detect it,
// since an image is only read.
func apart(image, target string) error {
	path, ok := localImage(image)
	if !ok {
		return nil
	}
	from, fromOK := storageOf(path)
	to, toOK := storageOf(target)
	if !fromOK || !toOK {
		return nil // a pipe, or opening it will fail
	}
	// A disk that only holds the file system of the target's file is not written.
	below := from.under(nil, true)
	if slices.Contains(below, to) || slices.Contains(below, to.bottom()) ||
		slices.Contains(to.under(nil, false), from.bottom()) {
		return step.Failf("copy the image to somewhere else, or give another disk",
			"the image %s is on the disk %s that it would be written to", path, target)
	}
	return nil
}

// alone refuses a disk that is in use through a loop device: the file of a mounted one, or another loop device over the
// same file. Neither an exclusive open nor a lock of the disk itself detects this.
func alone(given, target string) error {
	to, ok := storageOf(target)
	if !ok {
		return nil // opening it reports the error
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		name := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(l)))
		loop, ok := storageOf(name)
		if !ok || loop == to || !slices.Contains(loop.under(nil, false), to.bottom()) {
			continue
		}
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		if errors.Is(err, unix.EBUSY) {
			return step.Failf(remedyInUse, "%s is in use through %s, a loop device of the same data", given, name)
		}
	}
	return nil
}

// localImage returns the path of an image that is not a URL.
func localImage(image string) (string, bool) {
	path := strings.TrimPrefix(image, "file://")
	return path, path != "" && !strings.Contains(path, "://")
}
