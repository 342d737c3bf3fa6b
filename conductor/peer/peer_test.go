package peer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// authorities is a CA, and those that are accepted beside it.
type authorities struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	more []*x509.Certificate
}

func newCA(t *testing.T) *authorities {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(30, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authorities{cert: cert, key: key}
}

func (a *authorities) Sign(tmpl *x509.Certificate, pub any) ([]byte, error) {
	t := *tmpl
	t.SerialNumber = big.NewInt(2)
	return x509.CreateCertificate(rand.Reader, &t, a.cert, pub, a.key)
}

func (a *authorities) Roots() []*x509.Certificate {
	return append([]*x509.Certificate{a.cert}, a.more...)
}

// clock is one that a test sets.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

func identity(t *testing.T, name string, ca authority, now func() time.Time) *Identity {
	t.Helper()
	id, err := NewIdentity(name, ca, now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// serve has a conductor answer others, and returns its address. Connections counts those that were accepted.
func serve(t *testing.T, id *Identity, handle Handler) (address string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &counting{Listener: l}
	s := NewServer(id, handle, func(conductor string, message []byte) ([]byte, error) {
		if string(message) == "nonsense" {
			return nil, errors.New("it makes no sense")
		}
		return fmt.Appendf(nil, "%s said %s", conductor, message), nil
	}, nil, nil)
	web := limit.HTTP(s, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- web.Serve(s.Listener(limit.Listen(counted, "conductors", Connections, nil, nil))) }()
	t.Cleanup(func() {
		web.Close()
		<-done
	})
	return l.Addr().String(), &counted.n
}

type counting struct {
	net.Listener
	n atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

// at is the other conductors of a client: one, which lives.
func at(address string) func(string) (string, bool) {
	return func(string) (string, bool) { return address, true }
}

func client(t *testing.T, id *Identity, find func(string) (string, bool)) *Client {
	c := NewClient(id, find, nil)
	t.Cleanup(c.Close)
	return c
}

func request() *Request {
	return &Request{ID: "req-1", Actor: &access.Actor{UserName: "alice", System: true, Role: access.Reader},
		Method: "PUT", URL: "/v1/nodes/n/management/inject_nmi", Host: "ingot.example", Body: []byte("{}")}
}

// TestForward: a request arrives as the client sent it, but for its credentials, with what is known of its sender; the
// answer is that of the owner, whatever its status; and connections are kept.
func TestForward(t *testing.T) {
	ca := newCA(t)
	sent := &Request{ID: "req-0123",
		Actor: &access.Actor{UserID: "u1", UserName: "alice", Domain: "corp", ProjectID: "p1", ProjectName: "web",
			Role: access.Manager, Service: true, Trusted: true},
		Base: "https://ingot.example:6385", Method: "POST", URL: "//v1/nodes/a%2Fb/vendor_passthru?method=x&y=%20",
		Host: "ingot.example:6385",
		Header: http.Header{"X-Openstack-Ironic-Api-Version": {"1.80"}, "If-Match": {`"1"`, `"2"`},
			"Content-Type": {"application/json"}, "X-Auth-Token": {"secret"}, "Authorization": {"secret"},
			"Connection": {"close"}, "Content-Length": {"4"}},
		Body: []byte("{\"a\":\"\\u0000\xff\"}")}
	type got struct {
		From              Origin
		Method, URL, Host string
		Query, Escaped    string
		Header            http.Header
		Body              string
	}
	arrived := make(chan got, 2)
	owner := identity(t, "c2", ca, nil)
	address, connections := serve(t, owner, func(w http.ResponseWriter, r *http.Request, from Origin) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		arrived <- got{from, r.Method, r.RequestURI, r.Host, r.URL.RawQuery, r.URL.EscapedPath(), r.Header, string(b)}
		w.Header()["X-Twice"] = []string{"a", "b"}
		w.Header().Set("Set-Cookie", "secret")
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, "\xff{\"no\":1}")
	})
	c := client(t, identity(t, "c1", ca, nil), at(address))
	for range 2 {
		a, err := c.Forward(t.Context(), "c2", sent)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&Answer{Status: 409, Header: http.Header{"X-Twice": {"a", "b"}},
			Body: []byte("\xff{\"no\":1}")}, a); diff != "" {
			t.Errorf("the answer (-want +got):\n%s", diff)
		}
		want := got{Origin{"c1", sent.ID, sent.Actor, sent.Base}, sent.Method, sent.URL, sent.Host, "method=x&y=%20",
			"//v1/nodes/a%2Fb/vendor_passthru",
			http.Header{"X-Openstack-Ironic-Api-Version": {"1.80"}, "If-Match": {`"1"`, `"2"`},
				"Content-Type": {"application/json"}}, string(sent.Body)}
		if diff := cmp.Diff(want, <-arrived); diff != "" {
			t.Errorf("what arrived (-want +got):\n%s", diff)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("two requests took %d connections", n)
	}
}

// TestAboutSwarms: messages about swarms are answered, with the name of who sent them by its certificate; what makes no
// sense is an error, and a conductor without them, such as an older one, says that it knows none.
func TestAboutSwarms(t *testing.T) {
	ca := newCA(t)
	address, connections := serve(t, identity(t, "c2", ca, nil), nil)
	c := client(t, identity(t, "c1", ca, nil), at(address))
	for range 2 {
		if out, err := c.AboutSwarms(t.Context(), "c2", []byte("hello")); err != nil || string(out) != "c1 said hello" {
			t.Errorf("the answer is %q, %v", out, err)
		}
	}
	_, err := c.AboutSwarms(t.Context(), "c2", []byte("nonsense"))
	if err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("nonsense: %v", err)
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if _, err := c.AboutSwarms(t.Context(), "c3", nil); err == nil {
		t.Error("another conductor than the one that was asked is answered")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	older := NewServer(identity(t, "c2", ca, nil), nil, nil, nil, nil)
	web := limit.HTTP(older, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- web.Serve(older.Listener(l)) }()
	defer func() {
		web.Close()
		<-done
	}()
	c = client(t, identity(t, "c1", ca, nil), at(l.Addr().String()))
	if _, err := c.AboutSwarms(t.Context(), "c2", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("one without swarms: %v", err)
	}
}

// TestActorIsWhole: a member that is added to access.Actor reaches the owner, too.
func TestActorIsWhole(t *testing.T) {
	b, err := json.Marshal(access.Actor{})
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(b, &members); err != nil {
		t.Fatal(err)
	}
	// A new member that restricts an actor changes the form of the messages: path has its number.
	want := []string{"All", "Domain", "ProjectID", "ProjectName", "Role", "Service", "System", "Trusted", "UserID",
		"UserName"}
	for _, name := range want {
		if _, ok := members[name]; !ok {
			t.Errorf("an actor goes without %s", name)
		}
	}
	if len(members) != len(want) {
		t.Errorf("an actor has %d members, want %d: see path", len(members), len(want))
	}
}

// pair is a certificate with its key. change changes what a conductor's has.
func pair(t *testing.T, ca *authorities, name string, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	id := identity(t, name, ca, nil)
	leaf, err := x509.ParseCertificate(id.cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: leaf.Subject, URIs: leaf.URIs,
		KeyUsage: leaf.KeyUsage, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		UnknownExtKeyUsage: leaf.UnknownExtKeyUsage}
	change(tmpl)
	key := id.cert.PrivateKey.(*ecdsa.PrivateKey)
	der, err := ca.Sign(tmpl, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// strangers are certificates that no conductor may be taken for.
func strangers(t *testing.T, ca *authorities) map[string]tls.Certificate {
	t.Helper()
	of := func(change func(*x509.Certificate)) tls.Certificate { return pair(t, ca, "c1", change) }
	nothing := func(*x509.Certificate) {}
	good := of(nothing)
	uri := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	self := newCA(t)
	byAgent := of(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	agentCert, err := x509.ParseCertificate(byAgent.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	signed := pair(t, &authorities{cert: agentCert, key: byAgent.PrivateKey.(*ecdsa.PrivateKey)}, "c1", nothing)
	signed.Certificate = append(signed.Certificate, byAgent.Certificate...)
	return map[string]tls.Certificate{
		"an agent": of(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			c.URIs = []*url.URL{uri("ingot://node/1f0c?boot=b&generation=1")}
		}),
		"an agent with a conductor's name": of(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}),
		"an agent that may be a conductor": byAgent,
		"the agents' server": of(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}),
		"any usage": of(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
		}),
		"no usage":           of(func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil }),
		"no name":            of(func(c *x509.Certificate) { c.URIs = nil }),
		"an empty name":      of(func(c *x509.Certificate) { c.URIs = []*url.URL{uri("ingot://conductor/")} }),
		"a node's name":      of(func(c *x509.Certificate) { c.URIs = []*url.URL{uri("ingot://node/c1")} }),
		"two names":          of(func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("ingot://conductor/c9")) }),
		"a name and a query": of(func(c *x509.Certificate) { c.URIs = []*url.URL{uri("ingot://conductor/c1?x=1")} }),
		"a CA":               of(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }),
		"ended":              of(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
		"not yet begun":      of(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }),
		"another CA":         pair(t, self, "c1", nothing),
		"another CA, and its certificate": {PrivateKey: pair(t, self, "c1", nothing).PrivateKey,
			Certificate: append(pair(t, self, "c1", nothing).Certificate, self.cert.Raw)},
		"the CA itself":      {Certificate: [][]byte{ca.cert.Raw}, PrivateKey: ca.key},
		"signed by an agent": signed,
		"a chain": {Certificate: append(append([][]byte{}, good.Certificate...), ca.cert.Raw),
			PrivateKey: good.PrivateKey},
	}
}

