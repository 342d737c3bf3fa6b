package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/console"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestConsole: who may work at a console opens it, types, and reads what the machine says, at its owner and at another
// conductor. That it was opened is in history, audit log and log; what is typed is in none.
func TestConsole(t *testing.T) {
	who := func(r *http.Request) (*access.Actor, error) {
		a := &access.Actor{UserName: r.Header.Get("X-User"), System: true, Role: access.Member}
		if a.UserName == "reader" {
			a.Role = access.Reader
		}
		return a, nil
	}
	var k kept
	var log bytes.Buffer
	lines := slog.New(slog.NewTextHandler(&log, nil))
	machines := new(powerfake.Machines)
	consoles := console.New(func(n *node.Node) (power.Driver, error) {
		return machines.Open(power.Info{"fake_id": n.UUID}, nil)
	}, nil)
	t.Cleanup(consoles.Stop)
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Active})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	owner := newServer(t, f.st, instant{f.st}, Config{Hostname: "c2", MaxVersion: rest.NewestVersion,
		Hardware: fakeHardware(), Authenticate: who, Consoles: consoles, Audit: &k}, lines)
	way := &hop{to: owner.Server}
	first := newServer(t, f.st, away{instant{f.st}, &engine.ElsewhereError{Node: n.UUID, Conductor: "c2"}},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware(), Authenticate: who,
			Forward: way, Audit: &k}, lines)
	ask := func(srv http.Handler, user, method, path, body string, want int) (v map[string]any) {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("X-User", user)
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, r)
		if w.Code != want {
			t.Fatalf("%s %s %.100s by %s = %d %s, want %d", method, path, body, user, w.Code, w.Body, want)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil && w.Body.Len() > 0 {
			t.Fatal(err)
		}
		return v
	}
	const at = "/ingot/v1/nodes/n/console"
	typing := func(text string) string {
		return `{"input":"` + base64.StdEncoding.EncodeToString([]byte(text)) + `"}`
	}
	reads := func(srv http.Handler, user, path, want string) (next int64) {
		t.Helper()
		for all := ""; !strings.Contains(all, want); {
			out := ask(srv, user, "GET", fmt.Sprint(path, "?after=", next), "", 200)
			text, _ := out["output"].(string)
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil || out["ended"] != nil {
				t.Fatalf("read %q, then %v, %v", all, out, err)
			}
			all += string(b)
			place, _ := out["next"].(float64)
			next = int64(place)
		}
		return next
	}
	for _, srv := range []http.Handler{owner, first} {
		ask(srv, "reader", "POST", at, "{}", 403)
		ask(srv, "ann", "POST", at, `{"take":"maybe"}`, 400)
		id, _ := ask(srv, "ann", "POST", at, "{}", 200)["session"].(string)
		session := at + "/" + id
		reads(srv, "ann", session, "fake login: ")
		ask(srv, "ann", "POST", session, typing("a secret\r"), 204)
		reads(srv, "ann", session, "a secret")

		ask(srv, "reader", "GET", session, "", 403)
		for _, method := range []string{"GET", "POST", "DELETE"} {
			body := map[string]string{"POST": typing("x")}[method]
			ask(srv, "bob", method, session, body, 404)
			ask(srv, "ann", method, at+"/guessed", body, 404)
		}
		for _, body := range []string{`{"input":"%"}`, `{}`, `{"input":["x"]}`,
			typing(strings.Repeat("x", limit.ConsoleInput+1))} {
			ask(srv, "ann", "POST", session, body, 400)
		}
		for _, after := range []string{"-1", "x", "99999999999999999999"} {
			ask(srv, "ann", "GET", session+"?after="+after, "", 400)
		}
		if text := fmt.Sprint(ask(srv, "bob", "POST", at, "{}", 409)); !strings.Contains(text, "ann (system) works at this console") {
			t.Errorf("the console is in use: %s", text)
		}
		bob, _ := ask(srv, "bob", "POST", at, `{"take":true}`, 200)["session"].(string)
		reads(srv, "bob", at+"/"+bob, "fake login: ")
		ask(srv, "ann", "GET", session, "", 404)
		ask(srv, "bob", "DELETE", at+"/"+bob, "", 204)
		if out := ask(srv, "bob", "GET", at+"/"+bob+"?after=1000", "", 200); out["ended"] != "it was closed" {
			t.Errorf("after the end: %v", out)
		}
	}
	if len(way.sent) < 10 {
		t.Errorf("%d requests were forwarded", len(way.sent))
	}
	ask(f.srv, "", "POST", at, "{}", 400) // without consoles

	past, err := f.st.History(t.Context(), n.UUID, 100)
	if err != nil {
		t.Fatal(err)
	}
	opened := map[string]int{}
	for _, h := range past {
		if h.Event == "console opened" {
			opened[h.User]++
		}
	}
	if opened["ann (system)"] != 2 || opened["bob (system)"] != 2 {
		t.Errorf("history: %v of %+v", opened, past)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.all {
		if e.Route != "/ingot/v1/nodes/{node}/console" {
			t.Errorf("%s is in the audit log", e.Route)
		}
	}
	if len(k.all) < 8 || strings.Contains(log.String(), "status=204") {
		t.Errorf("%d lines in the audit log; log:\n%s", len(k.all), log.String())
	}
}

// TestWaitingIsNotMeasured: how long a reader waits for output says nothing of the server.
func TestWaitingIsNotMeasured(t *testing.T) {
	f := newFixture(t, Config{})
	var m took
	f.srv.cfg.Meter = &m
	f.srv.served(httptest.NewRequest("GET", "/", nil), &served{began: time.Now().Add(-time.Minute), status: 200,
		route: &f.srv.parts.Routes()[1]}, nil)
	if m.longest > time.Second || m.route == "" {
		t.Errorf("%s took %v", m.route, m.longest)
	}
}

type took struct {
	route   string
	longest time.Duration
}

func (m *took) Request(_, route string, _ int, took time.Duration) {
	m.route, m.longest = route, max(m.longest, took)
}
func (m *took) Repeated() {}
