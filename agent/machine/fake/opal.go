package fake

import (
	"bytes"
	"cmp"
	"encoding/binary"
)

// Opal is the trusted peripheral in a self-encrypting drive, after TCG Core 2.01 and Opal SSC 2.01, as far as a revert
// needs it.
type Opal struct {
	PSID string // on the label
	MSID string // the factory password
	// Owner is the owner's password; empty: still the factory's.
	Owner  string
	Locks  bool // the locking SP is active
	Blocks bool // the machine's firmware blocks authentication as owner at each boot
	Slow   int  // number of polls until an answer is ready

	blocked bool
	session uint32
	as      string // authority of the session: "", "sid" or "psid"
	host    uint32
	answer  []byte
	wait    int
}

const opalComID = 0x07fe

func (o *Opal) powerCut() { o.session, o.answer, o.blocked = 0, nil, o.Blocks }

// scsi implements SECURITY PROTOCOL IN and OUT.
func (o *Opal) scsi(cdb, data []byte, erase func()) (uint8, []byte, int, error) {
	if cdb[4]&0x80 == 0 || int(binary.BigEndian.Uint32(cdb[6:]))*512 != len(data) {
		return 2, fixedSense(5, 0x24, 0, -1), 0, nil
	}
	if cdb[0] == 0xa2 && cdb[1] == 0 {
		clear(data)
		data[7], data[8], data[9] = 2, 0, 1
		return 0, nil, len(data), nil
	}
	if cdb[1] != 1 || !o.transfer(cdb[0] == 0xb5, binary.BigEndian.Uint16(cdb[2:]), data, erase) {
		return 2, fixedSense(5, 0x24, 0, -1), 0, nil
	}
	return 0, nil, len(data), nil
}

