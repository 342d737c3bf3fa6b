package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// ErrFull means that the file system has too little space; ErrCant that it is readable but can't be changed here.
var (
	ErrFull = errors.New("no room is left in the FAT file system")
	ErrCant = errors.New("the FAT file system can't be changed here")
)

// Device holds a file system.
type Device = openfs.Device

const (
	maxTable  = 32 << 20
	maxStaged = 256 << 20
)

// Writer puts files into an unmounted file system. Everything is done in memory until Commit: an error leaves the file
// system unchanged, and the Writer unusable. Commit writes content first, then the FATs, then the directories: a power
// cut leaves clusters that belong to no file, which fsck.fat frees, or a partly updated directory.
type Writer struct {
	fs     *FS
	dev    Device
	now    time.Time
	err    error
	fats   int
	info   int64 // offset of the FSInfo sector; 0: none
	table  []byte
	dirty  map[int]bool      // sectors of the table
	dirs   map[uint32]*wdir  // by their first cluster; 0 is the root
	data   map[uint32][]byte // clusters
	staged int64
	hint   uint32 // where the search for free clusters starts
}

// wdir is a directory in memory.
type wdir struct {
	first   uint32   // 0 is the root
	chain   []uint32 // nil for a root without a chain
	raw     []byte
	old     int // number of its clusters already on the disk
	changed bool
}

// OpenWriter opens the file system that fills dev, which has size bytes, for changes. now is the time of changed files.
func OpenWriter(dev Device, size int64, now time.Time) (*Writer, error) {
	fs, err := Open(dev, size)
	if err != nil {
		return nil, err
	}
	w := &Writer{fs: fs, dev: dev, now: now, fats: int(fs.boot.FATs), dirty: map[int]bool{}, dirs: map[uint32]*wdir{},
		data: map[uint32][]byte{}, hint: 2}
	if fs.bits == 32 {
		const notMirrored = 0x80
		if fs.boot.Flags&notMirrored != 0 {
			return nil, fmt.Errorf("%w: its FATs are not kept alike", ErrCant)
		}
		if fs.boot.Info < fs.boot.Reserved {
			w.info = int64(fs.boot.Info) * int64(fs.sector)
		}
	}
	need := ((int64(fs.clusters)+2)*int64(fs.bits) + 7) / 8
	need = (need + int64(fs.sector) - 1) / int64(fs.sector) * int64(fs.sector)
	if need > fs.tableSize {
		return nil, fmt.Errorf("%w: its FAT is too short", ErrNot)
	}
	if need > maxTable {
		return nil, fmt.Errorf("%w: its FAT has %d bytes", ErrCant, need)
	}
	w.table = make([]byte, need)
	if _, err := dev.ReadAt(w.table, fs.table); err != nil {
		return nil, fmt.Errorf("read the FAT: %w", err)
	}
	return w, nil
}

// Unclean reports whether the file system was not unmounted cleanly, or has errors, so that its state on the disk may
// be incomplete. Linux marks that in the boot sector, others in the second entry of the FAT.
func (w *Writer) Unclean() bool {
	const dirty = 1
	sound := map[width]uint32{16: 3 << 14, 32: 3 << 26}[w.fs.bits] // 12 bits have no room for it
	return w.fs.unclean&dirty != 0 || w.get(1)&sound != sound
}

func (w *Writer) get(c uint32) uint32 { return w.fs.bits.get(c, w.table[w.fs.bits.at(c):]) }

func (w *Writer) set(c, v uint32) {
	w.fs.bits.put(w.table, c, v)
	at := w.fs.bits.at(c)
	w.dirty[at/w.fs.sector] = true
	w.dirty[(at+max(2, int(w.fs.bits)/8)-1)/w.fs.sector] = true
}

// end marks the last cluster of a chain.
func (w *Writer) end() uint32 { return 1<<w.fs.bits - 1 }

// chain lists the clusters of a chain, at most so many.
func (w *Writer) chain(first uint32, most int) ([]uint32, error) {
	var out []uint32
	for c := first; w.fs.valid(c); c = w.get(c) {
		if len(out) >= most {
			return nil, fmt.Errorf("%w: a chain of clusters is too long, or runs in a circle", ErrNot)
		}
		out = append(out, c)
	}
	return out, nil
}

