package config

import (
	"fmt"
	"time"
)

// Pools is how the pools of warm machines are looked after. What they are is set through the API.
type Pools struct {
	// Interval is the time between two looks at them when nothing seems to change.
	Interval time.Duration `yaml:"interval"`
	// Pause is how long a machine rests that failed to become or stay warm; twice as long after each failure that
	// follows, at most LongestPause.
	Pause        time.Duration `yaml:"pause"`
	LongestPause time.Duration `yaml:"longest_pause"`
}

func (p Pools) validate() (faults []error) {
	for _, c := range []struct {
		key string
		d   time.Duration
	}{{"interval", p.Interval}, {"pause", p.Pause}, {"longest_pause", p.LongestPause}} {
		if c.d <= 0 {
			faults = append(faults, fmt.Errorf("pools.%s: %v is not a positive duration", c.key, c.d))
		}
	}
	if p.LongestPause > 0 && p.LongestPause < p.Pause {
		faults = append(faults,
			fmt.Errorf("pools.longest_pause: %v is less than pools.pause, which is %v", p.LongestPause, p.Pause))
	}
	return faults
}
