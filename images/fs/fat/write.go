package fat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
)

// ErrFull is for a file system without room for what is to be put into it; ErrCant for one that can be read but is not
// changed here.
var (
	ErrFull = errors.New("no room is left in the FAT file system")
	ErrCant = errors.New("the FAT file system can't be changed here")
)

// Device is what a file system is on.
type Device interface {
	io.ReaderAt
	io.WriterAt
}

const (
	maxTable  = 32 << 20
	maxStaged = 256 << 20
)

// Writer puts files into a file system that is mounted nowhere. Everything is done in memory until Commit: an error
// leaves the file system as it was, and the Writer unusable. Commit writes content first, then the FATs, then the
// folders: a power cut leaves clusters that belong to no file, which fsck.fat gives back, or a folder of which a part
// is new.
type Writer struct {
	fs     *FS
	dev    Device
	now    time.Time
	err    error
	fats   int
	info   int64 // where the FSInfo sector is; 0: nowhere
	table  []byte
	dirty  map[int]bool      // sectors of the table
	dirs   map[uint32]*wdir  // by their first cluster; 0 is the root
	data   map[uint32][]byte // clusters
	staged int64
	hint   uint32 // where free clusters are looked for first
}

// wdir is a folder in memory.
type wdir struct {
	first   uint32   // 0 is the root
	chain   []uint32 // nil for a root that is no chain
	raw     []byte
	old     int // clusters of it that the disk knows to be a folder's
	changed bool
}

