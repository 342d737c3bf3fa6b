package ui

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/web"
)

// signedOut are what the browser itself notes of refused sign-ins and of requests after the session.
var signedOut = []string{"status of 401", "status of 429"}

func TestSignInWithoutAuthentication(t *testing.T) {
	s := start(t)
	p := open(t, s.d.URL)
	p.visit("/ui")
	p.shows("There are no machines yet.")
	p.shows("live")
	if got := js[string](p, "document.cookie"); got != "" {
		t.Errorf("scripts can read the cookie %q", got)
	}
}

func TestSignInByPassword(t *testing.T) {
	s := start(t, "api.auth=http_basic", "api.htpasswd_file="+htpasswd(t, map[string]string{"ann": "right"}))
	p := open(t, s.d.URL)
	p.expect(signedOut...)
	p.visit("/ui/?q=x")
	p.fill("User", "ann")
	p.fill("Password", "wrong")
	p.click("Sign in")
	p.shows("Incorrect username or password")
	p.fill("Password", "right")
	p.run(chromedp.KeyEvent("\r"))
	p.shows("There are no machines yet.")
	p.shows("ann")
	if got := js[string](p, "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"); got != `["",{},{}]` {
		t.Errorf("scripts can read %s", got)
	}
	// A session that ends while the page is open: the page says so, and goes on where it was.
	command(p, network.ClearBrowserCookies, cdp.Empty{})
	p.click("Images")
	p.shows("Your session has ended.")
	p.fill("User", "ann")
	p.fill("Password", "right")
	p.click("Sign in")
	p.shows("No machine in use was deployed from an image.")
	p.run(chromedp.NavigateBack())
	p.shows("There are no machines yet.")
	if got := js[string](p, "location.pathname + location.search"); got != "/ui/?q=x" {
		t.Errorf("after signing in again the page is %s", got)
	}
	p.click("Sign out")
	p.shows("Password")
	p.visit("/ui/")
	p.shows("Password")
}

