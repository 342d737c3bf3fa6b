package passthru

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// sense is SCSI sense data of either format (SPC-5, 4.4).
type sense struct {
	key, asc, ascq uint8
	progress       int // of 65536; -1 if absent
	ata            *taskfile
}

// taskfile is an ATA command, or its result registers. lba and count are as wide as in 48-bit commands.
type taskfile struct {
	command, device uint8  // command is the status of an ended command
	feature         uint16 // the error of an ended command
	count           uint16
	lba             uint64
	// registers from fixed-format sense data: count's upper byte is only known to be zero or 1 for "not zero"
	short bool
}

const (
	senseRecovered = 0x1
	senseNotReady  = 0x2
	senseMedium    = 0x3
	senseIllegal   = 0x5
)

// Status codes of SCSI commands.
const (
	scsiGood           = 0x00
	scsiCheckCondition = 0x02
)

func parseSense(b []byte) (sense, bool) {
	s := sense{progress: -1}
	if len(b) < 8 {
		return s, false
	}
	switch b[0] & 0x7f {
	case 0x70, 0x71:
		s.key = b[2] & 0xf
		if len(b) >= 14 {
			s.asc, s.ascq = b[12], b[13]
		}
		if len(b) >= 18 && b[15]&0x80 != 0 && (s.key == 0 || s.key == senseNotReady) {
			s.progress = int(binary.BigEndian.Uint16(b[16:]))
		}
		// SAT-4, 12.2.5: this is a task file only as the answer to an ATA command, which the caller knows.
		if len(b) >= 12 {
			t := taskfile{feature: uint16(b[3]), command: b[4], device: b[5], count: uint16(b[6]), short: true,
				lba: uint64(b[9]) | uint64(b[10])<<8 | uint64(b[11])<<16}
			if b[8]&0x40 != 0 {
				t.count |= 0x100
			}
			s.ata = &t
		}
		return s, true
	case 0x72, 0x73:
		s.key, s.asc, s.ascq = b[1]&0xf, b[2], b[3]
		for rest := b[8:min(len(b), 8+int(b[7]))]; len(rest) >= 2; {
			n := 2 + int(rest[1])
			if n > len(rest) {
				break
			}
			d := rest[:n]
			rest = rest[n:]
			switch {
			case d[0] == 0x02 && n >= 8 && d[4]&0x80 != 0 && (s.key == 0 || s.key == senseNotReady):
				s.progress = int(binary.BigEndian.Uint16(d[5:]))
			case d[0] == 0x09 && n >= 14: // SAT-4, table 167
				s.ata = &taskfile{feature: uint16(d[3]), count: uint16(d[4])<<8 | uint16(d[5]), device: d[12],
					command: d[13], lba: uint64(d[7]) | uint64(d[9])<<8 | uint64(d[11])<<16 | uint64(d[6])<<24 |
						uint64(d[8])<<32 | uint64(d[10])<<40}
			}
		}
		return s, true
	}
	return s, false
}

// SenseError is the error of a SCSI command that the device rejected.
type SenseError struct {
	Status, Key, ASC, ASCQ uint8
}

func (e SenseError) Error() string {
	what := cmp.Or(map[uint16]string{0x2000: "invalid command", 0x2400: "invalid field in command",
		0x041b: "sanitize in progress", 0x3103: "sanitize failed", 0x2700: "write protected",
		0x7421: "no access at the moment: security"}[uint16(e.ASC)<<8|uint16(e.ASCQ)], "see SPC, annex F")
	return fmt.Sprintf("SCSI status 0x%02x, sense %x/%02x/%02x (%s)", e.Status, e.Key, e.ASC, e.ASCQ, what)
}
