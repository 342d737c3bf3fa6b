package ext4

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// Parameters of Make. Group descriptors have checksums, so that only used groups need bitmaps and the kernel clears
// inode tables at the first mount: an empty file system of any size takes a few MiB of writes.
const (
	makeBlock     = 4096
	makePerGroup  = 8 * makeBlock // blocks
	makeInodes    = 8192          // per group: one for each 16 KiB, as mkfs.ext4 does
	makeInodeSize = 256
	makeTable     = makeInodes * makeInodeSize / makeBlock // blocks
	makeJournal   = 8192                                   // blocks: 32 MiB
	lostFound     = 11
	journalInode  = 8

	groupInodesUnused, groupBlocksUnused = 1, 2
)

// MinSize and MaxSize are the limits of Make.
const (
	MinSize = 256 << 20
	MaxSize = 1 << 44
)

// Make makes an empty ext4 file system with a journal in the first size bytes of w. zero must make a range read as
// zeros: the journal's, where remains of an older one could be taken for its own. Writes are whole blocks of 4 KiB.
func Make(w io.WriterAt, size int64, label string, uuid [16]byte, now time.Time, zero func(off, n int64) error) error {
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("an ext4 file system of %d bytes is not made here", size)
	}
	m := &maker{w: w, uuid: uuid, label: label, now: uint32(now.Unix()), blocks: uint64(size / makeBlock)}
	rand.Read(m.seed[:])
	m.groups = (m.blocks + makePerGroup - 1) / makePerGroup
	m.descBlocks = (m.groups*32 + makeBlock - 1) / makeBlock
	// A last group with hardly more space than its own tables is left out.
	if rest := m.blocks % makePerGroup; rest != 0 && rest < m.overhead(m.groups-1)+64 {
		m.blocks -= rest
		m.groups--
	}
	return m.make(zero)
}

type maker struct {
	w          io.WriterAt
	uuid, seed [16]byte
	label      string
	now        uint32
	blocks     uint64
	groups     uint64
	descBlocks uint64
	descs      []byte
	free       uint64
}

// powers reports whether n is a power of 3, 5 or 7: the groups with these numbers, and 0 and 1, begin with a
// superblock.
func powers(n uint64) bool {
	return slices.ContainsFunc([]uint64{3, 5, 7}, func(base uint64) bool {
		p := base
		for p < n {
			p *= base
		}
		return p == n
	})
}

func backups(g uint64) bool { return g <= 1 || powers(g) }

// overhead is how many blocks of a group its own tables take.
func (m *maker) overhead(g uint64) uint64 {
	n := uint64(2 + makeTable)
	if backups(g) {
		n += 1 + m.descBlocks
	}
	return n
}

func (m *maker) inGroup(g uint64) uint64 { return min(makePerGroup, m.blocks-g*makePerGroup) }

func (m *maker) put(block uint64, b []byte) error {
	_, err := m.w.WriteAt(b, int64(block)*makeBlock)
	return err
}

// groupDesc is the descriptor of a group.
type groupDesc struct {
	BlockBitmap, InodeBitmap, InodeTable   uint32
	FreeBlocks, FreeInodes, Folders, Flags uint16
	Snapshot                               uint32
	BlockBitmapCRC, InodeBitmapCRC         uint16
	UnusedInodes                           uint16
}