// OpenWriter opens the file system that fills dev, which has size bytes, to change it. now is the time that files get.
func OpenWriter(dev Device, size int64, now time.Time) (*Writer, error) {
	fs, err := Open(dev, size)
	if err != nil {
		return nil, err
	}
	var b [512]byte
	if _, err := dev.ReadAt(b[:], 0); err != nil {
		return nil, fmt.Errorf("read the FAT file system: %w", err)
	}
	w := &Writer{fs: fs, dev: dev, now: now, fats: int(b[16]), dirty: map[int]bool{}, dirs: map[uint32]*wdir{},
		data: map[uint32][]byte{}, hint: 2}
	le := binary.LittleEndian
	if fs.bits == 32 {
		const notMirrored = 0x80
		if b[40]&notMirrored != 0 {
			return nil, fmt.Errorf("%w: its FATs are not kept alike", ErrCant)
		}
		if n := int64(le.Uint16(b[48:])); n > 0 && n < int64(le.Uint16(b[14:])) {
			w.info = n * int64(fs.sector)
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

// Unclean tells whether the system that had the file system mounted has not put it away, or found errors: what is on
// the disk may not be all of it. Linux says so in the boot sector, others in the second entry of the FAT.
func (w *Writer) Unclean() (bool, error) {
	var b [512]byte
	if _, err := w.dev.ReadAt(b[:], 0); err != nil {
		return false, fmt.Errorf("read the FAT file system: %w", err)
	}
	const dirty = 1
	switch w.fs.bits {
	case 32:
		const clean, sound = 1 << 27, 1 << 26
		return b[0x41]&dirty != 0 || w.get(1)&(clean|sound) != clean|sound, nil
	case 16:
		const clean, sound = 1 << 15, 1 << 14
		return b[0x25]&dirty != 0 || w.get(1)&(clean|sound) != clean|sound, nil
	}
	return b[0x25]&dirty != 0, nil // 12 bits have no room for more
}

func (w *Writer) get(c uint32) uint32 {
	le := binary.LittleEndian
	switch w.fs.bits {
	case 12:
		v := le.Uint16(w.table[c*3/2:])
		if c&1 != 0 {
			v >>= 4
		}
		return uint32(v & 0xfff)
	case 16:
		return uint32(le.Uint16(w.table[2*c:]))
	}
	return le.Uint32(w.table[4*c:]) & 0x0fffffff
}

func (w *Writer) set(c, v uint32) {
	le := binary.LittleEndian
	at := int(c) * w.fs.bits / 8
	width := 2
	switch w.fs.bits {
	case 12:
		old := le.Uint16(w.table[at:])
		if c&1 != 0 {
			le.PutUint16(w.table[at:], old&0xf|uint16(v)<<4)
		} else {
			le.PutUint16(w.table[at:], old&0xf000|uint16(v)&0xfff)
		}
	case 16:
		le.PutUint16(w.table[at:], uint16(v))
	default:
		width = 4
		le.PutUint32(w.table[at:], le.Uint32(w.table[at:])&0xf0000000|v&0x0fffffff)
	}
	w.dirty[at/w.fs.sector] = true
	w.dirty[(at+width-1)/w.fs.sector] = true
}

// end marks the last cluster of a chain.
func (w *Writer) end() uint32 { return 1<<w.fs.bits - 1 }

func (w *Writer) valid(c uint32) bool { return c >= 2 && c < w.fs.clusters+2 }

// chain lists the clusters of a chain, at most so many.
func (w *Writer) chain(first uint32, most int) ([]uint32, error) {
	var out []uint32
	for c := first; w.valid(c); c = w.get(c) {
		if len(out) >= most {
			return nil, fmt.Errorf("%w: a chain of clusters is too long, or runs in a circle", ErrNot)
		}
		out = append(out, c)
	}
	return out, nil
}

// alloc takes n clusters and chains them.
func (w *Writer) alloc(n int) ([]uint32, error) {
	var out []uint32
	c := w.hint
	for tried := uint32(0); tried < w.fs.clusters && len(out) < n; tried++ {
		if !w.valid(c) {
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

// dir gives a folder by its first cluster; 0 is the root.
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

// at is where a cluster is.
func (w *Writer) at(c uint32) int64 { return w.fs.data + int64(c-2)*w.fs.cluster }

// slot is an entry of a folder: bytes from, which is where its long name begins, to to.
type slot struct {
	from, to int
	name     string
	e        []byte // the entry proper
}

func (s slot) dir() bool { return s.e[11]&attrDir != 0 }

func (w *Writer) first(e []byte) uint32 {
	le := binary.LittleEndian
	n := uint32(le.Uint16(e[26:]))
	if w.fs.bits == 32 {
		n |= uint32(le.Uint16(e[20:])) << 16 & 0x0fffffff
	}
	return n
}

// slots lists what is in a folder, and where its end is.
func (d *wdir) slots() (all []slot, end int) {
	from := -1
	for at := 0; at+32 <= len(d.raw); at += 32 {
		e := d.raw[at : at+32]
		switch {
		case e[0] == 0:
			return all, at
		case e[0] == 0xe5:
			from = -1
		case e[11]&0x3f == attrLong:
			if e[0]&0x40 != 0 || from < 0 {
				from = at
			}
		default:
			if from < 0 || d.raw[from+13] != shortSum(e) {
				from = at
			}
			s := slot{from: from, to: at + 32, e: e, name: nameOf(e)}
			if list := parseDir(d.raw[from : at+32]); len(list) == 1 {
				s.name = list[0].Name
			}
			if e[11]&attrVolume != 0 {
				s.name = ""
			}
			all = append(all, s)
			from = -1
		}
	}
	return all, len(d.raw)
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

// parts takes a path apart, and refuses what can't be on a FAT.
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

// IsDir tells whether name is a folder.
func (w *Writer) IsDir(name string) (bool, error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	p, err := parts(name)
	if err != nil {
		return false, nil
	}
	at := uint32(0)
	for _, part := range p {
		d, err := w.dir(at)
		if err != nil {
			return false, err
		}
		s, ok := d.find(part)
		if !ok || !s.dir() {
			return false, nil
		}
		if at = w.first(s.e); at == 0 {
			return false, nil
		}
	}
	return true, nil
}

// Put makes a file, and the folders that it is in; or gives the file that is there another content. Until Commit data
// must stay as it is.
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
		copy(s.e[18:], fresh[18:]) // it stays what it is called, and when it was made
		d.changed = true
		return true, nil
	}
	return false, w.insert(d, last, fresh)
}

// store keeps data in clusters of its own; 0 for none.
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

// insert puts an entry, to which name gives the name, into a folder, which gets longer if it must.
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
	// Room among what was deleted, or at the end.
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
		d.raw[next] = 0 // whatever was behind the end
	}
	d.changed = true
	return nil
}

// short83 makes a name of eight and three characters of one that is that short; plain tells whether it says all, in
// capitals.
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

// Remove takes a file; false when there is none.
func (w *Writer) Remove(name string) (removed bool, err error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	defer func() { w.err = err }()
	p, err := parts(name)
	if err != nil {
		return false, err
	}
	at := uint32(0)
	for k, part := range p {
		d, err := w.dir(at)
		if err != nil {
			return false, err
		}
		s, ok := d.find(part)
		if !ok {
			return false, nil
		}
		if k < len(p)-1 {
			if at = w.first(s.e); !s.dir() || at == 0 {
				return false, nil
			}
			continue
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
	}
	return true, nil
}

// Commit writes everything, and reads it back. sync makes sure that what was written is on the medium.
func (w *Writer) Commit(sync func() error) error {
	if err := w.begin(); err != nil {
		return err
	}
	w.err = errors.New("it was committed")
	type piece struct {
		off  int64
		data []byte
	}
	var content, tables, dirs []piece
	for c, b := range w.data {
		content = append(content, piece{w.at(c), b})
	}
	for _, d := range w.dirs {
		switch {
		case !d.changed:
		case d.chain == nil:
			dirs = append(dirs, piece{w.fs.rootAt, d.raw})
		default:
			for k, c := range d.chain {
				p := piece{w.at(c), d.raw[k*int(w.fs.cluster):][:w.fs.cluster]}
				if k < d.old {
					dirs = append(dirs, p)
				} else {
					content = append(content, p) // nothing leads there yet
				}
			}
		}
	}
	if len(dirs)+len(content)+len(w.dirty) == 0 {
		return nil
	}
	for n := range w.dirty {
		for k := range w.fats {
			tables = append(tables,
				piece{w.fs.table + int64(k)*w.fs.tableSize + int64(n*w.fs.sector),
					w.table[n*w.fs.sector:][:w.fs.sector]})
		}
	}
	if w.info > 0 {
		b := make([]byte, w.fs.sector)
		if _, err := w.dev.ReadAt(b, w.info); err != nil {
			return fmt.Errorf("read the FSInfo sector: %w", err)
		}
		le := binary.LittleEndian
		if string(b[:4]) == "RRaA" && string(b[484:488]) == "rrAa" {
			free := uint32(0)
			for c := uint32(2); w.valid(c); c++ {
				if w.get(c) == 0 {
					free++
				}
			}
			le.PutUint32(b[488:], free)
			le.PutUint32(b[492:], min(w.hint, w.fs.clusters+1))
			tables = append(tables, piece{w.info, b})
		}
	}
	groups := [][]piece{content, tables, dirs}
	for _, g := range groups {
		slices.SortFunc(g, func(a, b piece) int { return int(min(max(a.off-b.off, -1), 1)) })
		for k := 0; k < len(g); {
			const most = 1 << 20
			off, run := g[k].off, slices.Clone(g[k].data)
			for k++; k < len(g) && g[k].off == off+int64(len(run)) && len(run) < most; k++ {
				run = append(run, g[k].data...)
			}
			if _, err := w.dev.WriteAt(run, off); err != nil {
				return fmt.Errorf("write byte %d: %w", off, err)
			}
		}
		if err := sync(); err != nil {
			return err
		}
	}
	for _, p := range slices.Concat(groups...) {
		got := make([]byte, len(p.data))
		if _, err := w.dev.ReadAt(got, p.off); err != nil {
			return fmt.Errorf("read back byte %d: %w", p.off, err)
		}
		if !bytes.Equal(got, p.data) {
			return fmt.Errorf(
				"byte %d reads back different from what was written: the disk does not keep what is written", p.off)
		}
	}
	return nil
}
