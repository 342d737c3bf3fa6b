package ext4

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"

	"github.com/ingot-metal/ingot/agent/openfs"
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
		return openfs.NewDir(f.info(name, i), func() ([]fs.DirEntry, error) { return f.entries(i) }), nil
	case typeFile:
		if i.inline != nil {
			data, err := f.content(i, int64(len(i.inline)))
			if err != nil {
				return nil, &fs.PathError{Op: "open", Path: name, Err: err}
			}
			return openfs.NewFile(f.info(name, i), func(b []byte, off int64) (int, error) {
				if off >= int64(len(data)) {
					return 0, fmt.Errorf("%w: a file ends before its size", ErrNot)
				}
				return copy(b, data[off:]), nil
			}), nil
		}
		runs, err := f.runs(i)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return openfs.NewFile(f.info(name, i), func(b []byte, off int64) (int, error) { return f.part(runs, b, off) }), nil
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

func (f *FS) info(name string, i *inode) openfs.Info { return openfs.Unix(name, i.mode, i.size) }

// part reads of a file in pieces. A hole reads as zeros.
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
	part = min(part, int64(r.logical+r.n)*block-off)
	if f.budget -= part; f.budget < 0 {
		return 0, fmt.Errorf("%w: too much was read of it", ErrNot)
	}
	if _, err := f.r.ReadAt(b[:part], int64(r.physical-r.logical)*block+off); err != nil {
		return 0, fmt.Errorf("read block %d: %w", r.physical, err)
	}
	return int(part), nil
}

// entries gives what is in a folder.
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