// transfer implements IF-SEND and IF-RECV.
func (o *Opal) transfer(out bool, comID uint16, data []byte, erase func()) bool {
	be := binary.BigEndian
	switch {
	case !out && comID == 1:
		clear(data)
		locking := byte(0x09)
		if o.Locks {
			locking |= 2
		}
		var sid byte
		if o.blocked {
			sid = 2
		}
		f := []byte{0, 1, 0x10, 12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0x10, 12, locking, 0, 0, 0, 0, 0, 0, 0, 0,
			0, 0, 0, 2, 3, 0x20, 16}
		f = be.AppendUint16(f, opalComID)
		f = append(f, 0, 1, 0, 0, 4, 0, 9, 0, 0, 0, 0, 0, 0, 0)
		f = append(f, 4, 2, 0x10, 12, sid, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		be.PutUint32(data, uint32(44+len(f)))
		copy(data[48:], f)
		return true
	case comID != opalComID:
		return false
	case out:
		if len(data)%512 != 0 || be.Uint16(data[4:]) != opalComID || be.Uint32(data[16:]) == 0 {
			return false
		}
		n := be.Uint32(data[52:])
		if be.Uint32(data[16:]) != 36+(n+3)/4*4 || be.Uint32(data[40:]) != 12+(n+3)/4*4 {
			return false
		}
		o.wait = o.Slow
		o.answer = o.perform(be.Uint32(data[20:]), be.Uint32(data[24:]), data[56:56+n], erase)
		return true
	}
	clear(data)
	be.PutUint16(data[4:], opalComID)
	switch {
	case o.wait > 0:
		o.wait--
		be.PutUint32(data[8:], 1)
	case o.answer != nil:
		n := uint32(len(o.answer))
		be.PutUint32(data[16:], 36+(n+3)/4*4)
		be.PutUint32(data[20:], o.session)
		be.PutUint32(data[24:], o.host)
		be.PutUint32(data[40:], 12+(n+3)/4*4)
		be.PutUint32(data[52:], n)
		copy(data[56:], o.answer)
		o.answer = nil
	}
	return true
}

// perform executes one method call and returns the payload of the answer.
func (o *Opal) perform(tsn, hsn uint32, p []byte, erase func()) []byte {
	status := func(code byte) []byte { return []byte{0xf0, 0xf1, 0xf9, 0xf0, code, 0, 0, 0xf1} }
	const notAuthorized, invalid = 0x01, 0x0c
	if len(p) == 1 && p[0] == 0xfa {
		if tsn == o.session {
			o.session = 0
		}
		return []byte{0xfa}
	}
	// A call: two UIDs of eight bytes each, a list, end of data, a status list.
	if len(p) < 27 || p[0] != 0xf8 || p[1] != 0xa8 || p[10] != 0xa8 || p[19] != 0xf0 ||
		!bytes.HasSuffix(p, []byte{0xf1, 0xf9, 0xf0, 0, 0, 0, 0xf1}) {
		return status(invalid)
	}
	on, method, args := binary.BigEndian.Uint64(p[2:]), binary.BigEndian.Uint64(p[11:]), p[20:len(p)-7]
	if on == 0xff && method == 0xff02 {
		return o.startSession(args)
	}
	if o.session == 0 || tsn != o.session || hsn != o.host {
		return status(invalid)
	}
	switch {
	case method == 0x0600000016 && on == 0x0b00008402: // Get the factory password
		return append(append([]byte{0xf0, 0xf0, 0xf2, 3, 0xd0, byte(len(o.MSID))}, o.MSID...), 0xf3, 0xf1, 0xf1, 0xf9,
			0xf0, 0, 0, 0, 0xf1)
	case method == 0x0600000203 && on == 0x020500000002: // Activate the locking SP
		if o.as != "sid" {
			return status(notAuthorized)
		}
		o.Locks = true
		return status(0)
	case method == 0x0600000202 && on == 0x020500000001: // Revert
		if o.as == "" {
			return status(notAuthorized)
		}
		if o.Locks { // else there are no keys to discard
			erase()
		}
		o.Locks, o.Owner, o.session = false, "", 0
		return status(0)
	}
	return status(notAuthorized)
}

func (o *Opal) startSession(args []byte) []byte {
	refused := []byte{0xf8, 0xa8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xa8, 0, 0, 0, 0, 0, 0, 0xff, 3, 0xf0, 0xf1, 0xf9, 0xf0, 1,
		0, 0, 0xf1}
	// Host session number in up to eight bytes, the admin SP, write; then the password and its authority, as named
	// values 0 and 3.
	n := 1
	host := uint32(args[0])
	if args[0]&0xc0 == 0x80 {
		n = 1 + int(args[0]&0xf)
		host = 0
		for _, b := range args[1:n] {
			host = host<<8 | uint32(b)
		}
	}
	rest := args[n:]
	if !bytes.HasPrefix(rest, []byte{0xa8, 0, 0, 2, 5, 0, 0, 0, 1, 1}) || o.session != 0 {
		return refused
	}
	rest = rest[10:]
	o.as = ""
	if len(rest) > 0 {
		if rest[0] != 0xf2 || rest[1] != 0 {
			return refused
		}
		rest = rest[2:]
		var password []byte
		if rest[0]&0xf0 == 0xa0 {
			password, rest = rest[1:1+rest[0]&0xf], rest[1+rest[0]&0xf:]
		} else {
			size := int(rest[0]&7)<<8 | int(rest[1])
			password, rest = rest[2:2+size], rest[2+size:]
		}
		sid := cmp.Or(o.Owner, o.MSID)
		switch {
		case bytes.Equal(rest, []byte{0xf3, 0xf2, 3, 0xa8, 0, 0, 0, 9, 0, 0, 0, 6, 0xf3}) && string(password) == sid &&
			!o.blocked:
			o.as = "sid"
		case bytes.Equal(rest, []byte{0xf3, 0xf2, 3, 0xa8, 0, 0, 0, 9, 0, 1, 0xff, 1, 0xf3}) &&
			string(password) == o.PSID:
			o.as = "psid"
		default:
			return refused
		}
	}
	o.session, o.host = 0x1001, host
	return []byte{0xf8, 0xa8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xa8, 0, 0, 0, 0, 0, 0, 0xff, 3, 0xf0,
		0x84, byte(host >> 24), byte(host >> 16), byte(host >> 8), byte(host), 0x82, 0x10, 0x01, 0xf1, 0xf9, 0xf0, 0, 0,
		0, 0xf1}
}
