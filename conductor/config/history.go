package config

import (
	"fmt"
	"time"
)

// History is how much of the past is kept, in the nodes' histories and in the log of all nodes. What people asked for,
// and what machines and the conductor itself reported, are counted apart: neither pushes out the other.
type History struct {
	// RequestsPerNode and RequestsTotal are how many requests of people are kept, for each node and in all; RequestsAge
	// is for how long.
	RequestsPerNode int           `yaml:"requests_per_node"`
	RequestsTotal   int           `yaml:"requests_total"`
	RequestsAge     time.Duration `yaml:"requests_age"`
	// ReportsPerNode, ReportsTotal and ReportsAge are the same for everything else.
	ReportsPerNode int           `yaml:"reports_per_node"`
	ReportsTotal   int           `yaml:"reports_total"`
	ReportsAge     time.Duration `yaml:"reports_age"`
}

func defaultHistory() History {
	const day = 24 * time.Hour
	return History{RequestsPerNode: 2000, RequestsTotal: 500_000, RequestsAge: 730 * day, ReportsPerNode: 1000,
		ReportsTotal: 500_000, ReportsAge: 180 * day}
}

func (h History) validate() (faults []error) {
	for key, n := range map[string]int{"requests_per_node": h.RequestsPerNode, "requests_total": h.RequestsTotal,
		"reports_per_node": h.ReportsPerNode, "reports_total": h.ReportsTotal} {
		if n < 10 {
			faults = append(faults, fmt.Errorf("history.%s: %d is less than 10", key, n))
		}
	}
	for key, d := range map[string]time.Duration{"requests_age": h.RequestsAge, "reports_age": h.ReportsAge} {
		if d < time.Hour {
			faults = append(faults, fmt.Errorf("history.%s: %v is less than 1h", key, d))
		}
	}
	return faults
}
