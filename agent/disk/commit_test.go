package disk

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/gpt"
)

// oneDisk returns a machine with one small disk full of old data, and lists it.
func oneDisk(t *testing.T, s fake.DiskSpec) (*fake.Disks, *fake.Disk, Disk) {
	t.Helper()
	m := fake.NewDisks(t.TempDir())
	s.Name, s.Serial, s.Fill = "vda", "test-1", 0xa5
	f := m.Add(s)
	disks, err := List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	return m, f, disks[0]
}

// writeImage does what the image writer does, plainly: wipe, everything but head and tail, flush, pending.
func writeImage(t *testing.T, m *fake.Disks, d Disk, img []byte) *step.Facts {
	t.Helper()
	dev, _, err := OpenVerified(t.Context(), m, d.Identity())
	if err != nil {
		t.Fatal(err)
	}
	if err := Wipe(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	tailOff := max(HeadSize, (len(img)-TailSectors*d.LogicalSectors)/d.LogicalSectors*d.LogicalSectors)
	for off := HeadSize; off < tailOff; off += HeadSize / 2 {
		if _, err := dev.WriteAt(img[off:min(off+HeadSize/2, tailOff)], int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	p, err := NewPending(d, img[:HeadSize], img[tailOff:], int64(tailOff), int64(len(img)))
	if err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	SetPending(facts, p)
	return facts
}

func contents(t *testing.T, d *fake.Disk, size int64) []byte {
	t.Helper()
	b := make([]byte, size)
	if _, err := d.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCommitOnEveryKindOfDisk(t *testing.T) {
	const mib = 1 << 20
	cases := []struct {
		name   string
		img    func(t *testing.T) []byte
		size   int64
		sector int
		table  string
	}{
		{"gpt, larger disk", func(t *testing.T) []byte {
			return makeGPT(t, 6*mib, 512, 3, testPart{"root", 2048, 8192})
		}, 12 * mib, 512, "gpt"},
		{"gpt, same size", func(t *testing.T) []byte { return makeGPT(t, 6*mib, 512, 3, testPart{"root", 2048, 4096}) },
			6 * mib, 512, "gpt"},
		{"gpt, a little larger", func(t *testing.T) []byte {
			return makeGPT(t, 6*mib, 512, 3, testPart{"root", 2048, 4096})
		}, 6*mib + 4096, 512, "gpt"},
		{"gpt, 4096", func(t *testing.T) []byte { return makeGPT(t, 6*mib, 4096, 3, testPart{"root", 256, 512}) },
			12 * mib, 4096, "gpt"},
		{"mbr, content to the end", func(t *testing.T) []byte { return makeMBR(6*mib, testPart{"", 2048, 10240}) },
			12 * mib, 512, "mbr"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			img := c.img(t)
			m, f, d := oneDisk(t, fake.DiskSpec{Size: c.size, SectorSize: c.sector})
			facts := writeImage(t, m, d, img)
			if b := contents(t, f, HeadSize); HasTable(b, c.sector) {
				t.Fatal("the disk has a table before the commit")
			}
			p, err := PendingOf(facts)
			if err != nil {
				t.Fatal(err)
			}
			part, err := p.Reserve("config-2", 1*mib, 1*mib)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := p.Reserve("config-2", 1*mib, 1*mib); err != nil || again != part {
				t.Errorf("Reserve again = %+v, %v, want %+v", again, err, part)
			}
			payload := bytes.Repeat([]byte("cfg!"), mib/4)
			dev, err := p.Open(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dev.WriteAt(payload, part.Start); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the step may be run twice
				done, err := Commit(t.Context(), facts, m, nil)
				if err != nil {
					t.Fatal(err)
				}
				if done.Table != c.table || len(done.Partitions) != 2 || done.Disk.Name != "/dev/vda" {
					t.Errorf("Commit = %+v", done)
				}
			}
			if _, err := PendingOf(facts); err == nil || !strings.Contains(err.Error(), "committed already") ||
				step.AsError(err).Remedy == "" {
				t.Errorf("PendingOf after the commit: %v, so a later step would add a partition to no table", err)
			}
			got := contents(t, f, c.size)
			tab, err := parseTable(got[:HeadSize], c.sector)
			if err != nil {
				t.Fatal(err)
			}
			parts := tab.partitions()
			if root := parts[0]; !bytes.Equal(got[root.Start:root.Start+root.Size],
				img[root.Start:root.Start+root.Size]) {
				t.Error("the root partition is not the image's")
			}
			if cfg := parts[1]; !bytes.Equal(got[cfg.Start:cfg.Start+mib], payload) {
				t.Error("the config drive was overwritten")
			}
			if !bytes.Equal(got[:440], img[:440]) {
				t.Error("boot code is not the image's")
			}
			if c.table == "gpt" {
				h, err := gpt.ParseHeader(got[c.size-int64(c.sector):], c.sector)
				if err != nil || h.Self != uint64(c.size)/uint64(c.sector)-1 {
					t.Errorf("backup header: %+v, %v", h, err)
				}
				if end := 6*mib - c.sector; int64(end+c.sector) != c.size &&
					bytes.HasPrefix(got[end:], []byte(gpt.Signature)) {
					t.Error("the image's own backup header is still in the middle of the disk")
				}
			}
		})
	}
}

// TestPowerCutNeverLeavesAHalfDisk plays every prefix of what reached the disk, with every kind of loss in the volatile
// cache, and holds that a disk with any sound partition table is complete but for the sectors of the table itself.
func TestPowerCutNeverLeavesAHalfDisk(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		img    []byte
		sector int
	}{
		{"gpt", makeGPT(t, 4*mib, 512, 3, testPart{"root", 2048, 4096}), 512},
		{"gpt, bios boot partition inside the first MiB",
			makeGPT(t, 4*mib, 512, 3, testPart{"bios", 34, 2000}, testPart{"root", 2048, 4096}), 512},
		{"gpt, 4096", makeGPT(t, 4*mib, 4096, 3, testPart{"root", 256, 512}), 4096},
		{"mbr", makeMBR(4*mib, testPart{"", 2048, 6144}), 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, f, d := oneDisk(t, fake.DiskSpec{Size: 8 * mib, SectorSize: c.sector, Record: true})
			facts := writeImage(t, m, d, c.img)
			p, _ := PendingOf(facts)
			part, err := p.Reserve("config-2", mib, mib)
			if err != nil {
				t.Fatal(err)
			}
			dev, err := p.Open(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dev.WriteAt(bytes.Repeat([]byte("cfg!"), mib/4), part.Start); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := Commit(t.Context(), facts, m, nil); err != nil {
				t.Fatal(err)
			}
			states, bootable := 0, 0
			head := make([]byte, HeadSize)
			for what, cut := range f.PowerCuts(1) {
				states++
				if _, err := cut.ReadAt(head, 0); err != nil {
					t.Fatal(err)
				}
				primary, backup := HasTable(head, c.sector), soundBackup(t, cut, d.Size, c.sector)
				if !primary && !backup {
					continue
				}
				bootable++
				// Complete means: everything but sectors 0 and 1, and with sector 0 there, simply everything.
				skip := int64(2 * c.sector)
				if head[510] == 0x55 && head[511] == 0xaa {
					skip = 0
				}
				if !cut.Same(f, skip, d.Size) {
					t.Fatalf("%s: the disk has a table (primary: %v, backup: %v) but is not complete", what, primary,
						backup)
				}
			}
			if bootable == 0 || states == bootable {
				t.Errorf("%d states, %d bootable: the test proved nothing", states, bootable)
			}
		})
	}
}

// soundBackup reports whether there is a backup table that firmware would accept.
func soundBackup(t *testing.T, disk io.ReaderAt, size int64, sector int) bool {
	t.Helper()
	const most = 1 << 20 // holds any backup table
	end := make([]byte, most)
	if _, err := disk.ReadAt(end[most-sector:], size-int64(sector)); err != nil {
		t.Fatal(err)
	}
	h, err := gpt.ParseHeader(end[most-sector:], sector)
	if err != nil {
		return false
	}
	if from := int64(h.EntriesLBA) * int64(sector); from < size-most {
		t.Fatalf("the backup table's entries are at byte %d of %d", from, size)
	}
	if _, err := disk.ReadAt(end, size-most); err != nil {
		t.Fatal(err)
	}
	from, n := h.EntriesLBA*uint64(sector)-uint64(size-most), uint64(h.Count)*uint64(h.EntrySize)
	return from+n <= most && crc32.ChecksumIEEE(end[from:from+n]) == h.EntriesCRC
}

func TestCommitRefusesADiskThatChanged(t *testing.T) {
	const mib = 1 << 20
	m, f, d := oneDisk(t, fake.DiskSpec{Size: 8 * mib})
	facts := writeImage(t, m, d, makeGPT(t, 4*mib, 512, 3, testPart{"root", 2048, 4096}))
	if _, err := f.WriteAt([]byte("another system's boot sector"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Commit(t.Context(), facts, m, nil); err == nil ||
		!strings.Contains(err.Error(), "the disk was written to") {
		t.Errorf("Commit on a disk with foreign writes: %v", err)
	}
	m.Remove("vda")
	m.Add(fake.DiskSpec{Name: "vda", Size: 8 * mib, Serial: "other"})
	if _, err := Commit(t.Context(), facts, m, nil); err == nil ||
		!strings.Contains(err.Error(), "not the disk that was chosen") {
		t.Errorf("Commit on another disk: %v", err)
	}
	if _, err := Commit(t.Context(), &step.Facts{}, m, nil); err == nil || step.AsError(err).Remedy == "" {
		t.Errorf("Commit without an image: %v", err)
	}
}

func TestCommitReportsEveryFault(t *testing.T) {
	const mib = 1 << 20
	img := makeGPT(t, 4*mib, 512, 3, testPart{"root", 2048, 4096})
	for _, kind := range []string{"write", "sync", "read"} {
		m, f, d := oneDisk(t, fake.DiskSpec{Size: 8 * mib})
		facts := writeImage(t, m, d, img)
		f.Fail(func(k string, off, n int64) error {
			if k == kind {
				return errors.New("medium error")
			}
			return nil
		})
		if _, err := Commit(t.Context(), facts, m, nil); err == nil || !strings.Contains(err.Error(), "medium error") ||
			!strings.Contains(err.Error(), "/dev/vda") {
			t.Errorf("fault in %s: %v", kind, err)
		}
		f.Fail(nil)
		if _, err := Commit(t.Context(), facts, m, nil); err != nil {
			t.Errorf("after the fault in %s: %v", kind, err)
		}
	}
}

func TestZeroer(t *testing.T) {
	for _, s := range []fake.DiskSpec{{}, {NoPunch: true}, {LyingPunch: true}} {
		s.Size = 8 << 20
		m, f, _ := oneDisk(t, s)
		dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
		if err != nil {
			t.Fatal(err)
		}
		z := NewZeroer(dev)
		for _, r := range []span{{64 << 10, 1 << 20}, {2 << 20, 64 << 10}, {4<<20 + 512, 512}} {
			if err := z.Zero(t.Context(), r.off, r.n); err != nil {
				t.Fatal(err)
			}
		}
		got := contents(t, f, s.Size)
		want := bytes.Repeat([]byte{0xa5}, int(s.Size))
		clear(want[64<<10 : 64<<10+1<<20])
		clear(want[2<<20 : 2<<20+64<<10])
		clear(want[4<<20+512 : 4<<20+1024])
		if !bytes.Equal(got, want) {
			t.Errorf("%+v: not exactly the asked ranges read as zero", s)
		}
		if z.Punched+z.Written != 1<<20+64<<10+512 || (z.Punched > 0) == (s.NoPunch || s.LyingPunch) {
			t.Errorf("%+v: punched %d, written %d", s, z.Punched, z.Written)
		}
	}
}

// TestZeroerLooks: of a disk that is zero but for a few blocks only those are written.
func TestZeroerLooks(t *testing.T) {
	const size = 8 << 20
	for _, s := range []fake.DiskSpec{{NoPunch: true}, {LyingPunch: true}} {
		s.Size = size
		m, f, _ := oneDisk(t, s)
		dirty := make([]byte, size)
		for _, off := range []int{5 << 10, 1<<20 + 65<<10, 1<<20 + 130<<10, 3 << 20, 7<<20 - 1} {
			dirty[off] = 1
		}
		if _, err := f.WriteAt(dirty, 0); err != nil {
			t.Fatal(err)
		}
		dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
		if err != nil {
			t.Fatal(err)
		}
		f.Fail(func(kind string, off, n int64) error {
			if kind == "read" && off <= 3<<20 && off+n > 3<<20 && n > sampleSize {
				return errors.New("a bad sector")
			}
			return nil
		})
		z := NewZeroer(dev)
		z.Look = true
		if err := z.Zero(t.Context(), 512, 7<<20-512); err != nil {
			t.Fatal(err)
		}
		if got := contents(t, f, size); !isZero(got) {
			t.Errorf("%+v: not all of it is zero", s)
		}
		if want := int64(1<<20 + 4*64<<10); z.Written > want || z.Written == 0 || z.Found+z.Written != 7<<20-512 ||
			z.Punched != 0 {
			t.Errorf("%+v: written %d, found %d, punched %d", s, z.Written, z.Found, z.Punched)
		}
	}
}
