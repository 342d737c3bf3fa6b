package ui

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// rows are the names in the table, from above.
func (p *page) rows() string {
	p.Helper()
	return js[string](p, `[...document.querySelectorAll('.machines-table tbody a')].map((a) => a.innerText).join(' ')`)
}

// lists waits until the table has these names.
func (p *page) lists(names string) {
	p.Helper()
	p.until(`[...document.querySelectorAll('.machines-table tbody a')].map((a) => a.innerText).join(' ') === ` + quoted(names))
}

func TestFleetIsSearchedSortedAndKeptInTheAddress(t *testing.T) {
	s := start(t)
	s.node("a1", `"resource_class":"gold"`)
	s.node("a2", "")
	s.available("b1", `"resource_class":"gold"`)
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.lists("b1 a1 a2") // what can be used goes before what is not ready
	p.shows("3 machines")

	p.fill("Search", "gold")
	p.lists("b1 a1")
	p.click("Name")
	p.lists("a1 b1")
	p.click("Name")
	p.lists("b1 a1")
	p.choose("Filter by state", "available")
	p.lists("b1")
	p.click("Columns")
	p.click("Type")
	p.shows("fake-hardware")
	view := js[string](p, "location.search")

	p.click("Show all")
	p.fill("Search", "nothing has this")
	p.shows("No machine is like that.")
	p.click("Show all machines")
	p.until("document.querySelectorAll('.machines-table tbody a').length === 3")
	p.click("Grid")
	p.until("document.querySelector('canvas[role=img]').width > 100")
	p.does("document.querySelector('canvas[role=img]').focus()")
	p.run(chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.Enter))
	p.until("location.pathname.startsWith('/ui/nodes/')")

	other := open(t, s.d.URL)
	other.visit("/ui/" + view)
	other.lists("b1")
	other.shows("fake-hardware")
}

// TestFleetIsLive: what happens is on the page without a request for the list.
func TestFleetIsLive(t *testing.T) {
	s := start(t)
	id := s.node("m1", "")
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.shows("live")
	p.lists("m1")
	lists := p.asked("GET /ui/api/v1/nodes?")
	s.send(id, "manage")
	p.shows("manageable")
	s.want(202, "PUT", "/v1/nodes/m1/maintenance", `{"reason":"fans are loud"}`)
	p.shows("Maintenance: fans are loud")
	s.node("m2", "")
	p.shows("m2")
	s.want(204, "DELETE", "/v1/nodes/m2", "")
	p.lists("m1")
	if got := p.asked("GET /ui/api/v1/nodes?"); got != lists {
		t.Errorf("the list was read %d times more", got-lists)
	}
}

// TestFailuresComeFirstWithTheirSentence, in the table and in the grid.
func TestFailuresComeFirstWithTheirSentence(t *testing.T) {
	s := start(t)
	s.available("a-good", "")
	bad := s.available("z-bad", `"driver_info":{"fake_fail":{"deploy.deploy":"the fan fell off"}}`)
	s.want(200, "PATCH", "/v1/nodes/"+bad, `[{"op":"add","path":"/instance_info","value":{"image_source":"http://127.0.0.1:1/x","image_checksum":"sha256:`+strings.Repeat("0", 64)+`"}}]`)
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.lists("a-good z-bad")
	s.send(bad, "active")
	s.is(bad, "deploy failed")
	p.lists("z-bad a-good")
	p.shows("the fan fell off")
	p.click("Grid")
	p.until(`document.querySelector('.failures').innerText.includes('the fan fell off')`)
}

func TestActionsOnManyMachines(t *testing.T) {
	s := start(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.node(name, "")
	}
	s.available("other", "")
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.lists("other n1 n2 n3")
	p.click("Choose all machines in the table")
	p.shows("4 machines chosen")
	if p.offers("Undeploy") {
		t.Error("Undeploy is offered for machines that are not deployed")
	}
	p.click("Start maintenance …")
	p.shows("Start maintenance: 4 machines")
	p.click("Cancel")
	p.click("Choose other")
	p.shows("3 machines chosen")
	p.click("Choose other")
	s.want(202, "PUT", "/v1/nodes/n3/states/provision", `{"target":"manage"}`)
	s.is("n3", "manageable")
	p.until("document.querySelector('.machines-table').innerText.includes('manageable')")

	// What will happen is shown first: with whom, and with whom not.
	p.click("Provide …")
	p.shows("Provide: 1 machine")
	p.shows("Left out, since their state does not allow it: ")
	if got := p.asked("PUT "); got != 0 {
		t.Errorf("%d requests before the confirmation", got)
	}
	p.click("The same in a shell")
	p.shows("openstack baremetal node provide n3")
	p.click("Provide: 1 machine")
	p.shows("1 request accepted")
	s.is("n3", "available")
	p.until("document.querySelector('dialog .machines').innerText.includes('available')")
	p.click("Close")
	if got := p.asked("PUT "); got != 1 {
		t.Errorf("%d requests were sent, want 1", got)
	}
}

