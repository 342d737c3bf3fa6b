package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Standing is where a machine stands on its way to being warm.
type Standing string

// Standings.
const (
	Out     Standing = "out"     // it is not available: in use, being cleaned, ...
	Cold    Standing = "cold"    // no agent runs on it
	Warming Standing = "warming" // its agent is being booted
	Warm    Standing = "warm"    // its agent waits for work
	Staging Standing = "staging" // it is warm, and an image is being written ahead
	Lost    Standing = "lost"    // its agent was there and is out of reach; it may come back
	Cooling Standing = "cooling" // it is being turned off
	Busy    Standing = "busy"    // something else is under way on it
)

// Fact describes one machine that a pool is for.
type Fact struct {
	UUID, Name string
	Standing   Standing
	On         bool   // of an available machine: it takes power, or may at any moment
	Excluded   string // why the pool must leave it alone; empty: it need not
	Retired    bool   // it is excluded for good, and is turned off if the pool turned it on
	Staged     bool   // the pool's image was written ahead
	Watts      int
	// who requested its being turned off, while it is Cooling; empty: its conductor, which lost its agent
	CooledBy string
	Member   node.PoolMember // the pool's record of it
	// Why the newest attempt to make it warm, or to write an image ahead, failed, and when; empty: it did not.
	Failure  string
	FailedAt time.Time
}

// going reports whether a machine is warm, or will be if nothing goes wrong.
func (f *Fact) going() bool {
	switch f.Standing {
	case Warm, Warming, Staging, Lost:
		return f.Excluded == ""
	}
	return false
}

// own reports whether the pool turned the machine on.
func (f *Fact) own() bool { return !f.Member.Asked.IsZero() || f.Member.Left }

// Act is something that the pool does to a machine.
type Act struct {
	Do   string // DoWarm, DoCool, DoStage
	Node string // UUID
	Why  string
}

// What a pool does.
const (
	DoWarm  = "warm"
	DoCool  = "cool"
	DoStage = "stage"
)

// Pace says how often things are tried.
type Pace struct {
	Pause   time.Duration // after the first failure of a machine; twice as long after each that follows. Zero: a minute
	Longest time.Duration // and this at most. Zero: an hour
	Steady  time.Duration // how long a machine must be warm for its failures to be forgotten. Zero: ten minutes
}

func (p Pace) filled() Pace {
	p.Pause, p.Longest, p.Steady = cmp.Or(p.Pause, time.Minute), cmp.Or(p.Longest, time.Hour),
		cmp.Or(p.Steady, 10*time.Minute)
	return p
}

// rest is how long a machine is left alone after so many failures in a row.
func (p Pace) rest(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := p.Pause
	for range failures - 1 {
		if d *= 2; d >= p.Longest {
			return p.Longest
		}
	}
	return min(d, p.Longest)
}

// Decision follows from a policy and the facts.
type Decision struct {
	Wanted  int // how many are to be warm
	Warm    int // are, those with an image being written ahead among them
	Warming int // will be
	On      int // machines that take power for the pool
	Watts   int // their sum
	Acts    []Act
	Short   string            // why fewer are warm than wanted and nothing can be done now; empty: that is not so
	Why     map[string]string // by node: why it is neither warm nor on its way
	// Next is when something will be done that must not be done yet; zero: nothing waits.
	Next time.Time
}

// budget is the power that the machines of a pool may take.
type budget struct {
	pool     *node.Pool
	on, watt int
}

func (b *budget) add(f *Fact) { b.on, b.watt = b.on+1, b.watt+f.Watts }
func (b *budget) sub(f *Fact) { b.on, b.watt = b.on-1, b.watt-f.Watts }

// exceeded reports whether more machines are on than may be.
func (b *budget) exceeded() bool {
	return b.pool.MaxOn > 0 && b.on > b.pool.MaxOn || b.pool.MaxWatts > 0 && b.watt > b.pool.MaxWatts
}

// fits reports why no further machine may be turned on; "" if one may.
func (b *budget) fits(f *Fact) (why string) {
	if b.pool.MaxOn > 0 && b.on+1 > b.pool.MaxOn {
		return fmt.Sprintf("%d machines are on, and no more than %d may be", b.on, b.pool.MaxOn)
	}
	if b.pool.MaxWatts > 0 && b.watt+f.Watts > b.pool.MaxWatts {
		return fmt.Sprintf(
			"the machines that are on take %d W, this one would take %d W, and all together may take %d W", b.watt,
			f.Watts, b.pool.MaxWatts)
	}
	return ""
}

// Wanted is how many of so many machines a pool wants to be warm.
func Wanted(p *node.Pool, machines int) int {
	n := p.Count
	if p.Percent > 0 {
		n = (machines*p.Percent + 99) / 100
	}
	return min(n, machines)
}