// alloc allocates and chains n clusters.
func (w *Writer) alloc(n int) ([]uint32, error) {
	var out []uint32
	c := w.hint
	for tried := uint32(0); tried < w.fs.clusters && len(out) < n; tried++ {
		if !w.fs.valid(c) {
			c = 2
		}
		if w.get(c) == 0 {
			out = append(out, c)
		}
		c++
	}
	if len(out) < n {
		return nil, fmt.Errorf("%w: %d more clusters of %d bytes are needed, %d are free", ErrFull, n, w.fs.cluster,
			len(out))
	}
	w.hint = c
	for k, c := range out {
		next := w.end()
		if k+1 < len(out) {
			next = out[k+1]
		}
		w.set(c, next)
	}
	return out, nil
}

func (w *Writer) free(first uint32) error {
	if first == 0 {
		return nil
	}
	chain, err := w.chain(first, int(w.fs.clusters))
	if err != nil {
		return err
	}
	for _, c := range chain {
		w.set(c, 0)
		delete(w.data, c)
		w.hint = min(w.hint, c)
	}
	return nil
}

// dir returns a directory by its first cluster; 0 is the root.
func (w *Writer) dir(first uint32) (*wdir, error) {
	if d := w.dirs[first]; d != nil {
		return d, nil
	}
	d := &wdir{first: first}
	at := first
	if first == 0 {
		at = w.fs.root
	}
	if first == 0 && w.fs.bits != 32 {
		if w.fs.rootSize > maxDir {
			return nil, fmt.Errorf("%w: the root folder has %d bytes", ErrNot, w.fs.rootSize)
		}
		d.raw = make([]byte, w.fs.rootSize)
		if _, err := w.dev.ReadAt(d.raw, w.fs.rootAt); err != nil {
			return nil, fmt.Errorf("read the root folder: %w", err)
		}
	} else {
		var err error
		if d.chain, err = w.chain(at, maxDir/int(w.fs.cluster)+1); err != nil {
			return nil, err
		}
		if len(d.chain) == 0 {
			return nil, fmt.Errorf("%w: a folder without a cluster", ErrNot)
		}
		if w.fs.budget -= int64(len(d.chain)) * w.fs.cluster; w.fs.budget < 0 {
			return nil, fmt.Errorf("%w: too much was read of it", ErrNot)
		}
		d.old = len(d.chain)
		d.raw = make([]byte, len(d.chain)*int(w.fs.cluster))
		for k, c := range d.chain {
			if _, err := w.dev.ReadAt(d.raw[k*int(w.fs.cluster):][:w.fs.cluster], w.at(c)); err != nil {
				return nil, fmt.Errorf("read a folder: %w", err)
			}
		}
	}
	w.dirs[first] = d
	return d, nil
}

// at returns the offset of a cluster.
func (w *Writer) at(c uint32) int64 { return w.fs.data + int64(c-2)*w.fs.cluster }

func (w *Writer) first(e []byte) uint32 {
	le := binary.LittleEndian
	n := uint32(le.Uint16(e[26:]))
	if w.fs.bits == 32 {
		n |= uint32(le.Uint16(e[20:])) << 16 & 0x0fffffff
	}
	return n
}

// slots returns the entries of a directory, and their end. A long name that does not belong to its entry is skipped.
func (d *wdir) slots() (all []slot, end int) {
	all, end = slots(d.raw)
	for k := range all {
		s := &all[k]
		if at := s.to - 32; s.from < at && d.raw[s.from+13] != shortSum(s.e) {
			s.from, s.name = at, nameOf(s.e)
		}
		if s.volume() {
			s.name = ""
		}
	}
	return all, end
}

func shortSum(e []byte) (sum byte) {
	for _, c := range e[:11] {
		sum = (sum>>1 | sum<<7) + c
	}
	return sum
}

func (d *wdir) find(name string) (slot, bool) {
	all, _ := d.slots()
	for _, s := range all {
		if s.name != "" && (strings.EqualFold(s.name, name) || strings.EqualFold(nameOf(s.e), name)) {
			return s, true
		}
	}
	return slot{}, false
}

// parts splits a path, and refuses names that are invalid on a FAT.
func parts(name string) ([]string, error) {
	var out []string
	for _, p := range strings.Split(name, "/") {
		if p == "" || p == "." {
			continue
		}
		if p == ".." || len(utf16.Encode([]rune(p))) > rules.Units || strings.ContainsAny(p, rules.Forbidden) ||
			strings.TrimRight(p, ". ") != p ||
			strings.ContainsFunc(p, func(r rune) bool { return r < ' ' }) {
			return nil, fmt.Errorf("the path %.100q can't be on a FAT: it has .., or names that are not allowed there",
				name)
		}
		out = append(out, p)
	}
	if len(out) == 0 || len(out) > rules.Depth || strings.HasSuffix(name, "/") {
		return nil, fmt.Errorf("the path %.100q is that of a folder, or too deep", name)
	}
	return out, nil
}