func (m *maker) make(zero func(off, n int64) error) error {
	data := m.overhead(0) // root folder, lost+found, journal
	used := data + 2 + makeJournal
	for g := range m.groups {
		tables, taken := g*makePerGroup, m.overhead(g)
		if backups(g) {
			tables += 1 + m.descBlocks
		}
		d := groupDesc{BlockBitmap: uint32(tables), InodeBitmap: uint32(tables + 1), InodeTable: uint32(tables + 2),
			FreeInodes: makeInodes, Flags: groupInodesUnused | groupBlocksUnused}
		switch {
		case g == 0:
			taken, d.FreeInodes, d.Flags, d.Folders = used, makeInodes-lostFound, 0, 2
		case g == m.groups-1:
			d.Flags = groupInodesUnused // the last group's bitmap says where the file system ends
		}
		free := m.inGroup(g) - taken
		d.FreeBlocks, d.UnusedInodes = uint16(free), d.FreeInodes
		m.free += free
		b := openfs.Bytes(binary.LittleEndian, d)
		sum := crc16(crc16(0xffff, m.uuid[:]), binary.LittleEndian.AppendUint32(nil, uint32(g)))
		m.descs = append(m.descs, binary.LittleEndian.AppendUint16(b, crc16(sum, b))...)
		if g == 0 || g == m.groups-1 {
			if err := m.put(tables, bitmap(taken, m.inGroup(g))); err != nil {
				return err
			}
		}
	}
	m.descs = append(m.descs, make([]byte, m.descBlocks*makeBlock-uint64(len(m.descs)))...)
	if err := zero(int64(data+2)*makeBlock, makeJournal*makeBlock); err != nil {
		return err
	}
	type piece struct {
		block uint64
		b     []byte
	}
	pieces := []piece{{2 + m.descBlocks, bitmap(lostFound, makeInodes)}, {3 + m.descBlocks, m.inodes(data)},
		{data, folder(rootInode, rootInode, "lost+found", lostFound)},
		{data + 1, folder(lostFound, rootInode, "", 0)}, {data + 2, m.journal()}}
	for g := range m.groups {
		if g := m.groups - 1 - g; backups(g) { // the first superblock last
			pieces = append(pieces, piece{g*makePerGroup + 1, m.descs}, piece{g * makePerGroup, m.super(g)})
		}
	}
	for _, p := range pieces {
		if err := m.put(p.block, p.b); err != nil {
			return err
		}
	}
	return nil
}

// bitmap returns a block with the first used bits set, and those from end on.
func bitmap(used, end uint64) []byte {
	b := make([]byte, makeBlock)
	for i := range uint64(8 * makeBlock) {
		if i < used || i >= end {
			b[i/8] |= 1 << (i % 8)
		}
	}
	return b
}

// inodes is the block with the inodes 1 to 16. The content of those that are there begins at the block data.
func (m *maker) inodes(data uint64) []byte {
	table := make([]byte, makeBlock)
	put := func(n int, mode, links uint16, blocks, start uint64) {
		copy(table[(n-1)*makeInodeSize:], openfs.Bytes(binary.LittleEndian, diskInode{
			Mode: mode, Links: links, Size: uint32(blocks * makeBlock), Accessed: m.now, Changed: m.now,
			Modified: m.now, Sectors: uint32(blocks * makeBlock / 512), Flags: flagExtents, Magic: extentMagic,
			Extents: 1, Most: 4, Blocks: uint16(blocks), Start: uint32(start), ExtraSize: 32}))
	}
	put(rootInode, typeDir|0o755, 3, 1, data)
	put(lostFound, typeDir|0o700, 2, 1, data+1)
	put(journalInode, typeFile|0o600, 1, makeJournal, data+2)
	return table
}

// diskInode is an inode with one extent.
type diskInode struct {
	Mode, UID                                  uint16
	Size, Accessed, Changed, Modified, Deleted uint32
	GID, Links                                 uint16
	Sectors, Flags, Version                    uint32
	Magic, Extents, Most, Depth                uint16
	Generation, Logical                        uint32
	Blocks, StartHigh                          uint16
	Start                                      uint32
	Unused                                     [64]byte
	ExtraSize                                  uint16
}

// folder returns a directory's only block.
func folder(self, parent uint32, name string, n uint32) []byte {
	b := make([]byte, makeBlock)
	le := binary.LittleEndian
	at := 0
	add := func(n uint32, name string, last bool) {
		length := (8 + len(name) + 3) / 4 * 4
		if last {
			length = makeBlock - at
		}
		le.PutUint32(b[at:], n)
		le.PutUint16(b[at+4:], uint16(length))
		b[at+6], b[at+7] = byte(len(name)), 2
		copy(b[at+8:], name)
		at += length
	}
	add(self, ".", false)
	add(parent, "..", name == "")
	if name != "" {
		add(n, name, true)
	}
	return b
}