// TestStrangersAreNotAnswered: without a conductor's certificate no byte of an answer comes, and with one there is one.
func TestStrangersAreNotAnswered(t *testing.T) {
	ca := newCA(t)
	address, _ := serve(t, identity(t, "c2", ca, nil), func(http.ResponseWriter, *http.Request, Origin) {
		t.Error("a stranger's request was looked at")
	})
	ask := func(certs ...tls.Certificate) (string, error) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: certs, MinVersion: tls.VersionTLS12})
		if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"); err != nil {
			return "", err
		}
		b, err := io.ReadAll(c)
		return string(b), err
	}
	if out, err := ask(); err == nil || out != "" {
		t.Errorf("without a certificate: %q, %v", out, err)
	}
	for what, cert := range strangers(t, ca) {
		if out, err := ask(cert); err == nil || out != "" {
			t.Errorf("%s: %q, %v", what, out, err)
		}
	}
	out, err := ask(pair(t, ca, "c1", func(*x509.Certificate) {}))
	if err != nil || !strings.HasPrefix(out, "HTTP/1.1 400 ") || !strings.Contains(out, "lacks method") {
		t.Errorf("a conductor with an empty message: %q, %v", out, err)
	}
}

// TestStrangersAreNotAsked: a request does not leave for a server that is not the conductor that is meant.
func TestStrangersAreNotAsked(t *testing.T) {
	ca := newCA(t)
	others := strangers(t, ca)
	others["another conductor"] = pair(t, ca, "c3", func(*x509.Certificate) {})
	me := identity(t, "c1", ca, nil)
	for what, cert := range others {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert},
			ClientAuth: tls.RequireAnyClientCert})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if b, _ := io.ReadAll(conn); len(b) > 0 {
				t.Errorf("%s got %q", what, b)
			}
		})
		var failure *Error
		_, err = client(t, me, at(l.Addr().String())).Forward(t.Context(), "c1", request())
		if !errors.As(err, &failure) || failure.MayHaveActed {
			t.Errorf("%s: %v", what, err)
		}
		if what == "another conductor" && !strings.Contains(err.Error(), "is conductor c3: correct peer.advertise") {
			t.Errorf("%s: %v", what, err)
		}
		if what == "ended" && !strings.Contains(err.Error(), "compare the clocks") {
			t.Errorf("%s: %v", what, err)
		}
		l.Close()
		wg.Wait()
	}
}

