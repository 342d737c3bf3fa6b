package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/images/fs/openfs"
)

// ErrFull means that the file system has too little space; ErrCant that the file system, or one of its files, is
// readable but can't be changed here.
var (
	ErrFull = errors.New("no room is left in the file system")
	ErrCant = errors.New("can't be changed here")
	// ErrUnclean means that the file system was not unmounted cleanly, so its state on the disk is incomplete.
	ErrUnclean = errors.New("it was not unmounted cleanly")
)

// Device holds a file system.
type Device = openfs.Device

// Attr holds the attributes of a file; nil keeps those of the replaced file, else root's and 0644, and 0755 for new
// directories.
type Attr struct {
	Mode, DirMode *uint16 // permissions
	UID, GID      *uint32
}

// Writer puts files into an unmounted file system.
//
// Everything is done in memory until Commit: an error leaves the file system unchanged, and the Writer unusable.
// Nothing goes through the journal, which must be empty. Commit first marks the file system as not clean; after a power
// cut e2fsck repairs it.
//
// Extended attributes of replaced files stay, including security labels; new files have none.
type Writer struct {
	fs  *FS
	dev Device
	now time.Time
	err error // why it is unusable

	sb       [superSize]byte
	roCompat uint32
	seed     uint32 // of checksums
	csum     bool   // metadata_csum
	lazy     bool   // descriptors have checksums, and flags for unwritten bitmaps
	groups   uint32

	descs      []byte            // of the groups
	meta, data map[uint64][]byte // blocks to be written
	touched    map[uint32]bool   // groups whose descriptors or bitmaps have changed
	blockMaps  map[uint32][]byte // valid bitmaps; also in meta
	inodeMaps  map[uint32][]byte
	unsound    map[uint32]bool // damaged groups, not used
	staged     int64
}

const (
	roGDTCsum  = 0x10
	roMetaCsum = 0x400
	// sparse_super, large_file, huge_file, uninit_bg, dir_nlink, extra_isize, metadata_csum, project, verity
	roKnown = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40 | 0x400 | 0x2000 | 0x8000

	incompatMMP     = 0x100
	incompatEAInode = 0x400
	incompatSeed    = 0x2000
	incompatInline  = 0x8000

	stateValid = 1
	stateError = 2

	inodeUninit = 1
	blockUninit = 2

	flagImmutable = 0x10
	flagAppend    = 0x20
	flagIndex     = 0x1000
	flagHuge      = 0x40000
	flagVerity    = 0x100000
	flagEAInode   = 0x200000
	flagCasefold  = 0x40000000

	maxStaged  = 256 << 20
	maxName    = 255
	maxDescs   = 16 << 20
	dirTail    = 12
	permission = 0o7777
	setGID     = 0o2000
)

