package step

import (
	"sync"
	"time"
)

// meterWindow is the period of a rate: long enough to smooth a disk's flushes, short enough to show a stall.
const meterWindow = 5 * time.Second

// meter computes the rate of a step that reports bytes, and distinguishes signs of life from mere repetition.
type meter struct {
	mu      sync.Mutex
	last    Progress
	seen    bool
	samples []sample
}

type sample struct {
	at    time.Time
	bytes uint64
}

// note takes a report made at now, fills in its rate unless the step set one, and reports whether anything changed.
func (m *meter) note(now time.Time, p Progress) (Progress, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	alive := !m.seen || p.Bytes != m.last.Bytes || p.Phase != m.last.Phase
	if !m.seen || p.Phase != m.last.Phase || p.Bytes < m.last.Bytes {
		m.samples = m.samples[:0]
	}
	m.seen, m.last = true, p
	// One sample per 50 ms is plenty: a step may report each buffer.
	if n := len(m.samples); n < 2 || now.Sub(m.samples[n-1].at) >= 50*time.Millisecond {
		m.samples = append(m.samples, sample{now, p.Bytes})
	}
	for len(m.samples) > 2 && now.Sub(m.samples[1].at) >= meterWindow {
		m.samples = m.samples[1:]
	}
	if p.Rate == 0 {
		first := m.samples[0]
		if d := now.Sub(first.at); d > 0 && p.Bytes > first.bytes {
			p.Rate = uint64(float64(p.Bytes-first.bytes) / d.Seconds())
		}
	}
	return p, alive
}
