package limit

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Connections says how many connections a listener may have open.
type Connections struct {
	Total      int
	PerAddress int // trusted proxies are exempt
}

// ListenHTTP is Listen for a server of HTTP without TLS: a connection too many is answered with 503 and Retry-After, as
// long as there are few such.
func ListenHTTP(l net.Listener, name string, c Connections, clients *Clients, log *slog.Logger) net.Listener {
	limited := Listen(l, name, c, clients, log).(*listener)
	limited.answering = make(chan struct{}, Refusals)
	return limited
}

// Listen puts the limits in front of l. A connection too many is closed as soon as it is accepted, which costs the peer
// as much as us. Put TLS above it, not below. name is for the log, which may be nil.
func Listen(l net.Listener, name string, c Connections, clients *Clients, log *slog.Logger) net.Listener {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &listener{Listener: l, name: name, limit: c, clients: clients, log: log, open: map[netip.Addr]int{},
		now: time.Now}
}

type listener struct {
	net.Listener
	name    string
	limit   Connections
	clients *Clients
	log     *slog.Logger
	now     func() time.Time
	// answering bounds the connections that get the answer that there are too many; nil if none gets it.
	answering chan struct{}

	mu      sync.Mutex
	total   int
	open    map[netip.Addr]int
	refused int
	logged  time.Time
}

// tellEvery is how often the log has a line about connections that were refused.
const tellEvery = time.Minute

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		at := Owner(peer(c.RemoteAddr().String()))
		if l.enter(at) {
			return &conn{Conn: c, leave: sync.OnceFunc(func() { l.leave(at) })}, nil
		}
		select {
		case l.answering <- struct{}{}:
			go func() { // ends by itself, soon
				defer func() { <-l.answering }()
				refuse(c)
			}()
			continue
		default: // no room, or no answers
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // else each leaves a record in the kernel; it is closed either way
		}
		c.Close() // nothing was sent that could be lost
	}
}

// How many connections are refused with an answer at one time, and how long that may take: clients take an answer for
// one only after they have sent their request.
const (
	answerTime = time.Second
)

func refuse(c net.Conn) {
	defer c.Close()
	if c.SetDeadline(time.Now().Add(answerTime)) != nil {
		return
	}
	r, err := http.ReadRequest(bufio.NewReader(io.LimitReader(c, Header)))
	if err != nil {
		return
	}
	const text = "Too many connections are open: try again in a moment.\n"
	resp := &http.Response{StatusCode: http.StatusServiceUnavailable, ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Close: true, ContentLength: int64(len(text)),
		Header: http.Header{"Retry-After": {strconv.Itoa(int(RetryAfter.Seconds()))}, "Content-Type": {"text/plain"}},
		Body:   io.NopCloser(strings.NewReader(text))}
	if resp.Write(c) != nil {
		return
	}
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, AnonymousBody) // unread data makes the kernel drop the answer
	}
}

func (l *listener) enter(at netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	counted := at.IsValid() && !l.clients.trusts(at)
	if l.total < l.limit.Total && (!counted || l.open[at] < l.limit.PerAddress) {
		l.total++
		l.open[at]++
		return true
	}
	l.refused++
	if now := l.now(); now.Sub(l.logged) >= tellEvery {
		l.log.Warn("connections were closed because too many are open: raise limits, or find out who opens them",
			"listener", l.name, "refused", l.refused, "from", at, "open", l.open[at], "allowed", l.limit.PerAddress,
			"all", l.total, "allowed_all", l.limit.Total)
		l.logged, l.refused = now, 0
	}
	return false
}

func (l *listener) leave(at netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[at]--; l.open[at] <= 0 {
		delete(l.open, at)
	}
}

// conn is a connection that is counted until it is closed. A write that makes no progress for StallTime fails.
type conn struct {
	net.Conn
	leave func()
}

func (c *conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

func (c *conn) Write(b []byte) (n int, err error) {
	for {
		part := b[n:min(len(b), n+maxWrite)]
		if err := c.SetWriteDeadline(time.Now().Add(StallTime)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(part)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

// maxWrite is the number of bytes that a slow but honest peer reads in StallTime.
const maxWrite = 1 << 20

// ReadFrom lets the kernel copy files by itself, as net/http does for those it serves, in parts that have a time each.
func (c *conn) ReadFrom(r io.Reader) (n int64, err error) {
	to, ok := c.Conn.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	left := int64(-1)
	lr, limited := r.(*io.LimitedReader)
	if limited { // the kernel's way is open to one of these around a file, not to two
		r, left = lr.R, lr.N
	}
	if _, file := r.(*os.File); !file {
		if limited {
			r = lr
		}
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	for left != 0 {
		part := int64(maxWrite)
		if left > 0 {
			part = min(part, left)
		}
		if err := c.SetWriteDeadline(time.Now().Add(StallTime)); err != nil {
			return n, err
		}
		m, err := to.ReadFrom(&io.LimitedReader{R: r, N: part})
		n += m
		if limited {
			left -= m
			lr.N = left
		}
		if err != nil || m < part {
			return n, err
		}
	}
	return n, nil
}

// CloseWrite is called by net/http before it closes a connection whose peer may still be sending.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}
