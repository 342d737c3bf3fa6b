package inventory

import "encoding/binary"

// installedMB adds up the memory devices (type 17) of an SMBIOS structure table, in MiB. DSP0134, sections 6.1.2 and 7.18.
func installedMB(table []byte) uint64 {
	var sum uint64
	for len(table) >= 4 {
		kind, length := table[0], int(table[1])
		if length < 4 || length > len(table) {
			break
		}
		if kind == 17 && length >= 0x0e {
			sum += deviceMB(table[:length])
		}
		if kind == 127 {
			break
		}
		// Behind the formatted part lie strings, each ended by a zero, and one zero more; two zeros when there are no strings.
		i := length
		for i+1 < len(table) && (table[i] != 0 || table[i+1] != 0) {
			i++
		}
		if i+2 > len(table) {
			break
		}
		table = table[i+2:]
	}
	return sum
}

func deviceMB(s []byte) uint64 {
	size := uint64(binary.LittleEndian.Uint16(s[0x0c:]))
	switch {
	case size == 0 || size == 0xffff: // empty slot; unknown
		return 0
	case size == 0x7fff:
		if len(s) < 0x20 {
			return 0
		}
		return uint64(binary.LittleEndian.Uint32(s[0x1c:]) &^ (1 << 31))
	case size&0x8000 != 0: // in KiB
		return (size &^ 0x8000) >> 10
	}
	return size
}