// TestAConductorRefusesUs: in TLS 1.3 the client learns that only after it has begun to send; nothing was done.
func TestAConductorRefusesUs(t *testing.T) {
	theirs, ours := newCA(t), newCA(t)
	ours.more = []*x509.Certificate{theirs.cert} // we know theirs, and they don't know ours
	address, _ := serve(t, identity(t, "c2", theirs, nil), func(http.ResponseWriter, *http.Request, Origin) {
		t.Error("a stranger's request was looked at")
	})
	for range 20 {
		_, err := client(t, identity(t, "c1", ours, nil), at(address)).Forward(t.Context(), "c2", request())
		var failure *Error
		if !errors.As(err, &failure) || failure.MayHaveActed {
			t.Fatalf("refused: %v", err)
		}
	}
}

// TestRotation: with a CA that follows, conductors that know both and those that know the old one alone understand each
// other; from the end of the overlap on the old one counts no more, on kept connections neither.
func TestRotation(t *testing.T) {
	old, next := newCA(t), newCA(t)
	var mu sync.Mutex
	over := false
	rotated := roots(func() []*authorities {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return []*authorities{next}
		}
		return []*authorities{old, next}
	})
	ok := func(w http.ResponseWriter, _ *http.Request, _ Origin) { w.WriteHeader(204) }
	knowsBoth, knowsOld, knowsNext := identity(t, "both", rotated, nil), identity(t, "old", old, nil),
		identity(t, "next", next, nil)
	atBoth, _ := serve(t, knowsBoth, ok)
	atOld, _ := serve(t, knowsOld, ok)
	atNext, _ := serve(t, knowsNext, ok)
	fromOld, fromNext := client(t, knowsOld, at(atBoth)), client(t, knowsNext, at(atBoth))
	both := client(t, knowsBoth, func(name string) (string, bool) {
		return map[string]string{"old": atOld, "next": atNext}[name], true
	})
	ask := func(c *Client, to string, want bool) {
		t.Helper()
		_, err := c.Forward(t.Context(), to, request())
		var failure *Error
		if (err == nil) != want || err != nil && (!errors.As(err, &failure) || failure.MayHaveActed) {
			t.Errorf("to %s: %v, want success: %v", to, err, want)
		}
	}
	ask(both, "old", true)
	ask(fromOld, "both", true)
	ask(both, "next", false) // who has begun with the next CA has to wait until it counts
	mu.Lock()
	over = true
	mu.Unlock()
	ask(fromOld, "both", false) // although its connection is open
	ask(both, "next", true)
	ask(fromNext, "both", true)
}

