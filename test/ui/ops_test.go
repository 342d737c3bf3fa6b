package ui

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
)

// TestARuleIsTriedOut on a machine, without changing it.
func TestARuleIsTriedOut(t *testing.T) {
	s := start(t)
	id := s.node("m1", `"driver_info":{"fake_inventory":{"cpus":4,"memory_mb":4096,"disks_gb":[100],"vendor":"Dell Inc."}}`)
	s.send(id, "manage")
	s.is(id, "manageable")
	s.send(id, "inspect")
	s.is(id, "manageable")
	p := open(t, s.d.URL)
	p.expect("status of 4")
	p.visit("/ui/rules")
	p.fill("Machine", "m1")
	p.click("Try it out")
	p.shows("The rule matches.")
	p.shows("CUSTOM_DELL")
	p.fill("Rule", "{")
	p.click("Try it out")
	p.shows("The rule is no JSON")
	if out := s.want(200, "GET", "/v1/nodes/m1/traits", ""); strings.Contains(out, "DELL") {
		t.Errorf("trying it out has changed the node: %s", out)
	}
}

// TestAnEraseCertificateIsVerified in the browser: what the conductor signed is good, and nothing else.
func TestAnEraseCertificateIsVerified(t *testing.T) {
	s := start(t)
	key, err := erasure.OpenKey(s.d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	report := `{"format":"ingot-erasure-1","id":"A","disk":{"name":"/dev/sda","model":"<Fast & Large>","serial":"S1\u2028","size":1000204886016},"method":"overwrite","level":"clear","result":"erased"}`
	doc, err := key.Sign(erasure.Statement{NodeName: "m1", Conductor: "c1", Report: json.RawMessage(report)})
	if err != nil {
		t.Fatal(err)
	}
	other, err := erasure.OpenKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Sign(erasure.Statement{NodeName: "m1", Conductor: "c1", Report: json.RawMessage(report)})
	if err != nil {
		t.Fatal(err)
	}
	var indented any
	if err := json.Unmarshal(doc, &indented); err != nil {
		t.Fatal(err)
	}
	if _, err := erasure.Verify(doc, ed25519.PublicKey(nil)); err != nil {
		t.Fatal(err)
	}
	p := open(t, s.d.URL)
	p.visit("/ui/erasures")
	for _, tt := range []struct{ text, shows string }{
		{string(doc), "The signature is good"},
		{strings.ReplaceAll(strings.ReplaceAll(string(doc), ",", ",\n   "), `\u0026`, "&"), "The signature is good"},
		{strings.Replace(string(doc), `"serial":"S1`, `"serial":"S2`, 1), "The signature does not fit"},
		{string(foreign), "The signature does not fit"},
		{"no report", "This is no signed report"},
	} {
		p.until(named("Report"))
		p.does("(() => { const e = " + named("Report") + "; e.value = " + quoted(tt.text) + "; e.dispatchEvent(new Event('input', { bubbles: true })); })()")
		p.click("Verify the signature")
		p.shows(tt.shows)
	}
}

// TestPagesAboutTheSite: what is there is shown, and a role sees no page that would be refused.
func TestPagesAboutTheSite(t *testing.T) {
	_, set := keystone(t)
	s := start(t, set...)
	for _, tt := range []struct{ user, project, pages string }{
		{"root", "", "Fleet Images Rules Pools Allocations Reservations Erasures Conductors Events Settings First steps"},
		{"auditor", "", "Fleet Images Rules Pools Allocations Reservations Erasures Conductors Events Settings"},
		{"rita", "web", "Fleet Images Allocations Reservations Erasures Events"},
	} {
		p := open(t, s.d.URL)
		p.visit("/ui/")
		p.signIn(tt.user, "pw of "+tt.user, tt.project)
		p.shows("There are no machines yet.")
		if got := js[string](p, "[...document.querySelectorAll('.top nav a')].map((a) => a.innerText).join(' ')"); got != tt.pages {
			t.Errorf("%s sees %s, want %s", tt.user, got, tt.pages)
		}
		if strings.Contains(tt.pages, "Settings") {
			p.click("Settings")
			p.shows("api.keystone.password")
			p.shows("******")
			p.click("Only what")
			p.lacks("power.retries")
		}
	}
}

// TestConductorsLeadToTheirMachines, all of them or those of one kind.
func TestConductorsLeadToTheirMachines(t *testing.T) {
	s := start(t)
	s.node("m1", "")
	s.available("m2", "")
	p := open(t, s.d.URL)
	p.visit("/ui/conductors")
	p.until("document.querySelector('.card dd a')?.innerText === '2'")
	p.does("document.querySelector('.card dd a').click()")
	p.lists("m2 m1")
	if got := js[string](p, "location.search"); got != "?q=conductor%3Ac1" {
		t.Errorf("the address is %s", got)
	}
	p.run(chromedp.NavigateBack())
	p.until("[...document.querySelectorAll('.card dd a')].length === 3")
	p.does("[...document.querySelectorAll('.card dd a')].at(-1).click()")
	p.lists("m1")
}

// TestImagesAndWhereTheyAreUsed: those that the conductor serves, and those of machines, with the machines.
func TestImagesAndWhereTheyAreUsed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "debian-12.raw"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, "netboot.images_dir="+dir)
	for i := range 14 {
		more := ""
		if i == 13 {
			more = `"driver_info":{"fake_fail":{"deploy.deploy":"broken"}}`
		}
		id := s.available(fmt.Sprintf("m%02d", i), more)
		s.want(200, "PATCH", "/v1/nodes/"+id, `[{"op":"add","path":"/instance_info","value":{"image_source":"debian-12.raw",`+
			`"image_os_hash_algo":"sha256","image_os_hash_value":"`+strings.Repeat("5f", 32)+`"}}]`)
		s.send(id, "active")
	}
	s.is("m12", "active")
	s.is("m13", "deploy failed")
	p := open(t, s.d.URL)
	p.visit("/ui/images")
	p.row("debian-12.raw", "3.0 MiB")
	p.shows("14 machines")
	p.shows("2 machines more")
	p.click("2 machines more")
	p.shows("m13 (deploy failed)")
	p.shows(strings.Repeat("5f", 32))
}

