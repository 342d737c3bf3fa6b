package agent

import "time"

const (
	// patience is how long the agent tries the conductor that it was redirected to before it asks the others.
	patience = 10 * time.Second
	// freeHops is how many redirects in a row, each within hopMemory of the last, are followed at once. Conductors
	// whose knowledge is out of date may send the agent to and fro: each one more doubles the pause before it, up to
	// maxHopPause.
	freeHops    = 3
	hopMemory   = time.Minute
	maxHopPause = 30 * time.Second
)

// route chooses the conductor to connect to: the one that the agent was redirected to, and while that one does not
// answer all that the agent knows, in turn.
type route struct {
	home     []string // of the boot parameters
	patience time.Duration
	away     string    // where the agent was redirected to; "": nowhere yet
	at       int       // index into home of the one to connect to; len(home): away
	failed   time.Time // since when away has not answered; zero: it did at last
	hops     int       // redirects in a row
	hopped   time.Time // when the last redirect came
}

// newRoute starts with the conductor that an earlier worker of this boot was redirected to, if any.
func newRoute(home []string, away string) *route {
	r := &route{home: home, patience: patience, away: away}
	if away != "" {
		r.at = len(home)
	}
	return r
}

// address is that of the conductor to connect to now.
func (r *route) address() string {
	if r.at < len(r.home) {
		return r.home[r.at]
	}
	return r.away
}

// opened notes that a session was opened.
func (r *route) opened() { r.failed = time.Time{} }

// lost notes that no session was opened at the present address, and moves on to the next one if it is time for that. It
// reports whether it moved, be it to the same one.
func (r *route) lost(now time.Time) (moved bool) {
	known := len(r.home)
	if r.away != "" {
		known++
	}
	if r.at == len(r.home) {
		if r.failed.IsZero() {
			r.failed = now
		}
		if now.Sub(r.failed) < r.patience {
			return false
		}
	}
	r.at = (r.at + 1) % known
	return true
}

// redirected makes to the address to connect to, after the pause that it returns.
func (r *route) redirected(to string, now time.Time) (pause time.Duration) {
	if now.Sub(r.hopped) >= hopMemory {
		r.hops = 0
	}
	r.hops++
	if r.hops > freeHops {
		pause = min(time.Second<<min(r.hops-freeHops-1, 10), maxHopPause)
	}
	r.hopped = now.Add(pause)
	r.away, r.at, r.failed = to, len(r.home), r.hopped
	return pause
}
