package ipmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

const (
	// maxIdle is how long a session may be silent before a new one is opened: well below the 60 s (+/- 3 s) after which
	// the specification lets a controller forget it.
	maxIdle = 30 * time.Second
	// A command in a session is sent again this often, as the same packet, which the controller recognises.
	commandTimeout = time.Second
	commandRetries = 4
	// busyLimit ends the waiting for a controller that answers but says it is busy.
	busyLimit = 15 * time.Second
	firstWait = 200 * time.Millisecond
	maxWait   = 3 * time.Second
)

// handshakeTimeouts are how long each attempt to open a session waits for one packet. A host that never answers costs
// their sum and the waits between, about nine seconds.
var handshakeTimeouts = []time.Duration{time.Second, 2 * time.Second, 2 * time.Second, 3 * time.Second}

// session is one RMCP+ session and its socket.
type session struct {
	c    *client.Client
	conn net.Conn
	used time.Time
}

// end closes the session at the controller, if it listens, and the socket in any case.
func (s *session) end(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	// Errors of Close don't matter: the controller drops an unreachable session by itself.
	_ = s.c.WithRetry(0).Close(ctx)
	s.conn.Close()
}

type repetition bool

// once marks commands that must not be sent again in a new session when they may have arrived: a second cycle is a
// second power cut.
const (
	once       repetition = false
	repeatable repetition = true
)

// do runs f in a session, which it opens when needed, and repeats calls that got no answer.
func (d *Driver) do(ctx context.Context, op string, mode repetition,
	f func(context.Context, *client.Client) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	start := time.Now()
	wait := firstWait
	var busy *power.Error // the controller's last answer
	for lost := 0; ; {
		s, err := d.open(ctx, start)
		if err == nil {
			err = d.run(ctx, s, f)
			if err == nil {
				return nil
			}
		}
		if may := power.MaySend(ctx); may != nil {
			return may
		}
		var pe *power.Error
		if !errors.As(err, &pe) {
			pe = classify(err)
		}
		if pe.Kind == power.Busy {
			busy = pe
		}
		if ctx.Err() != nil && busy != nil && pe.Kind == power.Unreachable {
			pe = busy // only the time for the newest answer was short
		}
		pe.Op, pe.Addr = op, d.opt.addr
		if ctx.Err() != nil {
			took := time.Since(start).Round(100 * time.Millisecond)
			switch {
			case errors.Is(ctx.Err(), context.Canceled):
				pe.Err, pe.Hint = fmt.Errorf("given up after %s: %w", took, context.Cause(ctx)), ""
			case pe.Kind == power.Unreachable:
				pe.Err = fmt.Errorf("no answer within %s: %w", took, context.Cause(ctx))
			default:
				pe.Err = fmt.Errorf("%w (given up after %s: %w)", pe.Err, took, context.Cause(ctx))
			}
			return pe
		}
		switch {
		case pe.Kind == power.Busy && time.Since(start) < busyLimit:
		case pe.Kind == power.Unreachable && s != nil && lost == 0 && mode == repeatable:
			lost++ // the controller may have restarted and forgotten the session
		default:
			return pe
		}
		d.log.Debug("trying again", "op", op, "err", err, "wait", wait)
		if !sleep(ctx, wait) {
			return cmp.Or(busy, pe)
		}
		wait = min(2*wait, maxWait)
	}
}

// run calls f and drops the session when it is of no more use.
func (d *Driver) run(ctx context.Context, s *session, f func(context.Context, *client.Client) error) error {
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	err := f(ctx, s.c)
	interrupted := !stop()
	s.used = time.Now()
	if _, answered := completionCode(err); interrupted || (err != nil && !answered) {
		s.conn.Close()
		d.sess = nil
	}
	return err
}

