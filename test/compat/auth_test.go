package compat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/keystone"
	"github.com/ingot-metal/ingot/test/kit/openstack"
	"github.com/ingot-metal/ingot/tools/cli"
)

// ingot runs Ingot's own command line with an environment.
func ingot(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	err := cli.Run(t.Context(), args, strings.NewReader(""), &out, &errs, func(name string) string {
		for _, kv := range env {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v
			}
		}
		return ""
	})
	return out.String() + errs.String(), err
}

// TestHTTPBasic holds what clients of a stand-alone Ironic with http_basic do, against a real ingotd.
func TestHTTPBasic(t *testing.T) {
	file := filepath.Join(t.TempDir(), "htpasswd")
	users := func(pairs ...string) {
		t.Helper()
		var b strings.Builder
		for i := 0; i < len(pairs); i += 2 {
			h, err := bcrypt.GenerateFromPassword([]byte(pairs[i+1]), bcrypt.MinCost)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s:$2y%s\n", pairs[i], h[3:])
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	users("alice", "one")
	p := ingotd.Start(t, kit.FreeAddr(t), "api.auth=http_basic", "api.htpasswd_file="+file)
	status, header, body := p.Ask("GET", "/v1/nodes", "", nil)
	if status != 401 || header.Get("Www-Authenticate") != `Basic realm="Baremetal API"` ||
		body != `{"error":{"message":"Authorization required","code":401}}` ||
		header.Get("Content-Type") != "application/json" {
		t.Errorf("without a login: %d %v %s", status, header, body)
	}
	env := func(password string) []string {
		return []string{"OS_AUTH_TYPE=http_basic", "OS_ENDPOINT=" + p.URL, "OS_USERNAME=alice",
			"OS_PASSWORD=" + password}
	}
	client := openstack.Start(t)
	if _, _, err := client.Run(env("one"), "baremetal", "node", "create", "--driver", "fake-hardware", "--name",
		"n1"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.Run(env("wrong"), "baremetal", "node", "list"); err == nil {
		t.Error("openstack got in with a wrong password")
	}
	if out, err := ingot(t, env("one"), "node", "list"); err != nil || !strings.Contains(out, "n1") {
		t.Errorf("ingot node list = %s, %v", out, err)
	}
	if _, err := ingot(t, env("wrong"), "node", "list"); err == nil ||
		!strings.Contains(cli.Message(err), "OS_AUTH_TYPE=http_basic") {
		t.Errorf("ingot with a wrong password: %v", err)
	}
	if out, err := ingot(t, env("one"), "node", "manage", "n1"); err != nil {
		t.Errorf("ingot node manage: %s, %v", out, err)
	}
	login := map[string]string{"Authorization": basic("alice", "one")}
	if _, _, body := p.Ask("GET", "/v1/nodes/n1/history?detail=true", "", login); !strings.Contains(body,
		`"user":"alice"`) {
		t.Errorf("history does not say who asked: %s", body)
	}
	if !strings.Contains(p.Log.String(), "user=alice") {
		t.Error("the log does not say who asked")
	}
	users("alice", "two", "bob", "three")
	ingotd.Wait(t, "the new password counts", func() bool {
		status, _, _ := p.Ask("GET", "/v1/nodes", "", map[string]string{"Authorization": basic("bob", "three")})
		return status == 200
	})
	if status, _, _ := p.Ask("GET", "/v1/nodes", "", login); status != 401 {
		t.Errorf("the old password = %d", status)
	}
}

func basic(name, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(name, password)
	return r.Header.Get("Authorization")
}

// identity is a Keystone: the one for tests, or a real one.
type identity interface {
	Address() string // with /v3
	AddUser(name, password string)
	Project(name string) (id string)
	Grant(user, project string, roles ...string) // project "" is the system
	AddEndpoint(kind, url string)
	SetPassword(user, password string)
}

type simulated struct{ *keystonetest.Server }

func (s simulated) Address() string { return s.URL + "/v3" }

// TestKeystone is the same against a Keystone for tests and, with INGOT_FULL, against a real one from Debian's
// packages.
func TestKeystone(t *testing.T) {
	kinds := map[string]func(*testing.T) identity{"simulated": func(t *testing.T) identity {
		s := keystonetest.Start(t)
		s.TokenLife(15 * time.Second)
		return simulated{s}
	}}
	if os.Getenv("INGOT_FULL") != "" {
		kinds["real"] = func(t *testing.T) identity { return startKeystone(t) }
	}
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) { walkKeystone(t, start(t)) })
	}
}

