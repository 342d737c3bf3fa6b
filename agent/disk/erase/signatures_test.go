package erase

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// known is a kind of signature: it writes what libblkid looks for into a region of n bytes, relative to w. least is how
// large that has to be.
type known struct {
	name  string
	least int64
	whole bool // libblkid looks for it on whole disks alone
	put   func(w io.WriterAt, n int64)
}

// at gives a signature that is a magic number at one place, counted from the end when negative.
func at(name string, off int64, magic string, more ...func(w io.WriterAt, base int64)) known {
	least := max(off, -off)/4096*4096 + 1<<20
	return known{name: name, least: least, put: func(w io.WriterAt, n int64) {
		base := off
		if off < 0 {
			base += n / 512 * 512
		}
		put(w, []byte(magic), base)
		for _, m := range more {
			m(w, base)
		}
	}}
}

func also(off int64, b string) func(w io.WriterAt, base int64) {
	return func(w io.WriterAt, base int64) { put(w, []byte(b), base+off) }
}

func le(v ...any) (b []byte) {
	for _, x := range v {
		b, _ = binary.Append(b, binary.LittleEndian, x)
	}
	return b
}

// signatures are all kinds: some made by the real tools, the others as libblkid's sources of version 2.38 want them.
func signatures(t testing.TB) []known {
	all := []known{
		made(t, "ext4", 64<<20, "mke2fs", "-q", "-t", "ext4", "-F"),
		made(t, "xfs", 320<<20, "mkfs.xfs", "-q", "-f"),
		made(t, "fat32", 64<<20, "mkfs.vfat", "-F", "32"),
		made(t, "fat16", 16<<20, "mkfs.vfat", "-F", "16"),
		made(t, "swap", 1<<20, "mkswap", "-q"),

		{"md 0.90", 1 << 20, false, func(w io.WriterAt, n int64) {
			put(w, le(uint32(0xa92b4efc), uint32(0), uint32(90), uint32(0), uint32(0), uint32(7), uint32(1), uint32(1)),
				n&^65535-65536)
		}},
		{"md 1.0", 1 << 20, false, func(w io.WriterAt, n int64) { md1(w, n&^4095-8192) }},
		{"md 1.1", 1 << 20, false, func(w io.WriterAt, n int64) { md1(w, 0) }},
		{"md 1.2", 1 << 20, false, func(w io.WriterAt, n int64) { md1(w, 4096) }},
		{"LVM2", 1 << 20, false, func(w io.WriterAt, n int64) {
			b := make([]byte, 512)
			copy(b, "LABELONE\x01")
			copy(b[20:], "\x20\x00\x00\x00LVM2 001abcdefghijklmnopqrstuvwxyz012345")
			crc := uint32(0xf597a6cf)
			for _, c := range b[20:] {
				crc ^= uint32(c)
				for range 8 {
					crc = crc>>1 ^ 0xedb88320&-(crc&1)
				}
			}
			binary.LittleEndian.PutUint32(b[16:], crc)
			put(w, b, 512)
		}},
		{"btrfs", 17 << 20, false, func(w io.WriterAt, n int64) {
			for _, off := range []int64{64 << 10, 64 << 20, 256 << 30} {
				if off+4096 > n {
					return
				}
				b := make([]byte, 4096)
				copy(b[32:], "fsid of a btrfs.")
				binary.LittleEndian.PutUint64(b[48:], uint64(off))
				copy(b[64:], "_BHRfS_M")
				binary.LittleEndian.PutUint64(b[112:], uint64(n))
				binary.LittleEndian.PutUint64(b[136:], 1)
				copy(b[144:], le(uint32(4096), uint32(16384), uint32(16384), uint32(4096)))
				binary.LittleEndian.PutUint32(b, crc32.Checksum(b[32:], crc32.MakeTable(crc32.Castagnoli)))
				put(w, b, off)
			}
		}},
		{"zfs", 64 << 20, false, func(w io.WriterAt, n int64) {
			end := n &^ (256<<10 - 1)
			for _, label := range []int64{0, 256 << 10, end - 512<<10, end - 256<<10} {
				for i := range int64(8) {
					put(w, le(uint64(0x00bab10c), uint64(5000), uint64(4)), label+128<<10+i*1024)
				}
			}
		}},
		luks2("LUKS2, the first header", 0),
		luks2("LUKS2, the second header at 16 KiB", 16<<10),
		luks2("LUKS2, the second header at 1 MiB", 1<<20),
		luks2("LUKS2, the second header at 2 MiB", 2<<20),
		luks2("LUKS2, the second header at 4 MiB", 4<<20),
		at("LUKS1", 0, "LUKS\xba\xbe\x00\x01aes"),
		at("f2fs", 1024, "\x10\x20\xf5\xf2\x01\x00\x0f\x00\x09\x00\x00\x00\x03\x00\x00\x00\x0c\x00\x00\x00"),
		{"ntfs", 4 << 20, false, func(w io.WriterAt, n int64) {
			b := make([]byte, 512)
			copy(b, "\xeb\x52\x90NTFS    \x00\x02\x08")
			b[21] = 0xf8
			copy(b[36:], "\x80\x00\x80\x00")
			copy(b[40:], le(uint64(n/512-1), uint64(4), uint64(n/8192)))
			b[64], b[68] = 0xf6, 1
			copy(b[72:], "serialno")
			b[510], b[511] = 0x55, 0xaa
			put(w, b, 0)
			for i := range int64(4) {
				rec := make([]byte, 1024)
				copy(rec, "FILE")
				binary.LittleEndian.PutUint16(rec[20:], 56)
				binary.LittleEndian.PutUint32(rec[28:], 1024)
				binary.LittleEndian.PutUint32(rec[24:], 64)
				binary.LittleEndian.PutUint32(rec[56:], 0xffffffff)
				put(w, rec, 4*4096+i*1024)
			}
			put(w, b, n/512*512-512)
		}},
		at("iso9660", 32768, "\x01CD001\x01\x00LINUX"),
		at("squashfs", 0, "hsqs", also(28, "\x04\x00\x00\x00")),
		at("bluestore", 0, "bluestore block device\n"),
		{"bluestore, copies", 2 << 30, false, func(w io.WriterAt, n int64) {
			put(w, []byte("bluestore block device\n"), 0)
			for off := int64(1 << 30); off < n-4096; off *= 10 {
				put(w, []byte("bluestore block device\n"), off)
			}
		}},
		at("reiserfs", 65536+52, "ReIsEr2Fs", also(44-52, "\x00\x10"), also(12-52, "\x12\x00\x00\x00")),
		at("hfs+", 1024, "H+\x00\x04", also(40, "\x00\x00\x10\x00")),
		at("romfs", 0, "-rom1fs-"),
		at("cramfs", 0, "\x45\x3d\xcd\x28"),
		from(16<<20, at("ocfs2", 8192, "OCFSV2")),
		at("ufs", 8192+1372, "\x54\x19\x01\x00"),
		at("oracleasm", 32, "ORCLDISK"),
		at("dm snapshot", 0, "SnAp"),
		at("dm verity", 0, "verity\x00\x00\x01\x00\x00\x00"),
		at("dm vdo", 0, "dmvdo001"),
		at("vmfs volume", 1<<20, "\x0d\xd0\x01\xc0"),
		at("vmfs", 2<<20, "\x5e\xf1\xab\x2f"),
		from(32<<20, at("gfs2", 65536, "\x01\x16\x19\x70\x00\x00\x00\x01", also(24, "\x00\x00\x07\x09"),
			also(28, "\x00\x00\x07\x6c"), also(64, "lock_nolock"))),
		at("refs", 0, "\x00\x00\x00ReFS\x00"),
		at("vxfs", 1024, "\xf5\xfc\x01\xa5\x05\x00\x00\x00"),
		at("drbd", -4096+60, "\x83\x74\x02\x6b", also(20, "\x00\x00\x10\x00")),
		whole(at("isw", -1024, "Intel Raid ISM Cfg Sig. 1.3.00")),
		whole(at("lsi", -512, "$XIDE$")),
		whole(at("nvidia", -1024, "NVIDIA  ", also(8, "\x1e\x00\x00\x00"))),
		whole(at("promise near", -63*512, "Promise Technology, Inc.")),
		whole(at("promise far", -3087*512, "Promise Technology, Inc.")),
		whole(at("ddf", -512, "\xde\x11\xde\x11", also(8, "an id of a controller   01.02.00"))),
		whole(at("sun", 508, "\xda\xbe\xda\xbe")),
	}
	return all
}

