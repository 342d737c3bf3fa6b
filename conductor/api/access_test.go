package api

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

var updateAccess = flag.Bool("update-access", false, "write testdata/access.golden anew")

// personas are everybody there is: a role, held somewhere.
func personas() []struct {
	name string
	who  access.Actor
} {
	type persona = struct {
		name string
		who  access.Actor
	}
	var ps []persona
	for _, where := range []struct {
		name string
		who  access.Actor
	}{
		{"system", access.Actor{System: true}}, {"owner", access.Actor{ProjectID: "owner"}},
		{"lessee", access.Actor{ProjectID: "lessee"}}, {"stranger", access.Actor{ProjectID: "stranger"}},
	} {
		for _, r := range []access.Role{access.Admin, access.Manager, access.Member, access.Reader} {
			who := where.who
			who.Role, who.UserName = r, r.String()
			ps = append(ps, persona{where.name + " " + r.String(), who})
		}
		who := where.who
		who.Service, who.UserName = true, "service"
		ps = append(ps, persona{where.name + " service", who})
	}
	return append(ps,
		persona{"trusted service", access.Actor{ProjectID: "services", Service: true, Trusted: true, UserName: "nova"}},
		persona{"without a role", access.Actor{ProjectID: "owner", UserName: "x"}},
		persona{"without a project", access.Actor{Role: access.Admin, UserName: "x"}})
}

// as makes the fixture's requests come from somebody.
func (f *fixture) as(who access.Actor) *fixture {
	f.srv.cfg.Authenticate = func(*http.Request) (*access.Actor, error) { return &who, nil }
	return f
}

const (
	ownedNode = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	otherNode = "2ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	ownedPort = "3ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	otherPort = "4ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	// Port groups, volume connectors and targets each:
	ownedPart = "10000000-4f76-4e73-9c2f-fbb5eab89770"
	otherPart = "20000000-4f76-4e73-9c2f-fbb5eab89770"
)

func accessFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, Config{},
		node.Node{UUID: ownedNode, Name: "owned", Owner: "owner", Lessee: "lessee", Provision: node.Available,
			Driver: "fake-hardware", LastError: "10.0.0.1 is down",
			DriverInfo: map[string]any{"ipmi_address": "10.0.0.1"}},
		node.Node{UUID: otherNode, Name: "other", Provision: node.Available, Driver: "fake-hardware"})
	for id, owner := range map[string]string{ownedPort: ownedNode, otherPort: otherNode} {
		p := &node.Port{UUID: id, NodeUUID: owner, Address: "52:54:00:00:00:0" + id[:1]}
		if err := f.st.CreatePort(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for _, of := range []string{ownedNode, otherNode} {
		h := node.Head{UUID: strings.Replace(of, "ef6a2f6", "0000000", 1), NodeUUID: of}
		err := errors.Join(f.st.Portgroups().Create(t.Context(), &node.Portgroup{Head: h}),
			f.st.VolumeConnectors().Create(t.Context(), &node.VolumeConnector{Head: h, Type: "ip", ConnectorID: of}),
			f.st.VolumeTargets().Create(t.Context(),
				&node.VolumeTarget{Head: h, Properties: map[string]any{"target_portal": "10.0.0.2"}}))
		if err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestEveryRouteForEverybody walks all routes with all roles. What comes out is read in review: testdata/access.golden.
func TestEveryRouteForEverybody(t *testing.T) {
	f := accessFixture(t)
	values := map[string]string{"node": ownedNode, "port": ownedPort, "portgroup": ownedPart, "connector": ownedPart,
		"target": ownedPart}
	var b strings.Builder
	b.WriteString("# Who gets through to which route, for a node that a project owns and another leases. Made by go test -update-access.\n")
	b.WriteString("# + may, ? may by what the body or the query says (the handler asks again), - may not (403), . sees nothing there (404)\n")
	ps := personas()
	for i, p := range ps {
		fmt.Fprintf(&b, "# %s%s\n", strings.Repeat("||||| ", i/5)+strings.Repeat("|", i%5), p.name)
	}
	table := f.srv.table()
	slices.SortFunc(table, func(x, y call.Route) int {
		return strings.Compare(x.Path+" "+x.Method, y.Path+" "+y.Method)
	})
	for _, rt := range table {
		line := rt.Method + " " + rt.Path
		if rt.Access == call.Public {
			fmt.Fprintf(&b, "%s  %s  public\n",
				strings.TrimSpace(strings.Repeat("+++++ ", len(ps)/5)+strings.Repeat("+", len(ps)%5)), line)
			continue
		}
		r := rulingOf(&rt)
		for i, p := range ps {
			if i > 0 && i%5 == 0 {
				b.WriteString(" ") // the next project
			}
			c := &call.Call{Request: httptest.NewRequest(rt.Method, "/", nil), Version: rest.MaxVersion,
				Path: map[string]string{}, Actor: &p.who}
			for seg := range strings.SplitSeq(rt.Path, "/") {
				if name, ok := strings.CutPrefix(seg, "{"); ok {
					name = strings.TrimSuffix(name, "}")
					c.Path[name] = values[name]
				}
			}
			err := f.srv.admit(t.Context(), c, &rt)
			var status int
			if err != nil {
				status = f.srv.translate(err, c, "").Status
			}
			switch {
			case status == 0 && r.inBody:
				b.WriteString("?")
			case status == 0:
				b.WriteString("+")
			case status == http.StatusForbidden:
				b.WriteString("-")
			case status == http.StatusNotFound:
				b.WriteString(".")
			default:
				t.Errorf("%s for %s: %v", line, p.name, err)
			}
		}
		fmt.Fprintf(&b, "  %s  %s\n", line, r.rule)
	}
	path := filepath.Join("testdata", "access.golden")
	if *updateAccess {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("who may do what has changed; think about each line, then run go test ./conductor/api -run EveryRoute -update-access (-was +is):\n%s", diff)
	}
}

// TestRulingsHaveRoutes keeps the table of rulings free of what is no longer there or is misspelt.
func TestRulingsHaveRoutes(t *testing.T) {
	have := map[string]bool{}
	for _, rt := range (&Server{}).table() {
		have[rt.Method+" "+rt.Path] = true
	}
	known := access.Rules()
	for line, r := range rulings {
		if !have[line] {
			t.Errorf("there is no route %s", line)
		}
		if !slices.Contains(known, r.rule) {
			t.Errorf("%s: there is no rule %q", line, r.rule)
		}
	}
}

// TestAnonymousIsRefused sends a request to every route, and to addresses that don't exist, without authentication.
func TestAnonymousIsRefused(t *testing.T) {
	f := accessFixture(t)
	asked := 0
	f.srv.cfg.Authenticate = func(*http.Request) (*access.Actor, error) {
		asked++
		return nil, &access.Refusal{Status: 401, Message: "Authorization required",
			Challenge: `Basic realm="Baremetal API"`}
	}
	do := func(method, path string) *httptest.ResponseRecorder {
		asked = 0
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader("{")))
		return w
	}
	table := append(f.srv.table(), call.Route{Method: "GET", Path: "/v1/nothing"},
		call.Route{Method: "TRACE", Path: "/v1/nodes"})
	for _, rt := range table {
		w := do(rt.Method, strings.NewReplacer("{", "", "}", "").Replace(rt.Path))
		if rt.Access == call.Public {
			if w.Code == 401 || asked != 0 {
				t.Errorf("%s %s = %d, authenticated %d times", rt.Method, rt.Path, w.Code, asked)
			}
			continue
		}
		if w.Code != 401 || asked != 1 || w.Header().Get("WWW-Authenticate") != `Basic realm="Baremetal API"` ||
			w.Body.String() != `{"error":{"message":"Authorization required","code":401}}` ||
			w.Header().Get(rest.VersionHeader) != "" {
			t.Errorf("%s %s = %d %v %s, asked %d times", rt.Method, rt.Path, w.Code, w.Header(), w.Body, asked)
		}
	}
	f.srv.cfg.Authenticate = func(*http.Request) (*access.Actor, error) {
		return nil, &access.Refusal{Status: 503, Message: "Keystone does not answer."}
	}
	if w := do("GET", "/v1/nodes"); w.Code != 503 || !strings.Contains(w.Body.String(), "Keystone does not answer.") {
		t.Errorf("a dead Keystone = %d %s", w.Code, w.Body)
	}
	for _, a := range []*access.Actor{nil, {}} {
		f.srv.cfg.Authenticate = func(*http.Request) (*access.Actor, error) { return a, nil }
		if w := do("GET", "/v1/nodes"); w.Code < 400 {
			t.Errorf("an unauthenticated request got %d", w.Code)
		}
	}
}

// TestSeeing holds what sees whom: the rules for objects as requests meet them.
func TestSeeing(t *testing.T) {
	f := accessFixture(t)
	var (
		system  = access.Actor{UserName: "sys", System: true, Role: access.Reader}
		owner   = access.Actor{UserName: "olga", ProjectID: "owner", Role: access.Admin}
		lessee  = access.Actor{UserName: "leo", ProjectID: "lessee", Role: access.Member}
		strange = access.Actor{UserName: "eve", ProjectID: "stranger", Role: access.Admin}
	)
	names := func(path, list, key string) string {
		var got []string
		for _, o := range f.want(200, "GET", path, "")[list].([]any) {
			got = append(got, fmt.Sprint(o.(map[string]any)[key]))
		}
		return strings.Join(got, " ")
	}
	for _, c := range []struct {
		who          access.Actor
		nodes, ports string
	}{
		{system, "owned other", ownedPort + " " + otherPort}, {owner, "owned", ownedPort}, {lessee, "owned", ownedPort},
		{strange, "", ""},
	} {
		f.as(c.who)
		for _, path := range []string{"/v1/nodes", "/v1/nodes/detail", "/v1/nodes?fields=name"} {
			if got := names(path, "nodes", "name"); got != c.nodes {
				t.Errorf("%s: GET %s = %q, want %q", c.who.UserName, path, got, c.nodes)
			}
		}
		got := strings.Fields(names("/v1/ports", "ports", "uuid"))
		slices.Sort(got)
		if strings.Join(got, " ") != c.ports {
			t.Errorf("%s sees ports %v, want %q", c.who.UserName, got, c.ports)
		}
	}
	f.as(strange)
	gone := f.want(404, "GET", "/v1/nodes/"+unknownUUID, "")
	hidden := f.want(404, "GET", "/v1/nodes/"+ownedNode, "")
	if strings.ReplaceAll(fmt.Sprint(hidden), ownedNode, unknownUUID) != fmt.Sprint(gone) {
		t.Errorf("a hidden node is told apart from one that is not there: %v, %v", hidden, gone)
	}
	for _, call := range []string{"GET /v1/nodes/owned", "PATCH /v1/nodes/owned", "DELETE /v1/nodes/owned",
		"PUT /v1/nodes/owned/states/power", "GET /v1/nodes/validate?node_uuid=" + ownedNode,
		"GET /v1/ports/" + ownedPort, "DELETE /v1/ports/" + ownedPort, "GET /v1/ports?node=owned",
		"GET /v1/nodes?marker=" + ownedNode} {
		method, path, _ := strings.Cut(call, " ")
		f.want(404, method, path, "")
	}
	f.want(403, "GET", "/v1/nodes?project=owner", "")
	f.want(403, "GET", "/v1/volume", "")
	chassis := f.as(access.Actor{UserName: "root", System: true, Role: access.Admin}).make("/v1/chassis", `{}`)
	f.want(200, "PATCH", "/v1/nodes/owned", `[{"op":"add","path":"/chassis_uuid","value":"`+chassis+`"}]`)
	for who, want := range map[*access.Actor]string{&owner: "owned", &strange: ""} {
		f.as(*who)
		if got := names("/v1/chassis/"+chassis+"/nodes", "nodes", "name"); got != want {
			t.Errorf("%s: nodes of the chassis = %q, want %q", who.UserName, got, want)
		}
	}
	for _, role := range []access.Role{access.Reader, access.None} {
		f.as(access.Actor{UserName: "rita", ProjectID: "stranger", Role: role})
		f.want(404, "GET", "/v1/nodes/validate?node_uuid="+ownedNode, "")
	}
	f.as(strange)
	f.want(400, "POST", "/v1/ports", `{"node_uuid":"`+ownedNode+`","address":"52:54:00:00:00:09"}`)

	f.as(lessee)
	out := f.want(200, "GET", "/v1/nodes/owned", "")
	for _, field := range []string{"last_error", "reservation", "driver_info", "driver_internal_info"} {
		if !strings.Contains(fmt.Sprint(out[field]), "Redacted") {
			t.Errorf("a lessee sees %s = %v", field, out[field])
		}
	}
	if st := f.want(200, "GET", "/v1/nodes/owned/states", ""); strings.Contains(fmt.Sprint(st), "10.0.0.1") {
		t.Errorf("a lessee sees states %v", st)
	}
	if p := f.want(200, "GET", "/ingot/v1/nodes/owned/progress", ""); strings.Contains(fmt.Sprint(p), "10.0.0.1") {
		t.Errorf("a lessee sees progress %v", p)
	}
	f.want(404, "GET", "/v1/nodes/other", "")
	f.want(403, "GET", "/v1/nodes/owned/history", "")
	f.as(owner)
	if out := f.want(200, "GET", "/v1/nodes/owned", ""); out["last_error"] != "10.0.0.1 is down" ||
		!strings.Contains(fmt.Sprint(out["driver_info"]), "10.0.0.1") {
		t.Errorf("an owner sees %v, %v", out["last_error"], out["driver_info"])
	}
}

const unknownUUID = "9ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"

// TestChanging holds who may change which attribute.
func TestChanging(t *testing.T) {
	f := accessFixture(t)
	in := func(project string, r access.Role) access.Actor { return access.Actor{ProjectID: project, Role: r} }
	system := func(r access.Role) access.Actor { return access.Actor{System: true, Role: r} }
	patch := func(path string, v string) string {
		return `[{"op":"add","path":"/` + path + `","value":` + v + `}]`
	}
	for _, c := range []struct {
		path, value string
		may         []access.Actor
		not         []access.Actor
	}{
		{"extra/a", "1", []access.Actor{in("lessee", access.Member), in("owner", access.Member), system(access.Member)},
			[]access.Actor{in("lessee", access.Reader), system(access.Reader)}},
		{"instance_info/a", "1", []access.Actor{in("lessee", access.Manager), in("owner", access.Member)},
			[]access.Actor{in("lessee", access.Member), in("owner", access.Reader)}},
		{"driver_info/a", "1", []access.Actor{in("owner", access.Member), system(access.Member)},
			[]access.Actor{in("lessee", access.Admin), in("owner", access.Reader)}},
		{"properties/a", "1", []access.Actor{in("owner", access.Member)}, []access.Actor{in("lessee", access.Admin)}},
		{"name", `"owned"`, []access.Actor{in("owner", access.Member)}, []access.Actor{in("lessee", access.Admin)}},
		{"resource_class", `"x"`, []access.Actor{in("owner", access.Member)},
			[]access.Actor{in("lessee", access.Admin)}},
		{"lessee", `"lessee"`, []access.Actor{in("owner", access.Member)}, []access.Actor{in("lessee", access.Admin)}},
		{"owner", `"owner"`, []access.Actor{system(access.Member)},
			[]access.Actor{in("owner", access.Admin), in("lessee", access.Admin)}},
		{"conductor_group", `""`, []access.Actor{system(access.Member)}, []access.Actor{in("owner", access.Admin)}},
		{"shard", `"s"`, []access.Actor{system(access.Admin)},
			[]access.Actor{system(access.Member), in("owner", access.Admin)}},
		{"boot_interface", "null", []access.Actor{in("owner", access.Manager), system(access.Member)},
			[]access.Actor{in("owner", access.Member), in("lessee", access.Admin)}},
		{"automated_clean", "false", []access.Actor{system(access.Admin)},
			[]access.Actor{system(access.Member), in("owner", access.Admin)}},
		{"automated_clean", "true", []access.Actor{in("owner", access.Member)},
			[]access.Actor{in("lessee", access.Admin)}},
		{"maintenance", "false", []access.Actor{in("lessee", access.Manager), in("owner", access.Member)},
			[]access.Actor{in("lessee", access.Member)}},
		{"description", `"d"`, []access.Actor{in("lessee", access.Member), in("owner", access.Member)},
			[]access.Actor{in("lessee", access.Reader)}},
	} {
		for _, who := range c.may {
			if code, out := f.as(who).call("PATCH", "/v1/nodes/owned", patch(c.path, c.value)); code != 200 {
				t.Errorf("%+v changes %s: %d %v", who, c.path, code, out)
			}
		}
		for _, who := range c.not {
			if code, out := f.as(who).call("PATCH", "/v1/nodes/owned", patch(c.path, c.value)); code != 403 {
				t.Errorf("%+v changes %s: %d %v, want 403", who, c.path, code, out)
			}
		}
	}
	// One attribute that may not be changed refuses all of them.
	f.as(in("lessee", access.Member)).want(403, "PATCH", "/v1/nodes/owned",
		`[{"op":"add","path":"/extra/b","value":1},{"op":"add","path":"/driver_info/b","value":1}]`)
	if n, err := f.st.Node(t.Context(), "owned"); err != nil || n.Extra["b"] != nil {
		t.Errorf("after a refused patch: %v, %v", n.Extra, err)
	}

	f.as(in("owner", access.Admin))
	out := f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"mine"}`)
	if out["owner"] != "owner" {
		t.Errorf("a project's new node is owned by %v", out["owner"])
	}
	f.want(400, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"theirs","owner":"stranger"}`)
	f.want(204, "DELETE", "/v1/nodes/mine", "")
	f.want(404, "DELETE", "/v1/nodes/other", "")
	f.as(in("owner", access.Manager)).want(403, "POST", "/v1/nodes", `{"driver":"fake-hardware"}`)
	f.as(in("lessee", access.Admin)).want(403, "DELETE", "/v1/nodes/owned", "")
	port := f.as(in("owner", access.Manager)).want(201, "POST", "/v1/ports",
		`{"node_uuid":"`+ownedNode+`","address":"52:54:00:00:00:09"}`)["uuid"].(string)
	f.want(400, "PATCH", "/v1/ports/"+port, `[{"op":"replace","path":"/node_uuid","value":"`+otherNode+`"}]`)
	f.as(in("lessee", access.Admin)).want(403, "POST", "/v1/ports",
		`{"node_uuid":"`+ownedNode+`","address":"52:54:00:00:00:0a"}`)
	f.want(403, "DELETE", "/v1/ports/"+port, "")
	f.as(in("lessee", access.Manager)).want(202, "PUT", "/v1/nodes/owned/states/provision", `{"target":"active"}`)
}

