package raid

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Metadata of format 1.2 (include/uapi/linux/raid/md_p.h, struct mdp_superblock_1), in sectors of 512 bytes independent
// of the disk's.
const (
	superMagic  = 0xa92b4efc
	superSector = 8    // of the superblock in a member
	dataSector  = 2048 // start of the data
	superSize   = 4096
	maxMembers  = 128 // number of roles kept
	roleSpare   = 0xffff
	noResync    = 1<<64 - 1
)

// Layouts compatible with mdadm: left symmetric for 5 and 6, two near copies for 10.
var levels = map[string]struct {
	level   int32
	layout  uint32
	chunked bool
	least   int // members
	// data is the capacity of n members, in members: num/den.
	data func(n int) (num, den int)
}{
	"0":   {0, 0, true, 2, func(n int) (int, int) { return n, 1 }},
	"1":   {1, 0, false, 2, func(int) (int, int) { return 1, 1 }},
	"1+0": {10, 0x102, true, 4, func(n int) (int, int) { return n, 2 }},
	"5":   {5, 2, true, 3, func(n int) (int, int) { return n - 1, 1 }},
	"6":   {6, 2, true, 4, func(n int) (int, int) { return n - 2, 1 }},
}

const chunkSectors = 1024 // 512 KiB, as in mdadm

// superblock is a member's metadata about its array and itself.
type superblock struct {
	UUID    [16]byte
	Name    string
	Level   int32
	Layout  uint32
	Chunk   uint32 // sectors
	Members uint32
	Size    uint64 // sectors used of each member; zero for level 0
	Data    uint64 // sectors for data in the member
	Offset  uint64 // start of the data
	Number  uint32 // of this member
	Device  [16]byte
	Created time.Time
	Resync  uint64 // sectors in sync; noResync: nothing to do
	Events  uint64
	Role    uint16 // of this member; parsed only

	Roles []uint16 // of all members by their number, as of this one; parsed only
}

// encode returns the bytes for superSector.
func (s *superblock) encode() []byte {
	le := binary.LittleEndian
	d := diskSuper{Magic: superMagic, Major: 1, UUID: s.UUID, Created: uint64(s.Created.Unix()) & (1<<40 - 1),
		Level: s.Level, Layout: s.Layout, Size: s.Size, Chunk: s.Chunk, Members: s.Members, Offset: s.Offset,
		Data: s.Data, At: superSector, Number: s.Number, Device: s.Device,
		Updated: uint64(s.Created.Unix()) & (1<<40 - 1), Events: s.Events, Resync: s.Resync, Most: maxMembers}
	copy(d.Name[:], s.Name)
	for i := range d.Roles {
		if d.Roles[i] = roleSpare; i < int(s.Members) {
			d.Roles[i] = uint16(i)
		}
	}
	b := make([]byte, superSize)
	if _, err := binary.Encode(b, le, d); err != nil {
		panic(err) // it is of fixed size, and smaller
	}
	le.PutUint32(b[216:], superSum(b, maxMembers))
	return b
}

// diskSuper is a superblock as it lies on a disk.
type diskSuper struct {
	Magic, Major, Features, _ uint32
	UUID                      [16]byte
	Name                      [32]byte
	Created                   uint64
	Level                     int32
	Layout                    uint32
	Size                      uint64
	Chunk, Members            uint32
	_                         [32]byte // bitmap, reshaping
	Offset, Data, At          uint64
	Recovered                 uint64
	Number, Corrected         uint32
	Device                    [16]byte
	_                         [8]byte
	Updated, Events, Resync   uint64
	Checksum, Most            uint32
	_                         [32]byte
	Roles                     [maxMembers]uint16
}

// superSum is the checksum over the superblock and its roles: 32-bit words added up, the carry added in.
func superSum(b []byte, roles int) uint32 {
	b = bytes.Clone(b[:256+2*roles])
	clear(b[216:220])
	var sum uint64
	for word := range slices.Chunk(append(b, 0, 0)[:len(b)+len(b)%4], 4) {
		sum += uint64(binary.LittleEndian.Uint32(word))
	}
	return uint32(sum) + uint32(sum>>32)
}

var errNoMember = errors.New("no member of an array of format 1.2")

// parseSuperblock parses the superblock at superSector of a member.
func parseSuperblock(b []byte) (superblock, error) { return parseAt(b, superSector) }

// parseAt parses a superblock at a sector of a member: at superSector for version 1.2, at the member's start for 1.1,
// near its end for 1.0.
func parseAt(b []byte, sector int64) (superblock, error) {
	le := binary.LittleEndian
	if len(b) < superSize || le.Uint32(b) != superMagic || le.Uint32(b[4:]) != 1 ||
		le.Uint64(b[144:]) != uint64(sector) {
		return superblock{}, errNoMember
	}
	roles := le.Uint32(b[220:])
	if roles > (superSize-256)/2 {
		return superblock{}, fmt.Errorf("a superblock with %d roles", roles)
	}
	if got, want := superSum(b, int(roles)), le.Uint32(b[216:]); got != want {
		return superblock{}, fmt.Errorf("a superblock with checksum %08x, not %08x", got, want)
	}
	s := superblock{
		Name: strings.TrimRight(string(b[32:64]), "\x00"), Level: int32(le.Uint32(b[72:])), Layout: le.Uint32(b[76:]),
		Size: le.Uint64(b[80:]), Chunk: le.Uint32(b[88:]), Members: le.Uint32(b[92:]), Offset: le.Uint64(b[128:]),
		Data: le.Uint64(b[136:]), Number: le.Uint32(b[160:]),
		Created: time.Unix(int64(le.Uint64(b[64:])&(1<<40-1)), 0).UTC(), Events: le.Uint64(b[200:]),
		Resync: le.Uint64(b[208:]), UUID: [16]byte(b[16:]), Device: [16]byte(b[168:]),
	}
	for i := range roles {
		s.Roles = append(s.Roles, le.Uint16(b[256+2*i:]))
	}
	s.Role = s.roleOf(s.Number)
	return s, nil
}

// roleOf returns another member's role as of this one.
func (s *superblock) roleOf(number uint32) uint16 {
	if number < uint32(len(s.Roles)) {
		return s.Roles[number]
	}
	return roleSpare
}

// uuidText formats an array's UUID as the kernel does in sysfs.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
