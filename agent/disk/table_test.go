package disk

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gptlib "github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/gpt"
	"github.com/ingot-metal/ingot/test/kit"
)

// testPart is a partition for makeGPT; positions in sectors.
type testPart struct {
	name        string
	start, size uint64
}

// makeGPT makes the image of a disk with a GPT and boot code, whose content is derived from seed.
func makeGPT(t testing.TB, size int64, sector int, seed byte, parts ...testPart) []byte {
	t.Helper()
	img := make([]byte, size)
	for i := range img {
		img[i] = seed ^ byte(i*7) ^ byte(i>>9)
	}
	g := makeGPTTable(t, size, sector, parts)
	clear(img[446:512])
	g.apply(img[:min(HeadSize, len(img))])
	b, start := g.backup()
	copy(img[start*uint64(sector):], b)
	return img
}

// makeGPTTable makes the table alone.
func makeGPTTable(t testing.TB, size int64, sector int, parts []testPart) *gptTable {
	t.Helper()
	g := &gptTable{Table: gpt.New(sector, gpt.NewGUID())}
	for i, p := range parts {
		g.Set(gpt.Entry{Number: i + 1, Type: gpt.BasicData, GUID: gpt.NewGUID(), First: p.start,
			Last: p.start + p.size - 1, Name: p.name})
	}
	if err := g.fit(uint64(size) / uint64(sector)); err != nil {
		t.Fatal(err)
	}
	return g
}

func makeMBR(size int64, parts ...testPart) []byte {
	img := make([]byte, size)
	for i := range img {
		img[i] = byte(i * 11)
	}
	clear(img[446:510])
	img[510], img[511] = 0x55, 0xaa
	for i, p := range parts {
		e := img[446+16*i:]
		e[4] = 0x83
		binary.LittleEndian.PutUint32(e[8:], uint32(p.start))
		binary.LittleEndian.PutUint32(e[12:], uint32(p.size))
	}
	return img
}

func TestGPTMovesToALargerDisk(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk")
	for _, sector := range []int{512, 4096} {
		img := makeGPT(t, 16<<20, sector, 1, testPart{"esp", uint64(1 << 20 / sector), uint64(2 << 20 / sector)},
			testPart{"root", uint64(4 << 20 / sector), uint64(8 << 20 / sector)})
		tab, err := parseTable(img[:HeadSize], sector)
		if err != nil {
			t.Fatal(err)
		}
		const size = 40 << 20
		if err := tab.fit(uint64(size / sector)); err != nil {
			t.Fatal(err)
		}
		p, err := tab.add("config-2", uint64(2<<20/sector))
		if err != nil {
			t.Fatal(err)
		}
		if p.Number != 3 || p.Name != "config-2" || p.Start%HeadSize != 0 || p.Size != 2<<20 ||
			p.Start+p.Size > size-17*512 || p.Start < size-4<<20 {
			t.Errorf("sector %d: config drive at %+v", sector, p)
		}
		disk := make([]byte, size)
		copy(disk, img[:HeadSize])
		tab.apply(disk[:HeadSize])
		b, start := tab.backup()
		copy(disk[start*uint64(sector):], b)
		path := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(path, disk, 0o600); err != nil {
			t.Fatal(err)
		}

		// A reader that is not ours agrees.
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lib, err := gptlib.Read(f, sector, sector)
		if err != nil {
			t.Fatalf("sector %d: go-diskfs: %v", sector, err)
		}
		var names []string
		for _, p := range lib.Partitions {
			if p.Type != gptlib.Unused {
				names = append(names, p.Name)
			}
		}
		if got := strings.Join(names, " "); got != "esp root config-2" {
			t.Errorf("sector %d: go-diskfs sees %q", sector, got)
		}
		if sector == 512 {
			if out, err := exec.Command("sgdisk", "-v", path).CombinedOutput(); err != nil ||
				!strings.Contains(string(out), "No problems found") {
				t.Errorf("sgdisk -v: %v\n%s", err, out)
			}
		}
	}
}

