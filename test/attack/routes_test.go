package attack

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// personas are the columns of the table of access that the people of a world stand in, when "web" owns a node and
// "shop" leases it.
var personas = map[string]string{root: "system admin", auditor: "system reader", olga: "owner admin",
	otto: "owner member", rita: "owner reader", leo: "lessee admin", lena: "lessee member", nina: "stranger admin",
	eve: "stranger admin", mel: "stranger member", zoe: "without a role"}

// publicRoutes are the routes without authentication, with the tests that attack them. All others are attacked by
// TestEveryRoute.
var publicRoutes = map[string][]string{
	"GET /":                             {"test/attack.TestLinksDoNotCopyTheHost"},
	"GET /v1":                           {"test/attack.TestLinksDoNotCopyTheHost"},
	"GET /openapi.json":                 {"conductor/api.TestDescriptionSaysNothingOfTheSite"},
	"GET /ingot/v1/health":              {"test/attack.TestPageErrorAtRunTime"},
	"GET /ingot/v1/phone_home/{token}":  {"conductor/api.TestPhoneHome", "conductor/app.TestPhoneHomeKey"},
	"POST /ingot/v1/phone_home/{token}": {"test/attack.TestAnonymousBodies", "test/attack.TestHalfSentRequests"},
	"POST /v1/continue_inspection":      {"test/attack.TestAnonymousBodies", "test/attack.TestHalfSentRequests"},
	"POST /v1/heartbeat/{node}": {"test/attack.TestAnonymousBodies",
		"test/attack.TestEscapeSequencesAreCleaned"},
	"GET /v1/lookup": {"test/attack.TestLookupShowsNoInstance"},
}

// largeBodies are the routes whose bodies may be larger than 1 MiB.
var largeBodies = map[string]int64{"PUT /v1/nodes/{node}/states/provision": 65 << 20}

// route is a line of the table of access.
type route struct {
	method, path string
	public       bool
	may          map[string]byte // by persona: +, ?, - or .
}

func (r route) String() string { return r.method + " " + r.path }

// routes reads the table of access, which a test of conductor/api holds to be that of all routes.
func routes(t *testing.T) (list []route) {
	t.Helper()
	b, err := os.ReadFile("../../conductor/api/testdata/access.golden")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if head, ok := strings.CutPrefix(line, "# "); ok {
			if i >= 2 { // the first two say what it is
				names = append(names, strings.TrimLeft(head, "| "))
			}
			continue
		}
		marks, rest, _ := strings.Cut(line, "  ")
		words := strings.Fields(rest)
		marks = strings.ReplaceAll(marks, " ", "")
		if len(words) != 3 || len(marks) != len(names) {
			t.Fatalf("the table of access has a line %q, with %d columns, not %d", line, len(marks), len(names))
		}
		r := route{method: words[0], path: words[1], public: words[2] == "public", may: map[string]byte{}}
		for i, name := range names {
			r.may[name] = marks[i]
		}
		list = append(list, r)
	}
	return list
}

