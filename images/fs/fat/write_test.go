package fat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// flushed is for tests that look at the file, not at the medium.
func flushed() error { return nil }

func openWriter(t *testing.T, path string) (*Writer, *os.File) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenWriter(f, info.Size(), time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return w, f
}

var kinds = []struct {
	args string
	size int64
}{{"-F 12 -s 1", 1 << 20}, {"-F 12 -s 8", 8 << 20}, {"-F 16 -s 4", 40 << 20}, {"-F 32 -s 1", 40 << 20},
	{"-F 32 -s 8", 300 << 20}, {"-S 4096 -F 16", 100 << 20}, {"-F 16 -f 1 -s 4", 20 << 20}}

// TestWrite puts files into file systems of all kinds: fsck.fat finds nothing wrong, and mtools reads them.
func TestWrite(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.fat", "fsck.fat", "mmd", "mcopy", "mtype")
	for i, c := range kinds {
		t.Run(c.args, func(t *testing.T) {
			img := kit.TempDisk(t, c.size)
			kit.Run(t, "mkfs.fat", append(strings.Fields(c.args), "-n", "ESP", img)...)
			src := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(src, bytes.Repeat([]byte("old "), 20_000), 0o600); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "mmd", "-i", img, "::/EFI", "::/EFI/debian")
			kit.Run(t, "mcopy", "-i", img, src, "::/EFI/debian/grub.cfg")
			kit.Run(t, "mcopy", "-i", img, src, "::/A long name.text")
			kit.Run(t, "mcopy", "-i", img, src, "::/gone soon")
			w, f := openWriter(t, img)
			r := rand.New(rand.NewPCG(9, uint64(i)))
			want := map[string][]byte{}
			put := func(name string, n int, replaced bool) {
				t.Helper()
				data := make([]byte, n)
				for k := range data {
					data[k] = byte('a' + r.IntN(26))
				}
				if got, err := w.Put(name, data); err != nil || got != replaced {
					t.Fatalf("Put(%s) = %v, %v, want %v", name, got, err, replaced)
				}
				want[strings.ToLower(name)] = data
			}
			put("/efi/DEBIAN/Grub.cfg", 700, true)
			put("/a long NAME.text", 150_000, true)
			put("loader/entries/a-system-with-a-name.conf", 3000, false)
			put("/EFI/BOOT/BOOTX64.EFI", 100_001, false)
			put("/EFI/BOOT/empty", 0, false)
			put("/ünïcode – ☃.txt", 10, false)
			for k := range 60 {
				put(fmt.Sprintf("/many/file of a long name, number %d", k), k*7, false)
				put(fmt.Sprintf("/many/F%d.TXT", k), 1, false)
			}
			put("/many/F7.txt", 5000, true)
			put("/many/f8.txt", 0, true)
			for _, name := range []string{"/gone soon", "/many/file of a long name, number 33"} {
				if ok, err := w.Remove(name); !ok || err != nil {
					t.Fatalf("Remove(%s) = %v, %v", name, ok, err)
				}
				delete(want, name)
			}
			if ok, err := w.Remove("/many/none/x"); ok || err != nil {
				t.Fatalf("Remove of nothing = %v, %v", ok, err)
			}
			put("/many/in the place of another", 900, false)
			if ok, err := w.IsDir("/efi/boot"); !ok || err != nil {
				t.Errorf("IsDir = %v, %v", ok, err)
			}
			if err := w.Commit(flushed); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "fsck.fat", "-n", "-v", img)
			for _, name := range []string{"/efi/debian/grub.cfg", "/a long name.text", "/efi/boot/bootx64.efi",
				"/many/f7.txt", "/loader/entries/a-system-with-a-name.conf", "/many/file of a long name, number 59"} {
				data := want[name]
				if data == nil {
					data = want[name[1:]]
				}
				if got := kit.Run(t, "mtype", "-i", img, "::"+name); got != string(data) {
					t.Errorf("mtype %s: %d bytes, want %d", name, len(got), len(data))
				}
			}
			fs, err := Open(f, c.size)
			if err != nil {
				t.Fatal(err)
			}
			for name, data := range want {
				fs.budget = maxRead
				e, err := fs.Find(strings.Split(strings.TrimPrefix(name, "/"), "/")...)
				if err != nil || e == nil {
					t.Fatalf("Find(%s) = %v, %v", name, e, err)
				}
				if got, err := fs.Read(e, 1<<20); err != nil || !bytes.Equal(got, data) {
					t.Errorf("Read(%s) = %d bytes, %v, want %d", name, len(got), err, len(data))
				}
			}
		})
	}
}

// TestWriteFull holds that what does not fit is refused before anything is written, and that what just fits does.
func TestWriteFull(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.fat", "fsck.fat")
	for _, c := range []string{"-F 12 -s 1 -r 64", "-F 16 -s 1"} {
		img := kit.TempDisk(t, 4<<20)
		if strings.Contains(c, "12") {
			img = kit.TempDisk(t, 1<<20)
		}
		kit.Run(t, "mkfs.fat", append(strings.Fields(c), img)...)
		before, err := os.ReadFile(img)
		if err != nil {
			t.Fatal(err)
		}
		w, _ := openWriter(t, img)
		if _, err := w.Put("/large", make([]byte, 5<<20)); !errors.Is(err, ErrFull) {
			t.Errorf("%s: too large a file: %v", c, err)
		}
		if err := w.Commit(func() error { return nil }); err == nil {
			t.Errorf("%s: what failed is committed", c)
		}
		w, _ = openWriter(t, img)
		var last error
		for k := 0; k < 2000 && last == nil; k++ {
			_, last = w.Put(fmt.Sprintf("/a file with a long name %d", k), nil)
		}
		if !errors.Is(last, ErrFull) {
			t.Errorf("%s: too many names in the root: %v", c, last)
		}
		if after, err := os.ReadFile(img); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: what failed has written something, %v", c, err)
		}
		w, _ = openWriter(t, img)
		all := int(w.fs.clusters) * int(w.fs.cluster)
		if _, err := w.Put("/all", make([]byte, all)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Put("/all", bytes.Repeat([]byte{1}, all)); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(flushed); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "fsck.fat", "-n", img)
	}
}

