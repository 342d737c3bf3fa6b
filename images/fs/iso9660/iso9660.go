// Package iso9660 reads files of an ISO 9660 image where they lie, as an io/fs.FS: nothing is mounted, and of an image
// on a server only what is asked for is fetched.
//
// It is for images that are booted, so it knows what their loaders know: names by Rock Ridge where there are any, else
// the plain ones in lower case without their version. Symbolic links and files in several extents are not followed. An
// image is somebody else's: every size is bounded, and folders are read as they are asked for, so there is no loop to
// fall into. ECMA-119 and the Rock Ridge Interchange Protocol 1.12 were followed.
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
	"unicode/utf8"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

const (
	sector  = 2048
	first   = 16      // sector of the first volume descriptor
	maxDir  = 4 << 20 // bytes of one folder
	maxDeep = 32
)

// ErrNot says that an image is none, or is damaged.
var ErrNot = errors.New("no ISO 9660 image that can be read")

// FS is an image.
type FS struct {
	r     io.ReaderAt
	root  entry
	rock  bool
	skip  int    // bytes before the entries of the system use field (SP)
	Label string // of the volume
}

// entry is a file or folder.
type entry struct {
	name string
	at   int64
	size int64
	dir  bool
	odd  bool // a link, or in several extents
}

// Open reads an image's descriptor.
func Open(r io.ReaderAt) (*FS, error) {
	d := make([]byte, sector)
	for n := int64(first); n < first+32; n++ {
		if _, err := r.ReadAt(d, n*sector); err != nil {
			return nil, fmt.Errorf("read the image's descriptor: %w", err)
		}
		if string(d[1:6]) != "CD001" || d[0] == 255 {
			break
		}
		if d[0] != 1 {
			continue
		}
		if binary.LittleEndian.Uint16(d[128:]) != sector {
			return nil, fmt.Errorf("%w: its blocks are not of %d bytes", ErrNot, sector)
		}
		f := &FS{r: r, Label: strings.TrimRight(string(d[40:72]), " ")}
		f.root = extent(d[156:190])
		f.root.name, f.root.dir = ".", true
		head, err := f.read(f.root, sector)
		if err != nil {
			return nil, err
		}
		// The root's first record, ".", says whether Rock Ridge is used.
		if len(head) > 34 && int(head[0]) <= len(head) && int(head[0]) >= 41 && string(head[34:38]) == "SP\x07\x01" &&
			head[38] == 0xbe && head[39] == 0xef {
			f.rock, f.skip = true, int(head[40])
		}
		return f, nil
	}
	return nil, ErrNot
}

// extent reads where a record's file is.
func extent(rec []byte) entry {
	return entry{at: int64(binary.LittleEndian.Uint32(rec[2:])) * sector,
		size: int64(binary.LittleEndian.Uint32(rec[10:])), dir: rec[25]&2 != 0, odd: rec[25]&0x80 != 0}
}

// read gives at most limit bytes of a folder.
func (f *FS) read(e entry, limit int64) ([]byte, error) {
	b := make([]byte, min(e.size, limit))
	if n, err := f.r.ReadAt(b, e.at); n < len(b) || err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read folder %s: %w", e.name, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	return b, nil
}

// list gives what is in a folder.
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
			off = (off/sector + 1) * sector
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
		e.name, _, _ = strings.Cut(strings.ToLower(id), ";")
		e.name = strings.TrimSuffix(e.name, ".")
		if f.rock {
			f.rockRidge(rec, len(id), &e)
		}
		if e.name == "" || e.name == "." || e.name == ".." || strings.ContainsAny(e.name, "/\x00") ||
			!utf8.ValidString(e.name) {
			continue // nobody can ask for it
		}
		out = append(out, e)
	}
	return out, nil
}

// rockRidge puts a record's real name together, and sees links. An entry that goes on in a continuation area is not
// followed.
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

// Open opens a file or folder.
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

// Stat describes a file or folder.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	e, err := f.find("stat", name)
	if err != nil {
		return nil, err
	}
	return info(e), nil
}

// ReadDir lists a folder, sorted.
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
	switch {
	case e.dir:
		return openfs.NewInfo(e.name, fs.ModeDir|0o555, e.size)
	case e.odd:
		return openfs.NewInfo(e.name, fs.ModeIrregular|0o444, e.size)
	}
	return openfs.NewInfo(e.name, 0o444, e.size)
}
