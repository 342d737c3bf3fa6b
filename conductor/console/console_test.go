package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// machine is a driver whose console echoes. At most one console of it is open.
type machine struct {
	power.Driver
	first  string // what it says
	fails  error  // instead
	deaf   bool   // it takes nothing
	at     atomic.Int32
	closed atomic.Int32
}

func (m *machine) Close() error { m.closed.Add(1); return nil }

func (m *machine) Console(ctx context.Context, in io.Reader, out io.Writer) error {
	if m.at.Add(1) > 1 {
		return errors.New("the console is in use")
	}
	defer m.at.Add(-1)
	if m.fails != nil {
		return m.fails
	}
	if _, err := io.WriteString(out, m.first); err != nil {
		return err
	}
	if m.deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := io.Copy(out, struct{ io.Reader }{in})
	return err
}

// mute is a driver without a console.
type mute struct{ power.Driver }

func (mute) Close() error { return nil }

func sessions(m *machine) *Sessions {
	return New(func(*node.Node) (power.Driver, error) { return m, nil }, slog.New(slog.DiscardHandler))
}

var box = &node.Node{UUID: "n1", Driver: "ipmi"}

func open(t *testing.T, ss *Sessions, user string) string {
	t.Helper()
	id, err := ss.Open(box, user, false)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// reads reads until the session has written a text, or has ended.
func reads(t *testing.T, ss *Sessions, id, user, want string) (next int64, ended string) {
	t.Helper()
	var all strings.Builder
	for {
		out, err := ss.Read(t.Context(), box.UUID, id, user, next)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(out.Bytes)
		next = out.Next
		if out.Ended != "" || want != "" && strings.Contains(all.String(), want) {
			if !strings.Contains(all.String(), want) {
				t.Errorf("read %q until %s, want %q", all.String(), out.Ended, want)
			}
			return next, out.Ended
		}
	}
}

func TestWhatIsTypedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{first: "login: "}
		ss := sessions(m)
		id := open(t, ss, "ann")
		next, _ := reads(t, ss, id, "ann", "login: ")
		if err := ss.Type(box.UUID, id, "ann", []byte("root\r")); err != nil {
			t.Fatal(err)
		}
		if got, _ := reads(t, ss, id, "ann", "root\r"); got != next+5 {
			t.Errorf("the place after it is %d, want %d", got, next+5)
		}
		// A reader that waits learns of the end.
		var ended string
		done := make(chan struct{})
		go func() {
			defer close(done)
			out, err := ss.Read(t.Context(), box.UUID, id, "ann", next+5)
			if err != nil {
				t.Error(err)
			}
			ended = out.Ended
		}()
		synctest.Wait()
		if err := ss.Close(box.UUID, id, "ann"); err != nil {
			t.Fatal(err)
		}
		<-done
		if ended != errClosed.Error() || m.closed.Load() != 1 {
			t.Errorf("ended because %q, the driver is closed %d times", ended, m.closed.Load())
		}
		if err := ss.Type(box.UUID, id, "ann", []byte("x")); !errors.Is(err, ErrNone) {
			t.Errorf("Type after the end = %v", err)
		}
		ss.Stop()
		time.Sleep(2 * limit.ConsoleIdle)
		synctest.Wait()
		if len(ss.of) != 0 {
			t.Error("the session is kept for ever")
		}
	})
}

// TestOnePersonAtATime: a session is its user's, until somebody takes it over, and the controller is let go first.
func TestOnePersonAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss := sessions(&machine{first: "login: "})
		defer ss.Stop()
		ann := open(t, ss, "ann")
		reads(t, ss, ann, "ann", "login: ")
		var used *InUseError
		if _, err := ss.Open(box, "bob", false); !errors.As(err, &used) || used.User != "ann" {
			t.Errorf("Open by another user = %v", err)
		}
		for _, tt := range []struct{ node, id, user string }{{box.UUID, ann, "bob"}, {box.UUID, ann + "x", "ann"},
			{box.UUID, "", "ann"}, {"n2", ann, "ann"}} {
			if _, err := ss.Read(t.Context(), tt.node, tt.id, tt.user, 0); !errors.Is(err, ErrNone) {
				t.Errorf("Read(%v) = %v", tt, err)
			}
			if err := ss.Type(tt.node, tt.id, tt.user, []byte("x")); !errors.Is(err, ErrNone) {
				t.Errorf("Type(%v) = %v", tt, err)
			}
			if err := ss.Close(tt.node, tt.id, tt.user); !errors.Is(err, ErrNone) {
				t.Errorf("Close(%v) = %v", tt, err)
			}
		}
		bob, err := ss.Open(box, "bob", true)
		if err != nil {
			t.Fatal(err)
		}
		reads(t, ss, bob, "bob", "login: ")
		if _, err := ss.Read(t.Context(), box.UUID, ann, "ann", 0); !errors.Is(err, ErrNone) {
			t.Errorf("Read of what was taken over = %v", err)
		}
		again := open(t, ss, "bob") // the same user, from another page
		reads(t, ss, again, "bob", "login: ")
	})
}

