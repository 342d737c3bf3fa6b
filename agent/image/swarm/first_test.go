package swarm

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/index"
)

// begin makes all writers fetch the first chunk; the returned function waits until they have.
func (h *hub) begin(ctx context.Context, ws []*writer) (wait func() []error) {
	errs := make([]error, len(ws))
	var g sync.WaitGroup
	for k, w := range ws {
		w.join()
		g.Go(func() {
			dst := make([]byte, h.pic.x.ChunkLen(0))
			if errs[k] = w.m.First(ctx, 0, dst); errs[k] == nil && !bytes.Equal(dst, h.pic.raw[:len(dst)]) {
				errs[k] = errors.New("it is not what the image begins with")
			}
		})
	}
	return func() []error { g.Wait(); return errs }
}

// TestFirst holds that a slow server sends the common first chunk to few agents, and that others get it before any
// agent has written it.
func TestFirst(t *testing.T) {
	h := newHub(t, 6)
	h.pic.hold = make(chan struct{})
	var ws []*writer
	for range 6 {
		ws = append(ws, h.add(0))
	}
	all := h.begin(t.Context(), ws)
	wait(t, "some asking the server, and the others waiting for a neighbour", func() bool {
		neighbours := 0
		for _, w := range ws {
			w.m.mu.Lock()
			if w.m.state[0] != idle && !w.m.origin[0] {
				neighbours++
			}
			w.m.mu.Unlock()
		}
		return h.pic.waiting.Load() > 0 && neighbours >= 2
	})
	if n := h.pic.asked.Load(); n > 4 {
		t.Errorf("%d of 6 agents asked the server", n)
	}
	close(h.pic.hold)
	for k, err := range all() {
		if err != nil {
			t.Errorf("%s: %v", ws[k].name, err)
		}
	}
	if n := h.pic.served[h.pic.x.Chunks[0].Sum]; n > 4 {
		t.Errorf("the server sent the first chunk %d times to 6 agents", n)
	}
	for _, w := range ws {
		w.m.mu.Lock()
		if w.m.state[0] != had || w.m.origin[0] || len(w.m.origin) > 0 {
			t.Errorf("%s: the first chunk is in state %d; from the origin are coming %v", w.name, w.m.state[0],
				w.m.origin)
		}
		w.m.mu.Unlock()
	}
	// It is the first of a whole image.
	for _, w := range ws {
		copy(w.disk[:index.ChunkSize], h.pic.raw)
	}
	h.together(ws...)
}

// TestFirstAtOnce holds that every agent gets the chunk once if the server is fast.
func TestFirstAtOnce(t *testing.T) {
	h := newHub(t, 6)
	h.pic.latency = 0
	ws := []*writer{h.add(0), h.add(0), h.add(0)}
	for k, err := range h.begin(t.Context(), ws)() {
		if st := ws[k].m.Stats(); err != nil || st.FromOrigin+st.FromPeers != h.pic.x.Chunks[0].Len {
			t.Errorf("%s: %v, %+v", ws[k].name, err, st)
		}
	}
}

// TestFirstAlone holds that an agent without neighbours waits for a slow server, and sends only one request.
func TestFirstAlone(t *testing.T) {
	for _, session := range []bool{true, false} {
		h := newHub(t, 6)
		h.pic.hold = make(chan struct{})
		w := h.add(0)
		if !session {
			w.n.SessionLost()
		}
		all := h.begin(t.Context(), []*writer{w})
		time.Sleep(joinWait + 4*tick) // longer than it waits for the conductor's word
		close(h.pic.hold)
		if err := all()[0]; err != nil {
			t.Error(err)
		}
		if n := h.pic.asked.Load(); n != 1 {
			t.Errorf("with a session %v: asked %d times", session, n)
		}
	}
}

// TestFirstFails holds that the server's error is returned, and that the end of the step ends the wait.
func TestFirstFails(t *testing.T) {
	h := newHub(t, 6)
	h.pic.broken.Store(true)
	w := h.add(0)
	if err := h.begin(t.Context(), []*writer{w})()[0]; !errors.Is(err, errAway) {
		t.Errorf("from a server that is away: %v", err)
	}
	h = newHub(t, 6)
	h.pic.hold = make(chan struct{})
	ws := []*writer{h.add(0), h.add(0), h.add(0)}
	ctx, cancel := context.WithCancel(t.Context())
	all := h.begin(ctx, ws)
	wait(t, "one asking the server", func() bool { return h.pic.waiting.Load() > 0 })
	cancel()
	for k, err := range all() {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s, after the end: %v", ws[k].name, err)
		}
	}
}
