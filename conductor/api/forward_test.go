package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// hop carries requests to another server, as packages of conductor/peer do, and counts them.
type hop struct {
	to   *Server
	err  error
	sent []*peer.Request
}

func (h *hop) Forward(ctx context.Context, owner string, r *peer.Request) (*peer.Answer, error) {
	h.sent = append(h.sent, r)
	if h.err != nil {
		return nil, h.err
	}
	inner := httptest.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	inner.Header = r.Header
	w := httptest.NewRecorder()
	h.to.Forwarded(w, inner, peer.Origin{Conductor: "c1", ID: r.ID, Actor: r.Actor, Base: r.Base})
	return &peer.Answer{Status: w.Code, Header: w.Header(), Body: w.Body.Bytes()}, nil
}

// by is an authenticator that takes the header X-Role for the role of alice.
func by(r *http.Request) (*access.Actor, error) {
	role, ok := map[string]access.Role{"admin": access.Admin, "reader": access.Reader}[r.Header.Get("X-Role")]
	if !ok {
		return nil, &access.Refusal{Status: 401, Message: "who are you?"}
	}
	return &access.Actor{UserName: "alice", System: true, Role: role}, nil
}

// TestForwardedToTheOwner: the owner's answer is the client's, with one request ID, headers and body as they are; it
// knows the sender, and looks at its own rules for that.
func TestForwardedToTheOwner(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available})
	var log bytes.Buffer
	lines := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	config := func(name string) Config {
		return Config{Hostname: name, MaxVersion: rest.NewestVersion, Hardware: fakeHardware(), Authenticate: by,
			HostNames: []string{"other.example", "ingot.example"}}
	}
	owner := newServer(t, f.st, instant{f.st}, config("c2"), lines)
	way := &hop{to: owner.Server}
	conf := config("c1")
	conf.Forward = way
	first := newServer(t, f.st, away{instant{f.st}, &engine.ElsewhereError{Node: n.UUID, Conductor: "c2"}}, conf, lines)
	ask := func(srv http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(rest.VersionHeader, rest.NewestVersion.String())
		r.Header.Set("X-Role", "admin")
		r.Host = "ingot.example" // which links in answers begin with
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, r)
		return w
	}
	for _, c := range elsewhere(t) {
		if c[0] == "DELETE" && strings.HasSuffix(c[1], "/n") {
			continue // no machine has to be asked
		}
		want := ask(owner, c[0], c[1], c[2])
		way.sent = nil
		got := ask(first, c[0], c[1], c[2])
		if len(way.sent) != 1 || got.Code == 503 {
			t.Fatalf("%s %s = %d, forwarded %d times", c[0], c[1], got.Code, len(way.sent))
		}
		sent := way.sent[0]
		if sent.Method != c[0] || sent.URL != c[1] || string(sent.Body) != c[2] || sent.Actor.UserName != "alice" ||
			sent.Actor.Role != access.Admin {
			t.Errorf("%s %s was forwarded as %+v", c[0], c[1], sent)
		}
		id := got.Header().Get("Openstack-Request-Id")
		for _, name := range []string{"a request is forwarded to the node's owner", "a request was forwarded here"} {
			if !strings.Contains(log.String(), name) || strings.Count(log.String(), id) < 2 || id == "" {
				t.Errorf("%s %s: the log does not have %s with %q twice", c[0], c[1], name, id)
			}
		}
		bodies := [2]string{}
		for i, w := range []*httptest.ResponseRecorder{want, got} {
			bodies[i] = strings.ReplaceAll(w.Body.String(), w.Header().Get("Openstack-Request-Id"), "ID")
		}
		for _, h := range []http.Header{want.Header(), got.Header()} {
			h.Del("Openstack-Request-Id")
			h.Del("X-Openstack-Request-Id")
		}
		if want.Code != got.Code || bodies[0] != bodies[1] ||
			fmt.Sprint(want.Header()) != fmt.Sprint(got.Header()) {
			t.Errorf("%s %s\nat the owner %d %v %s\nforwarded    %d %v %s", c[0], c[1], want.Code, want.Header(), want.Body,
				got.Code, got.Header(), got.Body)
		}
	}

	// Both servers refuse by themselves.
	way.sent = nil
	for _, role := range []string{"reader", ""} {
		w := ask(first, "PUT", "/v1/nodes/n/management/inject_nmi", "{}", "X-Role", role)
		if want := map[string]int{"reader": 403, "": 401}[role]; w.Code != want || len(way.sent) != 0 {
			t.Errorf("role %q = %d, forwarded %d times; want %d", role, w.Code, len(way.sent), want)
		}
	}
	owning := func(a *access.Actor) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("PUT", "/v1/nodes/n/management/boot_device", strings.NewReader(`{"boot_device":"pxe"}`))
		r.Header.Set(rest.VersionHeader, rest.NewestVersion.String())
		r.Header.Set("X-Role", "admin") // not the owner's business any more
		owner.Forwarded(w, r, peer.Origin{Conductor: "c1", ID: "req-1", Actor: a})
		return w
	}
	if w := owning(&access.Actor{UserName: "bob", System: true, Role: access.Reader}); w.Code != 403 {
		t.Errorf("a reader at the owner = %d", w.Code)
	}
	if w := owning(&access.Actor{}); w.Code < 400 {
		t.Errorf("an actor without anything = %d", w.Code)
	}
	if w := owning(&access.Actor{UserName: "ann", UserID: "ann", All: true}); w.Code != 204 {
		t.Errorf("a user of http_basic at the owner = %d %s", w.Code, w.Body)
	}
	if w := owning(access.Anybody()); w.Code != 403 || !strings.Contains(w.Body.String(), "whose clients have to authenticate") {
		t.Errorf("anybody, from a conductor without authentication = %d %s", w.Code, w.Body)
	}
}

