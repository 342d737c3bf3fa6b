package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"

	"github.com/ingot-metal/ingot/images"
)

// sample is the index of a disk of three chunks and a bit, one of them zeros.
func sample() *Index {
	return &Index{
		Size: 3*ChunkSize + 1000, SHA256: [32]byte{7}, Sector: 512, Head: images.GPT, Source: "debian-12.qcow2",
		Chunks: []Object{Of([]byte("a")), {}, Of([]byte("bc")), Of([]byte("a"))},
		Lists:  []Object{Of([]byte("list"))},
	}
}

func TestIndexIsReadAsItIsWritten(t *testing.T) {
	x := sample()
	b := x.Marshal()
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(x, got); d != "" {
		t.Error(d)
	}
	if !IsIndex(b) || IsIndex(b[1:]) || !bytes.Equal(got.Marshal(), b) {
		t.Error("not the same bytes again")
	}
	if n, o := x.Stored(); n != 1+2+4 || o != 3 {
		t.Errorf("Stored() = %d, %d", n, o)
	}
	if x.Data() != 2*ChunkSize+1000 || x.ChunkLen(0) != ChunkSize || x.ChunkLen(3) != 1000 || x.ListLen(0) != 4 ||
		x.ListBytes(0) != x.Size {
		t.Error("lengths")
	}
	if p := x.Chunks[0].Path(); p != "objects/ca/ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" {
		t.Errorf("Path() = %s", p)
	}
}

// TestEveryByteOfAnIndexCounts: any change, truncation or addition is detected.
func TestEveryByteOfAnIndexCounts(t *testing.T) {
	b := sample().Marshal()
	for i := range b {
		for _, bit := range []byte{1, 0x80} {
			c := bytes.Clone(b)
			c[i] ^= bit
			if _, err := Parse(c); err == nil {
				t.Fatalf("a flip of %#x in byte %d of %d is not seen", bit, i, len(b))
			}
		}
		if _, err := Parse(b[:i]); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted", i, len(b))
		}
	}
	if _, err := Parse(append(bytes.Clone(b), 0)); err == nil {
		t.Error("a byte more is accepted")
	}
}

// seal gives an index whose bytes were changed a right checksum again, as a liar would.
func seal(b []byte) []byte {
	n := len(b) - sha256.Size
	sum := sha256.Sum256(b[:n])
	return append(bytes.Clone(b[:n]), sum[:]...)
}

func TestParseRefuses(t *testing.T) {
	put32 := func(off int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[off:], v); return b }
	}
	put64 := func(off int, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint64(b[off:], v); return b }
	}
	texts := 8 + 24 + 8 + 32
	entries := texts + 4 + len(images.GPT) + 4 + len("debian-12.qcow2")
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   string
	}{
		{"later version", put32(8, 3), "version 3"},
		{"earlier version", put32(8, 1), "version 1"},
		{"other chunks", put32(12, 1<<20), "chunks of 1048576 bytes"},
		{"other blocks", put32(16, 4096), "blocks of 4096"},
		{"other lists", put32(20, 7), "7 chunks to a list"},
		{"sector", put32(24, 520), "sectors of 520"},
		{"flags", put32(28, 2), "flags 0x2"},
		{"no disk", put64(32, 0), "disk of 0 bytes"},
		{"a huge disk", put64(32, 1<<63), "disk of 9223372036854775808 bytes"},
		{"a smaller disk", put64(32, ChunkSize), "bytes of entries"},
		{"a larger disk", put64(32, MaxSize), "bytes of entries"},
		{"a long text", put32(texts, 1<<31), "a text of 2147483648 bytes"},
		{"a text over the end", put32(texts, 900), "a text of 900 bytes"},
		{"a text to the terminal", func(b []byte) []byte { b[texts+4] = 27; return b }, "not printable"},
		{"a large object", put32(entries+32, MaxStored+1), "entry 0 of the index claims an object of 4259841 bytes"},
		{"an object without bytes", put32(entries+32, 0), "neither an object nor zeros"},
		{"zeros with bytes", put32(entries+36+32, 1), "neither an object nor zeros"},
		{"no list", func(b []byte) []byte { clear(b[entries+4*36:][:36]); return b }, "block list 0"},
		{"a list of nothing", func(b []byte) []byte { clear(b[entries:][:4*36]); return b }, "block list 0"},
	} {
		_, err := Parse(seal(c.change(sample().Marshal())))
		var refused *images.Error
		if !errors.As(err, &refused) || refused.Remedy == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := Parse(append([]byte(magic), make([]byte, MaxIndex)...)); err == nil ||
		!strings.Contains(err.Error(), "more than") {
		t.Errorf("an endless index: %v", err)
	}
}

func TestLargestIndexFits(t *testing.T) {
	chunks, lists := counts(MaxSize)
	x := &Index{Size: MaxSize, Chunks: make([]Object, chunks), Lists: make([]Object, lists),
		Source: strings.Repeat("x", maxText)}
	if b := x.Marshal(); len(b) > MaxIndex {
		t.Errorf("it takes %d bytes", len(b))
	}
}

func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func encode(t testing.TB, b []byte, o ...zstd.EOption) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, append(o, zstd.WithZeroFrames(true), zstd.WithSingleSegment(true))...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

