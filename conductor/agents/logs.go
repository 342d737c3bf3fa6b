package agents

import (
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// How much of the agents' logs is kept in memory.
const (
	keptNodes = 1024
	maxAttrs  = 32
)

// LogLine is one line of an agent's log.
type LogLine struct {
	Number  uint64 // counts received lines from 1 since the conductor started, without gaps
	At      time.Time
	Level   string
	Message string
	Attrs   []string // key=value
	Lost    uint64   // how many lines before this one the agent had to throw away
}

// journal keeps the newest log lines of each node.
type journal struct {
	mu    sync.Mutex
	rings map[string]*ring
}

type ring struct {
	lines []LogLine // at most limit.LogLines; number n is at (n-1) % limit.LogLines
	last  uint64
	wrote time.Time
}

func (j *journal) add(node string, l LogLine, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.rings == nil {
		j.rings = map[string]*ring{}
	}
	r := j.rings[node]
	if r == nil {
		if len(j.rings) >= keptNodes {
			j.forgetOldest()
		}
		r = &ring{}
		j.rings[node] = r
	}
	r.last++
	r.wrote = now
	l.Number = r.last
	if len(r.lines) < limit.LogLines {
		r.lines = append(r.lines, l)
		return
	}
	r.lines[(r.last-1)%limit.LogLines] = l
}

func (j *journal) forgetOldest() {
	oldest := ""
	for n, r := range j.rings {
		if oldest == "" || r.wrote.Before(j.rings[oldest].wrote) {
			oldest = n
		}
	}
	delete(j.rings, oldest)
}

// after returns the kept lines with a number above n, oldest first.
func (j *journal) after(node string, n uint64) []LogLine {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.rings[node]
	if r == nil || n >= r.last {
		return nil
	}
	first := max(n+1, r.last-uint64(len(r.lines))+1)
	out := make([]LogLine, 0, r.last-first+1)
	for i := first; i <= r.last; i++ {
		out = append(out, r.lines[(i-1)%limit.LogLines])
	}
	return out
}

// budget is a bucket of tokens: at most size at once, refilled over every.
type budget struct {
	size  float64
	every time.Duration

	left float64
	at   time.Time
}

// take reports whether one more is allowed now.
func (b *budget) take(now time.Time) bool {
	if b.at.IsZero() {
		b.left = b.size
	} else if d := now.Sub(b.at); d > 0 {
		b.left = min(b.size, b.left+b.size*float64(d)/float64(b.every))
	}
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
