package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/gpt"
	"github.com/ingot-metal/ingot/test/kit"
	"golang.org/x/sys/unix"
)

// fileDisk is a plain file as a disk that insists on whole sectors.
type fileDisk struct {
	*os.File
	size   int64
	sector int
}

func newFileDisk(t *testing.T, size int64, sector int) *fileDisk {
	t.Helper()
	f, err := os.OpenFile(kit.TempDisk(t, size), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &fileDisk{f, size, sector}
}

func (f *fileDisk) whole(off int64, n int) error {
	if off%int64(f.sector) != 0 || n%f.sector != 0 || off+int64(n) > f.size {
		return fmt.Errorf("%d bytes at %d are not whole sectors of %d on the disk", n, off, f.sector)
	}
	return nil
}

func (f *fileDisk) ReadAt(b []byte, off int64) (int, error) {
	if err := f.whole(off, len(b)); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, off)
}

func (f *fileDisk) WriteAt(b []byte, off int64) (int, error) {
	if err := f.whole(off, len(b)); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, off)
}

func (f *fileDisk) Size() int64                   { return f.size }
func (f *fileDisk) SectorSize() int               { return f.sector }
func (f *fileDisk) Number() (major, minor uint32) { return 0, 0 }
func (f *fileDisk) Punch(off, n int64) error      { return errors.ErrUnsupported }
func (f *fileDisk) Sync() error                   { return nil }
func (f *fileDisk) RereadPartitions() error       { return nil }
func (f *fileDisk) Close() error                  { return nil }

func (f *fileDisk) disk() Disk {
	return Disk{Name: "/dev/vda", Serial: "1", Size: f.size, LogicalSectors: f.sector, PhysicalSectors: f.sector}
}

// fill puts a pattern over a range.
func (f *fileDisk) fill(t *testing.T, off, n int64) {
	t.Helper()
	for b := bytes.Repeat([]byte{0xa5}, HeadSize); n > 0; off, n = off+HeadSize, n-HeadSize {
		if _, err := f.File.WriteAt(b[:min(n, HeadSize)], off); err != nil {
			t.Fatal(err)
		}
	}
}

// extImage makes a file system image of so many MiB.
func extImage(t *testing.T, mib int64, args ...string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "mke2fs")
	path := kit.TempDisk(t, mib<<20)
	kit.Run(t, "mke2fs", append(append([]string{"-q", "-F", "-t", "ext4", "-L", "cloud"}, args...), path)...)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// put does what the image writer does with a partition image.
