package openfs

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"
)

// content reads of a text at most three bytes at a time.
func content(text string) func([]byte, int64) (int, error) {
	return func(b []byte, off int64) (int, error) {
		if off >= int64(len(text)) {
			return 0, errors.New("asked for what lies behind the end")
		}
		return copy(b[:min(3, len(b))], text[off:]), nil
	}
}

func TestFile(t *testing.T) {
	text := strings.Repeat("0123456789", 10)
	if err := iotest.TestReader(NewFile(NewInfo("a/b", 0o644, int64(len(text))), content(text)),
		[]byte(text)); err != nil {
		t.Error(err)
	}
	f := NewFile(NewInfo("a/b", 0o644, int64(len(text))), content(text))
	b := make([]byte, 7)
	for _, c := range []struct {
		off  int64
		want string
		err  error
	}{{0, "0123456", nil}, {93, "3456789", nil}, {96, "6789", io.EOF}, {100, "", io.EOF}, {1 << 62, "", io.EOF},
		{-1, "", fs.ErrInvalid}} {
		if n, err := f.ReadAt(b, c.off); string(b[:n]) != c.want || !errors.Is(err, c.err) {
			t.Errorf("ReadAt(%d) = %q, %v; want %q, %v", c.off, b[:n], err, c.want, c.err)
		}
	}
	if info, err := f.Stat(); err != nil || info.Name() != "b" || info.Size() != 100 || info.IsDir() {
		t.Errorf("Stat = %v, %v", info, err)
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(
		NewFile(NewInfo("x", 0, 9), func([]byte, int64) (int, error) { return 0, broken })); !errors.Is(err, broken) {
		t.Errorf("a file that can't be read gives %v", err)
	}
	if _, err := io.ReadAll(
		NewFile(NewInfo("x", 0, 9), func([]byte, int64) (int, error) { return 0, nil })); !errors.Is(err,
		io.ErrNoProgress) {
		t.Errorf("a file whose bytes don't come gives %v", err)
	}
}

func TestDir(t *testing.T) {
	list := func() ([]fs.DirEntry, error) {
		return []fs.DirEntry{Unix("c", 0x81a4, 1), Unix("a", 0x41ed, 0), Unix("b", 0xa1ff, 4), Unix("d", 0x61b0, 0)},
			nil
	}
	d := NewDir(Unix("x/dir", 0x41ed, 0), list)
	var got []string
	for {
		part, err := d.ReadDir(3)
		for _, e := range part {
			got = append(got, e.Name()+" "+e.Type().String())
		}
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if want := "a d---------,b L---------,c ----------,d ?---------"; strings.Join(got, ",") != want {
		t.Errorf("in the folder is %q, want %q", got, want)
	}
	if all, err := NewDir(Unix("x", 0x41ed, 0), list).ReadDir(-1); err != nil || len(all) != 4 {
		t.Errorf("ReadDir(-1) = %v, %v", all, err)
	}
	if _, err := d.Read(nil); err == nil {
		t.Error("a folder can be read like a file")
	}
	var path *fs.PathError
	if _, err := NewDir(Unix("x/y", 0x41ed, 0), func() ([]fs.DirEntry, error) { return nil, fs.ErrPermission }).ReadDir(
		-1); !errors.As(err, &path) || path.Path != "y" {
		t.Errorf("a folder that can't be read gives %v", err)
	}
}

func TestWalk(t *testing.T) {
	// Names are whole paths; a link is its target after an arrow.
	tree := map[string]string{
		"/a": "", "/a/b": "", "/a/b/file": "", "/file": "",
		"/up": "-> ../../..", "/abs": "-> /a/b", "/a/rel": "-> b/file", "/a/b/back": "-> ../rel",
		"/a/b/out": "-> ../../../../file", "/loop": "-> loop", "/chain": "-> chain/x", "/none": "-> a/none",
		"/dot": "-> .", "/broken": "-> ?",
	}
	broken, lost := errors.New("broken"), errors.New("lost")
	f := Folders[string]{
		Child: func(dir, name string) (string, error) {
			path := strings.TrimSuffix(dir, "/") + "/" + name
			if _, ok := tree[path]; !ok {
				return "", fs.ErrNotExist
			}
			return path, nil
		},
		IsLink: func(i string) bool { return strings.HasPrefix(tree[i], "-> ") },
		Link: func(i string) (string, error) {
			if tree[i] == "-> ?" {
				return "", broken
			}
			return strings.TrimPrefix(tree[i], "-> "), nil
		},
		None: lost,
	}
	for _, c := range []struct {
		name string
		want string // followed to the end
		last string // and not
		err  error
	}{
		{"", "/", "/", nil}, {".", "/", "/", nil}, {"/../..", "/", "/", nil},
		{"a//b/./file", "/a/b/file", "/a/b/file", nil}, {"a/b/../../file", "/file", "/file", nil},
		{"up", "/", "/up", nil}, {"up/file", "/file", "/file", nil}, {"abs", "/a/b", "/abs", nil},
		{"abs/", "/a/b", "/a/b", nil}, {"abs/..", "/a", "/a", nil}, {"abs/back", "/a/b/file", "/a/b/back", nil},
		{"a/b/out", "/file", "/a/b/out", nil}, {"dot/dot/a", "/a", "/a", nil}, {"none", "", "/none", fs.ErrNotExist},
		{"missing", "", "", fs.ErrNotExist}, {"loop", "", "/loop", lost}, {"loop/x", "", "", lost},
		{"chain", "", "/chain", lost}, {"broken", "", "/broken", broken}, {"broken/x", "", "", broken},
	} {
		for _, follow := range []bool{true, false} {
			want := c.want
			if !follow {
				want = c.last
			}
			got, err := f.Walk("/", c.name, follow)
			if want == "" && !errors.Is(err, c.err) || want != "" && err != nil || got != want {
				t.Errorf("%q, follow %v: %q, %v; want %q, %v", c.name, follow, got, err, want, c.err)
			}
		}
	}
	// As many links as Linux allows, and one more.
	long := map[bool]int{true: 40, false: 41}
	for ok, n := range long {
		if _, err := f.Walk("/", strings.Repeat("dot/", n)+"a", true); (err == nil) != ok {
			t.Errorf("%d links: %v", n, err)
		}
	}
}
