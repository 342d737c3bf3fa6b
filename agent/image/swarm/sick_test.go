package swarm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images/index"
)

// meets has a writer hear of one neighbour that has some chunks, and is the only one.
func (h *hub) meets(w *writer, addr netip.AddrPort, have bits) {
	h.t.Helper()
	w.join()
	wait(h.t, "the conductor's word", func() bool {
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		return w.m.heard
	})
	w.n.Hear(News{Image: h.pic.sum, Whole: true, Seeds: []string{w.name},
		Peers: []Peer{{Node: "sick", Generation: 1, Addr: addr, Whole: true, Have: have}}})
}

func (p *picture) everything() bits {
	all := newBits(len(p.x.Chunks))
	for i := range p.x.Chunks {
		all.set(i)
	}
	return all
}

// TestALieIsFetchedAgainInItsPlace: chunks that wait to be unpacked hold all memory, and one of them is wrong. The
// fetch that replaces it must not wait for them.
func TestALieIsFetchedAgainInItsPlace(t *testing.T) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	wrong := z.EncodeAll(make([]byte, index.ChunkSize), nil)
	pic := pictureOf(t, 16, 1)
	for unpackers, lies := range map[int]int{1: 1, 2: 4} {
		h := newHubOf(t, pic)
		addr := h.liar("sick", func(c *tls.Conn, r request) {
			_, _ = c.Write(answer{statusOK, repacked, uint32(len(wrong))}.bytes())
			_, _ = c.Write(wrong)
		})
		w := h.add(0)
		w.unpackers, w.slow = unpackers, 20*time.Millisecond
		have := newBits(len(h.pic.x.Chunks))
		for i := range lies {
			have.set(10 + i)
		}
		h.meets(w, addr, have)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := w.write(ctx); err != nil || w.m.Stats().Liars != 1 {
			t.Errorf("%d unpackers: %v, %+v", unpackers, err, w.m.Stats())
		}
		cancel()
		if w.m.pool.reserved != 0 {
			t.Errorf("%d unpackers: %d bytes are still reserved", unpackers, w.m.pool.reserved)
		}
	}
}

// TestSickNeighbour has neighbours that follow the protocol, but so slowly that they are useless. They are asked a few
// times and then left alone; the image comes from the healthy ones.
func TestSickNeighbour(t *testing.T) {
	pic := pictureOf(t, 12, 1)
	drip := func(h *hub, waits *atomic.Int64) func(c *tls.Conn, r request) { // just enough for each window
		return func(c *tls.Conn, r request) {
			b := h.pic.objects[h.pic.x.Chunks[r.chunk].Sum]
			_, _ = c.Write(answer{statusOK, published, uint32(len(b))}.bytes())
			for len(b) > 0 {
				n := min(len(b), leastInWindow)
				if _, err := c.Write(b[:n]); err != nil {
					return
				}
				b = b[n:]
				waits.Add(1)
				time.Sleep(quick.window * 9 / 10)
			}
		}
	}
	late := func(_ *hub, waits *atomic.Int64) func(c *tls.Conn, r request) {
		return func(c *tls.Conn, _ request) {
			waits.Add(1)
			time.Sleep(quick.answer / 2)
			_, _ = c.Write(answer{status: statusBusy}.bytes())
		}
	}
	for name, c := range map[string]struct {
		sick func(*hub, *atomic.Int64) func(c *tls.Conn, r request)
		good bool  // another neighbour has all chunks
		most int64 // waits
	}{"drip": {drip, false, 60}, "drip, beside a good one": {drip, true, 40},
		"late to say that it is busy": {late, false, 16}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()           // they wait most of the time
			var waits atomic.Int64 // for the sick one
			h := newHubOf(t, pic)
			h.times = quick
			if c.good {
				good := h.add(0)
				h.together(good)
				h.hears(good)
			}
			addr := h.liar("sick", c.sick(h, &waits))
			w := h.add(0)
			if c.good {
				w.join()
				wait(t, "the good neighbour", func() bool {
					w.m.mu.Lock()
					defer w.m.mu.Unlock()
					return len(w.m.near) == 1
				})
				w.n.Hear(News{Image: h.pic.sum,
					Peers: []Peer{{Node: "sick", Generation: 1, Addr: addr, Whole: true, Have: h.pic.everything()}}})
			} else {
				h.meets(w, addr, h.pic.everything())
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stop := make(chan struct{})
			defer close(stop)
			go func() { // the conductor reports progress of a member
				for n := uint64(1); ; n++ {
					select {
					case <-stop:
						return
					case <-time.After(quick.quiet / 5):
						w.n.Hear(News{Image: h.pic.sum, Seeds: []string{w.name}, Fetched: n})
					}
				}
			}()
			if err := w.write(ctx); err != nil || waits.Load() == 0 || waits.Load() > c.most {
				t.Errorf("%v, %+v; the sick neighbour was waited for %d times", err, w.m.Stats(), waits.Load())
			}
		})
	}
}

// TestSlowToPack: a neighbour that needs longer to read back and pack than to send is waited for, as long as promised.
func TestSlowToPack(t *testing.T) {
	h := newHub(t, 6)
	h.times = quick
	w := h.add(0)
	w.m = w.n.Join(h.pic.x, h.pic.sum, h.pic, func(i int, off int64, dst []byte) error {
		if off == 0 {
			time.Sleep(2 * quick.window)
		}
		return w.read(i, off, dst)
	})
	h.together(w)
	w.m.pool.clear()
	w.n.Hear(News{Image: h.pic.sum,
		Peers: []Peer{{Node: "friend", Generation: 2, Addr: netip.MustParseAddrPort("127.0.0.1:9"), Whole: true,
			Have: newBits(6)}}})
	id := h.ca.identity(t, "friend", 2, x509.ExtKeyUsageClientAuth)
	c, err := tls.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), w.m.port()).String(),
		id.tls(func(who) error { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(request{h.pic.sum, 1}.bytes()); err != nil {
		t.Fatal(err)
	}
	if a, err := readAnswer(c, h.pic.x.Chunks[1].Len); err != nil || a.status != statusOK {
		t.Errorf("%+v, %v", a, err)
	}

	// Nothing is fetched any more for what can't be read back.
	w.m.Rest()
	w.m.pool.clear()
	before := h.pic.asked.Load()
	if _, err := w.m.pack(2); !errors.Is(err, errNotKept) || h.pic.asked.Load() != before {
		t.Errorf("after Rest: %v, %d objects fetched", err, h.pic.asked.Load()-before)
	}
}