func put(t *testing.T, dev Device, d Disk, l Layout, img []byte) *Pending {
	t.Helper()
	x, err := Divide(dev, d, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Begin(t.Context(), img[:HeadSize], int64(len(img))); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Root().WriteAt(img, 0); err != nil {
		t.Fatal(err)
	}
	return x.Pending(int64(len(img)))
}

// part copies a partition into a file.
func part(t *testing.T, f *fileDisk, p Partition) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// Holes stay holes: partitions are large.
	buf := make([]byte, HeadSize)
	for off := int64(0); off < p.Size; {
		at, err := f.File.Seek(p.Start+off, unix.SEEK_DATA)
		if err != nil || at >= p.Start+p.Size { // ENXIO: no more data
			break
		}
		off = (at - p.Start) / HeadSize * HeadSize
		if _, err := f.File.ReadAt(buf, p.Start+off); err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteAt(buf, off); err != nil {
			t.Fatal(err)
		}
		off += HeadSize
	}
	if err := out.Truncate(p.Size); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPartitionImageLayout(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk", "sfdisk", "e2fsck", "blkid", "fsck.fat")
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			f := newFileDisk(t, 8<<30, sector)
			d := f.disk()
			img := extImage(t, 64, "-b", "4096")
			f.fill(t, 0, 4<<20)
			f.fill(t, 550<<20, 4<<20)          // around the end of the system partition
			f.fill(t, f.size-4<<20, 4<<20)     // where an array's superblock could be
			f.fill(t, (1+550+1024)<<20, 2<<20) // where swap begins
			p := put(t, f, d, Layout{RootGB: 4, SwapMB: 256, EphemeralGB: 1}, img)
			if HasTable(readDisk(t, f, 0, HeadSize), sector) {
				t.Error("there is a table before the commit")
			}
			files := []fat.File{{Path: "EFI/BOOT/BOOTX64.EFI", Data: bytes.Repeat([]byte("x"), 3<<20)}}
			if err := p.Division().PutESP(t.Context(), f, files, "EFI-PART", 0xabcd1234); err != nil {
				t.Fatal(err)
			}
			drive, err := p.Reserve("config-2", 64<<20, 1<<20)
			if err != nil || drive.Size != 64<<20 {
				t.Fatalf("Reserve = %+v, %v", drive, err)
			}
			if again, err := p.Reserve("config-2", 64<<20, 1<<20); err != nil || again != drive {
				t.Errorf("Reserve again = %+v, %v", again, err)
			}
			const guid = "01234567-89AB-4CDE-8F01-23456789ABCD"
			if err := p.Division().SetGUID(RoleRoot, guid); err != nil {
				t.Fatal(err)
			}
			if err := p.Division().SetGUID(RoleESP, guid); err == nil {
				t.Error("two partitions have one GUID")
			}
			for range 2 { // run again, it does the same again
				if err := p.commit(t.Context(), f, slog.New(slog.DiscardHandler)); err != nil {
					t.Fatal(err)
				}
			}
			// Ironic's order, each where the one before ends, MiB by MiB.
			mib := int64(1)
			want := []struct {
				name, kind string
				mib        int64
			}{{"esp", TypeESP, 550}, {"ephemeral0", gpt.Linux.String(), 1024}, {"swap1", gpt.Swap.String(), 256},
				{"config-2", gpt.BasicData.String(), 64}, {"root", gpt.Linux.String(), 4096}}
			parts := p.Partitions()
			if len(parts) != len(want) {
				t.Fatalf("partitions: %+v", parts)
			}
			for i, w := range want {
				if q := parts[i]; q.Number != i+1 || q.Name != w.name || q.Type != w.kind || q.Start != mib<<20 ||
					q.Size != w.mib<<20 {
					t.Errorf("partition %d = %+v, want %+v at %d MiB", i+1, q, w, mib)
				}
				mib += w.mib
			}
			if parts[4].GUID != guid {
				t.Errorf("root's GUID = %s", parts[4].GUID)
			}
			if sector == 512 {
				if out := kit.Run(t, "sgdisk", "-v", f.Name()); !strings.Contains(out, "No problems found") {
					t.Error(out)
				}
				if out := kit.Run(t, "sfdisk", "--verify", f.Name()); !strings.Contains(out, "No errors") {
					t.Error(out)
				}
			} else if tab, err := parseTable(readDisk(t, f, 0, HeadSize), sector); err != nil ||
				len(tab.partitions()) != 5 {
				t.Errorf("parseTable: %v", err)
			}

			// What is on them.
			if out := kit.Run(t, "blkid", "-p", "-o", "export", part(t, f, parts[0])); !strings.Contains(out,
				"TYPE=vfat") || !strings.Contains(out, "UUID=ABCD-1234") {
				t.Errorf("system partition: %s", out)
			}
			kit.Run(t, "fsck.fat", "-n", part(t, f, parts[0]))
			eph := part(t, f, parts[1])
			kit.Run(t, "e2fsck", "-f", "-n", eph)
			if out := kit.Run(t, "blkid", "-p", "-o", "export", eph); !strings.Contains(out, "LABEL=ephemeral0") ||
				!strings.Contains(out, "TYPE=ext4") {
				t.Errorf("ephemeral: %s", out)
			}
			if out := kit.Run(t, "blkid", "-p", "-o", "export", part(t, f, parts[2])); !strings.Contains(out,
				"LABEL=swap1") || !strings.Contains(out, "TYPE=swap") {
				t.Errorf("swap: %s", out)
			}
			if out := kit.Run(t, "blkid", "-p", "-o", "export", part(t, f, parts[4])); !strings.Contains(out,
				"LABEL=cloud") || !strings.Contains(out, "TYPE=ext4") {
				t.Errorf("root: %s", out)
			}
			if got := readDisk(t, f, parts[4].Start, int64(len(img))); !bytes.Equal(got, img) {
				t.Error("root is not the image")
			}
		})
	}
}

func readDisk(t *testing.T, f *fileDisk, off, n int64) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := f.File.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRootTakesWhatIsLeft(t *testing.T) {
	f := newFileDisk(t, 2<<30, 512)
	p := put(t, f, f.disk(), Layout{EphemeralFormat: "VFAT"}, extImage(t, 16))
	parts := p.Partitions()
	if root := parts[1]; len(parts) != 2 || root.Start != (1+550+64)<<20 || root.Start+root.Size != 2<<30-1<<20 {
		t.Errorf("partitions: %+v", parts)
	}
}

