// Package ram keeps a kernel and its ramdisks, until they are passed to the kernel, in files in the machine's memory.
package ram

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Files are anonymous files in memory. They are below tmp in a root directory, which in the ramdisk is memory.
type Files struct {
	root string
	open []*os.File
}

// NewFiles returns an empty set.
func NewFiles(root string) *Files { return &Files{root: root} }

// New creates a file; name is for errors.
func (f *Files) New(name string) (*os.File, error) {
	file, err := unnamed(filepath.Join(f.root, "tmp"), name)
	if err != nil {
		return nil, fmt.Errorf("keep the %s in memory: %w", name, err)
	}
	f.open = append(f.open, file)
	return file, nil
}

func unnamed(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o1777); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, name+"-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Close frees the memory, unless the kernel has loaded the files.
func (f *Files) Close() error {
	var errs []error
	for _, file := range f.open {
		errs = append(errs, file.Close())
	}
	f.open = nil
	return errors.Join(errs...)
}

// Available returns the memory that is available by the kernel's estimate.
func Available(root string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0, fmt.Errorf("see how much memory is free: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil || n < 0 {
				return 0, fmt.Errorf("see how much memory is free: /proc/meminfo says %q", strings.TrimSpace(line))
			}
			return n << 10, nil
		}
	}
	return 0, errors.New("see how much memory is free: /proc/meminfo does not say")
}