// TestFirstSteps leads from nothing to a deployed machine: what is done is ticked at once.
func TestFirstSteps(t *testing.T) {
	s := start(t)
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.click("First steps")
	next := func(title, left string) {
		t.Helper()
		p.shows(left)
		p.until("document.querySelector('.start .next h2')?.innerText.trim() === " + quoted(title))
	}
	next("Enrol a machine", "5 steps left")
	s.node("m1", "")
	next("Check its controller", "4 steps left")
	s.send("m1", "manage")
	next("Look at its hardware", "3 steps left")
	s.is("m1", "manageable")
	s.send("m1", "provide")
	s.is("m1", "available")
	next("Deploy an image", "1 step left")
	s.send("m1", "active")
	p.shows("A machine is deployed")
}

// TestTimesHaveAZone, which is the reader's.
func TestTimesHaveAZone(t *testing.T) {
	s := start(t)
	id := s.node("m1", "")
	var n struct {
		CreatedAt time.Time `json:"created_at"`
	}
	if err := json.Unmarshal([]byte(s.want(200, "GET", "/v1/nodes/"+id, "")), &n); err != nil {
		t.Fatal(err)
	}
	p := open(t, s.d.URL)
	for zone, suffix := range map[string]string{"Asia/Kolkata": "GMT+5:30", "America/New_York": "GMT"} {
		at, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		command(p, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: zone})
		p.visit("/ui/nodes/" + id)
		p.shows(n.CreatedAt.In(at).Format("2006-01-02 15:04:05") + " " + suffix)
	}
}

// TestEventsAreFollowed: what happens is on the page at once, and in the log.
func TestEventsAreFollowed(t *testing.T) {
	s := start(t)
	s.node("m1", "")
	p := open(t, s.d.URL)
	p.visit("/ui/events")
	p.shows("live")
	s.want(202, "PUT", "/v1/nodes/m1/maintenance", `{"reason":"x"}`)
	p.shows("m1: maintenance from false to true")
	s.send("m1", "manage")
	p.shows("provision state from enroll to verifying")
	s.is("m1", "manageable")
	// The page remembers 500 events; the log goes on after that.
	for i := range 600 {
		s.want(200, "PATCH", "/v1/nodes/m1", fmt.Sprintf(`[{"op":"add","path":"/extra/round","value":%d}]`, i))
	}
	time.Sleep(1500 * time.Millisecond) // the page has read the log since
	s.send("m1", "provide")
	p.until(`document.querySelector('main table')?.innerText.includes('provide requested')`)
	p.choose("Severity", "ERROR")
	p.shows("No line is like that.")
}
