package ext4

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// What Make makes. Group descriptors have checksums, so that only groups in use have bitmaps and the kernel clears
// inode tables when it first mounts the file system: an empty one of any size is a few MiB of writes.
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

// MinSize and MaxSize are what Make can do.
const (
	MinSize = 256 << 20
	MaxSize = 1 << 44
)

// Make makes an empty ext4 file system with a journal in the first size bytes of w. zero must make a range read as
// zeros: the journal's, where remains of an older one could be taken for its own. Written are whole blocks of 4 KiB.
func Make(w io.WriterAt, size int64, label string, uuid [16]byte, now time.Time, zero func(off, n int64) error) error {
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("an ext4 file system of %d bytes is not made here", size)
	}
	m := &maker{w: w, uuid: uuid, label: label, now: uint32(now.Unix()), blocks: uint64(size / makeBlock)}
	rand.Read(m.seed[:])
	m.groups = (m.blocks + makePerGroup - 1) / makePerGroup
	m.descBlocks = (m.groups*32 + makeBlock - 1) / makeBlock
	// A last group that has hardly more room than its own tables is left out.
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

// backups tells whether a group begins with a superblock: 0, 1 and the powers of 3, 5 and 7.
func backups(g uint64) bool {
	if g <= 1 {
		return true
	}
	for _, base := range []uint64{3, 5, 7} {
		for p := base; p <= g; p *= base {
			if p == g {
				return true
			}
		}
	}
	return false
}

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

func (m *maker) make(zero func(off, n int64) error) error {
	le := binary.LittleEndian
	data := m.overhead(0) // root folder, lost+found, journal
	used := data + 2 + makeJournal
	m.descs = make([]byte, m.descBlocks*makeBlock)
	for g := range m.groups {
		first := g * makePerGroup
		tables := first
		if backups(g) {
			tables += 1 + m.descBlocks
		}
		d := m.descs[32*g:]
		le.PutUint32(d, uint32(tables))
		le.PutUint32(d[4:], uint32(tables+1))
		le.PutUint32(d[8:], uint32(tables+2))
		free, inodes := m.inGroup(g)-m.overhead(g), uint64(makeInodes)
		flags := uint16(groupInodesUnused | groupBlocksUnused)
		switch {
		case g == 0:
			free, inodes, flags = m.inGroup(0)-used, makeInodes-lostFound, 0
			le.PutUint16(d[16:], 2) // folders
		case g == m.groups-1:
			flags = groupInodesUnused // the last group's bitmap says where the file system ends
		}
		le.PutUint16(d[12:], uint16(free))
		le.PutUint16(d[14:], uint16(inodes))
		le.PutUint16(d[18:], flags)
		le.PutUint16(d[28:], uint16(inodes)) // never used
		m.free += free
		sum := crc16(0xffff, m.uuid[:])
		sum = crc16(sum, le.AppendUint32(nil, uint32(g)))
		le.PutUint16(d[30:], crc16(sum, d[:30]))
		if g == 0 || g == m.groups-1 {
			taken := m.overhead(g)
			if g == 0 {
				taken = used
			}
			if err := m.put(tables, bitmap(taken, m.inGroup(g))); err != nil {
				return err
			}
		}
	}
	if err := m.put(1+m.descBlocks+1, bitmap(lostFound, makeInodes)); err != nil {
		return err
	}
	// Inodes 1 to 16.
	table := make([]byte, makeBlock)
	m.inode(table, rootInode, typeDir|0o755, 3, makeBlock, data, 1)
	m.inode(table, lostFound, typeDir|0o700, 2, makeBlock, data+1, 1)
	m.inode(table, journalInode, typeFile|0o600, 1, makeJournal*makeBlock, data+2, makeJournal)
	if err := m.put(1+m.descBlocks+2, table); err != nil {
		return err
	}
	if err := m.put(data, folder(rootInode, rootInode, "lost+found", lostFound)); err != nil {
		return err
	}
	if err := m.put(data+1, folder(lostFound, rootInode, "", 0)); err != nil {
		return err
	}
	if err := zero(int64(data+2)*makeBlock, makeJournal*makeBlock); err != nil {
		return err
	}
	if err := m.put(data+2, m.journal()); err != nil {
		return err
	}
	for g := m.groups - 1; ; g-- { // the first superblock last
		if backups(g) {
			if err := m.put(g*makePerGroup+1, m.descs); err != nil {
				return err
			}
			if err := m.put(g*makePerGroup, m.super(g)); err != nil {
				return err
			}
		}
		if g == 0 {
			return nil
		}
	}
}