// TestLogSaysWhoAsked: each change has a line with who asked for it, and so has each attempt at what one may not do.
func TestLogSaysWhoAsked(t *testing.T) {
	f := accessFixture(t)
	var log bytes.Buffer
	f.srv.log = slog.New(slog.NewTextHandler(&log, nil))
	f.srv.hosts = newHosts([]string{"example.com"}) // as httptest calls it
	f.as(access.Actor{UserName: "olga", ProjectID: "owner", ProjectName: "web", Role: access.Member})
	f.want(200, "PATCH", "/v1/nodes/owned", `[{"op":"add","path":"/extra/a","value":"hush"}]`)
	f.want(403, "DELETE", "/v1/nodes/owned", "")
	f.want(200, "GET", "/v1/nodes", "")
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 ||
		!strings.Contains(lines[0], `user="olga (project web)" method=PATCH path=/v1/nodes/owned status=200`) ||
		!strings.Contains(lines[1], `user="olga (project web)" method=DELETE`) ||
		strings.Contains(log.String(), "hush") {
		t.Errorf("log = %s", log.String())
	}
}

func TestPublicURL(t *testing.T) {
	f := newFixture(t, Config{PublicURL: "https://ingot.example/bm"}, node.Node{Name: "a"}, node.Node{Name: "b"})
	out := f.want(200, "GET", "/v1/nodes?limit=1", "")
	if next, _ := out["next"].(string); !strings.HasPrefix(next, "https://ingot.example/bm/v1/nodes?") {
		t.Errorf("next = %q", next)
	}
}

