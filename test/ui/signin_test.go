package ui

import (
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
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
