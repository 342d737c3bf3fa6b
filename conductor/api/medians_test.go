package api

import (
	"fmt"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestMediansOfWhatTheCallerSees: jobs that failed and those of other projects don't count, nor do those of before a
// lease.
func TestMediansOfWhatTheCallerSees(t *testing.T) {
	began := time.Now().Add(-time.Hour).UTC()
	var nodes []node.Node
	for i, n := range []struct {
		owner, lessee, failure string
		seconds                int
		leased                 time.Time
	}{
		{"owner", "lessee", "", 100, began.Add(-time.Minute)}, {"owner", "", "", 200, time.Time{}},
		{"other", "", "", 400, time.Time{}}, {"owner", "", "it broke", 5, time.Time{}},
		{"owner", "lessee", "", 300, began.Add(time.Minute)},
	} {
		id := fmt.Sprintf("1ef6a2f6-4f76-4e73-9c2f-fbb5eab8977%d", i)
		end := began.Add(time.Duration(n.seconds) * time.Second)
		job := &node.Job{ID: fmt.Sprint("j", i), Phase: node.PhaseDeploy, StartedAt: began, EndedAt: end,
			Failure: n.failure}
		nodes = append(nodes, node.Node{UUID: id, Owner: n.owner, Lessee: n.lessee, LeasedAt: n.leased,
			Provision: node.Active, Past: map[node.Phase]*node.Job{node.PhaseDeploy: job}})
	}
	f := newFixture(t, Config{}, nodes...)
	for i, n := range nodes {
		j := n.Past[node.PhaseDeploy]
		if _, err := f.st.Change(t.Context(), n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
			effects.Marks = append(effects.Marks,
				node.Mark{JobID: j.ID, Name: node.MarkRequested, At: j.StartedAt, Detail: "deploy"},
				node.Mark{JobID: j.ID, Name: node.MarkState, At: j.EndedAt, Detail: "active"})
			return nil
		}); err != nil {
			t.Fatal(i, err)
		}
	}
	for _, tt := range []struct {
		who           access.Actor
		query         string
		jobs, seconds int
	}{
		{access.Actor{System: true, Role: access.Reader}, "", 4, 250},
		{access.Actor{System: true, Role: access.Reader}, "?phase=deploy", 4, 250},
		{access.Actor{System: true, Role: access.Reader}, "?phase=clean", 0, 0},
		{access.Actor{ProjectID: "owner", Role: access.Reader}, "", 3, 200},
		{access.Actor{ProjectID: "lessee", Role: access.Reader}, "", 1, 100},
		{access.Actor{ProjectID: "stranger", Role: access.Admin}, "", 0, 0},
	} {
		f.as(tt.who)
		out := f.want(200, "GET", "/ingot/v1/medians"+tt.query, "")
		if fmt.Sprint(out["jobs"], out["seconds"]) != fmt.Sprint(tt.jobs, tt.seconds) {
			t.Errorf("%v %s: %v, want %d jobs, %d s", tt.who, tt.query, out, tt.jobs, tt.seconds)
		}
	}
}
