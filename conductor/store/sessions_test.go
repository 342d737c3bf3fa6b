package store

import (
	"fmt"
	"testing"
	"time"
)

// A session that was signed out has ended for all conductors of the database. What a user's sign-outs take is bounded,
// without a loss for others, and what is too old anyway is forgotten.
func TestEndedSessions(t *testing.T) { Engines(t, testEndedSessions) }

func testEndedSessions(t *testing.T, o Options) {
	s := openTest(t, o)
	ctx, later := t.Context(), time.Now().Add(time.Hour)
	end := func(id, whose string, until time.Time) {
		t.Helper()
		if err := s.EndSession(ctx, id, whose, until, 3); err != nil {
			t.Fatal(err)
		}
	}
	has := func(id string) bool {
		t.Helper()
		ended, err := s.SessionEnded(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return ended
	}
	end("a", "ann", later)
	end("a", "ann", later) // twice, by two pages
	if !has("a") || has("b") {
		t.Errorf("a has ended: %v, b: %v", has("a"), has("b"))
	}
	for i := range 10 {
		end(fmt.Sprint("b", i), "bob", later.Add(time.Duration(i)*time.Second))
	}
	if !has("a") || has("b6") || !has("b7") || !has("b9") {
		t.Error("of bob's sessions the newest three are not kept, or ann's is gone")
	}
	end("old", "eve", time.Now().Add(-time.Second))
	end("c", "eve", later)
	if has("old") || !has("c") {
		t.Error("what is over is kept, or what is not is forgotten")
	}
}
