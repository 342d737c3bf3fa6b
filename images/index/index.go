// Package index is the published form of an image: the disk in chunks that are compressed individually and named after
// their content, and an index that lists them. docs/reference/published-image-format.md is its specification.
//
// Parse reads an index and Marshal writes one; both use no network and no files. An Object is a stored object,
// identified by the SHA-256 of its stored bytes, independent of its place. There are two kinds: a chunk of the disk,
// decoded by DecodeChunk, and a block list, decoded by ParseBlocks: the BLAKE3 digest of each 64 KiB of the disk, for
// comparing with the present content of a disk.
//
// All input may be hostile: sizes are checked against the limits below before anything is allocated, and accepted input
// is complete and unambiguous. Offsets and sizes are bytes. An *images.Error carries a remedy; every error of this
// package is one.
package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/images"
)

// Sizes of a published image. They are stored in an index, and version 2 allows no others.
const (
	ChunkSize  = 4 << 20  // of the disk, in one chunk
	BlockSize  = 64 << 10 // of the disk, for one digest in a block list
	ListChunks = 1024     // chunks for one block list
)

// Limits of an index.
const (
	MaxSize       = 2 << 40                    // of the disk
	MaxStored     = ChunkSize + ChunkSize/64   // of a stored object
	MaxIndex      = 20 << 20                   // of an index in bytes: for a disk of MaxSize, with its texts
	blocksInList  = ListChunks * blocksInChunk // digests in a full block list
	blocksInChunk = ChunkSize / BlockSize
)

// Suffix of an index file's name.
const Suffix = ".ingot"

const (
	magic      = "\x89INGOT\r\n" // not text: a conversion of line ends damages it detectably
	version    = 2
	headerSize = 8 + 4*6 + 8 + sha256.Size
	entrySize  = sha256.Size + 4
	flagLZ4    = 1
	maxText    = 1024
)

// Object is a stored object. The zero Object stands for zeros, which are not stored.
type Object struct {
	Sum [sha256.Size]byte // of the stored bytes
	Len int64             // of the stored bytes; 0: no object, all zeros
}

// Of returns the object of these stored bytes.
func Of(stored []byte) Object { return Object{sha256.Sum256(stored), int64(len(stored))} }

// Path returns the object's path below the directory of the index, with slashes.
func (o Object) Path() string {
	h := hex.EncodeToString(o.Sum[:])
	return "objects/" + h[:2] + "/" + h
}

// String returns "sha256:<hex>".
func (o Object) String() string { return "sha256:" + hex.EncodeToString(o.Sum[:]) }

// Verify checks that stored is this object.
func (o Object) Verify(stored []byte) error {
	if int64(len(stored)) != o.Len {
		return refuse(remedyObject, "object %s is %d bytes long, not %d", o, len(stored), o.Len)
	}
	if sha256.Sum256(stored) != o.Sum {
		return refuse(remedyObject, "object %s is damaged: its bytes have the SHA-256 %x", o, sha256.Sum256(stored))
	}
	return nil
}

// Index describes a published image.
type Index struct {
	Size   int64             // of the disk
	SHA256 [sha256.Size]byte // of the whole disk, holes included
	Chunks []Object          // one for each ChunkSize of the disk, the last of which may be shorter
	Lists  []Object          // block lists, one for each ListChunks chunks
	Sector int               // sector size of the disk's GPT, 512 or 4096; 0: unknown
	Head   images.Content    // content of the disk's beginning: images.GPT, images.MBR, or a file system's name
	Source string            // origin, for people
	LZ4    bool              // chunks may be LZ4 frames; else all are of zstd
}

const (
	remedyIndex  = "check that image_source leads to the index of a published image, and publish the image again if it does"
	remedyObject = "check the server's copy of the published image (ingot image verify), and publish the image again if it is damaged"
)

