package fetch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

const (
	pieceSize = 1 << 20 // size of the result of Next
	window    = 64      // maximum of pieces being filled, waiting, or held by the caller
	narrow    = 2       // the same until Widen
	maxFlows  = 4       // connections

	// growth: how the number of connections is chosen
	period = time.Second      // of one measurement
	gain   = 1.2              // minimum speed-up for keeping another connection
	worth  = 4 * time.Second  // minimum of remaining time for a trial
	sober  = 30 * time.Second // before the next trial after a useless one; doubles
	idle   = time.Second / 2  // between two checks of an idle connection
	rescue = 2 * time.Second  // between two connections ended for slowness
)

// ahead fetches a file into a window of pieces, over one or more connections, and returns the pieces in order.
type ahead struct {
	ctx    context.Context
	cancel context.CancelFunc
	window *atomic.Int64
	clock  *step.Clock
	o      *Origin
	k      *known
	flows  sync.WaitGroup

	mu      sync.Mutex
	change  *sync.Cond
	end     int64  // of the file; math.MaxInt64: unknown
	todo    []span // not taken by a flow, in order
	pieces  map[int64]*piece
	spare   [][]byte
	first   int64 // oldest piece held by the caller, else the next
	next    int64 // next piece for the caller
	running []*flow
	want    int // number of flows wanted
	err     error
	hungry  bool // the caller is waiting
	kicked  time.Time
	pace    pace
}

// span is a part of the file.
type span struct{ off, end int64 }

// piece is pieceSize bytes of the file, the last one less.
type piece struct {
	mem []byte
	n   int // bytes received
}

// flow is a connection and its part of the file.
type flow struct {
	s   *stream
	off int64 // of the next byte
	end int64
}

// pace measures the speed, and decides the number of connections.
type pace struct {
	since  time.Time
	bytes  int64 // received, not yet returned ones included
	waited time.Duration
	before float64   // bytes per second before the trial
	trial  int       // periods since the start of the trial; 0: none
	failed int       // useless trials in a row
	sober  time.Time // no trial before
}

// newAhead continues a connected stream from the beginning of the file.
func newAhead(ctx context.Context, s *stream, window *atomic.Int64, clock *step.Clock) *ahead {
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{ctx: ctx, cancel: cancel, window: window, clock: clock, o: s.o, k: s.k,
		end: math.MaxInt64, pieces: map[int64]*piece{}, want: 1}
	a.change = sync.NewCond(&a.mu)
	s.k.mu.Lock()
	if s.k.size >= 0 {
		a.end = s.k.size
	}
	s.k.mu.Unlock()
	a.todo = []span{{0, a.end}}
	a.pace.since = time.Now()
	context.AfterFunc(ctx, a.wake)
	a.mu.Lock()
	a.start(s)
	a.mu.Unlock()
	return a
}

func (a *ahead) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change.Broadcast()
}

// stop ends all flows and waits for them.
func (a *ahead) stop() {
	a.cancel()
	a.flows.Wait()
}

// start adds a flow. The lock is held.
func (a *ahead) start(s *stream) {
	f := &flow{}
	a.running = append(a.running, f)
	a.clock.Enter()
	a.flows.Go(func() { a.run(f, s) })
}

// run fetches parts of the file until none is left. The first flow starts with an open stream.
func (a *ahead) run(f *flow, s *stream) {
	defer func() {
		a.clock.Leave()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.running = slices.DeleteFunc(a.running, func(o *flow) bool { return o == f })
		a.giveBack(f)
		a.change.Broadcast()
	}()
	for {
		if s == nil {
			sp, open, ok := a.claim(f)
			if !ok {
				return
			}
			s = newStream(a.ctx, a.o, a.k, "", sp.off, sp.end)
			if open {
				s.end = -1
			}
		}
		a.mu.Lock()
		f.s = s
		s.parts = len(a.running) > 1
		s.hasty = func() bool { return a.others(f) }
		a.mu.Unlock()
		err := a.fill(f)
		s.close()
		a.mu.Lock()
		f.s = nil
		a.giveBack(f)
		s = nil
		switch {
		case err == nil:
		case a.ctx.Err() != nil:
			a.fault(context.Cause(a.ctx))
		case len(a.running) > 1 && !errors.Is(err, ErrRestart):
			// The other flows continue.
			a.o.log.Info("a connection less", "url", a.o.Name(), "connections", len(a.running)-1, "err", err)
			a.want = max(1, min(a.want, len(a.running)-1))
			a.pace.disappointed()
		case errors.Is(err, errNoRanges): // as the only one it needs no ranges
			err = nil
		default:
			a.fault(err)
		}
		leave := err != nil || a.err != nil || a.ctx.Err() != nil
		a.change.Broadcast()
		a.mu.Unlock()
		if leave {
			return
		}
	}
}

