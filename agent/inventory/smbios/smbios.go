// Package smbios reads the tables in which firmware describes the machine (SMBIOS, DSP0134).
//
// Parse splits the structure table, as in /sys/firmware/dmi/tables/DMI, into structures. Describe extracts the most
// useful fields, with dmidecode's names and texts, because ironic-python-agent's collector dmi-decode sends those and
// rules are written for them. A field beyond a structure's end, or with the value "not known", is left out; from a
// truncated or malformed table the readable part is returned, never an error.
package smbios

import (
	"encoding/binary"
	"strings"
)

// Structure is one element of the table.
type Structure struct {
	Type    byte
	Handle  uint16
	Data    []byte   // the formatted part, with its header of four bytes
	Strings []string // the first has number 1
}

// Types of structures (DSP0134, section 7).
const (
	typeBIOS, typeSystem, typeBaseboard, typeChassis, typeProcessor = 0, 1, 2, 3, 4
	typeSlot, typeOEMStrings, typeMemoryArray, typeMemoryDevice     = 9, 11, 16, 17
	typeIPMI, typeOnboard, typeEnd                                  = 38, 41, 127
)

// Parse splits a structure table into its structures, up to the end marker.
func Parse(table []byte) []Structure {
	var all []Structure
	for len(table) >= 4 {
		n := int(table[1])
		if n < 4 || n > len(table) {
			break
		}
		s := Structure{Type: table[0], Handle: binary.LittleEndian.Uint16(table[2:]), Data: table[:n]}
		// After the formatted part come strings, each ended by a zero, and one more zero; two zeros if there are no
		// strings.
		i := n
		for i+1 < len(table) && (table[i] != 0 || table[i+1] != 0) {
			i++
		}
		if i+2 > len(table) {
			break
		}
		if i > n {
			s.Strings = strings.Split(string(table[n:i]), "\x00")
		}
		all = append(all, s)
		if s.Type == typeEnd {
			break
		}
		table = table[i+2:]
	}
	return all
}

// text returns the string whose number is at an offset; empty if there is none, or if it is a vendor's placeholder.
func (s Structure) text(off int) string {
	n := s.u8(off)
	if n == 0 || n > len(s.Strings) {
		return ""
	}
	return clean(s.Strings[n-1])
}

// clean turns a vendor's text into one line of printable text.
func clean(t string) string {
	t = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(t, " "))
	return strings.Join(strings.Fields(t), " ")
}

// number is the number of so many bytes at an offset; 0 when the structure is too short for it.
func (s Structure) number(off, size int) uint64 {
	if off+size > len(s.Data) {
		return 0
	}
	var b [8]byte
	copy(b[:], s.Data[off:off+size])
	return binary.LittleEndian.Uint64(b[:])
}

func (s Structure) u8(off int) int     { return int(s.number(off, 1)) }
func (s Structure) u16(off int) int    { return int(s.number(off, 2)) }
func (s Structure) u32(off int) uint64 { return s.number(off, 4) }
func (s Structure) u64(off int) uint64 { return s.number(off, 8) }

// InstalledMB adds up the memory devices, in MiB.
func InstalledMB(all []Structure) uint64 {
	var sum uint64
	for _, s := range all {
		if s.Type == typeMemoryDevice {
			kb, _ := s.memoryKB()
			sum += kb >> 10
		}
	}
	return sum
}

// memoryKB is the size of a memory device in KiB; known is false if the device does not give it. An empty slot has
// zero.
func (s Structure) memoryKB() (kb uint64, known bool) {
	if len(s.Data) < 0x0e {
		return 0, false
	}
	size := uint64(s.u16(0x0c))
	switch {
	case size == 0xffff, size == 0x7fff && len(s.Data) < 0x20:
		return 0, false
	case size == 0x7fff:
		return (s.u32(0x1c) &^ (1 << 31)) << 10, true
	case size&0x8000 != 0:
		return size &^ 0x8000, true
	}
	return size << 10, true
}

// Port is a location of network cards and the like that the firmware numbers: a slot, or a device on the board.
type Port struct {
	Onboard  bool
	Number   int    // of the slot, or the instance of its kind of onboard device
	Kind     int    // of an onboard device: 5 is Ethernet
	Label    string // its printed name
	Segment  int
	Bus      int
	Device   int
	Function int
}

// Ports lists slots and onboard devices with a known PCI function.
func Ports(all []Structure) []Port {
	var out []Port
	for _, s := range all {
		var p Port
		var off int
		switch {
		case s.Type == typeSlot && len(s.Data) >= 0x11:
			p, off = Port{Number: s.u16(0x09), Label: s.text(0x04)}, 0x0d
		case s.Type == typeOnboard && len(s.Data) >= 0x0b:
			p, off = Port{Onboard: true, Kind: s.u8(0x05) & 0x7f, Number: s.u8(0x06), Label: s.text(0x04)}, 0x07
			if s.u8(0x05)&0x80 == 0 {
				continue // disabled
			}
		default:
			continue
		}
		p.Segment, p.Bus, p.Device, p.Function = s.u16(off), s.u8(off+2), s.u8(off+3)>>3, s.u8(off+3)&7
		if p.Segment == 0xffff || p.Bus == 0xff && s.u8(off+3) == 0xff {
			continue
		}
		out = append(out, p)
	}
	return out
}