// tokenLife is how long tokens of the real Keystone live: longer than a command takes on a busy machine, short enough
// to wait for.
const tokenLife = 45 * time.Second

func walkKeystone(t *testing.T, ks identity) {
	addr := kit.FreeAddr(t)
	ks.AddEndpoint("baremetal", "http://"+addr)
	ks.AddUser("ingot", "own")
	ks.Grant("ingot", "service", "service")
	web, shop := ks.Project("web"), ks.Project("shop")
	for _, u := range []struct {
		name, project string
		roles         []string
	}{
		{"root", "", []string{"admin", "member", "reader"}}, {"auditor", "", []string{"reader"}},
		{"olga", "web", []string{"admin", "member", "reader"}}, {"otto", "web", []string{"member", "reader"}},
		{"rita", "web", []string{"reader"}}, {"leo", "shop", []string{"admin", "member", "reader"}},
		{"lena", "shop", []string{"member", "reader"}}, {"eve", "other", []string{"admin", "member", "reader"}},
		{"norole", "web", nil},
	} {
		ks.AddUser(u.name, "pw of "+u.name)
		if len(u.roles) > 0 {
			ks.Grant(u.name, u.project, u.roles...)
		}
	}
	p := ingotd.Start(t, addr, "api.auth=keystone", "api.keystone.auth_url="+strings.TrimSuffix(ks.Address(), "/v3"),
		"api.keystone.username=ingot", "api.keystone.password=own", "api.keystone.cache_time=1s")

	home := map[string]string{"root": "", "auditor": "", "olga": "web", "otto": "web", "rita": "web", "leo": "shop",
		"lena": "shop", "eve": "other"}
	as := func(user string) map[string]string {
		t.Helper()
		return map[string]string{"X-Auth-Token": getToken(t, ks.Address(), user, "pw of "+user, home[user])}
	}
	want := func(user string, status int, method, path, body string) string {
		t.Helper()
		got, _, out := p.Ask(method, path, body, as(user))
		if got != status {
			t.Errorf("%s: %s %s = %d %s, want %d", user, method, path, got, out, status)
		}
		return out
	}

	// No token, and invalid ones.
	for _, h := range []map[string]string{nil, {"X-Auth-Token": "nonsense"},
		{"X-Auth-Token": getToken(t, ks.Address(), "norole", "pw of norole", keystone.Unscoped)}} {
		status, header, body := p.Ask("GET", "/v1/nodes", "", h)
		if h["X-Auth-Token"] == "" || h["X-Auth-Token"] == "nonsense" {
			if status != 401 || !strings.HasPrefix(header.Get("Www-Authenticate"), `Keystone uri="http://127.0.0.1`) {
				t.Errorf("%v: %d %v %s", h, status, header, body)
			}
		} else if status != 403 {
			t.Errorf("a token without a project: %d %s", status, body)
		}
	}
	if status, _, _ := p.Ask("GET", "/v1", "", nil); status != 200 {
		t.Errorf("the version document = %d", status)
	}

	// The system's administrator, a project's own machine, and a lease.
	want("root", 201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"sys"}`)
	var mine struct{ UUID, Owner string }
	if err := json.Unmarshal([]byte(want("olga", 201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"mine"}`)),
		&mine); err != nil || mine.Owner != web {
		t.Errorf("a project's new node: %+v, %v; want owner %s", mine, err, web)
	}
	want("otto", 200, "PATCH", "/v1/nodes/mine", `[{"op":"add","path":"/lessee","value":"`+shop+`"}]`)
	names := func(user string) string {
		var out struct{ Nodes []struct{ Name string } }
		if err := json.Unmarshal([]byte(want(user, 200, "GET", "/v1/nodes", "")), &out); err != nil {
			t.Fatal(err)
		}
		var ns []string
		for _, n := range out.Nodes {
			ns = append(ns, n.Name)
		}
		return strings.Join(ns, " ")
	}
	for user, sees := range map[string]string{"root": "sys mine", "auditor": "sys mine", "olga": "mine", "rita": "mine",
		"leo": "mine", "eve": ""} {
		if got := names(user); got != sees {
			t.Errorf("%s sees %q, want %q", user, got, sees)
		}
	}
	for _, c := range []struct {
		user, method, path, body string
		status                   int
	}{
		{"auditor", "PATCH", "/v1/nodes/sys", `[{"op":"add","path":"/extra/a","value":1}]`, 403},
		{"auditor", "GET", "/v1/drivers", "", 200},
		{"olga", "GET", "/v1/drivers", "", 403},
		{"olga", "GET", "/v1/nodes/sys", "", 404},
		{"olga", "PATCH", "/v1/nodes/mine", `[{"op":"add","path":"/driver_info/a","value":1}]`, 200},
		{"rita", "GET", "/v1/nodes/mine", "", 200},
		{"rita", "PATCH", "/v1/nodes/mine", `[{"op":"add","path":"/extra/a","value":1}]`, 403},
		{"leo", "PATCH", "/v1/nodes/mine", `[{"op":"add","path":"/driver_info/a","value":1}]`, 403},
		{"leo", "PATCH", "/v1/nodes/mine", `[{"op":"add","path":"/instance_info/a","value":1}]`, 200},
		{"lena", "PATCH", "/v1/nodes/mine", `[{"op":"add","path":"/extra/a","value":1}]`, 200},
		{"lena", "PUT", "/v1/nodes/mine/states/provision", `{"target":"manage"}`, 403},
		{"leo", "DELETE", "/v1/nodes/mine", "", 403},
		{"eve", "GET", "/v1/nodes/mine", "", 404},
		{"eve", "DELETE", "/v1/nodes/mine", "", 404},
		{"leo", "PUT", "/v1/nodes/mine/states/provision", `{"target":"manage"}`, 202},
	} {
		want(c.user, c.status, c.method, c.path, c.body)
	}
	if out := want("leo", 200, "GET", "/v1/nodes/mine", ""); !strings.Contains(out,
		"Redacted - requires baremetal:node:get:driver_info") {
		t.Errorf("a lessee sees %s", out)
	}
	ingotd.Wait(t, "the node is manageable", func() bool {
		return strings.Contains(want("olga", 200, "GET", "/v1/nodes/mine/states", ""), `"provision_state":"manageable"`)
	})
	if out := want("olga", 200, "GET", "/v1/nodes/mine/history?detail=true", ""); !strings.Contains(out,
		`"user":"leo (project shop)"`) {
		t.Errorf("history does not say who asked: %s", out)
	}

	// Other clients, which discover the endpoints by themselves.
	env := func(user string) []string {
		e := []string{"OS_AUTH_URL=" + ks.Address(), "OS_USERNAME=" + user, "OS_PASSWORD=pw of " + user,
			"OS_USER_DOMAIN_NAME=Default", "OS_IDENTITY_API_VERSION=3"}
		if home[user] == "" {
			return append(e, "OS_SYSTEM_SCOPE=all")
		}
		return append(e, "OS_PROJECT_NAME="+home[user], "OS_PROJECT_DOMAIN_NAME=Default")
	}
	client := openstack.Start(t)
	for user, sees := range map[string]string{"root": "sys mine", "leo": "mine"} {
		if out, _, err := client.Run(env(user), "baremetal", "node", "list", "-f", "value", "-c", "Name"); err != nil ||
			strings.Join(strings.Fields(out), " ") != sees {
			t.Errorf("openstack as %s sees %q, %v, want %q", user, out, err, sees)
		}
		if out, err := ingot(t, env(user), "node", "list"); err != nil ||
			strings.Contains(out, "sys") != strings.Contains(sees, "sys") || !strings.Contains(out, "mine") {
			t.Errorf("ingot as %s: %s, %v", user, out, err)
		}
	}
	if _, _, err := client.Run(env("eve"), "baremetal", "node", "show", "mine"); err == nil ||
		!strings.Contains(err.Error(), "could not be found") {
		t.Errorf("openstack as a stranger: %v", err)
	}
	if _, _, err := client.Run(env("leo"), "baremetal", "node", "set", "mine", "--driver-info", "a=b"); err == nil ||
		!strings.Contains(err.Error(), "403") {
		t.Errorf("openstack as a lessee changes driver_info: %v", err)
	}
	out, err := ingot(t, []string{"OS_TOKEN=" + as("rita")["X-Auth-Token"], "OS_ENDPOINT=" + p.URL}, "node", "list")
	if err != nil || !strings.Contains(out, "mine") {
		t.Errorf("ingot with a token: %s, %v", out, err)
	}

	// Tokens end: revoked, by their own time, and with the password.
	gone := func(what string, h map[string]string) {
		t.Helper()
		ingotd.Wait(t, what, func() bool { status, _, _ := p.Ask("GET", "/v1/nodes", "", h); return status == 401 })
	}
	good := func(h map[string]string) {
		t.Helper()
		if status, _, body := p.Ask("GET", "/v1/nodes", "", h); status != 200 {
			t.Fatalf("a good token = %d %s", status, body)
		}
	}
	old := as("rita")
	good(old)
	revoked := as("olga")
	good(revoked)
	if err := keystone.Revoke(t.Context(), ks.Address(), revoked["X-Auth-Token"]); err != nil {
		t.Fatal(err)
	}
	gone("a revoked token is refused", revoked)
	gone("a token that has ended is refused", old)
	fired := as("otto")
	good(fired)
	ks.SetPassword("otto", "another")
	gone("a token is refused after the password has changed", fired)
	// The server's own token has ended meanwhile too, and it went on.
	want("root", 200, "GET", "/v1/nodes/sys", "")
}

