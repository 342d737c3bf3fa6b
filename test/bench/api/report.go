package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// row is one figure of the report.
type row struct {
	What  string  `json:"what"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// Ironic is the best figure of the baseline for it; zero: it has none.
	Ironic float64 `json:"ironic,omitempty"`
	// Goal is how many times better than Ironic it is to be; zero: no goal. Limit is a goal that stands by itself.
	Goal   float64 `json:"goal,omitempty"`
	Limit  float64 `json:"limit,omitempty"`
	CPU    float64 `json:"cpu_ms,omitempty"` // of ingotd, for one operation
	P50    float64 `json:"p50_ms,omitempty"`
	P99    float64 `json:"p99_ms,omitempty"`
	faster bool    // larger is better
}

// Times is how many times better than Ironic; zero when that can't be said.
func (r row) Times() float64 {
	switch {
	case r.Ironic == 0 || r.Value == 0:
		return 0
	case r.faster:
		return r.Value / r.Ironic
	}
	return r.Ironic / r.Value
}

func (r row) verdict() string {
	switch {
	case r.Limit > 0 && r.Value <= r.Limit, r.Goal > 0 && r.Times() >= r.Goal:
		return "met"
	case r.Limit > 0 || r.Goal > 0:
		return "**missed**"
	}
	return ""
}

func (r row) goal() string {
	switch {
	case r.Limit > 0:
		return fmt.Sprintf("≤ %s %s", number(r.Limit), r.Unit)
	case r.Goal > 0:
		return fmt.Sprintf("≥ %g ×", r.Goal)
	}
	return ""
}

// number keeps three figures.
func number(v float64) string {
	switch {
	case v == 0:
		return ""
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// report is the result of a run.
type report struct {
	At      time.Time `json:"at"`
	Machine string    `json:"machine"`
	Rows    []row     `json:"rows"`
}

func (r *report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Machine)
	b.WriteString("| | ingotd | | p50 / p99 ms | CPU ms each | Ironic | times | goal | |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, x := range r.Rows {
		times, spread := "", ""
		if t := x.Times(); t > 0 {
			times = number(t) + " ×"
		}
		if x.P50 > 0 {
			spread = number(x.P50) + " / " + number(x.P99)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", x.What, number(x.Value), x.Unit, spread,
			number(x.CPU), number(x.Ironic), times, x.goal(), x.verdict())
	}
	return b.String()
}

// write puts the report into dir as bench-api.json and bench-api.md.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench-api.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bench-api.md"), []byte(r.table()), 0o644)
}