func TestRamdisksCanBeShutOut(t *testing.T) {
	open := 0
	for _, shut := range []bool{false, true} {
		s := &Server{cfg: Config{NoRamdisk: shut}}
		n := 0
		for _, rt := range s.table() {
			if rt.Access == call.Public {
				n++
			}
		}
		if shut && (n != 6 || open < n) {
			t.Errorf("%d routes are public, want the two version documents, the description, health, and phone_home by GET and POST", n)
		}
		open = n
	}
}

// TestPartsOfNodesAreSeenAsTheNodesAre walks what belongs to nodes: lists, single ones, and making and changing them.
func TestPartsOfNodesAreSeenAsTheNodesAre(t *testing.T) {
	f := accessFixture(t)
	system := access.Actor{System: true, Role: access.Reader}
	in := func(project string, r access.Role) access.Actor { return access.Actor{ProjectID: project, Role: r} }
	for _, list := range []struct{ path, name string }{{"/v1/portgroups", "portgroups"},
		{"/v1/volume/connectors", "connectors"}, {"/v1/volume/targets", "targets"}} {
		for _, c := range []struct {
			who  access.Actor
			want string
		}{
			{system, ownedPart + " " + otherPart}, {in("owner", access.Reader), ownedPart},
			{in("lessee", access.Reader), ownedPart}, {in("stranger", access.Admin), ""},
		} {
			var got []string
			for _, o := range f.as(c.who).want(200, "GET", list.path, "")[list.name].([]any) {
				got = append(got, o.(map[string]any)["uuid"].(string))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("%+v: GET %s = %v, want %q", c.who, list.path, got, c.want)
			}
			for part, status := range map[string]int{ownedPart: 200, otherPart: 200} {
				if !strings.Contains(c.want, part) {
					status = 404
				}
				f.want(status, "GET", list.path+"/"+part, "")
			}
		}
		f.as(in("stranger", access.Admin))
		f.want(404, "PATCH", list.path+"/"+ownedPart, `[{"op":"add","path":"/extra/a","value":1}]`)
		f.want(404, "DELETE", list.path+"/"+ownedPart, "")
		f.want(404, "GET", list.path+"?node="+otherNode, "")
	}
	for _, c := range []struct {
		path, rest      string
		lessee, manager int // what a lessee's administrator and an owner's manager get
	}{
		{"/v1/portgroups", "", 403, 201}, {"/v1/volume/connectors", `,"type":"ip","connector_id":"%d"`, 201, 201},
		{"/v1/volume/targets", `,"volume_type":"iscsi","volume_id":"v","boot_index":%d`, 201, 201},
	} {
		n := 10
		body := func(of string) string {
			n++
			return `{"node_uuid":"` + of + `"` + strings.Replace(c.rest, "%d", fmt.Sprint(n), 1) + `}`
		}
		hidden, _ := f.as(in("stranger", access.Admin)).call("POST", c.path, body(ownedNode))
		gone, _ := f.call("POST", c.path, body(unknownUUID))
		if hidden != gone || hidden < 400 {
			t.Errorf("POST %s for a hidden node = %d, for none %d", c.path, hidden, gone)
		}
		code, out := f.as(in("lessee", access.Admin)).call("POST", c.path, body(ownedNode))
		if code != c.lessee {
			t.Errorf("a lessee: POST %s = %d %v, want %d", c.path, code, out, c.lessee)
		}
		f.as(in("lessee", access.Member)).want(403, "POST", c.path, body(ownedNode))
		f.as(in("owner", access.Manager)).want(c.manager, "POST", c.path, body(ownedNode))
	}
	for _, c := range []struct {
		who   access.Actor
		shown bool
	}{{system, true}, {in("owner", access.Admin), true}, {in("owner", access.Member), false},
		{in("lessee", access.Reader), false}} {
		out := f.as(c.who).want(200, "GET", "/v1/volume/targets/"+ownedPart, "")
		if strings.Contains(fmt.Sprint(out["properties"]), "10.0.0.2") != c.shown {
			t.Errorf("%+v sees properties %v", c.who, out["properties"])
		}
	}
}
