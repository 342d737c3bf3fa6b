package ui

import (
	"strings"
	"testing"
)

// to goes to another page of the dashboard as a link does, and waits until it is complete.
func (p *page) to(path string) {
	p.Helper()
	p.does(`(() => { const a = document.createElement('a'); a.href = ` + quoted(path) + `; document.body.append(a); a.click(); a.remove(); })()`)
	p.until("![...document.querySelectorAll('main [aria-busy=true]')].some((e) => e.checkVisibility())")
}

// TestEveryPageForEveryRole: what a role is offered, of pages and of parts of a machine's page, it may see: no request
// is refused and nothing is missing; and what it is not offered is not reached by its address either.
func TestEveryPageForEveryRole(t *testing.T) {
	t.Parallel()
	ks, set := keystone(t)
	s := start(t, set...)
	status, _, out := s.d.Ask("POST", "/v1/nodes", `{"driver":"fake-hardware","name":"leased","owner":"`+ks.Project("web")+`","lessee":"`+
		ks.Project("shop")+`"}`, map[string]string{"X-OpenStack-Ironic-API-Version": "latest", "X-Auth-Token": ks.Token("root", "")})
	if status != 201 {
		t.Fatalf("POST = %d %s", status, out)
	}
	id := out[strings.Index(out, `"uuid":"`)+8:][:36]
	const site = " images rules pools allocations reservations erasures conductors events settings start"
	for _, tt := range []struct {
		user, project string
		lacks         string // pages and parts that are not offered
	}{
		{"root", "", ""},
		{"auditor", "", "start console"},
		{"olga", "web", "rules pools conductors settings start"},
		{"otto", "web", "rules pools conductors settings start"},
		{"rita", "web", "rules pools conductors settings start console"},
		{"leo", "shop", "rules pools conductors settings start console"},
		{"lena", "shop", "rules pools conductors settings start console"},
	} {
		t.Run(tt.user, func(t *testing.T) {
			p := open(t, s.d.URL)
			p.expect("status of 404") // it was not inspected
			p.visit("/ui/")
			p.signIn(tt.user, "pw of "+tt.user, tt.project)
			p.lists("leased")
			p.to("/ui/nodes/" + id)
			p.until("document.querySelector('.tabs')")
			offered := js[[]string](p, "[...document.querySelectorAll('.top nav a, .tabs a')].map((a) => a.getAttribute('href'))")
			var lacks []string
			for _, path := range strings.Fields(site) {
				if !strings.Contains(strings.Join(offered, " ")+" ", "/ui/"+path+" ") {
					lacks = append(lacks, path)
				}
			}
			if !strings.Contains(strings.Join(offered, " "), "/console") {
				lacks = append(lacks, "console")
			}
			if got := strings.Join(lacks, " "); got != tt.lacks {
				t.Errorf("%s is not offered %q, want %q", tt.user, got, tt.lacks)
			}
			for _, path := range offered {
				p.to(path)
				for _, fault := range []string{"Your role may not see", "There is no such", "Forbidden", "undefined"} {
					if text := p.text(); strings.Contains(text, fault) {
						t.Errorf("%s at %s: %.2000s", tt.user, path, text)
					}
				}
				if fault := js[string](p, "document.querySelector('main .fault')?.innerText ?? ''"); fault != "" {
					t.Errorf("%s at %s: %s", tt.user, path, fault)
				}
			}
			for _, path := range lacks {
				if path == "console" {
					path = "nodes/" + id + "/console"
				}
				p.to("/ui/" + path)
				p.until(`/There is no such (page|part)/.test(document.querySelector('main').innerText)`)
			}
		})
	}
}
