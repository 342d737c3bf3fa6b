package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// clock is a time that tests move.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// site is a dashboard in front of an API that reports what it was asked.
type site struct {
	*testing.T
	s     *Server
	clock *clock
	asked []*http.Request // what came to the API
	log   bytes.Buffer
	reply func(w http.ResponseWriter, r *http.Request)
}

// shared is the part of the store that all conductors have in common.
type shared struct {
	mu    sync.Mutex
	ended map[string]string // whose, by session
	err   error
}

func (s *shared) EndSession(_ context.Context, id, whose string, _ time.Time, _ int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.ended == nil {
		s.ended = map[string]string{}
	}
	s.ended[id] = whose
	return nil
}

func (s *shared) SessionEnded(_ context.Context, id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[id] != "", s.err
}

// newSite makes one; the authentication knows ann with the password "secret word", and the token "good-token".
func newSite(t *testing.T, auth string, change func(*Config)) *site {
	t.Helper()
	x := &site{T: t, clock: &clock{time.Now()}}
	cfg := Config{Auth: auth, Key: []byte("the key of this installation"), Hostname: "c1", Now: x.clock.now,
		Ended: new(shared)}
	if auth != None {
		cfg.Authenticate = func(r *http.Request) (*access.Actor, error) {
			user, password, _ := r.BasicAuth()
			if auth == Basic && user == "ann" && password == "secret word" ||
				auth == Keystone && r.Header.Get("X-Auth-Token") == "good-token" {
				return &access.Actor{UserName: "ann", All: true}, nil
			}
			return nil, &access.Refusal{Status: 401, Message: "Incorrect username or password"}
		}
	}
	if change != nil {
		change(&cfg)
	}
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.asked = append(x.asked, r)
		if x.reply != nil {
			x.reply(w, r)
			return
		}
		io.WriteString(w, "{}")
	})
	var err error
	if x.s, err = New(api, cfg, slog.New(slog.NewTextHandler(&x.log, nil))); err != nil {
		t.Fatal(err)
	}
	return x
}

// browser has the cookies and the word of one.
type browser struct {
	x      *site
	cookie *http.Cookie
	csrf   string
}

// send sends a request as a page does. headers are pairs of name and value; an empty value takes one out.
func (b *browser) send(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://ingot.example"+path, strings.NewReader(body))
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set(Header, b.csrf)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	w := httptest.NewRecorder()
	b.x.s.Handler().ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if b.cookie = c; c.MaxAge < 0 {
			b.cookie = nil
		}
	}
	return w
}

var word = regexp.MustCompile(`"csrf":"([^"]+)"`)

// signedIn is a browser with a session.
func (x *site) signedIn(body string) *browser {
	x.Helper()
	b := &browser{x: x}
	w := b.send("POST", "/ui/session", body)
	m := word.FindStringSubmatch(w.Body.String())
	if w.Code != 200 || m == nil || b.cookie == nil {
		x.Fatalf("sign in: %d %s", w.Code, w.Body)
	}
	b.csrf = m[1]
	return b
}

const ann = `{"user":"ann","password":"secret word"}`

func TestRequestsOfPagesHaveTheUsersCredentials(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	w := b.send("GET", "/ui/api/v1/nodes?limit=3&fields=uuid%2Cname", "", "Authorization", "Basic bm9ib2R5Og==",
		"X-Auth-Token", "other", "X-OpenStack-Ironic-API-Version", "latest")
	if w.Code != 200 || len(x.asked) != 1 {
		t.Fatalf("GET = %d %s, %d requests reached the API", w.Code, w.Body, len(x.asked))
	}
	r := x.asked[0]
	user, password, _ := r.BasicAuth()
	if user != "ann" || password != "secret word" || r.Header.Get("X-Auth-Token") != "" {
		t.Errorf("the API was asked as %s, with a token %q", user, r.Header.Get("X-Auth-Token"))
	}
	if got := r.URL.RequestURI() + " " + r.RequestURI; got != "/v1/nodes?limit=3&fields=uuid%2Cname /v1/nodes?limit=3&fields=uuid%2Cname" {
		t.Errorf("the API was asked for %s", got)
	}
	if r.Header.Get("Cookie") != "" || r.Header.Get(Header) != "" || r.Header.Get("X-OpenStack-Ironic-API-Version") != "latest" {
		t.Errorf("the API got the headers %v", r.Header)
	}

	k := newSite(t, Keystone, nil)
	k.signedIn(`{"token":"good-token"}`).send("GET", "/ui/api/v1/nodes", "")
	if got := k.asked[0].Header.Get("X-Auth-Token"); got != "good-token" {
		t.Errorf("the API got the token %q", got)
	}
}

