package archive

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

func sample(t *testing.T, order []string) []byte {
	t.Helper()
	a := New()
	for _, name := range order {
		if err := a.File(name, []byte("content of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{a.CharDev("dev/null", 0o666, 1, 3), a.Symlink("bin/sh", "bb"),
		a.Dir("tmp", 0o777|fs.ModeSticky)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	n, err := a.Write(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n < 600 {
		t.Errorf("unpacked size = %d", n)
	}
	return b.Bytes()
}

func TestSameBytesInAnyOrder(t *testing.T) {
	one := sample(t, []string{"init", "lib/modules/6.1/a.ko", "etc/x"})
	two := sample(t, []string{"etc/x", "lib/modules/6.1/a.ko", "init"})
	if !bytes.Equal(one, two) {
		t.Error("the order of adding changed the archive")
	}
}

func TestReadBack(t *testing.T) {
	got, n, err := Read(bytes.NewReader(sample(t, []string{"init", "lib/modules/6.1/a.ko"})))
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 || string(got["init"].Data) != "content of init" || string(got["bin/sh"].Data) != "bb" {
		t.Errorf("read back %d bytes: %+v", n, got)
	}
	for name, want := range map[string]fs.FileMode{
		"lib": fs.ModeDir | 0o755, "lib/modules/6.1": fs.ModeDir | 0o755,
		"dev/null": fs.ModeDevice | fs.ModeCharDevice | 0o666, "init": 0o644,
	} {
		if got[name].Mode != want {
			t.Errorf("mode of %s = %v, want %v", name, got[name].Mode, want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	good := sample(t, []string{"init"})
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"not zstd":  {[]byte("hello, I am no archive at all, whatever my name says"), "not zstd"},
		"cut short": {good[:len(good)/2], "damaged"},
		"empty":     {nil, "is empty"},
	} {
		if _, _, err := Read(bytes.NewReader(tc.data)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error = %v, want one with %q", name, err, tc.want)
		}
	}
}

func TestFolder(t *testing.T) {
	make := func(when time.Time) []byte {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "lib/firmware"), 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "lib/firmware/a.bin")
		if err := os.WriteFile(file, []byte("fw"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("a.bin", filepath.Join(dir, "lib/firmware/b.bin")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, when, when); err != nil {
			t.Fatal(err)
		}
		a := New()
		if err := a.Folder("", dir); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := a.Write(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	one, two := make(time.Unix(1, 0)), make(time.Unix(1e9, 0))
	if !bytes.Equal(one, two) {
		t.Error("times of files changed the archive")
	}
	got, _, err := Read(bytes.NewReader(one))
	if err != nil || string(got["lib/firmware/a.bin"].Data) != "fw" ||
		string(got["lib/firmware/b.bin"].Data) != "a.bin" {
		t.Errorf("read back %+v, %v", got, err)
	}
}

func TestPathsBelowTheRoot(t *testing.T) {
	a := New()
	for _, name := range []string{"", ".", "..", "../x", "/etc/passwd", "a/../../b"} {
		if err := a.File(name, nil, 0o644); err == nil {
			t.Errorf("path %q was accepted", name)
		}
	}
	if err := a.File("etc", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := a.File("etc/passwd", nil, 0o644); err == nil {
		t.Error("a file became a folder")
	}
}

func FuzzRead(f *testing.F) {
	a := New()
	if err := errors.Join(a.File("init", []byte("hello"), 0o755), a.Symlink("bin/sh", "bb"),
		a.CharDev("dev/null", 0o666, 1, 3)); err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := a.Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _, _ = Read(bytes.NewReader(data))
		// Most damage stops at zstd: hand the same bytes on as what it unpacks to.
		var z bytes.Buffer
		w, err := zstd.NewWriter(&z)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, _, _ = Read(&z)
	})
}
