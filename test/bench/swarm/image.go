package main

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit/pubimage"
)

const imageName = "image.ingot"

// perChunk is how much a chunk takes as published: that of a Debian cloud image, about.
const perChunk = 1400 << 10

// makeImage makes a published image whose objects have about so many MiB, if it is not there. Its first chunk is small,
// as that of any disk: a partition table and a boot loader.
func makeImage(dir string, mib int) error {
	if _, err := os.Stat(filepath.Join(dir, imageName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	src := rand.NewChaCha8([32]byte{7})
	chunks := max(2, mib<<20/perChunk)
	whole := sha256.New()
	raw := make([]byte, index.ChunkSize)
	x, err := pubimage.Write(dir, strings.TrimSuffix(imageName, index.Suffix), int64(chunks)*index.ChunkSize,
		func(i int) []byte {
			clear(raw)
			n := perChunk
			if i == 0 {
				n = 128 << 10
			}
			// incompressible data, then zeros: many nodes share these processors, and decompression is not measured
			_, _ = src.Read(raw[:n])
			_, _ = whole.Write(raw)
			return raw
		})
	if err != nil {
		return err
	}
	x.SHA256 = [32]byte(whole.Sum(nil))
	return os.WriteFile(filepath.Join(dir, imageName), x.Marshal(), 0o644)
}
