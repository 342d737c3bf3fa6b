package fat

import (
	"cmp"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// FS is also an io/fs.FS, for one reader at a time. Names are looked up ignoring case, as in firmware.

// Serial returns the file system's serial number in the form of its UUID in Linux and GRUB: "AB12-34CD"; empty if it
// has none.
func (f *FS) Serial() string {
	if f.serial == 0 {
		return ""
	}
	return fmt.Sprintf("%04X-%04X", f.serial>>16, f.serial&0xffff)
}

// Open opens a file or directory.
func (f *FS) Open(name string) (fs.File, error) {
	e, err := f.at("open", name)
	if err != nil {
		return nil, err
	}
	if e.Dir {
		return openfs.NewDir(info(e), func() ([]fs.DirEntry, error) { return f.entries(e) }), nil
	}
	return openfs.NewFile(info(e), (&file{e: e, fs: f}).part), nil
}

// Stat describes a file or directory.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	e, err := f.at("stat", name)
	if err != nil {
		return nil, err
	}
	return info(e), nil
}

func (f *FS) at(op, name string) (*Entry, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if name == "." {
		return &Entry{Name: ".", Dir: true, first: f.root}, nil
	}
	e, err := f.Find(strings.Split(name, "/")...)
	if e == nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: cmp.Or(err, fs.ErrNotExist)}
	}
	return e, nil
}

func info(e *Entry) openfs.Info {
	if e.Dir {
		return openfs.NewInfo(e.Name, fs.ModeDir|0o755, 0)
	}
	return openfs.NewInfo(e.Name, 0o644, int64(e.Size))
}

// file is an open file; its cluster chain is read on demand.
type file struct {
	e     *Entry
	fs    *FS
	chain []uint32
}

// cluster returns the number of the file's k-th cluster.
func (f *file) cluster(k int64) (uint32, error) {
	for int64(len(f.chain)) <= k {
		c, ok := f.e.first, f.fs.valid(f.e.first)
		if len(f.chain) > 0 {
			var err error
			if c, ok, err = f.fs.next(f.chain[len(f.chain)-1]); err != nil {
				return 0, err
			}
		}
		if !ok {
			return 0, fmt.Errorf("%w: %s has %d bytes, but only %d clusters", ErrNot, f.e.Name, f.e.Size, len(f.chain))
		}
		f.chain = append(f.chain, c) // bounded by the size, so that loops end
	}
	return f.chain[k], nil
}

func (f *file) part(b []byte, off int64) (int, error) {
	c, err := f.cluster(off / f.fs.cluster)
	if err != nil {
		return 0, err
	}
	in := off % f.fs.cluster
	b = b[:min(int64(len(b)), f.fs.cluster-in)]
	if err := f.fs.readData(b, c, in); err != nil {
		return 0, err
	}
	return len(b), nil
}

// entries returns the entries of a directory.
func (f *FS) entries(dir *Entry) ([]fs.DirEntry, error) {
	if dir.Name == "." {
		dir = nil
	}
	list, err := f.List(dir)
	if err != nil {
		return nil, err
	}
	var out []fs.DirEntry
	for _, e := range list {
		if e.Name != "" && !strings.Contains(e.Name, "/") {
			out = append(out, info(&e))
		}
	}
	return out, nil
}
