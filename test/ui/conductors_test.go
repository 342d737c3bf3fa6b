package ui

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestTwoConductors: what happens at one is live on the pages of the other, which also works at the consoles of its
// machines; a session is good at both, and when it is signed out at one it is at neither.
func TestTwoConductors(t *testing.T) {
	t.Parallel()
	_, url := pgserver.New(t).Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	users := htpasswd(t, map[string]string{"ann": "right"})
	sites := map[string]*site{}
	for _, name := range []string{"c1", "c2"} {
		sites[name] = start(t, "store.url="+url, "store.password_file="+secret, "store.key="+key, "hostname="+name,
			"api.auth=http_basic", "api.htpasswd_file="+users)
		sites[name].auth = "Basic " + base64.StdEncoding.EncodeToString([]byte("ann:right"))
	}
	c1, c2 := sites["c1"], sites["c2"]
	ingotd.Wait(t, "both know each other", func() bool {
		return strings.Count(c1.want(200, "GET", "/v1/conductors", ""), `"alive":true`) == 2
	})
	theirs := ""
	for i := range 20 { // they are spread by their UUIDs
		theirs = fmt.Sprintf("m%d", i)
		id := c1.node(theirs, "")
		c1.send(id, "manage")
		c1.is(id, "manageable")
		if strings.Contains(c1.want(200, "GET", "/v1/nodes/"+theirs, ""), `"conductor":"c2"`) {
			break
		}
	}

	p := open(t, c1.d.URL)
	p.expect(append(signedOut, "status of 404", "it asks for "+c2.d.URL)...)
	p.visit("/ui/conductors")
	p.fill("User", "ann")
	p.fill("Password", "right")
	p.click("Sign in")
	p.until("document.querySelectorAll('.card h2').length >= 2 && document.body.innerText.includes('c2')")
	p.visit("/ui/nodes/" + theirs)
	p.shows("manageable")
	p.shows("c2")
	c2.want(202, "PUT", "/v1/nodes/"+theirs+"/maintenance", `{"reason":"fans are loud"}`)
	p.shows("fans are loud")
	p.click("Console")
	p.click("Open the console")
	p.screen("fake login:")
	p.run(chromedp.KeyEvent("root\r"))
	p.screen("fake login: root")
	p.click("Close the console")

	// The cookie is this browser's for all ports of the address, as behind one address for both.
	other := &page{TB: p.TB, ctx: p.ctx, url: c2.d.URL}
	other.visit("/ui/nodes/" + theirs)
	other.shows("fans are loud")
	cookies := command(p, network.GetCookies, network.GetCookiesParams{URLs: []string{c1.d.URL + "/ui/"}})
	other.click("Sign out")
	other.shows("Password")
	for _, c := range cookies.Cookies {
		command(p, network.SetCookie, network.SetCookieParams{Name: c.Name, Value: c.Value, URL: c1.d.URL + "/ui/",
			Path: c.Path, HTTPOnly: new(true)})
	}
	if len(cookies.Cookies) != 1 {
		t.Fatalf("%d cookies", len(cookies.Cookies))
	}
	for _, at := range []*page{p, other} {
		at.visit("/ui/")
		at.shows("Password")
		status := js[int](at, "fetch('/ui/api/v1/nodes').then((r) => r.status)")
		if status != 401 {
			t.Errorf("at %s a cookie that was signed out = %d, want 401", at.url, status)
		}
	}
}
