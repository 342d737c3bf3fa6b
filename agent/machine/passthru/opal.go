package passthru

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Opal is level 0 discovery's data of a device's TCG security (TCG Storage SSC Feature Sets, Opal SSC 2.01, 3.1.1).
type Opal struct {
	SSC           string // "opal", "opal2", "pyrite", "ruby", "enterprise", or "" if unknown
	LockingActive bool   // the locking SP is active: the drive's locking has an owner
	Locked        bool
	SIDBlocked    bool // the firmware has blocked authentication as owner until the next power cycle

	comID uint16
}

const (
	tcgProtocol  = 0x01
	tcgDiscovery = 0x0001 // ComID of level 0 discovery
	tcgLimit     = 10 * time.Minute
	tcgBuffer    = 2048
)

// security transfers the bytes of a security protocol to or from a device (SPC-5, 6.40 and 6.41; the same in NVMe).
type security func(ctx context.Context, out bool, comID uint16, data []byte) error

func (n *nvme) addOpal(ctx context.Context) error {
	if !n.ctrl.security {
		return nil
	}
	return n.Device.addOpal(ctx, n.security, n.also)
}

func (n *nvme) security(ctx context.Context, out bool, comID uint16, data []byte) error {
	opcode := uint8(nvmeSecurityReceive)
	if out {
		opcode = nvmeSecuritySend
	}
	return n.admin(ctx, opcode, 0, [6]uint32{tcgProtocol<<24 | uint32(comID)<<8, uint32(len(data))}, data, tcgLimit)
}

// security of a SATA drive uses the SCSI commands, which the kernel translates: it rejects TRUSTED SEND in
// pass-through.
func (a *ata) security(ctx context.Context, out bool, comID uint16, data []byte) error {
	return scsi{a.Device}.security(ctx, out, comID, data)
}

func (s scsi) security(ctx context.Context, out bool, comID uint16, data []byte) error {
	const in512 = 0x80 // the length counts 512 bytes
	cdb := []byte{scsiSecurityIn, tcgProtocol, byte(comID >> 8), byte(comID), in512, 0, 0, 0, 0, byte(len(data) / 512),
		0, 0}
	if out {
		cdb[0] = scsiSecurityOut
	}
	status, raw, _, err := s.transport.SCSI(ctx, s.Path, cdb, out, data, tcgLimit)
	if err != nil {
		return err
	}
	return senseError(status, raw)
}

// hasProtocol reads the list of security protocols (SPC-5, 7.7.1.3).
func (s scsi) hasProtocol(ctx context.Context, protocol uint8) bool {
	b, err := s.read(ctx, []byte{scsiSecurityIn, 0, 0, 0, 0x80, 0, 0, 0, 0, 1, 0, 0}, 512)
	if err != nil || len(b) < 8 {
		return false
	}
	n := min(int(binary.BigEndian.Uint16(b[6:])), len(b)-8)
	return slices.Contains(b[8:8+n], protocol)
}

func parseDiscovery(b []byte) (Opal, error) {
	if len(b) < 48 {
		return Opal{}, fmt.Errorf("level 0 discovery has %d bytes", len(b))
	}
	var o Opal
	be := binary.BigEndian
	total := int64(be.Uint32(b)) + 4
	for rest := b[48:max(48, min(int64(len(b)), total))]; len(rest) >= 4; {
		code, n := be.Uint16(rest), 4+int(rest[3])
		if n > len(rest) {
			break
		}
		f := rest[4:n]
		rest = rest[n:]
		if code == 0x0002 && len(f) >= 1 {
			o.LockingActive, o.Locked = f[0]&2 != 0, f[0]&4 != 0
		}
		if code == 0x0402 && len(f) >= 1 {
			o.SIDBlocked = f[0]&2 != 0
		}
		name := map[uint16]string{0x0100: "enterprise", 0x0200: "opal", 0x0203: "opal2", 0x0302: "pyrite",
			0x0303: "pyrite", 0x0304: "ruby"}[code]
		if name != "" && len(f) >= 2 && (o.SSC == "" || name == "opal2") {
			o.SSC, o.comID = name, be.Uint16(f)
		}
	}
	return o, nil
}