func refuse(remedy, format string, args ...any) error {
	return &images.Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// IsIndex reports whether a file with this beginning is an index.
func IsIndex(head []byte) bool { return bytes.HasPrefix(head, []byte(magic)) }

// counts returns the numbers of chunks and lists of a disk.
func counts(size int64) (chunks, lists int) {
	chunks = int((size + ChunkSize - 1) / ChunkSize)
	return chunks, (chunks + ListChunks - 1) / ListChunks
}

// ChunkLen returns the length of chunk i.
func (x *Index) ChunkLen(i int) int64 { return min(ChunkSize, x.Size-int64(i)*ChunkSize) }

// ListLen returns the number of chunks that block list i covers.
func (x *Index) ListLen(i int) int { return min(ListChunks, len(x.Chunks)-i*ListChunks) }

// Stored returns the total length of the distinct objects of the image, chunks and lists, and their number.
func (x *Index) Stored() (bytes int64, objects int) {
	seen := make(map[[sha256.Size]byte]bool)
	for _, list := range [][]Object{x.Chunks, x.Lists} {
		for _, o := range list {
			if o.Len > 0 && !seen[o.Sum] {
				seen[o.Sum] = true
				bytes += o.Len
			}
		}
	}
	return bytes, len(seen)
}

// Data returns the number of bytes of the disk in stored chunks.
func (x *Index) Data() int64 {
	var n int64
	for i, o := range x.Chunks {
		if o.Len > 0 {
			n += x.ChunkLen(i)
		}
	}
	return n
}

// Marshal encodes the index. The result depends only on the fields. It panics if they break the rules that Parse
// checks: an unreadable index must not be published.
func (x *Index) Marshal() []byte {
	b := make([]byte, 0, headerSize+8+len(x.Head)+len(x.Source)+entrySize*(len(x.Chunks)+len(x.Lists))+sha256.Size)
	le := binary.LittleEndian
	b = append(b, magic...)
	flags := 0
	if x.LZ4 {
		flags |= flagLZ4
	}
	for _, v := range []int{version, ChunkSize, BlockSize, ListChunks, x.Sector, flags} {
		b = le.AppendUint32(b, uint32(v))
	}
	b = le.AppendUint64(b, uint64(x.Size))
	b = append(b, x.SHA256[:]...)
	for _, s := range []string{string(x.Head), x.Source} {
		b = le.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	for _, list := range [][]Object{x.Chunks, x.Lists} {
		for _, o := range list {
			b = append(b, o.Sum[:]...)
			b = le.AppendUint32(b, uint32(o.Len))
		}
	}
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	if _, err := Parse(b); err != nil {
		panic("index: Marshal of an impossible index: " + err.Error())
	}
	return b
}

// Parse parses an index and checks all of it. Each accepted index has only one encoding: Marshal returns the same
// bytes.
func Parse(b []byte) (*Index, error) {
	switch {
	case !IsIndex(b):
		return nil, refuse(remedyIndex, "this is not the index of a published image")
	case len(b) > MaxIndex:
		return nil, refuse(remedyIndex, "the index is %d bytes long, more than the %d that are allowed", len(b),
			MaxIndex)
	case len(b) < headerSize+8+sha256.Size:
		return nil, refuse(remedyIndex, "the index is truncated after %d bytes", len(b))
	}
	le := binary.LittleEndian
	field := func(i int) uint32 { return le.Uint32(b[len(magic)+4*i:]) }
	// The version comes before the checksum: a later version may have its checksum elsewhere.
	if v := field(0); v != version {
		return nil, refuse("update Ingot, or publish the image again with this version of it",
			"the index has version %d, and this program reads version %d", v, version)
	}
	body := b[:len(b)-sha256.Size]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], b[len(body):]) {
		return nil, refuse(remedyIndex, "the index is damaged or truncated: its own checksum is wrong")
	}
	if field(1) != ChunkSize || field(2) != BlockSize || field(3) != ListChunks || field(5)&^flagLZ4 != 0 {
		return nil, refuse(remedyIndex,
			"the index has chunks of %d bytes, blocks of %d, %d chunks to a list and flags %#x, which version %d does not allow",
			field(1), field(2), field(3), field(5), version)
	}
	sector := field(4)
	if sector != 0 && sector != 512 && sector != 4096 {
		return nil, refuse(remedyIndex, "the index claims sectors of %d bytes", sector)
	}
	size := le.Uint64(b[len(magic)+24:])
	if size == 0 || size > MaxSize {
		return nil, refuse(remedyIndex, "the index claims a disk of %d bytes; 1 to %d are possible", size,
			int64(MaxSize))
	}
	x := &Index{Size: int64(size), Sector: int(sector), LZ4: field(5)&flagLZ4 != 0}
	copy(x.SHA256[:], b[len(magic)+32:])
	rest := body[headerSize:]
	var head string
	for _, s := range []*string{&head, &x.Source} {
		if len(rest) < 4 {
			return nil, refuse(remedyIndex, "the index ends within its texts")
		}
		n := le.Uint32(rest)
		if rest = rest[4:]; n > maxText || int(n) > len(rest) {
			return nil, refuse(remedyIndex, "the index claims a text of %d bytes", n)
		}
		*s, rest = string(rest[:n]), rest[n:]
		if !printable(*s) {
			return nil, refuse(remedyIndex, "a text in the index is not printable")
		}
	}
	x.Head = images.Content(head)
	chunks, lists := counts(x.Size)
	if len(rest) != entrySize*(chunks+lists) {
		return nil, refuse(remedyIndex, "the index has %d bytes of entries, and its disk of %d bytes needs %d",
			len(rest), size, entrySize*(chunks+lists))
	}
	all := make([]Object, chunks+lists)
	for i := range all {
		e := rest[entrySize*i:][:entrySize]
		o := &all[i]
		copy(o.Sum[:], e)
		o.Len = int64(le.Uint32(e[sha256.Size:]))
		if o.Len > MaxStored {
			return nil, refuse(remedyIndex, "entry %d of the index claims an object of %d bytes; %d are possible", i,
				o.Len, MaxStored)
		}
		if (o.Len == 0) != (o.Sum == [sha256.Size]byte{}) {
			return nil, refuse(remedyIndex, "entry %d of the index is neither an object nor zeros", i)
		}
	}
	x.Chunks, x.Lists = all[:chunks:chunks], all[chunks:]
	for i, l := range x.Lists {
		if empty := !hasData(x.Chunks[i*ListChunks:][:x.ListLen(i)]); empty != (l.Len == 0) {
			return nil, refuse(remedyIndex,
				"block list %d of the index does not fit its chunks: one of them is all zeros, and the other is not", i)
		}
	}
	return x, nil
}

func hasData(chunks []Object) bool {
	return slices.ContainsFunc(chunks, func(c Object) bool { return c.Len > 0 })
}

// printable texts can be logged and shown on a terminal unchanged.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
