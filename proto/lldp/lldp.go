// Package lldp parses a switch's announcements about the port that a machine is connected to. The agent and the
// conductor share it: the agent receives the frames, the conductor stores their content and links ports to switches
// with it.
//
// With the Link Layer Discovery Protocol (IEEE 802.1AB-2016) every switch sends a frame to each of its ports, usually
// every thirty seconds: a list of TLVs, each a type and up to 511 bytes. Parse splits a frame into TLVs and refuses one
// that is truncated or lacks a mandatory TLV; Describe parses the known ones: the basic ones, those of IEEE 802.1 and
// 802.3, and LLDP-MED (ANSI/TIA-1057). Unknown or malformed TLVs are not described and stay in the list. Names in the
// description are those of Ironic's hook parse-lldp, and its values for the same bytes are the same, except for two
// faults of it: it takes 10BASE-T full duplex from the bit of half duplex, and it drops a whole TLV with a medium newer
// than its table.
package lldp

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// EtherType of LLDP frames.
const EtherType = 0x88cc

// Types of TLVs.
const (
	typeEnd, typeChassis, typePort, typeTTL                  = 0, 1, 2, 3
	typePortDescription, typeSystemName, typeSystemDescribed = 4, 5, 6
	typeCapabilities, typeAddress, typeOrganization          = 7, 8, 127
)

// TLV is one element of a frame. In JSON it is a pair, the type and the value in hexadecimal digits, as
// ironic-python-agent sends it.
type TLV struct {
	Type  uint8
	Value []byte
}

// MarshalJSON encodes the pair.
func (t TLV) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{t.Type, hex.EncodeToString(t.Value)})
}

// UnmarshalJSON decodes MarshalJSON's form.
func (t *TLV) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a TLV is a type and a value, not %d things", len(pair))
	}
	var digits string
	if err := errors.Join(json.Unmarshal(pair[0], &t.Type), json.Unmarshal(pair[1], &digits)); err != nil {
		return err
	}
	var err error
	t.Value, err = hex.DecodeString(digits)
	return err
}

// Errors of frames that are not LLDP, or incomplete.
var (
	ErrNotLLDP = errors.New("not an LLDP frame")
	ErrBroken  = errors.New("broken LLDP frame")
)

// Parse splits an Ethernet frame, with or without VLAN tags, into its TLVs. The first three must be the chassis, the
// port and the time to live, as the standard requires. The end marker is included if present; the bytes after it are
// padding.
func Parse(frame []byte) ([]TLV, error) {
	const header = 14
	if len(frame) < header {
		return nil, fmt.Errorf("%w: %d bytes", ErrNotLLDP, len(frame))
	}
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[header:]
	for tags := 0; (kind == 0x8100 || kind == 0x88a8) && len(rest) >= 4 && tags < 2; tags++ {
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	if kind != EtherType {
		return nil, fmt.Errorf("%w: type %#04x", ErrNotLLDP, kind)
	}
	var all []TLV
	for len(rest) >= 2 {
		head := binary.BigEndian.Uint16(rest)
		t, n := uint8(head>>9), int(head&0x1ff)
		if rest = rest[2:]; n > len(rest) {
			return nil, fmt.Errorf("%w: a TLV of type %d has %d bytes, and %d are left", ErrBroken, t, n, len(rest))
		}
		all = append(all, TLV{Type: t, Value: append([]byte{}, rest[:n]...)})
		if rest = rest[n:]; t == typeEnd {
			break
		}
	}
	for i, t := range []uint8{typeChassis, typePort, typeTTL} {
		if i >= len(all) || all[i].Type != t {
			return nil, fmt.Errorf("%w: it has no chassis, port and time to live at its beginning", ErrBroken)
		}
	}
	return all, nil
}

// Leaving reports whether a neighbour announces that it leaves: a time to live of zero.
func Leaving(all []TLV) bool {
	return len(all) > 2 && len(all[2].Value) >= 2 && binary.BigEndian.Uint16(all[2].Value) == 0
}
