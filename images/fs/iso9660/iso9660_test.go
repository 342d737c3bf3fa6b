package iso9660

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// made is an image of our own, with Rock Ridge names.
func made(t testing.TB) []byte {
	t.Helper()
	img, err := Make([]File{
		{Path: "boot/grub/grub.cfg", Data: []byte("linux /boot/vmlinuz\n")},
		{Path: "boot/vmlinuz-6.1.0-Long_Name", Data: bytes.Repeat([]byte("kernel"), 5000)}, {Path: "empty", Data: nil},
		{Path: "A.txt", Data: []byte("a")},
	}, "config-2", time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestFS(t *testing.T) {
	f, err := Open(bytes.NewReader(made(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(f, "boot/grub/grub.cfg", "boot/vmlinuz-6.1.0-Long_Name", "empty", "A.txt"); err != nil {
		t.Error(err)
	}
	b, err := fs.ReadFile(f, "boot/vmlinuz-6.1.0-Long_Name")
	if err != nil || !bytes.Equal(b, bytes.Repeat([]byte("kernel"), 5000)) || f.Label != "config-2" {
		t.Errorf("%d bytes, %v, label %q", len(b), err, f.Label)
	}
	for _, name := range []string{"none", "boot/none", "empty/x", "a.txt"} {
		if _, err := f.Open(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open %s: %v", name, err)
		}
	}
}

// TestForeign reads what genisoimage makes, with and without Rock Ridge.
func TestForeign(t *testing.T) {
	kit.NeedPrograms(t, "genisoimage")
	dir := t.TempDir()
	for name, text := range map[string]string{"boot/grub/grub.cfg": "config", "live/vmlinuz": "kernel"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("vmlinuz", filepath.Join(dir, "live/link")); err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]string{{"-r"}, {"-r", "-J"}, {}} {
		out := filepath.Join(t.TempDir(), "x.iso")
		kit.Run(t, "genisoimage", append(append([]string{"-quiet", "-V", "LIVE", "-o", out}, opts...), dir)...)
		r, err := os.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		f, err := Open(r)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"boot/grub/grub.cfg": "config", "live/vmlinuz": "kernel"} {
			if b, err := fs.ReadFile(f, name); err != nil || string(b) != want {
				t.Errorf("%v: %s = %q, %v", opts, name, b, err)
			}
		}
		if _, err := f.Open("live/link"); err == nil {
			t.Errorf("%v: a link is read as a file", opts)
		}
		if f.Label != "LIVE" {
			t.Errorf("%v: label %q", opts, f.Label)
		}
	}
}

// TestNames holds which of an image's names are used, and that a name that can't be in a path does not hide its file.
func TestNames(t *testing.T) {
	kit.NeedPrograms(t, "genisoimage")
	dir := t.TempDir()
	for _, name := range []string{"Long file name.Text", "latin1-\xe4"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		opts          []string
		plain, joliet string
	}{
		{[]string{}, "latin1__, long_fil.tex", "latin1__, long_fil.tex"},
		{[]string{"-J", "-input-charset", "iso8859-1"}, "latin1__, long_fil.tex",
			"Long file name.Text, latin1-ä"},
		{[]string{"-J", "-r", "-input-charset", "iso8859-1", "-output-charset", "iso8859-1"},
			"Long file name.Text, latin1-_", "Long file name.Text, latin1-_"},
	} {
		out := filepath.Join(t.TempDir(), "x.iso")
		kit.Run(t, "genisoimage", append(append([]string{"-quiet", "-o", out}, c.opts...), dir)...)
		img, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		for want, open := range map[string]func(io.ReaderAt) (*FS, error){"plain " + c.plain: Open,
			"joliet " + c.joliet: OpenJoliet} {
			f, err := open(bytes.NewReader(img))
			if err != nil {
				t.Fatal(err)
			}
			list, err := f.ReadDir(".")
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range list {
				names = append(names, e.Name())
				if b, err := fs.ReadFile(f, e.Name()); err != nil || len(b) < 8 {
					t.Errorf("%v: %s reads as %q, %v", c.opts, e.Name(), b, err)
				}
			}
			if _, want, _ := strings.Cut(want, " "); strings.Join(names, ", ") != want {
				t.Errorf("%v: %q, want %q", c.opts, names, want)
			}
		}
	}
}

func TestRefuses(t *testing.T) {
	img := made(t)
	for name, b := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 100<<10), "short": img[:17*Sector]} {
		if _, err := Open(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// The image ends in the middle of a file.
	f, err := Open(bytes.NewReader(img[:len(img)-20<<10]))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := fs.ReadFile(f, "boot/vmlinuz-6.1.0-Long_Name"); err == nil {
		t.Errorf("a file that is cut off reads as %d bytes", len(b))
	}
}

func FuzzFS(f *testing.F) {
	img := made(f)
	f.Add(img[first*Sector:])
	f.Fuzz(func(t *testing.T, b []byte) {
		image, err := Open(bytes.NewReader(append(make([]byte, first*Sector), b...)))
		if err != nil {
			return
		}
		n := 0
		_ = fs.WalkDir(image, ".", func(name string, d fs.DirEntry, err error) error {
			if n++; n > 200 {
				return fs.SkipAll
			}
			if !fs.ValidPath(name) {
				t.Fatalf("name %q", name)
			}
			if err == nil && !d.IsDir() {
				if file, err := image.Open(name); err == nil {
					if _, err := io.CopyN(io.Discard, file, 1<<20); err == nil && file == nil {
						t.Fatal("no file")
					}
				}
			}
			return nil
		})
	})
}
