package linux

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// CPUs returns the numbers of the processors that the agent may run on.
func (Machine) CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("list the processors: %w", err)
	}
	var out []int
	for n := 0; len(out) < set.Count(); n++ {
		if set.IsSet(n) {
			out = append(out, n)
		}
	}
	return out, nil
}

// OnCPU runs work on one processor and waits for it. used returns the processor time that work has consumed.
func (Machine) OnCPU(cpu int, work func(used func() time.Duration)) error {
	done := make(chan error)
	go func() {
		// The thread is never unlocked: it ends with the goroutine, so that no other goroutine inherits its affinity.
		runtime.LockOSThread()
		done <- func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("work on processor %d broke down: %v\n%s", cpu, p, debug.Stack())
				}
			}()
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				return fmt.Errorf("use processor %d: %w", cpu, err)
			}
			work(threadTime)
			return nil
		}()
	}()
	return <-done
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