func TestEphemeralAsFAT(t *testing.T) {
	kit.NeedPrograms(t, "fsck.fat")
	f := newFileDisk(t, 3<<30, 4096)
	p := put(t, f, f.disk(), Layout{EphemeralGB: 1, EphemeralFormat: "vfat"}, extImage(t, 16, "-b", "4096"))
	if err := p.commit(t.Context(), f, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "nothing would boot") || HasTable(readDisk(t, f, 0, HeadSize), 4096) {
		t.Errorf("a commit without a boot loader: %v", err)
	}
	p.div.booted = true
	if err := p.commit(t.Context(), f, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "fsck.fat", "-n", part(t, f, p.Partitions()[1]))
}

// TestPreserveEphemeral holds that a rebuild keeps the ephemeral partition's content to the byte, and that one that is
// not there fails before the disk is touched.
func TestPreserveEphemeral(t *testing.T) {
	for _, format := range []string{"ext4", "vfat"} {
		f := newFileDisk(t, 4<<30, 512)
		img := extImage(t, 16)
		log := slog.New(slog.DiscardHandler)
		l := Layout{EphemeralGB: 1, SwapMB: 16, EphemeralFormat: format}
		keep := l
		keep.PreserveEphemeral = true
		x, err := Divide(f, f.disk(), keep)
		if err != nil {
			t.Fatal(err)
		}
		f.fill(t, 0, 1<<20)
		if err := x.Begin(t.Context(), img[:HeadSize], int64(len(img))); err == nil ||
			!strings.Contains(err.Error(), "can't be preserved") {
			t.Errorf("preserving nothing: %v", err)
		}
		if b := readDisk(t, f, 0, 512); b[0] != 0xa5 {
			t.Error("the disk was touched")
		}
		p := put(t, f, f.disk(), l, img)
		p.div.booted = true
		if err := p.commit(t.Context(), f, log); err != nil {
			t.Fatal(err)
		}
		eph := p.Partitions()[1]
		f.fill(t, eph.Start+100<<20, 1<<20)
		f.fill(t, eph.Start+eph.Size-1<<20, 1<<20)
		// All that can have been written lies in these ranges.
		content := func() []byte {
			return slices.Concat(readDisk(t, f, eph.Start, 60<<20), readDisk(t, f, eph.Start+95<<20, 10<<20),
				readDisk(t, f, eph.Start+eph.Size-4<<20, 4<<20))
		}
		before := content()
		put(t, f, f.disk(), keep, img)
		p = put(t, f, f.disk(), keep, img) // a second try, after the first removed the table
		p.div.booted = true
		if err := p.commit(t.Context(), f, log); err != nil {
			t.Fatal(err)
		}
		if q := p.Partitions()[1]; q.Start != eph.Start || !bytes.Equal(before, content()) {
			t.Errorf("%s: the ephemeral partition changed", format)
		}
		// With another size it would be cut off.
		small := keep
		small.SwapMB, small.EphemeralGB = 0, 1
		if _, err := f.WriteAt(bytes.Repeat([]byte{0}, 4096), eph.Start); err != nil {
			t.Fatal(err)
		}
		x, err = Divide(f, f.disk(), small)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Begin(t.Context(), img[:HeadSize], int64(len(img))); err == nil {
			t.Error("an ephemeral partition without a file system is preserved")
		}
	}
}