// bitmap is a block with the first used bits set, and those from end on.
func bitmap(used, end uint64) []byte {
	b := make([]byte, makeBlock)
	for i := range uint64(8 * makeBlock) {
		if i < used || i >= end {
			b[i/8] |= 1 << (i % 8)
		}
	}
	return b
}

// inode writes an inode with one extent.
func (m *maker) inode(table []byte, n int, mode uint16, links int, size, start, blocks uint64) {
	le := binary.LittleEndian
	b := table[(n-1)*makeInodeSize:][:makeInodeSize]
	le.PutUint16(b, mode)
	le.PutUint32(b[4:], uint32(size))
	for _, at := range []int{8, 12, 16} {
		le.PutUint32(b[at:], m.now)
	}
	le.PutUint16(b[0x1a:], uint16(links))
	le.PutUint32(b[0x1c:], uint32(blocks*makeBlock/512))
	le.PutUint32(b[0x20:], flagExtents)
	e := b[0x28:]
	le.PutUint16(e, 0xf30a)
	le.PutUint16(e[2:], 1)
	le.PutUint16(e[4:], 4)
	le.PutUint16(e[16:], uint16(blocks))
	le.PutUint32(e[20:], uint32(start))
	le.PutUint16(b[0x80:], 32) // extra size
}

// folder is a folder's only block.
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

// journal is the first block of the journal (jbd2's superblock, version 2); its numbers are big-endian.
func (m *maker) journal() []byte {
	b := make([]byte, makeBlock)
	be := binary.BigEndian
	be.PutUint32(b, 0xc03b3998)
	be.PutUint32(b[4:], 4)
	be.PutUint32(b[12:], makeBlock)
	be.PutUint32(b[16:], makeJournal)
	be.PutUint32(b[20:], 1) // first block of the log
	be.PutUint32(b[24:], 1) // first sequence
	copy(b[48:], m.uuid[:])
	be.PutUint32(b[64:], 1) // users
	return b
}

func (m *maker) super(group uint64) []byte {
	block := make([]byte, makeBlock)
	b := block
	if group == 0 {
		b = block[superAt:]
	}
	le := binary.LittleEndian
	inodes := m.groups * makeInodes
	le.PutUint32(b, uint32(inodes))
	le.PutUint32(b[4:], uint32(m.blocks))
	le.PutUint32(b[12:], uint32(m.free))
	le.PutUint32(b[16:], uint32(inodes-lostFound))
	le.PutUint32(b[24:], 2) // blocks of 1024 << 2
	le.PutUint32(b[28:], 2)
	le.PutUint32(b[32:], makePerGroup)
	le.PutUint32(b[36:], makePerGroup)
	le.PutUint32(b[40:], makeInodes)
	le.PutUint32(b[48:], m.now)
	le.PutUint16(b[54:], 0xffff) // no check after so many mounts
	le.PutUint16(b[56:], 0xef53)
	le.PutUint16(b[58:], 1) // clean
	le.PutUint16(b[60:], 1) // go on after errors
	le.PutUint32(b[64:], m.now)
	le.PutUint32(b[76:], 1) // revision
	le.PutUint32(b[84:], lostFound)
	le.PutUint16(b[88:], makeInodeSize)
	le.PutUint16(b[90:], uint16(group))
	le.PutUint32(b[92:], 0x4|0x8|0x20)                     // has_journal, ext_attr, dir_index
	le.PutUint32(b[96:], incompatFiletype|incompatExtents) //
	// sparse_super, large_file, huge_file, uninit_bg, dir_nlink, extra_isize
	le.PutUint32(b[100:], 0x1|0x2|0x8|0x10|0x20|0x40)
	copy(b[104:], m.uuid[:])
	copy(b[120:136], m.label)
	le.PutUint32(b[0xe0:], journalInode)
	copy(b[0xec:], m.seed[:]) // of folders' hashes
	b[0xfc] = 1               // half MD4
	le.PutUint32(b[0x100:], 0xc)
	le.PutUint32(b[0x108:], m.now)
	le.PutUint16(b[0x15c:], 32)
	le.PutUint16(b[0x15e:], 32)
	le.PutUint32(b[0x160:], 1) // hashes of signed characters
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
