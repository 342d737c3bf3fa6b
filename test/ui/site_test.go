package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// newest is the API's newest version.
var newest = map[string]string{"X-OpenStack-Ironic-API-Version": "latest"}

// site is an ingotd with fake machines.
type site struct {
	testing.TB
	d    *ingotd.Process
	auth string // the header Authorization; "": none is needed
}

func start(t testing.TB, set ...string) *site {
	t.Helper()
	return &site{TB: t, d: ingotd.Start(t, kit.FreeAddr(t), append([]string{"hostname=c1"}, set...)...)}
}

// want asks the API and fails the test when the answer has another status.
func (s *site) want(status int, method, path, body string) string {
	s.Helper()
	headers := maps.Clone(newest)
	if s.auth != "" {
		headers["Authorization"] = s.auth
	}
	got, _, out := s.d.Ask(method, path, body, headers)
	if got != status {
		s.Fatalf("%s %s %.200s = %d %.1000s, want %d", method, path, body, got, out, status)
	}
	return out
}

// node makes a node of fake hardware with further members of a JSON object, and returns its UUID.
func (s *site) node(name, members string) string {
	s.Helper()
	if members != "" {
		members = "," + members
	}
	var v struct{ UUID string }
	out := s.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"`+name+`"`+members+`}`)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		s.Fatal(err)
	}
	return v.UUID
}

// uuid is a node's.
func (s *site) uuid(name string) string {
	s.Helper()
	_, after, _ := strings.Cut(s.want(200, "GET", "/v1/nodes/"+name+"?fields=uuid", ""), `"uuid":"`)
	return after[:36]
}

// send sends a verb for a node.
func (s *site) send(node, verb string) {
	s.Helper()
	s.want(202, "PUT", "/v1/nodes/"+node+"/states/provision", `{"target":"`+verb+`"}`)
}

// is waits until a node is in a state.
func (s *site) is(node, state string) {
	s.Helper()
	ingotd.Wait(s, node+" is "+state, func() bool {
		return strings.Contains(s.want(200, "GET", "/v1/nodes/"+node+"/states", ""), `"provision_state":"`+state+`"`)
	})
}

// available makes a node that is available.
func (s *site) available(name, members string) string {
	s.Helper()
	id := s.node(name, members)
	s.send(id, "manage")
	s.is(id, "manageable")
	s.send(id, "provide")
	s.is(id, "available")
	return id
}

// htpasswd writes a file with users and their passwords.
func htpasswd(t testing.TB, users map[string]string) string {
	t.Helper()
	var b strings.Builder
	for name, password := range users {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s:%s\n", name, hash)
	}
	path := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// keystone starts a Keystone with a user for each role: root, auditor (reader) of the system, olga (manager), otto
// (member) and rita (reader) of the project web, leo (manager) and lena (member) of the project shop. Passwords are
// "pw of NAME". It returns the settings for ingotd.
func keystone(t testing.TB) (*keystonetest.Server, []string) {
	t.Helper()
	ks := keystonetest.Start(t)
	ks.AddUser("ingot", "own")
	ks.Grant("ingot", "service", "service")
	for name, place := range map[string]struct {
		project string
		roles   []string
	}{
		"root": {"", []string{"admin", "manager", "member", "reader"}}, "auditor": {"", []string{"reader"}},
		"olga": {"web", []string{"manager", "member", "reader"}}, "otto": {"web", []string{"member", "reader"}},
		"rita": {"web", []string{"reader"}}, "leo": {"shop", []string{"manager", "member", "reader"}},
		"lena": {"shop", []string{"member", "reader"}},
	} {
		ks.AddUser(name, "pw of "+name)
		ks.Grant(name, place.project, place.roles...)
	}
	return ks, []string{"api.auth=keystone", "api.keystone.auth_url=" + ks.URL, "api.keystone.username=ingot",
		"api.keystone.password=own"}
}

// signIn signs in with Keystone; without a project, to the system.
func (p *page) signIn(user, password, project string) {
	p.Helper()
	p.fill("User", user)
	p.fill("Password", password)
	if project == "" {
		p.click("the system")
	} else {
		p.fill("Project", project)
	}
	p.click("Sign in")
}
