package erase

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

const (
	sampleSize     = 4096
	defaultSamples = 128
	markerText     = "INGOT WROTE THIS BEFORE IT ERASED THE DISK. WHO READS IT AFTERWARDS HAS A DISK THAT WAS NOT ERASED. "
)

// proof holds data that must not be readable after the erase: markers, and digests of old content.
type proof struct {
	dev     disk.Device
	offsets []int64 // ascending
	markers map[int64][]byte
	old     map[int64][sha256.Size]byte
	block   []byte

	pattern bool // at the last check, only old content was found, no marker
}

// newProof chooses count places all over a disk, including its first and last block, remembers the content of half of
// them and prepares markers for the others.
func newProof(dev disk.Device, count int) (*proof, error) {
	p := &proof{dev: dev, markers: map[int64][]byte{}, old: map[int64][sha256.Size]byte{},
		block: disk.Aligned(sampleSize)}
	blocks := dev.Size() / sampleSize
	if blocks == 0 {
		return nil, step.Failf("name the disk in skip_block_devices", "the disk of %d bytes is too small to be erased",
			dev.Size())
	}
	last := dev.Size() - sampleSize
	last -= last % int64(dev.SectorSize())
	places := map[int64]bool{0: true, last: true}
	// Some in each part of the disk, at random within it: a disk that erased only one half is always detected.
	parts := min(int64(count), blocks)
	for i := range parts {
		from, to := blocks*i/parts, blocks*(i+1)/parts
		if from < to {
			places[(from+random(to-from))*sampleSize] = true
		}
	}
	p.offsets = slices.Sorted(maps.Keys(places))
	for i, off := range p.offsets {
		if i%2 == 0 || off == last {
			p.markers[off] = newMarker(off)
			continue
		}
		if _, err := dev.ReadAt(p.block, off); err != nil {
			continue // an unreadable place has no content to compare
		}
		if _, one := uniform(p.block); !one {
			p.old[off] = sha256.Sum256(p.block)
		}
	}
	return p, nil
}

func random(n int64) int64 {
	v, _ := rand.Int(rand.Reader, big.NewInt(n)) // crypto/rand never fails
	return v.Int64()
}

// mark writes the markers and reads them back: a marker that was never stored proves nothing.
func (p *proof) mark(ctx context.Context) error {
	marked := slices.Sorted(maps.Keys(p.markers))
	for _, off := range marked {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := p.dev.WriteAt(p.markers[off], off); err != nil {
			return fmt.Errorf("write a marker at byte %d: %w", off, err)
		}
	}
	if err := p.dev.Sync(); err != nil {
		return fmt.Errorf("flush the markers: %w", err)
	}
	for _, off := range marked {
		if _, err := p.dev.ReadAt(p.block, off); err != nil {
			return fmt.Errorf("read the marker at byte %d back: %w", off, err)
		}
		if !bytes.Equal(p.block, p.markers[off]) {
			return step.Failf("replace the disk: it does not keep what is written",
				"the marker at byte %d reads back different from what was written", off)
		}
	}
	return nil
}

// again prepares another proof with markers at all places, for content that is the same before and after because an
// earlier erase left it.
func (p *proof) again(ctx context.Context) error {
	clear(p.old)
	for _, off := range p.offsets {
		p.markers[off] = newMarker(off)
	}
	return p.mark(ctx)
}

func newMarker(off int64) []byte {
	m := disk.Aligned(sampleSize)
	rand.Read(m)
	copy(m, strings.Repeat(markerText, 4))
	copy(m, fmt.Sprintf("INGOT ERASE MARKER AT %d: ", off))
	return m
}

// content is the content of the disk that a method promises.
type content int

const (
	anything content = iota // but no old content
	oneByte                 // each block repeats one byte
	zeros
)

// check reads all places, and new random ones, and returns a summary. It fails if the disk kept anything, or does not
// read as promised.
func (p *proof) check(ctx context.Context, want content) (Samples, error) {
	s := Samples{Size: sampleSize, Markers: len(p.markers), Old: len(p.old), Kept: []int64{}, Offsets: []int64{}}
	places := slices.Clone(p.offsets)
	blocks := p.dev.Size() / sampleSize
	for range len(p.offsets) / 2 { // unpredictable before the erase
		places = append(places, random(blocks)*sampleSize)
	}
	slices.Sort(places)
	places = slices.Compact(places)
	var odd []int64
	p.pattern = true
	for _, off := range places {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		if _, err := p.dev.ReadAt(p.block, off); err != nil {
			return s, fmt.Errorf("read back byte %d: %w", off, err)
		}
		s.Read++
		s.Offsets = append(s.Offsets, off)
		b, one := uniform(p.block)
		switch {
		case one && b == 0:
			s.Zero++
		case one:
			s.Uniform++
		default:
			s.Noise++
		}
		old, had := p.old[off]
		switch {
		case bytes.Contains(p.block, []byte(markerText)) || bytes.Equal(p.block, p.markers[off]):
			s.Kept, p.pattern = append(s.Kept, off), false
		case had && old == sha256.Sum256(p.block):
			s.Kept = append(s.Kept, off)
		case want == zeros && !(one && b == 0), want == oneByte && !one:
			odd = append(odd, off)
		}
	}
	const remedy = "remove and destroy the disk, or erase it by another method: its reports can't be relied on"
	if len(s.Kept) > 0 {
		return s, step.Failf(remedy,
			"the disk said that it was erased, but %d of %d places still hold what was there before, the first at byte %d",
			len(s.Kept), s.Read, s.Kept[0])
	}
	if len(odd) > 0 {
		return s, step.Failf(remedy,
			"the disk said that it was erased, but %d of %d places do not read as promised, the first at byte %d",
			len(odd), s.Read, odd[0])
	}
	return s, nil
}

// uniform reports whether a block repeats one byte.
func uniform(b []byte) (byte, bool) {
	return b[0], bytes.Equal(b[1:], b[:len(b)-1])
}
