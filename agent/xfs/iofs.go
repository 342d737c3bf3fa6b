package xfs

import (
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/ingot-metal/ingot/agent/openfs"
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
		return f.folder(name, i), nil
	case typeFile:
		block := uint64(f.BlockSize)
		runs, err := f.runs(i, uint64(i.size)/block+min(1, uint64(i.size)%block))
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return openfs.NewFile(f.info(name, i), func(b []byte, off int64) (int, error) { return f.part(runs, b, off) }), nil
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
	return f.folder(name, i).ReadDir(-1)
}

func (f *FS) folder(name string, i *inode) *openfs.Dir {
	return openfs.NewDir(f.info(name, i), func() ([]fs.DirEntry, error) { return f.entries(i) })
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
	in := off - int64(r.logical)*block
	part = min(part, int64(r.n)*block-in)
	if err := f.read(b[:part], int64(r.physical)*block+in); err != nil {
		return 0, fmt.Errorf("read block %d: %w", r.physical, err)
	}
	return int(part), nil
}

// entries gives what is in a folder.
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
