package gpt

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// GUID is a GUID in stored form: the first three fields little-endian.
type GUID [16]byte

// Types of partitions.
var (
	ESP      = MustGUID("C12A7328-F81F-11D2-BA4B-00A0C93EC93B")
	BIOSBoot = MustGUID("21686148-6449-6E6F-744E-656564454649")
	// where every operating system looks for a file system
	BasicData = MustGUID("EBD0A0A2-B9E5-4433-87C0-68B6B72699C7")
	Linux     = MustGUID("0FC63DAF-8483-4772-8E79-3D69D8477DE4")
	LinuxRoot = MustGUID("4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709") // of x86-64
	Swap      = MustGUID("0657FD6D-A4AB-43C4-84E5-0933C84B4F4F")
	RAID      = MustGUID("A19D880F-05FC-4D3B-A006-743F0F84911E")
)

// String is the usual form, in capitals.
func (g GUID) String() string {
	return strings.ToUpper(fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(g[:]), le.Uint16(g[4:]), le.Uint16(g[6:]),
		g[8:10], g[10:16]))
}

// OfUUID converts a UUID, whose fields are big-endian, to stored form.
func OfUUID(u [16]byte) GUID {
	slices.Reverse(u[0:4])
	slices.Reverse(u[4:6])
	slices.Reverse(u[6:8])
	return u
}

// ParseGUID parses the usual form.
func ParseGUID(s string) (GUID, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 || len(s) != 36 {
		return GUID{}, fmt.Errorf("%q is not a GUID", s)
	}
	return OfUUID([16]byte(b)), nil
}

// MustGUID is ParseGUID for constants.
func MustGUID(s string) GUID {
	g, err := ParseGUID(s)
	if err != nil {
		panic(err)
	}
	return g
}

// NewGUID returns a random one.
func NewGUID() (g GUID) {
	rand.Read(g[:])         // never fails: crypto/rand ends the program instead
	g[7] = g[7]&0x0f | 0x40 // version 4; the third field is little-endian
	g[8] = g[8]&0x3f | 0x80
	return g
}
