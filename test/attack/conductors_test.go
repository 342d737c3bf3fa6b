package attack

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// usage is the extended key usage of conductors towards each other.
var usage = asn1.ObjectIdentifier{2, 25, 1768843124}

// forger makes certificates with a CA's key.
type forger struct {
	*testing.T
	ca  *x509.Certificate
	key any
}

// stolen reads the CA of an ingotd, which is more than an attacker has.
func stolen(t *testing.T, d *ingotd.Process) forger {
	t.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(d.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(b)
		if block == nil {
			t.Fatalf("%s is not PEM", name)
		}
		return block.Bytes
	}
	ca, err := x509.ParseCertificate(read("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(read("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return forger{t, ca, key}
}

// make makes a certificate as a conductor has it, but for what change does to it.
func (f forger) make(change func(*x509.Certificate)) *tls.Certificate {
	f.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(5), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{usage},
		URIs:               []*url.URL{{Scheme: "ingot", Host: "conductor", Path: "/c9"}}}
	change(c)
	parent, signer := f.ca, f.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		f.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestASessionAtEachConductor: who signed in to the dashboard at one conductor is signed in at the others, which have
// their files from the database, and at no other installation; and who signed out at one is signed out at all, with
// each copy of the cookie.
func TestASessionAtEachConductor(t *testing.T) {
	_, db := pgserver.New(t).Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	set := []string{"store.url=" + db, "store.password_file=" + secret,
		"store.key=" + base64.StdEncoding.EncodeToString(make([]byte, 32))}
	c1, c2 := withUsers(t, append(set, "hostname=c1")...), withUsers(t, append(set, "hostname=c2")...)
	other := withUsers(t)
	cookie, csrf := signIn(t, c1)
	for _, tt := range []struct {
		what string
		at   *ingotd.Process
		want int
	}{{"the same", c1, 200}, {"another one", c2, 200}, {"one of another installation", other, 401}} {
		r, out := newDashboard(t, tt.at.URL, "127.0.0.1").send("GET", "/ui/api/v1/nodes", "", "Cookie", cookie,
			"X-Ingot-CSRF", csrf)
		if r.StatusCode != tt.want {
			t.Errorf("at %s = %d %.200s, want %d", tt.what, r.StatusCode, out, tt.want)
		}
	}
	page := []string{"Cookie", cookie, "X-Ingot-CSRF", csrf}
	follows := make(chan error, 1)
	go func() { // a thief who follows the events at another conductor
		d := dashboard{t, c2.URL, &http.Client{Timeout: time.Minute}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+"/ui/api/ingot/v1/events", nil)
		if err == nil {
			r.Header.Set("Cookie", cookie)
			r.Header.Set("X-Ingot-CSRF", csrf)
			var resp *http.Response
			if resp, err = d.http.Do(r); err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				err = errors.Join(err, resp.Body.Close())
			}
		}
		follows <- err
	}()
	if r, out := newDashboard(t, c1.URL, "127.0.0.1").send("DELETE", "/ui/session", "", page...); r.StatusCode != 204 {
		t.Fatalf("sign out = %d %s", r.StatusCode, out)
	}
	for _, at := range []*ingotd.Process{c1, c2} {
		r, out := newDashboard(t, at.URL, "127.0.0.1").send("GET", "/ui/api/v1/nodes", "", page...)
		if r.StatusCode != 401 {
			t.Errorf("after the sign-out a copy of the cookie = %d %.200s, want 401", r.StatusCode, out)
		}
	}
	if err := <-follows; err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream of a session that was signed out elsewhere: %v, want its end", err)
	}
}

