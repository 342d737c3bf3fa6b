package ui

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/api"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/web"
)

// crowd is a server with so many nodes in a real store, in all kinds of states, without anything that acts on them.
func crowd(t testing.TB, nodes int, change ...func(*web.Config)) (url string, st *store.Store) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	states := []node.State{node.Active, node.Active, node.Active, node.Available, node.Available, node.Manageable,
		node.Deploying}
	for i := range nodes {
		n := &node.Node{UUID: fmt.Sprintf("%08x-4f76-4e73-9c2f-fbb5eab89770", i),
			Name: fmt.Sprintf("rack%03d-u%02d", i/40, i%40+1), Driver: "ipmi",
			ResourceClass: "compute.large", Provision: states[i%len(states)], Power: "power on"}
		if i%500 == 7 {
			n.Provision, n.LastError = node.DeployFailed, "write image to /dev/sda: input/output error"
		}
		if err := st.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	hub := events.New(st)
	hub.Start(st.Announce(hub.Publish))
	t.Cleanup(hub.Close)
	log := slog.New(slog.DiscardHandler)
	a, err := api.New(st, engine.New(st, nil, nil, nil, engine.Config{Hostname: "c1"}, log),
		api.Config{Hostname: "c1", Events: hub}, log)
	if err != nil {
		t.Fatal(err)
	}
	cfg := web.Config{Auth: web.None, Key: []byte("of this test"), Hostname: "c1"}
	for _, c := range change {
		c(&cfg)
	}
	w, err := web.New(a, cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(w.Handler())
	t.Cleanup(func() {
		hub.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL, st
}

// TestTenThousandMachines: what a page asks for and holds does not depend on how it is looked at, and a change of one
// machine costs nothing for the others.
func TestTenThousandMachines(t *testing.T) {
	const many = 10_000
	url, st := crowd(t, many)
	p := open(t, url)
	p.visit("/ui/")
	p.shows("10,000 machines")
	p.shows("live")
	if got := p.asked("GET /ui/api/v1/nodes?"); got > many/1000+1 {
		t.Errorf("the list took %d requests", got)
	}
	p.mu.Lock()
	perNode := p.bytes / many
	p.mu.Unlock()
	t.Logf("%.0f bytes for each machine", perNode)
	if perNode > 700 {
		t.Errorf("%.0f bytes for each machine, want at most 700", perNode)
	}
	nodes := func(what string) {
		t.Helper()
		if n := js[int](p, "document.querySelectorAll('*').length"); n > 1500 {
			t.Errorf("%s: the page has %d elements, want at most 1500", what, n)
		}
	}
	nodes("the table")
	if !strings.HasPrefix(p.rows(), "rack000-u08 rack012-u28 ") {
		t.Errorf("failures are not first: %.60s", p.rows())
	}
	p.does("window.scrollTo(0, document.documentElement.scrollHeight / 2)")
	p.until("document.querySelector('.machines-table tbody tr[aria-rowindex]').getAttribute('aria-rowindex') > 4000")
	nodes("the middle of the table")
	p.does("window.scrollTo(0, document.documentElement.scrollHeight)")
	p.until("[...document.querySelectorAll('tr[aria-rowindex]')].at(-1).getAttribute('aria-rowindex') === '10001'")
	p.click("Grid")
	p.until("document.querySelector('canvas[role=img]').height > 1000")
	nodes("the grid")
	p.click("Table")
	p.fill("Search", "rack123-u1")
	p.shows("10 found")
	before := -1
	for before != p.asked("GET ") { // the list may be read once more after the stream began
		before = p.asked("GET ")
		time.Sleep(500 * time.Millisecond)
	}
	if _, err := st.UpdateNode(t.Context(), fmt.Sprintf("%08x-4f76-4e73-9c2f-fbb5eab89770", 123*40+9), func(n *node.Node) error {
		n.Maintenance, n.MaintenanceReason = true, "a fan"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p.shows("Maintenance: a fan")
	if got := p.asked("GET ") - before; got > 6 {
		t.Errorf("a change of one machine took %d requests", got)
	}
	p.fill("Search", "")
	p.shows("10,000 machines")
	// However much happens while the page is open, it holds the present alone.
	for i := range 500 {
		if _, err := st.UpdateNode(t.Context(), fmt.Sprintf("%08x-4f76-4e73-9c2f-fbb5eab89770", i%50), func(n *node.Node) error {
			n.Maintenance, n.MaintenanceReason = true, fmt.Sprintf("round %d of machine %d", i/50, i%50)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	p.shows("round 9 of machine 0")
	nodes("after 500 changes")
	if heap := js[float64](p, "performance.memory?.usedJSHeapSize ?? 0"); heap > 120<<20 {
		t.Errorf("the page holds %.0f MiB", heap/(1<<20))
	}
}
