package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fake"
)

// gptImage makes a whole-disk image with a GPT that begins at 1 MiB, or inside the first MiB when early.
func gptImage(size int, early bool) []byte { return gptImageFor(size, 512, early) }

func gptImageFor(size, sector int, early bool) []byte {
	b := mbrImage(size)
	le := binary.LittleEndian
	b[446+4] = 0xee
	le.PutUint32(b[446+8:], 1)
	table := (16384 + sector - 1) / sector // sectors of the entries
	clear(b[512 : (2+table)*sector])
	sectors := uint64(size / sector)
	first := uint64(mib / sector)
	if early {
		first = uint64(2 + table)
	}
	entries := b[2*sector : 2*sector+16384]
	copy(entries, "\xa2\xa0\xd0\xeb\xe5\xb9\x33\x44\x87\xc0\x68\xb6\xb7\x26\x99\xc7unique guid 0001")
	le.PutUint64(entries[32:], first)
	le.PutUint64(entries[40:], sectors-uint64(table)-3)
	header := func(at []byte, mine, other, entriesLBA uint64) {
		clear(at[:sector])
		copy(at, "EFI PART\x00\x00\x01\x00\x5c")
		le.PutUint64(at[24:], mine)
		le.PutUint64(at[32:], other)
		le.PutUint64(at[40:], uint64(2+table))
		le.PutUint64(at[48:], sectors-uint64(table)-2)
		copy(at[56:], "the disk's guid.")
		le.PutUint64(at[72:], entriesLBA)
		le.PutUint32(at[80:], 128)
		le.PutUint32(at[84:], 128)
		le.PutUint32(at[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(at[16:], crc32.ChecksumIEEE(at[:92]))
	}
	header(b[sector:], 1, sectors-1, 2)
	copy(b[size-(table+1)*sector:], entries)
	header(b[size-sector:], sectors-1, 1, sectors-uint64(table)-1)
	return b
}

// TestPowerCutAtAnyMomentOfADeployment is the promise that a machine never boots half a system: the whole way from a disk with an old
// system to the committed one, on a disk that may lose whatever was not flushed, in any combination.
func TestPowerCutAtAnyMomentOfADeployment(t *testing.T) {
	const size = 6 * mib
	old := gptImage(size, false)
	for _, c := range []struct {
		name string
		img  []byte
		spec fake.DiskSpec
		form string
	}{
		{"gpt", gptImage(4*mib, false), fake.DiskSpec{}, "raw.zst"},
		{"gpt with a partition inside the first MiB", gptImage(4*mib, true), fake.DiskSpec{}, "raw.zst"},
		{"gpt as large as the disk", gptImage(size, false), fake.DiskSpec{}, "raw.zst"},
		{"mbr", mbrImage(4 * mib), fake.DiskSpec{}, "raw.zst"},
		{"zeros written", gptImage(4*mib, false), fake.DiskSpec{NoPunch: true}, "raw.zst"},
		{"pieces out of order", gptImage(4*mib, false), fake.DiskSpec{}, "qcow2, zstd, out of order"},
		{"pieces out of order, zeros written", gptImage(4*mib, false), fake.DiskSpec{NoPunch: true}, "qcow2, zstd, out of order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.spec.Size, c.spec.Record = size, true
			b := newBench(t, c.spec)
			dev, err := b.m.OpenExclusive(t.Context(), "/dev/vda")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dev.WriteAt(old, 0); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
				t.Fatal(err)
			}
			before := len(b.disk.History())

			file := forms(t, c.img, c.form)[c.form]
			s := serve(t, file)
			if _, err := b.write(t.Context(), map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file)}); err != nil {
				t.Fatal(err)
			}
			if len(c.img) < size {
				p, err := disk.PendingOf(b.facts)
				if err != nil {
					t.Fatal(err)
				}
				part, err := p.Reserve("config-2", mib, mib)
				if err != nil {
					t.Fatal(err)
				}
				if dev, err = p.Open(t.Context(), b.m); err != nil {
					t.Fatal(err)
				}
				if _, err := dev.WriteAt(bytes.Repeat([]byte("cfg!"), mib/4), part.Start); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
					t.Fatal(err)
				}
			}
			b.commit(t)
			installed := b.disk.Replay(b.disk.History()[:before]) // the old system

			states, olds, news := 0, 0, 0
			head := make([]byte, mib)
			for what, cut := range b.disk.PowerCuts(7) {
				if states++; states <= 5*before { // the old system is being installed
					continue
				}
				if _, err := cut.ReadAt(head, 0); err != nil {
					t.Fatal(err)
				}
				if !disk.HasTable(head, 512) && !soundBackupOn(cut, size) {
					continue
				}
				// A table is there. Then behind it is the old system, untouched since all the old data is still there, or the new one,
				// complete but for the sectors of the table itself.
				skip := int64(1024)
				if head[510] == 0x55 && head[511] == 0xaa {
					skip = 0
				}
				switch {
				case cut.Same(b.disk, skip, size):
					news++
				case cut.Same(installed, mib, size-mib):
					olds++
				default:
					t.Fatalf("%s: the disk has a partition table (first bytes %x) and half a system", what, head[440:450])
				}
			}
			if olds == 0 || news == 0 || states < 50 {
				t.Errorf("%d states, %d with the old system, %d with the new one: the test proved nothing", states, olds, news)
			}
			t.Logf("%d states, %d with the old system, %d with the new one", states, olds, news)
		})
	}
}

func soundBackupOn(disk io.ReaderAt, size int64) bool {
	le := binary.LittleEndian
	h := make([]byte, 512)
	if _, err := disk.ReadAt(h, size-512); err != nil || !bytes.HasPrefix(h, []byte("EFI PART")) {
		return false
	}
	crc := le.Uint32(h[16:])
	clear(h[16:20])
	from := int64(le.Uint64(h[72:])) * 512
	entries := make([]byte, 16384)
	if _, err := disk.ReadAt(entries, max(0, from)); err != nil {
		return false
	}
	return crc32.ChecksumIEEE(h[:92]) == crc && crc32.ChecksumIEEE(entries) == le.Uint32(h[88:])
}