func TestDivideRefuses(t *testing.T) {
	f := newFileDisk(t, 2<<30, 512)
	f.fill(t, 0, 1<<20)
	img := extImage(t, 16)
	small := extImage(t, 16, "-b", "1024")
	big := newFileDisk(t, 2<<30, 4096)
	big.fill(t, 0, 1<<20)
	liar := bytes.Clone(img)
	binary.LittleEndian.PutUint32(liar[1024+4:], 1<<21) // blocks of 1 KiB
	for _, c := range []struct {
		name string
		f    *fileDisk
		l    Layout
		img  []byte
		size int64
		want string
	}{
		{"no room", f, Layout{RootGB: 2}, img, -1, "no room"},
		{"no room before root", f, Layout{EphemeralGB: 2}, img, -1, "no room"},
		{"negative", f, Layout{RootGB: -1}, img, -1, "can't be root -1"},
		{"overflow", f, Layout{SwapMB: 1 << 60}, img, -1, "can't be"},
		{"format", f, Layout{EphemeralGB: 1, EphemeralFormat: "xfs"}, img, -1, `"xfs"`},
		{"nothing to preserve", f, Layout{PreserveEphemeral: true}, img, -1, "ephemeral_gb is 0"},
		{"not ext", f, Layout{}, bytes.Repeat([]byte("XFSB"), 1<<18), -1, "not an ext2, ext3 or ext4"},
		{"larger than root", f, Layout{RootGB: 1}, img, 2 << 30, "root partition"},
		{"file system larger than root", f, Layout{RootGB: 1}, liar, -1, "root partition"},
		{"truncated", f, Layout{RootGB: 1}, img, 8 << 20, "truncated"},
		{"small blocks on large sectors", big, Layout{RootGB: 1}, small, -1, "blocks of 1024 bytes"},
	} {
		x, err := Divide(c.f, c.f.disk(), c.l)
		if err == nil {
			err = x.Begin(t.Context(), c.img[:HeadSize], c.size)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || step.AsError(err).Remedy == "" {
			t.Errorf("%s: %v, want %q and a remedy", c.name, err, c.want)
		}
		if b := readDisk(t, c.f, 0, 512); b[0] != 0xa5 {
			t.Fatalf("%s: the disk was touched", c.name)
		}
	}
}

func TestWindow(t *testing.T) {
	f := newFileDisk(t, 8<<20, 512)
	w := &window{f, 2 << 20, 1 << 20}
	b := make([]byte, 1024)
	for _, err := range []error{
		func() error { _, err := w.WriteAt(b, 1<<20-512); return err }(),
		func() error { _, err := w.WriteAt(b, -512); return err }(),
		func() error { _, err := w.ReadAt(b, -512); return err }(),
		func() error { _, err := w.ReadAt(b, 2<<20); return err }(),
		w.Punch(1<<20-512, 1024),
	} {
		if !errors.Is(err, errOutside) {
			t.Errorf("%v, want errOutside", err)
		}
	}
	if n, err := w.ReadAt(b, 1<<20-512); n != 512 || err != io.EOF {
		t.Errorf("ReadAt over the end = %d, %v", n, err)
	}
	s := Section(f, 2<<20+7, 1000)
	if _, err := f.File.WriteAt([]byte("hello"), 2<<20+7+500); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ReadAt(b[:5], 500); n != 5 || err != nil || string(b[:5]) != "hello" {
		t.Errorf("Section: %q, %d, %v", b[:5], n, err)
	}
	if n, err := s.ReadAt(b[:10], 995); n != 5 || err != io.EOF {
		t.Errorf("Section over the end = %d, %v", n, err)
	}
}

// TestMakeSwapIsWhatMkswapMakes compares the header with mkswap's, but for its UUID.
func TestMakeSwapIsWhatMkswapMakes(t *testing.T) {
	kit.NeedPrograms(t, "mkswap")
	path := kit.TempDisk(t, 64<<20)
	kit.Run(t, "mkswap", "-L", "swap1", path)
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	makeSwap(got, 64<<20)
	clear(got[1036:1052])
	clear(want[1036:1052])
	if !bytes.Equal(got, want[:4096]) {
		t.Error("the header differs from mkswap's")
	}
}

// forgetful says that it punched, and did nothing.
type forgetful struct{ *fileDisk }

func (forgetful) Punch(int64, int64) error { return nil }

// A broken promise of a device may be detected after data was written to an apparent hole.
func TestFormatOnADeviceThatOnlyPromises(t *testing.T) {
	f := newFileDisk(t, 8<<30, 512)
	dev := forgetful{f}
	x, err := Divide(dev, f.disk(), Layout{SwapMB: 1, EphemeralGB: 2})
	if err != nil {
		t.Fatal(err)
	}
	f.fill(t, x.slots[RoleEphemeral].start+1<<20, 128<<20) // an older system, of which the first MiB is gone
	x.size = 8 << 20
	if err := x.format(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	p, _ := x.Partition(RoleEphemeral)
	kit.Run(t, "e2fsck", "-fn", part(t, f, p))
	p, _ = x.Partition(RoleSwap)
	head := make([]byte, 4096)
	if _, err := f.ReadAt(head, p.Start); err != nil || string(head[4086:]) != "SWAPSPACE2" {
		t.Errorf("swap: %q, %v", head[4086:], err)
	}
}