// TestEveryRoute attacks each route that there is as everybody: without a token and with one that is none, before a
// large body is read; with a wrong password; as those that the table of access refuses; as a reader where readers may
// not write; and with a body that is too large.
func TestEveryRoute(t *testing.T) {
	w := newWorld(t)
	id := w.node("canary-node",
		`"description":"canary-text","resource_class":"canary-class","extra":{"a":"canary-extra"}`)
	made := func(path, body string) string {
		return w.uuid(w.want(201, root, "POST", path, body))
	}
	values := map[string]string{"node": id,
		"port": made("/v1/ports",
			`{"node_uuid":"`+id+`","address":"52:54:00:ca:fe:01","extra":{"a":"canary-port"}}`),
		"portgroup": made("/v1/portgroups", `{"node_uuid":"`+id+`","name":"canary-group"}`),
		"connector": made("/v1/volume/connectors",
			`{"node_uuid":"`+id+`","type":"ip","connector_id":"canary-connector"}`),
		"target": made("/v1/volume/targets",
			`{"node_uuid":"`+id+`","boot_index":0,"volume_id":"canary-volume","volume_type":"iscsi"}`)}
	w.lease(id, "shop")
	before := w.want(200, root, "GET", "/v1/nodes/"+id, "", newest...)

	htpasswd := filepath.Join(t.TempDir(), "htpasswd")
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(htpasswd, []byte("alice:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	basic := ingotd.Start(t, kit.FreeAddr(t), "api.auth=http_basic", "api.htpasswd_file="+htpasswd)

	checked, refused, large := 0, 0, 0
	for _, r := range routes(t) {
		if tests := publicRoutes[r.String()]; r.public != (len(tests) > 0) {
			t.Errorf("%s is public: %v, with attacks of its own: %v; a public route needs them in publicRoutes, and another has none", r, r.public, tests)
		}
		if r.public {
			continue
		}
		checked++
		path := r.path
		for name, value := range values {
			path = strings.ReplaceAll(path, "{"+name+"}", value)
		}
		path = strings.NewReplacer("{", "", "}", "").Replace(path) // what no value is for is not there

		for _, token := range []string{"", "X-Auth-Token: nonsense\r\n", "Authorization: Basic YWxpY2U6d3Jvbmc=\r\n"} {
			if got := w.unsent(r.method, path, token); got != 401 {
				// each takes its time
				t.Fatalf("%s with %q and a body that never comes = %d, want 401 at once", r, token, got)
			}
		}
		if got, h, _ := basic.Ask(r.method, path, "",
			map[string]string{"Authorization": "Basic YWxpY2U6d3Jvbmc="}); got != 401 && (got != 429 ||
			h.Get("Retry-After") == "") {
			t.Errorf("%s with a wrong password = %d, want 401, or 429 with a time", r, got)
		}
		for who, persona := range personas {
			mark, change := r.may[persona], r.method != "GET"
			reader := who == auditor || who == rita
			// those may; the stream has no end
			if change && mark != '-' && mark != '.' && !reader || r.path == "/ingot/v1/events" && mark == '+' {
				continue
			}
			got, _, out := w.ask(who, r.method, path, `{"x":"y"}`, newest...)
			switch mark {
			case '-', '.':
				refused++
				if want := map[byte]int{'-': 403, '.': 404}[mark]; got != want {
					t.Errorf("%s (%s): %s = %d %.300s, want %d", who, persona, r, got, out, want)
				}
			default:
				if change && got < 400 || got == 401 || got >= 500 && got != 501 {
					t.Errorf("%s (%s): %s = %d %.300s", who, persona, r, got, out)
				}
			}
			if strings.HasPrefix(persona, "stranger") || persona == "without a role" {
				w.absent(who+": "+r.String(), out, "canary", "52:54:00:ca:fe:01")
			}
		}
		if r.method != "GET" {
			large++
			size := int64(1 << 20)
			if l := largeBodies[r.String()]; l > 0 {
				size = l
			}
			if got := w.large(r.method, path, size+1); got != 413 {
				t.Errorf("%s with %d bytes = %d, want 413", r, size+1, got)
			}
		}
	}
	if checked < 140 || refused < 800 || large < 60 {
		t.Errorf("%d routes, %d refusals and %d large bodies: the table of access is not what it was", checked, refused,
			large)
	}
	if after := w.want(200, root, "GET", "/v1/nodes/"+id, "", newest...); after != before {
		t.Errorf("after all attacks the node is\n%s\nwas\n%s", after, before)
	}
	if got, _, out := basic.Ask("GET", "/v1/nodes", "", nil); got != 401 {
		t.Errorf("anonymous = %d %s", got, out)
	}
}

// unsent sends the head of a request with a large body, and nothing of the body. It gives the status of the answer.
func (w *world) unsent(method, path, header string) int {
	w.Helper()
	return w.raw(fmt.Sprintf(
		"%s %s HTTP/1.1\r\nHost: x\r\nX-OpenStack-Ironic-API-Version: latest\r\n%sContent-Length: 9000000\r\n\r\n",
		method, path, header))
}

// spaces is JSON that goes on and on.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// large sends a body of a size as the administrator of the system. It gives the status of the answer.
func (w *world) large(method, path string, size int64) int {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, w.d.URL+path, io.LimitReader(spaces{}, size))
	if err != nil {
		w.Fatal(err)
	}
	req.ContentLength = size
	req.Header.Set("X-Auth-Token", w.tokens[root])
	req.Header.Set(newest[0], newest[1])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
