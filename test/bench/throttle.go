package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// throttle is a control group whose processes write to one disk no faster than a rate. The kernel delays them, which
// takes no processor time; writes to the disk through a loop device count as theirs. Zeroing a part of a file writes
// nothing.
type throttle struct {
	dir string
}

// newThrottle makes one for the disk that holds a folder; rate in bytes a second.
func newThrottle(folder string, rate int64) (*throttle, error) {
	dev, err := wholeDisk(folder)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("ingot-bench-%d", os.Getpid())
	var errs []error
	for _, v := range []struct{ root, file, format string }{
		{"/sys/fs/cgroup/blkio", "blkio.throttle.write_bps_device", "%s %d"},
		{"/sys/fs/cgroup", "io.max", "%s wbps=%d"},
	} {
		if v.file == "io.max" {
			// The controller may have to be handed on to groups below the root first.
			os.WriteFile(filepath.Join(v.root, "cgroup.subtree_control"), []byte("+io"), 0o644)
		}
		t := &throttle{filepath.Join(v.root, name)}
		err := os.Mkdir(t.dir, 0o755)
		if err == nil {
			if err = os.WriteFile(filepath.Join(t.dir, v.file), fmt.Appendf(nil, v.format, dev, rate),
				0o644); err == nil {
				return t, nil
			}
			err = errors.Join(err, os.Remove(t.dir))
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no control group can limit writes to disk %s: %w", dev, errors.Join(errs...))
}

// in is a command in the group.
func (t *throttle) in(name string, args ...string) (string, []string) {
	if t == nil {
		return name, args
	}
	return "sh", append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(t.dir, "cgroup.procs"), name},
		args...)
}

// close ends the group; its processes have ended, but the kernel may not have noticed yet.
func (t *throttle) close(ctx context.Context) (err error) {
	for range 100 {
		if err = os.Remove(t.dir); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// wholeDisk is the number (major:minor) of the disk that a folder is on: limits are for disks, not for partitions.
func wholeDisk(folder string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(folder, &st); err != nil {
		return "", fmt.Errorf("%s: %w", folder, err)
	}
	entry, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return "", fmt.Errorf("%s is not on a disk whose writes can be limited: %w", folder, err)
	}
	if _, err := os.Stat(filepath.Join(entry, "partition")); err == nil {
		entry = filepath.Dir(entry)
	}
	b, err := os.ReadFile(filepath.Join(entry, "dev"))
	var major, minor int
	if err == nil {
		_, err = fmt.Sscanf(string(b), "%d:%d", &major, &minor)
	}
	return fmt.Sprintf("%d:%d", major, minor), err
}