func TestForgedRequestsAreRefused(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	other := x.signedIn(ann)
	for _, tt := range []struct {
		what    string
		headers []string
		want    int
	}{
		{"as a page does", nil, 200},
		{"without the word", []string{Header, ""}, 403},
		{"with the word of another session", []string{Header, other.csrf}, 403},
		{"of another site", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"of another name of the site", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"of an old browser", []string{"Sec-Fetch-Site", ""}, 200},
		{"from another origin", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", ""}, 403},
		{"from a sandbox", []string{"Origin", "null"}, 403},
		{"from our origin", []string{"Origin", "http://ingot.example"}, 200},
		{"from the address bar", []string{"Sec-Fetch-Site", "none"}, 403},
	} {
		before := len(x.asked)
		w := b.send("DELETE", "/ui/api/v1/nodes/n1", "", tt.headers...)
		if w.Code != tt.want || (len(x.asked) > before) != (tt.want == 200) {
			t.Errorf("a request %s = %d, want %d; it reached the API: %v", tt.what, w.Code, tt.want, len(x.asked) > before)
		}
	}
	// Signing in and out, too: an attacker could have people work under another name.
	for _, tt := range []struct {
		method, body string
		headers      []string
		want         int
	}{
		{"POST", ann, []string{"Content-Type", "text/plain"}, 415},
		{"POST", ann, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"POST", ann, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"POST", ann, []string{"Origin", "https://evil.example"}, 403},
		{"DELETE", "", []string{Header, ""}, 403},
		{"DELETE", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
	} {
		if w := b.send(tt.method, "/ui/session", tt.body, tt.headers...); w.Code != tt.want {
			t.Errorf("%s /ui/session with %v = %d, want %d", tt.method, tt.headers, w.Code, tt.want)
		}
	}
}

func TestASessionEndsWhenItIsNotUsedAndInAnyCase(t *testing.T) {
	x := newSite(t, Basic, nil)
	ask := func(b *browser, headers ...string) int { return b.send("GET", "/ui/api/v1/nodes", "", headers...).Code }

	idle := x.signedIn(ann)
	x.clock.at = x.clock.at.Add(limit.SessionIdle - time.Second)
	if got := ask(idle, "X-Ingot-Passive", "1"); got != 200 {
		t.Errorf("a second before its end: %d", got)
	}
	x.clock.at = x.clock.at.Add(time.Second)
	if got := ask(idle); got != 401 {
		t.Errorf("a session that only the page itself used, at its end: %d, want 401", got)
	}

	used := x.signedIn(ann)
	began := x.clock.at
	for x.clock.at.Sub(began) < limit.SessionLife-time.Minute {
		if got := ask(used); got != 200 {
			t.Fatalf("a session in use, after %v: %d", x.clock.at.Sub(began), got)
		}
		x.clock.at = x.clock.at.Add(limit.SessionIdle / 2)
	}
	x.clock.at = began.Add(limit.SessionLife)
	if got := ask(used); got != 401 {
		t.Errorf("a session in use, after %v: %d, want 401", limit.SessionLife, got)
	}
}

// TestStreamsEndWithTheirSession: what is answered for an hour does not outlive the cookie it was asked with.
func TestStreamsEndWithTheirSession(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	x.clock.at = x.clock.at.Add(limit.SessionIdle - 10*time.Second)
	var end time.Time
	x.reply = func(_ http.ResponseWriter, r *http.Request) { end, _ = r.Context().Deadline() }
	b.send("GET", "/ui/api/ingot/v1/events", "")
	if left := end.Sub(x.clock.at); end.IsZero() || left > 11*time.Second {
		t.Errorf("the request may take %v, want no more than 10 s", left)
	}
}

// TestEachConductorKnowsTheSession: behind one address the next request may come to another conductor.
func TestEachConductorKnowsTheSession(t *testing.T) {
	x, y := newSite(t, Basic, nil), newSite(t, Basic, nil)
	b := x.signedIn(ann)
	b.x = y
	if got := b.send("GET", "/ui/api/v1/nodes", "").Code; got != 200 {
		t.Errorf("at another conductor: %d", got)
	}
	z := newSite(t, Basic, func(c *Config) { c.Key = []byte("of another installation") })
	b.x = z
	if got := b.send("GET", "/ui/api/v1/nodes", "").Code; got != 401 {
		t.Errorf("at another installation: %d, want 401", got)
	}
}

func TestMadeUpCookiesAreNoSessions(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	good := b.cookie.Value
	flipped := []byte(good)
	flipped[len(flipped)/2] ^= 1
	for _, value := range []string{"", "x", good[:len(good)-4], string(flipped), good + "AAAA",
		strings.Repeat("A", 20_000)} {
		b.cookie = &http.Cookie{Name: cookieName, Value: value}
		if got := b.send("GET", "/ui/api/v1/nodes", "").Code; got != 401 {
			t.Errorf("with the cookie %.20q (%d bytes): %d, want 401", value, len(value), got)
		}
	}
	// One that was sealed under another way to authenticate.
	k := newSite(t, Keystone, nil)
	b.cookie, b.x = &http.Cookie{Name: cookieName, Value: good}, k
	if got := b.send("GET", "/ui/api/v1/nodes", "").Code; got != 401 {
		t.Errorf("a session of http_basic under Keystone: %d, want 401", got)
	}
}

func TestSignOutEndsTheSession(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	kept := *b.cookie
	if w := b.send("DELETE", "/ui/session", ""); w.Code != 204 || b.cookie != nil {
		t.Fatalf("sign out = %d, cookie %v", w.Code, b.cookie)
	}
	b.cookie = &kept
	if got := b.send("GET", "/ui/api/v1/nodes", "").Code; got != 401 {
		t.Errorf("with a copy of the cookie: %d, want 401", got)
	}
}

// TestSignOutEndsTheSessionAtAllConductors: with http_basic a cookie that was signed out is good nowhere, whatever
// conductor did it; other sessions of the same user go on; and while that can't be found out, none is taken.
func TestSignOutEndsTheSessionAtAllConductors(t *testing.T) {
	for _, auth := range []string{Basic, Keystone} {
		between := new(shared)
		one := newSite(t, auth, func(c *Config) { c.Ended, c.Identity = between, &revoked{} })
		two := newSite(t, auth, func(c *Config) { c.Ended, c.Hostname, c.Identity = between, "c2", &revoked{} })
		login := map[string]string{Basic: ann, Keystone: `{"token":"good-token"}`}[auth]
		b, other := one.signedIn(login), one.signedIn(login)
		at := func(x *site, b *browser) int {
			copied := *b
			copied.x = x
			return copied.send("GET", "/ui/api/v1/nodes", "").Code
		}
		kept := *b
		if at(two, b) != 200 {
			t.Fatalf("%s: a session is not known at another conductor", auth)
		}
		if w := b.send("DELETE", "/ui/session", ""); w.Code != 204 {
			t.Fatalf("%s: sign out = %d", auth, w.Code)
		}
		for _, x := range []*site{one, two} {
			if got := at(x, &kept); got != 401 {
				t.Errorf("%s: at %s the copy of a cookie = %d, want 401", auth, x.s.cfg.Hostname, got)
			}
			if got := at(x, other); got != 200 {
				t.Errorf("%s: at %s another session = %d, want 200", auth, x.s.cfg.Hostname, got)
			}
		}
		for id, whose := range between.ended {
			if strings.Contains(id+whose, "ann") || len(whose) < 10 {
				t.Errorf("%s: kept are %q and %q", auth, id, whose)
			}
		}
		between.err = errors.New("the database is away")
		if got := at(one, other); got != 503 {
			t.Errorf("%s: while it can't be found out: %d, want 503", auth, got)
		}
		if w := other.send("DELETE", "/ui/session", ""); w.Code != 503 || other.cookie == nil {
			t.Errorf("%s: a sign-out that could not be kept = %d", auth, w.Code)
		}
	}
}

// TestAStreamEndsWithItsSession: what lasts ends soon after the session was signed out, at another conductor, too.
func TestAStreamEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		between := new(shared)
		one := newSite(t, Basic, func(c *Config) { c.Ended = between })
		two := newSite(t, Basic, func(c *Config) { c.Ended = between })
		two.reply = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		b := one.signedIn(ann)
		began, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			follows := *b
			follows.x = two
			follows.send("GET", "/ui/api/ingot/v1/events", "")
		}()
		time.Sleep(time.Minute)
		b.send("DELETE", "/ui/session", "")
		<-done
		if took := time.Since(began); took < time.Minute || took > time.Minute+limit.SessionLook {
			t.Errorf("the stream ended after %v", took)
		}
	})
}

