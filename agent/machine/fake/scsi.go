package fake

import (
	"encoding/binary"
	"slices"
	"sync"
)

// SCSI is a SAS drive's firmware, after SPC-5 and SBC-4.
type SCSI struct {
	Firmware
	Disk      *Disk
	ModelName string
	SerialNo  string
	Sanitize  []string // "crypto", "block", "overwrite"
	Unmaps    bool     // and unmapped blocks read as zero
	Opal      *Opal
	Failing   bool
	Celsius   byte
	Used      byte
	Minutes   uint32
	Defects   uint32
	// Silent: supports only the mandatory commands.
	Silent bool

	mu        sync.Mutex
	run       *erasing
	failed    bool
	attention bool
}

func (s *SCSI) powerCut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attention = true
	if s.Opal != nil {
		s.Opal.powerCut()
	}
}

func (s *SCSI) nvme(uint8, uint32, [6]uint32, []byte) (uint32, uint16, error) { return 0, 0, errNoATA }

var scsiActions = map[byte]string{1: "overwrite", 2: "block", 3: "crypto"}

func (s *SCSI) scsi(cdb []byte, out bool, data []byte) (uint8, []byte, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	be := binary.BigEndian
	illegal := func(asc byte) (uint8, []byte, int, error) { return 2, fixedSense(5, asc, 0, -1), 0, nil }
	give := func(b []byte, max int) (uint8, []byte, int, error) {
		return 0, nil, copy(data, b[:min(len(b), max)]), nil
	}
	switch cdb[0] {
	case 0x00:
		if s.attention {
			s.attention = false
			return 2, fixedSense(6, 0x29, 0, -1), 0, nil
		}
		if sn := s.pending(false); sn != nil {
			return 2, sn, 0, nil
		}
		return 0, nil, 0, nil
	case 0x03:
		if sn := s.pending(true); sn != nil {
			return give(sn, int(cdb[4]))
		}
		return give(fixedSense(0, 0, 0, -1), int(cdb[4]))
	case 0x12:
		size := int(be.Uint16(cdb[3:]))
		if cdb[1]&1 == 0 {
			b := make([]byte, 36)
			b[2], b[4] = 7, 31
			copy(b[8:], pad("MAKER", 8)+pad(s.ModelName, 16)+"0001")
			return give(b, size)
		}
		page := map[byte][]byte{0x00: {0x00, 0x80, 0xb2}, 0x80: []byte(s.SerialNo), 0xb2: {0, 0, 0, 0}}
		if s.Unmaps {
			page[0xb2][1] = 0x80 | 1<<2
		}
		body, ok := page[cdb[2]]
		if !ok || s.Silent {
			return illegal(0x24)
		}
		return give(append([]byte{0, cdb[2], byte(len(body) >> 8), byte(len(body))}, body...), size)
	case 0xa3:
		if s.Silent || cdb[1]&0x1f != 0x0c || cdb[2]&7 != 2 || cdb[3] != 0x48 {
			return illegal(0x20)
		}
		b := make([]byte, 4+10)
		b[1] = 1
		if slices.Contains(s.Sanitize, scsiActions[cdb[5]]) {
			b[1] = 3
		}
		return give(b, int(be.Uint32(cdb[6:])))
	case 0x48:
		return s.sanitize(cdb, out, data)
	case 0x4d:
		return s.logSense(cdb, data)
	case 0xb7:
		if s.Silent {
			return illegal(0x20)
		}
		b := make([]byte, 8)
		b[1] = 0x0d
		be.PutUint32(b[4:], 8*s.Defects)
		return give(b, int(be.Uint32(cdb[6:])))
	case 0xa2, 0xb5:
		if s.Opal == nil {
			return illegal(0x20)
		}
		return s.Opal.scsi(cdb, data, func() { s.erase([]*Disk{s.Disk}, true, 1) })
	}
	return illegal(0x20)
}

// pending returns the sense data of a running or failed sanitize, or nil; with ask the sanitize advances.
func (s *SCSI) pending(ask bool) []byte {
	if s.run != nil && ask {
		if over, failed := s.tick(s.run, []*Disk{s.Disk}); over {
			s.run, s.failed = nil, failed
			s.Disk.refuse.Store(failed)
		}
	}
	if s.run != nil {
		return fixedSense(2, 4, 0x1b, int(s.run.fraction()))
	}
	if s.failed {
		return fixedSense(3, 0x31, 3, -1)
	}
	return nil
}

func (s *SCSI) sanitize(cdb []byte, out bool, data []byte) (uint8, []byte, int, error) {
	what := scsiActions[cdb[1]&0x1f]
	n := int(binary.BigEndian.Uint16(cdb[7:]))
	switch {
	case s.Silent || what == "" || !slices.Contains(s.Sanitize, what):
		return 2, fixedSense(5, 0x20, 0, -1), 0, nil
	case s.run != nil:
		return 2, fixedSense(2, 4, 0x1b, int(s.run.fraction())), 0, nil
	case n != len(data) || what == "overwrite" &&
		(n < 5 || !out || data[0]&0x1f == 0 || int(binary.BigEndian.Uint16(data[2:])) != n-4),
		cdb[1]&0x80 == 0: // the model always returns at once
		return 2, fixedSense(5, 0x24, 0, -1), 0, nil
	}
	s.failed = false
	s.run = s.begin(what, what != "overwrite")
	s.Disk.refuse.Store(true)
	return 0, nil, len(data), nil
}

func (s *SCSI) logSense(cdb, data []byte) (uint8, []byte, int, error) {
	be := binary.BigEndian
	param := func(code uint16, v ...byte) []byte {
		return append([]byte{byte(code >> 8), byte(code), 3, byte(len(v))}, v...)
	}
	asc := byte(0)
	if s.Failing {
		asc = 0x5d
	}
	body := map[byte][]byte{
		0x2f: param(0, asc, 0x10, s.Celsius),
		0x0d: append(param(0, 0, s.Celsius), param(1, 0, 70)...),
		0x11: param(1, 0, 0, 0, s.Used),
		0x15: param(0, append(be.AppendUint32(nil, s.Minutes), 0, 0, 0, 0, 0, 0, 0, 0)...),
		0x03: append(param(0, 0, 0, 0, 7), param(6, 0, 2)...),
	}[cdb[2]&0x3f]
	if body == nil || s.Silent {
		return 2, fixedSense(5, 0x24, 0, -1), 0, nil
	}
	b := append([]byte{cdb[2] & 0x3f, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return 0, nil, copy(data, b[:min(len(b), int(be.Uint16(cdb[7:])))]), nil
}
