package events

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// memory is a log that has lost what is older than first.
type memory struct {
	mu     sync.Mutex
	events []node.Event
	first  int64
	err    error
}

func (m *memory) Events(_ context.Context, after int64, limit int) (out []node.Event, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events {
		if e.ID > after && e.ID >= m.first && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, m.err
}

// add stores and announces k events, as the store does.
func (m *memory) add(h *Hub, k int) {
	m.mu.Lock()
	var fresh []node.Event
	for range k {
		fresh = append(fresh, node.Event{ID: int64(len(m.events) + 1)})
		m.events = append(m.events, fresh[len(fresh)-1])
	}
	m.mu.Unlock()
	h.Publish(fresh)
}

// readAll reads until there is nothing more, and returns the IDs and gaps.
func readAll(t *testing.T, r *Reader) (ids []int64, gaps []Gap) {
	t.Helper()
	for {
		events, gap, err := r.Next(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if gap != nil {
			gaps = append(gaps, *gap)
		}
		if len(events) == 0 && gap == nil {
			return ids, gaps
		}
		for _, e := range events {
			ids = append(ids, e.ID)
		}
	}
}

func follow(t *testing.T, h *Hub, after int64) *Reader {
	t.Helper()
	r, err := h.Follow("ann", after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func TestFollow(t *testing.T) {
	m := new(memory)
	h := New(m)
	m.add(h, 10)
	now, all := follow(t, h, -1), follow(t, h, 0)
	if ids, _ := readAll(t, now); len(ids) != 0 {
		t.Errorf("a reader from now on got %v", ids)
	}
	m.add(h, 3*kept) // far more than memory has
	select {
	case <-now.Wake():
	default:
		t.Error("the reader was not woken")
	}
	for name, c := range map[string]struct {
		r     *Reader
		first int64
	}{"from now on": {now, 11}, "all": {all, 1}} {
		ids, gaps := readAll(t, c.r)
		if len(gaps) > 0 || len(ids) != 10+3*kept-int(c.first)+1 {
			t.Fatalf("%s: %d events, gaps %v", name, len(ids), gaps)
		}
		for i, id := range ids {
			if id != c.first+int64(i) {
				t.Fatalf("%s: event %d has ID %d, want %d", name, i, id, c.first+int64(i))
			}
		}
	}
}

func TestGaps(t *testing.T) {
	m := new(memory)
	h := New(m)
	m.add(h, 10)
	h.ring, m.first = nil, 6 // a restart, and the log was trimmed
	ids, gaps := readAll(t, follow(t, h, 2))
	if len(ids) != 5 || ids[0] != 6 || len(gaps) != 1 || gaps[0] != (Gap{3, 5}) {
		t.Errorf("ids %v, gaps %v", ids, gaps)
	}
	m.first = 100
	if ids, gaps = readAll(t, follow(t, h, 2)); len(ids) != 0 || len(gaps) != 1 || gaps[0] != (Gap{3, 10}) {
		t.Errorf("of a log that is empty: ids %v, gaps %v", ids, gaps)
	}
	r := follow(t, h, 5000)
	if ids, gaps = readAll(t, r); len(ids) != 0 || len(gaps) != 1 || r.After() != 10 {
		t.Errorf("of a database that was replaced: ids %v, gaps %v, goes on after %d", ids, gaps, r.After())
	}
	m.first = 0
	m.events = append(m.events, node.Event{ID: 11}, node.Event{ID: 12}) // by another program, and not yet known here
	r = follow(t, h, 12)
	if ids, gaps = readAll(t, r); len(ids) != 0 || len(gaps) != 0 || r.After() != 12 {
		t.Errorf("ahead of what is known here: ids %v, gaps %v, goes on after %d", ids, gaps, r.After())
	}
	m.add(h, 1)
	if ids, gaps = readAll(t, r); len(ids) != 1 || ids[0] != 13 || len(gaps) != 0 {
		t.Errorf("later: ids %v, gaps %v", ids, gaps)
	}
	m.err = errors.New("disk on fire")
	if _, _, err := follow(t, h, 1).Next(context.Background()); !errors.Is(err, m.err) {
		t.Errorf("Next = %v, want the log's error", err)
	}
	h.Start(5)
	if h.Last() != 13 {
		t.Errorf("Last = %d", h.Last())
	}
}

// Another program writes to the same log: what memory lacks is read from there.
func TestHoleInMemory(t *testing.T) {
	m := new(memory)
	h := New(m)
	m.add(h, 2)
	m.events = append(m.events, node.Event{ID: 3})
	m.add(h, 2)
	if ids, gaps := readAll(t, follow(t, h, 0)); len(ids) != 5 || len(gaps) != 0 {
		t.Errorf("ids %v, gaps %v", ids, gaps)
	}
}

func TestLimits(t *testing.T) {
	h := New(new(memory))
	var mine []*Reader
	for range limit.EventReadersPerUser {
		mine = append(mine, follow(t, h, -1))
	}
	var many *TooManyError
	if _, err := h.Follow("ann", -1); !errors.As(err, &many) || many.User != "ann" {
		t.Errorf("one more of the same user: %v", err)
	}
	mine[0].Close()
	mine[0].Close()
	follow(t, h, -1)
	if _, err := h.Follow("ann", -1); !errors.As(err, &many) {
		t.Errorf("closing twice gave two places back: %v", err)
	}
	for i := limit.EventReadersPerUser; i < limit.EventReaders; i++ {
		if _, err := h.Follow(string(rune('b'+i%20)), -1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Follow("zoe", -1); !errors.As(err, &many) || many.User != "" {
		t.Errorf("one more of all: %v", err)
	}
	h.Close()
	select {
	case <-mine[1].Wake():
	default:
		t.Error("a reader is not woken by Close")
	}
	if _, _, err := mine[1].Next(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("Next after Close = %v", err)
	}
	if _, err := h.Follow("ann", -1); !errors.Is(err, ErrClosed) {
		t.Errorf("Follow after Close = %v", err)
	}
}

func TestManyReaders(t *testing.T) {
	m := new(memory)
	h := New(m)
	const total = 3000
	var wg sync.WaitGroup
	for range 8 {
		r := follow(t, h, 0)
		wg.Go(func() {
			var at int64
			for at < total {
				<-r.Wake()
				for {
					events, gap, err := r.Next(context.Background())
					if err != nil || gap != nil {
						t.Errorf("gap %v, %v", gap, err)
						return
					}
					if len(events) == 0 {
						break
					}
					for _, e := range events {
						if e.ID != at+1 {
							t.Errorf("event %d after %d", e.ID, at)
							return
						}
						at = e.ID
					}
				}
			}
		})
	}
	for range total / 3 {
		m.add(h, 3)
	}
	wg.Wait()
}
