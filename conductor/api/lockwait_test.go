package api

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// TestLockWait: a request waits for a node that is locked, and is carried out once when the lock goes. One that does
// not go is a 409.
func TestLockWait(t *testing.T) {
	locked := node.Node{Name: "held", Provision: node.Manageable, Reservation: "c9"}
	var c counted
	f := newFixture(t, Config{LockWait: time.Minute, Meter: &c}, locked)
	id := f.want(200, "GET", "/v1/nodes/held", "")["uuid"].(string)
	freed := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		_, err := f.st.UpdateNode(t.Context(), id, func(n *node.Node) error { n.Reservation = ""; return nil })
		freed <- err
	})
	out := f.want(200, "PATCH", "/v1/nodes/held",
		`[{"op": "add", "path": "/extra/list", "value": ["x"]}, {"op": "add", "path": "/extra/list/-", "value": "y"}]`)
	if err := <-freed; err != nil {
		t.Fatal(err)
	}
	if list := out["extra"].(map[string]any)["list"].([]any); len(list) != 2 {
		t.Errorf("extra/list = %v, want [x y]", list)
	}

	if c.repeats == 0 {
		t.Error("no repetition is counted")
	}

	f = newFixture(t, Config{LockWait: 50 * time.Millisecond}, locked)
	f.want(409, "PATCH", "/v1/nodes/held", `[{"op": "add", "path": "/extra/a", "value": 1}]`)
	f.want(409, "PUT", "/v1/nodes/held/states/provision", `{"target": "provide"}`)
	if out := f.want(200, "GET", "/v1/nodes/held", ""); len(out["extra"].(map[string]any)) != 0 {
		t.Errorf("a refused request changed the node: %v", out["extra"])
	}
}

// TestClientsKnowALockByItsWords: clients repeat requests that were refused by these words, and no others.
func TestClientsKnowALockByItsWords(t *testing.T) {
	f := newFixture(t, Config{})
	for err, again := range map[error]bool{
		&engine.LockedError{NodeUUID: "n", Holder: "c1", Doing: "a power action is under way"}: true,
		finder.LockedBy(&node.Node{UUID: "n", Reservation: "c1"}):                              true,
		&store.DuplicateError{Field: "name", Value: "x"}:                                       false,
		&store.PromisedError{Promise: node.Promise{NodeUUID: "n"}}:                             false,
	} {
		e := f.srv.translate(err, &call.Call{}, "1")
		if got := rest.DecodeError(e.Status, e.Body()); got.Status != 409 || got.Again != again {
			t.Errorf("%v: status %d, again %v, want 409, %v", err, got.Status, got.Again, again)
		}
	}
}
