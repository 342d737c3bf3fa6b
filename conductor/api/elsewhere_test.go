package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// away is an engine whose nodes are all another conductor's, or that may not act.
type away struct {
	instant
	err error
}

func (a away) Here(*node.Node) error { return a.err }

func (a away) SetBootDevice(context.Context, string, string, bool, string) error { return a.err }

func (a away) BootDevice(context.Context, string) (string, bool, error) { return "", false, a.err }

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
	asked := []struct{ method, path, body string }{
		{"GET", "management/boot_device", ""},
		{"PUT", "management/boot_device", `{"boot_device":"pxe"}`},
		{"GET", "states/console", ""},
		{"PUT", "states/console", `{"enabled":true}`},
		{"PUT", "states/boot_mode", `{"target":"uefi"}`},
		{"PUT", "states/secure_boot", `{"target":true}`},
		{"PUT", "management/inject_nmi", "{}"},
		{"GET", "management/indicators", ""},
		{"GET", "management/indicators/led-0@chassis", ""},
		{"PUT", "management/indicators/led-0@chassis", `{"state":"on"}`},
		{"GET", "vmedia", ""},
		{"POST", "vmedia", `{"device_type":"cdrom","image_url":"http://192.0.2.1/i.iso"}`},
		{"DELETE", "vmedia", ""},
		{"POST", "vendor_passthru?method=first_method", "{}"},
		{"POST", "vendor_passthru/first_method", "{}"},
		{"DELETE", "", ""}, // its agent has to be asked to turn its machine off
	}
	for _, c := range asked {
		path := strings.TrimSuffix("/v1/nodes/n/"+c.path, "/")
		w, said := answer(c.method, path, c.body, &engine.ElsewhereError{Node: n.UUID, Conductor: "c2"})
		if w.Code != 503 || w.Header().Get("Retry-After") != "5" || !strings.Contains(said, "conductor c2") {
			t.Errorf("%s %s = %d %q, Retry-After %q; want 503 that names c2", c.method, path, w.Code, said,
				w.Header().Get("Retry-After"))
		}
		w, said = answer(c.method, path, c.body, &engine.LapsedError{Err: context.DeadlineExceeded})
		if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(said, "may not act") {
			t.Errorf("%s %s at a conductor that may not act = %d %q", c.method, path, w.Code, said)
		}
	}
	if now, err := f.st.Node(t.Context(), "n"); err != nil || now.Version != n.Version {
		t.Errorf("the node was changed, or deleted: %v, %v", now, err)
	}
	// Every route of these resources was asked.
	for _, rt := range (&Server{}).table() {
		rest, below := strings.CutPrefix(rt.Path, "/v1/nodes/{node}/")
		if !below || !slices.ContainsFunc([]string{"management/indic", "management/inject", "vmedia", "states/con",
			"states/boot", "states/sec"}, func(p string) bool { return strings.HasPrefix(rest, p) }) {
			continue
		}
		rest = strings.Replace(rest, "{indicator}", "led-0@chassis", 1)
		if !slices.ContainsFunc(asked, func(c struct{ method, path, body string }) bool {
			return c.method == rt.Method && c.path == rest
		}) {
			t.Errorf("no request for %s %s", rt.Method, rt.Path)
		}
	}
}
