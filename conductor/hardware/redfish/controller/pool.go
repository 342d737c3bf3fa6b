// Package controller is the client of Redfish services: one per controller, shared by all nodes whose machines it
// manages.
//
// A Pool has one Controller for each address and account, with one session that is made when it is needed, made anew
// when the service has forgotten it, and deleted when it was not used for a while and when the pool is closed. Where
// there are no sessions, or no more, Basic authentication is used instead. A service gets one request at a time,
// whichever account it is from; how many may wait is bounded, and so is an answer. gofish has the types and requests of
// the standard; this package is the transport beneath it, and alone knows of authentication, repetition and time.
//
// Requests are repeated by kind: when the service is busy or not ready yet (503, 429, and errors that say so), when it
// closed the connection and the request does no harm twice, once after a new login, and with other forms of the ETag
// after 412. Errors are *power.Error; what a service says is bounded, cleaned, and rid of the account's secrets.
package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/sessions"
)

// Kinds of authentication. Auto makes sessions, and uses Basic where there are none.
const (
	Basic   = "basic"
	Session = "session"
	Auto    = "auto"
)

// Access is the address of a service and the account there.
type Access struct {
	// Base has scheme, host and the path of the service root.
	Base           url.URL
	User, Password string
	Auth           string
	// Insecure does not check the service's certificate. CA are the certificates that it may be signed by, in PEM; "":
	// those that this host trusts.
	Insecure bool
	CA       string
}

// key distinguishes accesses without holding a secret.
type key [sha256.Size]byte

func (a Access) key() key {
	h := sha256.New()
	insecure := ""
	if a.Insecure {
		insecure = "insecure"
	}
	for _, s := range []string{a.Base.String(), a.User, a.Password, a.Auth, insecure, a.CA} {
		one := sha256.Sum256([]byte(s))
		h.Write(one[:])
	}
	return key(h.Sum(nil))
}

// Options are of a pool.
type Options struct {
	// Dial connects to a service; nil is a plain dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Quirks is the table of what controllers do otherwise; nil is quirk.Table.
	Quirks []quirk.Row
	// Sessions is a directory for records of sessions, by which the next pool deletes those that this one leaves if its
	// program is killed. "" keeps none.
	Sessions string
	Log      *slog.Logger // nil is silent
}

// Pool has the controllers in use. Safe for concurrent use.
type Pool struct {
	opt Options
	out sync.WaitGroup // sessions being deleted

	records *sessions.Records

	mu    sync.Mutex
	open  map[key]*Controller
	turns map[string]*turn // by host
	swept time.Time
}

// NewPool makes a pool.
func NewPool(o Options) *Pool {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Quirks == nil {
		o.Quirks = quirk.Table
	}
	records, err := sessions.Open(o.Sessions)
	if err != nil { // then controllers end what is left by themselves
		o.Log.Warn("read the records of Redfish sessions", "err", err)
	}
	return &Pool{opt: o, open: map[key]*Controller{}, turns: map[string]*turn{}, records: records}
}

// errCertificates means that the CA holds none.
var errCertificates = errors.New("there is no certificate in it")

// Get returns the controller for an access, and sends nothing. Release gives it back.
func (p *Pool) Get(a Access) (*Controller, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked()
	k := a.key()
	c, ok := p.open[k]
	if !ok {
		var err error
		if c, err = p.makeLocked(a); err != nil {
			return nil, err
		}
		p.open[k] = c
	}
	c.users++
	return c, nil
}

func (p *Pool) makeLocked(a Access) (*Controller, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: a.Insecure}
	if a.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(a.CA)) {
			return nil, errCertificates
		}
	}
	t := p.turns[a.Base.Host]
	if t == nil {
		t = newTurn()
		p.turns[a.Base.Host] = t
	}
	return &Controller{
		pool: p, access: a, turn: t, log: p.opt.Log.With("driver", "redfish", "bmc", a.Base.Host),
		connecting: make(chan struct{}, 1), systems: map[string]facts{},
		wire: &http.Transport{DialContext: p.dial, TLSClientConfig: config, MaxConnsPerHost: 2,
			TLSHandshakeTimeout: limit.RedfishTime, IdleConnTimeout: limit.RedfishTime,
			MaxResponseHeaderBytes: limit.Header},
	}, nil
}

func (p *Pool) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit.RedfishTime/3)
	defer cancel()
	return p.opt.Dial(ctx, network, address)
}

// Release gives a controller back. Its session stays for the next one, for a while.
func (c *Controller) Release() {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	c.users--
	c.used = time.Now()
	p.sweepLocked()
}

// sweepLocked deletes the sessions that are not used any more, at most once in a while.
//
//nolint:contextcheck the sessions are not the caller's, and end whatever becomes of its call
func (p *Pool) sweepLocked() {
	now := time.Now()
	if now.Sub(p.swept) < limit.RedfishIdle/5 {
		return
	}
	p.swept = now
	hosts := map[string]bool{}
	for k, c := range p.open {
		hosts[c.access.Base.Host] = true // of those that are deleted now until next time
		if c.users == 0 && now.Sub(c.used) > limit.RedfishIdle {
			delete(p.open, k)
			p.out.Go(func() { c.logOut(context.Background()) })
		}
	}
	for host, t := range p.turns {
		if !hosts[host] && t.idle() {
			delete(p.turns, host)
		}
	}
}

// Close deletes all sessions, and returns when that is done or ctx has ended. Nothing may be in use.
func (p *Pool) Close(ctx context.Context) {
	p.mu.Lock()
	for k, c := range p.open {
		delete(p.open, k)
		p.out.Go(func() { c.logOut(ctx) })
	}
	p.mu.Unlock()
	p.out.Wait()
}
