package chunked

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/images/index"
)

// peer is a member whose neighbours have everything. It reads announced chunks back at once.
type peer struct {
	t    *testing.T
	img  []byte
	s    *store
	x    *index.Index
	read Read
	lose int // a chunk that Next never gives; 0: none

	mu       sync.Mutex
	more     sync.Cond
	wanted   []int
	complete bool
	have     map[int]int
	checks   sync.WaitGroup
}

func (p *peer) First(ctx context.Context, i int, dst []byte) error { return p.Chunk(ctx, i, dst) }

func (p *peer) Want(chunks ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = append(p.wanted, chunks...)
	p.more.Broadcast()
}

func (p *peer) Complete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete = true
	p.more.Broadcast()
}

func (p *peer) Next(ctx context.Context) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if n := len(p.wanted); n > 0 {
			k := rand.IntN(n)
			i := p.wanted[k]
			p.wanted[k] = p.wanted[n-1]
			p.wanted = p.wanted[:n-1]
			if i == p.lose && i > 0 {
				continue
			}
			return i, true
		}
		if p.complete || ctx.Err() != nil {
			return 0, false
		}
		p.more.Wait()
	}
}

func (p *peer) Chunk(ctx context.Context, i int, dst []byte) error {
	stored := make([]byte, p.x.Chunks[i].Len)
	if err := p.s.Object(ctx, p.x.Chunks[i], stored); err != nil {
		return err
	}
	return index.DecodeChunk(stored, dst)
}

func (p *peer) Have(i int) {
	p.mu.Lock()
	p.have[i]++
	p.mu.Unlock()
	p.checks.Go(func() {
		dst := disk.Aligned(int(p.x.ChunkLen(i)))
		if err := p.read(i, 0, dst); err != nil {
			// Of the last ones: the plan may be over.
			p.t.Logf("chunk %d: %v", i, err)
			return
		}
		if !bytes.Equal(dst, p.img[i*chunk:][:len(dst)]) {
			p.t.Errorf("chunk %d reads back as something else", i)
		}
	})
}

func TestAmongNeighbours(t *testing.T) {
	img := content(11, 14*chunk+3*512)
	x, s := publish(img)
	for _, how := range []Difference{Never, Always} {
		m := newMachine(t, fake.DiskSpec{Size: 80 * mib})
		for range 2 {
			var p *peer
			plan := &Plan{Index: x, Objects: s, Difference: how, Join: func(o Objects, read Read) Member {
				p = &peer{t: t, img: img, s: s, x: x, read: read, have: map[int]int{}}
				p.more.L = &p.mu
				return p
			}}
			m.deploy(t, plan, img)
			p.checks.Wait()
			for i, c := range x.Chunks {
				if want := min(1, int(c.Len)); p.have[i] != want {
					t.Errorf("%s: told %d times to have chunk %d", how, p.have[i], i)
				}
			}
		}
	}
}

// TestForgetfulNeighbours: a chunk that was never chosen comes in the end.
func TestForgetfulNeighbours(t *testing.T) {
	img := full(12, 6*chunk)
	x, s := publish(img)
	m := newMachine(t, fake.DiskSpec{Size: 40 * mib})
	m.deploy(t, &Plan{Index: x, Objects: s, Join: func(o Objects, read Read) Member {
		p := &peer{t: t, img: img, s: s, x: x, read: read, have: map[int]int{}, lose: 3}
		p.more.L = &p.mu
		return p
	}}, img)
	m.deploy(t, &Plan{Index: x, Objects: s, Join: func(Objects, Read) Member { return nil }}, img)
}