// Decide returns the actions of a pool. It is a pure function: the same policy, facts (in any order) and time return
// the same decision. After all actions of a decision have been begun, the machines that are on are still within the
// pool's limits, if they were before; no warm machine is disturbed unless there are more than wanted or than the limits
// allow.
func Decide(p *node.Pool, facts []Fact, now time.Time, pace Pace) Decision {
	pace = pace.filled()
	facts = slices.Clone(facts)
	slices.SortFunc(facts, func(a, b Fact) int { return cmp.Compare(a.UUID, b.UUID) })
	d := Decision{Wanted: Wanted(p, len(facts)), Why: map[string]string{}}
	power := budget{pool: p}
	leaving := budget{pool: p} // power without machines that are being turned off
	going := 0
	for i := range facts {
		f := &facts[i]
		if f.On {
			power.add(f)
			if f.Standing != Cooling {
				leaving.add(f)
			}
		}
		if f.going() {
			going++
		}
		switch {
		case f.Excluded != "":
			d.Why[f.UUID] = f.Excluded
		case f.Standing == Warm || f.Standing == Staging:
			d.Warm++
		case f.Standing == Warming:
			d.Warming++
		case f.Standing == Lost:
			d.Why[f.UUID] = "its agent is out of reach; it is replaced when it does not come back"
		}
	}
	cooled := map[string]bool{}
	wait := func(t time.Time) {
		if d.Next.IsZero() || t.Before(d.Next) {
			d.Next = t
		}
	}
	cool := func(f *Fact, why string) bool {
		if again := f.Member.Cooled.Add(pace.Pause); now.Before(again) { // it was tried just now, in vain
			wait(again)
			return false
		}
		d.Acts = append(d.Acts, Act{DoCool, f.UUID, why})
		cooled[f.UUID] = true
		d.Why[f.UUID] = why
		leaving.sub(f)
		if f.going() {
			going--
		}
		return true
	}

	// Useless machines that are on come first, then those whose loss is smallest, and warm ones that the pool did not
	// turn on last. Machines that were turned on by others, for a reason of their own, stay on.
	offable := func(f *Fact) bool {
		return (f.Excluded == "" || f.Retired) && f.On && !cooled[f.UUID] &&
			(f.Standing == Warm || f.Standing == Cold && f.own())
	}
	for i := range facts {
		if f := &facts[i]; f.Retired && f.own() && offable(f) {
			cool(f, f.Excluded)
		}
	}
	byLoss := slices.Clone(facts)
	slices.SortStableFunc(byLoss, func(a, b Fact) int { return cmp.Compare(loss(&b), loss(&a)) })
	for i := range byLoss {
		if f := &byLoss[i]; leaving.exceeded() && offable(f) {
			cool(f, "more machines are on than may be")
		}
	}
	for i := range byLoss {
		if f := &byLoss[i]; going > d.Wanted && f.Excluded == "" && offable(f) && f.Standing == Warm &&
			!f.Member.Asked.IsZero() {
			cool(f, "more machines are warm than wanted")
		}
	}

	// Missing machines are taken from the cold ones.
	candidates := make([]*Fact, 0, len(facts))
	for i := range facts {
		f := &facts[i]
		if f.Excluded != "" || f.Standing != Cold || cooled[f.UUID] {
			if f.Standing == Busy && f.Excluded == "" {
				d.Why[f.UUID] = "something else is under way on it"
			}
			continue
		}
		if until := f.Member.FailedAt.Add(pace.rest(f.Member.Failures)); f.Member.Failures > 0 && now.Before(until) {
			d.Why[f.UUID] = fmt.Sprintf("%s (%s); it is tried again at %s", f.Member.Reason, times(f.Member.Failures),
				until.UTC().Format(time.RFC3339))
			wait(until)
			continue
		}
		candidates = append(candidates, f)
	}
	slices.SortStableFunc(candidates, func(a, b *Fact) int {
		return cmp.Or(cmp.Compare(a.Member.Failures, b.Member.Failures), cmp.Compare(onRank(a), onRank(b)))
	})
	short := ""
	if power.exceeded() {
		short = "more machines are on than may be"
	}
	for _, f := range candidates {
		if going >= d.Wanted {
			d.Why[f.UUID] = "enough machines are warm"
			continue
		}
		if !f.On {
			if why := power.fits(f); why != "" {
				d.Why[f.UUID] = why
				short = cmp.Or(short, why)
				continue
			}
			power.add(f)
			leaving.add(f)
		} else if power.exceeded() {
			d.Why[f.UUID] = "more machines are on than may be"
			continue
		}
		d.Acts = append(d.Acts, Act{DoWarm, f.UUID, "fewer machines are warm than wanted"})
		d.Warming++
		going++
		delete(d.Why, f.UUID)
	}

	// What the pool left on and does not make warm now is turned off: it takes the power of another.
	taken := map[string]bool{}
	for _, a := range d.Acts {
		taken[a.Node] = true
	}
	for i := range facts {
		f := &facts[i]
		if f.Standing == Cold && f.On && f.Member.Left && f.Excluded == "" && !taken[f.UUID] {
			why := d.Why[f.UUID]
			if cool(f, "it is on for nothing") && why != "" {
				d.Why[f.UUID] = why
			}
		}
	}

	if p.Image != nil {
		for i := range facts {
			f := &facts[i]
			if f.Standing != Warm || f.Excluded != "" || cooled[f.UUID] || f.Staged {
				continue
			}
			if until := f.Member.StageFailedAt.Add(pace.rest(f.Member.StageFailures)); f.Member.StageFailures > 0 &&
				now.Before(until) {
				wait(until)
				continue
			}
			d.Acts = append(d.Acts, Act{DoStage, f.UUID, "the pool's image is not on it"})
		}
	}

	d.On, d.Watts = 0, 0
	for i := range facts {
		if f := &facts[i]; f.On {
			d.On, d.Watts = d.On+1, d.Watts+f.Watts
		}
	}
	if going < d.Wanted {
		d.Short = cmp.Or(short, "no other machine can be made warm now")
	}
	return d
}

// loss ranks machines by the loss of turning them off: the less, the higher.
func loss(f *Fact) int {
	switch {
	case f.Standing != Warm:
		return 4
	case f.own() && !f.Staged:
		return 3
	case f.own():
		return 2
	}
	return 1
}

// onRank prefers to warm a machine that the pool left on before another is turned on, and one that another user turned
// on last.
func onRank(f *Fact) int {
	if f.On && f.own() {
		return 0
	}
	if !f.On {
		return 1
	}
	return 2
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}
