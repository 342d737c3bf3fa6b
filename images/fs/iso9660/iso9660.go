// Package iso9660 reads files of an ISO 9660 image on demand, as an io/fs.FS, and makes images. Nothing is mounted, and
// of an image on a server only the requested parts are fetched.
//
// Names are Rock Ridge's if present, else Joliet's if requested, else the plain ones in lower case without their
// version. Symbolic links and files in several extents are not followed. Images are untrusted: every size is bounded,
// and directories are read on demand, so there can be no loop; a caller that walks an image must bound the walk. The
// sources are ECMA-119 (ISO 9660), the Joliet specification of 1995 and the Rock Ridge Interchange Protocol 1.12.
package iso9660

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

const (
	first   = 16      // sector of the first volume descriptor
	maxDir  = 4 << 20 // bytes of one directory
	maxDeep = 32
)

// ErrNot means that it is no ISO 9660 image, or a damaged one.
var ErrNot = errors.New("no ISO 9660 image that can be read")

// FS is an image.
type FS struct {
	r     io.ReaderAt
	root  entry
	rock  bool
	ucs2  bool   // Joliet
	skip  int    // bytes before the entries of the system use field (SP)
	Label string // of the volume
}

// entry is a file or directory.
type entry struct {
	name string
	at   int64
	size int64
	dir  bool
	odd  bool // a link, or in several extents
}

// Is reports whether b is the beginning of an image.
func Is(b []byte) bool {
	return len(b) >= (first+2)*Sector && string(b[first*Sector+1:first*Sector+6]) == "CD001"
}

// Open reads an image's descriptor. Joliet's names are not used: the loaders on boot images don't know them.
func Open(r io.ReaderAt) (*FS, error) { return open(r, false) }

// OpenJoliet is Open with Joliet's names, if there are any and none of Rock Ridge.
func OpenJoliet(r io.ReaderAt) (*FS, error) { return open(r, true) }

func open(r io.ReaderAt, joliet bool) (*FS, error) {
	var f *FS
	for n := int64(first); n < first+32; n++ {
		d := make([]byte, Sector)
		if _, err := r.ReadAt(d, n*Sector); err != nil && f == nil {
			return nil, fmt.Errorf("read the image's descriptor: %w", err)
		}
		if string(d[1:6]) != "CD001" || d[0] == 255 {
			break
		}
		switch {
		case d[0] == 1 && f == nil:
			if binary.LittleEndian.Uint16(d[128:]) != Sector {
				return nil, fmt.Errorf("%w: its blocks are not of %d bytes", ErrNot, Sector)
			}
			f = &FS{r: r, Label: strings.TrimRight(string(d[40:72]), " ")}
			f.setRoot(d)
			head, err := f.read(f.root, Sector)
			if err != nil {
				return nil, err
			}
			// The root's first record, ".", shows whether Rock Ridge is used.
			if len(head) > 34 && int(head[0]) <= len(head) && int(head[0]) >= 41 &&
				string(head[34:38]) == "SP\x07\x01" && head[38] == 0xbe && head[39] == 0xef {
				f.rock, f.skip = true, int(head[40])
			}
		case d[0] == 2 && d[88] == '%' && d[89] == '/' && f != nil && joliet && !f.rock && !f.ucs2:
			f.ucs2 = true
			f.setRoot(d)
		}
	}
	if f == nil {
		return nil, ErrNot
	}
	return f, nil
}

func (f *FS) setRoot(descriptor []byte) {
	f.root = extent(descriptor[156:190])
	f.root.name, f.root.dir = ".", true
}

// extent returns the place of a record's file.
func extent(rec []byte) entry {
	return entry{at: int64(binary.LittleEndian.Uint32(rec[2:])) * Sector,
		size: int64(binary.LittleEndian.Uint32(rec[10:])), dir: rec[25]&2 != 0, odd: rec[25]&0x80 != 0}
}

// read returns at most limit bytes of a directory.
func (f *FS) read(e entry, limit int64) ([]byte, error) {
	b := make([]byte, min(e.size, limit))
	if n, err := f.r.ReadAt(b, e.at); n < len(b) || err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read folder %s: %w", e.name, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return b, nil
}

