package ui

import (
	"strings"
	"testing"
)

// TestAnActionOnOneMachine: what can be done is offered, with its commands, and the page follows it.
func TestAnActionOnOneMachine(t *testing.T) {
	s := start(t)
	id := s.node("m1", `"description":`+quoted(hostile))
	p := open(t, s.d.URL)
	p.visit("/ui/")
	p.lists("m1")
	p.click("m1")
	p.shows("enroll")
	p.shows(`<img src=x onerror=`)
	if p.offers("Provide") || p.offers("Undeploy") {
		t.Error("a machine in enroll is offered to be provided, or undeployed")
	}
	p.click("Manage …")
	p.shows("ingot node manage m1")
	p.shows("openstack baremetal node manage m1")
	p.click("Manage")
	p.until("!document.querySelector('dialog')")
	p.shows("manageable")
	p.click("Provide …")
	p.click("Provide")
	p.shows("available")
	s.is(id, "available")
	s.send(id, "manage")
	p.shows("manageable")
	s.want(204, "DELETE", "/v1/nodes/m1", "")
	p.shows("There is no such machine")
}

// TestWhatARoleMayNotDoIsNotOffered, and refused when it is asked for all the same.
func TestWhatARoleMayNotDoIsNotOffered(t *testing.T) {
	ks, set := keystone(t)
	s := start(t, set...)
	create := func(name, owner, lessee string) string {
		t.Helper()
		body := `{"driver":"fake-hardware","name":"` + name + `","owner":"` + ks.Project(owner) + `","lessee":"` + ks.Project(lessee) + `"}`
		status, _, out := s.d.Ask("POST", "/v1/nodes", body, map[string]string{"X-OpenStack-Ironic-API-Version": "latest",
			"X-Auth-Token": ks.Token("root", "")})
		if status != 201 {
			t.Fatalf("POST = %d %s", status, out)
		}
		return out[strings.Index(out, `"uuid":"`)+8:][:36]
	}
	id := create("leased", "web", "shop")
	create("others", "other", "")
	for _, tt := range []struct {
		user, project string
		sees          string // in the table
		offers, lacks []string
		refused       []string // requests that are forged
	}{
		{"root", "", "leased others", []string{"Manage …", "Power on …", "Start maintenance …"}, nil, nil},
		{"auditor", "", "leased others", nil, []string{"Manage …", "Power on …", "Start maintenance …"},
			[]string{"/states/power", "/states/provision"}},
		{"olga", "web", "leased", []string{"Manage …", "Power on …", "Start maintenance …"}, nil, nil},
		{"otto", "web", "leased", []string{"Manage …", "Power on …", "Start maintenance …"}, nil, nil},
		{"rita", "web", "leased", nil, []string{"Manage …", "Power on …", "Start maintenance …"},
			[]string{"/states/power", "/states/provision"}},
		{"leo", "shop", "leased", []string{"Manage …", "Power on …", "Start maintenance …"}, nil, nil},
		{"lena", "shop", "leased", []string{"Power on …"}, []string{"Manage …", "Start maintenance …"},
			[]string{"/states/provision"}},
	} {
		t.Run(tt.user, func(t *testing.T) {
			p := open(t, s.d.URL)
			p.expect("status of 403")
			p.visit("/ui/")
			p.signIn(tt.user, "pw of "+tt.user, tt.project)
			p.lists(tt.sees)
			p.click("Choose leased")
			for at := range 2 { // in the table and on the machine's own page
				p.until("document.querySelector('.group, .node')")
				for _, name := range tt.offers {
					p.until(named(name))
				}
				for _, name := range tt.lacks {
					if p.offers(name) {
						t.Errorf("%s is offered %s at %s", tt.user, name, js[string](p, "location.pathname"))
					}
				}
				if at == 0 {
					p.click("leased")
					p.until("document.querySelector('.node')")
				}
			}
			for _, path := range tt.refused {
				status := js[int](p, `fetch('/ui/session').then((r) => r.json()).then((s) => fetch('/ui/api/v1/nodes/`+id+path+
					`', { method: 'PUT', body: '{"target":"'+('`+path+`'.endsWith('power') ? 'power on' : 'manage')+'"}', headers: {'X-Ingot-CSRF': s.csrf, 'Content-Type': 'application/json', 'X-OpenStack-Ironic-API-Version': 'latest'} })).then((r) => r.status)`)
				if status != 403 {
					t.Errorf("%s asks for %s by hand: %d, want 403", tt.user, path, status)
				}
			}
		})
	}
}
