// Package bootiso composes ISO images that boot the agent from virtual media, one for each machine, while they are
// read. Nothing is stored: kernel, ramdisk and boot loaders are extents that all images share, and the few kilobytes of
// a machine (configuration of the loaders with the kernel's command line, and a segment of the ramdisk with secrets and
// the machine's network) lie over extents that are reserved for them.
//
// A BIOS starts isolinux (El Torito, no emulation), UEFI starts shim and GRUB from a small FAT (El Torito, platform
// 0xEF); both read kernel and ramdisk from the ISO 9660 file system. All loaders are Debian's own binaries. Shim and
// GRUB are signed, so that Secure Boot may stay on. isolinux reads large files by the BIOS alone and needs no
// configuration tool; Ironic uses the same pair, so that most firmware has met it.
package bootiso

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/segment"
)

// Sizes that are reserved for each machine's own files.
const (
	configSize  = 4 << 10  // of each loader's configuration: twice the longest command line that kernels take
	segmentSize = 64 << 10 // of the segment
)

// File is a large file that all images share.
type File struct {
	Size int64
	Open func() (Content, error)
}

// Content is an open file.
type Content interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// Parts are the shared parts of the images.
type Parts struct {
	Kernel, Initramfs File
	// Loaders are shimx64.efi, grubx64.efi, isolinux.bin and ldlinux.c32 by name.
	Loaders map[string][]byte
	Time    time.Time
}

// Node holds the parts that differ from machine to machine.
type Node struct {
	CommandLine string // of the kernel: readable by every process
	Params      string // further parameters of the agent, with its secrets
	NetworkData []byte // JSON of OpenStack's network_data; nil: none
}

// slots are the extents that are not in memory of the Template: files, and a machine's own.
const (
	kernelSlot = iota
	initramfsSlot
	grubSlot
	isolinuxSlot
	segmentSlot
	slots
)

var paths = [slots]string{"boot/vmlinuz", "boot/initrd", "boot/grub/grub.cfg", "isolinux/isolinux.cfg", "boot/node"}

// Template is the layout of the images of one ramdisk. Safe for concurrent use.
type Template struct {
	size    int64
	files   [2]File // kernelSlot, initramfsSlot
	extents []extent
	// idle are the open files of readers that were closed: a controller reads an image in thousands of ranges, each by
	// a reader. Files that the pool drops are closed by the runtime.
	idle sync.Pool
}

// extent is a range of the image; what lies in none is zero.
type extent struct {
	off, size int64
	slot      int    // of a file or of a machine's own bytes, if data is nil
	data      []byte // shared
}

// Label of the volume.
const Label = "INGOT"

// New makes the layout of images.
func New(p Parts) (*Template, error) {
	for _, name := range []string{"shimx64.efi", "grubx64.efi", "isolinux.bin", "ldlinux.c32"} {
		if len(p.Loaders[name]) == 0 {
			return nil, fmt.Errorf(
				"the ramdisk has no boot loader %s, which an ISO image needs: build it again, without --no-iso", name)
		}
	}
	esp, err := fat.Make([]fat.File{
		{Path: "EFI/BOOT/BOOTX64.EFI", Data: p.Loaders["shimx64.efi"]},
		{Path: "EFI/BOOT/grubx64.efi", Data: p.Loaders["grubx64.efi"]},
	}, fat.Options{Sector: 512, Label: Label, Time: p.Time})
	if err != nil {
		return nil, fmt.Errorf("make the file system for UEFI: %w", err)
	}
	sizes := [slots]int64{p.Kernel.Size, p.Initramfs.Size, configSize, configSize, segmentSize}
	files := []iso9660.File{
		{Path: ".disk/info", Data: []byte("Ingot\n")}, // GRUB finds the medium by it
		{Path: "efi.img", Data: esp.Bytes()},
		{Path: "isolinux/isolinux.bin", Data: p.Loaders["isolinux.bin"]},
		{Path: "isolinux/ldlinux.c32", Data: p.Loaders["ldlinux.c32"]},
	}
	for slot, path := range paths {
		if sizes[slot] <= 0 {
			return nil, fmt.Errorf("%s is empty", path)
		}
		files = append(files, iso9660.File{Path: path, Size: sizes[slot]})
	}
	img, err := iso9660.New(files, iso9660.Options{Label: Label, Publisher: "INGOT", Time: p.Time, Boot: []iso9660.Boot{
		{Path: "isolinux/isolinux.bin", Table: true}, {Path: "efi.img", EFI: true}}})
	if err != nil {
		return nil, fmt.Errorf("lay out the ISO image: %w", err)
	}
	t := &Template{size: img.Size, files: [2]File{p.Kernel, p.Initramfs}}
	for _, piece := range img.Pieces {
		t.extents = append(t.extents, extent{off: piece.Off, size: int64(len(piece.Data)), data: piece.Data})
	}
	for slot, path := range paths {
		t.extents = append(t.extents, extent{off: img.At[path], size: sizes[slot], slot: slot})
	}
	slices.SortFunc(t.extents, func(a, b extent) int { return int(a.off - b.off) })
	return t, nil
}

const grubConfig = `set timeout=0
menuentry "Ingot" {
	echo "Ingot: loading the agent"
	linux /boot/vmlinuz %s
	initrd /boot/initrd /boot/node
}
`

const isolinuxConfig = `DEFAULT ingot
PROMPT 0
SAY Ingot: loading the agent
LABEL ingot
	KERNEL /boot/vmlinuz
	INITRD /boot/initrd,/boot/node
	APPEND %s
`

// Image is the image of one machine. Safe for concurrent use.
type Image struct {
	t   *Template
	own [slots][]byte
}

// Size in bytes. It depends on the ramdisk only.
func (i *Image) Size() int64 { return i.t.size }