// OpenWriter opens the file system at the beginning of dev, which has size bytes, for changes. now is the time of
// changed files.
func OpenWriter(dev Device, size int64, now time.Time) (*Writer, error) {
	fs, err := Open(dev, size)
	if err != nil {
		return nil, err
	}
	w := &Writer{fs: fs, dev: dev, now: now, meta: map[uint64][]byte{}, data: map[uint64][]byte{},
		touched: map[uint32]bool{}, blockMaps: map[uint32][]byte{}, inodeMaps: map[uint32][]byte{},
		unsound: map[uint32]bool{}}
	fs.over = func(n uint64) []byte {
		if b := w.meta[n]; b != nil {
			return b
		}
		return w.data[n]
	}
	if _, err := dev.ReadAt(w.sb[:], superAt); err != nil {
		return nil, fmt.Errorf("read the superblock: %w", err)
	}
	le := binary.LittleEndian
	cant := func(format string, args ...any) (*Writer, error) {
		return nil, fmt.Errorf("the file system %w: %s", ErrCant, fmt.Sprintf(format, args...))
	}
	if le.Uint32(w.sb[0x4c:]) > 0 {
		w.roCompat = le.Uint32(w.sb[0x64:])
	}
	state := le.Uint16(w.sb[0x3a:])
	switch {
	case w.roCompat&^roKnown != 0:
		return cant("it has features that are not known here (%#x: quota, bigalloc, read-only, or newer ones)",
			w.roCompat&^roKnown)
	case fs.incompat&incompatInline != 0:
		return cant("it has the feature inline_data")
	case fs.incompat&incompatMMP != 0:
		return cant("it has the feature mmp (multiple mount protection)")
	case state&stateError != 0:
		return cant("the kernel has found errors in it: run e2fsck on it")
	case state&stateValid == 0:
		return nil, fmt.Errorf("the file system %w: it is not marked as clean (%w); run e2fsck on it", ErrCant,
			ErrUnclean)
	case le.Uint32(w.sb[0xe8:]) != 0:
		return nil, fmt.Errorf("the file system %w: files of it wait to be deleted (%w); run e2fsck on it", ErrCant,
			ErrUnclean)
	}
	w.csum = w.roCompat&roMetaCsum != 0
	w.lazy = w.csum || w.roCompat&roGDTCsum != 0
	w.seed = sum32(^uint32(0), w.sb[0x68:0x78])
	if fs.incompat&incompatSeed != 0 {
		w.seed = le.Uint32(w.sb[0x270:])
	}
	if w.csum {
		if w.sb[0x175] != 1 {
			return cant("its checksums are of the unknown kind %d", w.sb[0x175])
		}
		if got, want := le.Uint32(w.sb[0x3fc:]), sum32(^uint32(0), w.sb[:0x3fc]); got != want {
			return nil, fmt.Errorf("%w that is whole: the superblock's checksum is wrong", ErrNot)
		}
	}
	if fs.perGroup > uint32(8*fs.BlockSize) || fs.perGroup%8 != 0 || fs.inodesPerGroup%8 != 0 {
		return nil, fmt.Errorf("%w: its groups are impossible", ErrNot)
	}
	groups := (fs.blocks - fs.first + uint64(fs.perGroup) - 1) / uint64(fs.perGroup)
	if groups*uint64(fs.descSize) > maxDescs || groups*uint64(fs.inodesPerGroup) != uint64(fs.inodes) {
		return nil, fmt.Errorf("%w: its groups are impossible", ErrNot)
	}
	w.groups = uint32(groups)
	w.descs = make([]byte, groups*uint64(fs.descSize))
	if _, err := dev.ReadAt(w.descs, int64(fs.first+1)*int64(fs.BlockSize)); err != nil {
		return nil, fmt.Errorf("read the descriptors of groups: %w", err)
	}
	if err := w.journalEmpty(); err != nil {
		return nil, err
	}
	return w, nil
}

// journalEmpty refuses a file system whose journal would be replayed over the changes.
func (w *Writer) journalEmpty() error {
	const hasJournal = 0x4
	le := binary.LittleEndian
	n := le.Uint32(w.sb[0xe0:])
	// none, or one on another device, for which the feature "recover" is set
	if le.Uint32(w.sb[0x5c:])&hasJournal == 0 || n == 0 {
		return nil
	}
	i, err := w.fs.inode(n)
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	x, _, err := w.layout(i)
	if err != nil || len(x) == 0 || x[0].logical != 0 {
		return fmt.Errorf("%w: it has no journal, where it should (%v)", ErrNot, err)
	}
	b, err := w.fs.block(x[0].start)
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	if be := binary.BigEndian; be.Uint32(b) != journalMagic || be.Uint32(b[28:]) != 0 {
		return fmt.Errorf("%w that is whole: its journal has not been replayed (%w); run e2fsck on it", ErrNot,
			ErrUnclean)
	}
	return nil
}

// begin prepares the Writer for another operation, each with its own read budget.
func (w *Writer) begin() error {
	if w.err != nil {
		return fmt.Errorf("after an earlier error: %w", w.err)
	}
	w.fs.budget = maxRead
	return nil
}

// IsDir reports whether name is a directory, following symbolic links.
func (w *Writer) IsDir(name string) (bool, error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	i, err := w.fs.lookup(name, true)
	if errors.Is(err, ErrNone) {
		return false, nil
	}
	return err == nil && i.mode&typeMask == typeDir, err
}

// Read returns a file's present content, like FS.Read.
func (w *Writer) Read(name string, most int64) ([]byte, error) {
	if err := w.begin(); err != nil {
		return nil, err
	}
	return w.fs.Read(name, most)
}

