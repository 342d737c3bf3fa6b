// Package openfs is what our readers of file systems have in common as io/fs.FS (open files, open folders, and what is
// known of them), and our writers: the tree of the files that are to be written.
//
// A reader says how bytes of a file are read and what is in a folder. The rest, which every fs.File has to do, is here.
// Sizes and offsets are bytes. Nothing here is for several goroutines at a time.
package openfs

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"
)

// Info describes a file, folder or link. It is an fs.FileInfo and an fs.DirEntry.
type Info struct {
	name string
	mode fs.FileMode
	size int64
}

// NewInfo describes what the last part of name names.
func NewInfo(name string, mode fs.FileMode, size int64) Info {
	return Info{path.Base(name), mode, size}
}

// Unix describes what has a mode as Unix counts it: file type and permissions. What is neither file, folder nor link is
// irregular.
func Unix(name string, mode uint16, size int64) Info {
	m := fs.FileMode(mode & 0o777)
	switch mode & 0xf000 {
	case 0x4000:
		m |= fs.ModeDir
	case 0xa000:
		m |= fs.ModeSymlink
	case 0x8000:
	default:
		m |= fs.ModeIrregular
	}
	return NewInfo(name, m, size)
}

// Name is the last part of the path.
func (i Info) Name() string { return i.name }

// Size is that of a file.
func (i Info) Size() int64 { return i.size }

// Mode is type and permissions.
func (i Info) Mode() fs.FileMode { return i.mode }

// ModTime is the zero time: it is of no use to anybody here.
func (i Info) ModTime() time.Time { return time.Time{} }

// IsDir tells whether it is a folder.
func (i Info) IsDir() bool { return i.mode.IsDir() }

// Sys is nil.
func (i Info) Sys() any { return nil }

// Type is the type alone.
func (i Info) Type() fs.FileMode { return i.mode.Type() }

// Info is itself.
func (i Info) Info() (fs.FileInfo, error) { return i, nil }

// File is an open file. It is an io.ReaderAt, too.
type File struct {
	info Info
	part func(b []byte, off int64) (int, error)
	off  int64
}

// NewFile makes one. part reads some of the bytes at an offset, at least one, and is never asked for any behind the
// size.
func NewFile(i Info, part func(b []byte, off int64) (int, error)) *File {
	return &File{info: i, part: part}
}

// Stat describes the file.
func (f *File) Stat() (fs.FileInfo, error) { return f.info, nil }

// Close does nothing.
func (f *File) Close() error { return nil }

// Read reads on.
func (f *File) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.off)
	f.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt reads from an offset.
func (f *File) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fs.ErrInvalid
	}
	if int64(len(b)) > f.info.size-off {
		b, err = b[:max(0, f.info.size-off)], io.EOF
	}
	for len(b) > 0 {
		k, perr := f.part(b, off)
		if perr == nil && k == 0 {
			perr = io.ErrNoProgress
		}
		if perr != nil {
			return n, perr
		}
		b, off, n = b[k:], off+int64(k), n+k
	}
	return n, err
}

// Dir is an open folder.
type Dir struct {
	info Info
	list func() ([]fs.DirEntry, error)
	rest []fs.DirEntry
	read bool
}

// NewDir makes one. list gives what is in it, in any order; it is called once.
func NewDir(i Info, list func() ([]fs.DirEntry, error)) *Dir { return &Dir{info: i, list: list} }

// Stat describes the folder.
func (d *Dir) Stat() (fs.FileInfo, error) { return d.info, nil }

// Close does nothing.
func (d *Dir) Close() error { return nil }

// Read is an error.
func (d *Dir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.info.name, Err: errors.New("a folder")}
}

// ReadDir gives what is in the folder by name; links as links.
func (d *Dir) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.read {
		list, err := d.list()
		if err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: d.info.name, Err: err}
		}
		slices.SortFunc(list, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
		d.rest, d.read = list, true
	}
	if n <= 0 {
		out := d.rest
		d.rest = nil
		return out, nil
	}
	if len(d.rest) == 0 {
		return nil, io.EOF
	}
	out := d.rest[:min(n, len(d.rest))]
	d.rest = d.rest[len(out):]
	return out, nil
}