// TestOneHop: a request that ends elsewhere again goes no further; what was not answered says whether it may have been
// carried out; and an older conductor is not asked.
func TestOneHop(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available})
	moved := away{instant{f.st}, &engine.ElsewhereError{Node: "n", Conductor: "c3"}}
	back := &hop{}
	second := newServer(t, f.st, moved, Config{Hostname: "c2", MaxVersion: rest.NewestVersion, Hardware: fakeHardware(),
		Forward: back}, nil)
	way := &hop{to: second.Server}
	first := newServer(t, f.st, away{instant{f.st}, &engine.ElsewhereError{Node: "n", Conductor: "c2"}},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware(), Forward: way}, nil)
	for _, tt := range []struct {
		what    string
		err     error
		method  string
		status  int
		retry   string
		text    string
		headers []string
	}{
		{"moved on", nil, "PUT", 503, "5", "belongs to conductor c3", nil},
		{"an older program", fmt.Errorf("x: %w", peer.ErrNoAddress), "PUT", 503, "5", "belongs to conductor c2", nil},
		{"out of reach", &peer.Error{Conductor: "c2", Err: errors.New("x")}, "PUT", 503, "5", "nothing was done", nil},
		{"lost", &peer.Error{Conductor: "c2", Err: errors.New("x"), MayHaveActed: true}, "PUT", 504, "",
			"may have been carried out, or not", nil},
		{"a lost reading", &peer.Error{Conductor: "c2", Err: errors.New("x"), MayHaveActed: true}, "GET", 503, "5", "",
			nil},
		{"given up", context.Canceled, "PUT", 503, "", "", nil},
	} {
		way.sent, way.err = nil, tt.err
		r := httptest.NewRequest(tt.method, "/v1/nodes/n/management/boot_device", strings.NewReader(`{"boot_device":"pxe"}`))
		r.Header.Set(rest.VersionHeader, rest.NewestVersion.String())
		if tt.method == "GET" {
			r.Body, r.ContentLength = http.NoBody, 0
		}
		w := httptest.NewRecorder()
		first.ServeHTTP(w, r)
		if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retry ||
			!strings.Contains(w.Body.String(), tt.text) ||
			len(way.sent) != 1 || len(back.sent) != 0 {
			t.Errorf("%s = %d %v %s, forwarded %d and %d times; want %d", tt.what, w.Code, w.Header(), w.Body, len(way.sent),
				len(back.sent), tt.status)
		}
	}
}

// handedOver is an engine that finds the node's owner in turn in a list; nil is itself.
type handedOver struct {
	instant
	owners []error
	asked  int
}

func (h *handedOver) SetBootDevice(context.Context, string, string, bool, string) error {
	err := h.owners[min(h.asked, len(h.owners)-1)]
	h.asked++
	return err
}

// TestOwnerIsLookedForAgain: a request that reaches a conductor which has just handed the node over goes to the next
// owner, which may be the conductor that the client asked; the client notices nothing. If none has the node, it gets
// the 503 once the time for a locked node is over.
func TestOwnerIsLookedForAgain(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available})
	conf := Config{Hostname: "c2", MaxVersion: rest.NewestVersion, Hardware: fakeHardware()}
	c2 := &engine.ElsewhereError{Node: "n", Conductor: "c2"}
	for _, tt := range []struct {
		what   string
		first  []error // whom the first conductor finds
		second []error // whom the second finds
		wait   time.Duration
		status int
		sent   int
	}{
		{"handed back", []error{c2, nil}, []error{c2}, time.Minute, 204, 1},
		{"has it at last", []error{c2}, []error{c2, c2, nil}, time.Minute, 204, 3},
		{"no owner, and no time", []error{c2}, []error{c2}, 0, 503, 1},
	} {
		second := newServer(t, f.st, &handedOver{instant: instant{f.st}, owners: tt.second}, conf, nil)
		way := &hop{to: second.Server}
		first := newServer(t, f.st, &handedOver{instant: instant{f.st}, owners: tt.first},
			Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware(), Forward: way,
				LockWait: tt.wait}, nil)
		r := httptest.NewRequest("PUT", "/v1/nodes/n/management/boot_device", strings.NewReader(`{"boot_device":"pxe"}`))
		r.Header.Set(rest.VersionHeader, rest.NewestVersion.String())
		w := httptest.NewRecorder()
		first.ServeHTTP(w, r)
		if w.Code != tt.status || len(way.sent) != tt.sent || w.Header().Get(peer.MovedHeader) != "" {
			t.Errorf("%s = %d %v %s, forwarded %d times; want %d, %d times", tt.what, w.Code, w.Header(), w.Body,
				len(way.sent), tt.status, tt.sent)
		}
	}
}

