package swarm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ingot-metal/ingot/images/index"
)

// TestPacker holds that a repacked chunk has the same content, that it never exceeds the limit, and that wrong content
// is detected.
func TestPacker(t *testing.T) {
	p, err := newPacker()
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, maxPacked)
	for _, size := range []int{index.ChunkSize, index.ChunkSize - 1<<20, 3*index.BlockSize + 512, 512} {
		for _, noise := range []int{size, size / 3, 0} {
			raw := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(noise)}).Read(raw[:noise])
			read := func(off int64, dst []byte) error {
				copy(dst, raw[off:])
				return nil
			}
			want := short(index.AppendSums(nil, raw))
			n, err := p.pack(dst, int64(size), want, read)
			if err != nil {
				t.Fatalf("%d bytes, %d of them noise: %v", size, noise, err)
			}
			got := make([]byte, size)
			if err := index.DecodeChunk(dst[:n], got); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("%d bytes, %d of them noise: %v", size, noise, err)
			}
			if _, err := p.pack(dst[:n-1], int64(size), want, read); !errors.Is(err, errFull) {
				t.Errorf("%d bytes into %d: %v", n, n-1, err)
			}
			raw[size-1] ^= 1
			if _, err := p.pack(dst, int64(size), want, read); !errors.Is(err, errContent) {
				t.Errorf("wrong content: %v", err)
			}
		}
	}
}
