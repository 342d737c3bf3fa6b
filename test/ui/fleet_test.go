package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
	p.fill("Search", "class:gold state:enroll")
	p.lists("a1")
	p.fill("Search", "class:gol")
	p.shows("No machine is like that.")
	p.fill("Search", "conductor:c1 gold")
	p.lists("b1 a1")
	p.fill("Search", "gold")
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

	// Each machine that works has a bar, until it is done.
	s.want(202, "PUT", "/v1/nodes/n3/states/provision", `{"target":"manage"}`)
	s.send("n2", "manage")
	for _, name := range []string{"n2", "n3"} {
		s.is(name, "manageable")
		s.want(200, "PATCH", "/v1/nodes/"+name, `[{"op":"add","path":"/driver_info/fake_inspect_delay","value":"2"}]`)
	}
	p.until("document.querySelector('.machines-table').innerText.match(/manageable/g)?.length === 2")
	p.click("Inspect …")
	p.click("Inspect: 2 machines")
	p.until(`['n2', 'n3'].every((n) => document.querySelector('dialog .machines [role=progressbar][aria-label="Progress of ' + n + '"]'))`)
	p.until(`document.querySelector('dialog .machines').innerText.match(/manageable/g)?.length === 2`)
	p.until(`!document.querySelector('dialog .machines [role=progressbar]')`)
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

// TestHostileTextsAreTexts: they are shown as they are, on every page.
func TestHostileTextsAreTexts(t *testing.T) {
	s := start(t)
	const machine = `"driver_info":{"fake_fail":{"deploy.deploy":` + "%s" + `},"fake_inventory":{"cpus":4,"memory_mb":4096,"disks_gb":[100],` +
		`"macs":["52:54:00:00:00:01"],"vendor":` + "%[1]s" + `,"product":` + "%[1]s" + `,"serial":` + "%[1]s" + `}}`
	id := s.node("m1", `"resource_class":"<b>x</b>","description":`+quoted(hostile)+`,"owner":`+quoted(hostile)+`,"extra":{"x":`+quoted(hostile)+`},`+
		fmt.Sprintf(machine, quoted(hostile)))
	s.send(id, "manage")
	s.is(id, "manageable")
	s.send(id, "inspect")
	s.is(id, "manageable")
	s.send(id, "provide")
	s.is(id, "available")
	s.want(200, "PATCH", "/v1/nodes/"+id, `[{"op":"add","path":"/instance_info","value":{"display_name":`+quoted(hostile)+
		`,"image_source":`+quoted("http://127.0.0.1:1/"+hostile)+`,"image_os_hash_algo":"sha256","image_os_hash_value":"`+strings.Repeat("0", 64)+`"}}]`)
	s.send(id, "active")
	s.is(id, "deploy failed")
	s.node("m2", `"resource_class":"<b>x</b>"`)
	s.want(202, "PUT", "/v1/nodes/m2/maintenance", `{"reason":`+quoted(hostile)+`}`)
	s.want(201, "POST", "/v1/inspection_rules", `{"description":`+quoted(hostile)+`,"actions":[{"op":"set-attribute","args":{"path":"/description","value":`+quoted(hostile)+`}}]}`)
	s.want(201, "PUT", "/ingot/v1/pools/web", `{"description":`+quoted(hostile)+`,"resource_class":"<b>x</b>","count":1}`)
	s.want(201, "POST", "/v1/allocations", `{"name":"web-1","resource_class":"<b>x</b>","extra":{"x":`+quoted(hostile)+`}}`)
	s.node("m3", `"resource_class":"<b>x</b>"`)
	s.send("m3", "manage")
	s.is("m3", "manageable")
	s.send("m3", "provide")
	s.is("m3", "available")
	s.want(201, "POST", "/ingot/v1/reservations", `{"project":`+quoted(hostile)+`,"resource_class":"<b>x</b>","end":"`+
		time.Now().Add(48*time.Hour).UTC().Format(time.RFC3339)+`"}`)
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.shows("live")
	for _, tt := range []struct{ path, shows string }{
		{"/ui/", "<img src=x onerror="}, {"/ui/?view=grid", "<img src=x onerror="}, {"/ui/?q=%3Cimg%20src=x%20onerror=alert(1)%3E", "No machine is like that"},
		{"/ui/nodes/" + id, "<img src=x onerror="}, {"/ui/nodes/" + id + "/timeline", "Where the time went"},
		{"/ui/nodes/" + id + "/steps", "<img src=x onerror="}, {"/ui/nodes/" + id + "/hardware", "<img src=x onerror="},
		{"/ui/nodes/" + id + "/history", "<img src=x onerror="}, {"/ui/nodes/%3Cimg%20src=x%20onerror=alert(1)%3E", "<img src=x onerror="},
		{"/ui/images", "<img src=x onerror="}, {"/ui/rules", "<img src=x onerror="},
		{"/ui/pools", "<img src=x onerror="},
		{"/ui/reservations", "<b>x</b>"},
		{"/ui/allocations", "<b>x</b>"}, {"/ui/conductors", "alive"}, {"/ui/events", "<img src=x onerror="},
		{"/ui/events?text=%3Cimg%20src=x%20onerror=alert(1)%3E", "No line is like that"}, {"/ui/settings?q=%3Cb%3E", "No setting is like that"},
	} {
		if strings.Contains(tt.path, "%3C") {
			p.expect("status of 400")
		}
		p.to(tt.path)
		p.shows(tt.shows)
		if n := js[int](p, "document.querySelectorAll('img, b, body script').length"); n != 0 {
			t.Errorf("%s has %d elements that a text made", tt.path, n)
		}
		if got := js[string](p, "document.title"); strings.Contains(got, "owned") {
			t.Errorf("%s: a text was run", tt.path)
		}
	}
	p.to("/ui/nodes/" + id)
	p.click("Deploy …") // it has the hostile address of the image
	p.click("The same in a shell")
	p.shows("ingot node deploy m1")
	p.click("Cancel")
}