// Put creates a file with its directories, or replaces the content of an existing file. Symbolic links are followed,
// inside the file system. Until Commit data must not change.
func (w *Writer) Put(name string, data []byte, a Attr) (replaced bool, err error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	defer func() { w.err = err }()
	if w.staged += int64(len(data)); w.staged > maxStaged {
		return false, fmt.Errorf("%s: more than %d MiB at once", name, maxStaged>>20)
	}
	p, err := w.walk(name, true)
	if err != nil {
		return false, err
	}
	for len(p.missing) > 1 {
		mode := uint16(0o755)
		if a.DirMode != nil && len(p.missing) == 2 {
			mode = *a.DirMode & permission
		}
		if p.dir, err = w.mkdir(p.dir, p.missing[0], mode); err != nil {
			return false, fmt.Errorf("make the folder %s: %w", p.missing[0], err)
		}
		p.missing = p.missing[1:]
	}
	if p.found == nil {
		return false, w.create(p, data, a)
	}
	return true, w.replace(p.found, data, a)
}

// Remove removes a file, or a symbolic link; false if there is none.
func (w *Writer) Remove(name string) (removed bool, err error) {
	if err := w.begin(); err != nil {
		return false, err
	}
	defer func() { w.err = err }()
	p, err := w.walk(name, false)
	if err != nil || p.found == nil {
		return false, err
	}
	i := p.found
	if i.mode&typeMask == typeDir {
		return false, fmt.Errorf("%s is a folder", name)
	}
	if err := changeable(i); err != nil {
		return false, err
	}
	if err := changeable(p.dir); err != nil {
		return false, err
	}
	if err := w.unlink(p.dir, p.last); err != nil {
		return false, err
	}
	b, err := w.raw(i.number)
	if err != nil {
		return false, err
	}
	le := binary.LittleEndian
	links := le.Uint16(b[0x1a:])
	if links > 1 {
		le.PutUint16(b[0x1a:], links-1)
		w.stamp(b, 0xc, 0x84)
		w.sealInode(i.number, b)
		return true, nil
	}
	acl := uint64(le.Uint32(b[0x68:])) | uint64(le.Uint16(b[0x76:]))<<32
	if w.fs.incompat&incompatEAInode != 0 && (acl != 0 || w.inlineAttrs(b)) {
		return false, fmt.Errorf("%s %w: it has extended attributes that may be in inodes of their own", name, ErrCant)
	}
	if i.mode&typeMask == typeFile || i.mode&typeMask == typeSymlink && !(i.size < 60 && i.flags&flagExtents == 0) {
		x, tree, err := w.layout(i)
		if err != nil {
			return false, err
		}
		if err := w.freeAll(x, tree); err != nil {
			return false, err
		}
	}
	if acl != 0 {
		if err := w.dropAttrs(acl); err != nil {
			return false, err
		}
	}
	le.PutUint16(b[0x1a:], 0)
	le.PutUint32(b[0x14:], uint32(w.now.Unix())) // deleted
	w.sealInode(i.number, b)
	return true, w.freeInode(i.number)
}

// inlineAttrs reports whether an inode has extended attributes in itself.
func (w *Writer) inlineAttrs(b []byte) bool {
	if len(b) <= 128 {
		return false
	}
	at := 128 + int(binary.LittleEndian.Uint16(b[0x80:]))
	return at+4 <= len(b) && binary.LittleEndian.Uint32(b[at:]) == attrMagic
}

const attrMagic = 0xea020000

// dropAttrs removes one user from a block of extended attributes.
func (w *Writer) dropAttrs(n uint64) error {
	b, err := w.edit(n)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	if le.Uint32(b) != attrMagic {
		return fmt.Errorf("%w: a damaged block of extended attributes", ErrNot)
	}
	users := le.Uint32(b[4:])
	if users <= 1 {
		return w.free(n)
	}
	le.PutUint32(b[4:], users-1)
	if w.csum {
		le.PutUint32(b[16:], 0)
		sum := sum32(w.seed, le.AppendUint64(nil, n))
		le.PutUint32(b[16:], sum32(sum, b))
	}
	return nil
}

// changeable refuses inodes that the kernel would not change, or that need unsupported handling.
func changeable(i *inode) error {
	for _, c := range []struct {
		flags uint32
		why   string
	}{{flagImmutable | flagAppend, "it is immutable or append-only (chattr)"},
		{flagVerity, "it is protected by verity"},
		{flagEAInode | flagInline, "it holds extended attributes, or its data in itself"},
		{flagCasefold, "it is a folder that knows no case"}} {
		if i.flags&c.flags != 0 {
			return fmt.Errorf("inode %d %w: %s", i.number, ErrCant, c.why)
		}
	}
	return nil
}

