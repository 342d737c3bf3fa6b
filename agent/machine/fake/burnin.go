package fake

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// CPUs are numbered from 0; there is one if Cores is empty.
func (m *Machine) CPUs() ([]int, error) {
	out := make([]int, max(1, len(m.Cores)))
	for i := range out {
		out[i] = i
	}
	return out, nil
}

// OnCPU runs the work; each query of the time advances it by a millisecond, or more on a slow core.
func (m *Machine) OnCPU(cpu int, work func(used func() time.Duration)) error {
	speed := 1.0
	if cpu < len(m.Cores) {
		speed = m.Cores[cpu]
	}
	if speed <= 0 {
		return fmt.Errorf("use processor %d: it is off", cpu)
	}
	var used time.Duration
	work(func() time.Duration {
		used += time.Duration(float64(time.Millisecond) / speed)
		return used
	})
	return nil
}

// Memory allocates ordinary memory with the Stuck bits.
func (m *Machine) Memory(_ context.Context, size int64) (interface {
	Words() []uint64
	Locked() bool
	Physical(offset int64) (uint64, bool)
	Close() error
}, error) {
	if m.Free > 0 && size > m.Free {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, unix.ENOMEM)
	}
	return &region{words: make([]uint64, size/8), m: m}, nil
}

// Stuck is a memory cell that always holds 1, or 0.
type Stuck struct {
	Offset int64 // of the word, in bytes
	Bit    int
	One    bool
}

type region struct {
	words  []uint64
	m      *Machine
	closed bool
}

// Words returns the region. Faults are applied on each call, that is, after each pass.
func (r *region) Words() []uint64 {
	for _, s := range r.m.Stuck {
		if s.One {
			r.words[s.Offset/8] |= 1 << s.Bit
		} else {
			r.words[s.Offset/8] &^= 1 << s.Bit
		}
	}
	return r.words
}

func (r *region) Locked() bool { return !r.m.NoLock }

// Physical returns the offset plus 4 GiB.
func (r *region) Physical(offset int64) (uint64, bool) { return 1<<32 + uint64(offset), true }

func (r *region) Close() error {
	if r.closed {
		return fmt.Errorf("give memory back: %w", unix.EINVAL)
	}
	r.closed, r.words = true, nil
	return nil
}

// Segments returns a thousand for each connection, Again of them retransmitted.
func (m *Machine) Segments(*net.TCPConn) (sent, again int64, err error) { return 1000, m.Again, nil }
