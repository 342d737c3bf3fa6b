package ext4

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

func openWriter(t testing.TB, path string) (*Writer, *os.File) {
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
	w, err := OpenWriter(f, info.Size(), time.Unix(1_800_000_000, 123456789))
	if err != nil {
		t.Fatal(err)
	}
	return w, f
}

func mode(m uint16) *uint16 { return &m }
func id(n uint32) *uint32   { return &n }

func noise(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	seed[0], seed[1] = byte(r.Uint32()), byte(r.Uint32())
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

// TestWrite puts files into file systems of many kinds: what e2fsck finds nothing wrong with, and debugfs reads.
func TestWrite(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs", "e2fsck", "debugfs")
	dir, _ := tree(t)
	for _, p := range []string{"usr/bin", "var/empty"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"bin": "usr/bin", "sbin": "/usr/bin",
		"etc/resolv.conf": "../run/resolve/stub.conf", "etc/up": "../../../../etc"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "boot/one"), filepath.Join(dir, "boot/other")); err != nil {
		t.Fatal(err)
	}
	for i, c := range []string{"-t ext4", "-t ext4 -b 1024", "-t ext4 -b 2048 -O ^64bit,^metadata_csum", "-t ext3",
		"-t ext2 -b 1024", "-t ext2 -r 0", "-t ext2 -O ^dir_index,^filetype", "-t ext4 -O ^flex_bg,^has_journal -I 128",
		"-t ext4 -O ^metadata_csum,uninit_bg -b 1024", "-t ext4 -O ^metadata_csum,uninit_bg,^64bit",
		"-t ext4 -O metadata_csum_seed,sparse_super2,orphan_file", "-t ext4 -O encrypt,verity,stable_inodes",
		"-t ext4 -O casefold", "-t ext4 -O ^resize_inode,^sparse_super -b 1024", "-t ext4 -O ^extents,^64bit",
		"-t ext4 -O project,large_dir,ea_inode", "-t ext4 -I 512 -g 8192", "-t ext4 -b 1024 -O ^dir_index",
		"-t ext3 -b 1024 -I 128"} {
		t.Run(c, func(t *testing.T) {
			img := kit.TempDisk(t, 80<<20)
			args := append([]string{"-q", "-F", "-E", "lazy_itable_init=1", "-d", dir}, strings.Fields(c)...)
			kit.Run(t, "mke2fs", append(args, img)...)
			// mke2fs makes no indexes; the oldest revision can't be given any
			if i%3 != 0 && !strings.Contains(c, "^dir_index") {
				out, err := exec.Command("e2fsck", "-f", "-y", "-D", img).CombinedOutput()
				if err != nil && !bytes.Contains(out, []byte("MODIFIED")) {
					t.Fatalf("e2fsck -D: %v: %s", err, out)
				}
			}
			w, _ := openWriter(t, img)
			r := rand.New(rand.NewPCG(1, uint64(i)))
			want := map[string][]byte{}
			put := func(name, at string, data []byte, a Attr, replaced bool) {
				t.Helper()
				got, err := w.Put(name, data, a)
				if err != nil || got != replaced {
					t.Fatalf("Put(%s) = %v, %v, want %v", name, got, err, replaced)
				}
				want[at] = data
			}
			put("/etc/hello.conf", "/etc/hello.conf", []byte("hello\n"),
				Attr{Mode: mode(0o640), UID: id(1000), GID: id(70000)}, false)
			put("/etc/os-release", "/etc/os-release", []byte("ID=other\n"), Attr{}, true)
			put("/usr/lib/big.efi", "/usr/lib/big.efi", noise(r, 5000), Attr{}, true)
			put("/boot/one", "/boot/other", noise(r, 5<<20+77), Attr{}, true)
			put("/boot/empty", "/boot/empty", nil, Attr{}, true)
			put("/usr/lib/sparse", "/usr/lib/sparse", noise(r, 4<<20), Attr{Mode: mode(0o4755)}, true)
			put("/bin/tool", "/usr/bin/tool", noise(r, 100_000), Attr{Mode: mode(0o755)}, false)
			put("/sbin/tool", "/usr/bin/tool", noise(r, 1000), Attr{}, true)
			put("etc//up/./deep/er/f", "/etc/deep/er/f", []byte("x"), Attr{DirMode: mode(0o700)}, false)
			put("/etc/resolv.conf", "/run/resolve/stub.conf", []byte("nameserver ::1\n"), Attr{}, false)
			put("/boot/abs", "/etc/os-release", []byte("ID=again\n"), Attr{}, true)
			many := 60
			if i < 5 {
				many = 250
			}
			for k := range many {
				put(fmt.Sprintf("/usr/share/many/one-of-the-files-that-are-new-%05d-%s", k*7919%100000,
					strings.Repeat("é", k%90)),
					fmt.Sprintf("/usr/share/many/one-of-the-files-that-are-new-%05d-%s", k*7919%100000,
						strings.Repeat("é", k%90)), []byte(fmt.Sprint(k)), Attr{}, false)
				put(fmt.Sprintf("/var/fresh/%d", k), fmt.Sprintf("/var/fresh/%d", k), nil, Attr{}, false)
			}
			for _, name := range []string{"/usr/share/many/file-with-a-long-name-0123", "/boot/rel",
				"/usr/share/many/file-with-a-long-name-0000"} {
				if ok, err := w.Remove(name); !ok || err != nil {
					t.Fatalf("Remove(%s) = %v, %v", name, ok, err)
				}
			}
			for _, name := range []string{"/nothing", "/no/folder/f"} {
				if ok, err := w.Remove(name); ok || err != nil {
					t.Fatalf("Remove(%s) = %v, %v", name, ok, err)
				}
			}
			if ok, err := w.IsDir("/bin"); !ok || err != nil {
				t.Errorf("IsDir(/bin) = %v, %v", ok, err)
			}
			if err := w.Commit(flushed); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "e2fsck", "-f", "-n", img)
			fs := open(t, img)
			for name, data := range want {
				fs.budget = maxRead
				if got, err := fs.Read(name, 64<<20); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("Read(%s) = %d bytes, %v, want %d", name, len(got), err, len(data))
				}
			}
			if _, err := fs.Read("/usr/share/many/file-with-a-long-name-0123", 100); !errors.Is(err, ErrNone) {
				t.Errorf("a removed file: %v", err)
			}
			out := kit.Run(t, "debugfs", "-R", "stat /etc/hello.conf", img)
			for _, s := range []string{"Mode:  0640", "User:  1000", "Group: 70000", "Size: 6", "Links: 1"} {
				if !strings.Contains(out, s) && !(strings.Contains(c, "-r 0")) {
					t.Errorf("stat has no %q: %s", s, out)
				}
			}
			if out := kit.Run(t, "debugfs", "-R", "stat /boot/other", img); !strings.Contains(out, "Links: 2") {
				t.Errorf("a file with two names: %s", out)
			}
			if out := kit.Run(t, "debugfs", "-R", "stat /etc/deep/er", img); !strings.Contains(out, "Mode:  0700") {
				t.Errorf("the last folder: %s", out)
			}
			got := filepath.Join(t.TempDir(), "out")
			kit.Run(t, "debugfs", "-R", "dump /boot/one "+got, img)
			if b, err := os.ReadFile(got); err != nil || !bytes.Equal(b, want["/boot/other"]) {
				t.Errorf("debugfs reads %d bytes, %v", len(b), err)
			}
		})
	}
}