func TestMBRGetsAPrimaryPartition(t *testing.T) {
	img := makeMBR(8<<20, testPart{"", 2048, 4096}, testPart{"", 8192, 4096})
	tab, err := parseTable(img[:HeadSize], 512)
	if err != nil {
		t.Fatal(err)
	}
	if err := tab.fit(40 << 20 / 512); err != nil {
		t.Fatal(err)
	}
	p, err := tab.add("config-2", 2048)
	if err != nil || p.Number != 3 || p.StartLBA != 38<<20/512 || p.Type != "0x0c" {
		t.Errorf("add = %+v, %v", p, err)
	}
	// Above 2 TiB it goes below the limit of 32-bit sector numbers.
	tab, _ = parseTable(img[:HeadSize], 512)
	if err := tab.fit(8 << 40 / 512); err != nil {
		t.Fatal(err)
	}
	if p, err := tab.add("config-2", 2048); err != nil || p.StartLBA+p.Sectors > 1<<32 {
		t.Errorf("add on 8 TiB = %+v, %v", p, err)
	}
	full := makeMBR(8<<20, testPart{"", 2048, 100}, testPart{"", 4096, 100}, testPart{"", 6000, 100},
		testPart{"", 8192, 100})
	tab, _ = parseTable(full[:HeadSize], 512)
	if err := tab.fit(40 << 20 / 512); err != nil {
		t.Fatal(err)
	}
	if _, err := tab.add("config-2", 2048); err == nil || !strings.Contains(err.Error(), "four primary") {
		t.Errorf("fifth primary partition: %v", err)
	}
}

func TestCheckHeadRefuses(t *testing.T) {
	good := makeGPT(t, 8<<20, 512, 1, testPart{"root", 2048, 8192})
	change := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	fixHeader := func(b []byte) {
		binary.LittleEndian.PutUint32(b[512+88:], crc32.ChecksumIEEE(b[1024:1024+16384]))
		clear(b[512+16 : 512+20])
		binary.LittleEndian.PutUint32(b[512+16:], crc32.ChecksumIEEE(b[512:512+92]))
	}
	d512 := Disk{Name: "/dev/vda", Size: 64 << 20, LogicalSectors: 512}
	d4k := Disk{Name: "/dev/vdb", Size: 64 << 20, LogicalSectors: 4096}
	cases := []struct {
		name string
		img  []byte
		size int64
		disk Disk
		want string
	}{
		{"larger than the disk", good, 65 << 20, d512, "larger than the disk: 68157440 bytes onto /dev/vda"},
		{"partition beyond the disk", good, -1, Disk{Name: "/dev/vda", Size: 5 << 20, LogicalSectors: 512},
			"larger than the disk"},
		{"512 image on a 4096 disk", good, -1, d4k, "sectors of 512 bytes, but the disk has sectors of 4096"},
		{"4096 image on a 512 disk", makeGPT(t, 8<<20, 4096, 1, testPart{"root", 256, 512}), -1, d512,
			"sectors of 4096 bytes, but the disk has sectors of 512"},
		{"MBR on a 4096 disk", makeMBR(8<<20, testPart{"", 2048, 4096}), -1, d4k, "MBR counts in sectors of 512"},
		{"nothing", make([]byte, 8<<20), -1, d512, "no partition table"},
		{"tiny", []byte("hello"), 5, d512, "no partition table"},
		{"boot sector", change(func(b []byte) { clear(b[512:1024]); copy(b[446:], "not a table") }), -1, d512,
			"boot sector"},
		{"no partition", makeMBR(8 << 20), -1, d512, "without a single partition"},
		{"protective MBR alone", change(func(b []byte) { clear(b[512:1024]) }), -1, d512,
			"protective MBR without a GPT"},
		{"header checksum", change(func(b []byte) { b[512+40]++ }), -1, d512, "header is damaged: its checksum"},
		{"entries checksum", change(func(b []byte) { b[1024+56]++ }), -1, d512, "entries are damaged"},
		{"too many entries", change(func(b []byte) { binary.LittleEndian.PutUint32(b[512+80:], 1<<30); fixHeader(b) }),
			-1, d512, "entries of"},
		{"entries far away", change(func(b []byte) { binary.LittleEndian.PutUint64(b[512+72:], 1<<40); fixHeader(b) }),
			-1, d512, "not in the first MiB"},
		{"reversed partition",
			change(func(b []byte) { binary.LittleEndian.PutUint64(b[1024+32:], 1<<20); fixHeader(b) }), -1, d512,
			"partition 1 is at"},
		{"overlap", change(func(b []byte) { copy(b[1024+128:1024+256], b[1024:1024+128]); fixHeader(b) }), -1, d512,
			"overlap"},
		{"truncated", good, 3 << 20, d512, "truncated: its partition 1 ends at byte 5242880"},
	}
	for _, c := range cases {
		err := CheckHead(c.img[:min(len(c.img), HeadSize)], c.size, c.disk)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		} else if step.AsError(err).Remedy == "" {
			t.Errorf("%s: no remedy", c.name)
		}
	}
	if err := CheckHead(good[:HeadSize], 8<<20, d512); err != nil {
		t.Errorf("a good image: %v", err)
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add(makeGPT(f, 2<<20, 512, 1, testPart{"root", 2048, 1024})[:18<<10], false)
	f.Add(makeGPT(f, 2<<20, 4096, 1, testPart{"root", 256, 100})[:24<<10], true)
	f.Add(makeMBR(1<<20, testPart{"", 2048, 4096})[:4096], false)
	f.Fuzz(func(t *testing.T, head []byte, big bool) {
		sector := 512
		if big {
			sector = 4096
		}
		full := make([]byte, 40<<10)
		copy(full, head)
		tab, err := parseTable(full, sector)
		if err != nil || tab.fit(1<<20) != nil {
			return
		}
		if p, err := tab.add("config-2", 256); err == nil {
			for _, q := range tab.partitions() {
				if q.Number != p.Number && q.StartLBA < p.StartLBA+p.Sectors && p.StartLBA < q.StartLBA+q.Sectors {
					t.Fatalf("%+v overlaps %+v", p, q)
				}
			}
		}
		tab.apply(full)
		if _, err := parseTable(full, sector); err != nil {
			t.Fatalf("what was applied is not accepted: %v", err)
		}
	})
}