// TestEverythingCanBeDoneByKeyboard: what has the focus is seen to have it, and a dialog gives it back.
func TestEverythingCanBeDoneByKeyboard(t *testing.T) {
	s := start(t)
	s.node("m1", "")
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.lists("m1")
	// to goes on with the Tab key until what has a name has the focus.
	to := func(name string) {
		t.Helper()
		for range 60 {
			p.run(chromedp.KeyEvent(kb.Tab))
			if js[bool](p, "document.activeElement === "+named(name)) {
				if got := js[string](p, "getComputedStyle(document.activeElement).outlineStyle"); got != "solid" {
					t.Errorf("the focus on %s is not seen: its outline is %s", name, got)
				}
				return
			}
		}
		t.Fatalf("the Tab key does not lead to %s", name)
	}
	to("Skip to the page")
	to("Search")
	to("Grid")
	to("Choose m1")
	p.run(chromedp.KeyEvent(" "))
	p.shows("1 machine chosen")
	js[bool](p, "(() => { document.activeElement.blur(); return true; })()")
	to("Start maintenance …")
	p.run(chromedp.KeyEvent(kb.Enter))
	p.until("document.querySelector('dialog[open]')")
	if !js[bool](p, "document.querySelector('dialog').contains(document.activeElement)") {
		t.Error("the focus stays behind the dialog")
	}
	p.run(chromedp.KeyEvent(kb.Escape))
	p.until("!document.querySelector('dialog')")
	p.until("document.activeElement === " + named("Start maintenance …"))
	to("m1")
	p.run(chromedp.KeyEvent(kb.Enter))
	p.until("document.querySelector('.node')")
}

// TestBrokenStream: a page whose connection breaks says so, and catches up by itself.
func TestBrokenStream(t *testing.T) {
	s := start(t)
	id := s.node("m1", "")
	wire := newWire(t, strings.TrimPrefix(s.d.URL, "http://"))
	p := open(t, "http://"+wire.addr)
	p.expect("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE")
	p.visit("/ui/")
	p.shows("live")
	p.lists("m1")
	wire.cut(true)
	p.shows("offline: reconnecting")
	s.send(id, "manage")
	s.is(id, "manageable")
	s.node("m2", "")
	wire.cut(false)
	p.shows("manageable")
	p.shows("m2")
	p.lacks("offline")
	if n := p.asked("GET /ui/api/v1/nodes?"); n > 2 {
		t.Errorf("the list was read %d times, although the stream goes on where it was", n)
	}
}

// hostile is a text as a machine or a tenant may have.
const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>\u202e{{7*7}}`

// TestHostileTextsAreTexts: they are shown as they are.
func TestHostileTextsAreTexts(t *testing.T) {
	s := start(t)
	s.node("m1", `"resource_class":"<b>x</b>","description":`+quoted(hostile)+`,"extra":{"x":`+quoted(hostile)+`}`)
	s.want(202, "PUT", "/v1/nodes/m1/maintenance", `{"reason":`+quoted(hostile)+`}`)
	p := open(t, s.d.URL)
	for _, path := range []string{"/ui/", "/ui/?view=grid", "/ui/?q=" + "%3Cimg%20src=x%20onerror=alert(1)%3E"} {
		p.visit(path)
		p.shows("live")
		if !strings.Contains(path, "q=") && !strings.Contains(path, "grid") {
			p.shows(`<img src=x onerror=`)
			p.shows("<b>x</b>")
		}
		if n := js[int](p, "document.querySelectorAll('img, b, body script').length"); n != 0 {
			t.Errorf("%s has %d elements that a text made", path, n)
		}
		if got := js[string](p, "document.title"); strings.Contains(got, "owned") {
			t.Errorf("%s: a text was run", path)
		}
	}
}
