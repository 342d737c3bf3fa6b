package api

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
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
