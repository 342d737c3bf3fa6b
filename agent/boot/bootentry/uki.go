package bootentry

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// uki is a unified kernel image: a PE file with Linux in its sections.
type uki struct {
	linux   File
	initrds []File
	cmdline string
	release map[string]string // os-release
	uname   string
}

var errNoUKI = errors.New("not a unified kernel image")

const maxSections = 96

// parseUKI reads the sections of a PE file of size bytes. Of a section's two sizes the smaller counts: the rest is
// padding. debug/pe is not used, because it is not made for untrusted files.
func parseUKI(r io.ReaderAt, size int64, file File) (*uki, error) {
	le := binary.LittleEndian
	var dos [64]byte
	if _, err := r.ReadAt(dos[:], 0); err != nil || dos[0] != 'M' || dos[1] != 'Z' {
		return nil, errNoUKI
	}
	at := int64(le.Uint32(dos[60:]))
	var head [24]byte
	if at > size || at > 1<<20 {
		return nil, errNoUKI
	}
	if _, err := r.ReadAt(head[:], at); err != nil || !bytes.HasPrefix(head[:], []byte("PE\x00\x00")) {
		return nil, errNoUKI
	}
	n := int(le.Uint16(head[6:]))
	if n == 0 || n > maxSections {
		return nil, errNoUKI
	}
	table := make([]byte, 40*n)
	if _, err := r.ReadAt(table, at+24+int64(le.Uint16(head[20:]))); err != nil {
		return nil, errNoUKI
	}
	sections := map[string]File{}
	for row := range slices.Chunk(table, 40) {
		name := strings.TrimRight(string(row[:8]), "\x00")
		virtual, raw, off := int64(le.Uint32(row[8:])), int64(le.Uint32(row[16:])), int64(le.Uint32(row[20:]))
		n := min(virtual, raw)
		if _, ok := sections[".linux"]; ok && name == ".profile" {
			break // variants follow; the first one is the default
		}
		switch _, seen := sections[name]; {
		case seen || !slices.Contains(ukiSections, name):
		case off < 0 || n <= 0 && name != ".cmdline" || off+n > size:
			return nil, fmt.Errorf("%s is damaged: its section %s lies outside", file.Path, name)
		default:
			sections[name] = File{Volume: file.Volume, Path: file.Path, Offset: off, Size: n}
		}
	}
	u := &uki{release: map[string]string{}}
	var ok bool
	if u.linux, ok = sections[".linux"]; !ok {
		return nil, errNoUKI
	}
	if part, ok := sections[".initrd"]; ok {
		u.initrds = []File{part}
	}
	var release string
	for _, s := range []struct {
		name string
		into *string
	}{{".cmdline", &u.cmdline}, {".uname", &u.uname}, {".osrel", &release}} {
		part := sections[s.name]
		if part.Size > 64<<10 {
			return nil, fmt.Errorf("%s: a section of text has %d bytes", file.Path, part.Size)
		}
		b := make([]byte, part.Size)
		if _, err := r.ReadAt(b, part.Offset); err != nil {
			return nil, fmt.Errorf("read %s: %w", file.Path, err)
		}
		*s.into = strings.TrimSpace(strings.TrimRight(string(b), "\x00"))
	}
	for line := range strings.Lines(release) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		u.release[k] = strings.Trim(v, `"'`)
	}
	return u, nil
}

var ukiSections = []string{".linux", ".initrd", ".cmdline", ".osrel", ".uname"}

// openUKI opens a unified kernel image; errNoUKI if the file is none.
func (d *disk) openUKI(vol int, name string) (*uki, error) {
	if d.files--; d.files < 0 {
		return nil, fmt.Errorf("more than %d files would have to be read", maxFiles)
	}
	f, err := d.open(vol, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	r, ok := f.(io.ReaderAt)
	if !ok {
		return nil, fmt.Errorf("read %s: this file system's files can't be read in parts", name)
	}
	return parseUKI(r, fi.Size(), File{Volume: vol, Path: clean(name)})
}

// ukisIn returns the entries of type 2 of a volume.
func (d *disk) ukisIn(vol int) ([]*blsEntry, error) {
	var out []*blsEntry
	const dir = "EFI/Linux"
	for _, name := range d.list(vol, dir, ".efi") {
		file := path.Join(dir, name)
		u, err := d.openUKI(vol, file)
		if errors.Is(err, errNoUKI) {
			continue
		}
		if err != nil {
			return nil, err
		}
		e := newEntry(vol, file, path.Ext(name))
		e.uki, e.options, e.machine = u, u.cmdline, u.release["MACHINE_ID"]
		e.title = u.release["PRETTY_NAME"]
		e.sortKey = cmp.Or(u.release["IMAGE_ID"], u.release["ID"])
		e.version = cmp.Or(u.uname, u.release["IMAGE_VERSION"], u.release["VERSION_ID"])
		out = append(out, e)
	}
	return out, nil
}

// fallbackUKI handles disks without a boot manager: the firmware starts the image itself, at the fallback path.
func (d *disk) fallbackUKI() (*Entry, error) {
	for i, v := range d.vols {
		if !v.ESP {
			continue
		}
		file := "EFI/BOOT/BOOT" + strings.ToUpper(d.m.efiName()) + ".EFI"
		if !d.isFile(i, file) {
			continue
		}
		u, err := d.openUKI(i, file)
		if errors.Is(err, errNoUKI) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &Entry{From: "UKI", Config: file, Title: u.release["PRETTY_NAME"], Kernel: u.linux, Initrds: u.initrds,
			Cmdline: strings.Join(strings.Fields(u.cmdline), " ")}, nil
	}
	return nil, fs.ErrNotExist
}
