package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/node"
)

// What people asked for stays, however much machines report; each kind has its own number and age.
func TestRequestsOutliveReports(t *testing.T) { Engines(t, testRequestsOutliveReports) }

func testRequestsOutliveReports(t *testing.T, o Options) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	o.Now = func() time.Time { return now }
	o.Keep = Keep{Requests: Kept{PerNode: 20, Total: 1000, Age: 1000 * time.Hour},
		Reports: Kept{PerNode: 10, Total: 30, Age: 10 * time.Hour}}
	s := openTest(t, o)
	n := &node.Node{Driver: "x", Name: "n"}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	asked := node.WithRequester(t.Context(), node.Requester{User: "ann"})
	nobodys := node.WithRequester(t.Context(), node.Requester{}) // without authentication there are no names
	count := func(part string) (have int) {
		t.Helper()
		lines, err := s.History(t.Context(), n.UUID, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			if strings.HasPrefix(l.Event, part) {
				have++
			}
		}
		return have
	}
	for i := range 3 {
		if err := s.AddHistory(asked,
			node.HistoryEntry{NodeUUID: n.UUID, Event: fmt.Sprint("asked ", i), User: "ann"}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddHistory(nobodys,
			node.HistoryEntry{NodeUUID: n.UUID, Event: fmt.Sprint("asked by none ", i)}); err != nil {
			t.Fatal(err)
		}
	}
	report := func(k int) {
		t.Helper()
		for i := range k {
			// The work was somebody's, but it is the machine that reports.
			if err := s.AddHistory(t.Context(),
				node.HistoryEntry{NodeUUID: n.UUID, Event: fmt.Sprint("report ", i), User: "ann"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	report(1500)
	// The lines are counted now and then, one time in 64.
	if got := count("asked"); got != 6 {
		t.Errorf("%d requests are left of 6", got)
	}
	if got := count("report"); got > 1000 || got < 10 {
		t.Errorf("%d reports are left, want few more than 10", got)
	}
	for i := range 1500 {
		if err := s.AddHistory(asked,
			node.HistoryEntry{NodeUUID: n.UUID, Event: fmt.Sprint("asked ", i), User: "ann"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := count("asked"); got > 1000 || got < 20 {
		t.Errorf("%d requests are left, want few more than 20", got)
	}

	report(100)
	trim := func(count bool) {
		t.Helper()
		if err := s.write(t.Context(), func(tx *txn) error { return s.trimLog(tx, count) }); err != nil {
			t.Fatal(err)
		}
	}
	lines := func() (requests, reports int) {
		t.Helper()
		if err := s.r.QueryRow(`SELECT SUM(asked), SUM(1 - asked) FROM history`).Scan(&requests, &reports); err != nil {
			t.Fatal(err)
		}
		return requests, reports
	}
	now = now.Add(time.Hour)
	before, _ := lines()
	for _, reports := lines(); reports <= 30; _, reports = lines() {
		report(1) // a node's lines are counted now and then, whichever it is: then 10 of them stay
	}
	s.room.tooMany, s.room.tooOld = 1, 20 // at once
	for _, reports := lines(); reports > 30; _, reports = lines() {
		trim(true)
		if _, left := lines(); left != reports-1 {
			t.Fatalf("of %d reports %d are left after one was to go", reports, left)
		}
	}
	if requests, reports := lines(); requests != before || reports != 30 {
		t.Errorf("%d requests of %d and %d reports after they were counted, 30 were to stay", requests, before, reports)
	}
	now = now.Add(20 * time.Hour)
	trim(false)
	if _, reports := lines(); reports != 10 {
		t.Errorf("%d reports of 30 after 20 that are too old were to go", reports)
	}
	trim(false)
	if requests, reports := lines(); requests != before || reports != 0 {
		t.Errorf("%d requests of %d and %d reports after 20 hours, of which reports are kept for 10", requests, before,
			reports)
	}
	now, s.room.tooOld = now.Add(2000*time.Hour), 1<<10
	trim(false)
	if err := s.r.QueryRow(`SELECT COUNT(*) FROM history`).Scan(&before); err != nil || before != 0 {
		t.Errorf("%d lines after 2000 hours, of which requests are kept for 1000: %v", before, err)
	}
}

// Older lines with a user are taken for requests.
func TestOlderLinesOfPeopleAreRequests(t *testing.T) {
	dir := t.TempDir()
	const id = "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c"
	line := func(uuid, user string) string {
		return `INSERT INTO history (uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone)
			VALUES ('` + uuid + `', '` + id + `', 'a', 5, 'power', 'INFO', 'x', 'c', '` + user + `', '', 'me', '', 0)`
	}
	earlier(t, dir, 7, line("h1", "ann"), line("h2", ""))
	s := openTemp(t, dir)
	var asked string
	if err := s.r.QueryRow(`SELECT uuid FROM history WHERE asked = 1`).Scan(&asked); err != nil || asked != "h1" {
		t.Errorf("requests of before = %q, %v", asked, err)
	}
}

// The newest time on record may be that of a request, a report or an event.
func TestNewest(t *testing.T) { Engines(t, testNewest) }

func testNewest(t *testing.T, o Options) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	o.Now = func() time.Time { return now }
	s := openTest(t, o)
	n := &node.Node{Driver: "x", Name: "n"}
	for _, c := range []struct {
		name string
		note func() error
	}{
		{"event", func() error { return s.CreateNode(t.Context(), n) }},
		{"report", func() error {
			return s.AddHistory(t.Context(), node.HistoryEntry{NodeUUID: n.UUID, Event: "seen"})
		}},
		{"request", func() error {
			return s.AddHistory(node.WithRequester(t.Context(), node.Requester{User: "ann"}),
				node.HistoryEntry{NodeUUID: n.UUID, Event: "asked"})
		}},
	} {
		now = now.Add(time.Hour)
		if err := c.note(); err != nil {
			t.Fatal(err)
		}
		if at, err := s.Newest(t.Context()); err != nil || !at.Equal(now) {
			t.Errorf("after a %s the newest time is %v, %v, want %v", c.name, at, err, now)
		}
	}
}

// A node's reports of erased disks do not push out those of others, and the newest stay.
func TestReportsOfErasedDisksAreBounded(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Keep: Keep{Erasures: Kept{PerNode: 5}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	keep := func(id, node string) {
		t.Helper()
		if err := s.KeepErasure(t.Context(),
			erasure.Kept{ID: id, NodeUUID: node, At: s.now(), Document: []byte(id)}); err != nil {
			t.Fatal(err)
		}
	}
	keep("alone", "other")
	for i := range 1500 {
		keep(fmt.Sprint("report ", i), "one")
	}
	kept, err := s.Erasures(t.Context(), "one")
	// they are counted now and then, one time in 64
	if err != nil || len(kept) < 5 || len(kept) > 1000 || kept[0].ID != "report 1499" {
		t.Errorf("%d reports are left, want few more than 5, and the newest: %v", len(kept), err)
	}
	if kept, err := s.Erasures(t.Context(), "other"); err != nil || len(kept) != 1 {
		t.Errorf("%d reports of another node are left, want 1: %v", len(kept), err)
	}
}

// Of too many lines those go that were written first, also when the clock was set back since.
func TestLogIsTrimmedInOrder(t *testing.T) { Engines(t, testLogIsTrimmedInOrder) }

func testLogIsTrimmedInOrder(t *testing.T, o Options) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	o.Now = func() time.Time { return now }
	o.Keep = Keep{Reports: Kept{Total: 3}}
	s := openTest(t, o)
	n := &node.Node{Driver: "x", Name: "n"}
	if err := s.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	asked := node.WithRequester(t.Context(), node.Requester{User: "ann"})
	for i := range 5 {
		if i == 3 {
			now = now.Add(-365 * 24 * time.Hour)
		}
		if err := s.AddHistory(t.Context(),
			node.HistoryEntry{NodeUUID: n.UUID, Event: fmt.Sprint("report ", i)}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddHistory(asked,
			node.HistoryEntry{NodeUUID: n.UUID, Event: fmt.Sprint("asked ", i), User: "ann"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.write(t.Context(), func(tx *txn) error { return s.trimLog(tx, true) }); err != nil {
		t.Fatal(err)
	}
	lines, err := s.History(t.Context(), n.UUID, 0)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, l := range lines {
		left = append(left, l.Event)
	}
	if got, want := strings.Join(left, ", "),
		"asked 4, report 4, asked 3, report 3, asked 2, report 2, asked 1, asked 0"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
}
