package btrfs

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	iofs "io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
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

// text is content that can be packed, of which no two pieces are the same either.
func text(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of many that are nearly the same\n", i)
	}
	return b.Bytes()[:n]
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

func mkfs(t *testing.T, img string, args ...string) {
	t.Helper()
	kit.Run(t, "mkfs.btrfs", append(append([]string{"-q", "-f", "-L", "root", "-U", testUUID}, args...), img)...)
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
			// Of large folders a few are enough.
			if count[filepath.Dir(name)]++; count[filepath.Dir(name)] > 20 && count[filepath.Dir(name)]%500 != 0 {
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

// TestReadsWhatMkfsMakes compares every file and name with what mkfs.btrfs was given, over features and sizes.
func TestReadsWhatMkfsMakes(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.btrfs", "btrfstune")
	src := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(b []byte, parts ...string) {
		t.Helper()
		must(os.WriteFile(filepath.Join(append([]string{src}, parts...)...), b, 0o644))
	}
	put(nil, "empty")
	put(pattern(6<<20+123), "large")
	for dir, n := range map[string]int{"none": 0, "five": 5, "hundreds": 500, "many": 20000} {
		must(os.Mkdir(filepath.Join(src, dir), 0o755))
		for i := range n {
			var b []byte
			if i%100 == 0 {
				b = []byte("ID=suse\n")
			}
			put(b, dir, fmt.Sprintf("name-%d-%s", i, strings.Repeat("x", i%40)))
		}
	}
	for name, target := range map[string]string{"short": "five/name-0-", "long": strings.Repeat("five/../", 380) +
		"five/name-0-", "loop": "loop", "above": "/../../five/name-0-"} {
		must(os.Symlink(target, filepath.Join(src, name)))
	}
	expected := seen(t, os.DirFS(src))
	for k, c := range []string{"", "-n 4096 -s 4096", "-n 65536 -m single", "-M",
		"-m dup -d dup -O ^no-holes,^extref,^skinny-metadata -R ^free-space-tree"} {
		if k == 3 { // trees of all sizes of nodes were had, and so many files take their time
			must(os.RemoveAll(filepath.Join(src, "many")))
			maps.DeleteFunc(expected, func(name, _ string) bool {
				return name == "many" || strings.HasPrefix(name, "many/")
			})
		}
		t.Run(c, func(t *testing.T) {
			img := kit.TempDisk(t, 256<<20)
			mkfs(t, img, append(strings.Fields(c), "--rootdir", src)...)
			f, err := openFile(t, img)
			must(err)
			made, err := os.Stat(img) // mkfs.btrfs takes what room it estimates
			must(err)
			if d := cmp.Diff(Info{made.Size(), testUUID, "root"}, f.Info()); d != "" {
				t.Errorf("Info (-want +got):\n%s", d)
			}
			compare(t, expected, seen(t, f))
			for _, name := range []string{"short", "long", "above"} {
				if b, err := iofs.ReadFile(f, name); err != nil || string(b) != "ID=suse\n" {
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
			must(err)
			// Another UUID: metadata keeps the first one.
			kit.Run(t, "btrfstune", "-f", "-M", "99999999-2222-3333-4444-555555555555", img)
			f, err = openFile(t, img)
			must(err)
			if b, err := iofs.ReadFile(f, "short"); err != nil || string(b) != "ID=suse\n" ||
				!strings.HasPrefix(f.Info().UUID, "99999999") {
				t.Errorf("with another UUID: %q, %v, %s", b, err, f.Info().UUID)
			}
		})
	}
}

// TestReadsWhatTheKernelWrites compares with the kernel's own view of a file system that it filled: packed and in
// pieces, holes, ranges that were allocated and never written, folders of which most names are gone, subvolumes as SUSE
// makes them.
func TestReadsWhatTheKernelWrites(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp")
	for _, c := range []string{"compress=no", "compress=zstd:3", "compress-force=zlib", "compress=lzo"} {
		t.Run(c, func(t *testing.T) {
			img, dir := kit.TempDisk(t, 400<<20), kit.MountPoint(t)
			mkfs(t, img)
			dev := kit.Loop(t, img)
			mounted := false
			mount := func(options string) {
				t.Helper()
				kit.Run(t, "mount", "-t", "btrfs", "-o", options, dev, dir)
				mounted = true
			}
			umount := func() {
				t.Helper()
				kit.Run(t, "umount", dir)
				mounted = false
			}
			defer func() {
				if mounted {
					_ = exec.Command("umount", "-l", dir).Run()
				}
			}()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			name := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
			subvolume := func(parts ...string) { kit.Run(t, "btrfs", "subvolume", "create", name(parts...)) }
			mount(c + ",commit=3600") // commits only on request
			must(os.WriteFile(name("text"), text(5<<20+5), 0o644))
			if c == "compress=lzo" {
				umount()
				f, err := openFile(t, img)
				must(err)
				if _, err := f.Open("text"); err == nil ||
					!strings.Contains(err.Error(), "it is compressed with LZO, which is not read here") {
					t.Errorf("compressed with LZO: %v", err)
				}
				return
			}
			must(os.WriteFile(name("one"), []byte("one"), 0o644))
			must(os.WriteFile(name("small text"), text(1500), 0o644)) // packed inside the item
			must(os.WriteFile(name("large"), pattern(3<<20+5), 0o644))
			many := 2000
			if c == "compress=no" {
				many = 20000
			}
			for d, n := range map[string]int{"five": 5, "hundreds": 500, "many": many, "thinned": 3000} {
				must(os.Mkdir(name(d), 0o755))
				for i := range n {
					must(os.WriteFile(name(d, fmt.Sprintf("a-name-of-some-length-%d", i)), nil, 0o644))
				}
			}
			for i := 100; i < 2500; i++ {
				must(os.Remove(name("thinned", fmt.Sprintf("a-name-of-some-length-%d", i))))
			}
			must(os.Link(name("one"), name("five", "another name")))
			must(os.Symlink("one", name("short")))
			must(os.Symlink(strings.Repeat("five/../", 120)+"one", name("long")))
			f, err := os.Create(name("pieces"))
			must(err)
			for i := range 3000 { // every other block
				_, err := f.WriteAt(pattern(700+i%50), int64(i)*8192)
				must(err)
				if i%1000 == 0 {
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
			// parts of packed pieces, and one that is no longer used to its end
			f, err = os.OpenFile(name("text"), os.O_RDWR, 0)
			must(err)
			must(f.Sync())
			for _, at := range []int64{100_000, 1<<20 + 7, 3 << 20} {
				_, err = f.WriteAt([]byte("written over"), at)
				must(err)
			}
			must(f.Sync())
			must(f.Truncate(4<<20 + 11))
			must(f.Close())

			subvolume("@")
			subvolume("@/home")
			must(os.MkdirAll(name("@/boot/grub2"), 0o755))
			subvolume("@/boot/grub2/x86_64-efi")
			must(os.WriteFile(name("@/boot/grub2/x86_64-efi/normal.mod"), pattern(70_000), 0o644))
			must(os.WriteFile(name("@/boot/vmlinuz-6"), text(300_000), 0o644))
			must(os.Symlink("vmlinuz-6", name("@/boot/vmlinuz")))
			subvolume("@/.snapshots")
			must(os.Mkdir(name("@/.snapshots/1"), 0o755))
			kit.Run(t, "btrfs", "subvolume", "snapshot", name("@"), name("@/.snapshots/1/snapshot"))
			must(os.WriteFile(name("@/.snapshots/1/snapshot/boot/vmlinuz-6"), text(400_000), 0o644))
			must(os.WriteFile(name("@/later"), []byte("later"), 0o644))
			kit.Run(t, "btrfs", "subvolume", "snapshot", "-r", name("@/.snapshots/1/snapshot"), name("@/.snapshots/2"))
			subvolume("gone")
			kit.Run(t, "btrfs", "subvolume", "delete", name("gone"))
			top := seen(t, os.DirFS(dir))

			// What is only in the log, until the next commit, would be missed.
			kit.Run(t, "sync", "-f", dir)
			f, err = os.OpenFile(name("one"), os.O_RDWR|os.O_APPEND, 0)
			must(err)
			_, err = f.WriteString(" and more")
			must(err)
			must(f.Sync())
			must(f.Close())
			copied := filepath.Join(filepath.Dir(img), "copied")
			kit.Run(t, "cp", "--sparse=always", img, copied)
			if _, err := openFile(t, copied); !errors.Is(err, ErrNot) ||
				!strings.Contains(err.Error(), "its log has not been replayed") {
				t.Errorf("copied behind an fsync: %v", err)
			}
			must(os.WriteFile(name("one"), []byte("one"), 0o644))
			umount()
			got, err := openFile(t, img)
			must(err)
			compare(t, top, seen(t, got))
			counts := map[uint8]int{}
			for _, n := range []string{"text", "small text", "pieces"} {
				i, err := got.lookup(got.root, n, true)
				must(err)
				runs, err := got.runs(i)
				must(err)
				for _, r := range runs {
					counts[r.packed]++
				}
				if n == "small text" && (len(runs) != 1 || runs[0].inline == nil) {
					t.Errorf("%s is not what it was made to be: %d pieces", n, len(runs))
				}
			}
			if want := map[string]uint8{"compress=no": packedNot, "compress=zstd:3": packedZstd,
				"compress-force=zlib": packedZlib}[c]; counts[want] < 25 {
				t.Errorf("pieces packed by number: %v, want many of %d", counts, want)
			}

			mount("subvol=@/.snapshots/1/snapshot")
			kit.Run(t, "btrfs", "subvolume", "set-default", dir)
			umount()
			mount("ro")
			system := seen(t, os.DirFS(dir))
			umount()
			got, err = openFile(t, img)
			must(err)
			compare(t, system, seen(t, got))
			if len(system) > 10 || system["boot/vmlinuz-6"] == "" {
				t.Errorf("the default subvolume has %v", system)
			}
			for n, want := range map[string][]byte{"boot/vmlinuz": text(400_000),
				"@/.snapshots/1/snapshot/boot/vmlinuz": text(400_000), "@/boot/vmlinuz": text(300_000),
				"@/boot/grub2/x86_64-efi/normal.mod": pattern(70_000)} {
				if b, err := iofs.ReadFile(got, n); err != nil || !bytes.Equal(b, want) {
					t.Errorf("ReadFile(%s) = %d bytes, %v", n, len(b), err)
				}
			}
			if _, err := got.Stat("boot/grub2/x86_64-efi/normal.mod"); !errors.Is(err, iofs.ErrNotExist) {
				t.Errorf("a subvolume in a snapshot: %v, want ErrNotExist", err)
			}
			got.root = got.top
			compare(t, top, seen(t, got))
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	sum := func(b []byte) { le.PutUint32(b, crc32.Checksum(b[32:superSize], castagnoli)) }
	for name, c := range map[string]struct {
		change func(b []byte) // the superblock
		words  string
	}{
		"magic":       {func(b []byte) { b[64] = 0 }, ""},
		"checksum":    {func(b []byte) { b[0] ^= 1 }, "wrong checksum"},
		"sums":        {func(b []byte) { b[196] = 1; sum(b) }, "of kind 1, not CRC-32C"},
		"feature":     {func(b []byte) { le.PutUint64(b[188:], 0x2043); sum(b) }, "features 0x2000"},
		"flags":       {func(b []byte) { le.PutUint64(b[56:], 5); sum(b) }, "marked as damaged"},
		"devices":     {func(b []byte) { b[136] = 2; sum(b) }, "spread over 2 devices"},
		"log":         {func(b []byte) { b[96] = 1; sum(b) }, "its log has not been replayed"},
		"place":       {func(b []byte) { b[48] = 1; sum(b) }, "superblock is damaged"},
		"sector":      {func(b []byte) { le.PutUint32(b[144:], 512); sum(b) }, "superblock is damaged"},
		"node":        {func(b []byte) { le.PutUint32(b[148:], 4097); sum(b) }, "superblock is damaged"},
		"level":       {func(b []byte) { b[198] = 9; sum(b) }, "superblock is damaged"},
		"size":        {func(b []byte) { le.PutUint64(b[209:], 1<<40); sum(b) }, "it claims 1099511627776 bytes"},
		"profile":     {func(b []byte) { b[811+keySize+24] |= 8; sum(b) }, "profile for several devices (0x8)"},
		"device":      {func(b []byte) { b[811+keySize+48] = 2; sum(b) }, "is on device 2"},
		"outside":     {func(b []byte) { le.PutUint64(b[811+keySize+56:], 1<<30); sum(b) }, "lies outside"},
		"stripes":     {func(b []byte) { b[811+keySize+44] = 40; sum(b) }, "superblock is damaged"},
		"chunks":      {func(b []byte) { le.PutUint32(b[160:], 20); sum(b) }, "superblock is damaged"},
		"no chunk":    {func(b []byte) { le.PutUint32(b[160:], 0); sum(b) }, "lies outside"},
		"generation":  {func(b []byte) { b[72]++; sum(b) }, "not the one"},
		"another one": {func(b []byte) { b[32]++; sum(b) }, "not the one"},
		"wrong level": {func(b []byte) { b[198] = 1; sum(b) }, "not the one"},
		"wrong tree":  {func(b []byte) { copy(b[80:88], b[88:96]); sum(b) }, "not the one"},
	} {
		b := tiny()
		c.change(b[superAt:])
		if _, err := Open(bytes.NewReader(b), int64(len(b))); !errors.Is(err, ErrNot) ||
			!strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want ErrNot with %q", name, err, c.words)
		}
	}
	b := tiny()
	if _, err := Open(bytes.NewReader(b[:superAt+superSize]), superAt+superSize); !errors.Is(err, ErrNot) {
		t.Errorf("cut off: %v", err)
	}
}

// TestRefusesWhatMkfsMakes holds that several devices and other checksums are refused in words.
func TestRefusesWhatMkfsMakes(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.btrfs")
	for words, args := range map[string][]string{
		"spread over 2 devices": {"-d", "raid1", "-m", "raid1", kit.TempDisk(t, 160<<20)},
		"not CRC-32C":           {"--csum", "xxhash"},
	} {
		img := kit.TempDisk(t, 160<<20)
		mkfs(t, img, args...)
		if _, err := openFile(t, img); !errors.Is(err, ErrNot) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want ErrNot with %q", args, err, words)
		}
	}
}

// TestDamage holds that metadata that was changed is refused, by its checksum, and by its own bounds where the checksum
// is right.
func TestDamage(t *testing.T) {
	good := func(b []byte) error {
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return err
		}
		for _, n := range []string{"a", "l", "p/x", "t", "z"} {
			if _, err := iofs.ReadFile(f, n); err != nil {
				return err
			}
		}
		_, err = f.ReadDir(".")
		return err
	}
	if err := good(tiny()); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{tinyChunks, tinyRoots, tinyFiles, tinyLeaf, tinyLeaf2, tinySub} {
		b := tiny()
		b[at+200] ^= 4
		if err := good(b); !errors.Is(err, ErrNot) || !strings.Contains(err.Error(), "wrong checksum") {
			t.Errorf("the node at %d: %v, want ErrNot", at, err)
		}
		for what, change := range map[string]func(n []byte){
			"the generation": func(n []byte) { n[80]++ },
			"the owner":      func(n []byte) { le.PutUint64(n[88:], 200) },
			"the place":      func(n []byte) { n[48]++ },
			"the UUID":       func(n []byte) { n[32]++ },
			"the level":      func(n []byte) { n[100] ^= 1 },
			"the count":      func(n []byte) { n[97] = 0xff },
			"the first key": func(n []byte) {
				clear(n[headSize : headSize+keySize])
				n[headSize] = 0xff
				n[headSize+7] = 0xff
			},
		} {
			b := tiny()
			n := b[at:][:tinyNode]
			change(n)
			le.PutUint32(n, crc32.Checksum(n[32:], castagnoli))
			if err := good(b); !errors.Is(err, ErrNot) {
				t.Errorf("%s of the node at %d: %v, want ErrNot", what, at, err)
			}
		}
	}
	// Item bytes in sequence: nothing panics, whatever they mean.
	whole := tiny()
	for _, at := range []int{tinyChunks, tinyRoots, tinyFiles, tinyLeaf, tinyLeaf2, tinySub} {
		n := whole[at:][:tinyNode]
		for i := headSize; i < tinyNode; i++ {
			if n[i] == 0 { // most of a node is free
				continue
			}
			n[i] ^= 0x81
			le.PutUint32(n, crc32.Checksum(n[32:], castagnoli))
			_ = good(whole)
			n[i] ^= 0x81
		}
		le.PutUint32(n, crc32.Checksum(n[32:], castagnoli))
	}
}

// Offsets in tiny's image; logical addresses are a MiB higher.
const (
	tinyNode    = 4096
	tinyLogical = 1 << 20
	tinyChunks  = 72 << 10
	tinyRoots   = tinyChunks + tinyNode
	tinyFiles   = tinyRoots + tinyNode
	tinyLeaf    = tinyFiles + tinyNode
	tinyLeaf2   = tinyLeaf + tinyNode
	tinySub     = tinyLeaf2 + tinyNode
	tinyData    = tinySub + tinyNode
	tinySize    = tinyData + 5*4096
)

type tinyItem struct {
	key  key
	data []byte
}

// tiny is an image with the default subvolume 256 of two leaves: a file "a" in pieces with a hole, a link "l" to it in
// a subvolume, the subvolume "p" with a file "x", and files "t" and "z" that are packed with zlib and zstd. "p" is a
// subvolume of the top tree, too small for more.
func tiny() []byte {
	b := make([]byte, tinySize)
	join := func(parts ...any) []byte {
		var out bytes.Buffer
		for _, p := range parts {
			if n, ok := p.(int); ok {
				p = uint64(n)
			}
			if k, ok := p.(key); ok {
				p = append(append(le.AppendUint64(nil, k.object), k.kind), le.AppendUint64(nil, k.offset)...)
			}
			if err := binary.Write(&out, le, p); err != nil {
				panic(err)
			}
		}
		return out.Bytes()
	}
	node := func(at int, owner uint64, level byte, count int, body []byte) {
		n := b[at:][:tinyNode]
		copy(n[32:], "sixteen letters.")
		le.PutUint64(n[48:], uint64(at)+tinyLogical)
		le.PutUint64(n[80:], 7)
		le.PutUint64(n[88:], owner)
		le.PutUint32(n[96:], uint32(count))
		n[100] = level
		copy(n[headSize:], body)
		le.PutUint32(n, crc32.Checksum(n[32:], castagnoli))
	}
	leaf := func(at int, owner uint64, items ...tinyItem) {
		slices.SortFunc(items, func(a, b tinyItem) int {
			if a.key.less(b.key) {
				return -1
			}
			return 1
		})
		body := make([]byte, tinyNode-headSize)
		end := len(body)
		for i, it := range items {
			end -= len(it.data)
			copy(body[end:], it.data)
			copy(body[itemSize*i:], join(it.key, uint32(end), uint32(len(it.data))))
		}
		node(at, owner, 0, len(items), body)
	}
	inode := func(n uint64, mode uint32, size int) tinyItem {
		i := make([]byte, 160)
		le.PutUint64(i[16:], uint64(size))
		le.PutUint32(i[52:], mode)
		return tinyItem{key{n, kindInode, 0}, i}
	}
	name := func(dir, index uint64, name string, to key) []tinyItem {
		kind := byte(1)
		if to.kind == kindRoot {
			kind = 2
		} else if name == "l" {
			kind = 7
		}
		e := join(to, uint64(7), uint16(0), uint16(len(name)), kind, []byte(name))
		return []tinyItem{{key{dir, kindName, hash(name)}, e}, {key{dir, kindIndex, index}, e}}
	}
	root := func(id uint64, at int, level byte) tinyItem {
		r := make([]byte, 439)
		le.PutUint64(r[160:], 7)
		le.PutUint64(r[168:], 256)
		le.PutUint64(r[176:], uint64(at)+tinyLogical)
		le.PutUint32(r[216:], 1)
		r[238] = level
		return tinyItem{key{id, kindRoot, 0}, r}
	}
	extent := func(n uint64, at int, packed, kind byte, size int, rest []byte) tinyItem {
		return tinyItem{key{n, kindExtent, uint64(at)}, join(7, size, packed, byte(0), uint16(0), kind, rest)}
	}
	logical := func(block int) int { return tinyData + 4096*block + tinyLogical }

	chunk := join(tinySize, uint64(2), 64<<10, uint64(7), uint32(4096), uint32(4096), uint32(4096), uint16(1),
		uint16(0), uint64(1), 0, make([]byte, 16))
	chunkKey := key{chunkObject, kindChunk, tinyLogical}
	leaf(tinyChunks, chunkTree, tinyItem{chunkKey, chunk})
	inTree := func(id uint64) key { return key{id, kindRoot, 1<<64 - 1} }
	leaf(tinyRoots, rootTree,
		slices.Concat(name(6, 2, "default", inTree(256))[:1],
			[]tinyItem{root(5, tinySub, 0), root(256, tinyFiles, 1), root(257, tinySub, 0),
				{key{256, kindRootName, 257}, join(uint64(256), uint64(4), uint16(1), []byte("p"))}})...)

	file := func(n uint64) key { return key{n, kindInode, 0} }
	first := []tinyItem{inode(256, typeDir|0o755, 10)}
	first = append(first, name(256, 2, "a", file(257))...)
	first = append(first, name(256, 3, "l", file(258))...)
	first = append(first, name(256, 4, "p", inTree(257))...)
	first = append(first, name(256, 5, "t", file(259))...)
	first = append(first, name(256, 6, "z", file(260))...)
	first = append(first, name(256, 7, "n", inTree(5))...) // which hangs nowhere: an empty folder
	leaf(tinyLeaf, 256, first...)

	content := text(8192)
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(content)
	_ = z.Close()
	copy(b[tinyData+3*4096:], packed.Bytes())
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxPacked))
	if err != nil {
		panic(err)
	}
	copy(b[tinyData+4*4096:], enc.EncodeAll(content, nil))
	copy(b[tinyData:], pattern(3*4096))
	leaf(tinyLeaf2, 5, // shared with the top, from which it was a snapshot
		inode(257, typeFile|0o644, 5*4096-100),
		extent(257, 0, packedNot, extentRegular, 4096, join(logical(0), 4096, 0, 4096)),
		extent(257, 2*4096, packedNot, extentRegular, 8192, join(logical(1), 8192, 4096, 4096)),
		extent(257, 3*4096, packedNot, extentAllocated, 4096, join(logical(0), 4096, 0, 4096)),
		extent(257, 4*4096, packedNot, extentRegular, 4096, join(0, 0, 0, 4096)), inode(258, typeSymlink|0o777, 3),
		extent(258, 0, packedNot, extentInline, 3, []byte("p/x")), inode(259, typeFile|0o644, 8000),
		extent(259, 0, packedZlib, extentRegular, 8192, join(logical(3), 4096, 0, 8192)),
		inode(260, typeFile|0o644, 4096),
		extent(260, 0, packedZstd, extentRegular, 8192, join(logical(4), 4096, 4096, 4096)))
	node(tinyFiles, 256, 1, 2,
		join(key{256, kindInode, 0}, tinyLeaf+tinyLogical, uint64(7), key{257, kindInode, 0}, tinyLeaf2+tinyLogical,
			uint64(7)))
	leaf(tinySub, 257, append(name(256, 2, "x", file(300)), inode(256, typeDir|0o755, 2), inode(300, typeFile|0o644, 5),
		extent(300, 0, packedNot, extentInline, 5, []byte("inner")))...)

	s := b[superAt:][:superSize]
	copy(s[32:], "sixteen letters.")
	le.PutUint64(s[48:], superAt)
	le.PutUint64(s[56:], 1)
	copy(s[64:], magic)
	le.PutUint64(s[72:], 7)
	le.PutUint64(s[80:], tinyRoots+tinyLogical)
	le.PutUint64(s[88:], tinyChunks+tinyLogical)
	le.PutUint64(s[128:], 6)
	le.PutUint64(s[136:], 1)
	le.PutUint32(s[144:], 4096)
	le.PutUint32(s[148:], tinyNode)
	le.PutUint64(s[164:], 7)
	le.PutUint64(s[188:], 0x343)
	le.PutUint64(s[201:], 1)
	le.PutUint64(s[209:], tinySize)
	copy(s[299:], "tiny")
	le.PutUint32(s[160:], uint32(copy(s[811:], join(chunkKey, chunk))))
	le.PutUint32(s, crc32.Checksum(s[32:], castagnoli))
	return b
}

// TestTiny holds that the seed of the fuzz test reaches everything.
func TestTiny(t *testing.T) {
	b := tiny()
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 4096)
	a := slices.Concat(pattern(4096), zeros, pattern(3 * 4096)[2*4096:], zeros, zeros[:4096-100])
	want := fstest.MapFS{"a": {Data: a}, "l": {Data: []byte("p/x"), Mode: iofs.ModeSymlink},
		"p/x": {Data: []byte("inner")}, "t": {Data: text(8000)}, "z": {Data: text(8192)[4096:]},
		"n": {Mode: iofs.ModeDir}}
	compare(t, seen(t, want), seen(t, f))
	if b, err := iofs.ReadFile(f, "x"); err != nil || string(b) != "inner" {
		t.Errorf("from the top: %q, %v", b, err)
	}
}

// FuzzRead holds that no image makes the reader panic, or read without end.
func FuzzRead(f *testing.F) {
	f.Add(tiny())
	circle := tiny()
	copy(circle[tinyFiles+headSize+keySize:][:8], circle[tinyFiles+48:]) // a node that is its own child
	f.Add(circle)
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