// TestASessionExpires: a page that is not touched says so by itself once its session is too old, and goes on where it
// was.
func TestASessionExpires(t *testing.T) {
	var late atomic.Int64
	url, st := crowd(t, 3, func(c *web.Config) {
		c.Auth, c.Authenticate = web.Basic, func(*http.Request) (*access.Actor, error) {
			return &access.Actor{UserName: "ann", All: true}, nil
		}
		c.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
	})
	p := open(t, url)
	p.expect(signedOut...)
	p.visit("/ui/?sort=name")
	p.fill("User", "ann")
	p.fill("Password", "right")
	p.click("Sign in")
	p.shows("live")
	p.shows("3 machines")
	change := func() {
		t.Helper()
		if _, err := st.UpdateNode(t.Context(), "00000000-4f76-4e73-9c2f-fbb5eab89770", func(n *node.Node) error {
			n.Maintenance, n.MaintenanceReason = !n.Maintenance, "a fan"
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	late.Store(int64(limit.SessionIdle - time.Minute))
	change()
	p.shows("Maintenance: a fan") // what the page asks for by itself does not prolong it
	late.Store(int64(limit.SessionIdle + time.Second))
	change()
	p.shows("Your session has ended.")
	p.fill("User", "ann")
	p.fill("Password", "right")
	p.click("Sign in")
	p.shows("3 machines")
	if got := js[string](p, "location.search"); got != "?sort=name" {
		t.Errorf("after signing in again the page is %s", got)
	}
}

// TestAnotherSiteCanDoNothing: what a page of another origin has the browser send, with the user's cookie, changes
// nothing, and it can't show the dashboard in a frame.
func TestAnotherSiteCanDoNothing(t *testing.T) {
	s := start(t, "api.auth=http_basic", "api.htpasswd_file="+htpasswd(t, map[string]string{"ann": "right"}))
	s.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte("ann:right"))
	id := s.node("m1", "")
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, `<!doctype html><link rel=icon href="data:,"><title>evil</title><form method=post enctype=text/plain></form>`)
	}))
	t.Cleanup(evil.Close)
	p := open(t, s.d.URL)
	p.expect(append(signedOut, "status of 403", "CORS", "ERR_FAILED", "frame-ancestors", "ERR_BLOCKED",
		"X-Frame-Options", "it asks for ")...)
	p.visit("/ui/")
	p.fill("User", "ann")
	p.fill("Password", "right")
	p.click("Sign in")
	p.lists("m1")

	const newNode = `'{"driver":"fake-hardware"}'`
	for _, at := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} {
		p.run(chromedp.Navigate(at))
		p.until("document.title === 'evil'")
		for _, how := range []struct{ path, more string }{
			{"/api/v1/nodes", `method: 'POST', body: ` + newNode},
			{"/api/v1/nodes", `method: 'POST', body: ` + newNode + `, headers: { 'Content-Type': 'application/json' }`},
			{"/api/v1/nodes", `method: 'POST', body: ` + newNode + `, headers: { 'X-Ingot-CSRF': 'x' }`},
			{"/api/v1/nodes/" + id + "/maintenance", `method: 'PUT', body: '{}'`},
			{"/api/v1/nodes/" + id, `method: 'DELETE'`},
			{"/session", `method: 'DELETE'`},
			{"/api/v1/nodes", ""},
		} {
			for _, mode := range []string{"cors", "no-cors"} {
				got := js[string](p, fmt.Sprintf(`fetch('%s/ui%s', { mode: '%s', credentials: 'include', %s })
					.then((r) => r.type === 'opaque' ? 'opaque' : r.text(), () => 'failed')`, s.d.URL, how.path, mode, how.more))
				if got != "opaque" && got != "failed" {
					t.Errorf("a page at %s reads %s of %v", at, got, how)
				}
			}
		}
		// A form needs no script's rights: its answer takes the place of the page.
		p.does(`(() => { const f = document.forms[0]; f.action = '` + s.d.URL + `/ui/api/v1/nodes'; const i = document.createElement('input');
			i.name = '{"driver":"fake-hardware","extra":{"a":"'; i.value = '"}}'; f.append(i); f.submit(); })()`)
		p.until(`location.href.startsWith('` + s.d.URL + `')`)
		p.run(chromedp.Navigate(at))
		p.until("document.title === 'evil'")
		scripts := p.asked("GET /ui/app.js")
		p.does(`new Promise((done) => { const f = document.createElement('iframe'); f.onload = done; f.src = '` + s.d.URL + `/ui/'; document.body.append(f); })`)
		if p.asked("GET /ui/app.js") != scripts {
			t.Errorf("a page at %s shows the dashboard in a frame", at)
		}
	}

	p.visit("/ui/")
	p.lists("m1") // and no user was signed out
	out := s.want(200, "GET", "/v1/nodes/m1", "")
	if !strings.Contains(strings.ReplaceAll(out, " ", ""), `"maintenance":false`) {
		t.Errorf("the node is %s", out)
	}
	// The same from our own page, with its word, works.
	if got := js[int](p, `fetch('/ui/session').then((r) => r.json()).then((s) => fetch('/ui/api/v1/nodes', { method: 'POST', body: `+newNode+`,
		headers: { 'X-Ingot-CSRF': s.csrf, 'Content-Type': 'application/json' } })).then((r) => r.status)`); got != 201 {
		t.Errorf("our own page is answered with %d", got)
	}
	p.shows("2 machines")
}

func TestSignInWithKeystone(t *testing.T) {
	ks, set := keystone(t)
	s := start(t, set...)
	p := open(t, s.d.URL)
	p.expect(signedOut...)
	p.visit("/ui/")
	p.fill("User", "otto")
	p.fill("Password", "pw of olga")
	p.fill("Project", "web")
	p.click("Sign in")
	p.shows("User, password, domain or project is wrong")
	p.fill("Password", "pw of otto")
	p.click("Sign in")
	p.shows("otto (project web)")
	p.click("Sign out")
	p.click("the system")
	p.fill("User", "root")
	p.fill("Password", "pw of root")
	p.click("Sign in")
	p.shows("root (system)")
	p.click("Sign out")
	p.click("a token")
	p.fill("Token", ks.Token("rita", "web"))
	p.click("Sign in")
	p.shows("rita (project web)")
}