// place is the result of resolving a path.
type place struct {
	dir     *inode   // its directory, or the last existing one
	missing []string // missing parts: directories, and the name
	found   *inode   // nil if missing
	last    string   // its name in dir
}

// walk resolves a path from the root as far as it exists. Symbolic links are followed; at the end only if follow is
// set.
func (w *Writer) walk(name string, follow bool) (*place, error) {
	if len(name) > maxPath {
		return nil, fmt.Errorf("a path of %d characters is too long", len(name))
	}
	at, err := w.fs.inode(rootInode)
	if err != nil {
		return nil, err
	}
	var trail []*inode
	links := 0
	given := strings.Split(name, "/")
	parts := slices.DeleteFunc(slices.Clone(given), func(p string) bool { return p == "" || p == "." })
	for _, p := range given {
		if p == ".." || len(p) > maxName || strings.IndexByte(p, 0) >= 0 {
			return nil, fmt.Errorf("the path %.100q is not allowed: it has .., or a name that is too long", name)
		}
	}
	if len(parts) == 0 || strings.HasSuffix(name, "/") {
		return nil, fmt.Errorf("the path %.100q is that of a folder", name)
	}
	for len(parts) > 0 {
		part := parts[0]
		if part == "" || part == "." || part == ".." {
			if part == ".." && len(trail) > 0 {
				at, trail = trail[len(trail)-1], trail[:len(trail)-1]
			}
			parts = parts[1:]
			if len(parts) == 0 {
				return nil, fmt.Errorf("%s leads to a folder", name)
			}
			continue
		}
		if at.mode&typeMask != typeDir {
			return nil, fmt.Errorf("%s leads through a file that is no folder", name)
		}
		n, ok, err := w.fs.find(at, part)
		if err != nil {
			return nil, err
		}
		if !ok {
			missing := slices.DeleteFunc(slices.Clone(parts), func(p string) bool { return p == "" || p == "." })
			for _, p := range missing {
				if p == ".." || len(p) > maxName {
					return nil, fmt.Errorf("%s leads through a symbolic link to where nothing is", name)
				}
			}
			return &place{dir: at, missing: missing, last: missing[len(missing)-1]}, nil
		}
		i, err := w.fs.inode(n)
		if err != nil {
			return nil, err
		}
		end := len(parts) == 1
		if i.mode&typeMask == typeSymlink && (!end || follow) {
			if links++; links > openfs.MaxLinks {
				return nil, fmt.Errorf("too many symbolic links at %s", name)
			}
			target, err := w.fs.link(i)
			if err != nil {
				return nil, err
			}
			if target == "" {
				return nil, fmt.Errorf("%w: an empty symbolic link", ErrNot)
			}
			if strings.HasPrefix(target, "/") {
				if at, err = w.fs.inode(rootInode); err != nil {
					return nil, err
				}
				trail = nil
			}
			parts = append(strings.Split(target, "/"), parts[1:]...)
			continue
		}
		if end {
			return &place{dir: at, found: i, last: part}, nil
		}
		trail, at = append(trail, at), i
		parts = parts[1:]
	}
	return nil, fmt.Errorf("%s leads to a folder", name)
}

// create creates the last part of a path as a file.
func (w *Writer) create(p *place, data []byte, a Attr) error {
	n, b, err := w.newInode(w.groupOf(p.dir.number), false)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	mode, uid, gid := uint16(0o644), uint32(0), uint32(0)
	if a.Mode != nil {
		mode = *a.Mode & permission
	}
	le.PutUint16(b, typeFile|mode)
	le.PutUint16(b[0x1a:], 1)
	if parent, err := w.raw(p.dir.number); err != nil {
		return err
	} else if p.dir.mode&setGID != 0 {
		gid = uint32(le.Uint16(parent[0x18:])) | uint32(le.Uint16(parent[0x7a:]))<<16
	}
	putOwner(b, &uid, &gid)
	putOwner(b, a.UID, a.GID)
	if err := w.fill(n, b, data); err != nil {
		return err
	}
	w.sealInode(n, b)
	const kindFile = 1
	return w.link(p.dir, p.last, n, kindFile)
}

