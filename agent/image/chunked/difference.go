package chunked

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
)

// Difference says whether a disk is compared with the image before it is written, to skip equal parts.
type Difference string

// Kinds of Difference. The resulting disk is the same with each.
const (
	Auto   Difference = "auto"   // if samples match the image, and as long as matches are found
	Always Difference = "always" // the whole disk
	Never  Difference = "never"
)

// ParseDifference parses the argument image_difference.
func ParseDifference(s string) (Difference, error) {
	switch d := Difference(s); d {
	case "":
		return Auto, nil
	case Auto, Always, Never:
		return d, nil
	}
	return "", step.Failf("set image_difference to auto, always or never", "image_difference %q is not known", s)
}

const (
	lookSize = 1 << 20 // of one read

	samples      = 64
	sampledLists = 8 // block lists fetched for samples: more would be noticeable on a slow link

	// Comparing stops where nothing matches: after so many chunks with less than a certain share. After that, one in so
	// many chunks is compared, to detect later matches.
	lookBack  = 16
	lookShare = 16
)

var zeroSum index.BlockSum

// compare decides whether comparing with the disk is worthwhile.
type compare struct {
	on     bool // at all
	always bool

	mu     sync.Mutex
	found  bool // at the current place
	asked  int
	looked int // since the last decision
	equal  int // equal blocks with data
	total  int
}

// worth reports whether the next chunk should be compared.
func (c *compare) worth() bool {
	if !c.on || c.always {
		return c.on
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.found || c.asked%lookBack == 0
}

// learn takes the result of comparing a chunk.
func (c *compare) learn(equal, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked, c.equal, c.total = c.looked+1, c.equal+equal, c.total+total
	enough := c.equal*lookShare >= c.total
	switch {
	case !c.found && equal*lookShare >= total:
		c.found = true
	case c.looked < lookBack:
		return
	default:
		c.found = enough
	}
	c.looked, c.equal, c.total = 0, 0, 0
}

// Survey decides whether comparing with the disk is worthwhile. An interrupted image has its first chunks on the disk;
// an older version of it has equal blocks everywhere. The disk is only read.
func (p *Plan) Survey(ctx context.Context) error {
	c := &p.compare
	defer func() {
		switch {
		case !c.on:
			p.lists.forget()
			p.pool.empty()
		case p.member != nil:
			p.unpackers = min(p.unpackers, 1+p.Further) // comparing needs memory, too
		}
	}()
	if p.Index.Size > p.Disk.Size() { // a part of the disk, which the writer refuses
		return nil
	}
	switch p.Difference {
	case Never:
		return nil
	case Always:
		c.on, c.always = true, true
		return nil
	}
	places, err := p.places(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.Log.Warn("the whole disk is written, without comparing", "err", err)
		return nil
	}
	if err := p.sample(ctx, places); err != nil {
		return err
	}
	known := 0
	for _, s := range places {
		if s.known {
			known++
		}
	}
	if known > 0 {
		c.on, c.found = true, true
		p.Log.Info("the disk holds some of the image already", "samples", len(places), "known", known)
	}
	return nil
}

// place is a sampled block of the disk.
type place struct {
	chunk, block int
	want         index.BlockSum
	known        bool
}

// places chooses the samples, in ascending order: the first chunks with data except for chunk 0, whose beginning never
// survives, and random others; of each a block with data, since zeros prove nothing.
func (p *Plan) places(ctx context.Context) ([]place, error) {
	x := p.Index
	var lists []int
	for i, l := range x.Lists {
		if l.Len > 0 {
			lists = append(lists, i)
		}
	}
	shuffle(lists[min(1, len(lists)):])
	lists = lists[:min(len(lists), sampledLists)]
	slices.Sort(lists)
	var chunks []int
	for _, l := range lists {
		for i := l * index.ListChunks; i < l*index.ListChunks+x.ListLen(l); i++ {
			if i > 0 && x.Chunks[i].Len > 0 {
				chunks = append(chunks, i)
			}
		}
	}
	const front = 4
	if len(chunks) > samples {
		shuffle(chunks[front:])
		chunks = chunks[:samples]
	}
	slices.Sort(chunks)
	var places []place
	for _, i := range chunks {
		sums, done, err := p.lists.of(ctx, i)
		if err != nil {
			return nil, err
		}
		var data []int
		for b := range index.BlocksOf(x.ChunkLen(i)) {
			if sums.Sum(0, b) != zeroSum {
				data = append(data, b)
			}
		}
		if len(data) > 0 {
			b := data[rand.IntN(len(data))]
			places = append(places, place{chunk: i, block: b, want: sums.Sum(0, b)})
		}
		done()
	}
	return places, nil
}

func shuffle(s []int) { rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) }