// TestManyNames puts thousands of long names into one directory: its index gets a second level, whose nodes are split
// in turn; a directory without one continues beyond doubly indirect blocks. With every kind of hash, and characters
// above 127 signed and unsigned.
func TestManyNames(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs", "e2fsck", "debugfs", "tune2fs")
	dir := t.TempDir()
	for k := range 40 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d%s", k, strings.Repeat("-old", 40))), nil,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ args, hash, flags string }{
		{"-t ext4", "half_md4", "1"}, {"-t ext4 -O ^metadata_csum,^64bit", "tea", "2"}, {"-t ext3", "legacy", "1"},
		{"-t ext3 -O ^has_journal", "half_md4", "2"}, {"-t ext4 -O metadata_csum_seed", "tea", "1"},
		{"-t ext2", "legacy", "2"}, {"-t ext2 -O ^dir_index", "", ""},
	} {
		t.Run(c.args+" "+c.hash+c.flags, func(t *testing.T) {
			img := kit.TempDisk(t, 24<<20)
			kit.Run(t, "mke2fs",
				append(append([]string{"-q", "-F", "-b", "1024", "-N", "4000", "-d", dir}, strings.Fields(c.args)...),
					img)...)
			if c.hash != "" {
				kit.Run(t, "tune2fs", "-E", "hash_alg="+c.hash, img)
				kit.Run(t, "debugfs", "-w", "-R", "ssv flags "+c.flags, img)
				if out, err := exec.Command("e2fsck", "-f", "-y", "-D", img).CombinedOutput(); err != nil &&
					!bytes.Contains(out, []byte("MODIFIED")) {
					t.Fatalf("e2fsck -D: %v: %s", err, out)
				}
			}
			w, _ := openWriter(t, img)
			const many = 700
			name := func(k int) string { return fmt.Sprintf("/%d%s", k*7919%10007, strings.Repeat("é", 100)) }
			for k := range many {
				if _, err := w.Put(name(k), nil, Attr{}); err != nil {
					t.Fatalf("name %d: %v", k, err)
				}
			}
			if err := w.Commit(flushed); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "e2fsck", "-f", "-n", img)
			if c.hash != "" {
				if out := kit.Run(t, "debugfs", "-R", "htree_dump /", img); !strings.Contains(out,
					"Indirect levels: 1") {
					t.Errorf("the index has one level only: %.300s", out)
				}
			}
			list, err := open(t, img).List("/")
			if err != nil || len(list) != many+40+1 {
				t.Errorf("%d names, %v, want %d", len(list), err, many+40+1)
			}
		})
	}
}