// TestStrangersToConductorsListener: the listener for other conductors answers no byte to a stranger, an agent with its
// certificate, or a certificate of another kind, CA or time, and is not held up by them; a conductor is no agent, and a
// client of the API no conductor. A conductor that is one is held to the roles of the user that it names.
func TestStrangersToConductorsListener(t *testing.T) {
	t.Parallel() // it waits
	_, db := pgserver.New(t).Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newBootWorld(t, "store.url="+db, "store.password_file="+secret, "hostname=c1")
	const mac = "52:54:00:00:0b:01"
	id := w.machine("n", mac, `"inspect_interface":"agent"`)
	w.state("n", "inspect", "inspect wait")
	a := w.agent(mac)
	_, agent, err := w.enroll(a)
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`conductors=(\S+)`).FindStringSubmatch(w.d.Log.String())
	if at == nil {
		t.Fatal("ingotd does not say where conductors reach it")
	}
	ours := stolen(t, w.d)
	good := ours.make(func(*x509.Certificate) {})
	// open begins TLS with a certificate; the server's refusal comes with the first byte read.
	open := func(from string, cert *tls.Certificate) (*tls.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		raw, err := d.Dial("tcp", at[1])
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { raw.Close() })
		raw.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"},
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if cert == nil {
					return new(tls.Certificate), nil
				}
				return cert, nil // even if its CA was not named
			}})
		return c, c.Handshake()
	}
	// ask sends raw bytes, and returns what comes back until the end.
	ask := func(cert *tls.Certificate, text string) string {
		c, err := open("127.0.0.1", cert)
		if err != nil {
			return ""
		}
		go io.WriteString(c, text) // the server may close before it has read everything
		b, _ := io.ReadAll(c)      // as far as it goes
		return string(b)
	}
	post := func(body string) string {
		return fmt.Sprintf("POST /forward/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body)
	}
	message := func(actor, method, path, body string) string {
		return post(fmt.Sprintf(`{"ID":"req-of-c9","Actor":%s,"Method":%q,"URL":%q,"Header":{"X-Openstack-Ironic-Api-Version":["1.80"]},"Body":%q}`,
			actor, method, path, base64.StdEncoding.EncodeToString([]byte(body))))
	}
	const admin = `{"UserName":"mallory","System":true,"Role":4}`
	all := message(admin, "GET", "/v1/nodes", "")

	for what, cert := range map[string]*tls.Certificate{
		"none":              nil,
		"an agent's":        agent,
		"one that names c9": forger{T: t}.make(func(*x509.Certificate) {}), // signed by itself
		"an agent's, with the name of a conductor": ours.make(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}),
		"for everything": ours.make(func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		}),
		"for nothing":    ours.make(func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil }),
		"with no name":   ours.make(func(c *x509.Certificate) { c.URIs = nil }),
		"a node's":       ours.make(func(c *x509.Certificate) { c.URIs[0].Host = "node" }),
		"that has ended": ours.make(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
	} {
		if out := ask(cert, all); out != "" {
			t.Errorf("with the certificate %q: %.300q", what, out)
		}
	}
	if out := ask(good, all); !strings.HasPrefix(out, "HTTP/1.1 200 ") || !strings.Contains(out, `"Status":200`) {
		t.Fatalf("a conductor: %.300q", out)
	}

	// What a conductor sends is bounded, and in one form.
	for _, tt := range []struct{ what, text, want string }{
		{"an actor without roles", message(`{"UserName":"mallory"}`, "GET", "/v1/nodes/"+id, ""), `"Status":404`},
		{"a reader who changes", message(`{"UserName":"m","System":true,"Role":1}`, "DELETE", "/v1/nodes/"+id, ""),
			`"Status":403`},
		{"a client that did not authenticate", message(`{"All":true}`, "GET", "/v1/nodes", ""), `"Status":403`},
		{"an unknown restriction", message(`{"All":true,"Only":"n"}`, "GET", "/v1/nodes", ""), "HTTP/1.1 400 "},
		{"a message within a message", message(admin, "POST", "/forward/1", "{}"), `"Status":404`},
		{"the API itself", "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 "},
		{"a large header", "POST /forward/1 HTTP/1.1\r\nHost: x\r\nX-A: " + strings.Repeat("a", 80<<10) + "\r\n\r\n",
			"HTTP/1.1 431 "},
		{"a large body", post(strings.Repeat(" ", 12<<20)), "HTTP/1.1 413 "},
		{"two lengths", "POST /forward/1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
			"HTTP/1.1 400 "},
		{"a second request in the body", "POST /forward/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}" + all,
			"HTTP/1.1 400 "},
		{"a line break in a header", message(admin, "GET", "/v1/nodes\r\nX-A: b", ""), "HTTP/1.1 400 "},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 1000),
			"HTTP/1.1 4"},
	} {
		out := ask(good, tt.text)
		if !strings.Contains(out, tt.want) || strings.Count(out, "HTTP/1.1 ") != 1 {
			t.Errorf("%s: %.300q, want %s", tt.what, out, tt.want)
		}
	}

	// A conductor is no agent, and what a client sends makes it no conductor.
	if _, err := w.session(a, good); err == nil {
		t.Error("a conductor has an agent's session")
	}
	forged := []string{"Forwarded", "by=c9", "Ingot-Forwarded", "c9", "X-Openstack-Request-Id", "req-of-c9", "X-Roles",
		"admin", "Actor", admin}
	w.want(401, anonymous, "POST", "/forward/1", strings.SplitN(all, "\r\n\r\n", 2)[1], forged...)
	w.want(404, eve, "GET", "/v1/nodes/n", "", forged...)
	w.want(403, auditor, "PUT", "/v1/nodes/n/management/boot_device", `{"boot_device":"pxe"}`, forged...)

	// Half of something is not waited for: a handshake, a header, a body.
	var halves sync.WaitGroup
	for what, begin := range map[string]func() (net.Conn, string){
		"nothing":   func() (net.Conn, string) { c, _ := net.Dial("tcp", at[1]); return c, "" },
		"handshake": func() (net.Conn, string) { c, _ := net.Dial("tcp", at[1]); return c, "\x16\x03\x01\x02\x00\x01" },
		"header": func() (net.Conn, string) {
			c, _ := open("127.0.0.1", good)
			return c, "POST /forward/1 HTTP/1.1\r\nHost: x\r\n"
		},
		"body": func() (net.Conn, string) {
			c, _ := open("127.0.0.1", good)
			return c, strings.Replace(post("{"), "Content-Length: 1", "Content-Length: 60000", 1)
		},
	} {
		c, text := begin()
		defer c.Close()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		halves.Go(func() {
			begun := time.Now()
			c.SetReadDeadline(begun.Add(50 * time.Second))
			if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") ||
				time.Since(begun) > 40*time.Second {
				t.Errorf("half a %s: open after %v: %v", what, time.Since(begun), err)
			}
		})
	}
	// One address can't take all connections, and the rest goes on.
	for range 64 {
		if _, err := open("127.0.0.2", good); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := open("127.0.0.2", good); err == nil {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("connection 65 of an address reads %d bytes", n)
		}
	}
	if out := ask(good, all); !strings.HasPrefix(out, "HTTP/1.1 200 ") {
		t.Errorf("another address meanwhile: %.300q", out)
	}
	w.want(200, olga, "GET", "/v1/nodes", "")
	halves.Wait()
	if log := []byte(w.d.Log.String()); bytes.Contains(log, []byte("panic")) {
		t.Errorf("something has panicked: %s", log)
	}
}
