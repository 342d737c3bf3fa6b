package kit

import "regexp"

// slow are the words with which a kernel complains that time goes by and its processor does not: it is emulated, and
// others use the processors that emulate it. As Linux 6.1 has them; those of devices and drivers are not among them.
var slow = regexp.MustCompile(`^(?:` +
	`rcu: ` + // of stalls, in many lines: rcu: INFO: rcu_preempt self-detected stall on CPU
	`|INFO: rcu_\w+ ` +
	`|(?:watchdog: )?BUG: soft lockup - ` +
	`|BUG: workqueue lockup - ` +
	`|(?:clocksource|hrtimer|perf|sched_clock|tsc|TSC|sched): ` +
	`|APIC (?:calibration|delta|timer|frequency)` +
	`|(?:PIT|HPET|PM-Timer|PMTIMER) calibration` +
	`|\.\.MP-BIOS bug: 8254 timer not connected` + // the timer's ten ticks came too late
	`|\.\.\.trying to set up timer` +
	`)`)

// OfSlowness reports whether a kernel's message, without its time, comes of a processor that was away for a while. On a
// busy machine any boot may have it; it says nothing of the system that boots.
func OfSlowness(message string) bool { return slow.MatchString(message) }