// addOpal adds the revert if the device supports it. A device that announces TCG but does not answer is left without.
func (d *Device) addOpal(ctx context.Context, sec security, also []string) error {
	buf := make([]byte, tcgBuffer)
	if err := sec(ctx, false, tcgDiscovery, buf); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return nil
	}
	o, err := parseDiscovery(buf)
	if err != nil || o.SSC == "" {
		return nil
	}
	d.Opal = &o
	// These encrypt all data, and a revert changes the key. Pyrite does not encrypt, Enterprise has no Revert.
	if !slices.Contains([]string{"opal", "opal2", "ruby"}, o.SSC) {
		return nil
	}
	m := Method{Name: "opal_revert", Level: Purge, LeavesNoise: true, Also: also}
	switch {
	case o.SIDBlocked && d.opt.PSID == "":
		m.Blocked = step.Failf(
			"switch off \"Block SID\" in the firmware's setup and power cycle the machine, or give the drive's PSID",
			"the firmware has blocked authentication as the drive's owner")
	case o.LockingActive && d.opt.PSID == "":
		m.Blocked = step.Failf("give the drive's PSID, which is printed on its label",
			"the drive's locking has an owner")
	}
	var call background
	m.start = func(ctx context.Context) error {
		return call.start(ctx, func(ctx context.Context) error { return d.revert(ctx, sec) })
	}
	m.progress = func(context.Context) (Status, error) {
		over, err := call.ended()
		if err != nil {
			return Status{}, step.Fail(step.AsError(err).Remedy, fmt.Errorf("%w: %w", ErrFailed, err))
		}
		if !over {
			return Status{Percent: -1}, nil
		}
		return Status{Percent: 100, Done: true}, nil
	}
	d.methods = append(d.methods, m)
	return nil
}

// UIDs of the Opal SSC (TCG Core 2.01, table 240; Opal SSC 2.01, 4.2 and 4.3).
var (
	uidSession       = uid{0, 0, 0, 0, 0, 0, 0, 0xff}
	uidAdminSP       = uid{0, 0, 2, 5, 0, 0, 0, 1}
	uidLockingSP     = uid{0, 0, 2, 5, 0, 0, 0, 2}
	uidSID           = uid{0, 0, 0, 9, 0, 0, 0, 6}
	uidPSID          = uid{0, 0, 0, 9, 0, 1, 0xff, 1}
	uidPINofMSID     = uid{0, 0, 0, 0x0b, 0, 0, 0x84, 2}
	uidStartSession  = uid{0, 0, 0, 0, 0, 0, 0xff, 2}
	uidSyncSession   = uid{0, 0, 0, 0, 0, 0, 0xff, 3}
	uidMethodGet     = uid{0, 0, 0, 6, 0, 0, 0, 0x16}
	uidMethodRevert  = uid{0, 0, 0, 6, 0, 0, 2, 2}
	uidMethodActivat = uid{0, 0, 0, 6, 0, 0, 2, 3}
)

type uid [8]byte

const tcgHostSession = 0x49 // any number: identifies the host's side of the session

// revert resets the drive to its factory state, which discards its keys. A revert changes them only if the locking SP
// is active (Opal SSC 2.01, 5.1.2.2), so on a drive without an owner it is activated first. If interrupted after that,
// the drive still has its factory password, and the next revert works with it.
func (d *Device) revert(ctx context.Context, sec security) error {
	o := *d.Opal
	if d.opt.PSID != "" {
		err := d.inSession(ctx, sec, o.comID, uidPSID, psid(d.opt.PSID), func(s *session) error {
			_, err := s.call(ctx, uidAdminSP, uidMethodRevert, nil)
			s.gone = err == nil // the device ends the session itself
			return err
		})
		if err != nil {
			return step.Fail("compare the PSID with the drive's label", fmt.Errorf("revert by PSID: %w", err))
		}
		if o.LockingActive {
			return nil
		}
	}
	const owned = "give the drive's PSID, which is printed on its label"
	var msid []byte
	err := d.inSession(ctx, sec, o.comID, uid{}, nil, func(s *session) error {
		got, err := s.call(ctx, uidPINofMSID, uidMethodGet, cells(3, 3))
		if err != nil {
			return err
		}
		msid, err = cell(got, 3)
		return err
	})
	if err != nil {
		return step.Fail(owned, fmt.Errorf("read the factory password: %w", err))
	}
	err = d.inSession(ctx, sec, o.comID, uidSID, msid, func(s *session) error {
		if _, err := s.call(ctx, uidLockingSP, uidMethodActivat, nil); err != nil {
			return fmt.Errorf("activate the locking SP: %w", err)
		}
		_, err := s.call(ctx, uidAdminSP, uidMethodRevert, nil)
		s.gone = err == nil
		return err
	})
	if err != nil {
		return step.Fail(owned, fmt.Errorf("revert by the factory password: %w", err))
	}
	return nil
}

// psid returns the key in the drive's format: labels show it in groups.
func psid(label string) []byte {
	return []byte(strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(label)))
}