// getToken logs in to Keystone.
func getToken(t *testing.T, url, user, password, scope string) string {
	t.Helper()
	token, err := keystone.Token(t.Context(), url, user, password, scope)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// debianKeystone is a Keystone of Debian's, for tests.
type debianKeystone struct {
	t *testing.T
	*keystone.Server
}

func startKeystone(t *testing.T) debianKeystone {
	t.Helper()
	begun := time.Now()
	s, err := keystone.Start(t.Context(), unpack(t, keystone.Package), t.TempDir(), tokenLife)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	t.Logf("Keystone was up after %v", time.Since(begun).Round(time.Second))
	return debianKeystone{t, s}
}

func (r debianKeystone) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r debianKeystone) Address() string { return r.URL }

func (r debianKeystone) AddUser(name, password string) {
	r.t.Helper()
	r.must(r.Server.AddUser(r.t.Context(), name, password))
}

func (r debianKeystone) Project(name string) string {
	r.t.Helper()
	id, err := r.Server.Project(r.t.Context(), name)
	r.must(err)
	return id
}

func (r debianKeystone) Grant(user, project string, roles ...string) {
	r.t.Helper()
	r.must(r.Server.Grant(r.t.Context(), user, project, roles...))
}

func (r debianKeystone) AddEndpoint(kind, url string) {
	r.t.Helper()
	r.must(r.Server.AddEndpoint(r.t.Context(), kind, url))
}

func (r debianKeystone) SetPassword(user, password string) {
	r.t.Helper()
	r.must(r.Server.SetPassword(r.t.Context(), user, password))
}
