// Package pubimage makes published images of generated content: like `ingot image publish`, but without a source, and
// without processing zeros.
package pubimage

import (
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/klauspost/compress/zstd"
)

// Write writes an image of size bytes into a directory: its objects, and the index under name with index.Suffix.
// content returns a complete chunk, and is called in order; nil is zeros. The index's digest of the whole image is left
// out.
func Write(dir, name string, size int64, content func(chunk int) []byte) (*index.Index, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var packed []byte
	keep := func(b []byte) (index.Object, error) {
		packed = z.EncodeAll(b, packed[:0])
		o := index.Of(packed)
		path := filepath.Join(dir, filepath.FromSlash(o.Path()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return o, err
		}
		return o, os.WriteFile(path, packed, 0o644)
	}
	chunks := int((size + index.ChunkSize - 1) / index.ChunkSize)
	x := &index.Index{Size: size, Chunks: make([]index.Object, chunks),
		Lists: make([]index.Object, (chunks+index.ListChunks-1)/index.ListChunks)}
	for l := range x.Lists {
		var sums []byte
		first := l * index.ListChunks
		for i := first; i < min(first+index.ListChunks, chunks); i++ {
			raw := content(i)
			if raw == nil {
				continue
			}
			if sums == nil {
				sums = make([]byte, index.BlocksOf(x.ListBytes(l))*index.SumSize)
			}
			at := sums[(i-first)*index.ChunkSize/index.BlockSize*index.SumSize:]
			for b := 0; b < len(raw); b += index.BlockSize {
				s := index.SumBlock(raw[b:min(b+index.BlockSize, len(raw))])
				copy(at[b/index.BlockSize*index.SumSize:], s[:])
			}
			if x.Chunks[i], err = keep(raw); err != nil {
				return nil, err
			}
		}
		if sums == nil {
			continue
		}
		if x.Lists[l], err = keep(sums); err != nil {
			return nil, err
		}
	}
	return x, os.WriteFile(filepath.Join(dir, name+index.Suffix), x.Marshal(), 0o644)
}
