package config

import "time"

// Pools is how the pools of warm machines are looked after. What they are is set through the API.
type Pools struct {
	Interval     time.Duration `yaml:"interval"`
	Pause        time.Duration `yaml:"pause"`
	LongestPause time.Duration `yaml:"longest_pause"`
}

// Reservations is how reservations of machines are kept. What they are is set through the API.
type Reservations struct {
	Prepare  time.Duration `yaml:"prepare"`
	Warning  time.Duration `yaml:"warning"`
	Interval time.Duration `yaml:"interval"`
}