func putOwner(b []byte, uid, gid *uint32) {
	le := binary.LittleEndian
	if uid != nil {
		le.PutUint16(b[2:], uint16(*uid))
		le.PutUint16(b[0x78:], uint16(*uid>>16))
	}
	if gid != nil {
		le.PutUint16(b[0x18:], uint16(*gid))
		le.PutUint16(b[0x7a:], uint16(*gid>>16))
	}
}

// replace replaces a file's content; its inode, links and extended attributes stay.
func (w *Writer) replace(i *inode, data []byte, a Attr) error {
	if i.mode&typeMask != typeFile {
		return fmt.Errorf("inode %d %w: it is no regular file", i.number, ErrCant)
	}
	if err := changeable(i); err != nil {
		return err
	}
	b, err := w.raw(i.number)
	if err != nil {
		return err
	}
	x, tree, err := w.layout(i)
	if err != nil {
		return err
	}
	if err := w.freeAll(x, tree); err != nil {
		return err
	}
	if i.flags&flagHuge != 0 {
		return fmt.Errorf("inode %d %w: its size is counted in blocks", i.number, ErrCant)
	}
	w.count(b, -int64(blocksOf(x)+uint64(len(tree))))
	le := binary.LittleEndian
	if a.Mode != nil {
		le.PutUint16(b, typeFile|*a.Mode&permission)
	}
	putOwner(b, a.UID, a.GID)
	if err := w.fill(i.number, b, data); err != nil {
		return err
	}
	w.stamp(b, 0xc, 0x84)  // changed
	w.stamp(b, 0x10, 0x88) // modified
	w.sealInode(i.number, b)
	return nil
}

// fill stores the content of an inode that has none.
func (w *Writer) fill(n uint32, b, data []byte) error {
	size := uint64(w.fs.BlockSize)
	x, err := w.alloc(w.groupOf(n), (uint64(len(data))+size-1)/size)
	if err != nil {
		return err
	}
	for _, e := range x {
		for k := range e.n {
			piece := data[min((e.logical+k)*size, uint64(len(data))):min((e.logical+k+1)*size, uint64(len(data)))]
			if uint64(len(piece)) < size {
				piece = append(make([]byte, 0, size), piece...)[:size]
			}
			w.data[e.start+k] = piece
		}
	}
	le := binary.LittleEndian
	le.PutUint32(b[4:], uint32(len(data)))
	le.PutUint32(b[0x6c:], uint32(uint64(len(data))>>32))
	return w.setLayout(n, b, x)
}

// mkdir creates a directory in dir.
func (w *Writer) mkdir(dir *inode, name string, mode uint16) (*inode, error) {
	n, b, err := w.newInode(w.groupOf(dir.number), true)
	if err != nil {
		return nil, err
	}
	x, err := w.alloc(w.groupOf(n), 1)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	le.PutUint16(b, typeDir|mode)
	le.PutUint16(b[0x1a:], 2)
	le.PutUint32(b[4:], uint32(w.fs.BlockSize))
	if err := w.setLayout(n, b, x); err != nil {
		return nil, err
	}
	block := make([]byte, w.fs.BlockSize)
	end := w.dirEnd()
	const kindDir = 2
	w.entry(block[:12], n, ".", kindDir)
	w.entry(block[12:end], dir.number, "..", kindDir)
	w.meta[x[0].start] = block
	w.sealDir(n, b, block)
	w.sealInode(n, b)
	if err := w.link(dir, name, n, kindDir); err != nil {
		return nil, err
	}
	parent, err := w.raw(dir.number)
	if err != nil {
		return nil, err
	}
	const manyLinks, maxLinkCount = 1, 65000 // dir_nlink: a directory with too many has one
	links := le.Uint16(parent[0x1a:])
	const roDirNlink = 0x20
	switch {
	case links == manyLinks && w.roCompat&roDirNlink != 0:
	case links >= maxLinkCount-1 && w.roCompat&roDirNlink != 0:
		links = manyLinks
	case links >= 32000 && w.roCompat&roDirNlink == 0:
		return nil, fmt.Errorf("%w: a folder holds too many folders", ErrFull)
	default:
		links++
	}
	le.PutUint16(parent[0x1a:], links)
	w.sealInode(dir.number, parent)
	return w.fs.inode(n)
}

