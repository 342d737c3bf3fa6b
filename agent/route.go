package agent

import (
	"slices"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

const (
	// patience is how long the agent tries the conductor that it was redirected to, or that it had a session with,
	// before it asks the others.
	patience = 10 * time.Second
	// longBusy is how long a conductor may send the agent away before it counts as one that does not answer.
	longBusy = time.Minute
	// freeHops is how many redirects in a row, each within hopMemory of the last, are followed at once. Conductors
	// whose knowledge is out of date may send the agent to and fro: each one more doubles the pause before it, up to
	// maxHopPause.
	freeHops    = 3
	hopMemory   = time.Minute
	maxHopPause = 30 * time.Second
)

// route chooses the conductor to connect to: the one that the agent was redirected to, or that it had a session with,
// and while that one does not answer all that the agent knows, in turn.
type route struct {
	home     []string // of the boot parameters
	others   []string // named by the last conductor that had a session with the agent
	away     string   // where the agent was redirected to, or had a session; "": nowhere yet
	present  string   // the one to connect to
	patience time.Duration
	failed   time.Time // since when away has not answered; zero: it did at last
	busy     time.Time // since when the present one sends the agent away; zero: it did not at last
	hops     int       // redirects in a row
	hopped   time.Time // when the last redirect came
}

// newRoute starts with the conductor that an earlier worker of this boot was redirected to, if any.
func newRoute(home, others []string, away string) *route {
	r := &route{home: home, others: others, patience: patience, away: away, present: away}
	if away == "" && len(home) > 0 {
		r.present = home[0]
	}
	return r
}

// address is that of the conductor to connect to now.
func (r *route) address() string { return r.present }

// opened notes that a session was opened.
func (r *route) opened() { r.away, r.failed, r.busy = r.present, time.Time{}, time.Time{} }

// sentAway notes that the present conductor is there, but has so many agents to admit that it sends some away, and
// reports whether to stay with it. Another one would only redirect the agent to it, and with thousands of agents that
// keeps all conductors busy.
func (r *route) sentAway(now time.Time) (stay bool) {
	if r.busy.IsZero() {
		r.busy = now
	}
	return now.Sub(r.busy) < longBusy
}

// learn takes the conductors that a Welcome names, and returns them, without what is no address; nil if they are known.
func (r *route) learn(named []string) []string {
	others := []string{}
	for _, c := range named[:min(len(named), agentv1.MaxConductors)] {
		if agentv1.CheckAddress(c) == nil {
			others = append(others, c)
		}
	}
	if slices.Equal(others, r.others) {
		return nil
	}
	r.others = others
	return others
}

// known are all conductors, each once.
func (r *route) known() []string {
	var all []string
	for _, c := range slices.Concat(r.home, r.others, []string{r.away}) {
		if c != "" && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// lost notes that no session was opened at the present address, and moves on to the next one if it is time for that. It
// reports whether it moved, be it to the same one.
func (r *route) lost(now time.Time) (moved bool) {
	r.busy = time.Time{}
	if r.present == r.away {
		if r.failed.IsZero() {
			r.failed = now
		}
		if now.Sub(r.failed) < r.patience {
			return false
		}
	}
	all := r.known()
	r.present = all[(slices.Index(all, r.present)+1)%len(all)]
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
	r.away, r.present, r.failed = to, to, r.hopped
	return pause
}