func (a *ahead) fault(err error) {
	a.err = cmp.Or(a.err, err)
}

// others reports whether another flow is working.
func (a *ahead) others(f *flow) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.running, func(o *flow) bool { return o != f && o.s != nil && o.s.speed() > 0 })
}

// giveBack returns the unfetched part of a flow's span. The lock is held.
func (a *ahead) giveBack(f *flow) {
	if f.off >= f.end {
		return
	}
	i, _ := slices.BinarySearchFunc(a.todo, f.off,
		func(s span, off int64) int { return int(min(max(s.off-off, -1), 1)) })
	a.todo = slices.Insert(a.todo, i, span{f.off, f.end})
	for j := len(a.todo) - 1; j > 0; j-- {
		if a.todo[j-1].end == a.todo[j].off {
			a.todo[j-1].end = a.todo[j].end
			a.todo = slices.Delete(a.todo, j, j+1)
		}
	}
	f.end = f.off
}

// take takes bytes from the beginning of the first span.
func (a *ahead) take(f *flow, upTo int64) span {
	s := span{a.todo[0].off, min(a.todo[0].end, upTo)}
	if a.todo[0].off = s.end; a.todo[0].off >= a.todo[0].end {
		a.todo = slices.Delete(a.todo, 0, 1)
	}
	f.off, f.end = s.off, s.end
	return s
}

// claim takes the next part of the file that fits into the window. It is open if the flow, as the only one, should
// continue after it.
func (a *ahead) claim(f *flow) (s span, open, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		if a.err != nil || a.ctx.Err() != nil || len(a.running) > a.want || len(a.todo) == 0 && !a.busy() {
			return span{}, false, false
		}
		if len(a.todo) > 0 {
			at := a.todo[0].off / pieceSize
			if a.want == 1 && a.todo[0].end == a.end && at < a.first+a.window.Load() {
				return a.take(f, (at+1)*pieceSize), true, true
			}
			// Each flow gets an equal share of the window.
			if share := int64(max(1, int(a.window.Load())/a.want)); at < a.first+a.window.Load() {
				return a.take(f, (at+share)*pieceSize), false, true
			}
		}
		a.rest(f)
	}
}

// busy reports whether any flow still has data to fetch. The lock is held.
func (a *ahead) busy() bool {
	return slices.ContainsFunc(a.running, func(f *flow) bool { return f.off < f.end })
}

// rest waits for a change, with a timeout, and then checks whether all wait for a connection that is much slower than
// others: that is ended, so that another mirror, or at least another connection, takes its work. The lock is held.
func (a *ahead) rest(f *flow) {
	t := time.AfterFunc(idle, a.wake)
	a.clock.Leave()
	a.change.Wait()
	a.clock.Enter()
	t.Stop()
	now := time.Now()
	if !a.hungry || len(a.running) == 1 || now.Sub(a.kicked) < rescue {
		return
	}
	var head *flow
	best := a.o.best()
	for _, o := range a.running {
		if o.s == nil || o.off >= o.end {
			continue
		}
		best = max(best, o.s.speed())
		if head == nil || o.off < head.off {
			head = o
		}
	}
	if head == nil || head == f || head.off/pieceSize != a.next {
		return
	}
	if slow := head.s.speed(); slow > 0 && slow*4 < best && float64(head.end-head.off)/slow > rescue.Seconds() {
		a.kicked = now
		head.s.kick()
	}
}