type roots func() []*authorities

func (r roots) Sign(tmpl *x509.Certificate, pub any) ([]byte, error) { return r()[0].Sign(tmpl, pub) }

func (r roots) Roots() (all []*x509.Certificate) {
	for _, a := range r() {
		all = append(all, a.cert)
	}
	return all
}

// TestRenewal: certificates are renewed while their conductor runs, and end soon when it does not renew them.
func TestRenewal(t *testing.T) {
	ca := newCA(t)
	var c clock
	id, other := identity(t, "c1", ca, c.now), identity(t, "c2", ca, c.now)
	ok := func(w http.ResponseWriter, _ *http.Request, _ Origin) { w.WriteHeader(204) }
	address, connections := serve(t, other, ok)
	first := id.cert
	asking := client(t, id, at(address))
	for range 30 { // hours
		if _, err := asking.Forward(t.Context(), "c2", request()); err != nil {
			t.Fatalf("after %v: %v", time.Duration(c.ahead.Load()), err)
		}
		c.advance(time.Hour)
		asking.Close() // a new connection each time
	}
	if id.cert == first || connections.Load() != 30 {
		t.Errorf("after a day the certificate is the first one, or was: %d connections", connections.Load())
	}
	// One that can't make a new one, as a key that was stolen, is refused a day later.
	stolen := &Identity{name: "c1", ca: ca, now: time.Now, cert: first, by: ca.cert, made: time.Now()}
	if _, err := client(t, stolen, at(address)).Forward(t.Context(), "c2", request()); err == nil {
		t.Error("an old certificate is accepted")
	}
	// Clocks that differ by hours do no harm.
	behind := identity(t, "c3", ca, func() time.Time { return c.now().Add(-11 * time.Hour) })
	if _, err := client(t, behind, at(address)).Forward(t.Context(), "c2", request()); err != nil {
		t.Errorf("with a clock that is behind: %v", err)
	}
}

