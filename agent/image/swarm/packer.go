package swarm

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/klauspost/compress/zstd"
)

// packer packs chunks that are read back. It takes about 3 MiB, for any chunk.
type packer struct {
	piece *[1 << 20]byte // large enough for Go to align it to a page, as direct reads need
	zstd  *zstd.Encoder
	sums  []byte
}

func newPacker() (*packer, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<20), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	return &packer{piece: new([1 << 20]byte), zstd: z}, nil
}

// errFull says that the packed chunk does not fit.
var errFull = errors.New("packed again it is larger than a chunk may be")

// limited is a buffer of limited size.
type limited struct {
	mem []byte
	n   int
}

func (l *limited) Write(b []byte) (int, error) {
	k := copy(l.mem[l.n:], b)
	l.n += k
	if k < len(b) {
		return k, errFull
	}
	return k, nil
}

// pack packs a chunk of size bytes into dst and returns the packed length. The data must match want.
func (p *packer) pack(dst []byte, size int64, want [sumSize]byte, read func(off int64, dst []byte) error) (int, error) {
	out := &limited{mem: dst}
	p.zstd.ResetContentSize(out, size)
	p.sums = p.sums[:0]
	for off := int64(0); off < size; off += int64(len(p.piece)) {
		data := p.piece[:min(int64(len(p.piece)), size-off)]
		if err := read(off, data); err != nil {
			return 0, err
		}
		p.sums = index.AppendSums(p.sums, data)
		if _, err := p.zstd.Write(data); err != nil {
			return 0, err
		}
	}
	if short(p.sums) != want {
		return 0, fmt.Errorf("read back from the disk: %w", errContent)
	}
	if err := p.zstd.Close(); err != nil {
		return 0, err
	}
	return out.n, nil
}

// short returns the kept part of the digest of a chunk's block digests.
func short(list []byte) [sumSize]byte {
	sum := sha256.Sum256(list)
	return [sumSize]byte(sum[:])
}