// open returns a usable session. It tries several times, with growing timeouts, and gives up early when the
// controller's answer shows that trying again won't help.
func (d *Driver) open(ctx context.Context, start time.Time) (*session, error) {
	if d.sess != nil {
		if time.Since(d.sess.used) < maxIdle {
			return d.sess, nil
		}
		end, cancel := context.WithTimeout(ctx, commandTimeout)
		d.sess.end(end)
		cancel()
		d.sess = nil
	}
	var last error
	next := 0 // index into suites
	suites := d.opt.suites
	if d.suiteOK != 0 {
		suites = []types.CipherSuiteID{d.suiteOK}
	}
	for i := 0; i < len(handshakeTimeouts); {
		suite := suites[next%len(suites)]
		s, err := d.handshake(ctx, suite, handshakeTimeouts[i])
		if err == nil {
			d.sess, d.suiteOK = s, suite
			return s, nil
		}
		last = err
		if ctx.Err() != nil || power.MaySend(ctx) != nil {
			return nil, err
		}
		if suiteRefused(err) && next+1 < len(suites) {
			next++ // said so at once: no need to wait, and no attempt spent
			continue
		}
		kind := classify(err).Kind
		if kind != power.Unreachable && kind != power.Busy {
			return nil, err
		}
		// A controller without suite 17 should say so; a few just don't answer. Silence is more often a lost packet, so
		// the weaker suite gets one attempt only, the last but one.
		i++
		next = 0
		if i == len(handshakeTimeouts)-2 {
			next = len(suites) - 1
		}
		if i < len(handshakeTimeouts) && !sleep(ctx, firstWait) {
			return nil, err
		}
	}
	if pe := classify(last); pe.Kind == power.Unreachable {
		pe.Err = fmt.Errorf("%w (tried for %s)", pe.Err, time.Since(start).Round(100*time.Millisecond))
		return nil, pe
	}
	return nil, last
}

// oneConn hands go-ipmi a socket that is open already: so the name is looked up with the context, IPv6 works, and the
// socket can be closed under a pending read.
type oneConn struct{ net.Conn }

func (c oneConn) Dial(string, string) (net.Conn, error) { return c.Conn, nil }

// handshake makes one attempt to open a session.
func (d *Driver) handshake(ctx context.Context, suite types.CipherSuiteID,
	timeout time.Duration) (_ *session, err error) {
	var dialer net.Dialer
	dctx, cancel := context.WithTimeout(ctx, 5*time.Second) // name lookup; UDP itself has nothing to wait for
	conn, err := dialer.DialContext(dctx, "udp", d.opt.addr)
	cancel()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			conn.Close()
		}
	}()
	c, err := client.NewClient("", 0, d.opt.user, d.opt.password)
	if err != nil {
		return nil, err
	}
	// The session outlives the call that opens it; those of one driver have the same check.
	may := func() error { return power.MaySend(ctx) }
	c.WithUDPProxy(oneConn{&bounded{Conn: conn, now: time.Now, may: may}}).WithTimeout(timeout).WithRetry(0)
	c.WithCipherSuiteID(suite).WithMaxPrivilegeLevel(d.opt.privilege)

	if _, err = c.OpenSession(ctx); err != nil {
		return nil, fmt.Errorf("open session with cipher suite %d: %w", suite, err)
	}
	if _, err = c.RAKPMessage1(ctx); err != nil {
		return nil, fmt.Errorf("RAKP 1 and 2 with cipher suite %d: %w", suite, err)
	}
	if _, err = c.RAKPMessage3(ctx); err != nil {
		return nil, fmt.Errorf("RAKP 3 and 4 with cipher suite %d: %w", suite, err)
	}
	c.WithTimeout(commandTimeout).WithRetry(commandRetries)
	if _, err = c.SetSessionPrivilegeLevel(ctx, d.opt.privilege); err != nil {
		return nil, fmt.Errorf("set session privilege: %w", err)
	}
	return &session{c: c, conn: conn, used: time.Now()}, nil
}

// refused reports whether an ICMP message said that nothing listens there.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
