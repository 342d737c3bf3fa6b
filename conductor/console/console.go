// Package console lets people work at the serial consoles of machines through the API, without a way of their own to
// the controllers.
//
// A session is one person's at one machine, since a controller has one console. What the machine wrote last is kept for
// a reader that comes again and again, each time with the place where it stopped. So a session needs no connection that
// is held and no protocol beside the API: each request is checked on its own, and other conductors pass it on as any
// other. A session that is not read any more ends by itself, and so does one that is older than people work.
//
// Places are counts of bytes since the session began. Bounds are in conductor/guard/limit.
package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// ErrNone means that there is no such session: it has ended, or is somebody else's.
var ErrNone = errors.New("there is no such session of the console, or it has ended: open the console again")

// ErrFull means that no further session is begun now.
var ErrFull = errors.New("too many consoles are open: close one, or wait until one that is not read any more has ended")

// ErrSlow means that what was typed is not taken, because the machine has not taken what was typed before.
var ErrSlow = errors.New("the machine does not take what is typed as fast as that: nothing of this was sent; send it again soon")

// InUseError means that somebody else works at the console.
type InUseError struct {
	User  string
	Since time.Time
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("%s works at this console since %s: take it over with {\"take\": true}, or wait",
		cmp.Or(e.User, "somebody"), e.Since.UTC().Format(time.RFC3339))
}

// Output is the text that a machine wrote.
type Output struct {
	Bytes []byte
	Next  int64  // the place after them
	Lost  int64  // bytes before them that are not kept any more
	Ended string // why the session has ended; "" while it goes on, and while there are bytes
}

// Sessions are all sessions of this conductor. Safe for concurrent use.
type Sessions struct {
	open func(n *node.Node) (power.Driver, error)
	log  *slog.Logger

	mu     sync.Mutex
	of     map[string]*session // by UUID of the node: the newest, also for a while after its end
	ended  bool
	active sync.WaitGroup
}

// New makes Sessions. open makes a driver of a node, which no other call shares.
func New(open func(n *node.Node) (power.Driver, error), log *slog.Logger) *Sessions {
	return &Sessions{open: open, log: cmp.Or(log, slog.New(slog.DiscardHandler)), of: map[string]*session{}}
}

// Why a session ends, for the one whose it was.
var (
	errClosed  = errors.New("it was closed")
	errTaken   = errors.New("it was taken over")
	errIdle    = fmt.Errorf("it was not read for %v", limit.ConsoleIdle)
	errOld     = fmt.Errorf("it was open for %v", limit.ConsoleLife)
	errStopped = errors.New("the conductor stops")
)

// Open begins a user's session at a node's console, in place of one that this user has there already, and with take of
// anybody's. The connection is made meanwhile: that it fails is the end of the session. Errors are an *InUseError,
// ErrFull, those of the driver, and an *hardware.UnsupportedError where it has no console.
func (ss *Sessions) Open(n *node.Node, user string, take bool) (id string, err error) {
	d, err := ss.open(n)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			ss.close(n.UUID, d)
		}
	}()
	at, ok := power.As[power.Console](d)
	if !ok {
		return "", &hardware.UnsupportedError{Driver: n.Driver, Feature: "console"}
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	was := ss.of[n.UUID]
	if was != nil && was.isOver() {
		was = nil
	}
	if was != nil && was.user != user && !take {
		return "", &InUseError{was.user, was.began}
	}
	all, own := 0, 0
	for uuid, s := range ss.of {
		if uuid == n.UUID || s.isOver() {
			continue
		}
		if all++; s.user == user {
			own++
		}
	}
	if ss.ended || all >= limit.Consoles || own >= limit.ConsolesPerUser {
		return "", ErrFull
	}
	ctx, end := context.WithCancelCause(context.Background()) // it goes on after this request
	s := &session{id: rand.Text(), user: user, began: time.Now(), end: end, over: make(chan struct{}),
		news: make(chan struct{})}
	s.typed.some = make(chan struct{}, 1)
	s.idle = time.AfterFunc(limit.ConsoleIdle, func() { end(errIdle) })
	old := time.AfterFunc(limit.ConsoleLife, func() { end(errOld) })
	if was != nil {
		was.end(errTaken)
	}
	ss.of[n.UUID] = s
	ss.active.Go(func() {
		defer old.Stop()
		if was != nil { // the controller has to be told of the end of the one before
			<-was.over
		}
		err := at.Console(ctx, &typist{ctx, &s.typed}, s)
		ss.close(n.UUID, d)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		ss.log.Info("a session at a console has ended", "node", n.UUID, "user", user, "took",
			time.Since(s.began).Round(time.Second), "err", err)
		s.finish(err)
		time.AfterFunc(limit.ConsoleIdle, func() { ss.forget(n.UUID, s) })
	})
	ss.log.Info("a session at a console begins", "node", n.UUID, "user", user)
	return s.id, nil
}

