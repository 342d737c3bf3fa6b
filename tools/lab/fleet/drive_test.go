package fleet

import (
	"testing"
	"time"
)

// TestDriverAndLateNews: with thousands of nodes a list is old when it has come. It neither takes a node further than
// its target, nor counts as a failure what was only its state of before.
func TestDriverAndLateNews(t *testing.T) {
	asked := time.Now()
	m := &member{uuid: "n", state: "verifying", moved: asked.Add(time.Second)}
	d := NewDriver(nil, "available", 0, nil)
	d.of["n"], d.verbs = m, make(chan *member, 1)
	if d.quiet("n", asked) {
		t.Error("a list that was asked for before the last event counts")
	}
	if !d.quiet("n", asked.Add(time.Minute)) || d.quiet("stranger", asked) {
		t.Error("a list that was asked for after the last event does not count, or one of a node that is not known does")
	}
	m.state, m.inspected, m.asking = "manageable", true, true // a verb waits for its turn
	d.moved("n", "available")
	if verb := d.next(m); verb != "" {
		t.Errorf("a node that is at its target is to %s", verb)
	}
	m.asking = false
	if d.moved("n", "available"); !m.up || len(d.verbs) != 0 {
		t.Error("a node at its target is not left as it is")
	}
}