// TestWhatEndsASession: no client reads, it is too old, the controller fails, the conductor stops.
func TestWhatEndsASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss := sessions(&machine{first: "login: "})
		id := open(t, ss, "ann")
		reads(t, ss, id, "ann", "login: ")
		time.Sleep(limit.ConsoleIdle + time.Second)
		synctest.Wait()
		if _, why := reads(t, ss, id, "ann", ""); why != errIdle.Error() {
			t.Errorf("ended because %q", why)
		}
		id = open(t, ss, "ann")
		began := time.Now()
		for {
			if _, why := reads(t, ss, id, "ann", ""); why != "" {
				if why != errOld.Error() || time.Since(began) > limit.ConsoleLife+limit.ConsoleWait {
					t.Errorf("after %v ended because %q", time.Since(began), why)
				}
				break
			}
		}
		id = open(t, ss, "ann")
		reads(t, ss, id, "ann", "login: ")
		ss.Stop()
		if _, why := reads(t, ss, id, "ann", ""); why != errStopped.Error() {
			t.Errorf("ended because %q", why)
		}
		if _, err := ss.Open(box, "ann", true); !errors.Is(err, ErrFull) {
			t.Errorf("Open after the end = %v", err)
		}
		ss = sessions(&machine{fails: errors.New("wrong password")})
		defer ss.Stop()
		if _, why := reads(t, ss, open(t, ss, "ann"), "ann", ""); why != "wrong password" {
			t.Errorf("ended because %q", why)
		}
	})
}

// TestSessionsAreBounded: how many there are, how much is kept, and how much waits for the machine.
func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{first: strings.Repeat("x", limit.ConsoleOutput) + "the end", deaf: true}
		ss := sessions(m)
		defer ss.Stop()
		id := open(t, ss, "ann")
		synctest.Wait()
		out, err := ss.Read(t.Context(), box.UUID, id, "ann", 0)
		if err != nil || len(out.Bytes) != limit.ConsoleOutput || out.Lost != 7 ||
			!strings.HasSuffix(string(out.Bytes), "the end") {
			t.Errorf("Read = %d bytes, %d lost, %v", len(out.Bytes), out.Lost, err)
		}
		far, err := ss.Read(t.Context(), box.UUID, id, "ann", 1<<60)
		if err != nil || len(far.Bytes) != 0 || far.Lost != 0 {
			t.Errorf("Read from after the end = %+v, %v", far, err)
		}
		if err := ss.Type(box.UUID, id, "ann", make([]byte, limit.ConsoleInput)); err != nil {
			t.Error(err)
		}
		if err := ss.Type(box.UUID, id, "ann", []byte("x")); !errors.Is(err, ErrSlow) {
			t.Errorf("Type beyond the bound = %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ss.Read(ctx, box.UUID, id, "ann", out.Next); !errors.Is(err, context.Canceled) {
			t.Errorf("Read for a client that is gone = %v", err)
		}
		ss.open = func(*node.Node) (power.Driver, error) { return &machine{deaf: true}, nil }
		opened := func(user string) (n int) {
			for i := range 2 * limit.Consoles {
				_, err := ss.Open(&node.Node{UUID: fmt.Sprint(user, i)}, user, true)
				switch {
				case err == nil:
					n++
				case !errors.Is(err, ErrFull):
					t.Error(err)
				}
			}
			return n
		}
		if n := opened("ann"); n != limit.ConsolesPerUser-1 {
			t.Errorf("ann opened %d more", n)
		}
		if n := opened("bob") + opened("eve"); n != limit.Consoles-limit.ConsolesPerUser {
			t.Errorf("others opened %d", n)
		}
	})
}

func TestADriverWithoutAConsole(t *testing.T) {
	ss := New(func(*node.Node) (power.Driver, error) { return mute{}, nil }, nil)
	var cannot *hardware.UnsupportedError
	if _, err := ss.Open(box, "ann", false); !errors.As(err, &cannot) {
		t.Errorf("Open = %v", err)
	}
	errNo := errors.New("no such driver")
	ss = New(func(*node.Node) (power.Driver, error) { return nil, errNo }, nil)
	if _, err := ss.Open(box, "ann", false); !errors.Is(err, errNo) {
		t.Errorf("Open = %v", err)
	}
}
