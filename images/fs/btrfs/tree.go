package btrfs

import (
	"bytes"
	"fmt"
	"math"
	"sort"
)

// Numbers of trees and objects, and kinds of items.
const (
	rootTree    = 1
	chunkTree   = 3
	topTree     = 5
	firstTree   = 256 // of subvolumes
	chunkObject = 256

	kindInode    = 1
	kindName     = 84 // a name by its hash
	kindIndex    = 96 // a name by its position in the directory
	kindExtent   = 108
	kindRoot     = 132
	kindRootName = 156 // the place of a subvolume in another one
	kindChunk    = 228

	headSize = 101
	keySize  = 17
	itemSize = 25
	pointer  = 33
)

type key struct {
	object uint64
	kind   uint8
	offset uint64
}

func parseKey(b []byte) key { return key{le.Uint64(b), b[8], le.Uint64(b[9:])} }

func (k key) less(o key) bool {
	if k.object != o.object {
		return k.object < o.object
	}
	if k.kind != o.kind {
		return k.kind < o.kind
	}
	return k.offset < o.offset
}

// tree is the root of a tree.
type tree struct {
	id         uint64
	at         uint64
	generation uint64
	level      int
	folder     uint64 // of a subvolume: the inode of its root
}

// isSubvolume reports whether a tree number is of a tree that holds files.
func isSubvolume(id uint64) bool { return id == topTree || id >= firstTree && id < 1<<48 }

// node is a checked block of a tree.
type node struct {
	b                 []byte
	generation, owner uint64
	level, n          int
}

func (n *node) key(i int) key {
	if n.level > 0 {
		return parseKey(n.b[headSize+pointer*i:])
	}
	return parseKey(n.b[headSize+itemSize*i:])
}

func (n *node) item(i int) []byte {
	h := n.b[headSize+itemSize*i+keySize:]
	at := headSize + int(le.Uint32(h))
	return n.b[at : at+int(le.Uint32(h[4:]))]
}

// load reads a block of a tree, or takes it from the cache.
func (f *FS) load(at uint64) (*node, error) {
	if n, ok := f.kept[at]; ok {
		return n, f.charge(256) // approximate cost of a search in it
	}
	damaged := fmt.Errorf("%w: the node at %d is damaged", ErrNot, at)
	b := make([]byte, f.nodeSize)
	if err := f.read(b, at); err != nil {
		return nil, err
	}
	if !f.sum(b) {
		return nil, fmt.Errorf("%w: wrong checksum in the node at %d", ErrNot, at)
	}
	if !bytes.Equal(b[32:48], f.meta[:]) || le.Uint64(b[48:]) != at {
		return nil, fmt.Errorf("%w: the node at %d is not the one that should be there", ErrNot, at)
	}
	n := &node{b: b, generation: le.Uint64(b[80:]), owner: le.Uint64(b[88:]), level: int(b[100])}
	count, each := le.Uint32(b[96:]), itemSize
	if n.level > 0 {
		each = pointer
	}
	if n.level > maxLevel || count > uint32((len(b)-headSize)/each) || n.level > 0 && count == 0 {
		return nil, damaged
	}
	n.n = int(count)
	for i := range n.n {
		if i > 0 && !n.key(i-1).less(n.key(i)) {
			return nil, damaged
		}
		if n.level > 0 {
			continue
		}
		h := b[headSize+itemSize*i+keySize:]
		if from, size := uint64(le.Uint32(h)), uint64(le.Uint32(h[4:])); from < uint64(itemSize*n.n) ||
			from+size > uint64(len(b)-headSize) {
			return nil, damaged
		}
	}
	if len(f.used) == keptNodes {
		delete(f.kept, f.used[0])
		f.used = f.used[1:]
	}
	f.kept[at], f.used = n, append(f.used, at)
	return n, nil
}

// each yields the items of a tree from a key on, in order, while put returns true.
func (f *FS) each(t *tree, from key, put func(k key, item []byte) (more bool, err error)) error {
	_, err := f.walk(t, t.at, t.generation, t.level, nil, from, put)
	return err
}

func (f *FS) walk(t *tree, at, generation uint64, level int, first *key, from key,
	put func(key, []byte) (bool, error)) (bool, error) {
	n, err := f.load(at)
	if err != nil {
		return false, err
	}
	// Subvolumes share nodes; other trees have their own.
	owned := n.owner == t.id || isSubvolume(t.id) && isSubvolume(n.owner)
	if !owned || n.level != level || n.generation != generation || first != nil && (n.n == 0 || n.key(0) != *first) {
		return false, fmt.Errorf("%w: the node at %d is not the one that should be there", ErrNot, at)
	}
	if level == 0 {
		for i := sort.Search(n.n, func(i int) bool { return !n.key(i).less(from) }); i < n.n; i++ {
			if more, err := put(n.key(i), n.item(i)); !more || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	for i := max(0, sort.Search(n.n, func(i int) bool { return from.less(n.key(i)) })-1); i < n.n; i++ {
		k, p := n.key(i), n.b[headSize+pointer*i+keySize:]
		if more, err := f.walk(t, le.Uint64(p), le.Uint64(p[8:]), level-1, &k, from, put); !more || err != nil {
			return false, err
		}
	}
	return true, nil
}

// get returns the item of one key.
func (f *FS) get(t *tree, want key) ([]byte, error) {
	var out []byte
	err := f.each(t, want, func(k key, item []byte) (bool, error) {
		if k == want {
			out = item
		}
		return false, nil
	})
	if err == nil && out == nil {
		err = ErrNone
	}
	return out, err
}

// subvolume finds the tree of a subvolume.
func (f *FS) subvolume(id uint64) (*tree, error) {
	if !isSubvolume(id) {
		return nil, fmt.Errorf("%w: %d is no subvolume", ErrNot, id)
	}
	var out *tree
	err := f.each(&f.roots, key{id, kindRoot, 0}, func(k key, b []byte) (bool, error) {
		if k.object != id || k.kind != kindRoot {
			return false, nil
		}
		if len(b) < 239 || b[238] > maxLevel {
			return false, fmt.Errorf("%w: subvolume %d is damaged", ErrNot, id)
		}
		if le.Uint32(b[216:]) > 0 { // else it is being deleted
			out = &tree{id: id, at: le.Uint64(b[176:]), generation: le.Uint64(b[160:]), level: int(b[238]),
				folder: le.Uint64(b[168:])}
		}
		return k.offset < math.MaxUint64, nil
	})
	if err == nil && out == nil {
		err = fmt.Errorf("%w: subvolume %d does not exist", ErrNot, id)
	}
	return out, err
}
