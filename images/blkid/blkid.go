// Package blkid identifies the content of a disk, a partition or an image by signatures. It has the only table of them:
// detection, refusal, opening, sparing and wiping all use it.
//
// The names of kinds are those of libblkid (util-linux) where it has one. Offsets are bytes from the beginning of the
// disk or partition.
package blkid

import "bytes"

// Kind is a kind of content; "" if unknown.
type Kind string

// Kinds that are detected by the beginning of a disk or partition.
const (
	LUKS      Kind = "crypto_LUKS"
	BitLocker Kind = "BitLocker"
	LVM       Kind = "LVM2_member"
	MD        Kind = "linux_raid_member"
	Ext       Kind = "ext4" // also 2 and 3
	XFS       Kind = "xfs"
	Btrfs     Kind = "btrfs"
	NTFS      Kind = "ntfs"
	ExFAT     Kind = "exfat"
	VFAT      Kind = "vfat"
	F2FS      Kind = "f2fs"
	EROFS     Kind = "erofs"
	Squashfs  Kind = "squashfs"
	Swap      Kind = "swap"
	ISO9660   Kind = "iso9660"
)

// Kinds with other signatures.
const (
	VMFS      Kind = "VMFS"
	GFS2      Kind = "gfs2"
	Bcachefs  Kind = "bcachefs"
	BlueStore Kind = "ceph_bluestore"
	FastTrack Kind = "promise_fasttrack_raid_member"
)

var descriptions = map[Kind]string{
	LUKS: "an encrypted volume (LUKS)", BitLocker: "an encrypted volume (BitLocker)", LVM: "a physical volume of LVM",
	MD: "a member of a RAID array", Ext: "an ext2, ext3 or ext4 file system", XFS: "an XFS file system",
	Btrfs: "a btrfs file system", NTFS: "an NTFS file system", ExFAT: "an exFAT file system", VFAT: "a FAT file system",
	F2FS: "an F2FS file system", EROFS: "an EROFS file system", Squashfs: "a squashfs file system", Swap: "swap space",
	ISO9660: "an ISO 9660 file system",
}

// Description names the kind in a sentence: "an XFS file system".
func (k Kind) Description() string {
	if d, ok := descriptions[k]; ok {
		return d
	}
	return string(k)
}

// Signature is a byte sequence at an offset. A negative offset counts from the end.
type Signature struct {
	Kind  Kind
	Off   int64
	Magic string
}

// HeadSize is the length of the beginning that Detect examines: the superblock of btrfs is at 64 KiB.
const HeadSize = 68 << 10

// head is in order of precedence: containers come first, and FAT, whose signature is only a word in a boot sector,
// after the other kinds with a boot sector.
var head = []Signature{
	{LUKS, 0, "LUKS\xba\xbe"},
	{BitLocker, 3, "-FVE-FS-"},
	{BitLocker, 0, "-FVE-FS-"},
	{LVM, 512, "LABELONE"},
	{LVM, 0, "LABELONE"},
	{LVM, 1024, "LABELONE"},
	{LVM, 1536, "LABELONE"},
	{MD, 4096, "\xfc\x4e\x2b\xa9"}, // metadata 1.2
	{MD, 0, "\xfc\x4e\x2b\xa9"},    // 1.1
	{Ext, 1024 + 0x38, "\x53\xef"},
	{XFS, 0, "XFSB"},
	{Btrfs, 64<<10 + 0x40, "_BHRfS_M"},
	{NTFS, 3, "NTFS    "},
	{ExFAT, 3, "EXFAT   "},
	{Squashfs, 0, "hsqs"},
	{EROFS, 1024, "\xe2\xe1\xf5\xe0"},
	{F2FS, 1024, "\x10\x20\xf5\xf2"},
	{VFAT, 54, "FAT"},
	{VFAT, 82, "FAT32"},
	{Swap, 4086, "SWAPSPACE2"},
	{ISO9660, 32769, "CD001"},
}

// Find looks for a signature in the beginning of a disk or partition; HeadSize bytes are enough.
func Find(b []byte) (Signature, bool) {
	for _, s := range head {
		if int64(len(b)) >= s.Off && bytes.HasPrefix(b[s.Off:], []byte(s.Magic)) {
			return s, true
		}
	}
	return Signature{}, false
}

// Detect returns the kind of Find's signature; "" if nothing is recognized.
func Detect(b []byte) Kind {
	s, _ := Find(b)
	return s.Kind
}

// HasBootSignature reports the two bytes that end an MBR, and the boot sector of many a file system.
func HasBootSignature(b []byte) bool { return len(b) >= 512 && b[510] == 0x55 && b[511] == 0xaa }

// Cluster are file systems for several machines: a disk with one may be in use by another machine.
var Cluster = []Signature{
	{VMFS, 1 << 20, "\x0d\xd0\x01\xc0"},
	{VMFS, 2 << 20, "\x5e\xf1\xab\x2f"},
	{GFS2, 64 << 10, "\x01\x16\x19\x70"},
}

// Copies are superblocks more than a MiB from both ends, which wiping the ends misses.
var Copies = []Signature{
	{Btrfs, 64<<20 + 0x40, "_BHRfS_M"},
	{Btrfs, 256<<30 + 0x40, "_BHRfS_M"},
	{Btrfs, 1<<50 + 0x40, "_BHRfS_M"},
	// The second header of LUKS 2, from which the first one can be repaired; nearer ones are in the first MiB.
	{LUKS, 1 << 20, "SKUL\xba\xbe"},
	{LUKS, 2 << 20, "SKUL\xba\xbe"},
	{LUKS, 4 << 20, "SKUL\xba\xbe"},
	{VMFS, 1 << 20, "\x0d\xd0\x01\xc0"},
	{VMFS, 2 << 20, "\x5e\xf1\xab\x2f"},
	{Bcachefs, 2<<20 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{Bcachefs, 2<<20 + 24, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
	{BlueStore, 1 << 30, "bluestore block device"},
	{BlueStore, 10 << 30, "bluestore block device"},
	{BlueStore, 100 << 30, "bluestore block device"},
	{BlueStore, 1000 << 30, "bluestore block device"},
	{FastTrack, -3087 * 512, "Promise Technology, Inc."},
}
