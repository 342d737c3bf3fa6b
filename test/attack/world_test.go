// Package attack holds tests that attack a shipped ingotd over loopback, in the role of everyone who may reach it: a
// stranger, readers, members, owners, lessees, the next lessee, the agent of another node, a machine in rescue. Each
// file is one kind of attack.
package attack

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// The people of a world. Each has a token for one place; anonymous sends none.
const (
	anonymous = ""        // sends no token
	root      = "root"    // admin of the system
	auditor   = "auditor" // reader of the system
	olga      = "olga"    // admin of the project "web", which owns nodes
	otto      = "otto"    // member of "web"
	rita      = "rita"    // reader of "web"
	leo       = "leo"     // admin of the project "shop", which leases nodes
	lena      = "lena"    // member of "shop"
	nina      = "nina"    // admin of the project "next", the lessee after "shop"
	eve       = "eve"     // admin of the project "other", which has nothing to do with any node
	mel       = "mel"     // member of "other"
	zoe       = "zoe"     // of the project "web", without any role
)

var people = map[string]struct {
	project string
	roles   []string
}{
	root: {"", []string{"admin", "member", "reader"}}, auditor: {"", []string{"reader"}},
	olga: {"web", []string{"admin", "member", "reader"}}, otto: {"web", []string{"member", "reader"}},
	rita: {"web", []string{"reader"}}, leo: {"shop", []string{"admin", "member", "reader"}},
	lena: {"shop", []string{"member", "reader"}}, nina: {"next", []string{"admin", "member", "reader"}},
	eve: {"other", []string{"admin", "member", "reader"}}, mel: {"other", []string{"member", "reader"}},
	zoe: {"web", nil},
}

// world is an ingotd with a Keystone that knows the people.
type world struct {
	*testing.T
	d        *ingotd.Process
	projects map[string]string // ids by name
	tokens   map[string]string // by person
}

// newWorld starts a world; set has settings for ingotd, each KEY=VALUE.
func newWorld(t *testing.T, set ...string) *world {
	ks := keystonetest.Start(t)
	w := &world{T: t, projects: map[string]string{}, tokens: map[string]string{}}
	ks.AddUser("ingot", "own")
	ks.Grant("ingot", "service", "service")
	for name, p := range people {
		ks.AddUser(name, "pw of "+name)
		if p.project != "" && w.projects[p.project] == "" {
			w.projects[p.project] = ks.Project(p.project)
		}
		ks.Grant(name, p.project, p.roles...)
		w.tokens[name] = ks.Token(name, p.project)
	}
	w.d = ingotd.Start(t, kit.FreeAddr(t),
		append([]string{"api.auth=keystone", "api.keystone.auth_url=" + ks.URL, "api.keystone.username=ingot",
			"api.keystone.password=own"}, set...)...)
	return w
}

// ask sends a request as one of the people, and gives status, headers and body. headers are pairs of name and value.
func (w *world) ask(who, method, path, body string, headers ...string) (int, http.Header, string) {
	w.Helper()
	h := map[string]string{}
	if who != anonymous {
		h["X-Auth-Token"] = w.tokens[who]
	}
	for i := 0; i+1 < len(headers); i += 2 {
		h[headers[i]] = headers[i+1]
	}
	return w.d.Ask(method, path, body, h)
}

// want asks, and fails the test when the answer has another status. It gives the body.
func (w *world) want(status int, who, method, path, body string, headers ...string) string {
	w.Helper()
	got, _, out := w.ask(who, method, path, body, headers...)
	if got != status {
		w.Errorf("%s: %s %s %.200s = %d %.1000s, want %d", who, method, path, body, got, out, status)
	}
	return out
}

// node makes a node that "web" owns, with the further members of a JSON object, and gives its UUID.
func (w *world) node(name, members string) string {
	w.Helper()
	if members != "" {
		members = "," + members
	}
	return w.uuid(w.want(201, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"`+name+`"`+members+`}`))
}

// uuid gives the UUID in an answer.
func (w *world) uuid(answer string) string {
	w.Helper()
	var v struct{ UUID string }
	if err := json.Unmarshal([]byte(answer), &v); err != nil {
		w.Fatal(err)
	}
	return v.UUID
}

// lease gives a node to a project, named as in people; "" takes it back.
func (w *world) lease(node, project string) {
	w.Helper()
	w.want(200, root, "PATCH", "/v1/nodes/"+node, `[{"op":"add","path":"/lessee","value":"`+w.projects[project]+`"}]`)
}

// state brings a node where a verb leads, and waits for it.
func (w *world) state(node, verb, state string) {
	w.Helper()
	w.want(202, root, "PUT", "/v1/nodes/"+node+"/states/provision", `{"target":"`+verb+`"}`)
	ingotd.Wait(w, node+" is "+state, func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/"+node+"/states", ""), `"provision_state":"`+state+
			`"`)
	})
}

// absent fails the test for each of the secrets that a text holds.
func (w *world) absent(what, text string, secrets ...string) {
	w.Helper()
	for _, s := range secrets {
		if i := strings.Index(text, s); i >= 0 {
			w.Errorf("%s holds %q: ...%.200s", what, s, text[max(0, i-80):])
		}
	}
}
