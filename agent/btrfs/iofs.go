package btrfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
	"time"
)

// FS is an io/fs.FS of files that are read as they come. Symbolic links are followed inside it.

// Open opens a file or folder.
func (f *FS) Open(name string) (fs.File, error) {
	i, err := f.at("open", name, true)
	if err != nil {
		return nil, err
	}
	switch i.mode & typeMask {
	case typeDir:
		return &openDir{info: f.info(name, i), fs: f, inode: i}, nil
	case typeFile:
		runs, err := f.runs(i)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return &file{info: f.info(name, i), fs: f, runs: runs}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("neither a file nor a folder")}
}

// Stat describes a file or folder.
func (f *FS) Stat(name string) (fs.FileInfo, error) { return f.stat("stat", name, true) }

// Lstat describes a file, folder or symbolic link.
func (f *FS) Lstat(name string) (fs.FileInfo, error) { return f.stat("lstat", name, false) }

func (f *FS) stat(op, name string, follow bool) (fs.FileInfo, error) {
	i, err := f.at(op, name, follow)
	if err != nil {
		return nil, err
	}
	return f.info(name, i), nil
}

// ReadLink gives what a symbolic link says.
func (f *FS) ReadLink(name string) (string, error) {
	i, err := f.at("readlink", name, false)
	if err != nil {
		return "", err
	}
	if i.mode&typeMask != typeSymlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	s, err := f.link(i)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return s, nil
}

// ReadDir gives what is in a folder; links as links.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	i, err := f.at("readdir", name, true)
	if err != nil {
		return nil, err
	}
	d := openDir{info: f.info(name, i), fs: f, inode: i}
	return d.ReadDir(-1)
}

func (f *FS) at(op, name string, follow bool) (*inode, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	i, err := f.find(name, follow)
	if errors.Is(err, ErrNone) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return i, nil
}

type info struct {
	name string
	mode fs.FileMode
	size int64
}

func (f *FS) info(name string, i *inode) info {
	mode := fs.FileMode(i.mode & 0o777)
	switch i.mode & typeMask {
	case typeDir:
		mode |= fs.ModeDir
	case typeSymlink:
		mode |= fs.ModeSymlink
	case typeFile:
	default:
		mode |= fs.ModeIrregular
	}
	return info{path.Base(name), mode, i.size}
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return time.Time{} } // of no use to anybody here
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }

// file is an open file. A hole reads as zeros.
type file struct {
	info
	fs   *FS
	runs []run
	off  int64
	// last is what the packed piece of a place in the file holds, which is read in parts.
	last   []byte
	lastAt uint64
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

func (f *file) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.off)
	f.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (f *file) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fs.ErrInvalid
	}
	if int64(len(b)) > f.size-off {
		b, err = b[:max(0, f.size-off)], io.EOF
	}
	for len(b) > 0 {
		at := uint64(off)
		k := sort.Search(len(f.runs), func(k int) bool { return f.runs[k].at+f.runs[k].n > at })
		part := uint64(len(b))
		if k == len(f.runs) || f.runs[k].at > at {
			if k < len(f.runs) {
				part = min(part, f.runs[k].at-at)
			}
			clear(b[:part])
		} else {
			part = min(part, f.runs[k].n-(at-f.runs[k].at))
			if rerr := f.piece(b[:part], f.runs[k], at-f.runs[k].at); rerr != nil {
				return n, fmt.Errorf("read at byte %d: %w", off, rerr)
			}
		}
		b, off, n = b[part:], off+int64(part), n+int(part)
	}
	return n, err
}

// piece reads of a piece from a place in it on.
func (f *file) piece(b []byte, r run, from uint64) error {
	if r.inline == nil && r.packed == packedNot {
		return f.fs.read(b, r.disk+r.in+from)
	}
	if f.last == nil || f.lastAt != r.at {
		content, err := f.fs.content(r)
		if err != nil {
			return err
		}
		f.last, f.lastAt = content, r.at
	}
	copy(b, f.last[r.in+from:])
	return nil
}

// entry is a name in a folder. Its inode is looked for when somebody asks: of a large folder they are many.
type entry struct {
	dir  *openDir
	name string
	at   key
	kind byte
}

func (e *entry) Name() string { return e.name }
func (e *entry) IsDir() bool  { return e.Type().IsDir() }

func (e *entry) Type() fs.FileMode {
	switch e.kind {
	case 1:
		return 0
	case 2:
		return fs.ModeDir
	case 7:
		return fs.ModeSymlink
	}
	return fs.ModeIrregular
}

func (e *entry) Info() (fs.FileInfo, error) {
	i, err := e.dir.fs.target(e.dir.inode, e.name, e.at)
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: e.name, Err: err}
	}
	return e.dir.fs.info(e.name, i), nil
}

func (e *entry) String() string { return fs.FormatDirEntry(e) }

// openDir is an open folder.
type openDir struct {
	info
	fs    *FS
	inode *inode
	rest  []fs.DirEntry
	read  bool
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *openDir) Close() error               { return nil }
func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: errors.New("a folder")}
}

// ReadDir gives what is in the folder; links as links.
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.read {
		err := d.fs.list(d.inode, func(name string, at key, kind byte) {
			if !strings.Contains(name, "/") && name != "." && name != ".." {
				d.rest = append(d.rest, &entry{d, name, at, kind})
			}
		})
		if errors.Is(err, ErrNone) {
			err = errors.New("not a folder")
		}
		if err != nil {
			d.rest = nil
			return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: err}
		}
		slices.SortFunc(d.rest, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
		d.read = true
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
