package ui

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"

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
		{"root", "", "Fleet Images Rules Pools Allocations Erasures Conductors Events Settings First steps"},
		{"auditor", "", "Fleet Images Rules Pools Allocations Erasures Conductors Events Settings"},
		{"rita", "web", "Fleet Images Allocations Erasures Events"},
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
	p.choose("Severity", "ERROR")
	p.shows("No line is like that.")
}
