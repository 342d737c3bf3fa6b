package xfs

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
		block := uint64(f.BlockSize)
		runs, err := f.runs(i, uint64(i.size)/block+min(1, uint64(i.size)%block))
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
	i, err := f.lookup(name, follow)
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

func (i info) Name() string               { return i.name }
func (i info) Size() int64                { return i.size }
func (i info) Mode() fs.FileMode          { return i.mode }
func (i info) ModTime() time.Time         { return time.Time{} } // of no use to anybody here
func (i info) IsDir() bool                { return i.mode.IsDir() }
func (i info) Sys() any                   { return nil }
func (i info) Type() fs.FileMode          { return i.mode.Type() }
func (i info) Info() (fs.FileInfo, error) { return i, nil }

// file is an open file. A hole reads as zeros.
type file struct {
	info
	fs   *FS
	runs []run
	off  int64
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
	block := int64(f.fs.BlockSize)
	for len(b) > 0 {
		at := uint64(off / block)
		k := sort.Search(len(f.runs), func(k int) bool { return f.runs[k].logical+f.runs[k].n > at })
		part := int64(len(b))
		if k == len(f.runs) || f.runs[k].logical > at {
			if k < len(f.runs) {
				part = min(part, int64(f.runs[k].logical)*block-off)
			}
			clear(b[:part])
		} else {
			r := f.runs[k]
			in := off - int64(r.logical)*block
			part = min(part, int64(r.n)*block-in)
			if rerr := f.fs.read(b[:part], int64(r.physical)*block+in); rerr != nil {
				return n, fmt.Errorf("read block %d: %w", r.physical, rerr)
			}
		}
		b, off, n = b[part:], off+part, n+int(part)
	}
	return n, err
}

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
		err := d.fs.names(d.inode, func(name string, number uint64) (bool, error) {
			if strings.Contains(name, "/") || name == "." || name == ".." {
				return false, nil
			}
			i, err := d.fs.inode(number)
			if err == nil {
				d.rest = append(d.rest, d.fs.info(name, i))
			}
			return false, err
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