// revoked is a Keystone that gives one token.
type revoked struct{ tokens []string }

func (k *revoked) Login(_ context.Context, _ netip.Addr, l access.Login) (string, error) {
	if l.User == "ann" && l.Password == "secret word" {
		return "good-token", nil
	}
	return "", &access.Refusal{Status: 429, Message: "Too many wrong passwords", RetryAfter: 1500 * time.Millisecond}
}

func (k *revoked) Logout(_ context.Context, token string) { k.tokens = append(k.tokens, token) }

func TestKeystonesTokenEndsWithTheSessionThatGotIt(t *testing.T) {
	ks := &revoked{}
	x := newSite(t, Keystone, func(c *Config) { c.Identity = ks })
	x.signedIn(ann).send("DELETE", "/ui/session", "")
	if len(ks.tokens) != 1 {
		t.Errorf("revoked: %v, want the token that was got", ks.tokens)
	}
	x.signedIn(`{"token":"good-token"}`).send("DELETE", "/ui/session", "")
	if len(ks.tokens) != 1 {
		t.Error("a token that a user gave was revoked; it is theirs")
	}
	b := &browser{x: x}
	w := b.send("POST", "/ui/session", `{"user":"ann","password":"no"}`)
	if w.Code != 429 || w.Header().Get("Retry-After") != "2" {
		t.Errorf("a wrong password = %d, Retry-After %q, want 429 and 2", w.Code, w.Header().Get("Retry-After"))
	}
}