// journal returns the first block of the journal (jbd2's superblock, version 2); its numbers are big-endian.
func (m *maker) journal() []byte {
	return append(openfs.Bytes(binary.BigEndian, struct {
		Magic, Type, Sequence, Block, Blocks, First, FirstSequence, Start, Error uint32
		Compat, Incompat, ROCompat                                               uint32
		UUID                                                                     [16]byte
		Users                                                                    uint32
	}{Magic: journalMagic, Type: 4, Block: makeBlock, Blocks: makeJournal, First: 1, FirstSequence: 1, UUID: m.uuid,
		Users: 1}), make([]byte, makeBlock-68)...)
}

// superblock is as much of one as Make fills.
type superblock struct {
	Inodes, Blocks, ReservedBlocks, FreeBlocks, FreeInodes, FirstBlock     uint32
	LogBlock, LogCluster, BlocksPerGroup, ClustersPerGroup, InodesPerGroup uint32
	Mounted, Written                                                       uint32
	Mounts, MaxMounts, Magic, State, Errors, Minor                         uint16
	Checked, CheckInterval, Creator, Revision                              uint32
	ReservedUID, ReservedGID                                               uint16
	FirstInode                                                             uint32
	InodeSize, Group                                                       uint16
	Compat, Incompat, ROCompat                                             uint32
	UUID, Label                                                            [16]byte
	LastMounted                                                            [64]byte
	Unused                                                                 [24]byte
	Journal, JournalDevice, LastOrphan                                     uint32
	HashSeed                                                               [16]byte
	HashKind, JournalBackup                                                byte
	DescSize                                                               uint16
	MountOptions, FirstMeta, Made                                          uint32
	JournalBlocks                                                          [17]uint32
	BlocksHigh, ReservedHigh, FreeHigh                                     uint32
	MinExtra, WantExtra                                                    uint16
	Flags                                                                  uint32
}

func (m *maker) super(group uint64) []byte {
	inodes := uint32(m.groups * makeInodes)
	sb := superblock{Inodes: inodes, Blocks: uint32(m.blocks), FreeBlocks: uint32(m.free),
		FreeInodes: inodes - lostFound, LogBlock: 2, LogCluster: 2, // blocks of 1024 << 2
		BlocksPerGroup: makePerGroup, ClustersPerGroup: makePerGroup, InodesPerGroup: makeInodes, Written: m.now,
		MaxMounts: 0xffff,                                   // no check after so many mounts
		Magic:     superMagic, State: stateValid, Errors: 1, // go on after errors
		Checked: m.now, Revision: 1, FirstInode: lostFound, InodeSize: makeInodeSize, Group: uint16(group),
		Compat: 0x4 | 0x8 | 0x20, Incompat: incompatFiletype | incompatExtents, // has_journal, ext_attr, dir_index
		ROCompat: 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40,                         // as in roKnown
		UUID:     m.uuid, Journal: journalInode, HashSeed: m.seed, HashKind: 1, // half MD4
		MountOptions: 0xc, Made: m.now, MinExtra: 32, WantExtra: 32, Flags: 1} // hashes of signed characters
	copy(sb.Label[:], m.label)
	block := make([]byte, makeBlock)
	if group == 0 {
		copy(block[superAt:], openfs.Bytes(binary.LittleEndian, sb))
	} else {
		copy(block, openfs.Bytes(binary.LittleEndian, sb))
	}
	return block
}

// crc16 is the checksum of group descriptors: CRC-16 with the polynomial 0x8005, reflected.
func crc16(sum uint16, b []byte) uint16 {
	for _, c := range b {
		sum ^= uint16(c)
		for range 8 {
			if sum&1 != 0 {
				sum = sum>>1 ^ 0xa001
			} else {
				sum >>= 1
			}
		}
	}
	return sum
}
