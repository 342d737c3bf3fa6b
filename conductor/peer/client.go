package peer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Client is the side of the conductor that a client talks to. Safe for concurrent use.
type Client struct {
	id   *Identity
	find func(name string) (address string, alive bool)
	log  *slog.Logger
	look time.Duration // how often a conductor that is asked is looked at

	mu      sync.Mutex
	peers   map[string]*way // by name
	failing map[string]bool // by name
}

// way leads to one conductor, which has one address at a time.
type way struct {
	address   string
	transport *http.Transport
	places    chan struct{} // one for each request under way
}

// NewClient makes a Client. find says where a conductor is reached, and whether it lives.
func NewClient(id *Identity, find func(name string) (address string, alive bool), log *slog.Logger) *Client {
	return &Client{id: id, find: find, log: cmp.Or(log, slog.New(slog.DiscardHandler)), look: time.Second,
		peers: map[string]*way{}, failing: map[string]bool{}}
}

// Close closes the connections that are kept.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.peers {
		w.transport.CloseIdleConnections()
	}
}

// wayTo returns the way to a conductor.
func (c *Client) wayTo(name, address string) *way {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.peers[name]
	if w != nil && w.address == address {
		return w
	}
	if w != nil { // requests under way have their connections
		w.transport.CloseIdleConnections()
	}
	conf := c.id.tls(func(is string) error {
		if is != name {
			return fmt.Errorf("at %s is conductor %s: correct peer.advertise of one of the two", address, is)
		}
		return nil
	})
	dialer := &net.Dialer{Timeout: limit.HeaderTime}
	w = &way{address: address, places: make(chan struct{}, limit.PeerRequests), transport: &http.Transport{
		// The address is not the URL's, so that a connection is never used for another name than it was checked for.
		DialTLSContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, limit.HeaderTime)
			defer cancel()
			raw, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			t := tls.Client(raw, conf)
			if err := t.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, raw.Close())
			}
			return t, nil
		},
		MaxIdleConnsPerHost: limit.PeerRequests,
		// The server keeps a connection for longer, so that none is chosen that it is about to close.
		IdleConnTimeout:        limit.IdleTime / 2,
		MaxResponseHeaderBytes: limit.Header,
		DisableCompression:     true,
	}}
	c.peers[name] = w
	return w
}

var (
	errGone = errors.New("it is not heard of any more")
	errLate = fmt.Errorf("no answer within %v", limit.PeerTime)
	errBusy = errors.New("it has too many requests from here under way")
)

// Forward has the conductor owner answer a request, and returns its answer, whatever its status. Other errors than an
// *Error are those of ctx.
func (c *Client) Forward(ctx context.Context, owner string, req *Request) (*Answer, error) {
	a, err := c.forward(ctx, owner, req)
	var failure *Error
	switch isFailure := errors.As(err, &failure); {
	case isFailure && !errors.Is(err, ErrNoAddress) && !errors.Is(err, errBusy):
		if c.note(owner, true) { // once, since clients come again
			c.log.Warn("requests for nodes of another conductor can't be forwarded to it", "conductor", owner, "err",
				failure.Err)
		}
	case err == nil && c.note(owner, false):
		c.log.Info("another conductor can be asked again", "conductor", owner)
	}
	return a, err
}

// note keeps whether a conductor can't be asked, and reports a change.
func (c *Client) note(owner string, failing bool) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.failing[owner] != failing
	c.failing[owner] = failing
	return changed
}

func (c *Client) forward(ctx context.Context, owner string, req *Request) (*Answer, error) {
	failed := func(acted bool, err error) (*Answer, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err() // the client has gone
		}
		return nil, &Error{Conductor: owner, Err: err, MayHaveActed: acted}
	}
	sent := *req
	sent.Header = passed(req.Header)
	b, err := json.Marshal(sent)
	if err != nil {
		return failed(false, err)
	}
	answer, acted, err := c.exchange(ctx, owner, path, b)
	if err != nil {
		return failed(acted, err)
	}
	var a Answer
	if err := decode(answer, &a); err != nil || a.Status < http.StatusOK || a.Status > 599 {
		return failed(true, fmt.Errorf("its answer is none: status %d, %w", a.Status, err))
	}
	length := a.Header.Get("Content-Length")
	if a.Header = passed(a.Header); req.Method == http.MethodHead && length != "" {
		a.Header.Set("Content-Length", length) // of the body that it would have
	}
	return &a, nil
}

// AboutSwarms sends a message to the relay of another conductor, and returns its answer. It may be sent again.
func (c *Client) AboutSwarms(ctx context.Context, conductor string, message []byte) ([]byte, error) {
	answer, _, err := c.exchange(ctx, conductor, swarmPath, message)
	return answer, err
}

// exchange sends a message to where a conductor takes such ones, and returns the answer. With an error, acted says
// whether the conductor may have done something.
func (c *Client) exchange(ctx context.Context, owner, path string, b []byte) (answer []byte, acted bool, err error) {
	address, alive := c.find(owner)
	switch {
	case !alive:
		return nil, false, errGone
	case address == "":
		return nil, false, ErrNoAddress
	}
	w := c.wayTo(owner, address)
	select {
	case w.places <- struct{}{}:
		defer func() { <-w.places }()
	default:
		return nil, false, errBusy
	}
	within, cancel := c.watch(ctx, owner)
	defer cancel()
	cause := func(err error) error {
		if within.Err() != nil {
			return context.Cause(within)
		}
		return err
	}
	resp, begun, err := c.post(within, w, path, b)
	if err != nil {
		return nil, begun, cause(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, limit.PeerMessage+1))
	switch {
	case resp.StatusCode != http.StatusOK: // the request was not looked at, whatever else it says
		return nil, false, fmt.Errorf("it refused the message with %d: %s", resp.StatusCode,
			bytes.TrimSpace(answer[:min(len(answer), 200)]))
	case err != nil:
		return nil, true, cause(fmt.Errorf("read its answer: %w", err))
	case len(answer) > limit.PeerMessage:
		return nil, true, fmt.Errorf("its answer is longer than %d bytes", limit.PeerMessage)
	}
	return answer, false, nil
}

// watch returns a context that ends with its time, and when the conductor ceases to live.
func (c *Client) watch(ctx context.Context, owner string) (context.Context, func()) {
	ctx, giveUp := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		end, tick := time.NewTimer(limit.PeerTime), time.NewTicker(c.look)
		defer end.Stop()
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-end.C:
				giveUp(errLate)
			case <-tick.C:
				if _, alive := c.find(owner); !alive {
					giveUp(errGone)
				}
			}
		}
	}()
	return ctx, func() {
		giveUp(nil)
		<-done
	}
}

// post sends a message. With an error, begun says whether it may have arrived.
func (c *Client) post(ctx context.Context, w *way, path string, b []byte) (resp *http.Response, begun bool, err error) {
	var mu sync.Mutex
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		mu.Lock()
		defer mu.Unlock()
		connected = true
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://conductor"+path, bytes.NewReader(b))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	// The transport repeats a POST only if nothing of it was written, or the server had closed the kept connection
	// before.
	resp, err = w.transport.RoundTrip(req)
	if err == nil {
		return resp, true, nil
	}
	mu.Lock()
	defer mu.Unlock()
	// In TLS 1.3 a server refuses the client's certificate after the client has begun to write.
	var op *net.OpError
	refused := errors.As(err, &op) && op.Op == "remote error"
	return nil, connected && !refused, err
}