func TestTheCookieIsForThisServerAlone(t *testing.T) {
	for _, tt := range []struct {
		public string
		secure bool
	}{{"", false}, {"https://metal.example", true}} {
		x := newSite(t, Basic, func(c *Config) { c.PublicURL = tt.public })
		c := x.signedIn(ann).cookie
		if !c.HttpOnly || c.Secure != tt.secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/ui" ||
			c.Domain != "" || c.MaxAge <= 0 || c.MaxAge > int(limit.SessionIdle.Seconds()) {
			t.Errorf("with public_url %q the cookie is %s", tt.public, c)
		}
	}
}

// TestNoCredentialIsShown: not in the cookie, an answer, or the log.
func TestNoCredentialIsShown(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := &browser{x: x}
	wrong := b.send("POST", "/ui/session", `{"user":"ann","password":"wrong word"}`)
	faulty := b.send("POST", "/ui/session", `{"user":"ann","password":"wrong word","x":"wrong word"}`)
	if wrong.Code != 401 || faulty.Code != 400 {
		t.Errorf("a wrong password = %d, a faulty body = %d", wrong.Code, faulty.Code)
	}
	b = x.signedIn(ann)
	var all strings.Builder
	fmt.Fprintln(&all, wrong.Body, faulty.Body, b.send("GET", "/ui/session", "").Body, b.cookie, x.log.String())
	for _, secret := range []string{"secret word", "wrong word", "c2VjcmV0IHdvcmQ"} {
		if strings.Contains(all.String(), secret) {
			t.Errorf("%q is shown: %s", secret, all.String())
		}
	}
	if !strings.Contains(x.log.String(), "user=ann") {
		t.Errorf("the log does not say who signed in: %s", x.log.String())
	}
}

func TestAChangedPasswordEndsTheSession(t *testing.T) {
	ok := true
	x := newSite(t, Basic, func(c *Config) {
		c.Authenticate = func(*http.Request) (*access.Actor, error) {
			if ok {
				return &access.Actor{UserName: "ann"}, nil
			}
			return nil, &access.Refusal{Status: 401, Message: "no", Challenge: `Basic realm="x"`}
		}
	})
	b := x.signedIn(ann)
	ok = false
	w := b.send("GET", "/ui/session", "")
	if !strings.Contains(w.Body.String(), `"signed_in":false`) || b.cookie != nil {
		t.Errorf("after the password has changed: %s, cookie %v", w.Body, b.cookie)
	}
}

// TestNoChallengeReachesTheBrowser: it would ask for the password in a window of its own, and keep it.
func TestNoChallengeReachesTheBrowser(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	x.reply = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(401)
	}
	w := b.send("GET", "/ui/api/v1/nodes", "")
	if w.Code != 401 || w.Header().Get("WWW-Authenticate") != "" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestEveryAnswerHasThePolicy(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := x.signedIn(ann)
	for _, path := range []string{"/ui", "/ui/", "/ui/nodes/x", "/ui/app.js", "/ui/style.css", "/ui/none.js",
		"/ui/session", "/ui/api/v1/nodes"} {
		h := b.send("GET", path, "").Header()
		p := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(p, "default-src 'none'; script-src 'self'; style-src 'self'") ||
			strings.Contains(p, "unsafe") ||
			!strings.Contains(p, "frame-ancestors 'none'") || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s has %v", path, h)
		}
	}
}