func TestDecodeChunk(t *testing.T) {
	half := append(noise(ChunkSize/2, 1), make([]byte, ChunkSize/2)...)
	for _, raw := range [][]byte{half, noise(ChunkSize, 2), noise(1, 3), bytes.Repeat([]byte{9}, ChunkSize),
		noise(65537, 4)} {
		stored := encode(t, raw)
		if len(stored) > MaxStored {
			t.Errorf("%d bytes packed into %d", len(raw), len(stored))
		}
		got := make([]byte, len(raw), len(raw)+100)
		if err := DecodeChunk(stored, got); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%d bytes: %v", len(raw), err)
		}
		if n := testing.AllocsPerRun(5, func() { DecodeChunk(stored, got) }); n > 20 {
			t.Errorf("%v allocations", n)
		}
	}
}

func TestDecodeChunkRefuses(t *testing.T) {
	raw := noise(100_000, 1)
	good := encode(t, raw)
	var stream bytes.Buffer
	w, err := zstd.NewWriter(&stream)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(raw[:10])
	w.Flush()
	w.Write(raw[10:])
	w.Close()
	for _, c := range []struct {
		name   string
		stored []byte
		want   string
	}{
		{"nothing", nil, "not packed"},
		{"no frame", []byte("hello, world, this is no frame"), "not packed"},
		{"cut", good[:len(good)-1], "chunk"},
		{"cut in a header", good[:len(good)-len(good)/2], "truncated"},
		{"two frames", append(bytes.Clone(good), good...), "follows"},
		{"an empty frame behind", append(bytes.Clone(good), encode(t, nil)...), "follows"},
		{"a skippable frame before", append([]byte("\x50\x2a\x4d\x18\x00\x00\x00\x00"), good...), "skippable"},
		{"rubbish behind", append(bytes.Clone(good), 0), "follows"},
		{"a frame of another size", encode(t, raw[1:]), "another size"},
		{"a frame without a size", stream.Bytes(), "does not tell"},
	} {
		err := DecodeChunk(c.stored, make([]byte, len(raw)))
		var refused *images.Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	lying := bytes.Clone(good)
	lying[5]++ // the frame's size, in a header that is one segment
	if err := DecodeChunk(lying, make([]byte, len(raw)+1)); err == nil {
		t.Error("a frame that lies about its size")
	}
}

func TestBlocks(t *testing.T) {
	const n = ChunkSize + 3*BlockSize + 10
	data := noise(n, 1)
	clear(data[BlockSize : 2*BlockSize])
	var list []byte
	for off := 0; off < n; off += BlockSize {
		s := SumBlock(data[off:min(off+BlockSize, n)])
		list = append(list, s[:]...)
	}
	b, err := ParseBlocks(encode(t, list), n)
	if err != nil {
		t.Fatal(err)
	}
	if b.Sum(0, 1) != [32]byte{} || b.Sum(0, 0) != blake3.Sum256(data[:BlockSize]) ||
		b.Sum(1, 3) != blake3.Sum256(data[n-10:]) {
		t.Error("wrong digests")
	}
	if len(b.Chunk(0)) != 64*32 || len(b.Chunk(1)) != 4*32 || b.Chunk(1).Sum(0, 3) != b.Sum(1, 3) {
		t.Error("wrong digests of a chunk")
	}
	if _, err := ParseBlocks(encode(t, list[:len(list)-32]), n); err == nil {
		t.Error("a list that is too short is accepted")
	}
	if b, err := ParseBlocks(nil, n); err != nil || len(b) != len(list) || !IsZero(b) {
		t.Errorf("the list of zeros: %d, %v", len(b), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample().Marshal())
	f.Add([]byte(magic))
	f.Add((&Index{Size: 1, Chunks: make([]Object, 1), Lists: make([]Object, 1)}).Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > headerSize+sha256.Size {
			b = seal(b) // else nothing gets past the checksum
		}
		x, err := Parse(b)
		if err != nil {
			return
		}
		if !bytes.Equal(x.Marshal(), b) {
			t.Fatal("an index that can be written in two ways")
		}
		for i := range x.Lists {
			if x.ListLen(i) < 1 || x.ListBytes(i) < 1 {
				t.Fatal("an empty list")
			}
		}
		for i := range x.Chunks {
			if n := x.ChunkLen(i); n < 1 || n > ChunkSize {
				t.Fatal("a chunk of impossible size")
			}
		}
	})
}

func FuzzDecodeChunk(f *testing.F) {
	f.Add(encode(f, noise(1000, 1)), 1000)
	f.Add(encode(f, make([]byte, 70000)), 70000)
	f.Add(encode(f, bytes.Repeat([]byte("abcd"), 5000)), 20000)
	f.Add(packLZ4(f, noise(1000, 1)), 1000)
	f.Add(packLZ4(f, bytes.Repeat([]byte("abcd"), 5000)), 20000)
	f.Add(packLZ4(f, append(noise(300, 2), noise(300, 2)...)), 600)
	f.Fuzz(func(t *testing.T, stored []byte, n int) {
		if n < 0 || n > 1<<20 {
			return
		}
		dst := make([]byte, n+16)
		for i := range dst {
			dst[i] = 0xa5
		}
		err := DecodeChunk(stored, dst[:n])
		for _, v := range dst[n:] {
			if v != 0xa5 {
				t.Fatal("written behind the end")
			}
		}
		if err == nil {
			again := make([]byte, n)
			if DecodeChunk(stored, again) != nil || !bytes.Equal(again, dst[:n]) {
				t.Fatal("the second time was different")
			}
		}
	})
}