// TestProgressElsewhere: how far work is, its owner knows; where that can't be asked, the rest is the answer.
func TestProgressElsewhere(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "idle"},
		node.Node{Name: "n", Provision: node.Deploying, Job: &node.Job{PlanID: "plan", Phase: node.PhaseDeploy}})
	conf := Config{Hostname: "c2", MaxVersion: rest.NewestVersion, Hardware: fakeHardware()}
	owner := newServer(t, f.st, instant{f.st}, conf, nil)
	way := &hop{to: owner.Server}
	conf.Forward = way
	first := newServer(t, f.st, away{instant{f.st}, &engine.ElsewhereError{Node: "n", Conductor: "c2"}}, conf, nil)
	for _, tt := range []struct {
		name    string
		err     error
		sent    int
		running bool
	}{
		{"n", nil, 1, true}, {"n", &peer.Error{Conductor: "c2", Err: errors.New("x")}, 1, false},
		{"n", peer.ErrNoAddress, 1, false}, {"idle", nil, 0, false},
	} {
		way.sent, way.err = nil, tt.err
		w := httptest.NewRecorder()
		first.ServeHTTP(w, httptest.NewRequest("GET", "/ingot/v1/nodes/"+tt.name+"/progress", nil))
		if w.Code != 200 || len(way.sent) != tt.sent || strings.Contains(w.Body.String(), `"bytes":10`) != tt.running {
			t.Errorf("%s with %v = %d %s, forwarded %d times", tt.name, tt.err, w.Code, w.Body, len(way.sent))
		}
	}
}

// TestForgedOrigin: nothing that a client of the API sends is taken for what a conductor says.
func TestForgedOrigin(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available})
	srv := newServer(t, f.st, instant{f.st},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware(), Authenticate: by}, nil)
	message := `{"ID":"req-forged","Actor":{"All":true},"Method":"GET","URL":"/v1/nodes/n"}`
	for _, path := range []string{"/forward/1", "/v1/forward/1", "/v1/nodes/n"} {
		for _, method := range []string{"POST", "GET"} {
			r := httptest.NewRequest(method, path, strings.NewReader(message))
			for _, name := range []string{"X-Openstack-Request-Id", "Openstack-Request-Id", "X-Ingot-Actor",
				"Ingot-Forwarded", "Forwarded", "X-Forwarded-For", "X-User-Id", "X-Roles", "Actor"} {
				r.Header.Set(name, message)
			}
			w := httptest.NewRecorder()
			srv.ServeHTTP(w, r)
			if w.Code != 401 || strings.Contains(fmt.Sprint(w.Header()), "forged") {
				t.Errorf("%s %s = %d %v %s", method, path, w.Code, w.Header(), w.Body)
			}
		}
	}
}

// TestBodyIsForwardedAsItCame: also where a handler has changed its copy, and for a form.
func TestBodyIsForwardedAsItCame(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available})
	way := &hop{err: peer.ErrNoAddress}
	srv := newServer(t, f.st, away{instant{f.st}, &engine.ElsewhereError{Node: "n", Conductor: "c2"}},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware(), Forward: way}, nil)
	for _, rt := range srv.table() {
		if (rt.Form || rt.Parts) && rt.Access != call.Public {
			t.Errorf("%s %s leaves its body unread: it could not be forwarded", rt.Method, rt.Path)
		}
	}
	for _, tt := range []struct{ kind, body string }{
		{"application/json", " {\"boot_device\" : \"pxe\", \"persistent\":true}\n"},
		{"application/x-www-form-urlencoded", url.Values{"boot_device": {"pxe"}}.Encode()},
	} {
		way.sent = nil
		r := httptest.NewRequest("PUT", "/v1/nodes/n/management/boot_device", strings.NewReader(tt.body))
		r.Header.Set(rest.VersionHeader, rest.NewestVersion.String())
		r.Header.Set("Content-Type", tt.kind)
		srv.ServeHTTP(httptest.NewRecorder(), r)
		if len(way.sent) != 1 || string(way.sent[0].Body) != tt.body ||
			way.sent[0].Header.Get("Content-Type") != tt.kind {
			t.Errorf("%s: forwarded as %+v", tt.kind, way.sent)
		}
	}
}
