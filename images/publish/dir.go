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
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// Dir is a folder with published images: their indices, and the objects of all of them.
type Dir string

func (d Dir) index(name string) string { return filepath.Join(string(d), name+index.Suffix) }

func (d Dir) object(o index.Object) string {
	return filepath.Join(string(d), filepath.FromSlash(o.Path()))
}

func (d Dir) make() error { return os.MkdirAll(filepath.Join(string(d), "objects"), 0o755) }

// put stores an object and tells whether it is new. One that is there already and right is left alone.
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

// ReadObject reads an object, not more than it may have, and checks it.
func ReadObject(r io.Reader, o index.Object) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, o.Len+1))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", o, err)
	}
	return b, o.Verify(b)
}

// finish makes a publication visible: everything it refers to is on the disk by then.
func (d Dir) finish(name string, x []byte, signatures map[string][]byte) error {
	folders, err := filepath.Glob(filepath.Join(string(d), "objects", "??"))
	if err != nil {
		return err
	}
	for _, f := range append(folders, filepath.Join(string(d), "objects"), string(d)) {
		if err := sweep(f); err != nil {
			return err
		}
		if err := syncDir(f); err != nil {
			return err
		}
	}
	for _, suffix := range index.SignatureSuffixes {
		path := d.index(name) + suffix
		if s, ok := signatures[suffix]; ok {
			err = writeFile(path, s)
		} else if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil // one of an earlier index, if there was one, would only mislead
		}
		if err != nil {
			return err
		}
	}
	if err := writeFile(d.index(name), x); err != nil {
		return err
	}
	return syncDir(string(d))
}

// writeFile writes a file that is either complete or not there.
func writeFile(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".ingot-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(b); err != nil {
		return err
	}
	// A web server of another user is to read it; CreateTemp makes it for its owner alone.
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// sweep removes what killed publications have left half written. Nobody takes an hour to write one file.
func sweep(folder string) error {
	left, err := filepath.Glob(filepath.Join(folder, ".ingot-*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > time.Hour {
			os.Remove(path)
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
