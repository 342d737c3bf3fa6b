package ext4

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sort"
	"time"
)

// FS is an io/fs.FS, too: of files that are read as they come, by one reader at a time. Symbolic links are followed inside it.

// maxRuns bounds how many pieces a file may be in: a ramdisk of 100 MiB has a few dozen.
const maxRuns = 1 << 16

// Open opens a file or folder.
func (f *FS) Open(name string) (fs.File, error) {
	i, err := f.at("open", name)
	if err != nil {
		return nil, err
	}
	switch i.mode & typeMask {
	case typeDir:
		return &openDir{info: f.info(name, i), fs: f, inode: i}, nil
	case typeFile:
		file := &file{info: f.info(name, i), fs: f}
		if i.inline != nil {
			file.inline, err = f.content(i, int64(len(i.inline)))
		} else {
			file.runs, err = f.runs(i)
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return file, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("neither a file nor a folder")}
}

// Stat describes a file or folder.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	i, err := f.at("stat", name)
	if err != nil {
		return nil, err
	}
	return f.info(name, i), nil
}

func (f *FS) at(op, name string) (*inode, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	i, err := f.lookup(name)
	if errors.Is(err, ErrNone) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return i, nil
}

// run is a range of blocks.
type run struct{ logical, physical, n uint64 }

func (f *FS) runs(i *inode) ([]run, error) {
	var out []run
	err := f.walk(i, func(logical, physical, n uint64) error {
		if physical == 0 || physical+n > f.blocks || physical+n < physical {
			return fmt.Errorf("%w: block %d lies outside", ErrNot, physical)
		}
		if k := len(out) - 1; k >= 0 && out[k].logical+out[k].n == logical && out[k].physical+out[k].n == physical {
			out[k].n += n
			return nil
		}
		if len(out) == maxRuns {
			return fmt.Errorf("%w: a file in too many pieces", ErrNot)
		}
		out = append(out, run{logical, physical, n})
		return nil
	})
	slices.SortStableFunc(out, func(a, b run) int { return cmp.Compare(a.logical, b.logical) })
	return out, err
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
	fs     *FS
	runs   []run
	inline []byte
	off    int64
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
	if f.inline != nil {
		if n = copy(b, f.inline[min(off, int64(len(f.inline))):]); n < len(b) {
			err = io.EOF
		}
		return n, err
	}
	if off+int64(len(b)) > f.size {
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
			part = min(part, int64(r.logical+r.n)*block-off)
			if f.fs.budget -= part; f.fs.budget < 0 {
				return n, fmt.Errorf("%w: too much was read of it", ErrNot)
			}
			if _, rerr := f.fs.r.ReadAt(b[:part], int64(r.physical-r.logical)*block+off); rerr != nil {
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
		names, order, err := d.fs.dir(d.inode)
		if err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: err}
		}
		for _, name := range order {
			if name == "." || name == ".." || path.Base(name) != name {
				continue
			}
			i, err := d.fs.inode(names[name])
			if err != nil {
				return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: err}
			}
			d.rest = append(d.rest, d.fs.info(name, i))
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
