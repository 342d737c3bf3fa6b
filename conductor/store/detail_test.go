package store

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/seal"
)

// TestRunbooksGetTraits: a runbook of a database from before runbooks had traits gets one of its name, once. Old lines
// of the history tell no more than they did.
func TestRunbooksGetTraits(t *testing.T) {
	const a, b, n = "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", "8cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1d",
		"9cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1e"
	dir, key := t.TempDir(), []byte(strings.Repeat("k", 32))
	sealer, err := seal.New(key)
	if err != nil {
		t.Fatal(err)
	}
	earlier(t, dir, 10, earlierNode(n, "n", "NULL"), `INSERT INTO history (uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone, asked)
		VALUES ('h1', '`+n+`', 'n', 5, 'power', 'INFO', 'power on requested', 'c', '', '', '', '', 0, 0)`)
	db, err := openDB(dsn(filepath.Join(dir, DatabaseFile), true), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, doc := range map[string]string{a: `{"Name":"CUSTOM_A","Description":"d"}`,
		b: `{"Name":"CUSTOM_B","Traits":["CUSTOM_X"]}`} {
		sealed := sealer.Seal("runbook "+id, []byte(doc))
		if _, err := db.Exec(
			`INSERT INTO resources (kind, uuid, name, created_at, updated_at, doc) VALUES ('runbook', ?, ?, 7, 0, ?)`,
			id, "CUSTOM_"+id[:1], sealed); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for start := range 3 {
		s, err := Open(t.Context(), Options{Dir: dir, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string][]string{a: {"CUSTOM_A"}, b: {"CUSTOM_X"}} {
			if start == 2 && id == a {
				want = nil // taken away since
			}
			r, err := s.Runbook(t.Context(), id)
			if err != nil || !slices.Equal(r.Traits, want) || !r.UpdatedAt.IsZero() && start < 2 {
				t.Errorf("start %d: runbook %+v, %v, want traits %v", start, r, err, want)
			}
		}
		if h, err := s.History(t.Context(), n, 0); err != nil || len(h) != 1 || h[0].State != "" || h[0].Target != "" ||
			h[0].Seconds != nil || h[0].Project != "" {
			t.Errorf("an old line became %+v, %v", h, err)
		}
		if start == 1 {
			if _, err := s.Runbooks().Update(t.Context(), a,
				func(r *node.Runbook) error { r.Traits = nil; return nil }); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHistoryDescribesTheNode: a line has the states that its writer saw, or else those that are stored with it.
func TestHistoryDescribesTheNode(t *testing.T) { Engines(t, testHistoryDescribesTheNode) }

func testHistoryDescribesTheNode(t *testing.T, o Options) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	o.Now = func() time.Time { return now }
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x := &node.Node{Driver: "x", Provision: node.Cleaning, TargetProvision: node.Available,
		ProvisionUpdatedAt: now.Add(-61500 * time.Millisecond)}
	if err := s.CreateNode(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	five, ann := 5, node.WithRequester(t.Context(), node.Requester{User: "ann", Project: "p1"})
	long := "a" + strings.Repeat("é", maxEvent) + "z"
	for _, h := range []node.HistoryEntry{
		{Event: "stored"},
		{Event: "seen", State: node.Deploying, Target: node.Active, Seconds: &five},
		{Event: "asked", User: "ann"},
		{Event: "what became of it", User: "bob", Project: "p2", State: node.Deploying},
		{Event: long},
	} {
		h.NodeUUID = x.UUID
		if err := s.AddHistory(ann, h); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.History(t.Context(), x.UUID, 0)
	if err != nil || len(got) != 5 {
		t.Fatalf("history = %+v, %v", got, err)
	}
	slices.Reverse(got)
	for i, want := range []struct {
		state, target node.State
		seconds       int
		project       string
	}{{node.Cleaning, node.Available, 61, ""}, {node.Deploying, node.Active, 5, ""},
		{node.Cleaning, node.Available, 61, "p1"}, {node.Deploying, "", -1, "p2"},
		{node.Cleaning, node.Available, 61, ""}} {
		h, seconds := got[i], -1
		if h.Seconds != nil {
			seconds = *h.Seconds
		}
		if h.State != want.state || h.Target != want.target || seconds != want.seconds || h.Project != want.project {
			t.Errorf("%.20q: %s to %s for %d s, project %q, want %+v", h.Event, h.State, h.Target, seconds, h.Project,
				want)
		}
	}
	if e := got[4].Event; len(e) > maxEvent || len(e) < maxEvent-8 || !utf8.ValidString(e) ||
		!strings.HasPrefix(e, "aé") || !strings.HasSuffix(e, "éz") || !strings.Contains(e, "é ... é") {
		t.Errorf("a long event has %d bytes: %.10q...%q", len(e), e, e[len(e)-10:])
	}
	// A lessee may see in the log what it asked for, not what became of it.
	if _, err := s.UpdateNode(t.Context(), x.UUID,
		func(n *node.Node) error { n.Lessee = "p2"; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.AddHistory(t.Context(),
		node.HistoryEntry{NodeUUID: x.UUID, Event: "insides of the site", User: "bob", Project: "p2"}); err != nil {
		t.Fatal(err)
	}
	if l, err := s.Log(t.Context(), node.LogQuery{Visible: "p2", Limit: 9}); err != nil || len(l) != 0 {
		t.Errorf("a lessee sees %+v, %v", l, err)
	}
}
