package openfs

import (
	"errors"
	"io/fs"
)

// Tree is an io/fs.FS with symbolic links, for a reader with inodes of type I. Links are followed inside it.
type Tree[I any] struct{ is Inodes[I] }

// Inodes are the functions of a reader.
type Inodes[I any] struct {
	// name is valid for io/fs; a link at its end is followed if follow is set
	Find   func(name string, follow bool) (I, error)
	None   error // what errors wrap that say that there is no such file; fs.ErrNotExist does, too
	Info   func(name string, i I) Info
	File   func(i I) (part func(b []byte, off int64) (int, error), err error) // as for NewFile
	Folder func(i I) ([]fs.DirEntry, error)
	Link   func(i I) (string, error)
}

// NewTree returns a Tree.
func NewTree[I any](is Inodes[I]) Tree[I] { return Tree[I]{is} }

// Open opens a file or directory.
func (t *Tree[I]) Open(name string) (fs.File, error) {
	i, info, err := t.at("open", name, true)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return t.folder(i, info), nil
	case info.Mode().IsRegular():
		part, err := t.is.File(i)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return NewFile(info, part), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("neither a file nor a folder")}
}

// Stat describes a file or directory.
func (t *Tree[I]) Stat(name string) (fs.FileInfo, error) { return t.stat("stat", name, true) }

// Lstat describes a file, directory or symbolic link.
func (t *Tree[I]) Lstat(name string) (fs.FileInfo, error) { return t.stat("lstat", name, false) }

func (t *Tree[I]) stat(op, name string, follow bool) (fs.FileInfo, error) {
	_, info, err := t.at(op, name, follow)
	if err != nil {
		return nil, err
	}
	return info, nil
}

// ReadLink returns the target of a symbolic link.
func (t *Tree[I]) ReadLink(name string) (string, error) {
	i, info, err := t.at("readlink", name, false)
	if err != nil {
		return "", err
	}
	if info.Type() != fs.ModeSymlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	s, err := t.is.Link(i)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return s, nil
}

// ReadDir returns the entries of a directory; links as links.
func (t *Tree[I]) ReadDir(name string) ([]fs.DirEntry, error) {
	i, info, err := t.at("readdir", name, true)
	if err != nil {
		return nil, err
	}
	return t.folder(i, info).ReadDir(-1)
}

func (t *Tree[I]) folder(i I, info Info) *Dir {
	return NewDir(info, func() ([]fs.DirEntry, error) { return t.is.Folder(i) })
}

func (t *Tree[I]) at(op, name string, follow bool) (i I, info Info, err error) {
	if !fs.ValidPath(name) {
		return i, info, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if i, err = t.is.Find(name, follow); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, t.is.None) {
			err = fs.ErrNotExist
		}
		return i, info, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return i, t.is.Info(name, i), nil
}