// entry writes an entry that fills b.
func (w *Writer) entry(b []byte, n uint32, name string, kind byte) {
	le := binary.LittleEndian
	le.PutUint32(b, n)
	le.PutUint16(b[4:], uint16(len(b)))
	b[6], b[7] = byte(len(name)), 0
	if w.fs.incompat&incompatFiletype != 0 {
		b[7] = kind
	}
	copy(b[8:], name)
}

// dirEnd returns the end of the entries in a directory's block.
func (w *Writer) dirEnd() int {
	if w.csum {
		return w.fs.BlockSize - dirTail
	}
	return w.fs.BlockSize
}

// stamp sets a time in an inode, and its fraction if there is space.
func (w *Writer) stamp(b []byte, at, extra int) {
	le := binary.LittleEndian
	le.PutUint32(b[at:], uint32(w.now.Unix()))
	if len(b) > 128 && extra+4 <= 128+int(le.Uint16(b[0x80:])) {
		le.PutUint32(b[extra:], uint32(w.now.Nanosecond())<<2|uint32(w.now.Unix()>>32)&3)
	}
}

// count changes an inode's block count, which is in units of 512 bytes.
func (w *Writer) count(b []byte, blocks int64) {
	le := binary.LittleEndian
	n := int64(le.Uint32(b[0x1c:])) | int64(le.Uint16(b[0x74:]))<<32
	n = max(0, n+blocks*int64(w.fs.BlockSize/512))
	le.PutUint32(b[0x1c:], uint32(n))
	le.PutUint16(b[0x74:], uint16(n>>32))
}

// edit returns a block for changes.
func (w *Writer) edit(n uint64) ([]byte, error) {
	if b := w.meta[n]; b != nil {
		return b, nil
	}
	if w.data[n] != nil {
		return nil, fmt.Errorf("%w: block %d is used twice", ErrNot, n)
	}
	b, err := w.fs.block(n)
	if err == nil {
		w.meta[n] = b
	}
	return b, err
}

// raw returns an inode's bytes for changes.
func (w *Writer) raw(n uint32) ([]byte, error) {
	b, err := w.inodeBytes(n)
	if err == nil && len(b) > 128 && int(binary.LittleEndian.Uint16(b[0x80:])) > len(b)-128 {
		err = fmt.Errorf("%w: inode %d is damaged", ErrNot, n)
	}
	return b, err
}

func (w *Writer) inodeBytes(n uint32) ([]byte, error) {
	size := int64(w.fs.BlockSize)
	off := int64((n-1)%w.fs.inodesPerGroup) * w.fs.inodeSize
	b, err := w.edit(wide(w.desc(w.groupOf(n)), 8, 0x28) + uint64(off/size))
	if err != nil {
		return nil, err
	}
	return b[off%size:][:w.fs.inodeSize], nil
}

// wide reads a number of a group descriptor, whose upper half may be missing.
func wide(d []byte, low, high int) uint64 {
	n := uint64(binary.LittleEndian.Uint32(d[low:]))
	if len(d) >= 64 {
		n |= uint64(binary.LittleEndian.Uint32(d[high:])) << 32
	}
	return n
}

// short is wide for halves of 16 bits.
func short(d []byte, low, high int) uint32 {
	n := uint32(binary.LittleEndian.Uint16(d[low:]))
	if len(d) >= 64 {
		n |= uint32(binary.LittleEndian.Uint16(d[high:])) << 16
	}
	return n
}

func putShort(d []byte, low, high int, n uint32) {
	binary.LittleEndian.PutUint16(d[low:], uint16(n))
	if len(d) >= 64 {
		binary.LittleEndian.PutUint16(d[high:], uint16(n>>16))
	}
}

func (w *Writer) groupOf(n uint32) uint32 { return (n - 1) / w.fs.inodesPerGroup }

// desc returns a group's descriptor.
func (w *Writer) desc(g uint32) []byte { return w.descs[int64(g)*w.fs.descSize:][:w.fs.descSize] }

