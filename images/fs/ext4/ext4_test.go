package ext4

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// tree makes a directory with difficult content: fragments, holes, many names, links of every kind.
func tree(t *testing.T) (dir string, files map[string][]byte) {
	t.Helper()
	dir = t.TempDir()
	r := rand.New(rand.NewPCG(7, 7))
	files = map[string][]byte{}
	put := func(name string, b []byte) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		files["/"+name] = b
	}
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	put("etc/os-release", []byte("ID=debian\n"))
	put("boot/empty", nil)
	put("boot/one", []byte("x"))
	put("usr/lib/big.efi", noise(6<<20+123))
	sparse := make([]byte, 3<<20)
	copy(sparse[1<<20:], noise(5000))
	copy(sparse[3<<20-10:], "end")
	put("usr/lib/sparse", sparse)
	for i := range 800 { // a hash tree
		put(fmt.Sprintf("usr/share/many/file-with-a-long-name-%04d", i), []byte(fmt.Sprint(i)))
	}
	for name, target := range map[string]string{"boot/abs": "/etc/os-release", "boot/rel": "../etc/os-release",
		"boot/twice": "abs", "lib": "usr/lib", "boot/loop": "loop", "boot/away": "/../../etc/passwd-of-the-host",
		"boot/slow": strings.Repeat("../boot/", 12) + "one"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, files
}

func open(t *testing.T, path string) *FS {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	fs, err := Open(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// TestReadsWhatMkfsMakes compares every file with the one that mke2fs was given, over revisions, features and block
// sizes.
func TestReadsWhatMkfsMakes(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs")
	dir, files := tree(t)
	for _, c := range []string{"-t ext4", "-t ext4 -b 1024", "-t ext4 -b 2048 -O ^64bit,^metadata_csum", "-t ext3",
		"-t ext2 -b 1024", "-t ext2 -r 1 -O ^dir_index,^filetype", "-t ext4 -O ^flex_bg,^has_journal -I 128",
		"-t ext4 -O inline_data -I 256", "-t ext4 -O inline_data -I 1024 -b 4096"} {
		t.Run(c, func(t *testing.T) {
			img := kit.TempDisk(t, 96<<20)
			args := append([]string{"-q", "-F", "-L", "cloudimg", "-U", "11111111-2222-3333-4444-555555555555", "-d",
				dir}, strings.Fields(c)...)
			kit.Run(t, "mke2fs", append(args, img)...)
			fs := open(t, img)
			if i := fs.Info(); i.UUID != "11111111-2222-3333-4444-555555555555" || i.Label != "cloudimg" ||
				i.Size != 96<<20 {
				t.Errorf("Info = %+v", i)
			}
			for name, want := range files {
				if n := len(name); strings.Contains(name, "/many/") && (name[n-1] != '7' || name[n-2] != '1') {
					continue // one in a hundred is enough
				}
				fs.budget = maxRead
				got, err := fs.Read(name, 16<<20)
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("Read(%s) = %d bytes, %v, want %d", name, len(got), err, len(want))
				}
				if got, err := iofs.ReadFile(fs, name[1:]); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("ReadFile(%s) = %d bytes, %v, want %d", name, len(got), err, len(want))
				}
			}
			for name, want := range map[string]string{"/boot/abs": "ID=debian\n", "boot/rel": "ID=debian\n",
				"/boot/twice": "ID=debian\n", "/boot/slow": "x"} {
				if got, err := fs.Read(name, 100); err != nil || string(got) != want {
					t.Errorf("Read(%s) = %q, %v", name, got, err)
				}
			}
			for name, want := range map[string]string{"boot/rel": "../etc/os-release", "boot/loop": "loop",
				"boot/slow": strings.Repeat("../boot/", 12) + "one"} {
				if got, err := iofs.ReadLink(fs, name); err != nil || got != want {
					t.Errorf("ReadLink(%s) = %q, %v", name, got, err)
				}
				if info, err := iofs.Lstat(fs, name); err != nil || info.Mode().Type() != iofs.ModeSymlink {
					t.Errorf("Lstat(%s) = %v, %v", name, info, err)
				}
			}
			if got, err := fs.Read("/lib/big.efi", 16<<20); err != nil || len(got) != 6<<20+123 {
				t.Errorf("through a linked folder: %d, %v", len(got), err)
			}
			for _, name := range []string{"/boot/loop", "/boot/away", "/nothing", "/boot/one/more", "/boot"} {
				if _, err := fs.Read(name, 100); !errors.Is(err, ErrNone) {
					t.Errorf("Read(%s): %v, want ErrNone", name, err)
				}
				if _, err := fs.Stat(strings.TrimPrefix(name, "/")); !errors.Is(err, iofs.ErrNotExist) &&
					name != "/boot" {
					t.Errorf("Stat(%s): %v, want ErrNotExist", name, err)
				}
			}
			fs.budget = maxRead
			part, err := iofs.Sub(fs, "etc") // of small files: it reads them byte by byte
			if err == nil {
				err = fstest.TestFS(part, "os-release")
			}
			if err != nil {
				t.Error(err)
			}
			if got, err := iofs.ReadDir(fs, "usr/share/many"); err != nil || len(got) != 800 {
				t.Errorf("ReadDir: %d, %v", len(got), err)
			}
			if _, err := fs.Read("/usr/lib/big.efi", 1<<20); err == nil || errors.Is(err, ErrNone) {
				t.Errorf("a file that is too large: %v", err)
			}
			list, err := fs.List("/usr/share/many")
			if err != nil || len(list) != 800 || list[0].Dir {
				t.Errorf("List: %d, %v", len(list), err)
			}
			list, err = fs.List("/usr")
			if err != nil || len(list) != 2 || !list[0].Dir {
				t.Errorf("List(/usr) = %v, %v", list, err)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs", "debugfs")
	img := kit.TempDisk(t, 8<<20)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", img)
	good, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(b []byte){
		"magic":         func(b []byte) { b[0x38] = 0 },
		"encrypted log": func(b []byte) { b[0x18] = 40 },
		"feature":       func(b []byte) { b[0x62] |= 0x80 },
		"dirty journal": func(b []byte) { b[0x60] |= 4 },
		"too large":     func(b []byte) { b[7] = 0x7f },
		"inode size":    func(b []byte) { b[0x58] = 3 },
	} {
		b := bytes.Clone(good)
		f(b[superAt:])
		if _, err := Open(bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrNot) {
			t.Errorf("%s: %v, want ErrNot", name, err)
		}
	}
	if _, err := Inspect(good[:1500]); !errors.Is(err, ErrNot) {
		t.Errorf("a short head: %v", err)
	}
}

// TestMake holds that e2fsck finds nothing wrong, on dirty ground, and that the file system works: files go in by
// debugfs and come back.
func TestMake(t *testing.T) {
	kit.NeedPrograms(t, "e2fsck", "debugfs", "dumpe2fs")
	for _, size := range []int64{MinSize, 1 << 30, 1<<30 + 5<<20, 5<<30 + 8192, 40 << 30} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			img := kit.TempDisk(t, size)
			f, err := os.OpenFile(img, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, 64<<20), 0); err != nil {
				t.Fatal(err)
			}
			zeros := make([]byte, 1<<20)
			zero := func(off, n int64) error {
				for ; n > 0; off, n = off+int64(len(zeros)), n-int64(len(zeros)) {
					if _, err := f.WriteAt(zeros, off); err != nil {
						return err
					}
				}
				return nil
			}
			if err := Make(f, size, "ephemeral0", [16]byte{1, 2, 3}, time.Now(), zero); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "e2fsck", "-f", "-n", img)
			if out := kit.Run(t, "dumpe2fs", "-h", img); !strings.Contains(out, "ephemeral0") ||
				!strings.Contains(out, "01020300-0000") || !strings.Contains(out, "clean") {
				t.Errorf("dumpe2fs: %s", out)
			}
			src := filepath.Join(t.TempDir(), "src")
			data := bytes.Repeat([]byte("some data\n"), 500000)
			if err := os.WriteFile(src, data, 0o644); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "debugfs", "-w", "-R", "write "+src+" file", img)
			kit.Run(t, "e2fsck", "-f", "-n", img)
			fs := open(t, img)
			got, err := fs.Read("/file", 16<<20)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("read back %d bytes, %v", len(got), err)
			}
			list, err := fs.List("/")
			if err != nil || !slices.ContainsFunc(list, func(e Entry) bool { return e.Name == "lost+found" && e.Dir }) {
				t.Errorf("List: %v, %v", list, err)
			}
		})
	}
	if err := Make(nil, 1<<20, "", [16]byte{}, time.Now(), nil); err == nil {
		t.Error("a tiny one is made")
	}
}

