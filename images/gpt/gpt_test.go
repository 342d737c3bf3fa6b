package gpt

import (
	"bytes"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

// parts are an EFI system partition and a root at MiBs 1 to 3.
func parts(sector int) []Entry {
	m := uint64(mib / sector)
	return []Entry{
		{Number: 1, Type: ESP, GUID: NewGUID(), First: m, Last: 2*m - 1, Name: "EFI"},
		{Number: 2, Type: Linux, GUID: NewGUID(), First: 2 * m, Last: 3*m - 1, Attributes: 4, Name: "root"},
	}
}

func table(t testing.TB, sector int, size int64, parts ...Entry) []byte {
	t.Helper()
	g := New(sector, NewGUID())
	for _, p := range parts {
		g.Set(p)
	}
	if _, ok := g.LastFor(uint64(size) / uint64(sector)); !ok {
		t.Fatal("no room")
	}
	g.Fit(uint64(size) / uint64(sector))
	disk := make([]byte, size)
	g.Put(disk[:mib])
	b, at := g.Backup()
	copy(disk[at*uint64(sector):], b)
	return disk
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		want := parts(sector)
		disk := table(t, sector, 8*mib, want...)
		g, err := Read(disk[:mib], sector)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Partitions(); !slices.Equal(got, want) || SectorSize(disk) != sector || g.Free() != 3 ||
			!got[1].Bootable() || got[0].Bootable() {
			t.Errorf("sector %d: %+v, want %+v", sector, got, want)
		}
		if h, err := ParseHeader(disk[len(disk)-sector:], sector); err != nil || h.Self != uint64(8*mib/sector-1) ||
			h.Disk != g.Disk {
			t.Errorf("sector %d: backup %+v, %v", sector, h, err)
		}
	}
}

// TestReadersOfOthers: a tool that is not ours finds nothing to mend.
func TestReadersOfOthers(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk")
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, table(t, 512, 8*mib, parts(512)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := kit.Run(t, "sgdisk", "-v", file); !strings.Contains(out, "No problems found") {
		t.Error(out)
	}
	if out := kit.Run(t, "sgdisk", "-p", file); !strings.Contains(out, "EF00  EFI") ||
		!strings.Contains(out, "8300  root") {
		t.Error(out)
	}
}

func TestDamageIsRefused(t *testing.T) {
	const sector = 512
	sealed := func(change func(h, entries []byte)) []byte {
		b := table(t, sector, 8*mib, parts(sector)...)
		h, entries := b[sector:][:headerSize], b[2*sector:][:entryCount*entrySize]
		change(h, entries)
		le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
		clear(h[16:20])
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h))
		return b
	}
	plain := table(t, sector, 8*mib, parts(sector)...)
	for i := range headerSize {
		b := bytes.Clone(plain)
		b[sector+i] ^= 1
		if _, err := Read(b[:mib], sector); err == nil {
			t.Errorf("byte %d of the header may be anything", i)
		}
	}
	entry := bytes.Clone(plain)
	entry[2*sector+entrySize+40]++
	for _, c := range []struct {
		name string
		disk []byte
		want string
	}{
		{"entries", entry, "entries are damaged"},
		{"reversed", sealed(func(_, e []byte) { le.PutUint64(e[40:], 1) }), "partition 1 is at sectors"},
		{"outside", sealed(func(_, e []byte) { le.PutUint64(e[128+40:], 1<<40) }), "partition 2 is at sectors"},
		{"over the table", sealed(func(_, e []byte) { le.PutUint64(e[32:], 3) }), "partition 1 is at sectors"},
		{"overlap", sealed(func(_, e []byte) { le.PutUint64(e[40:], 5000) }), "partitions 1 and 2 overlap"},
		{"too many", sealed(func(h, _ []byte) { le.PutUint32(h[80:], 1<<31) }), "entries of 128 bytes"},
		{"entries far away", sealed(func(h, _ []byte) { le.PutUint64(h[72:], 1<<60) }), "not in the first MiB"},
		{"the backup's header", sealed(func(h, _ []byte) { le.PutUint64(h[24:], 7) }), "it is sector 7"},
		{"no end", sealed(func(h, _ []byte) { le.PutUint64(h[48:], 1<<63) }), "usable sectors"},
	} {
		if _, err := Read(c.disk[:mib], sector); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	for _, n := range []int{0, 1, 511, 512, 513, 600, 1024, 2000} {
		if _, err := Read(plain[:n], sector); err == nil {
			t.Errorf("%d bytes are a table", n)
		}
	}
}

func TestGUID(t *testing.T) {
	const text = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
	if g, err := ParseGUID(strings.ToLower(text)); err != nil || g != ESP || g.String() != text || g[0] != 0x28 {
		t.Error(g, err)
	}
	for _, bad := range []string{"", "x", text[1:], text + "0", strings.Replace(text, "C", "G", 1),
		strings.ReplaceAll(text, "-", "")} {
		if _, err := ParseGUID(bad); err == nil {
			t.Errorf("%q is a GUID", bad)
		}
	}
	if a, b := NewGUID(), NewGUID(); a == b {
		t.Error("two random GUIDs are the same")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(table(f, 512, mib, Entry{Number: 1, Type: ESP, First: 64, Last: 100})[:64<<10], false)
	f.Add(table(f, 4096, mib, Entry{Number: 3, Type: Linux, First: 8, Last: 100, Name: "\U0001f600"})[:64<<10], true)
	f.Fuzz(func(t *testing.T, head []byte, large bool) {
		sector := 512
		if large {
			sector = 4096
		}
		ScanHeader(head)
		g, err := Read(head, sector)
		if err != nil {
			return
		}
		for _, p := range g.Partitions() {
			if p.First > p.Last || p.First < g.FirstUsable || p.Last > g.LastUsable || p.Last > mostSector {
				t.Fatalf("%+v in %+v", p, g.Header)
			}
		}
	})
}
