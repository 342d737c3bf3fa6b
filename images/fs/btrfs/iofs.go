package btrfs

import (
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// FS is an io/fs.FS whose files are read on demand. Symbolic links are followed inside it.

func (f *FS) tree() openfs.Tree[*inode] {
	return openfs.NewTree(openfs.Inodes[*inode]{
		Find: f.find, None: ErrNone, Info: f.info, Folder: f.entries, Link: f.link,
		File: func(i *inode) (func([]byte, int64) (int, error), error) {
			runs, err := f.runs(i)
			return (&file{fs: f, runs: runs}).part, err
		},
	})
}

func (f *FS) info(name string, i *inode) openfs.Info {
	return openfs.Unix(name, uint16(i.mode), i.size)
}

// file is an open file. A hole reads as zeros.
type file struct {
	fs   *FS
	runs []run
	// last is the decompressed content of the last piece, which is read in parts.
	last   []byte
	lastAt uint64
}

func (f *file) part(b []byte, off int64) (int, error) {
	at := uint64(off)
	k := sort.Search(len(f.runs), func(k int) bool { return f.runs[k].at+f.runs[k].n > at })
	part := uint64(len(b))
	if k == len(f.runs) || f.runs[k].at > at {
		if k < len(f.runs) {
			part = min(part, f.runs[k].at-at)
		}
		clear(b[:part])
		return int(part), nil
	}
	part = min(part, f.runs[k].n-(at-f.runs[k].at))
	if err := f.piece(b[:part], f.runs[k], at-f.runs[k].at); err != nil {
		return 0, fmt.Errorf("read at byte %d: %w", off, err)
	}
	return int(part), nil
}

// piece reads from an offset of a piece.
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

// entry is a name in a directory. Its inode is read on demand, since large directories have many.
type entry struct {
	fs   *FS
	dir  *inode
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
	i, err := e.fs.target(e.dir, e.name, e.at)
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: e.name, Err: err}
	}
	return e.fs.info(e.name, i), nil
}

func (e *entry) String() string { return fs.FormatDirEntry(e) }

// entries returns the entries of a directory.
func (f *FS) entries(dir *inode) ([]fs.DirEntry, error) {
	var out []fs.DirEntry
	err := f.list(dir, func(name string, at key, kind byte) {
		if !strings.Contains(name, "/") && name != "." && name != ".." {
			out = append(out, &entry{f, dir, name, at, kind})
		}
	})
	if errors.Is(err, ErrNone) {
		err = errors.New("not a folder")
	}
	return out, err
}
