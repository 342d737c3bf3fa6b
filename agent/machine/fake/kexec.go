package fake

import (
	"context"
	"errors"
	"io"
	"os"
)

// Kernel is a kernel loaded for a jump.
type Kernel struct {
	Kernel, Initrd []byte
	Cmdline        string
}

// LoadKernel keeps a kernel for the jump, unless RefuseKernel is set.
func (m *Machine) LoadKernel(ctx context.Context, kernel, initrd *os.File, cmdline string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if m.RefuseKernel != nil {
		return m.RefuseKernel
	}
	// independent of the file's position
	all := func(f *os.File) ([]byte, error) { return io.ReadAll(io.NewSectionReader(f, 0, 1<<40)) }
	k := &Kernel{Cmdline: cmdline}
	var err error
	if k.Kernel, err = all(kernel); err != nil {
		return err
	}
	if len(k.Kernel) == 0 {
		return errors.New("load the kernel: it is empty")
	}
	if initrd != nil {
		if k.Initrd, err = all(initrd); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel = k
	return nil
}

// Kernel returns the last loaded kernel; nil: none.
func (m *Machine) Kernel() *Kernel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel
}

// KernelLoaded reports whether a kernel is ready for a jump.
func (m *Machine) KernelLoaded() bool { return m.Kernel() != nil }
