package linux

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// ReadRaw reads from a disk or partition that may be open elsewhere, and changes nothing.
func (Machine) ReadRaw(ctx context.Context, path string, p []byte, off int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	if _, err := f.ReadAt(p, off); err != nil {
		return fmt.Errorf("read %d bytes at byte %d of %s: %w", len(p), off, path, err)
	}
	return nil
}

// LoadModule loads a kernel module with the kernel's own modprobe program; in the ramdisk that is this binary.
func (Machine) LoadModule(ctx context.Context, name string) error {
	if out, err := exec.CommandContext(ctx, "/sbin/modprobe", "-q", "--", name).CombinedOutput(); err != nil {
		return fmt.Errorf("load the kernel module %s: %w: %s", name, err, out)
	}
	return nil
}
