package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// away is an engine whose nodes are all another conductor's, or that may not act.
type away struct {
	instant
	err error
}

func (a away) Here(*node.Node) error { return a.err }

func (a away) SetBootDevice(context.Context, string, string, bool, string) error { return a.err }

func (a away) BootDevice(context.Context, string) (string, bool, error) { return "", false, a.err }

func (a away) ResetNetwork(context.Context, string, string) error { return a.err }

func (a away) SetControllerPassword(context.Context, string, string, string) error { return a.err }

// elsewhere are requests of all kinds that only the owner of node n can answer: method, path and body. Tests of several
// conductors send them, too.
func elsewhere(t *testing.T) (all [][3]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "elsewhere.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestAtAnotherConductor: what has to ask a node's controller at once is answered with 503 by a conductor that does not
// own the node, with the owner's name and when to ask again; and nothing is done.
func TestAtAnotherConductor(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n", Provision: node.Available, Boot: &node.Boot{Kept: true}})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	answer := func(method, path, body string, why error) (*httptest.ResponseRecorder, string) {
		t.Helper()
		srv := newServer(t, f.st, away{instant{f.st}, why},
			Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware()},
			slog.New(slog.DiscardHandler))
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(rest.VersionHeader, rest.NewestVersion.String())
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, r)
		var out struct{ Error_message string } //nolint:revive the API's own name
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
			t.Fatalf("%s %s = %s: %v", method, path, w.Body, err)
		}
		return w, out.Error_message
	}
	asked := elsewhere(t)
	for _, c := range asked {
		method, path, body := c[0], c[1], c[2]
		w, said := answer(method, path, body, &engine.ElsewhereError{Node: n.UUID, Conductor: "c2"})
		if w.Code != 503 || w.Header().Get("Retry-After") != "5" || !strings.Contains(said, "conductor c2") {
			t.Errorf("%s %s = %d %q, Retry-After %q; want 503 that names c2", method, path, w.Code, said,
				w.Header().Get("Retry-After"))
		}
		w, said = answer(method, path, body, &engine.LapsedError{Err: context.DeadlineExceeded})
		if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(said, "may not act") {
			t.Errorf("%s %s at a conductor that may not act = %d %q", method, path, w.Code, said)
		}
		w, said = answer(method, path, body,
			&engine.ServiceError{Err: errors.New("look up image x: no route to glance:9292")})
		const away = "A service of OpenStack's that this needs can't be asked now"
		if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(said, away) ||
			strings.Contains(said, "9292") {
			t.Errorf("%s %s without a service = %d %q", method, path, w.Code, said)
		}
	}
	// A connection that was cut says nothing of what a write did before.
	for method, claims := range map[string]bool{"GET": true, "PUT": false} {
		w, said := answer(method, "/v1/nodes/n/management/boot_device", `{"boot_device": "pxe"}`,
			fmt.Errorf("node n: %w", store.ErrCut))
		if w.Code != 503 || w.Header().Get("Retry-After") != "5" ||
			strings.Contains(said, "nothing was changed") != claims {
			t.Errorf("%s on a connection that was cut = %d %q", method, w.Code, said)
		}
	}
	if now, err := f.st.Node(t.Context(), "n"); err != nil || now.Version != n.Version {
		t.Errorf("the node was changed, or deleted: %v, %v", now, err)
	}
	// Every route of these resources was asked.
	for _, rt := range (&Server{}).table() {
		_, below, ok := strings.Cut(rt.Path, "/nodes/{node}/")
		if !ok || !slices.ContainsFunc([]string{"management/boot_device", "management/indic", "management/inject",
			"vmedia", "states/con", "states/boot", "states/sec", "vendor_passthru", "network_reset",
			"controller_pass", "logs"},
			func(p string) bool { return strings.HasPrefix(below, p) }) ||
			strings.HasSuffix(below, "/methods") || strings.HasSuffix(below, "/supported") {
			continue
		}
		path := strings.NewReplacer("{node}", "n", "{indicator}", "led-0@chassis", "{method}", "first_method").
			Replace(rt.Path)
		if !slices.ContainsFunc(asked, func(c [3]string) bool {
			at, _, _ := strings.Cut(c[1], "?")
			return c[0] == rt.Method && at == path
		}) {
			t.Errorf("no request for %s %s", rt.Method, rt.Path)
		}
	}
}
