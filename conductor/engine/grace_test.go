package engine

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestGraceWhileAgentsComeBack: an agent that lost its session is waited for longer while others come back, as after a
// restart with thousands of them; not without end, and no longer if none comes.
func TestGraceWhileAgentsComeBack(t *testing.T) {
	const grace = time.Minute
	now := time.Now()
	for _, tt := range []struct {
		what     string
		lost     time.Duration // before now
		returned time.Duration // before now; zero: none
		want     time.Duration
	}{
		{"lost just now", 0, 0, grace},
		{"lost, and no agent came back", 61 * time.Second, 0, 0},
		{"lost, and one came back long ago", 61 * time.Second, 30 * time.Second, 0},
		{"lost, and others come back", 61 * time.Second, time.Second, 14 * time.Second},
		{"one came back at the beginning", 10 * time.Second, 5 * time.Second, 50 * time.Second},
		{"lost long ago", 295 * time.Second, time.Second, 5 * time.Second},
		{"lost too long ago", 301 * time.Second, time.Second, 0},
	} {
		e := &Engine{}
		e.cfg.SessionGrace = grace
		if tt.returned > 0 {
			e.returned = now.Add(-tt.returned)
		}
		got := e.grace(&node.Boot{LostAt: now.Add(-tt.lost)})
		if d := tt.want - got; d < 0 || d > 3*time.Second {
			t.Errorf("%s: %s are left, want %s", tt.what, got, tt.want)
		}
	}
}