func TestPages(t *testing.T) {
	x := newSite(t, None, nil)
	b := &browser{x: x}
	for _, tt := range []struct {
		method, path string
		status       int
		kind         string
	}{
		{"GET", "/ui", 302, ""}, {"GET", "/ui/", 200, "text/html"}, {"GET", "/ui/nodes/7cfb", 200, "text/html"},
		{"HEAD", "/ui/", 200, "text/html"}, {"GET", "/ui/app.js", 200, "text/javascript"},
		{"GET", "/ui/style.css", 200, "text/css"}, {"GET", "/ui/../../etc/passwd.txt", 404, "application/json"},
		{"POST", "/ui/", 405, "application/json"}, {"GET", "/ui/src/main.tsx", 404, "application/json"},
	} {
		w := b.send(tt.method, tt.path, "")
		if w.Code != tt.status || !strings.HasPrefix(w.Header().Get("Content-Type"), tt.kind) {
			t.Errorf("%s %s = %d %s, want %d %s", tt.method, tt.path, w.Code, w.Header().Get("Content-Type"),
				tt.status, tt.kind)
		}
	}
	first := b.send("GET", "/ui/app.js", "")
	again := b.send("GET", "/ui/app.js", "", "If-None-Match", first.Header().Get("ETag"))
	packed := b.send("GET", "/ui/app.js", "", "Accept-Encoding", "gzip, br")
	if again.Code != 304 || again.Body.Len() != 0 || packed.Header().Get("Content-Encoding") != "gzip" ||
		packed.Body.Len() >= first.Body.Len() {
		t.Errorf("app.js again = %d with %d bytes; packed %d of %d bytes", again.Code, again.Body.Len(),
			packed.Body.Len(), first.Body.Len())
	}
	if w := b.send("GET", "/v1/nodes", ""); w.Code != 200 || len(x.asked) != 1 {
		t.Errorf("what is not below /ui does not reach the API: %d", w.Code)
	}
}

// TestAnotherNameForTheServer: without authentication, a page of another site that gives its name this server's address
// gets nothing.
func TestAnotherNameForTheServer(t *testing.T) {
	known := func(c *Config) { c.Known = func(r *http.Request) bool { return r.Host == "127.0.0.1:6385" } }
	for _, tt := range []struct {
		auth string
		want int
	}{{None, 421}, {Basic, 200}} {
		b := &browser{x: newSite(t, tt.auth, known)}
		if w := b.send("GET", "/ui/session", ""); w.Code != tt.want {
			t.Errorf("with %s: %d, want %d", tt.auth, w.Code, tt.want)
		}
	}
}

func TestLargeSignIn(t *testing.T) {
	x := newSite(t, Basic, nil)
	b := &browser{x: x}
	if w := b.send("POST", "/ui/session", `{"user":"`+strings.Repeat("x", limit.SignInBody)+`"}`); w.Code != 413 {
		t.Errorf("a large sign-in = %d, want 413", w.Code)
	}
	k := newSite(t, Keystone, func(c *Config) {
		c.Authenticate = func(*http.Request) (*access.Actor, error) { return &access.Actor{UserName: "ann"}, nil }
	})
	b = &browser{x: k}
	w := b.send("POST", "/ui/session", `{"token":"`+strings.Repeat("x", limit.SessionCookie)+`"}`)
	if w.Code != 400 || b.cookie != nil || !strings.Contains(w.Body.String(), "password instead") {
		t.Errorf("a token that no cookie can hold = %d %s", w.Code, w.Body)
	}
}

// TestTextsAreNeverMarkup: no source of the pages makes markup of a text, or runs one.
func TestTextsAreNeverMarkup(t *testing.T) {
	never := regexp.MustCompile(`dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:`)
	seen := 0
	err := filepath.WalkDir(filepath.Join("ui", "src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if m := never.Find(b); m != nil {
			t.Errorf("%s has %s", path, m)
		}
		if strings.HasSuffix(path, ".html") && regexp.MustCompile(`<style|style=|<script>|\son[a-z]+=`).Match(b) {
			t.Errorf("%s has a script or a style inside", path)
		}
		seen++
		return err
	})
	if err != nil || seen < 5 {
		t.Errorf("%d sources were read: %v", seen, err)
	}
}

func TestFaultsOfTheServerAreNotTheUsers(t *testing.T) {
	x := newSite(t, Basic, func(c *Config) {
		c.Authenticate = func(*http.Request) (*access.Actor, error) { return nil, errors.New("disk on fire") }
	})
	b := &browser{x: x}
	w := b.send("POST", "/ui/session", ann)
	if w.Code != 500 || strings.Contains(w.Body.String(), "fire") || !strings.Contains(x.log.String(), "fire") {
		t.Errorf("%d %s, log %s", w.Code, w.Body, x.log.String())
	}
}
