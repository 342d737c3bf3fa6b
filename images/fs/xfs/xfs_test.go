package xfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
)

var _ interface {
	iofs.ReadDirFS
	iofs.StatFS
	iofs.ReadLinkFS
} = (*FS)(nil)

const testUUID = "11111111-2222-3333-4444-555555555555"

// pattern is content of which no two pieces are the same.
func pattern(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(1); len(b) < n; i++ {
		b = binary.LittleEndian.AppendUint64(b, i*0x9e3779b97f4a7c15)
	}
	return b[:n]
}

func openFile(t *testing.T, path string) (*FS, error) {
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
	return Open(f, info.Size())
}

// mkfs makes a file system; its programs take a small one only from the tests of XFS itself, which say so in their
// environment.
func mkfs(t *testing.T, img string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "mkfs.xfs",
		append(append([]string{"-q", "-f", "-L", "root"}, args...), img)...)
	cmd.Env = append(os.Environ(), "TEST_DIR=/", "TEST_DEV=/", "QA_CHECK_FS=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs %v: %v\n%s", args, err, out)
	}
}

// seen walks a file system and returns for each path "dir", a link's target, or size and digest.
func seen(t *testing.T, fsys iofs.FS) map[string]string {
	t.Helper()
	out, count := map[string]string{}, map[string]int{}
	err := iofs.WalkDir(fsys, ".", func(name string, d iofs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if f, ok := fsys.(*FS); ok {
			f.budget = maxRead
		}
		what := "dir"
		switch d.Type() {
		case 0:
			// Of large folders a few are enough: each is looked for from the beginning.
			if count[filepath.Dir(name)]++; count[filepath.Dir(name)] > 10 && count[filepath.Dir(name)]%2000 != 0 {
				i, err := d.Info()
				if err != nil {
					return err
				}
				what = fmt.Sprint(i.Size())
				break
			}
			f, err := fsys.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			n, err := io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 100_001))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			what = fmt.Sprintf("%d %x", n, h.Sum(nil))
		case iofs.ModeSymlink:
			if what, err = iofs.ReadLink(fsys, name); err != nil {
				return err
			}
			what = "-> " + what
		}
		out[name] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func compare(t *testing.T, want, got map[string]string) {
	t.Helper()
	if !maps.Equal(want, got) { // cmp takes long for so many
		t.Errorf("what is in it (-want +got):\n%.4000s", cmp.Diff(want, got))
	}
}

// TestReadsWhatMkfsMakes compares every file and name with what mkfs.xfs was given, over versions, features and sizes.
func TestReadsWhatMkfsMakes(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.xfs", "xfs_db")
	src := t.TempDir()
	content := map[string][]byte{"small": []byte("ID=rhel\n"), "empty": nil, "large": pattern(6<<20 + 123)}
	for name, b := range content {
		if err := os.WriteFile(filepath.Join(src, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := fstest.MapFS{}
	var proto strings.Builder
	proto.WriteString("/\n0 0\nd--755 0 0\n")
	file := func(dir, name, from string) {
		fmt.Fprintf(&proto, "%s ---644 0 0 %s\n", name, filepath.Join(src, from))
		want[filepath.Join(dir, name)] = &fstest.MapFile{Data: content[from], Mode: 0o644}
	}
	for dir, n := range map[string]int{"none": 0, "five": 5, "hundreds": 500, "many": 20000} {
		fmt.Fprintf(&proto, "%s d--755 0 0\n", dir)
		want[dir] = &fstest.MapFile{Mode: iofs.ModeDir | 0o755}
		for i := range n {
			from := "empty"
			if i%100 == 0 {
				from = "small"
			}
			file(dir, fmt.Sprintf("name-%d-%s", i, strings.Repeat("x", i%40)), from)
		}
		proto.WriteString("$\n")
	}
	file(".", "large", "large")
	for name, target := range map[string]string{"short": "five/name-0-", "long": strings.Repeat("five/../", 38) +
		"five/name-0-", "loop": "loop", "above": "/../../five/name-0-"} {
		fmt.Fprintf(&proto, "%s l--777 0 0 %s\n", name, target)
		want[name] = &fstest.MapFile{Data: []byte(target), Mode: iofs.ModeSymlink | 0o777}
	}
	proto.WriteString("$\n$\n")
	protofile := filepath.Join(src, "proto")
	if err := os.WriteFile(protofile, []byte(proto.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	expected := seen(t, want)
	for _, c := range []string{"-m crc=1", "-m crc=0", "-m crc=0 -n ftype=0 -i size=256 -s size=512",
		"-b size=1024 -s size=512", "-b size=512 -m crc=0 -n size=4096", "-b size=65536",
		"-s size=4096 -n size=16384 -i size=2048",
		"-m rmapbt=1,reflink=1,finobt=1,bigtime=1,inobtcount=1 -i sparse=1,nrext64=1", "-d agcount=8",
		"-d su=64k,sw=2 -l su=64k"} {
		t.Run(c, func(t *testing.T) {
			img := kit.TempDisk(t, 192<<20)
			args := append(strings.Fields(c), "-p", protofile)
			if !strings.Contains(c, "crc=0") {
				args = append(args, "-m", "uuid="+testUUID)
			}
			mkfs(t, img, args...)
			f, err := openFile(t, img)
			if err != nil {
				t.Fatal(err)
			}
			if i := f.Info(); i.Label != "root" || i.Size > 192<<20 || i.Size < 190<<20 ||
				(f.crc && i.UUID != testUUID) {
				t.Errorf("Info = %+v", i)
			}
			compare(t, expected, seen(t, f))
			for _, name := range []string{"short", "long", "above"} {
				if b, err := iofs.ReadFile(f, name); err != nil || string(b) != "ID=rhel\n" {
					t.Errorf("ReadFile(%s) = %q, %v", name, b, err)
				}
			}
			for _, name := range []string{"loop", "nothing", "large/x", "five/nothing"} {
				if _, err := f.Stat(name); !errors.Is(err, iofs.ErrNotExist) {
					t.Errorf("Stat(%s): %v, want ErrNotExist", name, err)
				}
			}
			f.budget = maxRead
			part, err := iofs.Sub(f, "five") // of small files: it reads them byte by byte
			if err == nil {
				err = fstest.TestFS(part, "name-0-")
			}
			if err != nil {
				t.Error(err)
			}
			if !f.crc {
				return
			}
			// Another UUID: metadata keeps the first one.
			kit.Run(t, "xfs_db", "-x", "-c", "uuid 99999999-2222-3333-4444-555555555555", img)
			if f, err = openFile(t, img); err != nil {
				t.Fatal(err)
			}
			if b, err := iofs.ReadFile(f, "short"); err != nil || string(b) != "ID=rhel\n" ||
				!strings.HasPrefix(f.Info().UUID, "99999999") {
				t.Errorf("with another UUID: %q, %v, %s", b, err, f.Info().UUID)
			}
		})
	}
}

// TestReadsWhatTheKernelWrites compares with the kernel's own view of a file system that it filled: trees of extents,
// holes, ranges that were allocated and never written, folders of which most names are gone. Until it is unmounted it
// is refused: its log must be replayed.
func TestReadsWhatTheKernelWrites(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "mkfs.xfs", "mount", "umount", "losetup", "cp")
	for _, c := range []string{"", "-b size=1024", "-s size=4096 -n size=8192",
		"-m rmapbt=1,reflink=1,bigtime=1 -i nrext64=1"} {
		t.Run(c, func(t *testing.T) {
			img, dir := kit.TempDisk(t, 320<<20), kit.MountPoint(t)
			mkfs(t, img, strings.Fields(c)...)
			dev := kit.Loop(t, img)
			mounted := false
			mount := func() {
				kit.Run(t, "mount", "-t", "xfs", dev, dir)
				mounted = true
			}
			umount := func() {
				kit.Run(t, "umount", dir)
				mounted = false
			}
			defer func() {
				if mounted {
					_ = exec.Command("umount", "-l", dir).Run()
				}
			}()
			mount()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			name := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
			must(os.WriteFile(name("one"), []byte("one"), 0o644))
			must(os.WriteFile(name("large"), pattern(9<<20+5), 0o644))
			for d, n := range map[string]int{"five": 5, "hundreds": 500, "many": 20000, "thinned": 6000} {
				must(os.Mkdir(name(d), 0o755))
				for i := range n {
					must(os.Link(name("one"), name(d, fmt.Sprintf("a-name-of-some-length-%d", i))))
				}
			}
			for i := 200; i < 5000; i++ {
				must(os.Remove(name("thinned", fmt.Sprintf("a-name-of-some-length-%d", i))))
			}
			must(os.Symlink("one", name("short")))
			must(os.Symlink(strings.Repeat("five/../", 120)+"one", name("long")))
			f, err := os.Create(name("pieces"))
			must(err)
			for i := range 3000 { // every other block, so that nothing grows together: a tree of extents
				_, err := f.WriteAt(pattern(700+i%50), int64(i)*8192)
				must(err)
				if i%500 == 0 {
					must(f.Sync())
				}
			}
			// a hole there becomes allocated and unwritten
			must(unix.Fallocate(int(f.Fd()), 0, 4096, 1<<20))
			must(unix.Fallocate(int(f.Fd()), 1, 3000*8192, 1<<20)) // after the end
			must(f.Close())
			f, err = os.Create(name("sparse"))
			must(err)
			_, err = f.WriteAt([]byte("middle"), 33<<20+77)
			must(err)
			must(f.Truncate(50<<20 + 1))
			must(f.Close())
			want := seen(t, os.DirFS(dir))

			kit.Run(t, "sync", "-f", dir)
			copied := filepath.Join(filepath.Dir(img), "copied")
			kit.Run(t, "cp", "--sparse=always", img, copied)
			if _, err := openFile(t, copied); !errors.Is(err, ErrNot) ||
				!strings.Contains(err.Error(), "its log has not been replayed") {
				t.Errorf("copied while it was mounted: %v", err)
			}
			umount()
			for range 2 {
				got, err := openFile(t, img)
				must(err)
				compare(t, want, seen(t, got))
				got.budget = maxRead
				for n, format := range map[string]byte{"pieces": formatTree, "long": formatExtents,
					"short": formatLocal, "five": formatLocal} {
					if i, err := got.lookup(n, false); err != nil || i.format != format {
						t.Errorf("%s is not what it was made to be: %+v, %v", n, i, err)
					}
				}
				// Mounted again, for reading only: nothing was written, or an unmount again.
				kit.Run(t, "mount", "-t", "xfs", "-o", "ro", dev, dir)
				umount()
			}
		})
	}
}

// TestLogGoesRound holds that a log's end is found wherever it lies in the ring.
func TestLogGoesRound(t *testing.T) {
	const count = 64
	for _, c := range []struct {
		name  string
		end   int // the first sector of the round before
		flags byte
		size  uint32 // of the buffers: how long the head is
		ops   uint32
		zero  bool // the rest is unwritten
		torn  int  // incomplete records after it
		clean bool
	}{
		{name: "begun", end: 2, flags: flagUnmount, ops: 1, zero: true, clean: true},
		{name: "middle", end: 40, flags: flagUnmount, ops: 1, clean: true},
		{name: "full", end: count, flags: flagUnmount, ops: 1, clean: true},
		{name: "over the edge", end: 1, flags: flagUnmount, ops: 1, clean: true},
		{name: "a long head", end: 30, flags: flagUnmount, size: 256 << 10, ops: 1, clean: true},
		{name: "another record", end: 30, flags: 1, ops: 1},
		{name: "several things", end: 30, flags: flagUnmount, ops: 2},
		{name: "a torn record behind", end: 30, flags: flagUnmount, ops: 1, torn: 1, clean: true},
		{name: "two of them", end: 30, flags: flagUnmount, ops: 1, torn: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			img := tiny(false)
			heads := max(1, int(c.size)/logCycles)
			log := img[40*1024:][:count*sector]
			for i := range count {
				cycle := uint32(7)
				if i >= c.end {
					cycle = 6
					if c.zero {
						cycle = 0
					}
				}
				be.PutUint32(log[i*sector:], cycle)
			}
			at := (c.end - 1 - heads + count) % count
			head := log[at*sector:]
			be.PutUint32(head[4:], be.Uint32(head))
			be.PutUint32(head, logMagic)
			be.PutUint32(head[8:], 2)
			be.PutUint32(head[12:], sector)
			be.PutUint32(head[40:], c.ops)
			be.PutUint32(head[320:], c.size)
			log[(c.end-1)*sector+9] = c.flags
			for i := range c.torn {
				head := log[(c.end+i)*sector:]
				be.PutUint32(head, logMagic)
				be.PutUint32(head[4:], 7)
				be.PutUint32(head[12:], 9*sector)
				be.PutUint32(head[40:], 1)
			}
			_, err := Open(bytes.NewReader(img), int64(len(img)))
			if c.clean && err != nil || !c.clean && !errors.Is(err, ErrNot) {
				t.Errorf("%v, want clean: %v", err, c.clean)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte)
		words  string
	}{
		"magic":        {func(b []byte) { b[0] = 0 }, ""},
		"too large":    {func(b []byte) { be.PutUint64(b[8:], 1<<30) }, "damaged"},
		"more groups":  {func(b []byte) { be.PutUint64(b[8:], 192); be.PutUint32(b[88:], 2) }, "of 98304"},
		"block size":   {func(b []byte) { b[6] = 3 }, "damaged"},
		"inode size":   {func(b []byte) { b[105] = 3 }, "damaged"},
		"inodes":       {func(b []byte) { b[123] = 34 }, "damaged"},
		"version":      {func(b []byte) { b[101] = 6 }, "version 6"},
		"folders":      {func(b []byte) { b[100] = 0x80 }, "version 1"},
		"feature":      {func(b []byte) { b[101] = 5; be.PutUint32(b[216:], 0x4001) }, "features 0x4000"},
		"repair":       {func(b []byte) { b[101] = 5; be.PutUint32(b[216:], 0x10) }, "xfs_repair"},
		"checksum":     {func(b []byte) { b[101] = 5; be.PutUint16(b[104:], 512); b[123] = 1 }, "wrong checksum"},
		"external log": {func(b []byte) { be.PutUint64(b[48:], 0) }, "log is on another device"},
		"log outside":  {func(b []byte) { be.PutUint64(b[48:], 80) }, "log lies outside"},
		"made":         {func(b []byte) { b[126] = 1 }, "damaged"},
	} {
		b := tiny(false)
		c.change(b)
		if _, err := Open(bytes.NewReader(b), 96<<10); !errors.Is(err, ErrNot) ||
			!strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want ErrNot with %q", name, err, c.words)
		}
	}
	if _, err := Open(bytes.NewReader(tiny(false)[:1024]), 1024); !errors.Is(err, ErrNot) {
		t.Errorf("cut off: %v", err)
	}
}

// TestDamage holds that metadata that was changed is refused: with checksums by them, without by its own bounds.
func TestDamage(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.xfs")
	proto, text := filepath.Join(t.TempDir(), "proto"), filepath.Join(t.TempDir(), "text")
	var list strings.Builder
	for i := range 60 {
		fmt.Fprintf(&list, "file-%d ---644 0 0 %s\n", i, text)
	}
	if err := errors.Join(os.WriteFile(text, []byte("text"), 0o644),
		os.WriteFile(proto, []byte("/\n0 0\nd--755 0 0\n"+list.String()+"$\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	img := kit.TempDisk(t, 32<<20)
	mkfs(t, img, "-p", proto)
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	good := func() *FS {
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := good()
	i, err := f.lookup("file-30", true)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := f.place(i.number>>f.perLog, 1)
	inodeAt := int(block)*f.BlockSize + int(i.number&(1<<f.perLog-1))*f.inodeSize
	root, err := f.inode(f.root)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := f.runs(root, 1)
	if err != nil || len(runs) != 1 {
		t.Fatalf("%v, %v", runs, err)
	}
	for what, at := range map[string]int{"the inode": inodeAt + 60, "the folder": int(runs[0].physical)*f.BlockSize +
		200} {
		b[at] ^= 4
		if _, err := good().Open("file-30"); !errors.Is(err, ErrNot) || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: %v, want ErrNot", what, err)
		}
		b[at] ^= 4
	}
	// A whole inode in another's place.
	other, err := f.lookup("file-31", true)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = f.place(other.number>>f.perLog, 1)
	copy(b[inodeAt:inodeAt+f.inodeSize], b[int(block)*f.BlockSize+int(other.number&(1<<f.perLog-1))*f.inodeSize:])
	if _, err := good().Open("file-30"); !errors.Is(err, ErrNot) || !strings.Contains(err.Error(), "not the one") {
		t.Errorf("another inode: %v", err)
	}
}

// tiny returns an image of 96 KiB with a file "a", a link "l" to it, a directory "d" in its own block, a file "t" with
// a tree of extents and a file "u" whose first block is unwritten.
func tiny(crc bool) []byte {
	const block, rootBlock = 1024, 8
	b := make([]byte, 96<<10)
	copy(b, "XFSB")
	be.PutUint32(b[4:], block)
	be.PutUint64(b[48:], 40) // the log
	be.PutUint32(b[88:], 1)
	be.PutUint32(b[96:], 32)
	b[120], b[124] = 10, 7
	be.PutUint32(b[84:], 96)
	be.PutUint64(b[8:], 96)
	be.PutUint16(b[102:], 512)
	size, per, head, version := 256, 2, 100, byte(2)
	be.PutUint16(b[100:], 0x2004)
	if crc {
		size, per, head, version = 512, 1, 176, 3
		be.PutUint16(b[100:], 0x2005)
	}
	be.PutUint16(b[104:], uint16(size))
	b[123] = byte(per)
	root := uint64(rootBlock << per)
	be.PutUint64(b[56:], root)
	n := 0
	inode := func(mode uint16, format byte, length int, extents uint32, fork ...byte) uint64 {
		i := b[rootBlock*block+n*size:]
		copy(i, "IN")
		be.PutUint16(i[2:], mode)
		i[4], i[5] = version, format
		be.PutUint64(i[56:], uint64(length))
		be.PutUint32(i[76:], extents)
		copy(i[head:], fork)
		n++
		return root + uint64(n-1)
	}
	extent := func(logical, physical, n uint64) []byte {
		return be.AppendUint64(be.AppendUint64(nil, logical<<9|physical>>43), physical<<21|n)
	}
	var names []byte
	for i, name := range []string{"a", "l", "d", "t", "u"} {
		names = append(append(append(names, byte(len(name)), 0, 0), name...), 0, 0, 0, byte(root)+byte(i)+1)
	}
	names = append([]byte{5, 0, 0, 0, 0, byte(root)}, names...)
	inode(typeDir|0o755, formatLocal, len(names), 0, names...)
	inode(typeFile|0o644, formatExtents, 2500, 2, append(extent(0, 20, 1), extent(2, 21, 1)...)...)
	inode(typeSymlink|0o777, formatLocal, 3, 0, []byte("d/x")...)
	inode(typeDir|0o755, formatExtents, block, 1, extent(0, 22, 1)...)
	room := (size - head - 4) / 16
	tree := append([]byte{0, 1, 0, 1}, make([]byte, 8*room)...)
	inode(typeFile|0o644, formatTree, 1500, 1, be.AppendUint64(tree, 24)...)
	unwritten := extent(0, 20, 1)
	unwritten[0] |= 0x80
	// the last one after its end
	inode(typeFile|0o644, formatExtents, 1500, 3,
		append(append(unwritten, extent(1, 21, 1)...), extent(2, 20, 1)...)...)
	copy(b[20*block:], pattern(2*block))
	d, magic, skip := b[22*block:][:block], "XD2B", 16
	leaf, leafMagic, leafHead := b[24*block:], "BMAP", 24
	if crc {
		magic, skip, leafMagic, leafHead = "XDB3", 64, "BMA3", 72
	}
	copy(d, magic)
	be.PutUint64(d[skip:], root+1)
	copy(d[skip+8:], "\x01x")
	be.PutUint16(d[skip+16:], 0xffff)
	be.PutUint16(d[skip+18:], uint16(block-8-8-skip-16))
	be.PutUint32(d[block-8:], 1)
	copy(leaf, leafMagic)
	be.PutUint16(leaf[6:], 1)
	copy(leaf[leafHead:], extent(0, 20, 2))
	return b
}

// TestTiny holds that the seeds of the fuzz test reach everything.
func TestTiny(t *testing.T) {
	for _, crc := range []bool{false, true} {
		b := tiny(crc)
		f, err := open(bytes.NewReader(b), int64(len(b)), true)
		if err != nil {
			t.Fatal(err)
		}
		a := append(append(pattern(1024), make([]byte, 1024)...), pattern(2048)[1024:1476]...)
		want := fstest.MapFS{"a": {Data: a}, "l": {Data: []byte("d/x"), Mode: iofs.ModeSymlink}, "d/x": {Data: a},
			"t": {Data: pattern(1500)}, "u": {Data: append(make([]byte, 1024), pattern(2048)[1024:1500]...)}}
		if d := cmp.Diff(seen(t, want), seen(t, f)); d != "" {
			t.Errorf("crc %v (-want +got):\n%s", crc, d)
		}
	}
}

// FuzzRead holds that no image makes the reader panic, or read without end.
func FuzzRead(f *testing.F) {
	for _, crc := range []bool{false, true} {
		b := tiny(crc)
		f.Add(b)
		circle := bytes.Clone(b)
		copy(circle[24*1024+6:], circle[24*1024+4:24*1024+6]) // a leaf that is a node above itself
		circle[24*1024+5] = 1
		f.Add(circle)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Open(bytes.NewReader(b), int64(len(b)))
		fsys, err := open(bytes.NewReader(b), int64(len(b)), true)
		if err != nil {
			return
		}
		fsys.budget = 4 << 20
		list, err := fsys.ReadDir(".")
		if err != nil {
			return
		}
		for _, e := range list[:min(len(list), 8)] {
			if _, err := fsys.ReadLink(e.Name()); err == nil {
				_, _ = fsys.Stat(e.Name())
				continue
			}
			_, _ = fsys.ReadDir(e.Name())
			file, err := fsys.Open(e.Name())
			if err != nil {
				continue
			}
			got, err := io.ReadAll(io.LimitReader(file, 1<<20))
			if info, _ := file.Stat(); err == nil && !info.IsDir() && int64(len(got)) != min(info.Size(), 1<<20) {
				t.Fatalf("%s: %d bytes, want %d", e.Name(), len(got), info.Size())
			}
		}
	})
}
