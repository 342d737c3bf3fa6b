package xfs

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
		Find: f.lookup, None: ErrNone, Info: f.info, Folder: f.entries, Link: f.link,
		File: func(i *inode) (func([]byte, int64) (int, error), error) {
			block := uint64(f.BlockSize)
			runs, err := f.runs(i, uint64(i.size)/block+min(1, uint64(i.size)%block))
			return func(b []byte, off int64) (int, error) { return f.part(runs, b, off) }, err
		},
	})
}

func (f *FS) info(name string, i *inode) openfs.Info { return openfs.Unix(name, i.mode, i.size) }

// part reads a part of a file. A hole reads as zeros.
func (f *FS) part(runs []run, b []byte, off int64) (int, error) {
	block := int64(f.BlockSize)
	at := uint64(off / block)
	k := sort.Search(len(runs), func(k int) bool { return runs[k].logical+runs[k].n > at })
	part := int64(len(b))
	if k == len(runs) || runs[k].logical > at {
		if k < len(runs) {
			part = min(part, int64(runs[k].logical)*block-off)
		}
		clear(b[:part])
		return int(part), nil
	}
	r := runs[k]
	in := off - int64(r.logical)*block
	part = min(part, int64(r.n)*block-in)
	if err := f.read(b[:part], int64(r.physical)*block+in); err != nil {
		return 0, fmt.Errorf("read block %d: %w", r.physical, err)
	}
	return int(part), nil
}

// entries returns the entries of a directory.
func (f *FS) entries(dir *inode) ([]fs.DirEntry, error) {
	var out []fs.DirEntry
	err := f.names(dir, func(name string, number uint64) (bool, error) {
		if strings.Contains(name, "/") || name == "." || name == ".." {
			return false, nil
		}
		i, err := f.inode(number)
		if err == nil {
			out = append(out, f.info(name, i))
		}
		return false, err
	})
	if errors.Is(err, ErrNone) {
		err = errors.New("not a folder")
	}
	return out, err
}