// TestReservationsInACalendar: each promised machine is a row, with a bar where its time is, and what is new comes by
// itself.
func TestReservationsInACalendar(t *testing.T) {
	s := start(t)
	s.available("n1", `"resource_class":"large"`)
	s.available("n2", `"resource_class":"large"`)
	hours := func(n int) string { return time.Now().Add(time.Duration(n) * time.Hour).UTC().Format(time.RFC3339) }
	p := open(t, s.d.URL)
	p.visit("/ui/reservations")
	p.shows("There are no reservations.")
	s.want(201, "POST", "/ingot/v1/reservations", `{"name":"web","resource_class":"large","count":2,"project":"p1","start":"`+
		hours(48)+`","end":"`+hours(96)+`"}`)
	p.shows("2 of large")
	bars := func() string {
		return js[string](p, `[...document.querySelectorAll('.calendar-bar')].map((td) => {
			const bar = td.querySelector('i'), row = td.parentElement.innerText.split(/\s+/);
			return row[0] + ' ' + row[1] + ' ' + Math.round(parseFloat(bar.style.marginLeft)) + '+' +
				Math.round(parseFloat(bar.style.width)); }).join(', ')`)
	}
	// The hours of today that are over count, too: between two and three of the fourteen days are left of it.
	for i, row := range strings.Split(bars(), ", ") {
		var name, reservation string
		var left, width int
		if _, err := fmt.Sscanf(row, "%s %s %d+%d", &name, &reservation, &left, &width); err != nil ||
			name != fmt.Sprint("n", i+1) || reservation != "web" || left < 14 || left > 22 || width != 14 {
			t.Errorf("row %d of the calendar is %q: %v", i, row, err)
		}
	}
	p.does(`(() => { const s = document.querySelector('[aria-label="Days from today"]'); s.value = '7'; s.dispatchEvent(new Event('change', {bubbles: true})); })()`)
	p.until(`Math.round(parseFloat(document.querySelector('.calendar-bar i').style.width)) === 29`)
	s.want(204, "DELETE", "/ingot/v1/reservations/web", "")
	p.shows("There are no reservations.")
}