// image is the head, tail and size of an image in a file, as the writer gives them.
func imageOf(b []byte, sector int) (head, tail []byte, tailOff, size int64) {
	size = int64(len(b))
	tailOff = max(HeadSize, (size-TailSectors*int64(sector))/int64(sector)*int64(sector))
	return b[:min(len(b), HeadSize)], b[min(tailOff, size):], tailOff, size
}

// deployed puts an image onto a larger disk in a file and commits it.
func deployed(t *testing.T, img []byte, diskSize int64, sector int) (*fileDisk, *Pending) {
	t.Helper()
	f := newFileDisk(t, diskSize, sector)
	head, tail, tailOff, size := imageOf(img, sector)
	if err := CheckHead(head, size, f.disk()); err != nil {
		t.Fatal(err)
	}
	p, err := NewPending(f.disk(), head, tail, tailOff, size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(img[HeadSize:tailOff], HeadSize); err != nil {
		t.Fatal(err)
	}
	if err := p.commit(t.Context(), f, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return f, p
}

// toolImage makes an image of so many MiB with sfdisk.
func toolImage(t *testing.T, mib int64, script string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "sfdisk")
	path := kit.TempDisk(t, mib<<20)
	cmd := exec.Command("sfdisk", "--quiet", path)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sfdisk: %v\n%s", err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dump is a table as sfdisk shows it, without what depends on the file and the disk's size.
func dump(t *testing.T, path string) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(kit.Run(t, "sfdisk", "--dump", path)) {
		line = strings.ReplaceAll(line, path, "disk")
		if !strings.HasPrefix(line, "device:") && !strings.HasPrefix(line, "last-lba:") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// TestTablesOfOtherTools puts what sfdisk and sgdisk make onto a larger disk, and holds that both find the same
// partitions there, and nothing wrong: GPTs with few and many entries, and MBRs with logical partitions.
func TestTablesOfOtherTools(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk")
	gpt := "label: gpt\n"
	for _, c := range []struct{ name, script string }{
		{"GPT, 128 entries", gpt + "start=2048, size=4096, type=U, name=esp\nstart=8192, size=20480, name=root\n"},
		{"GPT, 4 entries", gpt + "table-length: 4\nstart=2048, size=4096, type=U\nstart=8192, size=20480\n"},
		{"GPT, 16 entries", gpt + "table-length: 16\nstart=2048, size=4096, type=U\nstart=8192, size=20480\n"},
		{"GPT, 512 entries", gpt + "table-length: 512\nstart=2048, size=4096, type=U\nstart=8192, size=20480\n"},
		{"GPT, first partition before the first MiB",
			gpt + "first-lba: 34\nstart=34, size=2014\nstart=2048, size=20480\n"},
		{"MBR", "label: dos\nstart=2048, size=4096, bootable\nstart=8192, size=20480, type=82\n"},
		{"MBR with logical partitions",
			"label: dos\nstart=2048, size=4096, bootable\nstart=8192, size=40000, type=f\nstart=10240, size=4096\nstart=16384, size=4096, type=82\nstart=22528, size=8192\n"},
		{"MBR, extended partition to the end",
			"label: dos\nstart=2048, size=4096\nstart=8192, type=5\nstart=10240, size=4096\nstart=16384\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			img := toolImage(t, 24, c.script)
			src := filepath.Join(t.TempDir(), "img")
			if err := os.WriteFile(src, img, 0o600); err != nil {
				t.Fatal(err)
			}
			f, p := deployed(t, img, 100<<20, 512)
			if want, got := dump(t, src), dump(t, f.Name()); got != want {
				t.Errorf("sfdisk finds\n%swant\n%s", got, want)
			}
			if out := kit.Run(t, "sfdisk", "--verify", f.Name()); !strings.Contains(out, "No errors") {
				t.Error(out)
			}
			if p.Table() == "gpt" {
				if out := kit.Run(t, "sgdisk", "-v", f.Name()); !strings.Contains(out, "No problems found") {
					t.Error(out)
				}
				if p.noted != "" {
					t.Errorf("noted %q of a whole image", p.noted)
				}
			}
			if !bytes.Equal(img[HeadSize:len(img)-TailSectors*512],
				readDisk(t, f, HeadSize, int64(len(img))-HeadSize-TailSectors*512)) {
				t.Error("the content between changed")
			}
		})
	}
}

// TestHybridMBRStays holds that what sgdisk puts beside the protective partition is found on the larger disk,
// untouched.
func TestHybridMBRStays(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk")
	path := kit.TempDisk(t, 24<<20)
	kit.Run(t, "sgdisk", "-n", "1:2048:+4M", "-n", "2:12288:+4M", "-h", "1:2", path)
	img, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, p := deployed(t, img, 100<<20, 512)
	if got := readDisk(t, f, 0, 512); !bytes.Equal(got, img[:512]) {
		t.Errorf("sector 0 changed:\n%x\n%x", got[440:], img[440:512])
	}
	if p.Table() != "gpt" || len(p.Partitions()) != 2 {
		t.Errorf("table %s, %+v", p.Table(), p.Partitions())
	}
	if out := kit.Run(t, "sgdisk", "-p", f.Name()); !strings.Contains(out, "12288") {
		t.Errorf("sgdisk: %s", out)
	}
	// Without one, the protective partition covers the larger disk.
	path = kit.TempDisk(t, 24<<20)
	kit.Run(t, "sgdisk", "-n", "1:2048:+4M", path)
	if img, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	f, _ = deployed(t, img, 100<<20, 512)
	if got := binary.LittleEndian.Uint32(readDisk(t, f, 0, 512)[446+12:]); got != 100<<20/512-1 {
		t.Errorf("the protective partition has %d sectors", got)
	}
}

// TestStaleGPTBehindAnMBR holds that an image is read as in Linux: an MBR without a protective partition takes
// precedence over a GPT that an earlier tool left.
func TestStaleGPTBehindAnMBR(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk")
	stale := toolImage(t, 24, "label: gpt\nstart=2048, size=4096\n")
	mbr := toolImage(t, 24, "label: dos\nstart=4096, size=8192\n")
	img := bytes.Clone(stale)
	copy(img, mbr[:512])
	f, p := deployed(t, img, 100<<20, 512)
	if p.Table() != "mbr" || len(p.Partitions()) != 1 || p.Partitions()[0].StartLBA != 4096 {
		t.Errorf("table %s, %+v", p.Table(), p.Partitions())
	}
	if out := dump(t, f.Name()); !strings.Contains(out, "label: dos") || !strings.Contains(out, "4096") {
		t.Errorf("sfdisk finds\n%s", out)
	}
}

// TestBackupTableIsReported holds that a missing, damaged or foreign backup GPT is said, and mended.
func TestBackupTableIsReported(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk")
	good := makeGPT(t, 8<<20, 512, 1, testPart{"root", 2048, 8192})
	other := makeGPT(t, 8<<20, 512, 1, testPart{"root", 2048, 8000})
	end := len(good) - 512
	for _, c := range []struct {
		name string
		f    func(b []byte) []byte
		want string
	}{
		{"whole", func(b []byte) []byte { return b }, ""},
		{"missing", func(b []byte) []byte { clear(b[end:]); return b }, "has no backup partition table"},
		{"damaged", func(b []byte) []byte { b[end+40]++; return b }, "is damaged"},
		{"another's", func(b []byte) []byte { copy(b[end-32*512:], other[end-32*512:]); return b },
			"another one than the primary"},
		{"cut off with the end", func(b []byte) []byte { return b[:end-32*512] }, "has no backup partition table"},
		{"grown by zeros", func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) },
			"has no backup partition table"},
	} {
		img := c.f(bytes.Clone(good))
		f, p := deployed(t, img, 32<<20, 512)
		if c.want == "" && p.noted != "" || !strings.Contains(p.noted, c.want) {
			t.Errorf("%s: noted %q, want %q", c.name, p.noted, c.want)
		}
		if out := kit.Run(t, "sgdisk", "-v", f.Name()); !strings.Contains(out, "No problems found") {
			t.Errorf("%s: %s", c.name, out)
		}
	}
}

