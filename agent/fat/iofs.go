package fat

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// FS is an io/fs.FS, too, for one reader at a time. Names are found without regard to case, as firmware does.

// Serial is the file system's serial number as Linux and GRUB write its UUID: "AB12-34CD"; empty when it has none.
func (f *FS) Serial() string {
	if f.serial == 0 {
		return ""
	}
	return fmt.Sprintf("%04X-%04X", f.serial>>16, f.serial&0xffff)
}

// Open opens a file or folder.
func (f *FS) Open(name string) (fs.File, error) {
	e, err := f.at("open", name)
	if err != nil {
		return nil, err
	}
	if e.Dir {
		return &folder{info: info{*e}, fs: f}, nil
	}
	return &file{info: info{*e}, fs: f, at: e.first}, nil
}

// Stat describes a file or folder.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	e, err := f.at("stat", name)
	if err != nil {
		return nil, err
	}
	return info{*e}, nil
}

func (f *FS) at(op, name string) (*Entry, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		return &Entry{Name: ".", Dir: true, first: f.root}, nil
	}
	names := strings.Split(name, "/")
	var e *Entry
	for i, n := range names {
		list, err := f.List(e)
		if err != nil {
			return nil, &fs.PathError{Op: op, Path: name, Err: err}
		}
		k := slices.IndexFunc(list, func(x Entry) bool { return strings.EqualFold(x.Name, n) })
		if k < 0 || i < len(names)-1 && !list[k].Dir {
			return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		e = &list[k]
	}
	return e, nil
}

type info struct{ e Entry }

func (i info) Name() string               { return i.e.Name }
func (i info) Size() int64                { return int64(i.e.Size) }
func (i info) ModTime() time.Time         { return time.Time{} } // of no use to anybody here
func (i info) IsDir() bool                { return i.e.Dir }
func (i info) Sys() any                   { return nil }
func (i info) Type() fs.FileMode          { return i.Mode().Type() }
func (i info) Info() (fs.FileInfo, error) { return i, nil }
func (i info) Mode() fs.FileMode {
	if i.e.Dir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

// file is an open file; where its clusters are is found out on the way.
type file struct {
	info
	fs    *FS
	at    uint32
	chain []uint32
	off   int64
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

// cluster gives the number of the file's k-th cluster.
func (f *file) cluster(k int64) (uint32, error) {
	for int64(len(f.chain)) <= k {
		c := f.at
		if len(f.chain) > 0 {
			var ok bool
			var err error
			if c, ok, err = f.fs.next(f.chain[len(f.chain)-1]); err != nil {
				return 0, err
			} else if !ok {
				c = 0
			}
		}
		if c < 2 || c >= f.fs.clusters+2 {
			return 0, fmt.Errorf("%w: %s has %d bytes, but only %d clusters", ErrNot, f.e.Name, f.e.Size, len(f.chain))
		}
		f.chain = append(f.chain, c) // no longer than the size asks for, so that circles end
	}
	return f.chain[k], nil
}

func (f *file) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fs.ErrInvalid
	}
	if size := int64(f.e.Size); off+int64(len(b)) > size {
		b, err = b[:max(0, size-off)], io.EOF
	}
	for len(b) > 0 {
		c, cerr := f.cluster(off / f.fs.cluster)
		if cerr != nil {
			return n, cerr
		}
		in := off % f.fs.cluster
		part := min(int64(len(b)), f.fs.cluster-in)
		if f.fs.budget -= part; f.fs.budget < 0 {
			return n, fmt.Errorf("%w: too much was read of it", ErrNot)
		}
		if _, rerr := f.fs.r.ReadAt(b[:part], f.fs.data+int64(c-2)*f.fs.cluster+in); rerr != nil {
			return n, fmt.Errorf("read the FAT file system: %w", rerr)
		}
		b, off, n = b[part:], off+part, n+int(part)
	}
	return n, err
}

// folder is an open folder.
type folder struct {
	info
	fs   *FS
	rest []fs.DirEntry
	read bool
}

func (d *folder) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *folder) Close() error               { return nil }
func (d *folder) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.e.Name, Err: errors.New("a folder")}
}

func (d *folder) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.read {
		dir := &d.e
		if d.e.Name == "." {
			dir = nil
		}
		list, err := d.fs.List(dir)
		if err != nil {
			return nil, &fs.PathError{Op: "readdir", Path: d.e.Name, Err: err}
		}
		for _, e := range list {
			if e.Name != "" && !strings.Contains(e.Name, "/") {
				d.rest = append(d.rest, info{e})
			}
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
