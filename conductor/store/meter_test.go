package store

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ingot-metal/ingot/conductor/node"
)

// tally counts what a store does.
type tally struct {
	mu     sync.Mutex
	text   map[string]int // by the first word
	failed map[string]int
	writes int
}

func (c *tally) Statement(text string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, _, _ := strings.Cut(text, " ")
	if took > 0 {
		c.text[first]++
	}
}

func (c *tally) StatementFailed(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed[kind]++
}

func (c *tally) Group(writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes += writes
}

// TestCensus counts nodes by states, fault and owner, and what it took is counted, too.
func TestCensus(t *testing.T) { Engines(t, testCensus) }

func testCensus(t *testing.T, o Options) {
	c := &tally{text: map[string]int{}, failed: map[string]int{}}
	o.Meter = c
	s := openTest(t, o)
	ctx := t.Context()
	c.mu.Lock()
	c.text, c.failed, c.writes = map[string]int{}, map[string]int{}, 0 // the schema is made
	c.mu.Unlock()
	if got, err := s.Census(ctx); err != nil || len(got) != 0 {
		t.Errorf("of no nodes: %v, %v", got, err)
	}
	at := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)
	for i, n := range []node.Node{{Provision: node.Active, Power: "power on", Conductor: "a"},
		{Provision: node.Active, Power: "power on", Conductor: "a"},
		{Provision: node.Deploying, Fault: "power failure", Maintenance: true}} {
		n.UUID, n.Driver = fmt.Sprintf("6ba7b810-9dad-11d1-80b4-00c04fd430c%d", i), "redfish"
		n.ProvisionUpdatedAt = at.Add(time.Duration(i) * time.Minute)
		if err := s.CreateNode(ctx, &n); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Census(ctx)
	want := []node.Count{{State: node.Active, Power: "power on", Conductor: "a", Nodes: 2, Since: at},
		{State: node.Deploying, Fault: "power failure", Maintenance: true, Nodes: 1, Since: at.Add(2 * time.Minute)}}
	sorted := cmpopts.SortSlices(func(a, b node.Count) bool { return a.State < b.State })
	if d := cmp.Diff(want, got, sorted); err != nil || d != "" {
		t.Errorf("census: %v (-want +got):\n%s", err, d)
	}
	if _, err := s.r.ExecContext(ctx, `SELECT nonsense`); err == nil {
		t.Error("nonsense is no statement")
	}
	if s.Waiting() != 0 || (s.Bytes() > 0) != (o.URL == "") {
		t.Errorf("%d writes wait, %d bytes", s.Waiting(), s.Bytes())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes != 3 || c.text["INSERT"] < 3 || c.text["SELECT"] < 2 || c.failed["other"] != 1 || len(c.failed) != 1 {
		t.Errorf("%d writes, statements %v, failed %v", c.writes, c.text, c.failed)
	}
}
