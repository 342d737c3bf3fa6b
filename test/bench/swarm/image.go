package main

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/klauspost/compress/zstd"
)

const imageName = "image.ingot"

// perChunk is how much a chunk takes as published: that of a Debian cloud image, about.
const perChunk = 1400 << 10

// makeImage makes a published image whose objects have about so many MiB, if it is not there. Its first chunk is small, as that of any disk:
// a partition table and a boot loader.
func makeImage(dir string, mib int) error {
	if _, err := os.Stat(filepath.Join(dir, imageName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	src := rand.NewChaCha8([32]byte{7})
	chunks := max(2, mib<<20/perChunk)
	x := &index.Index{Size: int64(chunks) * index.ChunkSize}
	whole := sha256.New()
	raw := make([]byte, index.ChunkSize)
	var list []byte
	keep := func(b []byte) (index.Object, error) {
		o := index.Of(b)
		path := filepath.Join(dir, o.Path())
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return o, err
		}
		return o, os.WriteFile(path, b, 0o644)
	}
	flush := func() error {
		o, err := keep(z.EncodeAll(list, nil))
		x.Lists = append(x.Lists, o)
		list = nil
		return err
	}
	for i := range chunks {
		clear(raw)
		n := perChunk
		if i == 0 {
			n = 128 << 10
		}
		_, _ = src.Read(raw[:n]) // what can't be packed, then zeros: many nodes share these processors, and unpacking is not what is measured
		_, _ = whole.Write(raw)
		for b := 0; b < index.ChunkSize; b += index.BlockSize {
			s := index.SumBlock(raw[b : b+index.BlockSize])
			list = append(list, s[:]...)
		}
		o, err := keep(z.EncodeAll(raw, nil))
		if err != nil {
			return err
		}
		x.Chunks = append(x.Chunks, o)
		if len(x.Chunks)%index.ListChunks == 0 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if list != nil {
		if err := flush(); err != nil {
			return err
		}
	}
	x.SHA256 = [32]byte(whole.Sum(nil))
	return os.WriteFile(filepath.Join(dir, imageName), x.Marshal(), 0o644)
}
