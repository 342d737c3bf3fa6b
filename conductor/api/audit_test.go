package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/audit"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// kept keeps the lines of the audit log.
type kept struct {
	mu  sync.Mutex
	all []audit.Entry
}

func (k *kept) Write(e audit.Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, e)
}

// noTraces has an ID for each request.
type noTraces struct{ routes []string }

func (n *noTraces) Request(ctx context.Context, _ *http.Request) (context.Context, func(string, int)) {
	return ctx, func(route string, _ int) { n.routes = append(n.routes, route) }
}
func (*noTraces) Pass(_ context.Context, h http.Header) { h.Set("traceparent", "00-x") }
func (*noTraces) TraceID(context.Context) string        { return "x" }

// TestAuditLog: each request that would change something is a line with who sent it, for which node, and its result,
// also when it was refused or the node is gone afterwards; reads and machines' own requests are none; and no value of a
// body or a query is in it.
func TestAuditLog(t *testing.T) {
	var k kept
	var traces noTraces
	f := newFixture(t, Config{Audit: &k, Tracer: &traces, From: func(*http.Request) string { return "192.0.2.7" },
		Authenticate: func(r *http.Request) (*access.Actor, error) {
			switch r.Header.Get("X-Auth-Token") {
			case "root":
				return &access.Actor{UserName: "alice", UserID: "u-1", System: true, Role: access.Admin}, nil
			case "reader":
				return &access.Actor{UserName: "bob", UserID: "u-2", System: true, Role: access.Reader}, nil
			}
			return nil, &access.Refusal{Status: 401, Message: "who are you?"}
		}}, node.Node{Name: "n1", Provision: node.Manageable})
	n, err := f.st.Node(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(want int, who, method, path, body string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(rest.VersionHeader, f.version.String())
		r.Header.Set("X-Auth-Token", who)
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		if w.Code != want {
			t.Fatalf("%s %s = %d %s, want %d", method, path, w.Code, w.Body, want)
		}
		return w
	}
	ask(200, "root", "GET", "/v1/nodes/n1", "")
	ask(200, "root", "PATCH", "/v1/nodes/n1",
		`[{"op":"add","path":"/driver_info/ipmi_password","value":"hush-1"},{"op":"add","path":"/extra/a","value":"hush-2"}]`)
	ask(202, "root", "PUT", "/v1/nodes/n1/states/power", `{"target":"power on"}`)
	ask(202, "root", "PUT", "/v1/nodes/n1/maintenance", `{"reason":"hush-3"}`)
	ask(403, "reader", "DELETE", "/v1/nodes/n1?x=hush-4", "")
	ask(401, "nobody", "DELETE", "/v1/nodes/n1", "")
	ask(404, "root", "DELETE", "/v1/nodes/absent", "")
	made := ask(201, "root", "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"n2","driver_info":{"x":"hush-5"}}`)
	ask(204, "root", "DELETE", "/v1/nodes/n2", "")
	ask(400, "root", "POST", "/v1/nodes", `{"driver":["hush-6"]}`)

	text, err := json.Marshal(k.all)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "hush") {
		t.Errorf("a value is in a line: %s", text)
	}
	var lines []string
	for _, e := range k.all {
		lines = append(lines, strings.Join([]string{e.User, e.Method, e.Route, e.NodeName, e.Target,
			strings.Join(e.Fields, ","), http.StatusText(e.Status)}, "|"))
		if e.From != "192.0.2.7" || e.Trace != "x" || !strings.HasPrefix(e.Request, "req-") || e.Time.IsZero() ||
			e.UserID == "" || e.TookMS <= 0 {
			t.Errorf("line %+v", e)
		}
	}
	want := []string{
		"alice (system)|PATCH|/v1/nodes/{node}|n1||/driver_info/ipmi_password,/extra/a|OK",
		"alice (system)|PUT|/v1/nodes/{node}/states/power|n1|power on|target|Accepted",
		"alice (system)|PUT|/v1/nodes/{node}/maintenance|n1||reason|Accepted",
		"bob (system)|DELETE|/v1/nodes/{node}|n1|||Forbidden",
		"alice (system)|DELETE|/v1/nodes/{node}||||Not Found",
		"alice (system)|POST|/v1/nodes|||driver,driver_info,name|Created",
		"alice (system)|DELETE|/v1/nodes/{node}|n2|||No Content",
		"alice (system)|POST|/v1/nodes|||driver|Bad Request",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("lines:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if e := k.all[0]; e.Node != n.UUID || e.Object["node"] != "n1" {
		t.Errorf("the first line is about %+v, want node %s", e, n.UUID)
	}
	var v struct{ UUID string }
	if err := json.Unmarshal(made.Body.Bytes(), &v); err != nil || k.all[5].Made != v.UUID {
		t.Errorf("made %q, want %q", k.all[5].Made, v.UUID)
	}
	if len(traces.routes) != 10 || traces.routes[0] != "/v1/nodes/{node}" || made.Header().Get("Traceparent") == "" {
		t.Errorf("traced %v, with the header %q", traces.routes, made.Header().Get("Traceparent"))
	}
}
