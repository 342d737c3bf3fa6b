package disk

import (
	"encoding/binary"
	"encoding/hex"
)

// serialOfPage80 returns the unit serial number of SCSI vital product data page 0x80 (SPC-4, 7.8.18).
func serialOfPage80(page []byte) string {
	if len(page) < 4 || page[1] != 0x80 {
		return ""
	}
	n := min(int(binary.BigEndian.Uint16(page[2:])), len(page)-4)
	return clean(string(page[4 : 4+n]))
}

// wwnOfPage83 returns the best world wide name of the logical unit in SCSI vital product data page 0x83 (SPC-4, 7.8.6),
// as hexadecimal digits. A 16-byte NAA name is better than an 8-byte one, and any NAA name better than an EUI-64.
func wwnOfPage83(page []byte) string {
	if len(page) < 4 || page[1] != 0x83 {
		return ""
	}
	page = page[4 : 4+min(int(binary.BigEndian.Uint16(page[2:])), len(page)-4)]
	best, rank := "", 0
	for len(page) >= 4 {
		n := int(page[3])
		if 4+n > len(page) {
			break
		}
		codeSet, association, kind, id := page[0]&0xf, page[1]>>4&3, page[1]&0xf, page[4:4+n]
		page = page[4+n:]
		if codeSet != 1 || association != 0 { // 1: binary; 0: the logical unit, not its port or target
			continue
		}
		r := 0
		switch {
		case kind == 3 && n == 16:
			r = 3
		case kind == 3 && n == 8:
			r = 2
		case kind == 2 && (n == 8 || n == 12 || n == 16):
			r = 1
		}
		if r > rank {
			best, rank = hex.EncodeToString(id), r
		}
	}
	return best
}
