package ext4

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// FS is an io/fs.FS whose files are read on demand, for one reader at a time. Symbolic links are followed inside it.

func (f *FS) tree() openfs.Tree[*inode] {
	return openfs.NewTree(openfs.Inodes[*inode]{
		Find: f.lookup, None: ErrNone, Info: f.info, Folder: f.entries, Link: f.link, File: f.file,
	})
}

// file returns the read function of a file.
func (f *FS) file(i *inode) (func(b []byte, off int64) (int, error), error) {
	if i.inline == nil {
		runs, err := f.runs(i)
		return func(b []byte, off int64) (int, error) { return f.part(runs, b, off) }, err
	}
	data, err := f.content(i, int64(len(i.inline)))
	return func(b []byte, off int64) (int, error) {
		if off >= int64(len(data)) {
			return 0, fmt.Errorf("%w: a file ends before its size", ErrNot)
		}
		return copy(b, data[off:]), nil
	}, err
}

// maxRuns bounds the number of pieces of a file: a ramdisk of 100 MiB has a few dozen.
const maxRuns = 1 << 16

var errTooMany = fmt.Errorf("%w: a file in too many pieces", ErrNot)

// runs are the blocks of a file's content that are not zeros, in order.
func (f *FS) runs(i *inode) ([]extent, error) {
	l := layout{fs: f, end: (uint64(i.size) + uint64(f.BlockSize) - 1) / uint64(f.BlockSize), most: maxRuns,
		tooMany: errTooMany}
	err := l.walk(i)
	slices.SortStableFunc(l.pieces, func(a, b extent) int { return cmp.Compare(a.logical, b.logical) })
	return l.pieces, err
}

func (f *FS) info(name string, i *inode) openfs.Info { return openfs.Unix(name, i.mode, i.size) }

// part reads of a file in pieces. A hole reads as zeros.
func (f *FS) part(runs []extent, b []byte, off int64) (int, error) {
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
	part = min(part, int64(r.logical+r.n)*block-off)
	if f.budget -= part; f.budget < 0 {
		return 0, fmt.Errorf("%w: too much was read of it", ErrNot)
	}
	if _, err := f.r.ReadAt(b[:part], int64(r.start-r.logical)*block+off); err != nil {
		return 0, fmt.Errorf("read block %d: %w", r.start, err)
	}
	return int(part), nil
}

// entries returns the entries of a directory.
func (f *FS) entries(dir *inode) ([]fs.DirEntry, error) {
	names, order, err := f.dir(dir)
	if err != nil {
		return nil, err
	}
	var out []fs.DirEntry
	for _, name := range order {
		if name == "." || name == ".." || path.Base(name) != name {
			continue
		}
		i, err := f.inode(names[name])
		if err != nil {
			return nil, err
		}
		out = append(out, f.info(name, i))
	}
	return out, nil
}
