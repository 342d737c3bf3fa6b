// Package bootentry finds the Linux that an installed disk would start: kernel, initial ramdisks and command line.
//
// It reads the boot loaders' configuration (grub.cfg as Debian, Ubuntu, the RHEL family and SUSE generate it, entries
// of the Boot Loader Specification, systemd-boot's loader.conf, unified kernel images) and decides as they would,
// without running anything of the disk. The disk is a tenant's: every file is bounded, every loop terminates, and
// configuration that is not understood is refused with a reason, because a kernel that a cold boot would not start must
// not be started here either.
//
// u-root's packages boot/grub and boot/bls are not used: they need mounted file systems, don't evaluate conditions, and
// boot the parts they understood. The sources are GRUB's manual and code, and the UAPI group's Boot Loader
// Specification and Unified Kernel Image.
package bootentry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Volume is a file system of the disk, or an unreadable one.
type Volume struct {
	FS     fs.FS  // follows symbolic links inside itself; nil when it can't be read
	Fault  string // why not: "it is encrypted (LUKS)"
	UUID   string // of the file system, as blkid prints it
	Label  string
	Raw    io.ReaderAt // the data below FS, for block lists; may be nil
	Number int         // of the partition; 0: the whole disk
	GPT    bool        // the partition table is a GPT
	ESP    bool        // an EFI system partition
}

func (v Volume) device() string {
	if v.Number == 0 {
		return "hd0"
	}
	if v.GPT {
		return fmt.Sprintf("hd0,gpt%d", v.Number)
	}
	return fmt.Sprintf("hd0,msdos%d", v.Number)
}

// File is a file of a volume, or a part of it.
type File struct {
	Volume int // index
	Path   string
	Offset int64
	Size   int64 // -1: to the end
}

// Entry is the system that a disk would start.
type Entry struct {
	From    string // "grub.cfg", "grub.cfg and BLS", "systemd-boot", "UKI"
	Config  string // the deciding file
	Title   string
	Kernel  File
	Initrds []File
	Cmdline string
}

// Machine holds the machine's properties that a configuration can test.
type Machine struct {
	Arch string // GOARCH
	UEFI bool
}

// Limits of reading.
const (
	maxConfig  = 1 << 20
	maxFiles   = 512 // configurations and entries
	maxCmdline = 2047
	maxInitrds = 16
)

// Find returns the entry that the disk would start. The error is a reason for an operator.
func Find(ctx context.Context, vols []Volume, m Machine) (*Entry, error) {
	d := &disk{ctx: ctx, vols: vols, m: m, files: maxFiles}
	e, err := d.find()
	if err != nil {
		return nil, err
	}
	return e, e.check()
}

func (e *Entry) check() error {
	switch {
	case len(e.Cmdline) > maxCmdline:
		return fmt.Errorf("the kernel's command line in %s has %d bytes, more than the kernel's %d", e.Config,
			len(e.Cmdline), maxCmdline)
	case len(e.Initrds) > maxInitrds:
		return fmt.Errorf("%s names %d initial ramdisks, more than %d", e.Config, len(e.Initrds), maxInitrds)
	case !utf8.ValidString(e.Cmdline) ||
		strings.ContainsFunc(e.Cmdline, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("the kernel's command line in %s has characters that don't belong there", e.Config)
	}
	return nil
}

// disk is one search.
type disk struct {
	ctx   context.Context
	vols  []Volume
	m     Machine
	files int // files that may still be read
}

func (d *disk) find() (*Entry, error) {
	var ways []func() (*Entry, error)
	if d.m.UEFI && d.hasSystemdBoot() {
		ways = append(ways, d.systemdBoot)
	}
	ways = append(ways, d.grub)
	if d.m.UEFI {
		ways = append(ways, d.fallbackUKI, d.systemdBoot)
	}
	for _, w := range ways {
		e, err := w()
		if d.ctx.Err() != nil {
			return nil, context.Cause(d.ctx)
		}
		// The first loader present decides, as in a cold boot.
		if !errors.Is(err, fs.ErrNotExist) {
			return e, err
		}
	}
	return nil, errors.New(
		"no boot configuration was found on the disk that is understood here (grub.cfg, BLS entries, systemd-boot, a unified kernel image)" + d.faults())
}

// faults lists the unreadable volumes.
func (d *disk) faults() string {
	var out strings.Builder
	for _, v := range d.vols {
		if v.FS == nil && v.Fault != "" {
			fmt.Fprintf(&out, "; partition %d was not read: %s", v.Number, v.Fault)
		}
	}
	return out.String()
}

// clean turns a configuration's path into one for io/fs, which can't lead out of the volume.
func clean(name string) string {
	return cmp.Or(strings.TrimPrefix(path.Clean("/"+name), "/"), ".")
}

// read reads a small file whole.
func (d *disk) read(vol int, name string, most int64) ([]byte, error) {
	if d.files--; d.files < 0 {
		return nil, fmt.Errorf("more than %d files would have to be read", maxFiles)
	}
	f, err := d.open(vol, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(b)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return b, nil
}

func (d *disk) open(vol int, name string) (fs.File, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, context.Cause(d.ctx)
	}
	if vol < 0 || d.vols[vol].FS == nil {
		return nil, fs.ErrNotExist
	}
	f, err := d.vols[vol].FS.Open(clean(name))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return f, nil
}

// stat is fs.Stat, or nil if the file does not exist or can't be read.
func (d *disk) stat(vol int, name string) fs.FileInfo {
	if vol < 0 || d.vols[vol].FS == nil || d.ctx.Err() != nil {
		return nil
	}
	fi, err := fs.Stat(d.vols[vol].FS, clean(name))
	if err != nil {
		return nil
	}
	return fi
}

func (d *disk) isFile(vol int, name string) bool {
	fi := d.stat(vol, name)
	return fi != nil && fi.Mode().IsRegular()
}

// list returns the names in a directory that end in suffix, sorted; none if the directory does not exist.
func (d *disk) list(vol int, dir, suffix string) []string {
	if vol < 0 || d.vols[vol].FS == nil {
		return nil
	}
	all, err := fs.ReadDir(d.vols[vol].FS, clean(dir))
	if err != nil || len(all) > 10_000 {
		return nil
	}
	var out []string
	for _, e := range all {
		if strings.HasSuffix(strings.ToLower(e.Name()), suffix) {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out
}

// efiName is UEFI's name of the architecture in file names.
func (m Machine) efiName() string {
	return cmp.Or(map[string]string{"amd64": "x64", "arm64": "aa64", "riscv64": "riscv64", "386": "ia32"}[m.Arch],
		m.Arch)
}

// kernelFile checks that a file named by a configuration exists.
func (d *disk) kernelFile(vol int, name string) (File, error) {
	if vol < 0 || vol >= len(d.vols) {
		return File{}, fmt.Errorf("%s is on a volume that is not on this disk%s", name, d.faults())
	}
	if !d.isFile(vol, name) {
		return File{}, fmt.Errorf("%s is not on partition %d", name, d.vols[vol].Number)
	}
	return File{Volume: vol, Path: clean(name), Size: -1}, nil
}