func (w *Writer) begin() error {
	if w.err != nil {
		return fmt.Errorf("after an earlier error: %w", w.err)
	}
	w.fs.budget = maxRead
	return nil
}

// IsDir reports whether name is a directory.
func (w *Writer) IsDir(name string) (bool, error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	p, err := parts(name)
	if err != nil {
		return false, nil
	}
	d, err := w.folder(p)
	return d != nil, err
}

// folder follows a path of folders; nil when it is not there.
func (w *Writer) folder(path []string) (*wdir, error) {
	d, err := w.dir(0)
	for _, part := range path {
		if err != nil {
			break
		}
		s, ok := d.find(part)
		if !ok || !s.dir() || w.first(s.e) == 0 {
			return nil, nil
		}
		d, err = w.dir(w.first(s.e))
	}
	return d, err
}

// Put creates a file with its directories, or replaces the content of an existing file. Until Commit data must not
// change.
func (w *Writer) Put(name string, data []byte) (replaced bool, err error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	defer func() { w.err = err }()
	p, err := parts(name)
	if err != nil {
		return false, err
	}
	if w.staged += int64(len(data)); w.staged > maxStaged {
		return false, fmt.Errorf("%s: more than %d MiB at once", name, maxStaged>>20)
	}
	d, err := w.dir(0)
	if err != nil {
		return false, err
	}
	for _, part := range p[:len(p)-1] {
		s, ok := d.find(part)
		switch {
		case !ok:
			if d, err = w.mkdir(d, part); err != nil {
				return false, fmt.Errorf("make the folder %s: %w", part, err)
			}
		case !s.dir() || w.first(s.e) == 0:
			return false, fmt.Errorf("%s leads through a file that is no folder", name)
		default:
			if d, err = w.dir(w.first(s.e)); err != nil {
				return false, err
			}
		}
	}
	last := p[len(p)-1]
	s, ok := d.find(last)
	if ok && s.dir() {
		return false, fmt.Errorf("%s is a folder", name)
	}
	if ok {
		if err := w.free(w.first(s.e)); err != nil {
			return false, err
		}
	}
	first, err := w.store(data)
	if err != nil {
		return false, err
	}
	fresh := (&builder{o: Options{Time: w.now}}).entry("", 0x20, first, uint32(len(data)))
	if ok {
		copy(s.e[18:], fresh[18:]) // its name and its creation time stay
		d.changed = true
		return true, nil
	}
	return false, w.insert(d, last, fresh)
}

// store keeps data in new clusters; 0 for none.
func (w *Writer) store(data []byte) (uint32, error) {
	size := int(w.fs.cluster)
	if len(data) == 0 {
		return 0, nil
	}
	chain, err := w.alloc((len(data) + size - 1) / size)
	if err != nil {
		return 0, err
	}
	for k, c := range chain {
		piece := data[k*size : min((k+1)*size, len(data))]
		if len(piece) < size {
			piece = append(make([]byte, 0, size), piece...)[:size]
		}
		w.data[c] = piece
	}
	return chain[0], nil
}

func (w *Writer) mkdir(parent *wdir, name string) (*wdir, error) {
	chain, err := w.alloc(1)
	if err != nil {
		return nil, err
	}
	d := &wdir{first: chain[0], chain: chain, raw: make([]byte, w.fs.cluster), changed: true}
	b := &builder{o: Options{Time: w.now}}
	copy(d.raw, b.entry(".          ", attrDir, d.first, 0))
	copy(d.raw[32:], b.entry("..         ", attrDir, parent.first, 0))
	w.dirs[d.first] = d
	return d, w.insert(parent, name, b.entry("", attrDir, d.first, 0))
}