// TestLostAnswers: one error for all that the owner can do instead of an answer. It says whether the request may have
// been carried out, and no request is sent twice.
func TestLostAnswers(t *testing.T) {
	ca := newCA(t)
	id := identity(t, "c2", ca, nil)
	endless := func(w io.Writer, piece string) {
		for {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
	}
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	for _, tt := range []struct {
		what   string
		answer func(c net.Conn)
		acted  bool
		text   string
	}{
		{"closed", func(net.Conn) {}, true, "EOF"},
		{"garbage", func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n") }, true, "malformed"},
		{"half an answer", func(c net.Conn) { io.WriteString(c, head+"Content-Length: 100\r\n\r\n{\"Status\":204") }, true,
			"unexpected EOF"},
		{"no JSON", func(c net.Conn) { io.WriteString(c, head+"Content-Length: 2\r\n\r\n<>") }, true,
			"its answer is none"},
		{"another JSON", func(c net.Conn) { io.WriteString(c, head+"Content-Length: 18\r\n\r\n{\"status_code\":200}") }, true,
			"its answer is none"},
		{"no status", func(c net.Conn) { io.WriteString(c, head+"Content-Length: 14\r\n\r\n{\"Status\":  0}") }, true,
			"its answer is none"},
		{"a status that is none", func(c net.Conn) { io.WriteString(c, head+"Content-Length: 14\r\n\r\n{\"Status\":101}") }, true,
			"its answer is none"},
		{"an endless body", func(c net.Conn) {
			io.WriteString(c, head+"\r\n{\"Body\":\"")
			endless(c, strings.Repeat("a", 64<<10))
		}, true, "longer than"},
		{"endless headers", func(c net.Conn) {
			io.WriteString(c, head)
			endless(c, "X-A: "+strings.Repeat("a", 1000)+"\r\n")
		}, true, "headers exceeded"},
		{"endless interim answers", func(c net.Conn) { endless(c, "HTTP/1.1 103 Early Hints\r\nX-A: b\r\n\r\n") }, true, ""},
		{"a redirect", func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 307 x\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
		}, false, "refused the message with 307"},
		{"a later program", func(c net.Conn) { io.WriteString(c, "HTTP/1.1 404 x\r\nContent-Length: 2\r\n\r\nno") }, false,
			"refused the message with 404: no"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			l, err := tls.Listen("tcp", "127.0.0.1:0", id.tls(func(string) error { return nil }))
			if err != nil {
				t.Fatal(err)
			}
			var got atomic.Int64
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
						io.Copy(io.Discard, r.Body)
						got.Add(1)
						tt.answer(conn)
					}
					conn.Close()
				}
			})
			_, err = client(t, identity(t, "c1", ca, nil), at(l.Addr().String())).Forward(t.Context(), "c2", request())
			l.Close()
			wg.Wait()
			var failure *Error
			if !errors.As(err, &failure) || failure.MayHaveActed != tt.acted ||
				!strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v; want that it may have acted: %v", err, tt.acted)
			}
			if got.Load() != 1 {
				t.Errorf("the request was sent %d times", got.Load())
			}
		})
	}
}