// TestSizesAtTheEdge holds images that are as large as the disk, end within a sector, or were made with sectors of
// 4096.
func TestSizesAtTheEdge(t *testing.T) {
	gpt := makeGPT(t, 8<<20, 512, 1, testPart{"root", 2048, 8192})
	big := makeGPT(t, 8<<20, 4096, 1, testPart{"root", 256, 1024})
	mbr := makeMBR(8<<20, testPart{"", 2048, 8<<20/512 - 2048})
	odd := append(bytes.Clone(mbr), "the end"...)
	for _, c := range []struct {
		name   string
		img    []byte
		size   int64
		sector int
	}{
		{"GPT, as large as the disk", gpt, 8 << 20, 512}, {"GPT of 4096, as large", big, 8 << 20, 4096},
		{"GPT of 4096, larger disk", big, 64 << 20, 4096}, {"MBR, as large as the disk", mbr, 8 << 20, 512},
		{"MBR, ends within a sector", odd, 8<<20 + 512, 512},
		{"GPT of 4096, ends within a sector", append(bytes.Clone(big), make([]byte, 700)...), 9 << 20, 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, p := deployed(t, c.img, c.size, c.sector)
			tab, err := parseTable(readDisk(t, f, 0, HeadSize), c.sector)
			if err != nil || len(tab.partitions()) != 1 {
				t.Fatalf("table on the disk: %v", err)
			}
			q := tab.partitions()[0]
			if got := readDisk(t, f, q.Start, q.Size); !bytes.Equal(got, c.img[q.Start:q.Start+q.Size]) {
				t.Error("the partition's content changed")
			}
			if p.Table() == "mbr" && !bytes.Equal(readDisk(t, f, 0, int64(len(c.img))), c.img) {
				t.Error("an image with an MBR is not on the disk to the byte")
			}
		})
	}
	if err := CheckHead(mbr[:HeadSize], 8<<20,
		Disk{Name: "/dev/vda", Size: 8<<20 - 512, LogicalSectors: 512}); err == nil || !strings.Contains(err.Error(),
		"larger than the disk") {
		t.Errorf("a sector too large: %v", err)
	}
}

