// Package archive writes reproducible ramdisk archives: newc cpio, sorted, owned by root, without times, compressed
// with zstd.
//
// A Tree is filled with files, directories, links and devices by path relative to the root, written with slashes;
// missing parents are created. Sizes are bytes. The format follows
// Documentation/driver-api/early-userspace/buffer-format.rst of the kernel, which reads one zstd frame with a window of
// at most 128 MiB; 8 MiB are used, so that unpacking needs little memory.
package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"
)

// Tree is the content of a future archive. Make one with New.
type Tree struct {
	records map[string]cpio.Record
}

// New returns an empty tree.
func New() *Tree { return &Tree{records: map[string]cpio.Record{}} }

// clean returns an archive's name for a path, and creates its parents.
func (t *Tree) clean(name string) (string, error) {
	clean := path.Clean(name)
	if clean == "." || !filepath.IsLocal(clean) {
		return "", fmt.Errorf("put %q into the archive: not a path below its root", name)
	}
	for dir := path.Dir(clean); dir != "."; dir = path.Dir(dir) {
		r, ok := t.records[dir]
		if !ok {
			t.records[dir] = cpio.Directory(dir, 0o755)
		} else if r.Mode&cpio.S_IFMT != cpio.S_IFDIR {
			return "", fmt.Errorf("put %q into the archive: %s is not a folder there", name, dir)
		}
	}
	return clean, nil
}

func (t *Tree) put(name string, r func(clean string) cpio.Record) error {
	clean, err := t.clean(name)
	if err != nil {
		return err
	}
	rec := r(clean)
	if old, ok := t.records[clean]; ok && old.Mode&cpio.S_IFMT == cpio.S_IFDIR && rec.Mode&cpio.S_IFMT != cpio.S_IFDIR {
		return fmt.Errorf("put %q into the archive: it is a folder there", name)
	}
	t.records[clean] = rec
	return nil
}

// Dir adds a directory. An existing one gets the mode.
func (t *Tree) Dir(name string, mode fs.FileMode) error {
	return t.put(name, func(n string) cpio.Record { return cpio.Directory(n, bits(mode)) })
}

// File adds a file, replacing one of that name.
func (t *Tree) File(name string, data []byte, mode fs.FileMode) error {
	return t.put(name, func(n string) cpio.Record {
		return cpio.StaticRecord(data, cpio.Info{Name: n, Mode: cpio.S_IFREG | bits(mode)})
	})
}

// Symlink adds a symbolic link to target.
func (t *Tree) Symlink(name, target string) error {
	return t.put(name, func(n string) cpio.Record { return cpio.Symlink(n, target) })
}

// CharDev adds a character device.
func (t *Tree) CharDev(name string, mode fs.FileMode, major, minor uint64) error {
	return t.put(name, func(n string) cpio.Record { return cpio.CharDev(n, bits(mode), major, minor) })
}

// Folder adds the content of a directory of this machine under name, with its modes; "" is the root. Owners and times
// are dropped.
func (t *Tree) Folder(name, from string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("put folder %s into the archive: %w", from, err)
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return fmt.Errorf("put folder %s into the archive: %w", from, err)
		}
		to := path.Join(name, filepath.ToSlash(rel))
		if to == "." {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("put folder %s into the archive: %w", from, err)
		}
		switch {
		case info.IsDir():
			return t.Dir(to, info.Mode())
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(file)
			if err != nil {
				return fmt.Errorf("put folder %s into the archive: %w", from, err)
			}
			return t.Symlink(to, target)
		case info.Mode().IsRegular():
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("put folder %s into the archive: %w", from, err)
			}
			return t.File(to, data, info.Mode())
		}
		return fmt.Errorf("put folder %s into the archive: %s is neither file, folder nor link", from, file)
	})
}

func bits(mode fs.FileMode) uint64 {
	b := uint64(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			b |= bit
		}
	}
	return b
}

// Write writes the compressed archive, and returns its size before compression.
func (t *Tree) Write(w io.Writer) (unpacked int64, err error) {
	// One goroutine: with several, block boundaries would depend on their timing.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(8<<20))
	if err != nil {
		return 0, fmt.Errorf("write the archive: %w", err)
	}
	c := &counter{w: z}
	out := cpio.Newc.Writer(c)
	for i, name := range slices.Sorted(maps.Keys(t.records)) { // a parent sorts before its content
		r := t.records[name]
		r.Ino, r.NLink = uint64(i+1), 1
		if r.Mode&cpio.S_IFMT == cpio.S_IFDIR {
			r.NLink = 2
		}
		r.UID, r.GID, r.MTime, r.Dev, r.Major, r.Minor = 0, 0, 0, 0, 0, 0
		if err := out.WriteRecord(r); err != nil {
			return 0, errors.Join(fmt.Errorf("write %s into the archive: %w", name, err), z.Close())
		}
	}
	if err := cpio.WriteTrailer(out); err != nil {
		return 0, errors.Join(fmt.Errorf("write the archive: %w", err), z.Close())
	}
	if err := z.Close(); err != nil {
		return 0, fmt.Errorf("write the archive: %w", err)
	}
	return c.n, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Entry is one member of an archive that was read.
type Entry struct {
	Name string
	Mode fs.FileMode
	Data []byte // of a file; the target of a link
}

// maxUnpacked bounds the memory of Read.
const maxUnpacked = 1 << 30

// Read reads an archive made by Write, or another newc archive in zstd, and returns its members by name and its size
// before compression.
func Read(r io.Reader) (map[string]Entry, int64, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, 0, fmt.Errorf("read the archive: %w", err)
	}
	defer z.Close()
	data, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err != nil {
		return nil, 0, fmt.Errorf("read the archive: not zstd, or damaged: %w", err)
	}
	if len(data) > maxUnpacked {
		return nil, 0, fmt.Errorf("read the archive: it unpacks to more than %d bytes", maxUnpacked)
	}
	out := map[string]Entry{}
	rd := cpio.EOFReader{RecordReader: cpio.Newc.Reader(bytes.NewReader(data))}
	for {
		rec, err := rd.ReadRecord()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read the archive: not newc cpio, or cut short: %w", err)
		}
		e := Entry{Name: rec.Name, Mode: fs.FileMode(rec.Mode & 0o777)}
		switch rec.Mode & cpio.S_IFMT {
		case cpio.S_IFDIR:
			e.Mode |= fs.ModeDir
		case cpio.S_IFLNK:
			e.Mode |= fs.ModeSymlink
		case cpio.S_IFCHR:
			e.Mode |= fs.ModeDevice | fs.ModeCharDevice
		}
		if rec.ReaderAt != nil && rec.FileSize > 0 {
			if rec.FileSize > uint64(len(data)) {
				return nil, 0, fmt.Errorf("read %s from the archive: it is cut short", rec.Name)
			}
			e.Data = make([]byte, rec.FileSize)
			if _, err := rec.ReadAt(e.Data, 0); err != nil && err != io.EOF {
				return nil, 0, fmt.Errorf("read %s from the archive: %w", rec.Name, err)
			}
		}
		out[rec.Name] = e
	}
	if len(out) == 0 {
		return nil, 0, errors.New("read the archive: it is empty")
	}
	return out, int64(len(data)), nil
}