func TestWriteRefuses(t *testing.T) {
	img, err := Make([]File{{Path: "d/f", Data: []byte("x")}, {Path: "g", Data: nil}}, Options{Sector: 512})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "/", "/../x", "/d/../g", "/d", "/g/x", "/d/", "/a:b", "/a*",
		"/" + strings.Repeat("n", 256), "/" + strings.Repeat("d/", 20) + "f", "/trailing.", "/new\nline"} {
		w, err := OpenWriter(&memory{b: img.Bytes()}, img.Size, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Put(name, nil); err == nil {
			t.Errorf("Put(%.40q) is taken", name)
		}
	}
	w, err := OpenWriter(&memory{b: img.Bytes()}, img.Size, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Remove("/d"); err == nil {
		t.Error("a folder is removed")
	}
}

// TestWriteCut cuts the power at every write: fsck.fat repairs the result.
func TestWriteCut(t *testing.T) {
	kit.NeedPrograms(t, "fsck.fat")
	img, err := Make(
		[]File{{Path: "EFI/debian/grub.cfg", Data: bytes.Repeat([]byte("x"), 9000)},
			{Path: "keep", Data: bytes.Repeat([]byte("k"), 9000)}},
		Options{Sector: 512})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		m := &memory{b: img.Bytes(), left: n}
		w, err := OpenWriter(m, img.Size, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"EFI/debian/grub.cfg", "EFI/new/file with a name"} {
			if _, err := w.Put(name, bytes.Repeat([]byte("new"), 1500)); err != nil {
				t.Fatal(err)
			}
		}
		done := w.Commit(func() error { return nil }) == nil
		path := filepath.Join(t.TempDir(), "img")
		if err := os.WriteFile(path, m.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if !done {
			_ = exec.Command("fsck.fat", "-a", path).Run() // says by its status that it repaired something
		}
		kit.Run(t, "fsck.fat", "-n", path)
		if done {
			break
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		fs, err := Open(f, img.Size)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := fs.Find("keep"); err != nil || e == nil {
			t.Errorf("after write %d: an unchanged file is gone: %v", n, err)
		} else if b, err := fs.Read(e, 1<<20); err != nil || len(b) != 9000 || b[0] != 'k' {
			t.Errorf("after write %d: an unchanged file: %d bytes, %v", n, len(b), err)
		}
		f.Close()
		if n > 40 {
			t.Fatal("so many writes were not expected")
		}
	}
}

// FuzzWrite holds that no file system makes the writer panic, write outside of it, or work without end.
func FuzzWrite(f *testing.F) {
	for _, o := range []Options{{Sector: 512, Label: "X"}, {Sector: 4096, Label: "Y"}} {
		img, err := Make([]File{{Path: "EFI/BOOT/a", Data: []byte("x")}, {Path: "b", Data: make([]byte, 2000)}}, o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(img.Bytes(), "efi/boot/c")
		f.Add(img.Bytes(), "b")
	}
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		m := &memory{b: bytes.Clone(b)}
		w, err := OpenWriter(m, int64(len(b)), time.Unix(1_700_000_000, 0))
		if err != nil {
			return
		}
		for _, n := range []string{name, "EFI/BOOT/a", "new/f"} {
			if _, err := w.Put(n, make([]byte, 3000)); err != nil {
				return
			}
		}
		if _, err := w.Remove("b"); err != nil {
			return
		}
		_ = w.Commit(func() error { return nil })
		if m.outside {
			t.Fatal("written outside")
		}
	})
}

// memory is a disk in memory, whose power goes after so many writes, in the middle of the last, when left is above 0.
type memory struct {
	b       []byte
	left    int
	outside bool
}

func (m *memory) ReadAt(b []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(b, m.b[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(b)) > int64(len(m.b)) {
		m.outside = true
		return 0, io.ErrShortWrite
	}
	if m.left > 0 {
		if m.left--; m.left == 0 {
			m.left = -1
			return copy(m.b[off:], b[:len(b)/2]), io.ErrUnexpectedEOF
		}
	}
	if m.left < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(m.b[off:], b), nil
}

// TestWriteBroken does what FuzzWrite does, with bytes changed at random: cheap enough for every run.
func TestWriteBroken(t *testing.T) {
	img, err := Make([]File{{Path: "EFI/BOOT/a", Data: []byte("x")}, {Path: "b", Data: make([]byte, 2000)}},
		Options{Sector: 512})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	done := 0
	for range 2000 {
		m := &memory{b: img.Bytes()}
		for range 1 + r.IntN(5) {
			m.b[r.IntN([]int{64, len(m.b)}[r.IntN(2)])] = byte(r.Uint32())
		}
		w, err := OpenWriter(m, int64(len(m.b)), time.Unix(1_700_000_000, 0))
		for _, n := range []string{"efi/boot/c", "EFI/BOOT/a", "n/f"} {
			if err == nil {
				_, err = w.Put(n, make([]byte, 600))
			}
		}
		if err == nil && w.Commit(func() error { return nil }) == nil {
			done++
		}
		if m.outside {
			t.Fatal("written outside")
		}
	}
	if done < 100 {
		t.Errorf("only %d of 2000 were written: this tests nothing", done)
	}
}
