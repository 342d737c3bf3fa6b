package fat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func someFiles() []File {
	files := []File{
		{Path: "EFI/BOOT/BOOTX64.EFI", Data: bytes.Repeat([]byte("shim"), 300000)},
		{Path: "EFI/BOOT/grubx64.efi", Data: bytes.Repeat([]byte{1, 2, 3}, 800001)},
		{Path: "EFI/debian/grub.cfg", Data: []byte("search\n")},
		{Path: "EFI/debian/empty", Data: nil},
		{Path: "a name that is quite a bit longer than thirteen characters.text", Data: []byte("long")},
		{Path: "exactly13char", Data: []byte("13")},
		{Path: "ümlaut", Data: []byte("u")},
	}
	for i := range 100 {
		files = append(files, File{Path: fmt.Sprintf("many/file %d", i), Data: []byte(fmt.Sprint(i))})
	}
	return files
}

// collect reads everything that is in a file system.
func collect(t *testing.T, fs *FS) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(dir *Entry, prefix string)
	walk = func(dir *Entry, prefix string) {
		list, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Dir {
				walk(&e, prefix+e.Name+"/")
				continue
			}
			b, err := fs.Read(&e, 16<<20)
			if err != nil {
				t.Fatalf("%s: %v", e.Name, err)
			}
			if again, err := iofs.ReadFile(fs, strings.ToUpper(prefix+e.Name)); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("ReadFile(%s): %d bytes, %v, want %d", prefix+e.Name, len(again), err, len(b))
			}
			out[prefix+e.Name] = string(b)
		}
	}
	walk(nil, "")
	return out
}

// TestMake holds that fsck.fat finds no fault in a new file system, and that mtools and our reader can read it.
func TestMake(t *testing.T) {
	kit.NeedPrograms(t, "fsck.fat", "mcopy", "mlabel")
	for _, c := range []struct {
		sector int
		size   int64
		bits   int
	}{{512, 0, 12}, {1024, 0, 12}, {4096, 0, 12}, {512, 550 << 20, 32}, {4096, 550 << 20, 32},
		{512, 40<<30 + 1<<20, 32}, {4096, 20 << 30, 32}, {512, 34 << 20, 32}, {4096, 34 << 20, 16},
		{4096, 200 << 20, 16}, {512, 16 << 20, 16}} {
		t.Run(fmt.Sprintf("FAT%d, sectors of %d, %d MiB", c.bits, c.sector, c.size>>20), func(t *testing.T) {
			files := someFiles()
			img, err := Make(files,
				Options{Sector: c.sector, Size: c.size, Label: "EFI-PART", Serial: 0x12345678, Time: noon})
			if err != nil {
				t.Fatal(err)
			}
			if c.size > 0 && img.Size != c.size || img.Zero > img.Size {
				t.Errorf("Size = %d, Zero = %d", img.Size, img.Zero)
			}
			path := kit.TempDisk(t, img.Size)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// Behind Zero anything may be.
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(min(8<<20, img.Size-img.Zero))),
				img.Zero); err != nil {
				t.Fatal(err)
			}
			for _, p := range img.Pieces {
				if p.Off%int64(c.sector) != 0 || len(p.Data)%c.sector != 0 {
					t.Errorf("a piece of %d bytes at %d is not in whole sectors", len(p.Data), p.Off)
				}
				if _, err := f.WriteAt(p.Data, p.Off); err != nil {
					t.Fatal(err)
				}
			}
			kit.Run(t, "fsck.fat", "-n", "-V", path)
			fs, err := Open(f, img.Size)
			if err != nil {
				t.Fatal(err)
			}
			if label, err := fs.Label(); fs.Bits() != c.bits || label != "EFI-PART" || err != nil {
				t.Errorf("FAT%d, label %q, %v", fs.Bits(), label, err)
			}
			got := collect(t, fs)
			if len(got) != len(files) {
				t.Errorf("%d files, want %d", len(got), len(files))
			}
			for _, w := range files {
				if got[w.Path] != string(w.Data) {
					t.Errorf("%s has %d bytes, want %d", w.Path, len(got[w.Path]), len(w.Data))
				}
			}
			out := filepath.Join(t.TempDir(), "out")
			kit.Run(t, "mcopy", "-i", path, "::/EFI/BOOT/grubx64.efi", out)
			if b, err := os.ReadFile(out); err != nil || !bytes.Equal(b, files[1].Data) {
				t.Errorf("mcopy gives %d bytes, %v", len(b), err)
			}
			if out := kit.Run(t, "mlabel", "-s", "-i", path, "::"); !strings.Contains(out, "EFI-PART") {
				t.Errorf("mlabel says %q", out)
			}
		})
	}
}

func TestMakeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		files []File
		o     Options
	}{
		"sector":       {nil, Options{Sector: 700}},
		"small FAT16":  {nil, Options{Sector: 512, Size: 2 << 20}},
		"huge FAT32":   {nil, Options{Sector: 512, Size: 3 << 40}},
		"more files":   {[]File{{Path: "a", Data: make([]byte, 300<<20)}}, Options{Sector: 512, Size: 290 << 20}},
		"bad name":     {[]File{{Path: "a:b", Data: nil}}, Options{Sector: 512}},
		"up":           {[]File{{Path: "../a", Data: nil}}, Options{Sector: 512}},
		"same name":    {[]File{{Path: "a", Data: nil}, {Path: "A", Data: nil}}, Options{Sector: 512}},
		"file as dir":  {[]File{{Path: "a", Data: nil}, {Path: "a/b", Data: nil}}, Options{Sector: 512}},
		"deep":         {[]File{{Path: strings.Repeat("a/", 20) + "b", Data: nil}}, Options{Sector: 512}},
		"FAT12 and on": {[]File{{Path: "a", Data: make([]byte, 300<<20)}}, Options{Sector: 512}},
	} {
		if _, err := Make(c.files, c.o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestReadsWhatMkfsMakes reads all kinds as other tools make them.
func TestReadsWhatMkfsMakes(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.fat", "mmd", "mcopy")
	text := strings.Repeat("line of text\n", 5000)
	for _, c := range []struct {
		args string
		size int64
		bits int
	}{{"-F 12", 4 << 20, 12}, {"-F 16", 62 << 20, 16}, {"-F 32", 300 << 20, 32}, {"-S 4096", 100 << 20, 16},
		{"-S 2048 -F 12 -s 1", 2 << 20, 12}} {
		path := kit.TempDisk(t, c.size)
		kit.Run(t, "mkfs.fat", append(strings.Fields(c.args), "-n", "CONFIG-2", path)...)
		src := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "mmd", "-i", path, "::/EFI", "::/EFI/deep")
		kit.Run(t, "mcopy", "-i", path, src, "::/EFI/deep/Some Long Name.text")
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fs, err := Open(f, c.size)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if label, err := fs.Label(); fs.Bits() != c.bits || label != "CONFIG-2" || err != nil || fs.Size() > c.size ||
			fs.Size() < c.size*9/10 {
			t.Errorf("%s: FAT%d of %d bytes, label %q, %v", c.args, fs.Bits(), fs.Size(), label, err)
		}
		e, err := fs.Find("efi", "DEEP", "some long name.TEXT")
		if err != nil || e == nil {
			t.Fatalf("%s: Find = %v, %v", c.args, e, err)
		}
		if got, err := fs.Read(e, 1<<20); err != nil || string(got) != text {
			t.Errorf("%s: read %d bytes, %v, want %d", c.args, len(got), err, len(text))
		}
		if _, err := fs.Read(e, 100); err == nil {
			t.Errorf("%s: a file that is too large is read", c.args)
		}
		if e, err := fs.Find("EFI", "nothing"); e != nil || err != nil {
			t.Errorf("%s: Find = %v, %v", c.args, e, err)
		}
	}
}

// TestChainThatEndsEarly holds that a file whose clusters are fewer than its size says is an error, not a shorter file.
func TestChainThatEndsEarly(t *testing.T) {
	img, err := Make([]File{{Path: "f", Data: make([]byte, 5000)}}, Options{Sector: 512})
	if err != nil {
		t.Fatal(err)
	}
	b := img.Bytes()
	b[512+3] = 0xff // cluster 2 is the last
	b[512+4] |= 0x0f
	fs, err := Open(bytes.NewReader(b), img.Size)
	if err != nil {
		t.Fatal(err)
	}
	e, err := fs.Find("f")
	if err != nil || e == nil {
		t.Fatalf("Find = %v, %v", e, err)
	}
	if got, err := fs.Read(e, 1<<20); !errors.Is(err, ErrNot) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

// TestFoldersInEachOther holds that a tree that multiplies itself ends.
func TestFoldersInEachOther(t *testing.T) {
	var files []File
	for i := range 2000 {
		files = append(files, File{Path: fmt.Sprintf("d/%d/f", i), Data: []byte("x")})
	}
	img, err := Make(files, Options{Sector: 4096})
	if err != nil {
		t.Fatal(err)
	}
	b := img.Bytes()
	fs, err := Open(bytes.NewReader(b), img.Size)
	if err != nil {
		t.Fatal(err)
	}
	fs.budget = 8 << 20
	d, err := fs.Find("d")
	if err != nil || d == nil {
		t.Fatalf("Find = %v, %v", d, err)
	}
	for range 1 << 20 { // far more than anybody lists
		if _, err = fs.List(d); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrNot) {
		t.Errorf("listed for ever: %v", err)
	}
}

// FuzzOpen holds that no file system, however broken, makes the reader panic or run away.
func FuzzOpen(f *testing.F) {
	for _, o := range []Options{{Sector: 512, Label: "X"}, {Sector: 4096, Label: "Y"}} {
		img, err := Make([]File{{Path: "EFI/BOOT/a", Data: []byte("x")}, {Path: "b", Data: make([]byte, 2000)}}, o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(img.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fs, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		fs.budget = 1 << 20
		_, _ = fs.Label()
		list, err := fs.List(nil)
		if err != nil {
			return
		}
		for _, e := range list[:min(len(list), 8)] {
			if e.Dir {
				_, _ = fs.List(&e)
			} else if got, err := fs.Read(&e, 1<<20); err == nil && len(got) != int(e.Size) && err != io.EOF {
				t.Fatalf("%s: %d bytes, want %d", e.Name, len(got), e.Size)
			}
		}
	})
}