// sample reads the places and records the matches.
func (p *Plan) sample(ctx context.Context, places []place) error {
	next := make(chan *place)
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			mem := disk.Aligned(index.BlockSize)
			for s := range next {
				off := int64(s.chunk)*index.ChunkSize + int64(s.block)*index.BlockSize
				data, err := p.readDisk(mem, off, min(index.BlockSize, p.Index.Size-off))
				if err != nil {
					p.Log.Warn("the disk is not readable everywhere", "bytes", off, "err", err)
					continue
				}
				s.known = same(data, s.want)
			}
		})
	}
	for i := range places {
		if ctx.Err() != nil {
			break
		}
		next <- &places[i]
	}
	close(next)
	readers.Wait()
	return context.Cause(ctx)
}

// readDisk reads n bytes, which need not end at a sector boundary.
func (p *Plan) readDisk(mem []byte, off, n int64) ([]byte, error) {
	sector := int64(p.Disk.SectorSize())
	if _, err := p.Disk.ReadAt(mem[:(n+sector-1)/sector*sector], off); err != nil {
		return nil, err
	}
	return mem[:n], nil
}

// looker compares chunks with the disk. It is for one goroutine.
type looker struct {
	p   *Plan
	mem []byte
}

// look returns the parts of a chunk that must be fetched and written. Equal parts are kept.
func (l *looker) look(ctx context.Context, i int) (task, error) {
	p := l.p
	if !p.compare.worth() {
		return task{i: i, blocks: allBlocks}, nil
	}
	sums, done, err := p.lists.of(ctx, i)
	if err != nil {
		return task{}, err
	}
	defer done()
	if l.mem == nil {
		l.mem = disk.Aligned(lookSize)
	}
	t := task{i: i}
	base, size := int64(i)*index.ChunkSize, p.Index.ChunkLen(i)
	total, equal := 0, 0 // of blocks that are not zeros, which prove nothing
	for at := int64(0); at < size; at += lookSize {
		if ctx.Err() != nil {
			return task{}, context.Cause(ctx)
		}
		data, err := p.readDisk(l.mem, base+at, min(lookSize, size-at))
		if err != nil {
			// A drive reallocates a bad sector on a write; if it does not, the write returns the error.
			p.Log.Warn("the disk is not readable everywhere", "bytes", base+at, "err", err)
		}
		for b := int64(0); b < min(size-at, lookSize); b += index.BlockSize {
			n, number := min(index.BlockSize, size-at-b), int((at+b)/index.BlockSize)
			want := sums.Sum(0, number)
			if want != zeroSum {
				total++
			} else {
				t.zeros |= 1 << number
			}
			switch known := err == nil && same(data[b:b+n], want); {
			case known:
				if want != zeroSum {
					equal++
				}
				if err := l.keep(ctx, base+at+b, data[b:b+n]); err != nil {
					return task{}, err
				}
			case want == zeroSum: // zeros need not be fetched
				if err := p.sink.Hole(ctx, base+at+b, n); err != nil {
					return task{}, err
				}
			default:
				t.blocks |= 1 << number
			}
		}
	}
	p.compare.learn(equal, total)
	t.listed, t.sum = true, sha256.Sum256(sums)
	return t, nil
}

func same(block []byte, want index.BlockSum) bool {
	if want == zeroSum {
		return index.IsZero(block)
	}
	return index.SumBlock(block) == want
}

// keep keeps a block unchanged, unless it is withheld until the commit.
func (l *looker) keep(ctx context.Context, off int64, block []byte) error {
	s := l.p.sink
	if from, to := s.Body(); off < from || off+int64(len(block)) > to {
		return s.Put(ctx, off, block)
	}
	l.p.kept.Add(int64(len(block)))
	return s.Keep(off, int64(len(block)))
}
