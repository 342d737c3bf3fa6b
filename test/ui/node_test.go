package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/simulated"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// TestADeploymentIsFollowedLive from the form to active: with a bar, a rate and the time left, on the machine's page
// and in the table, and then with the waterfall of its time.
func TestADeploymentIsFollowedLive(t *testing.T) {
	r := simulated.New(t, nil)
	f := r.Machines(fleet.Options{Nodes: 2, Boot: 200 * time.Millisecond, Write: 4 * time.Second,
		Step: 50 * time.Millisecond})
	r.Drive(f, "available", 3)
	url := r.URL
	name := f.Machines[0].Name
	table := open(t, url)
	table.visit("/ui/")
	table.until("document.querySelectorAll('.machines-table tbody a').length === 2")
	p := open(t, url)
	p.visit("/ui/nodes/" + name)
	p.shows("available")
	p.click("Deploy …")
	p.fill("Image", "")
	p.fill("Digest", "sha256:abc")
	p.click("Check")
	p.shows("Give the address of the image")
	p.shows("64 hexadecimal digits")
	p.fill("Image", "http://127.0.0.1:1/debian-12.raw")
	p.fill("Digest", "sha256:"+strings.Repeat("ab", 32))
	p.fill("SSH keys", "no key")
	p.click("Check")
	p.shows("This is no public key")
	p.fill("SSH keys", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPw0 ann@desk")
	p.click("The same in a shell")
	p.shows("ingot node deploy " + name + " --image http://127.0.0.1:1/debian-12.raw --checksum sha256:abab")
	p.click("Check")
	p.shows("What will happen")
	p.shows("deploy.write_image")
	// Another one is deployed meanwhile, so that there is a fleet to compare with.
	second := `'/v1/nodes/` + f.Machines[1].Name + `'`
	send := func(method, path, body string) {
		t.Helper()
		status := js[int](p, `fetch(`+second+path+`, { method: '`+method+`', body: '`+body+`', headers: {
			'Content-Type': 'application/json', 'X-OpenStack-Ironic-API-Version': 'latest' } }).then((r) => r.status)`)
		if status != 200 && status != 202 {
			t.Fatalf("%s of the second machine = %d", method, status)
		}
	}
	send("PATCH", "", `[{"op":"add","path":"/instance_info","value":{"image_source":"http://127.0.0.1:1/debian-12.raw","image_os_hash_algo":"sha256","image_os_hash_value":"`+
		strings.Repeat("ab", 32)+`"}}]`)
	send("PUT", " + '/states/provision'", `{"target":"active"}`)
	p.click("Deploy " + name)
	p.until("!document.querySelector('dialog')")
	p.until(`document.querySelector('.node-progress [role=progressbar]')?.getAttribute('aria-valuenow') > 0`)
	p.until(`/write_image.*MB\/s.*left/s.test(document.querySelector('.node-progress')?.innerText ?? '')`)
	table.until(`/write_image.*MB\/s/s.test(document.querySelector('.machines-table').innerText)`)
	p.until(`document.querySelector('.node-state').innerText.includes('active')`)
	table.until(`document.querySelector('.machines-table').innerText.split('active').length === 3`)
	p.click("Timeline")
	p.shows("write_image")
	p.shows("firmware")
	p.shows("The median of 2 machines is")
	p.until("document.querySelector('.waterfall button')")
	p.pictured("node-timeline") // in place of one of a fake machine
	p.does("document.querySelector('.waterfall button').click()")
	p.until("!document.querySelector('.waterfall').innerText.includes('write_image')") // a part of the time is shown alone
	p.click("Show all of it")
	p.until("document.querySelector('.waterfall').innerText.includes('write_image')")
	p.click("Steps and log")
	p.shows("Last deploy")
	p.shows("The agent's log")
	p.click("Hardware")
	p.shows("Root disk")
	p.click("History")
	p.shows("Deployment completed")
}

// TestTheWaterfallComparesWithTheLastDeployment, span by span.
func TestTheWaterfallComparesWithTheLastDeployment(t *testing.T) {
	t.Parallel()
	s := start(t)
	id := s.available("m1", "")
	deploy := func(verb, delay string) {
		t.Helper()
		s.want(200, "PATCH", "/v1/nodes/"+id, `[{"op":"add","path":"/driver_info/fake_deploy_delay","value":"`+delay+`"}]`)
		s.send(id, verb)
		s.is(id, "active")
	}
	deploy("active", "100ms")
	p := open(t, s.d.URL)
	p.visit("/ui/nodes/m1/timeline")
	p.shows("Where the time went")
	p.lacks("The one before took") // there is none
	deploy("rebuild", "1500ms")
	p.shows("The one before took")
	p.until(`[...document.querySelectorAll('.waterfall [role=row]')].some((r) => { const c = [...r.querySelectorAll('[role=cell]')].map((x) => x.innerText);
		return /write_image/.test(c[0]) && /^\+1\.[2-9] s$/.test(c[2]); })`)
	p.choose("Operation", js[string](p, `[...document.querySelector('select[aria-label=Operation]').options].filter((o) => o.innerText.startsWith('deploy')).at(-1).value`))
	p.lacks("The one before took")
}

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
		{"root", "", "leased others", []string{"Manage …", "Power on …", "Start maintenance …", "Delete …"}, nil, nil},
		{"auditor", "", "leased others", nil, []string{"Manage …", "Power on …", "Start maintenance …"},
			[]string{"/states/power", "/states/provision", "/console"}},
		{"olga", "web", "leased", []string{"Manage …", "Power on …", "Start maintenance …"}, nil, nil},
		{"otto", "web", "leased", []string{"Manage …", "Power on …", "Start maintenance …"}, []string{"Delete …"}, nil},
		{"rita", "web", "leased", nil, []string{"Manage …", "Power on …", "Start maintenance …"},
			[]string{"/states/power", "/states/provision"}},
		{"leo", "shop", "leased", []string{"Manage …", "Power on …", "Start maintenance …"}, nil, nil},
		{"lena", "shop", "leased", []string{"Power on …"}, []string{"Manage …", "Start maintenance …"},
			[]string{"/states/provision", "/console"}},
	} {
		t.Run(tt.user, func(t *testing.T) {
			p := open(t, s.d.URL)
			p.expect("status of 403")
			p.visit("/ui/")
			p.signIn(tt.user, "pw of "+tt.user, tt.project)
			p.lists(tt.sees)
			p.lacks("Value Redacted")
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
			// The console is for the members of the owner and of the system.
			if got, want := p.offers("Console"), strings.Contains(" root olga otto ", " "+tt.user+" "); got != want {
				t.Errorf("%s is offered the console: %v, want %v", tt.user, got, want)
			}
			if got, want := p.offers("Quarantine …"), false; got != want { // it is not in use
				t.Errorf("%s is offered to put a machine in quarantine that is not in use", tt.user)
			}
			for _, path := range tt.refused {
				method, api, body := "PUT", "/v1/nodes/", `{"target":"manage"}`
				switch path {
				case "/states/power":
					body = `{"target":"power on"}`
				case "/console":
					method, api, body = "POST", "/ingot/v1/nodes/", `{}`
				}
				status := js[int](p, `fetch('/ui/session').then((r) => r.json()).then((s) => fetch('/ui/api`+api+id+path+
					`', { method: '`+method+`', body: '`+body+`', headers: {'X-Ingot-CSRF': s.csrf,
					'Content-Type': 'application/json', 'X-OpenStack-Ironic-API-Version': 'latest'} })).then((r) => r.status)`)
				if status != 403 {
					t.Errorf("%s asks for %s by hand: %d, want 403", tt.user, path, status)
				}
			}
		})
	}
}
