// Package keyfile reads and writes the files that a conductor can't do without, such as its keys. A file is in place
// whole or not at all, and on disk before Write returns. A key that other users may read is refused: it may be known
// already, and the operator learns that before it is used.
package keyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// ReadableError says that a key can be read, or changed, by others than the conductor, and how that is repaired.
type ReadableError struct {
	File    string
	Mode    fs.FileMode
	Command string
}

func (e *ReadableError) Error() string {
	return fmt.Sprintf(
		"the key %s (mode %04o) is open to others than this program: take that away with `%s`, and think about whether it has been read already", e.File, e.Mode, e.Command)
}

// Read reads a key. Its owner has to be the user of this process or root; that user and the groups of this process may
// read it. If any other user may, the error is a *ReadableError.
func Read(path string) (key []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("read this process's groups: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := closed(path, info.Mode(), int(st.Uid), int(st.Gid), os.Geteuid(),
			append(groups, os.Getegid())); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(f)
}

// closed returns a *ReadableError for a file of this mode, owner and group that is not closed to others than the user
// and the groups of a process.
func closed(path string, mode fs.FileMode, owner, group, user int, groups []int) error {
	mode = mode.Perm()
	ours := slices.Contains(groups, group)
	owned := owner == user || owner == 0
	allowed := fs.FileMode(0o700)
	if ours {
		allowed |= 0o050
	}
	if owned && mode&^allowed == 0 {
		return nil
	}
	e := &ReadableError{path, mode, "chmod 600 " + path}
	switch {
	case owner == user:
	case owned && ours: // the process reads it as one of the group
		e.Command = "chmod 640 " + path
	default:
		e.Command = fmt.Sprintf("chown %d %s && chmod 600 %s", user, path, path)
	}
	return e
}

// Write replaces a file. A power cut leaves the old content or the new one.
func Write(path string, data []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // nothing, once it is renamed
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir has the names in a folder survive a power cut.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