// Logical partitions need not be in the disk's order.
func TestExtendedRecordsBackwards(t *testing.T) {
	f := newFileDisk(t, 64<<20, 512)
	le := binary.LittleEndian
	record := func(sector int64, entries ...[3]uint32) []byte {
		b := make([]byte, 512)
		b[510], b[511] = 0x55, 0xaa
		for i, e := range entries {
			at := b[446+16*i:]
			at[4] = byte(e[0])
			le.PutUint32(at[8:], e[1])
			le.PutUint32(at[12:], e[2])
		}
		if _, err := f.File.WriteAt(b, sector*512); err != nil {
			t.Fatal(err)
		}
		return b
	}
	first := record(0, [3]uint32{0x0f, 2048, 100000})
	record(2048, [3]uint32{0x83, 2048, 4096}, [3]uint32{5, 40000, 10000})
	record(42048, [3]uint32{0x83, 2048, 4096}, [3]uint32{5, 20000, 10000}) // the next is before it
	record(22048, [3]uint32{0x83, 2048, 4096}, [3]uint32{5, 40000, 10000}) // and round again
	var starts []uint64
	if err := walkMBR(f, first, func(_ string, start, _ uint64) { starts = append(starts, start) }); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{4096, 44096, 24096}; !slices.Equal(starts, want) {
		t.Errorf("partitions at %d, want %d", starts, want)
	}
}

// TestPrimaryWithoutSectors: an entry that has a type and no sectors does not make a logical partition of the next
// primary one.
func TestPrimaryWithoutSectors(t *testing.T) {
	img := makeMBR(8<<20, testPart{"", 2048, 0}, testPart{"", 4096, 8192})
	f := newFileDisk(t, 8<<20, 512)
	if _, err := f.WriteAt(img, 0); err != nil {
		t.Fatal(err)
	}
	table, err := parseTable(img[:HeadSize], 512)
	if err != nil {
		t.Fatal(err)
	}
	if got := logical(f, table, img, 8<<20); len(got) != 0 || len(table.partitions()) != 1 {
		t.Errorf("logical partitions %+v of %+v", got, table.partitions())
	}
}
