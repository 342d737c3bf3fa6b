package agent

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ingot-metal/ingot/agent/step"
)

// statusInterval is the minimum time between two progress lines on the console.
const statusInterval = 5 * time.Second

// Status writes short lines for a person at the machine.
type Status struct {
	mu   sync.Mutex
	w    io.Writer
	last time.Time
	text string
}

// NewStatus returns a Status that writes to w; nil is silent.
func NewStatus(w io.Writer) *Status { return &Status{w: w} }

// Line writes a line, unless it equals the last one.
func (s *Status) Line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if s.w == nil || text == s.text {
		return
	}
	s.text = text
	fmt.Fprintf(s.w, "ingot: %s\n", text)
}

// Step shows the beginning of a step.
func (s *Status) Step(name string) {
	s.Line("step %s", name)
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
}

// Progress shows the progress of a step, rate-limited.
func (s *Status) Progress(name string, p step.Progress) {
	s.mu.Lock()
	due := time.Since(s.last) >= statusInterval
	if due {
		s.last = time.Now()
	}
	s.mu.Unlock()
	if !due {
		return
	}
	rate := ""
	if p.Rate > 0 {
		rate = fmt.Sprintf(", %s/s", size(p.Rate))
	}
	if p.Total == 0 {
		s.Line("step %s: %s %s%s", name, p.Phase, size(p.Bytes), rate)
		return
	}
	s.Line("step %s: %s %d %% of %s%s", name, p.Phase, p.Bytes*100/p.Total, size(p.Total), rate)
}

// size formats bytes with three digits and a decimal unit.
func size(n uint64) string { return humanize.BytesN(n, 3) }
