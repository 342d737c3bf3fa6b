package ramdisk

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/ingot-metal/ingot/agent/boot/bootentry"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
)

// unfit says why the machine's firmware has to boot an ISO image.
type unfit struct{ error }

// loadISO fetches the kernel and initial ramdisks that an ISO image's boot loader would start. Only those are fetched,
// in parts, with the image's own command line. An image whose configuration is not understood is left to the firmware.
func (l *loading) loadISO(ctx context.Context) (Result, error) {
	src, err := fetch.Open(fetch.Source{URLs: []string{l.a.ISO}, CA: l.a.CA}, fetch.DefaultPatience, l.c.Log)
	if err != nil {
		return Result{}, step.Fail("correct instance_info's boot_iso", fmt.Errorf("fetch the ISO image: %w", err))
	}
	defer src.Close()
	l.c.Report(step.Progress{Phase: "find the kernel"})
	if err := src.Connect(ctx); err != nil { // the server has it
		return Result{}, err
	}
	at := src.At(ctx)
	if c, ok := at.(io.Closer); ok {
		defer c.Close()
	}
	image, err := iso9660.Open(at)
	if err != nil {
		return Result{}, &unfit{fmt.Errorf("the ISO image %s: %w", src.Name(), err)}
	}
	_, noEFI := os.Stat(filepath.Join(l.m.Root(), "sys/firmware/efi"))
	e, err := bootentry.Find(ctx, []bootentry.Volume{{FS: image, Label: image.Label}},
		bootentry.Machine{Arch: runtime.GOARCH, UEFI: noEFI == nil})
	if err != nil {
		return Result{}, &unfit{fmt.Errorf("the ISO image %s: %w", src.Name(), err)}
	}
	r := Result{Kernel: e.Kernel.Path, From: "ISO image, " + e.From, Cmdline: e.Cmdline}
	kernel, err := l.files.New("kernel")
	if err == nil {
		err = l.extract(ctx, image, e.Kernel, kernel)
	}
	if err != nil {
		return r, err
	}
	var initrd *os.File
	for _, f := range e.Initrds {
		if initrd == nil {
			if initrd, err = l.files.New("initrd"); err != nil {
				return r, err
			}
		} else if pos, err := initrd.Seek(0, io.SeekCurrent); err != nil {
			return r, fmt.Errorf("keep the ramdisk in memory: %w", err)
		} else if _, err := initrd.Write(make([]byte, (4-pos%4)%4)); err != nil { // to the next archive
			return r, fmt.Errorf("keep the ramdisk in memory: %w", err)
		}
		if err := l.extract(ctx, image, f, initrd); err != nil {
			return r, err
		}
		r.Ramdisk = f.Path
	}
	return l.finish(ctx, kernel, initrd, r)
}

// isoPiece is the size of one request for a file on an image.
const isoPiece = 4 << 20

// extract appends a file of an image.
func (l *loading) extract(ctx context.Context, image fs.FS, from bootentry.File, to *os.File) error {
	f, err := image.Open(from.Path)
	if err != nil {
		return &unfit{fmt.Errorf("the ISO image: %w", err)}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return &unfit{fmt.Errorf("the ISO image: %w", err)}
	}
	whole, ok := f.(io.ReaderAt)
	if !ok || !info.Mode().IsRegular() {
		return &unfit{fmt.Errorf("the ISO image: %s is no file", from.Path)}
	}
	size := info.Size()
	if from.Size >= 0 {
		size = from.Size
	}
	if size > l.room {
		return &tooLarge{from.Path + " of the ISO image"}
	}
	buf := make([]byte, min(isoPiece, size))
	for done := int64(0); done < size; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := whole.ReadAt(buf[:min(int64(len(buf)), size-done)], from.Offset+done)
		if n == 0 && err != nil {
			return fmt.Errorf("read %s of the ISO image at byte %d: %w", from.Path, done, err)
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return fmt.Errorf("keep %s in memory: %w", from.Path, err)
		}
		done += int64(n)
		l.c.Report(step.Progress{Phase: "fetch " + filepath.Base(from.Path), Bytes: uint64(done), Total: uint64(size)})
	}
	l.room, l.bytes = l.room-size, l.bytes+size
	return nil
}
