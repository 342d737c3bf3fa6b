package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"

	"github.com/ingot-metal/ingot/images"
)

func packLZ4(t testing.TB, raw []byte) []byte {
	t.Helper()
	b, err := EncodeLZ4(raw)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLZ4Chunks: a chunk comes back, and any other program that reads LZ4 frames gets the same.
func TestLZ4Chunks(t *testing.T) {
	half := append(noise(ChunkSize/2, 1), make([]byte, ChunkSize/2)...)
	for _, raw := range [][]byte{half, noise(ChunkSize, 2), noise(1, 3), bytes.Repeat([]byte{9}, ChunkSize),
		bytes.Repeat([]byte("abcd"), 9999), noise(65537, 4)} {
		stored := packLZ4(t, raw)
		if len(stored) > MaxStored || !IsLZ4(stored) || !bytes.Equal(stored, packLZ4(t, raw)) {
			t.Errorf("%d bytes packed into %d", len(raw), len(stored))
		}
		got := append(make([]byte, len(raw)), 0xa5)
		if err := DecodeChunk(stored, got[:len(raw)]); err != nil || !bytes.Equal(got[:len(raw)], raw) ||
			got[len(raw)] != 0xa5 {
			t.Errorf("%d bytes: %v", len(raw), err)
		}
		other, err := io.ReadAll(lz4.NewReader(bytes.NewReader(stored)))
		if err != nil || !bytes.Equal(other, raw) {
			t.Errorf("%d bytes, read as a file: %v", len(raw), err)
		}
	}
}

func TestLZ4ChunksThatAreRefused(t *testing.T) {
	raw := bytes.Repeat([]byte("an operating system "), 5000)
	good := packLZ4(t, raw)
	change := func(f func(b []byte) []byte) []byte { return f(bytes.Clone(good)) }
	le := binary.LittleEndian
	for name, stored := range map[string][]byte{
		"cut":                good[:len(good)-1],
		"cut in its header":  good[:9],
		"cut behind it":      good[:lz4Header+3],
		"something behind":   append(bytes.Clone(good), 0),
		"another behind":     append(bytes.Clone(good), good...),
		"another size":       packLZ4(t, raw[1:]),
		"a size that lies":   append(lz4HeaderOf(len(raw)), packLZ4(t, raw[1:])[lz4Header:]...),
		"another header":     change(func(b []byte) []byte { b[4] |= lz4Plain >> 29; return b }),
		"a wrong header sum": change(func(b []byte) []byte { b[lz4Header-1]++; return b }),
		"no end mark":        change(func(b []byte) []byte { b[len(b)-1] = 1; return b }),
		"a block too long": change(func(b []byte) []byte {
			le.PutUint32(b[lz4Header:], le.Uint32(b[lz4Header:])+1)
			return b
		}),
		"a huge block": change(func(b []byte) []byte { le.PutUint32(b[lz4Header:], 1<<31-1); return b }),
		"plain, but too long": append(le.AppendUint32(le.AppendUint32(lz4HeaderOf(len(raw)), 4|lz4Plain), 0), 0, 0, 0,
			0),
		"no block": le.AppendUint32(le.AppendUint32(lz4HeaderOf(len(raw)), 0), 0),
		"a reference before the beginning": append(le.AppendUint32(lz4HeaderOf(len(raw)), 4),
			0x0f, 1, 0, 0, 0, 0, 0, 0),
	} {
		err := DecodeChunk(stored, make([]byte, len(raw)))
		var refused *images.Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "lz4") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := DecodeChunk(lz4HeaderOf(0), nil); err == nil {
		t.Error("an empty chunk")
	}
}

// TestIndexSaysThatItHasLZ4, so that a program that knows zstd alone refuses the image before it touches a disk.
func TestIndexSaysThatItHasLZ4(t *testing.T) {
	x := sample()
	plain := x.Marshal()
	x.LZ4 = true
	b := x.Marshal()
	flags := len(magic) + 4*5
	if le := binary.LittleEndian; le.Uint32(plain[flags:]) != 0 || le.Uint32(b[flags:]) != 1 {
		t.Error("the flags are not those of the format")
	}
	if got, err := Parse(b); err != nil || !got.LZ4 {
		t.Errorf("%+v, %v", got, err)
	}
	b[flags] |= 2
	if _, err := Parse(seal(b)); err == nil || !strings.Contains(err.Error(), "flags 0x3") {
		t.Errorf("an unknown flag: %v", err)
	}
}