// session is a session with the admin SP.
type session struct {
	sec   security
	comID uint16
	tsn   uint32 // the device's session number; zero before it is open
	hsn   uint32
	gone  bool
}

// inSession opens a session, authenticated or anonymous, and closes it after f.
func (d *Device) inSession(ctx context.Context, sec security, comID uint16, as uid, password []byte,
	f func(*session) error) error {
	s := &session{sec: sec, comID: comID}
	args := appendUint(nil, tcgHostSession)
	args = appendBytes(args, uidAdminSP[:])
	args = appendUint(args, 1) // for writing
	if as != (uid{}) {
		args = appendNamed(args, 0, appendBytes(nil, password))
		args = appendNamed(args, 3, appendBytes(nil, as[:]))
	}
	got, err := s.exchange(ctx, methodCall(uidSession, uidStartSession, args))
	if err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	if s.hsn, s.tsn, err = syncSession(got); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	err = f(s)
	if !s.gone {
		_, _ = s.exchange(ctx, []byte{tokenEndOfSession}) // a session left open ends by its own timeout
	}
	return err
}

func (s *session) call(ctx context.Context, on, method uid, args []byte) ([]token, error) {
	got, err := s.exchange(ctx, methodCall(on, method, args))
	if err != nil {
		return nil, err
	}
	return got, methodStatus(got)
}

// exchange sends a packet and polls for the answer (TCG Core 2.01, 3.2.3 and 3.3.10.2.1).
func (s *session) exchange(ctx context.Context, payload []byte) ([]token, error) {
	if err := s.sec(ctx, true, s.comID, appendPacket(s, payload)); err != nil {
		return nil, err
	}
	const polls, every = 6000, 10 * time.Millisecond
	for range polls {
		buf := make([]byte, tcgBuffer)
		if err := s.sec(ctx, false, s.comID, buf); err != nil {
			return nil, err
		}
		body, outstanding, err := parsePacket(buf)
		if err != nil {
			return nil, err
		}
		if len(body) > 0 {
			return parseTokens(body)
		}
		if outstanding == 0 {
			return nil, errors.New("the device has no answer")
		}
		if err := step.Sleep(ctx, every); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the device is still at it")
}

// appendPacket wraps a payload in subpacket, packet and ComPacket, and pads it to whole blocks.
func appendPacket(s *session, payload []byte) []byte {
	padded := uint32(len(payload)+3) / 4 * 4
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, struct { // into memory
		_             uint32
		ComID, _      uint16
		_             [2]uint32 // outstanding, least transfer
		Length        uint32
		TSN, HSN      uint32
		_             [3]uint32 // sequence, kind of acknowledgement, acknowledged
		PacketLength  uint32
		_             [2]uint32 // reserved, kind
		PayloadLength uint32
	}{ComID: s.comID, Length: 24 + 12 + padded, TSN: s.tsn, HSN: s.hsn, PacketLength: 12 + padded,
		PayloadLength: uint32(len(payload))})
	b.Write(payload)
	return append(b.Bytes(), make([]byte, 511-(b.Len()-1)%512)...)
}

// parsePacket unwraps a packet; outstanding is the number of bytes still to be read from the device.
func parsePacket(b []byte) (payload []byte, outstanding uint32, err error) {
	if len(b) < 20 {
		return nil, 0, fmt.Errorf("a packet of %d bytes", len(b))
	}
	be := binary.BigEndian
	outstanding = be.Uint32(b[8:])
	if be.Uint32(b[16:]) == 0 {
		return nil, outstanding, nil
	}
	if len(b) < 56 {
		return nil, 0, fmt.Errorf("a packet of %d bytes", len(b))
	}
	n := be.Uint32(b[52:])
	if int64(n) > int64(len(b)-56) {
		return nil, 0, fmt.Errorf("a packet announces %d bytes, more than there are", n)
	}
	return b[56 : 56+n], outstanding, nil
}

// Control tokens (TCG Core 2.01, 3.2.2.4).
const (
	tokenStartList    = 0xf0
	tokenEndList      = 0xf1
	tokenStartName    = 0xf2
	tokenEndName      = 0xf3
	tokenCall         = 0xf8
	tokenEndOfData    = 0xf9
	tokenEndOfSession = 0xfa
	tokenEmpty        = 0xff
)

// token is a control token, a number or bytes.
type token struct {
	control byte // zero for a value
	bytes   []byte
	number  uint64
	isBytes bool
}