// TestWriteFull holds that what does not fit is refused before anything is written, by blocks and by inodes, and that
// what just fits does.
func TestWriteFull(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs", "e2fsck")
	for _, c := range []string{"-t ext4 -b 1024 -N 64", "-t ext2 -b 1024 -N 64", "-t ext4 -b 4096 -N 64"} {
		img := kit.TempDisk(t, 24<<20)
		kit.Run(t, "mke2fs", append(append([]string{"-q", "-F"}, strings.Fields(c)...), img)...)
		before, err := os.ReadFile(img)
		if err != nil {
			t.Fatal(err)
		}
		w, _ := openWriter(t, img)
		if _, err := w.Put("/small", []byte("x"), Attr{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Put("/large", make([]byte, 25<<20), Attr{}); !errors.Is(err, ErrFull) {
			t.Errorf("%s: too large a file: %v", c, err)
		}
		if err := w.Commit(func() error { return nil }); err == nil {
			t.Errorf("%s: what failed is committed", c)
		}
		w, _ = openWriter(t, img)
		var last error
		for k := range 1000 {
			if _, last = w.Put(fmt.Sprintf("/f%d", k), nil, Attr{}); last != nil {
				break
			}
		}
		if !errors.Is(last, ErrFull) {
			t.Errorf("%s: too many files: %v", c, last)
		}
		if after, err := os.ReadFile(img); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: what failed has written something, %v", c, err)
		}
		// As large as it goes, by halving; then the same file again, in the room that it has.
		low, high := 0, 24<<20
		for high-low > 1 {
			mid := (low + high) / 2
			w, _ := openWriter(t, img)
			if _, err := w.Put("/f", make([]byte, mid), Attr{}); err == nil {
				low = mid
			} else {
				high = mid
			}
		}
		if low < 15<<20 {
			t.Errorf("%s: only %d bytes fit", c, low)
		}
		for range 2 {
			w, _ := openWriter(t, img)
			if _, err := w.Put("/f", bytes.Repeat([]byte{7}, low), Attr{}); err != nil {
				t.Fatal(err)
			}
			if err := w.Commit(flushed); err != nil {
				t.Fatal(err)
			}
			kit.Run(t, "e2fsck", "-f", "-n", img)
		}
	}
}

// TestWriteRefuses holds the refused changes, with their reasons.
func TestWriteRefuses(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs", "debugfs")
	for c, word := range map[string]string{"-t ext4 -O bigalloc": "bigalloc", "-t ext4 -O inline_data": "inline_data",
		"-t ext4 -O mmp": "mmp", "-t ext4 -O quota": "quota", "-t ext4 -O meta_bg,^resize_inode": "features"} {
		img := kit.TempDisk(t, 16<<20)
		kit.Run(t, "mke2fs", append(append([]string{"-q", "-F"}, strings.Fields(c)...), img)...)
		f, err := os.OpenFile(img, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := OpenWriter(f, 16<<20, time.Now()); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", c, err, word)
		}
	}
	for script, word := range map[string]string{"ssv state 0": "cleanly", "ssv state 3": "found errors",
		"ssv last_orphan 12": "deleted", "feature needs_recovery": "journal"} {
		img := kit.TempDisk(t, 16<<20)
		kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", img)
		kit.Run(t, "debugfs", "-w", "-R", script, img)
		f, err := os.OpenFile(img, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := OpenWriter(f, 16<<20, time.Now()); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", script, err, word)
		}
	}
	dir, _ := tree(t)
	for name, target := range map[string]string{"a": "b", "b": "a", "etc/out": "../../nowhere/../x"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	img := kit.TempDisk(t, 64<<20)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-d", dir, img)
	kit.Run(t, "debugfs", "-w", "-R", "set_inode_field /boot/one flags 0x80010", img)
	for name, word := range map[string]string{"/../x": "not allowed", "/etc/../../x": "not allowed", "/a": "too many",
		"/a/x": "too many", "/boot": "no regular file", "/": "folder", "/etc/os-release/x": "no folder",
		"/etc/out": "symbolic link", "/" + strings.Repeat("n", 256): "not allowed", "/boot/one": "immutable",
		"": "folder", "/etc/": "folder", "/" + strings.Repeat("a/", 3000) + "x": "too long", "/boot/loop": "too many",
		"/etc/x\x00y": "not allowed"} {
		w, _ := openWriter(t, img)
		if _, err := w.Put(name, nil, Attr{}); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("Put(%.40q): %v, want %q", name, err, word)
		}
	}
}

// cut is a disk whose power goes after so many writes, in the middle of the last.
type cut struct {
	*os.File
	left int
}

var errCut = errors.New("the power went")

func (c *cut) WriteAt(b []byte, off int64) (int, error) {
	if c.left--; c.left < 0 {
		return 0, errCut
	}
	if c.left == 0 {
		n, _ := c.File.WriteAt(b[:len(b)/2], off)
		return n, errCut
	}
	return c.File.WriteAt(b, off)
}

// TestWriteCut cuts the power at every write: e2fsck repairs the result, and before the end it is never marked as
// clean.
func TestWriteCut(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs", "e2fsck")
	dir, files := tree(t)
	img := kit.TempDisk(t, 48<<20)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-d", dir, img)
	before, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		if n > 40 {
			t.Fatal("so many writes were not expected")
		}
		if err := os.WriteFile(img, before, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(img, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		w, err := OpenWriter(&cut{f, n}, int64(len(before)), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"/new/file", "/etc/os-release"} {
			if _, err := w.Put(name, bytes.Repeat([]byte("data "), 50_000), Attr{}); err != nil {
				t.Fatal(err)
			}
		}
		err = w.Commit(flushed)
		f.Close()
		if err == nil {
			kit.Run(t, "e2fsck", "-f", "-n", img)
			break
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		out, _ := exec.Command("e2fsck", "-f", "-y", img).CombinedOutput()
		if again, err := exec.Command("e2fsck", "-f", "-n", img).CombinedOutput(); err != nil {
			t.Fatalf("after write %d e2fsck repairs nothing: %s\n%s", n, out, again)
		}
		fs := open(t, img)
		if got, err := fs.Read("/usr/lib/big.efi", 16<<20); err != nil || !bytes.Equal(got, files["/usr/lib/big.efi"]) {
			t.Errorf("after write %d: an unchanged file: %v", n, err)
		}
	}
}

// FuzzWrite holds that no file system makes the writer panic, write outside of it, or work without end.
func FuzzWrite(f *testing.F) {
	f.Add(small(f, "-t", "ext4", "-b", "1024", "-N", "16"), "/etc/f")
	f.Add(small(f, "-t", "ext2", "-b", "1024", "-N", "16"), "/lost+found/f")
	f.Add(small(f, "-t", "ext4", "-O", "^has_journal,^metadata_csum,uninit_bg", "-b", "1024", "-N", "16"), "/f")
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		m := &memory{b: bytes.Clone(b)}
		w, err := OpenWriter(m, int64(len(b)), time.Unix(1_700_000_000, 0))
		if err != nil {
			return
		}
		if w.fs.Size > int64(len(b)) {
			t.Fatal("larger than its disk")
		}
		for _, n := range []string{name, "/lost+found/x", "/y"} {
			if _, err := w.Put(n, make([]byte, 3000), Attr{}); err != nil {
				return
			}
		}
		if _, err := w.Remove("/y"); err != nil {
			return
		}
		_ = w.Commit(func() error { return nil })
		if m.outside {
			t.Fatal("written outside")
		}
	})
}

// small returns a small file system, without trailing zeros.
func small(f *testing.F, args ...string) []byte {
	if _, err := exec.LookPath("mke2fs"); err != nil {
		return nil
	}
	img := filepath.Join(f.TempDir(), "img")
	if err := os.WriteFile(img, make([]byte, 256<<10), 0o600); err != nil {
		f.Fatal(err)
	}
	if out, err := exec.Command("mke2fs",
		append(append([]string{"-q", "-F", "-O", "^resize_inode"}, args...), img)...).CombinedOutput(); err != nil {
		f.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(img)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// memory is a disk in memory.
type memory struct {
	b       []byte
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
	return copy(m.b[off:], b), nil
}

// TestWriteBroken does what FuzzWrite does, with bytes changed at random where they matter: cheap enough for every run.
func TestWriteBroken(t *testing.T) {
	kit.NeedPrograms(t, "mke2fs")
	dir := t.TempDir()
	for k := range 200 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("a-name-that-is-long-enough-for-an-index-%d", k)), nil,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	img := kit.TempDisk(t, 512<<10)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-N", "256", "-O",
		"^resize_inode,^metadata_csum,^has_journal", "-d", dir, img)
	_ = exec.Command("e2fsck", "-f", "-y", "-D", img).Run()
	good, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	var matter []int // nonzero bytes, all of them structure
	for k, c := range good {
		if c != 0 {
			matter = append(matter, k)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	done := 0
	for range 400 {
		m := &memory{b: bytes.Clone(good)}
		for range 1 + r.IntN(20) {
			m.b[matter[r.IntN(len(matter))]] = byte(r.Uint32())
		}
		w, err := OpenWriter(m, int64(len(m.b)), time.Unix(1_700_000_000, 0))
		for k := range 20 {
			if err == nil {
				_, err = w.Put(fmt.Sprintf("/another-name-that-is-long-enough-%d", k), make([]byte, 2000), Attr{})
			}
		}
		if err == nil {
			_, err = w.Remove("/a-name-that-is-long-enough-for-an-index-7")
		}
		if err == nil && w.Commit(func() error { return nil }) == nil {
			done++
		}
		if m.outside {
			t.Fatal("written outside")
		}
	}
	if done < 20 {
		t.Errorf("only %d of 400 were written: this tests nothing", done)
	}
}