// list returns the entries of a directory.
func (f *FS) list(dir entry) ([]entry, error) {
	if dir.size > maxDir {
		return nil, fmt.Errorf("%w: folder %s has %d bytes", ErrNot, dir.name, dir.size)
	}
	data, err := f.read(dir, maxDir)
	if err != nil {
		return nil, err
	}
	var out []entry
	for off := 0; off < len(data); {
		length := int(data[off])
		if length == 0 { // the rest of the sector is empty
			off = (off/Sector + 1) * Sector
			continue
		}
		if length < 34 || off+length > len(data) || 33+int(data[off+32]) > length {
			return nil, fmt.Errorf("%w: folder %s is damaged", ErrNot, dir.name)
		}
		rec := data[off : off+length]
		off += length
		id := string(rec[33 : 33+int(rec[32])])
		if id == "\x00" || id == "\x01" {
			continue
		}
		e := extent(rec)
		e.name = strings.ToLower(id)
		if f.ucs2 {
			e.name = fromUCS2(id)
		}
		e.name, _, _ = strings.Cut(e.name, ";")
		e.name = strings.TrimSuffix(e.name, ".")
		if f.rock {
			f.rockRidge(rec, len(id), &e)
		}
		// Characters that are invalid in a path are replaced, so that a copy has all files.
		e.name = strings.NewReplacer("/", "_", "\x00", "_").Replace(strings.ToValidUTF8(e.name, "_"))
		if e.name == "" || e.name == "." || e.name == ".." {
			e.name = "_"
		}
		out = append(out, e)
	}
	return out, nil
}

func fromUCS2(s string) string {
	var u []uint16
	for i := 0; i+1 < len(s); i += 2 {
		u = append(u, uint16(s[i])<<8|uint16(s[i+1]))
	}
	return string(utf16.Decode(u))
}

// rockRidge sets a record's real name, and detects links. Continuation areas are not followed.
func (f *FS) rockRidge(rec []byte, idLen int, e *entry) {
	use := rec[33+idLen:]
	if idLen%2 == 0 && len(use) > 0 {
		use = use[1:]
	}
	if len(use) < f.skip {
		return
	}
	use = use[f.skip:]
	name := ""
	for len(use) >= 4 {
		n := int(use[2])
		if n < 4 || n > len(use) {
			break
		}
		switch string(use[:2]) {
		case "NM":
			if n > 5 {
				name += string(use[5:n])
			}
		case "SL":
			e.odd = true
		}
		use = use[n:]
	}
	if name != "" {
		e.name = name
	}
}

func (f *FS) find(op, name string) (entry, error) {
	fail := func(err error) (entry, error) { return entry{}, &fs.PathError{Op: op, Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return fail(fs.ErrInvalid)
	}
	at := f.root
	if name == "." {
		return at, nil
	}
	parts := strings.Split(name, "/")
	if len(parts) > maxDeep {
		return fail(fs.ErrNotExist)
	}
	for _, part := range parts {
		if !at.dir {
			return fail(fs.ErrNotExist)
		}
		list, err := f.list(at)
		if err != nil {
			return fail(err)
		}
		i := slices.IndexFunc(list, func(e entry) bool { return e.name == part })
		if i < 0 && !f.rock { // plain names have no case
			i = slices.IndexFunc(list, func(e entry) bool { return strings.EqualFold(e.name, part) })
		}
		if i < 0 {
			return fail(fs.ErrNotExist)
		}
		at = list[i]
	}
	return at, nil
}

// Open opens a file or directory.
func (f *FS) Open(name string) (fs.File, error) {
	e, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	if e.odd {
		return nil, &fs.PathError{
			Op: "open", Path: name,
			Err: errors.New("a symbolic link, or a file in several pieces, which is not read here")}
	}
	if e.dir {
		return f.folder(e), nil
	}
	return openfs.NewFile(info(e), func(b []byte, off int64) (int, error) {
		n, err := f.r.ReadAt(b, e.at+off)
		if err == io.EOF && n < len(b) {
			err = io.ErrUnexpectedEOF // the image ends before its file does
		} else if n == len(b) {
			err = nil
		}
		return n, err
	}), nil
}

// Stat describes a file or directory.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	e, err := f.find("stat", name)
	if err != nil {
		return nil, err
	}
	return info(e), nil
}

// ReadDir lists a directory, sorted.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := f.find("readdir", name)
	if err == nil && !e.dir {
		err = &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a folder")}
	}
	if err != nil {
		return nil, err
	}
	return f.folder(e).ReadDir(-1)
}

func (f *FS) folder(e entry) *openfs.Dir {
	return openfs.NewDir(info(e), func() ([]fs.DirEntry, error) {
		list, err := f.list(e)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })
		list = slices.CompactFunc(list, func(a, b entry) bool { return a.name == b.name })
		out := make([]fs.DirEntry, len(list))
		for i, e := range list {
			out[i] = info(e)
		}
		return out, nil
	})
}

func info(e entry) openfs.Info {
	if e.dir {
		return openfs.NewInfo(e.name, fs.ModeDir|0o555, e.size)
	}
	if e.odd {
		return openfs.NewInfo(e.name, fs.ModeIrregular|0o444, e.size)
	}
	return openfs.NewInfo(e.name, 0o444, e.size)
}