// parseTokens reads a stream of tokens (TCG Core 2.01, 3.2.2.3).
func parseTokens(b []byte) ([]token, error) {
	var out []token
	for len(b) > 0 {
		c := b[0]
		var head, n int
		isBytes := false
		switch {
		case c < 0x80: // tiny atom: six bits
			if c&0x40 != 0 {
				return nil, errors.New("a negative number, which no answer has")
			}
			out, b = append(out, token{number: uint64(c & 0x3f)}), b[1:]
			continue
		case c < 0xc0: // short atom
			head, n, isBytes = 1, int(c&0xf), c&0x20 != 0
		case c < 0xe0: // medium atom
			if len(b) < 2 {
				return nil, errors.New("an atom is cut off")
			}
			head, n, isBytes = 2, int(c&7)<<8|int(b[1]), c&0x10 != 0
		case c < 0xe4: // long atom
			if len(b) < 4 {
				return nil, errors.New("an atom is cut off")
			}
			head, n, isBytes = 4, int(b[1])<<16|int(b[2])<<8|int(b[3]), c&2 != 0
		case c == tokenEmpty:
			b = b[1:]
			continue
		case c >= tokenStartList:
			out, b = append(out, token{control: c}), b[1:]
			continue
		default:
			return nil, fmt.Errorf("token 0x%02x is reserved", c)
		}
		if head+n > len(b) {
			return nil, errors.New("an atom is cut off")
		}
		t := token{bytes: b[head : head+n], isBytes: isBytes}
		if !isBytes {
			if n > 8 {
				return nil, fmt.Errorf("a number of %d bytes", n)
			}
			for _, v := range t.bytes {
				t.number = t.number<<8 | uint64(v)
			}
			t.bytes = nil
		}
		out, b = append(out, t), b[head+n:]
	}
	return out, nil
}

func appendUint(b []byte, v uint64) []byte {
	if v < 64 {
		return append(b, byte(v))
	}
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], v)
	short := bytes.TrimLeft(raw[:], "\x00")
	return append(append(b, 0x80|byte(len(short))), short...)
}

func appendBytes(b, v []byte) []byte {
	if len(v) < 16 {
		return append(append(b, 0xa0|byte(len(v))), v...)
	}
	return append(append(b, 0xd0|byte(len(v)>>8&7), byte(len(v))), v...)
}

func appendNamed(b []byte, name uint64, value []byte) []byte {
	b = appendUint(append(b, tokenStartName), name)
	return append(append(b, value...), tokenEndName)
}

// cells returns the argument of Get: columns from to to.
func cells(from, to uint64) []byte {
	b := appendNamed([]byte{tokenStartList}, 3, appendUint(nil, from))
	return append(appendNamed(b, 4, appendUint(nil, to)), tokenEndList)
}

func methodCall(on, method uid, args []byte) []byte {
	b := appendBytes([]byte{tokenCall}, on[:])
	b = appendBytes(b, method[:])
	b = append(append(append(b, tokenStartList), args...), tokenEndList)
	return append(b, tokenEndOfData, tokenStartList, 0, 0, 0, tokenEndList)
}

// methodStatus reads the status list at the end of an answer.
func methodStatus(t []token) error {
	i := slices.IndexFunc(t, func(t token) bool { return t.control == tokenEndOfData })
	if i < 0 || i+2 >= len(t) || t[i+1].control != tokenStartList || t[i+2].control != 0 {
		return errors.New("the device's answer has no status")
	}
	code := t[i+2].number
	if code == 0 {
		return nil
	}
	name := cmp.Or(map[uint64]string{0x01: "not authorized", 0x03: "busy", 0x05: "disabled", 0x0c: "invalid parameter",
		0x12: "locked out after too many tries"}[code], "see TCG Core, table 166")
	return fmt.Errorf("TCG status 0x%02x (%s)", code, name)
}

// syncSession returns both sides' session numbers from the answer to StartSession.
func syncSession(t []token) (host, device uint32, err error) {
	if err := methodStatus(t); err != nil {
		return 0, 0, err
	}
	if len(t) < 6 || t[0].control != tokenCall || !bytes.Equal(t[2].bytes, uidSyncSession[:]) ||
		t[3].control != tokenStartList ||
		t[4].control != 0 || t[4].isBytes || t[5].control != 0 || t[5].isBytes || t[4].number != tcgHostSession {
		return 0, 0, errors.New("the device does not answer with a session")
	}
	return uint32(t[4].number), uint32(t[5].number), nil
}

// cell returns a column's bytes from the answer to Get.
func cell(t []token, column uint64) ([]byte, error) {
	for i := 0; i+2 < len(t); i++ {
		if t[i].control == tokenStartName && t[i+1].control == 0 && !t[i+1].isBytes && t[i+1].number == column &&
			t[i+2].isBytes {
			return t[i+2].bytes, nil
		}
	}
	return nil, errors.New("the device does not return the value")
}
