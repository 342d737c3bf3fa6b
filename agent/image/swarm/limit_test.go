package swarm

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimiter holds that however many send at once, they keep to the limit together, and each gets its turn.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, senders, pieces = 1_000_000, 5, 100
		l := &limiter{rate: rate}
		began := time.Now()
		sent := make(chan int, senders*pieces)
		for i := range senders {
			go func() {
				for range pieces {
					if err := l.wait(t.Context(), pieceSize); err != nil {
						t.Error(err)
					}
					sent <- i
				}
			}()
		}
		var each [senders]int
		for n := range senders * pieces {
			each[<-sent]++
			if most := time.Since(began).Seconds()*rate + burst + pieceSize; float64((n+1)*pieceSize) > most {
				t.Fatalf("%d bytes after %v", (n+1)*pieceSize, time.Since(began))
			}
			if n == senders*pieces/2 {
				for i, k := range each {
					if k < pieces/2-6 || k > pieces/2+6 {
						t.Errorf("sender %d has sent %d pieces of %d", i, k, n)
					}
				}
			}
		}
		if took, want := time.Since(began).Seconds(), float64(senders*pieces*pieceSize-burst)/rate; took < want*0.99 ||
			took > want*1.01 {
			t.Errorf("took %.2f s, want %.2f", took, want)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		over := errors.New("over")
		time.AfterFunc(time.Millisecond, func() { cancel(over) })
		if err := l.wait(ctx, 100*rate); !errors.Is(err, over) {
			t.Errorf("wait = %v", err)
		}
		if err := (&limiter{}).wait(ctx, 1<<30); err != nil {
			t.Errorf("without a limit: %v", err)
		}
	})
}

func TestSlots(t *testing.T) {
	s := newSlots(2, 4)
	take := func() (n int) {
		for s.take() {
			n++
		}
		for range n {
			s.give(0)
		}
		return n
	}
	if n := take(); n != 2 {
		t.Errorf("%d slots at first", n)
	}
	for range 5 {
		s.take()
		s.give(10 * time.Millisecond)
	}
	if n := take(); n != 4 {
		t.Errorf("%d slots on a fast link", n)
	}
	for range 5 {
		s.take()
		s.give(time.Minute)
	}
	if n := take(); n != 2 {
		t.Errorf("%d slots on a slow link", n)
	}
}

// TestSmallChunksTellNothing holds that a chunk that comes quickly because it is small changes no expectation: how many
// transfers fit onto the link, and after how long an agent stops waiting for its neighbours.
func TestSmallChunksTellNothing(t *testing.T) {
	m := &Member{usual: 1 << 20, times: patient, patience: patient.maxPatience, streams: 1}
	if m.gained(100<<10, time.Millisecond) || m.patience != patient.maxPatience || m.gain.IsZero() {
		t.Errorf("after a small chunk the patience is %v", m.patience)
	}
	m.fetched(100<<10, time.Millisecond)
	if m.streams != 1 || m.bytes != 100<<10 {
		t.Errorf("after a small chunk from the origin: %d streams, %d bytes", m.streams, m.bytes)
	}
	if !m.gained(1<<20, time.Second) || m.patience != 20*time.Second {
		t.Errorf("after a usual one that took a second the patience is %v", m.patience)
	}
	m.fetched(1<<20, 100*time.Millisecond)
	if m.streams != seedStreams {
		t.Errorf("%d streams from a quick server", m.streams)
	}
}

// FuzzAnswer holds that no answer makes a reader take more than the request allows.
func FuzzAnswer(f *testing.F) {
	f.Add(answer{statusOK, published, 1000}.bytes(), int64(1000))
	f.Add(answer{statusOK, repacked, maxPacked}.bytes(), int64(1))
	f.Add(answer{status: statusBusy}.bytes(), int64(1000))
	f.Add([]byte{0, 2, 255, 255, 255, 255}, int64(1000))
	f.Fuzz(func(t *testing.T, b []byte, want int64) {
		a, err := readAnswer(bytes.NewReader(b), want)
		if err != nil {
			return
		}
		if a.length > maxPacked && int64(a.length) != want || a.status != statusOK && a.length != 0 {
			t.Errorf("%+v for %d bytes", a, want)
		}
		if !bytes.Equal(a.bytes()[:1], b[:1]) {
			t.Errorf("%+v from %x", a, b)
		}
	})
}

// FuzzRequest holds that a request is read as it was written.
func FuzzRequest(f *testing.F) {
	f.Add(request{Image{1, 2, 3}, 77}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readRequest(bytes.NewReader(b))
		if err == nil && !bytes.Equal(r.bytes(), b[:requestSize]) {
			t.Errorf("%x became %x", b, r.bytes())
		}
	})
}
