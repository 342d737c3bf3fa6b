package btrfs

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/ingot-metal/ingot/images/fs/openfs"
	"github.com/klauspost/compress/zstd"
)

const (
	typeMask    = 0xf000
	typeDir     = 0x4000
	typeFile    = 0x8000
	typeSymlink = 0xa000

	extentInline    = 0
	extentRegular   = 1
	extentAllocated = 2 // but never written

	packedNot  = 0
	packedZlib = 1
	packedLZO  = 2
	packedZstd = 3
)

type inode struct {
	tree   *tree // nil: the empty directory in place of a subvolume in a snapshot of its parent
	number uint64
	mode   uint32
	size   int64
}

func (f *FS) inode(t *tree, n uint64) (*inode, error) {
	b, err := f.get(t, key{n, kindInode, 0})
	if errors.Is(err, ErrNone) {
		err = fmt.Errorf("%w: inode %d does not exist", ErrNot, n)
	}
	if err != nil {
		return nil, err
	}
	if len(b) < 160 {
		return nil, fmt.Errorf("%w: inode %d is damaged", ErrNot, n)
	}
	i := &inode{tree: t, number: n, size: int64(le.Uint64(b[16:])), mode: le.Uint32(b[52:])}
	if i.size < 0 {
		return nil, fmt.Errorf("%w: inode %d has an impossible size", ErrNot, n)
	}
	return i, nil
}

// hash is the hash of names: a CRC-32C with another initial value and without the final inversion.
func hash(name string) uint64 { return uint64(^crc32.Update(1, castagnoli, []byte(name))) }

// names yields the names in an item of a directory: several only if their hashes are equal.
func names(b []byte, put func(name string, at key, kind byte) (enough bool, err error)) (bool, error) {
	damaged := fmt.Errorf("%w: a damaged folder", ErrNot)
	for len(b) > 0 {
		if len(b) < 30 {
			return false, damaged
		}
		data, n := int(le.Uint16(b[25:])), int(le.Uint16(b[27:]))
		if n == 0 || n > 255 || 30+n+data > len(b) {
			return false, damaged
		}
		if enough, err := put(string(b[30:30+n]), parseKey(b), b[29]); enough || err != nil {
			return enough, err
		}
		b = b[30+n+data:]
	}
	return false, nil
}

// entry finds a name in a directory.
func (f *FS) entry(t *tree, folder uint64, name string) (key, error) {
	b, err := f.get(t, key{folder, kindName, hash(name)})
	if err != nil {
		return key{}, err
	}
	var out key
	found, err := names(b, func(n string, at key, _ byte) (bool, error) {
		out = at
		return n == name, nil
	})
	if err == nil && !found {
		err = ErrNone
	}
	return out, err
}

// target returns the inode of a name in a directory.
func (f *FS) target(folder *inode, name string, at key) (*inode, error) {
	switch at.kind {
	case kindInode:
		return f.inode(folder.tree, at.object)
	case kindRoot:
		// A snapshot has the names of subvolumes, but not their content: they stay in their original parent, as
		// recorded.
		b, err := f.get(&f.roots, key{folder.tree.id, kindRootName, at.object})
		if err == nil && (len(b) < 18 || le.Uint64(b) != folder.number || string(b[18:]) != name) {
			err = ErrNone
		}
		if errors.Is(err, ErrNone) {
			return &inode{mode: typeDir | 0o755}, nil
		}
		if err != nil {
			return nil, err
		}
		t, err := f.subvolume(at.object)
		if err != nil {
			return nil, err
		}
		return f.inode(t, t.folder)
	}
	return nil, fmt.Errorf("%w: %s is of kind %d", ErrNot, name, at.kind)
}

// list yields the entries of a directory, in order of creation.
func (f *FS) list(i *inode, put func(name string, at key, kind byte)) error {
	if i.mode&typeMask != typeDir {
		return fmt.Errorf("%w: not a folder", ErrNone)
	}
	if i.tree == nil {
		return nil
	}
	count := 0
	return f.each(i.tree, key{i.number, kindIndex, 0}, func(k key, b []byte) (bool, error) {
		if k.object != i.number || k.kind != kindIndex {
			return false, nil
		}
		_, err := names(b, func(name string, at key, kind byte) (bool, error) {
			put(name, at, kind)
			return false, nil
		})
		if count++; err == nil && count > maxNames {
			err = fmt.Errorf("a folder of more than %d names", maxNames)
		}
		return true, err
	})
}

// run is a piece of a file.
type run struct {
	at, n  uint64 // in the file
	inline []byte // inline content; else on the disk:
	disk   uint64
	disks  uint64 // number of bytes
	in     uint64 // its start in the decompressed extent
	size   uint64 // of the decompressed extent
	packed uint8
}