// Loaded is the position after the ramdisk: a machine that has read the byte before it has the ramdisk, most likely.
func (i *Image) Loaded() int64 {
	at := slices.IndexFunc(i.t.extents, func(e extent) bool { return e.data == nil && e.slot == initramfsSlot })
	return i.t.extents[at].off + i.t.extents[at].size
}

// Image makes the image of a machine.
func (t *Template) Image(n Node) (*Image, error) {
	if strings.ContainsFunc(n.CommandLine, func(r rune) bool {
		return r <= ' ' && r != ' ' || r > '~' || strings.ContainsRune(`"'\$;{}#|&<>`, r)
	}) {
		return nil, errors.New("the kernel's command line has characters that boot loaders take for their own")
	}
	i := &Image{t: t}
	for slot, text := range map[int]string{grubSlot: grubConfig, isolinuxSlot: isolinuxConfig} {
		text = fmt.Sprintf(text, n.CommandLine)
		if len(text) > configSize {
			return nil, fmt.Errorf("the kernel's command line has %d bytes, which an ISO image has no room for",
				len(n.CommandLine))
		}
		i.own[slot] = []byte(text)
	}
	var err error
	if i.own[segmentSlot], err = segment.OfAgent(n.Params, n.NetworkData); err != nil {
		return nil, err
	}
	if have := len(i.own[segmentSlot]); have > segmentSize {
		return nil, fmt.Errorf(
			"the node's own part of the ramdisk has %d bytes, an ISO image has room for %d: make network_data smaller",
			have, segmentSize)
	}
	return i, nil
}

// Reader reads an image. Several may read the same one; each is for one goroutine.
type Reader struct {
	img   *Image
	files *[2]Content
	at    int64
}

// Open returns a reader.
func (i *Image) Open() (*Reader, error) {
	files, ok := i.t.idle.Get().(*[2]Content)
	if ok {
		return &Reader{img: i, files: files}, nil
	}
	files = &[2]Content{}
	for slot := range files {
		f, err := i.t.files[slot].Open()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", paths[slot], err), closeAll(files))
		}
		files[slot] = f
	}
	return &Reader{img: i, files: files}, nil
}

func closeAll(files *[2]Content) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Close ends the use of a reader.
func (r *Reader) Close() {
	if r.files != nil {
		r.img.t.idle.Put(r.files)
		r.files = nil
	}
}

// padding fills what a machine's configuration files leave of their extents: empty lines mean nothing to both loaders.
var padding = bytes.Repeat([]byte{'\n'}, configSize)

// zeros are what lies between extents, and what follows an archive: kernels skip it.
var zeros [4096]byte

// next returns the extent that a position is in, or a range of zeros up to the next one.
func (r *Reader) next(off int64) extent {
	all := r.img.t.extents
	k, _ := slices.BinarySearchFunc(all, off, func(e extent, off int64) int {
		if e.off+e.size <= off {
			return -1
		}
		return 1
	})
	if k < len(all) && all[k].off <= off {
		return all[k]
	}
	end := r.img.t.size
	if k < len(all) {
		end = all[k].off
	}
	return extent{off: off, size: end - off, data: zeros[:0]}
}

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, errors.New("read before the beginning of an image")
	}
	for n < len(b) {
		at := off + int64(n)
		if at >= r.img.t.size {
			return n, io.EOF
		}
		e := r.next(at)
		part := b[n:][:min(int64(len(b)-n), e.off+e.size-at)]
		if e.data == nil && e.slot < len(r.files) {
			k, err := r.files[e.slot].ReadAt(part, at-e.off)
			if n += k; err != nil && k < len(part) {
				return n, fmt.Errorf("read %s: %w", paths[e.slot], cut(err))
			}
			continue
		}
		n += copy(part, r.bytes(e, at))
	}
	return n, nil
}

// cut is an end of a file that came too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// bytes returns some of the bytes of an extent from a position on: at least one.
func (r *Reader) bytes(e extent, at int64) []byte {
	data, fill := e.data, zeros[:]
	if data == nil {
		data = r.img.own[e.slot]
		if e.slot != segmentSlot {
			fill = padding
		}
	}
	if rel := at - e.off; rel < int64(len(data)) {
		return data[rel:]
	}
	return fill[:min(int64(len(fill)), e.off+e.size-at)]
}

// Read implements io.Reader.
func (r *Reader) Read(b []byte) (int, error) {
	n, err := r.ReadAt(b, r.at)
	r.at += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (r *Reader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += r.at
	case io.SeekEnd:
		off += r.img.t.size
	}
	if off < 0 {
		return 0, errors.New("seek before the beginning of an image")
	}
	r.at = off
	return off, nil
}

// CopyTo writes the next n bytes. Parts of the shared files are handed to w as such, by its ReadFrom, so that a kernel
// may send them by itself.
func (r *Reader) CopyTo(w io.Writer, n int64) (done int64, err error) {
	for done < n && r.at < r.img.t.size {
		e := r.next(r.at)
		most := min(n-done, e.off+e.size-r.at)
		var k int64
		if e.data == nil && e.slot < len(r.files) {
			f := r.files[e.slot]
			if _, err := f.Seek(r.at-e.off, io.SeekStart); err != nil {
				return done, fmt.Errorf("read %s: %w", paths[e.slot], err)
			}
			if k, err = io.CopyN(w, f, most); errors.Is(err, io.EOF) {
				err = fmt.Errorf("read %s: %w", paths[e.slot], io.ErrUnexpectedEOF)
			}
		} else {
			b := r.bytes(e, r.at)
			var wrote int
			wrote, err = w.Write(b[:min(int64(len(b)), most)])
			k = int64(wrote)
		}
		done += k
		r.at += k
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