// TestOwnerOutOfReach: what was not sent was not done, and one that is not heard of any more is not waited for.
func TestOwnerOutOfReach(t *testing.T) {
	ca := newCA(t)
	var failure *Error
	ask := func(ctx context.Context, find func(string) (string, bool)) error {
		c := client(t, identity(t, "c1", ca, nil), find)
		c.look = 10 * time.Millisecond
		_, err := c.Forward(ctx, "c2", request())
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	for what, find := range map[string]func(string) (string, bool){
		"nothing listens": at(closed), "it is dead": func(string) (string, bool) { return closed, false },
		"an older program": at(""),
	} {
		if err := ask(t.Context(), find); !errors.As(err, &failure) || failure.MayHaveActed ||
			errors.Is(err, ErrNoAddress) != (what == "an older program") {
			t.Errorf("%s: %v", what, err)
		}
	}

	// It listens, and does nothing.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var looks atomic.Int64
	dies := func(address string) func(string) (string, bool) {
		looks.Store(0)
		return func(string) (string, bool) { return address, looks.Add(1) < 5 }
	}
	if err := ask(t.Context(), dies(silent.Addr().String())); !errors.As(err, &failure) || failure.MayHaveActed ||
		!errors.Is(err, errGone) {
		t.Errorf("one that shakes no hands: %v", err)
	}
	working := make(chan struct{}, 1)
	ended := make(chan struct{}, 2)
	slow, _ := serve(t, identity(t, "c2", ca, nil), func(_ http.ResponseWriter, r *http.Request, _ Origin) {
		working <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	if err := ask(t.Context(), dies(slow)); !errors.As(err, &failure) || !failure.MayHaveActed ||
		!errors.Is(err, errGone) {
		t.Errorf("one that dies at work: %v", err)
	}
	<-working
	<-ended
	// The client of the API goes away: so does the request at the owner.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-working
		cancel()
	}()
	if err := ask(ctx, at(slow)); !errors.Is(err, context.Canceled) || errors.As(err, &failure) && failure.Err == nil {
		t.Errorf("given up: %v", err)
	}
	<-ended
}

// TestOneConductorIsNotFlooded: requests beyond those that may be under way at one conductor are refused at once.
func TestOneConductorIsNotFlooded(t *testing.T) {
	ca := newCA(t)
	release := make(chan struct{})
	owner := identity(t, "c2", ca, nil)
	address, connections := serve(t, owner, func(w http.ResponseWriter, _ *http.Request, _ Origin) {
		<-release
		w.WriteHeader(204)
	})
	c := client(t, identity(t, "c1", ca, nil), at(address))
	results := make(chan error, limit.PeerRequests+1)
	for range limit.PeerRequests + 1 {
		go func() {
			_, err := c.Forward(t.Context(), "c2", request())
			results <- err
		}()
	}
	var failure *Error
	if err := <-results; !errors.As(err, &failure) || failure.MayHaveActed || !errors.Is(err, errBusy) {
		t.Errorf("one too many: %v", err)
	}
	close(release)
	for range limit.PeerRequests {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := connections.Load(); n > limit.PeerRequests {
		t.Errorf("%d connections for %d requests", n, limit.PeerRequests)
	}
}

// TestMessages: a server refuses what is no request before it looks at it, and answers no other protocol.
func TestMessages(t *testing.T) {
	ca := newCA(t)
	handled := 0
	address, _ := serve(t, identity(t, "c2", ca, nil), func(w http.ResponseWriter, r *http.Request, _ Origin) {
		handled++
		if r.Method == "LONG" {
			w.Write(make([]byte, limit.PeerAnswer+1))
		}
	})
	raw := func(text string) string {
		t.Helper()
		cert := pair(t, ca, "c1", func(*x509.Certificate) {})
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert},
			NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if p := c.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
			t.Errorf("it speaks %q", p)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		go io.WriteString(c, text) // the server may close before it has read everything
		b, _ := io.ReadAll(c)      // as far as it goes
		return string(b)
	}
	post := func(body string) string {
		return raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", path,
			len(body), body))
	}
	good := `{"ID":"r","Actor":{"UserName":"a"},"Method":"GET","URL":"/v1"}`
	for _, tt := range []struct{ what, got, want string }{
		{"GET", raw("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "404"},
		{"the API", raw("GET /v1/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "404"},
		{"no JSON", post("x"), "400"},
		{"two", post(good + good), "400"},
		{"an unknown member", post(strings.Replace(good, `"ID"`, `"Only":"me","ID"`, 1)), "400"},
		{"an unknown member of the actor", post(strings.Replace(good, `"UserName"`, `"OnlyNode":"n","UserName"`, 1)), "400"},
		{"no actor", post(`{"ID":"r","Method":"GET","URL":"/v1"}`), "400"},
		{"no ID", post(`{"Actor":{"UserName":"a"},"Method":"GET","URL":"/v1"}`), "400"},
		{"no address", post(`{"ID":"r","Actor":{"UserName":"a"},"Method":"GET"}`), "400"},
		{"a method with a blank", post(strings.Replace(good, "GET", "GE T", 1)), "400"},
		{"too large", post(`{"ID":"` + strings.Repeat("x", limit.PeerMessage) + `"}`), "413"},
		{"two lengths", raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), "400"},
		{"a length and chunks", raw("POST " + path +
			" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
			"400"},
		{"a large header", raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nX-A: " + strings.Repeat("a", 80<<10) + "\r\n\r\n"), "431"},
		{"HTTP/2", raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"), "4"},
	} {
		if !strings.HasPrefix(tt.got, "HTTP/1.1 "+tt.want) {
			t.Errorf("%s: %.200q, want %s", tt.what, tt.got, tt.want)
		}
	}
	if handled != 0 {
		t.Errorf("%d of them were looked at", handled)
	}
	if got := post(good); !strings.HasPrefix(got, "HTTP/1.1 200 ") || handled != 1 {
		t.Errorf("a good one: %q", got)
	}
	if got := post(strings.Replace(good, "GET", "LONG", 1)); got != "" {
		t.Errorf("an answer that is too long: %.200q", got)
	}
	if bytes.Contains([]byte(post(`{"ID":"r","Actor":{},"Method":"GET","URL":"/v1"}`)), []byte("400")) {
		t.Error("an actor who may do nothing is the handler's to refuse")
	}
}
