// Package kexec loads the kernel of the system that was just installed, so that the agent's kernel can jump into it
// without running the machine's firmware, which takes minutes.
//
// Package bootentry finds the kernel on the disk with readers of our own, without mounting or running anything of it.
// Kernel and initial ramdisks are copied into files in the ramdisk's memory, from which the kernel loads them. The
// agent makes the jump when the conductor requests it. Obstacles (Secure Boot, an encrypted disk, an unsupported file
// system, a configuration that is not understood, too little memory) are a result with a reason, not a failure: the
// disk is committed, its boot entry is written, and the firmware can start it as usual.
package kexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/boot/bootentry"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/ram"
	"github.com/ingot-metal/ingot/agent/step"
)

// LoadArgs declares the arguments of load_kernel.
var LoadArgs = []step.Arg{
	{Name: "kernel_append_params", Type: "string",
		Description: "more parameters for the installed kernel's command line, after its own"},
	{Name: "root_device", Type: "object",
		Description: "hints for the disk, if no image was written in this deployment"},
}

// Stall is how long load_kernel may show no progress.
const Stall = 2 * time.Minute

// machine is the part of the machine that this package uses.
type machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	Settle(ctx context.Context) error
	// LoadKernel loads a kernel for a jump; initrd may be nil. Its error is a reason for an operator.
	LoadKernel(ctx context.Context, kernel, initrd *os.File, cmdline string) error
}