// fill fetches a flow's span.
func (a *ahead) fill(f *flow) error {
	for {
		mem, ok := a.room(f)
		if !ok {
			return nil
		}
		n, err := f.s.read(mem)
		a.mu.Lock()
		if n > 0 {
			p := a.pieces[f.off/pieceSize]
			p.n += n
			f.off += int64(n)
			a.pace.bytes += int64(n)
			if a.full(p, (f.off-1)/pieceSize) {
				a.change.Broadcast()
			}
		}
		if err == io.EOF {
			err = nil
			if f.off < f.end { // the end of the file was unknown
				a.end, f.end = f.off, f.off
				a.todo = nil
			}
			a.change.Broadcast()
			a.mu.Unlock()
			return nil
		}
		a.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (a *ahead) full(p *piece, i int64) bool {
	return p != nil && int64(p.n) >= min(pieceSize, a.end-i*pieceSize)
}

// room returns the buffer for a flow's next bytes, once it is in the window; false at the end of the flow's span.
func (a *ahead) room(f *flow) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		if a.err != nil || a.ctx.Err() != nil {
			return nil, false
		}
		if f.off >= f.end {
			// As the only flow it continues, unless the following part was already fetched.
			if f.s.end >= 0 || a.want > 1 || len(a.todo) == 0 || a.todo[0].off != f.off || a.todo[0].end != a.end {
				return nil, false
			}
			a.take(f, (f.off/pieceSize+1)*pieceSize)
		}
		if i := f.off / pieceSize; i < a.first+a.window.Load() {
			p := a.pieces[i]
			if p == nil {
				p = &piece{}
				if last := len(a.spare) - 1; last >= 0 {
					p.mem, a.spare = a.spare[last], a.spare[:last]
				} else {
					p.mem = make([]byte, pieceSize)
				}
				a.pieces[i] = p
			}
			return p.mem[f.off-i*pieceSize : min(f.end-i*pieceSize, pieceSize)], true
		}
		a.rest(f)
	}
}

// get returns the next piece, or io.EOF.
func (a *ahead) get(ctx context.Context) ([]byte, error) {
	defer context.AfterFunc(ctx, a.wake)()
	a.mu.Lock()
	defer a.mu.Unlock()
	began := time.Now()
	a.hungry = true
	defer func() { a.hungry = false }()
	for {
		p := a.pieces[a.next]
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case a.next*pieceSize >= a.end:
			return nil, io.EOF
		case a.full(p, a.next):
			a.next++
			a.measure(time.Since(began))
			return p.mem[:p.n], nil
		case a.err != nil:
			return nil, a.err
		case a.ctx.Err() != nil:
			return nil, context.Cause(a.ctx) //nolint:contextcheck it was made with the context of its reader
		}
		a.change.Wait()
	}
}

// free frees the oldest piece.
func (a *ahead) free() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first == a.next {
		return
	}
	a.spare = append(a.spare, a.pieces[a.first].mem)
	delete(a.pieces, a.first)
	a.first++
	a.change.Broadcast()
}

// measure records the arrival of a piece, and periodically decides whether to try another connection. The lock is held.
func (a *ahead) measure(waited time.Duration) {
	p := &a.pace
	p.waited += waited
	now := time.Now()
	took := now.Sub(p.since)
	if took < period {
		return
	}
	rate := float64(p.bytes) / took.Seconds()
	starved := p.waited > took/2
	p.since, p.bytes, p.waited = now, 0, 0
	switch {
	case p.trial == 1:
		p.trial++ // the connection is still accelerating
		return
	case p.trial > 1 && len(a.running) < a.want, p.trial > 1 && rate < p.before*gain:
		a.want = max(1, a.want-1)
		p.disappointed()
		a.change.Broadcast()
		return
	case p.trial > 1:
		p.trial, p.failed = 0, 0
		a.o.log.Debug("another connection helps", "url", a.o.Name(), "connections", a.want, "rate", int64(rate),
			"before", int64(p.before))
	}
	left := float64(a.end-a.first*pieceSize) / rate
	if !starved || a.want >= maxFlows || len(a.running) != a.want || a.end == math.MaxInt64 || left < worth.Seconds() ||
		now.Before(p.sober) || !a.mayGrow() {
		return
	}
	p.trial, p.before = 1, rate
	if a.want == 1 {
		// The first flow has the whole rest: it keeps a share.
		f := a.running[0]
		if len(a.todo) == 0 || a.todo[0].off != f.end {
			p.trial = 0
			return
		}
		off := f.off
		a.take(f, (a.todo[0].off/pieceSize+max(1, a.window.Load()/4))*pieceSize)
		f.off = off
	}
	a.want++
	a.start(nil)
}

func (p *pace) disappointed() {
	p.trial = 0
	p.sober = time.Now().Add(sober << min(p.failed, 5))
	p.failed++
}

// mayGrow reports whether other connections may fetch other parts of the file.
func (a *ahead) mayGrow() bool {
	k := a.k
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.owner != nil && k.owner.ranges == yes && (k.digest && k.only == nil || k.tag(k.owner).etag != "")
}
