package agent

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ingot-metal/ingot/agent/step"
)

// statusInterval is the least distance between two progress lines on the console.
const statusInterval = 5 * time.Second

// Status writes short lines for a person who stands at the machine.
type Status struct {
	mu   sync.Mutex
	w    io.Writer
	last time.Time
	text string
}

// NewStatus makes a Status that writes to w; nil is silent.
func NewStatus(w io.Writer) *Status { return &Status{w: w} }

// Line writes a line, unless it is the same as the last one.
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

// Step says which step begins.
func (s *Status) Step(name string) {
	s.Line("step %s", name)
	s.mu.Lock()
	s.last = time.Now()
	s.mu.Unlock()
}

// Progress says how far a step is, now and then.
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

// size writes bytes with three digits and a decimal unit.
func size(n uint64) string { return humanize.BytesN(n, 3) }
