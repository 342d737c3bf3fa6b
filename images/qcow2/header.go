package qcow2

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

const magic = "QFI\xfb"

// QEMU's limits.
const (
	minClusterBits    = 9
	maxClusterBits    = 21
	maxL1             = 32 << 20
	maxRefcountTable  = 8 << 20
	maxSnapshots      = 1 << 16
	maxBackingName    = 1023
	subclusters       = 32
	minSubclusterBits = 14
)

// Our limits: an offset in the file and the number of a table or a cluster fit into one word.
const (
	maxHost     = 1 << 50
	maxClusters = 1 << 32
)

// Incompatible features.
const (
	dirtyBit = 1 << iota
	corruptBit
	dataFileBit
	compressionBit
	extendedBit
)

const (
	extEnd         = 0
	extFeatures    = 0x6803f857
	extCrypt       = 0x0537be77
	extDataFile    = 0x44415441
	v2HeaderLength = 72
	v3HeaderLength = 104
	compressionAt  = 104
)

// Header holds an image's properties.
type Header struct {
	Version      int
	ClusterBits  int
	Size         int64 // of the disk
	Zstd         bool  // compression of clusters, else deflate
	Extended     bool  // subclusters
	Dirty        bool  // not closed by the last writer
	Snapshots    int
	RefcountBits int

	l1, refcounts    int64
	l1Size           int64 // entries
	refcountClusters int64
	snapshots        int64
	headerLength     int64
	incompatible     uint64
	backingLen       int64
}

func (h *Header) cluster() int64 { return 1 << h.ClusterBits }

// l2Entries is the number of clusters that one L2 table describes.
func (h *Header) l2Entries() int64 {
	if h.Extended {
		return h.cluster() / 16
	}
	return h.cluster() / 8
}

// l1Need is the number of L1 entries that the disk needs. There may be more, for the state of a machine in a snapshot.
func (h *Header) l1Need() int64 {
	per := h.cluster() * h.l2Entries()
	return (h.Size + per - 1) / per
}

// parseHeader parses the beginning of a file, the whole first cluster of it or at most headerMax.
func parseHeader(b []byte, fileSize int64, l Limits) (*Header, error) {
	if !bytes.HasPrefix(b, []byte(magic)) {
		return nil, damaged("it does not begin as a qcow2 image")
	}
	if len(b) < v2HeaderLength {
		return nil, truncated("within its header")
	}
	u32 := func(off int) int64 { return int64(binary.BigEndian.Uint32(b[off:])) }
	u64 := func(off int) uint64 { return binary.BigEndian.Uint64(b[off:]) }
	h := &Header{
		Version: int(u32(4)), ClusterBits: int(u32(20)), Snapshots: int(u32(60)), RefcountBits: 16,
		l1Size: u32(36), refcountClusters: u32(56), headerLength: v2HeaderLength, backingLen: u32(16),
	}
	if h.Version != 2 && h.Version != 3 {
		return nil, refuse("convert it: qemu-img convert -O qcow2", "it is of version %d, and only 2 and 3 are known",
			h.Version)
	}
	if h.ClusterBits < minClusterBits || h.ClusterBits > maxClusterBits {
		return nil, damaged("its clusters are said to be of 2^%d bytes, and can be of 512 bytes to 2 MiB",
			uint32(h.ClusterBits))
	}
	if err := h.features(b); err != nil {
		return nil, err
	}
	if n := u32(32); n != 0 {
		name := cmp.Or(map[int64]string{1: "AES", 2: "LUKS"}[n], fmt.Sprintf("method %d", n))
		return nil, refuse("decrypt it: qemu-img convert -O qcow2", "it is encrypted with %s", name)
	}
	for _, f := range []struct {
		at   int
		to   *int64
		what string
	}{
		{40, &h.l1, "L1 table"}, {48, &h.refcounts, "table of reference counts"},
		{64, &h.snapshots, "list of snapshots"},
	} {
		off := u64(f.at)
		if f.to == &h.snapshots && h.Snapshots == 0 {
			continue
		}
		if off%uint64(h.cluster()) != 0 || off >= maxHost {
			return nil, damaged("its %s is said to be at byte %d, which can't be", f.what, off)
		}
		if fileSize >= 0 && off >= uint64(fileSize) {
			return nil, truncated("before its " + f.what)
		}
		*f.to = int64(off)
	}
	if h.Snapshots > maxSnapshots {
		return nil, damaged("it is said to have %d snapshots", h.Snapshots)
	}
	if err := h.size(u64(24), l); err != nil {
		return nil, err
	}
	if h.refcountClusters == 0 {
		return nil, damaged("it has no table of reference counts")
	}
	if h.refcountClusters > maxRefcountTable>>h.ClusterBits {
		return nil, damaged("its table of reference counts is said to have %d clusters", h.refcountClusters)
	}
	return h, h.extensions(b, u64(8))
}

