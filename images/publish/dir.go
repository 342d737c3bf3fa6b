package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// Dir is a directory with published images: their indices, and the objects of all of them.
type Dir string

func (d Dir) index(name string) string { return filepath.Join(string(d), name+index.Suffix) }

func (d Dir) object(o index.Object) string {
	return filepath.Join(string(d), filepath.FromSlash(o.Path()))
}

// make prepares the directory for an image of this name.
func (d Dir) make(name string) error {
	for _, suffix := range append([]string{""}, index.SignatureSuffixes...) {
		path := d.index(name) + suffix
		if info, err := os.Lstat(path); err == nil && info.IsDir() {
			return refuse("remove it, or give the image another name", "%s is a folder, where a file has to be", path)
		}
	}
	return os.MkdirAll(filepath.Join(string(d), "objects"), 0o755)
}

// put stores an object and reports whether it is new. An existing correct object is left alone.
func (d Dir) put(o index.Object, stored []byte) (fresh bool, err error) {
	path := d.object(o)
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, stored) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	return true, writeFile(path, stored)
}

// Object reads an object and checks it.
func (d Dir) Object(_ context.Context, o index.Object) ([]byte, error) {
	f, err := os.Open(d.object(o))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("publish the image again", "object %s is missing", o)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadObject(f, o)
}

// ReadObject reads an object, bounded by its size, and checks it.
func ReadObject(r io.Reader, o index.Object) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, o.Len+1))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", o, err)
	}
	return b, o.Verify(b)
}

// finish makes a publication visible, after everything it refers to is on the disk.
func (d Dir) finish(name string, x []byte, signatures map[string][]byte) error {
	objects := filepath.Join(string(d), "objects")
	below, err := os.ReadDir(objects) // no Glob: a directory's name may have brackets
	if err != nil {
		return err
	}
	folders := []string{objects, string(d)}
	for _, e := range below {
		if e.IsDir() && len(e.Name()) == 2 {
			folders = append(folders, filepath.Join(objects, e.Name()))
		}
	}
	for _, f := range folders {
		if err := sweep(f); err != nil {
			return err
		}
		if err := syncDir(f); err != nil {
			return err
		}
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return d.replace(onDisk{}, name, x, signatures)
}

// lock prevents two publications of one name from mixing their indices and signatures.
func (d Dir) lock() (unlock func(), err error) {
	f, err := os.Open(string(d))
	if err != nil {
		return nil, err
	}
	// Some network file systems have no locks. Only simultaneous publications need this one.
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	return func() { _ = f.Close() }, nil
}

// folder holds the operations of replace on a directory.
type folder interface {
	write(path string, b []byte) error // the complete file, or nothing
	remove(path string) error
	sync(path string) error // of the directory itself: makes earlier operations durable
}

// replace replaces an index and its signatures, if there are any.
//
// No two files change at the same time, and a reader fetches both. So the signature files hold both the old and the new
// signatures while the index changes: a reader at any moment, and after a crash or power failure at any moment, finds
// the old index or the new one, with a valid signature. An index that was not signed, or no longer is, has no signature
// while it changes: that is a plain refusal, and not a mismatch that looks like an attack.
func (d Dir) replace(f folder, name string, x []byte, signatures map[string][]byte) error {
	path := d.index(name)
	_, err := os.Lstat(path)
	first := errors.Is(err, fs.ErrNotExist)
	old, err := d.signatures(name)
	if err != nil {
		return err
	}
	for _, suffix := range index.SignatureSuffixes {
		before, there := old[suffix]
		now, signed := signatures[suffix]
		switch {
		case first:
			before = nil // signatures without an index are leftovers
		case len(old) == 0:
			continue // it would not match the old index
		case len(signatures) > 0 && !signed:
			continue // for readers that accept either kind
		}
		var both []byte
		if signed {
			both = index.JoinSignatures(before, now) // nil after many crashes here
		}
		if both != nil {
			err = f.write(path+suffix, both)
		} else if there {
			err = f.remove(path + suffix)
		}
		if err != nil {
			return err
		}
	}
	if err := f.sync(string(d)); err != nil {
		return err
	}
	if err := f.write(path, x); err != nil {
		return err
	}
	if err := f.sync(string(d)); err != nil {
		return err
	}
	for _, suffix := range index.SignatureSuffixes {
		if now, signed := signatures[suffix]; signed {
			err = f.write(path+suffix, now)
		} else if _, there := old[suffix]; there {
			err = f.remove(path + suffix)
		}
		if err != nil {
			return err
		}
	}
	return f.sync(string(d))
}

// signatures reads the signature files of an image, up to the length that readers accept.
func (d Dir) signatures(name string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, suffix := range index.SignatureSuffixes {
		f, err := os.Open(d.index(name) + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			all[suffix], err = io.ReadAll(io.LimitReader(f, index.MaxSignature+1))
			_ = f.Close()
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

type onDisk struct{}

func (onDisk) write(path string, b []byte) error { return writeFile(path, b) }
func (onDisk) sync(path string) error            { return syncDir(path) }
func (onDisk) remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeFile writes a file atomically.
func writeFile(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".ingot-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name()) // else the next publication removes it
		}
	}()
	// A web server under another user must read it; CreateTemp restricts it to the owner.
	chmodErr := f.Chmod(0o644)
	_, err = f.Write(b)
	if err := errors.Join(chmodErr, err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// sweep removes unfinished files of killed publications. Writing one file never takes an hour.
func sweep(folder string) error {
	left, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), ".ingot-") {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(folder, e.Name())) // a leftover only costs space
		}
	}
	return nil
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