func (ss *Sessions) close(node string, d power.Driver) {
	if err := d.Close(); err != nil {
		ss.log.Debug("close driver", "node", node, "err", err)
	}
}

// forget drops a session whose reader had the time to learn of its end.
func (ss *Sessions) forget(node string, s *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.of[node] == s {
		delete(ss.of, node)
	}
}

func (ss *Sessions) find(node, id, user string) (*session, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.of[node]
	if s == nil || s.user != user || subtle.ConstantTimeCompare([]byte(s.id), []byte(id)) != 1 {
		return nil, ErrNone
	}
	return s, nil
}

// Read returns what the machine wrote since a place. If that is nothing, it waits a while for something, or for the end
// of the session or of ctx.
func (ss *Sessions) Read(ctx context.Context, node, id, user string, after int64) (Output, error) {
	s, err := ss.find(node, id, user)
	if err != nil {
		return Output{}, err
	}
	s.idle.Reset(limit.ConsoleIdle)
	defer s.idle.Reset(limit.ConsoleIdle)
	wait := time.NewTimer(limit.ConsoleWait)
	defer wait.Stop()
	for {
		out, news := s.since(after)
		if len(out.Bytes) > 0 || out.Ended != "" {
			return out, nil
		}
		select {
		case <-news:
		case <-wait.C:
			return out, nil
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// Type passes on what is typed: all of it, or nothing with ErrSlow.
func (ss *Sessions) Type(node, id, user string, b []byte) error {
	s, err := ss.find(node, id, user)
	switch {
	case err != nil:
		return err
	case s.isOver():
		return ErrNone
	case !s.typed.add(b):
		return ErrSlow
	}
	return nil
}

// Close ends a session.
func (ss *Sessions) Close(node, id, user string) error {
	s, err := ss.find(node, id, user)
	if err == nil {
		s.end(errClosed)
	}
	return err
}

// Stop ends all sessions, and waits until their controllers know.
func (ss *Sessions) Stop() {
	ss.mu.Lock()
	ss.ended = true
	for _, s := range ss.of {
		s.end(errStopped)
	}
	ss.mu.Unlock()
	ss.active.Wait()
}

// session is one person's at one machine. What it writes down as an io.Writer is the machine's output.
type session struct {
	id, user string
	began    time.Time
	end      context.CancelCauseFunc
	idle     *time.Timer
	over     chan struct{} // closed when the controller was let go
	typed    queue

	mu   sync.Mutex
	kept []byte        // the newest output
	next int64         // the place after it
	news chan struct{} // closed with the next output, or the end
	why  string        // it has ended
}

func (s *session) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// Write implements io.Writer.
func (s *session) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, b...)
	if more := len(s.kept) - limit.ConsoleOutput; more > 0 {
		s.kept = append(s.kept[:0], s.kept[more:]...)
	}
	s.next += int64(len(b))
	s.tell()
	return len(b), nil
}

// tell wakes the readers.
func (s *session) tell() {
	close(s.news)
	s.news = make(chan struct{})
}

func (s *session) finish(err error) {
	s.idle.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why = "the controller ended it"; err != nil {
		s.why = err.Error()
	}
	close(s.over)
	s.tell()
}

// since returns the output since a place, and what is closed when there is more.
func (s *session) since(after int64) (Output, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.next - int64(len(s.kept))
	from := min(max(after, first), s.next)
	out := Output{Bytes: append([]byte(nil), s.kept[from-first:]...), Next: s.next, Lost: max(0, from-after)}
	if len(out.Bytes) == 0 {
		out.Ended = s.why
	}
	return out, s.news
}

// queue holds the input that was not sent yet.
type queue struct {
	mu   sync.Mutex
	b    []byte
	some chan struct{} // has a value when there may be some
}

func (q *queue) add(b []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.b)+len(b) > limit.ConsoleInput {
		return false
	}
	q.b = append(q.b, b...)
	select {
	case q.some <- struct{}{}:
	default:
	}
	return true
}

// typist reads a queue until ctx ends.
type typist struct {
	ctx context.Context //nolint:containedctx io.Reader has no context, and the reader must end with it
	q   *queue
}

// Read implements io.Reader.
func (t *typist) Read(p []byte) (int, error) {
	for {
		t.q.mu.Lock()
		n := copy(p, t.q.b)
		t.q.b = t.q.b[n:]
		t.q.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-t.q.some:
		case <-t.ctx.Done():
			return 0, t.ctx.Err()
		}
	}
}