// FuzzRead holds that no image makes the reader panic, or read without end.
func FuzzRead(f *testing.F) {
	seed := make([]byte, 64<<10)
	le := func(off int, v ...byte) { copy(seed[superAt+off:], v) }
	le(0, 32)                      // inodes
	le(4, 64)                      // blocks
	le(0x14, 1)                    // first block
	le(0x20, 0, 0x20)              // blocks per group
	le(0x28, 32)                   // inodes per group
	le(0x38, 0x53, 0xef)           // magic
	le(0x4c, 1)                    // revision
	le(0x58, 128)                  // inode size
	le(0x60, 0x42)                 // filetype, extents
	copy(seed[2048+8:], []byte{5}) // inode table at block 5
	ino := seed[5*1024+128:]       // inode 2
	copy(ino, []byte{0xed, 0x41, 0, 0, 0, 4})
	copy(ino[0x20:], []byte{0, 0, 8, 0})
	copy(ino[0x28:], []byte{0x0a, 0xf3, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0})
	copy(seed[20*1024:], []byte{2, 0, 0, 0, 12, 0, 1, 2, '.', 0, 0, 0, 3, 0, 0, 0, 0xf4, 3, 1, 1, 'a'})
	f.Add(seed)
	plain := bytes.Clone(seed)
	plain[superAt+0x60] = 2
	copy(plain[5*1024+128+0x20:], make([]byte, 64))
	plain[5*1024+128+0x28] = 20
	f.Add(plain)
	f.Fuzz(func(t *testing.T, b []byte) {
		fs, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		fs.budget = 4 << 20
		list, err := fs.List("/")
		if err != nil {
			return
		}
		for _, e := range list[:min(len(list), 8)] {
			if e.Dir {
				_, _ = fs.List("/" + e.Name)
			} else if got, err := fs.Read("/"+e.Name, 1<<20); err == nil && int64(len(got)) != e.Size {
				t.Fatalf("%s: %d bytes, want %d", e.Name, len(got), e.Size)
			} else if f, ferr := fs.Open(e.Name); ferr == nil && err == nil {
				// Both ways to read say the same.
				if b, ferr := io.ReadAll(io.LimitReader(f, 1<<20)); ferr == nil && !bytes.Equal(b, got) {
					t.Fatalf("%s: read as a whole and in parts it differs", e.Name)
				}
			}
		}
	})
}