// Result of load_kernel. Reason says why nothing is loaded.
type Result struct {
	Loaded  bool     `json:"loaded"`
	Reason  string   `json:"reason,omitempty"`
	Kernel  string   `json:"kernel,omitempty"` // "partition 1: /boot/vmlinuz"
	Initrd  []string `json:"initrd,omitempty"`
	Cmdline string   `json:"cmdline,omitempty"`
	From    string   `json:"from,omitempty"` // "grub.cfg"
	Config  string   `json:"config,omitempty"`
	Title   string   `json:"title,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	TookMS  int64    `json:"took_ms"`
}

type loadArgs struct {
	Params string          `json:"kernel_append_params"`
	Root   json.RawMessage `json:"root_device"`
}

// wordForm is the form of a word of a command line, the same as in the conductor.
var wordForm = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)

// Limits of the loaded files. The kernel keeps a copy, and needs another one while loading, beside our file.
const (
	maxBytes   = 512 << 20
	copies     = 4
	maxCmdline = 2047
)

// reason says why nothing can be loaded; the machine's firmware starts the system then.
type reason struct{ error }

// LoadStep finds the system that the disk would start and loads its kernel. It does not change the disk; if it is
// stopped or repeated, its memory is freed.
func LoadStep(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a loadArgs) (step.Outcome, error) {
		begin := time.Now()
		for w := range strings.FieldsSeq(a.Params) {
			if !wordForm.MatchString(w) {
				return step.Outcome{},
					step.Failf("correct the step's argument kernel_append_params",
						"kernel parameter %q has characters other than letters, digits and _.,:/=@%%+-", w)
			}
		}
		hints, err := disk.ParseHints(a.Root)
		if err != nil {
			return step.Outcome{}, err
		}
		l := loader{m: m, c: c, params: strings.Fields(a.Params), files: ram.NewFiles(m.Root())}
		defer l.close()
		err = l.load(ctx, hints)
		var why *reason
		switch {
		case errors.As(err, &why):
			l.r.Reason = why.Error()
		case err != nil:
			return step.Outcome{}, err
		}
		l.r.TookMS = time.Since(begin).Milliseconds()
		if l.r.Loaded {
			c.Log.Info("installed kernel loaded", "kernel", l.r.Kernel, "from", l.r.From, "bytes", l.r.Bytes)
		} else {
			c.Log.Warn("the installed system can't be started from here; the firmware will", "err", l.r.Reason)
		}
		return step.Outcome{Result: l.r}, nil
	})
}

type loader struct {
	m      machine
	c      *step.Call
	params []string
	files  *ram.Files
	room   int64
	vols   []bootentry.Volume
	r      Result
}

func (l *loader) close() {
	if err := l.files.Close(); err != nil {
		l.c.Log.Debug("close files in memory", "err", err)
	}
}

// open opens the disk of this deployment, or the one that matches the hints.
func (l *loader) open(ctx context.Context, hints disk.Hints) (disk.Device, error) {
	if p, err := disk.WrittenOf(l.c.Facts); err == nil {
		if _, err := disk.PendingOf(l.c.Facts); err == nil {
			return nil, step.Failf("give load_kernel a lower priority than prepare_instance_boot",
				"the disk %s is not committed yet: nothing can be read from it", p.Disk.Name)
		}
		return p.Open(ctx, l.m)
	}
	choice, err := disk.ChooseWhenReady(ctx, l.m, disk.RootOf(l.c.Facts, hints))
	if err != nil {
		return nil, err
	}
	dev, _, err := disk.OpenVerified(ctx, l.m, choice.Disk.Identity())
	return dev, err
}

func (l *loader) load(ctx context.Context, hints disk.Hints) (err error) {
	l.c.Report(step.Progress{Phase: "find the kernel"})
	dev, err := l.open(ctx, hints)
	if err != nil {
		return err
	}
	kernel, initrd, cmdline, err := l.read(ctx, dev)
	// The disk was only read, and must be closed before the jump.
	if cerr := dev.Close(); err == nil && cerr != nil {
		err = &reason{cerr}
	}
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	l.c.Report(step.Progress{Phase: "load the kernel", Bytes: uint64(l.r.Bytes), Total: uint64(l.r.Bytes)})
	if err := l.m.LoadKernel(ctx, kernel, initrd, cmdline); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &reason{err}
	}
	l.r.Loaded = true
	return nil
}

// read finds the system to start and copies it into memory. Its errors are reasons.
func (l *loader) read(ctx context.Context, dev disk.Device) (kernel, initrd *os.File, cmdline string, err error) {
	fail := func(err error) (*os.File, *os.File, string, error) { return nil, nil, "", &reason{err} }
	if l.vols, err = volumes(ctx, dev); err != nil {
		return fail(err)
	}
	_, noEFI := os.Stat(filepath.Join(l.m.Root(), "sys/firmware/efi"))
	e, err := bootentry.Find(ctx, l.vols, bootentry.Machine{Arch: runtime.GOARCH, UEFI: noEFI == nil})
	if err != nil {
		return fail(err)
	}
	l.r.From, l.r.Config, l.r.Title, l.r.Kernel = e.From, e.Config, e.Title, l.name(e.Kernel)
	l.r.Cmdline = strings.Join(append([]string{e.Cmdline}, l.params...), " ")
	if len(l.r.Cmdline) > maxCmdline {
		return fail(fmt.Errorf("the kernel's command line would have %d bytes, more than the kernel's %d",
			len(l.r.Cmdline), maxCmdline))
	}
	available, err := ram.Available(l.m.Root())
	if err != nil {
		return fail(err)
	}
	l.room = min(available/copies, maxBytes)
	if kernel, err = l.files.New("kernel"); err == nil {
		err = l.copy(ctx, e.Kernel, kernel)
	}
	if err != nil {
		return fail(err)
	}
	for _, f := range e.Initrds {
		l.r.Initrd = append(l.r.Initrd, l.name(f))
		if initrd == nil {
			if initrd, err = l.files.New("initrd"); err != nil {
				return fail(err)
			}
		}
		at, err := initrd.Seek(0, io.SeekCurrent)
		if err == nil { // the kernel expects each archive at a multiple of four bytes
			_, err = initrd.Write(make([]byte, (4-at%4)%4))
		}
		if err == nil {
			err = l.copy(ctx, f, initrd)
		}
		if err != nil {
			return fail(err)
		}
	}
	return kernel, initrd, l.r.Cmdline, nil
}

func (l *loader) name(f bootentry.File) string {
	return fmt.Sprintf("partition %d: /%s", l.vols[f.Volume].Number, f.Path)
}

// copy appends a file of the disk.
func (l *loader) copy(ctx context.Context, from bootentry.File, to *os.File) error {
	f, err := l.vols[from.Volume].FS.Open(from.Path)
	if err != nil {
		return fmt.Errorf("open %s: %w", l.name(from), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open %s: %w", l.name(from), err)
	}
	r, size := io.Reader(f), info.Size()
	if from.Size >= 0 {
		at, ok := f.(io.ReaderAt)
		if !ok {
			return fmt.Errorf("read %s: this file system's files can't be read in parts", l.name(from))
		}
		r, size = io.NewSectionReader(at, from.Offset, from.Size), from.Size
	}
	if size > l.room {
		return fmt.Errorf(
			"%s has %d bytes: kernel and initial ramdisks do not fit into the machine's memory beside the agent",
			l.name(from), size)
	}
	buf := make([]byte, 256<<10)
	done := int64(0)
	for done < size {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := r.Read(buf[:min(int64(len(buf)), size-done)])
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return fmt.Errorf("keep %s in memory: %w", l.name(from), werr)
			}
			done += int64(n)
			l.c.Report(step.Progress{Phase: "read " + filepath.Base(from.Path), Bytes: uint64(done),
				Total: uint64(size)})
		}
		if err == io.EOF && done < size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("read %s: %w", l.name(from), err)
		}
	}
	if done == 0 {
		return fmt.Errorf("%s is empty", l.name(from))
	}
	l.room -= done
	l.r.Bytes += done
	return nil
}
