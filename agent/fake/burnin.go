package fake

import (
	"fmt"
	"time"
)

// CPUs are numbered from 0; there is one if Cores says nothing.
func (m *Machine) CPUs() ([]int, error) {
	out := make([]int, max(1, len(m.Cores)))
	for i := range out {
		out[i] = i
	}
	return out, nil
}

// OnCPU does the work; each question for the time finds a millisecond gone, or longer on a core that is slow.
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