// runs returns the places of a file's content, in order, without holes and unwritten extents.
func (f *FS) runs(i *inode) ([]run, error) {
	var out []run
	next := uint64(0)
	err := f.each(i.tree, key{i.number, kindExtent, 0}, func(k key, b []byte) (bool, error) {
		if k.object != i.number || k.kind != kindExtent || k.offset >= uint64(i.size) {
			return false, nil
		}
		damaged := fmt.Errorf("%w: an extent of inode %d is damaged", ErrNot, i.number)
		if len(b) < 21 || k.offset < next {
			return false, damaged
		}
		r := run{at: k.offset, size: le.Uint64(b[8:]), packed: b[16]}
		switch {
		case b[17] != 0 || b[18] != 0 || b[19] != 0:
			return false, fmt.Errorf("%w that can be read: inode %d is encrypted or encoded", ErrNot, i.number)
		case r.packed == packedLZO:
			return false, errors.New("it is compressed with LZO, which is not read here")
		case r.packed > packedZstd:
			return false, fmt.Errorf("%w that is known here: inode %d is compressed in a way of number %d", ErrNot,
				i.number, r.packed)
		case r.packed != packedNot && r.size > maxPacked:
			return false, damaged
		}
		switch b[20] {
		case extentInline:
			r.inline, r.n = b[21:], r.size
			if r.packed == packedNot && r.size > uint64(len(r.inline)) || r.size > maxPacked {
				return false, damaged
			}
		case extentRegular, extentAllocated:
			if len(b) != 53 {
				return false, damaged
			}
			r.disk, r.disks, r.in, r.n = le.Uint64(b[21:]), le.Uint64(b[29:]), le.Uint64(b[37:]), le.Uint64(b[45:])
			have := r.size
			if r.packed == packedNot {
				have = r.disks
			} else if r.disks > maxPacked {
				return false, damaged
			}
			if r.n > 1<<62 || r.disk != 0 && (r.in > have || r.n > have-r.in) {
				return false, damaged
			}
		default:
			return false, damaged
		}
		if r.n == 0 || r.at+r.n < r.at {
			return false, damaged
		}
		next = r.at + r.n
		if r.inline == nil && (r.disk == 0 || b[20] == extentAllocated) {
			return true, nil
		}
		if len(out) == maxRuns {
			return false, fmt.Errorf("%w: inode %d is in too many pieces", ErrNot, i.number)
		}
		out = append(out, r)
		return true, nil
	})
	return out, err
}

// content returns the decompressed content of a piece, or a file's inline content.
func (f *FS) content(r run) ([]byte, error) {
	b := r.inline
	if b == nil {
		b = make([]byte, r.disks)
		if err := f.read(b, r.disk); err != nil {
			return nil, err
		}
	}
	var from io.Reader
	room := r.size
	switch r.packed {
	case packedNot:
		return b, nil
	case packedZlib:
		z, err := zlib.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("%w: a damaged piece: %v", ErrNot, err)
		}
		from = z
		room++ // so that the decoder reaches the end, where the checksum is
	case packedZstd:
		if f.unpack == nil {
			d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(maxPacked))
			if err != nil {
				return nil, err
			}
			f.unpack = d
		}
		// After a frame the sector is filled with zeros, which are no frame: four more ensure that.
		if err := f.unpack.Reset(io.MultiReader(bytes.NewReader(b), bytes.NewReader(make([]byte, 4)))); err != nil {
			return nil, fmt.Errorf("%w: a damaged piece: %v", ErrNot, err)
		}
		from = f.unpack
	}
	out, n := make([]byte, room), 0
	for n < len(out) {
		k, err := from.Read(out[n:])
		n += k
		if err == io.EOF || errors.Is(err, zstd.ErrMagicMismatch) && n > 0 {
			break // the last sector of a file may be packed without its unused part, which is zeros
		}
		if err != nil {
			return nil, fmt.Errorf("%w: a damaged piece: %v", ErrNot, err)
		}
	}
	if n == 0 || uint64(n) > r.size {
		return nil, fmt.Errorf("%w: a damaged piece: %d bytes instead of %d", ErrNot, n, r.size)
	}
	return out[:r.size], nil
}

// link returns a symbolic link's target.
func (f *FS) link(i *inode) (string, error) {
	damaged := fmt.Errorf("%w: a damaged symbolic link, inode %d", ErrNot, i.number)
	if i.size == 0 || i.size > maxLink {
		return "", damaged
	}
	runs, err := f.runs(i)
	if err != nil {
		return "", err
	}
	if len(runs) != 1 || runs[0].inline == nil || runs[0].n < uint64(i.size) { // mkfs.btrfs appends a zero
		return "", damaged
	}
	b, err := f.content(runs[0])
	if err != nil {
		return "", err
	}
	return string(b[:i.size]), nil
}

// find looks up a path in the default subvolume and then from the top.
func (f *FS) find(name string, follow bool) (*inode, error) {
	i, err := f.lookup(f.root, name, follow)
	if errors.Is(err, ErrNone) && f.root.id != f.top.id {
		if i, err := f.lookup(f.top, name, follow); !errors.Is(err, ErrNone) {
			return i, err
		}
	}
	return i, err
}

// lookup resolves a path from a subvolume's root. A symbolic link at its end is followed only if follow is set.
func (f *FS) lookup(t *tree, name string, follow bool) (*inode, error) {
	root, err := f.inode(t, t.folder)
	if err != nil {
		return nil, err
	}
	return openfs.Folders[*inode]{
		Child: func(dir *inode, part string) (*inode, error) {
			if dir.mode&typeMask != typeDir || dir.tree == nil {
				return nil, fmt.Errorf("%w: %s", ErrNone, name)
			}
			k, err := f.entry(dir.tree, dir.number, part)
			if err != nil {
				return nil, err
			}
			return f.target(dir, part, k)
		},
		IsLink: func(i *inode) bool { return i.mode&typeMask == typeSymlink }, Link: f.link, None: ErrNone,
	}.Walk(root, name, follow)
}