// features parses the additions of version 3.
func (h *Header) features(b []byte) error {
	if h.Version == 2 {
		return nil
	}
	if len(b) < v3HeaderLength {
		return truncated("within its header")
	}
	h.incompatible = binary.BigEndian.Uint64(b[72:])
	h.headerLength = int64(binary.BigEndian.Uint32(b[100:]))
	if n := h.headerLength; n < v3HeaderLength || n%8 != 0 || n > h.cluster() || n > headerMax {
		return damaged("its header is said to have %d bytes", h.headerLength)
	}
	if int64(len(b)) < h.headerLength {
		return truncated("within its header")
	}
	order := binary.BigEndian.Uint32(b[96:])
	if order > 6 {
		return damaged("its reference counts are said to have 2^%d bits", order)
	}
	h.RefcountBits = 1 << order
	h.Dirty = h.incompatible&dirtyBit != 0
	h.Extended = h.incompatible&extendedBit != 0
	switch {
	case h.incompatible&corruptBit != 0:
		return refuse("repair it: qemu-img check -r all, or take it from where it came once more",
			"it is marked as corrupt")
	case h.incompatible&dataFileBit != 0:
		return external()
	case h.Extended && h.ClusterBits < minSubclusterBits:
		return damaged("it has subclusters in clusters of %d bytes", h.cluster())
	}
	var kind byte
	if h.headerLength > compressionAt {
		kind = b[compressionAt]
	}
	if (h.incompatible&compressionBit != 0) != (kind != 0) {
		return damaged("its header contradicts itself about the kind of compression")
	}
	if kind > 1 {
		return refuse("convert it: qemu-img convert -O qcow2 -c -o compression_type=zstd",
			"it is compressed in a way that is not known: type %d", kind)
	}
	h.Zstd = kind == 1
	return nil
}

func external() error {
	return refuse("make one file of it: qemu-img convert -O qcow2", "its data is in another file")
}

// size checks the size of the disk, and whether the tables can describe it.
func (h *Header) size(size uint64, l Limits) error {
	switch {
	case size > 1<<62:
		return damaged("its disk is said to have %d bytes", size)
	case l.Size > 0 && size > uint64(l.Size):
		return refuse("use a smaller image or a larger disk",
			"the image is larger than the disk: %d bytes, the disk has %d", size, l.Size)
	case size == 0:
		return refuse("check how it was made", "it is the image of an empty disk")
	case size%sector != 0:
		return refuse("convert it: qemu-img convert -O qcow2", "its disk is of %d bytes, which is no multiple of %d",
			size, sector)
	}
	h.Size = int64(size)
	if (h.Size-1)>>h.ClusterBits >= maxClusters {
		return refuse(remedyClusters, "a disk of %d bytes has too many clusters of %d bytes", h.Size, h.cluster())
	}
	if h.l1Size*8 > maxL1 {
		return damaged("its L1 table is said to have %d entries", h.l1Size)
	}
	if h.l1Need() > h.l1Size {
		return damaged("its L1 table has %d entries, and a disk of %d bytes needs %d", h.l1Size, h.Size, h.l1Need())
	}
	return nil
}

// extensions walks the list after the header. Its names of unknown features are hostile text.
func (h *Header) extensions(b []byte, backing uint64) error {
	if backing != 0 {
		name := ""
		if end := backing + uint64(h.backingLen); h.backingLen <= maxBackingName && backing < uint64(len(b)) &&
			end <= uint64(len(b)) {
			name = fmt.Sprintf(", %q", b[backing:end])
		}
		return refuse("make one file of it: qemu-img convert -O qcow2", "it is only the difference to a backing file%s",
			name)
	}
	var names []byte
	area := b[h.headerLength:min(int64(len(b)), h.cluster())]
	for len(area) > 0 {
		if len(area) < 8 {
			if h.cluster() > int64(len(b)) {
				return damaged("its header has no end")
			}
			break
		}
		kind, n := binary.BigEndian.Uint32(area), int64(binary.BigEndian.Uint32(area[4:]))
		if kind == extEnd {
			break
		}
		area = area[8:]
		if n > int64(len(area)) {
			return damaged("its header has an extension of %d bytes, which does not fit", n)
		}
		switch kind {
		case extFeatures:
			names = area[:n]
		case extDataFile:
			return external()
		case extCrypt:
			return damaged("it has the keys of an encrypted image, but is not marked as one")
		}
		area = area[min((n+7)&^7, int64(len(area))):]
	}
	const known = dirtyBit | corruptBit | dataFileBit | compressionBit | extendedBit
	if unknown := h.incompatible &^ known; unknown != 0 {
		return refuse("convert it: qemu-img convert -O qcow2", "it uses features that are not known: %s",
			featureNames(unknown, names))
	}
	return nil
}

// featureNames returns the image's names of the bits.
func featureNames(bits uint64, table []byte) string {
	const entry = 48
	var out []string
	for bit := range 64 {
		if bits&(1<<bit) == 0 {
			continue
		}
		name := fmt.Sprintf("bit %d", bit)
		for t := range slices.Chunk(table, entry) {
			if len(t) == entry && t[0] == 0 && int(t[1]) == bit {
				name = fmt.Sprintf("%q", bytes.TrimRight(t[2:], "\x00"))
				break
			}
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}
