package drive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// IsISO tells whether b begins like an ISO 9660 image.
func IsISO(b []byte) bool {
	return len(b) >= (isoFirst+2)*Sector && string(b[isoFirst*Sector+1:isoFirst*Sector+6]) == "CD001"
}

var errISO = errors.New("the ISO 9660 image is damaged")

// ReadISO gives the files of an image that a tenant made. Rock Ridge names are used when there are any, else Joliet's,
// else the plain ones in lower case. Folders are followed to a depth of eight, and each only once, so that no loop and
// no bomb does harm.
func ReadISO(img []byte) ([]File, error) {
	if !IsISO(img) {
		return nil, errISO
	}
	r := &isoReader{img: img, seen: map[uint32]bool{}}
	var primary, joliet []byte
	for sector := isoFirst; sector < isoFirst+32; sector++ {
		d, err := r.at(uint32(sector), Sector)
		if err != nil || string(d[1:6]) != "CD001" || d[0] == 255 {
			break
		}
		switch {
		case d[0] == 1 && primary == nil:
			primary = d
		case d[0] == 2 && joliet == nil && d[88] == '%' && d[89] == '/':
			joliet = d
		}
	}
	if primary == nil || binary.LittleEndian.Uint16(primary[128:]) != Sector {
		return nil, errISO
	}
	root := primary[156:190]
	if !r.hasRockRidge(root) && joliet != nil {
		r.ucs2 = true
		root = joliet[156:190]
	}
	if err := r.walk(root, "", 0); err != nil {
		return nil, err
	}
	return r.files, nil
}

type isoReader struct {
	img   []byte
	ucs2  bool
	seen  map[uint32]bool
	files []File
	total int
}

func (r *isoReader) at(sector uint32, n int) ([]byte, error) {
	off := int64(sector) * Sector
	if n < 0 || off+int64(n) > int64(len(r.img)) {
		return nil, errISO
	}
	return r.img[off : off+int64(n)], nil
}

func extentOf(record []byte) (sector uint32, n int) {
	return binary.LittleEndian.Uint32(record[2:]), int(binary.LittleEndian.Uint32(record[10:]))
}

func (r *isoReader) hasRockRidge(root []byte) bool {
	sector, n := extentOf(root)
	data, err := r.at(sector, min(n, Sector))
	if err != nil || len(data) < 34 || int(data[0]) > len(data) || int(data[0]) < 34 {
		return false
	}
	return bytes.HasPrefix(data[34:data[0]], []byte("SP\x07\x01\xbe\xef"))
}

func (r *isoReader) walk(dir []byte, prefix string, depth int) error {
	sector, n := extentOf(dir)
	if depth > 8 || r.seen[sector] {
		return errISO
	}
	r.seen[sector] = true
	data, err := r.at(sector, n)
	if err != nil {
		return err
	}
	for off := 0; off < len(data); {
		length := int(data[off])
		if length == 0 { // the rest of the sector is empty
			off = (off/Sector + 1) * Sector
			continue
		}
		if length < 34 || off+length > len(data) || 33+int(data[off+32]) > length {
			return errISO
		}
		record := data[off : off+length]
		off += length
		id := record[33 : 33+int(record[32])]
		if len(id) == 1 && id[0] <= 1 {
			continue
		}
		name, err := r.name(record, id)
		if err != nil {
			return err
		}
		if record[25]&2 != 0 {
			if err := r.walk(record, prefix+name+"/", depth+1); err != nil {
				return err
			}
			continue
		}
		at, n := extentOf(record)
		content, err := r.at(at, n)
		if n == 0 {
			content, err = nil, nil // its place may be anywhere
		}
		// Overlapping extents could make many large files of few bytes.
		if r.total += n; err != nil || record[25]&0x80 != 0 || len(r.files) >= MaxFiles || r.total > MaxSize {
			return errISO
		}
		r.files = append(r.files, File{prefix + name, content})
	}
	return nil
}

func (r *isoReader) name(record, id []byte) (string, error) {
	var name string
	if r.ucs2 {
		var u []uint16
		for i := 0; i+1 < len(id); i += 2 {
			u = append(u, binary.BigEndian.Uint16(id[i:]))
		}
		name = string(utf16.Decode(u))
	} else {
		name = strings.ToLower(string(id))
	}
	name, _, _ = strings.Cut(name, ";")
	name = strings.TrimSuffix(name, ".")
	if !r.ucs2 {
		if real := rockName(record, len(id)); real != "" {
			name = real
		}
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") || !utf8.ValidString(name) {
		return "", fmt.Errorf("%w: a file without a proper name", errISO)
	}
	return name, nil
}

// rockName puts the NM entries of a directory record together. One that goes on in a continuation area is not followed:
// names on a config drive are short.
func rockName(record []byte, idLen int) string {
	use := record[33+idLen:]
	if idLen%2 == 0 && len(use) > 0 {
		use = use[1:]
	}
	var name string
	for len(use) >= 4 {
		n := int(use[2])
		if n < 4 || n > len(use) {
			break
		}
		if string(use[:2]) == "NM" && n > 5 {
			name += string(use[5:n])
		}
		use = use[n:]
	}
	return name
}