func from(least int64, k known) known { k.least = least; return k }

func whole(k known) known { k.whole = true; return k }

func md1(w io.WriterAt, off int64) {
	b := make([]byte, 256)
	copy(b, le(uint32(0xa92b4efc), uint32(1), uint32(0), uint32(0)))
	copy(b[16:], "set uuid of md..a name of it")
	binary.LittleEndian.PutUint64(b[144:], uint64(off/512))
	put(w, b, off)
}

func luks2(name string, off int64) known {
	return known{name: name, least: off + 1<<20, put: func(w io.WriterAt, n int64) {
		b := make([]byte, 512)
		copy(b, "SKUL\xba\xbe\x00\x02")
		if off == 0 {
			copy(b, "LUKS")
		}
		binary.BigEndian.PutUint64(b[8:], 16384)
		copy(b[168:], "0a3c1b2d-1111-4222-8333-123456789abc")
		binary.BigEndian.PutUint64(b[256:], uint64(off))
		put(w, b, off)
	}}
}

// made has a real tool make its signature, and keeps the pages of it that are not zero.
func made(t testing.TB, name string, size int64, program string, args ...string) known {
	t.Helper()
	kit.NeedPrograms(t, program)
	file := filepath.Join(t.TempDir(), "made")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, program, append(args, file)...)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pages := map[int64][]byte{}
	for off := int64(0); off < 1<<20; off += 4096 { // libblkid finds nothing further inside
		b := make([]byte, 4096)
		if _, err := f.ReadAt(b, off); err != nil {
			t.Fatal(err)
		}
		if !zero(b) {
			pages[off] = bytes.Clone(b)
		}
	}
	return known{name: name, least: size, put: func(w io.WriterAt, _ int64) {
		for off, b := range pages {
			put(w, b, off)
		}
	}}
}