// insert inserts an entry, named by name, into a directory, which is extended if necessary.
func (w *Writer) insert(d *wdir, name string, e []byte) error {
	all, end := d.slots()
	taken := map[string]bool{}
	for _, s := range all {
		taken[string(s.e[:11])] = true
	}
	var entries []byte
	short, plain := short83(name)
	if short == "" || taken[short] {
		short, plain = shortName(name, taken), false
	}
	copy(e, short)
	if !plain {
		entries = longName(name, short)
	}
	entries = append(entries, e...)
	// Space among deleted entries, or at the end.
	run := 0
	for at := 0; at < end; at += 32 {
		if d.raw[at] != 0xe5 {
			run = 0
		} else if run += 32; run == len(entries) {
			copy(d.raw[at+32-run:], entries)
			d.changed = true
			return nil
		}
	}
	for end+len(entries) > len(d.raw) {
		if d.chain == nil {
			return fmt.Errorf("%w: the root folder takes no more entries", ErrFull)
		}
		if len(d.raw)+int(w.fs.cluster) > maxDir {
			return fmt.Errorf("%w: a folder would be larger than %d bytes", ErrFull, maxDir)
		}
		more, err := w.alloc(1)
		if err != nil {
			return err
		}
		w.set(d.chain[len(d.chain)-1], more[0])
		d.chain = append(d.chain, more[0])
		d.raw = append(d.raw, make([]byte, w.fs.cluster)...)
	}
	copy(d.raw[end:], entries)
	if next := end + len(entries); next < len(d.raw) {
		d.raw[next] = 0 // clears old bytes after the end
	}
	d.changed = true
	return nil
}

// short83 converts a short enough name to eight and three characters; plain reports whether the result is the same
// name, in capitals.
func short83(name string) (short string, plain bool) {
	base, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		base, ext = name[:i], name[i+1:]
	}
	upper := strings.ToUpper(name)
	ok := func(s string) bool {
		return !strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
		})
	}
	if len(base) == 0 || len(base) > 8 || len(ext) > 3 || strings.HasSuffix(name, ".") || !ok(base) || !ok(ext) {
		return "", false
	}
	return fmt.Sprintf("%-8s%-3s", strings.ToUpper(base), strings.ToUpper(ext)), upper == name
}

// Remove removes a file; false if it does not exist.
func (w *Writer) Remove(name string) (removed bool, err error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	defer func() { w.err = err }()
	p, err := parts(name)
	if err != nil {
		return false, err
	}
	d, err := w.folder(p[:len(p)-1])
	if d == nil {
		return false, err
	}
	s, ok := d.find(p[len(p)-1])
	if !ok {
		return false, nil
	}
	if s.dir() {
		return false, fmt.Errorf("%s is a folder", name)
	}
	if err := w.free(w.first(s.e)); err != nil {
		return false, err
	}
	for i := s.from; i < s.to; i += 32 {
		d.raw[i] = 0xe5
	}
	d.changed = true
	return true, nil
}

// Commit writes everything, and reads it back. sync makes written data durable.
func (w *Writer) Commit(sync func() error) error {
	if err := w.begin(); err != nil {
		return err
	}
	w.err = errors.New("it was committed")
	var content, tables, dirs []Piece
	for c, b := range w.data {
		content = append(content, Piece{Off: w.at(c), Data: b})
	}
	for _, d := range w.dirs {
		switch {
		case !d.changed:
		case d.chain == nil:
			dirs = append(dirs, Piece{Off: w.fs.rootAt, Data: d.raw})
		default:
			for k, c := range d.chain {
				p := Piece{Off: w.at(c), Data: d.raw[k*int(w.fs.cluster):][:w.fs.cluster]}
				if k < d.old {
					dirs = append(dirs, p)
				} else {
					content = append(content, p) // not referenced yet
				}
			}
		}
	}
	if len(dirs)+len(content)+len(w.dirty) == 0 {
		return nil
	}
	for n := range w.dirty {
		for k := range w.fats {
			at := n * w.fs.sector
			tables = append(tables,
				Piece{Off: w.fs.table + int64(k)*w.fs.tableSize + int64(at),
					Data: w.table[at:][:w.fs.sector]})
		}
	}
	if w.info > 0 {
		b := make([]byte, w.fs.sector)
		if _, err := w.dev.ReadAt(b, w.info); err != nil {
			return fmt.Errorf("read the FSInfo sector: %w", err)
		}
		var info fsInfo
		openfs.Parse(binary.LittleEndian, b, &info)
		if info.Lead == infoLead && info.Mark == infoMark {
			info.Free, info.Next = 0, min(w.hint, w.fs.clusters+1)
			for c := range w.fs.clusters {
				if w.get(c+2) == 0 {
					info.Free++
				}
			}
			copy(b, openfs.Bytes(binary.LittleEndian, info))
			tables = append(tables, Piece{Off: w.info, Data: b})
		}
	}
	return openfs.Unit{Name: "byte", Size: 1}.Commit(w.dev, sync, content, tables, dirs)
}
