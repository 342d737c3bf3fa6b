package linux

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOnCPU: work runs on the given processor, its time counts, and other threads stay where they were.
func TestOnCPU(t *testing.T) {
	var m Machine
	cpus, err := m.CPUs()
	if err != nil || len(cpus) == 0 {
		t.Fatalf("CPUs() = %v, %v", cpus, err)
	}
	for _, cpu := range cpus {
		var bound unix.CPUSet
		var took time.Duration
		err := m.OnCPU(cpu, func(used func() time.Duration) {
			if err := unix.SchedGetaffinity(0, &bound); err != nil {
				t.Error(err)
			}
			for from := used(); took == 0; {
				took = used() - from
			}
		})
		if err != nil || bound.Count() != 1 || !bound.IsSet(cpu) || took <= 0 {
			t.Errorf("on processor %d: bound to %d processors, %s used, %v", cpu, bound.Count(), took, err)
		}
	}
	if again, err := m.CPUs(); err != nil || len(again) != len(cpus) {
		t.Errorf("CPUs() afterwards = %v, %v, want %v", again, err, cpus)
	}
	if err := m.OnCPU(cpus[0], func(func() time.Duration) { panic("boom") }); err == nil {
		t.Error("work that broke down is no error")
	}
	if err := m.OnCPU(1<<20, func(func() time.Duration) {}); err == nil {
		t.Error("a processor that there is not was used")
	}
}