func (w *Writer) sealDesc(g uint32, d []byte) {
	le := binary.LittleEndian
	id := le.AppendUint32(nil, g)
	switch {
	case w.csum:
		sum := sum32(sum32(w.seed, id), d[:0x1e])
		sum = sum32(sum, []byte{0, 0})
		if len(d) > 0x20 {
			sum = sum32(sum, d[0x20:])
		}
		le.PutUint16(d[0x1e:], uint16(sum))
	case w.roCompat&roGDTCsum != 0:
		sum := crc16(crc16(crc16(0xffff, w.sb[0x68:0x78]), id), d[:0x1e])
		if w.fs.incompat&incompat64 != 0 && len(d) > 0x20 {
			sum = crc16(sum, d[0x20:])
		}
		le.PutUint16(d[0x1e:], sum)
	}
}

// sealInode sets an inode's checksum.
func (w *Writer) sealInode(n uint32, b []byte) {
	if !w.csum {
		return
	}
	le := binary.LittleEndian
	high := len(b) > 128 && le.Uint16(b[0x80:]) >= 4
	le.PutUint16(b[0x7c:], 0)
	if high {
		le.PutUint16(b[0x82:], 0)
	}
	sum := sum32(w.inodeSeed(n, b), b)
	le.PutUint16(b[0x7c:], uint16(sum))
	if high {
		le.PutUint16(b[0x82:], uint16(sum>>16))
	}
}

// inodeSeed returns the initial value of the checksums of an inode's blocks.
func (w *Writer) inodeSeed(n uint32, b []byte) uint32 {
	return sum32(sum32(w.seed, binary.LittleEndian.AppendUint32(nil, n)), b[0x64:0x68])
}

// Commit writes everything, and reads it back. sync makes written data durable. In a file system marked as not clean
// the files' content comes first, then the metadata; then it is marked as clean again.
func (w *Writer) Commit(sync func() error) error {
	if err := w.begin(); err != nil {
		return err
	}
	w.err = errors.New("it was committed")
	if len(w.meta) == 0 {
		return nil
	}
	if err := w.seal(); err != nil {
		return err
	}
	le := binary.LittleEndian
	super := func(state uint16) error {
		le.PutUint16(w.sb[0x3a:], state)
		if w.csum {
			le.PutUint32(w.sb[0x3fc:], sum32(^uint32(0), w.sb[:0x3fc]))
		}
		if _, err := w.dev.WriteAt(w.sb[:], superAt); err != nil {
			return fmt.Errorf("write the superblock: %w", err)
		}
		return sync()
	}
	state := le.Uint16(w.sb[0x3a:])
	le.PutUint32(w.sb[0x30:], uint32(w.now.Unix())) // written
	if err := super(state &^ stateValid); err != nil {
		return err
	}
	size := int64(w.fs.BlockSize)
	var stages [2][]openfs.Piece
	for k, blocks := range []map[uint64][]byte{w.data, w.meta} {
		for n, b := range blocks {
			stages[k] = append(stages[k], openfs.Piece{Off: int64(n) * size, Data: b})
		}
	}
	if err := (openfs.Unit{Name: "block", Size: size}).Commit(w.dev, sync, stages[:]...); err != nil {
		return err
	}
	return super(state)
}

// seal makes the checksums of the groups that have changed, and counts anew what the superblock says of all together.
func (w *Writer) seal() error {
	le := binary.LittleEndian
	for g := range w.touched {
		d := w.desc(g)
		if b := w.blockMaps[g]; b != nil && w.csum {
			putShort(d, 0x18, 0x38, sum32(w.seed, b[:w.fs.perGroup/8]))
		}
		if b := w.inodeMaps[g]; b != nil && w.csum {
			putShort(d, 0x1a, 0x3a, sum32(w.seed, b[:w.fs.inodesPerGroup/8]))
		}
		w.sealDesc(g, d)
		at := int64(g) * w.fs.descSize
		b, err := w.edit(w.fs.first + 1 + uint64(at/int64(w.fs.BlockSize)))
		if err != nil {
			return err
		}
		copy(b[at%int64(w.fs.BlockSize):], d)
	}
	var blocks, inodes uint64
	for g := range w.groups {
		blocks += uint64(short(w.desc(g), 0xc, 0x2c))
		inodes += uint64(short(w.desc(g), 0xe, 0x2e))
	}
	le.PutUint32(w.sb[0xc:], uint32(blocks))
	if w.fs.incompat&incompat64 != 0 {
		le.PutUint32(w.sb[0x158:], uint32(blocks>>32))
	}
	le.PutUint32(w.sb[0x10:], uint32(inodes))
	return nil
}
