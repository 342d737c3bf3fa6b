// Package openfs is the common part of our file system readers as io/fs.FS (open files and directories, and their
// description), and of our writers: the tree of the files to write.
//
// A reader provides functions that read a file's bytes and list a directory. Everything else that an fs.File needs is
// here. Sizes and offsets are bytes. Nothing here is safe for concurrent use.
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

// Info describes a file, directory or link. It is an fs.FileInfo and an fs.DirEntry.
type Info struct {
	name string
	mode fs.FileMode
	size int64
}

// NewInfo describes the file of the last part of name.
func NewInfo(name string, mode fs.FileMode, size int64) Info {
	return Info{path.Base(name), mode, size}
}

// Unix describes a file by a Unix mode: file type and permissions. Other types than file, directory and link are
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

// Size is the size of a file.
func (i Info) Size() int64 { return i.size }

// Mode is the type and permissions.
func (i Info) Mode() fs.FileMode { return i.mode }

// ModTime is the zero time: it is not needed here.
func (i Info) ModTime() time.Time { return time.Time{} }

// IsDir reports whether it is a directory.
func (i Info) IsDir() bool { return i.mode.IsDir() }

// Sys is nil.
func (i Info) Sys() any { return nil }

// Type is the type without permissions.
func (i Info) Type() fs.FileMode { return i.mode.Type() }

// Info returns i.
func (i Info) Info() (fs.FileInfo, error) { return i, nil }

// File is an open file. It is also an io.ReaderAt.
type File struct {
	info Info
	part func(b []byte, off int64) (int, error)
	off  int64
}

// NewFile returns an open file. part reads some of the bytes at an offset, at least one, and is never called for an
// offset beyond the size.
func NewFile(i Info, part func(b []byte, off int64) (int, error)) *File {
	return &File{info: i, part: part}
}

// Stat describes the file.
func (f *File) Stat() (fs.FileInfo, error) { return f.info, nil }

// Close does nothing.
func (f *File) Close() error { return nil }

// Read reads the next bytes.
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

// Dir is an open directory.
type Dir struct {
	info Info
	list func() ([]fs.DirEntry, error)
	rest []fs.DirEntry
	read bool
}

// NewDir returns an open directory. list returns its entries, in any order; it is called once.
func NewDir(i Info, list func() ([]fs.DirEntry, error)) *Dir { return &Dir{info: i, list: list} }

// Stat describes the directory.
func (d *Dir) Stat() (fs.FileInfo, error) { return d.info, nil }

// Close does nothing.
func (d *Dir) Close() error { return nil }

// Read returns an error.
func (d *Dir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.info.name, Err: errors.New("a folder")}
}

// ReadDir returns the directory's entries by name; links as links.
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
