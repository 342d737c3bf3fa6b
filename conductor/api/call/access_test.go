package call

import (
	"testing"
	"time"
)

// TestLesseeSeesTheLeaseAlone: what a clock that was ahead recorded before the lease is not shown, although its time is
// a later one.
func TestLesseeSeesTheLeaseAlone(t *testing.T) {
	lease := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	now := lease.Add(48 * time.Hour)
	for _, tt := range []struct {
		what string
		at   time.Time
		want bool
	}{
		{"before the lease", lease.Add(-time.Second), false},
		{"the lease's begin", lease, true},
		{"now", now, true},
		{"by another conductor's clock", now.Add(time.Minute), true},
		{"before the clock was set back", lease.Add(365 * 24 * time.Hour), false},
	} {
		if got := leased(lease, now).Sees(tt.at); got != tt.want {
			t.Errorf("%s: shown %v, want %v", tt.what, got, tt.want)
		}
		if !(View{Insides: true}).Sees(tt.at) {
			t.Errorf("%s: not shown to the owner", tt.what)
		}
	}
}
