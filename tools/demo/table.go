package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// stretch is a part of a job between two marks.
type stretch struct {
	name string
	took time.Duration
}

// job is where the time of one job went.
type job struct {
	id         string
	phase      string
	stretches  []stretch
	begin, end time.Time
}

// table shows where every second went.
func (d *demo) table(ctx context.Context) error {
	line, err := d.api.Timeline(ctx, machine, "")
	if err != nil {
		return fmt.Errorf("read the time line: %w", err)
	}
	jobs, err := split(line.Marks)
	if err != nil {
		return err
	}
	d.say("\n== Where the time went ==")
	t := tabwriter.NewWriter(d.Out, 0, 8, 2, ' ', 0)
	row := func(name, what string, took time.Duration) {
		fmt.Fprintf(t, "  %s\t%s\t%7.1f s\t%s\n", name, what, took.Seconds(), strings.Repeat("#", int(took.Seconds()+0.5)))
	}
	for n, j := range jobs {
		name := j.phase
		for _, s := range j.stretches {
			if s.took < 50*time.Millisecond {
				continue // the conductor's own bookkeeping
			}
			row(name, s.name, s.took)
			name = ""
		}
		if n == len(jobs)-1 { // the deployment: its system boots after it
			last := j.end
			for _, m := range d.osMarks {
				if m.at.After(last) {
					row("", "OS boot: until "+m.name, m.at.Sub(last))
					last = m.at
				}
			}
			j.end = last
		}
		fmt.Fprintf(t, "  %s\ttogether\t%7.1f s\t\n", name, j.end.Sub(j.begin).Seconds())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	d.say("  everything, with building: %.0f s", time.Since(d.started).Seconds())
	return nil
}

// split makes jobs of a time line. Each stretch ends with a mark and takes its name from it.
func split(marks []rest.Mark) ([]job, error) {
	type point struct {
		rest.Mark
		at time.Time
	}
	points := make([]point, 0, len(marks))
	for _, m := range marks {
		at, err := time.Parse(time.RFC3339Nano, m.At)
		if err != nil {
			return nil, fmt.Errorf("read the time line: %w", err)
		}
		if m.JobID != "" {
			points = append(points, point{m, at})
		}
	}
	// Marks that the conductor works out later, such as the kernel's start, come behind what they precede.
	slices.SortStableFunc(points, func(a, b point) int { return a.at.Compare(b.at) })
	var jobs []job
	var last time.Time
	kernel := false // the agent's kernel runs: what DHCP does now is the agent's doing
	for _, p := range points {
		i := slices.IndexFunc(jobs, func(j job) bool { return j.id == string(p.JobID) })
		if i < 0 {
			jobs = append(jobs, job{id: string(p.JobID), phase: string(p.Detail), begin: p.at})
			i = len(jobs) - 1
			last, kernel = p.at, false
		}
		j := &jobs[i]
		j.end = p.at
		name := stretchName(p.Mark, kernel)
		switch p.Name {
		case "kernel started":
			kernel = true
		case "power is on", "power is off":
			kernel = false
		}
		if name == "" {
			continue
		}
		if n := len(j.stretches); n > 0 && j.stretches[n-1].name == name {
			j.stretches[n-1].took += p.at.Sub(last)
		} else {
			j.stretches = append(j.stretches, stretch{name, p.at.Sub(last)})
		}
		last = p.at
	}
	return jobs, nil
}

// stretchName tells what the time before a mark was spent on; "" for marks that end nothing.
func stretchName(m rest.Mark, kernel bool) string {
	switch m.Name {
	case "power is on":
		return "power on"
	case "power is off":
		return "power off"
	case "dhcp answered":
		if !kernel {
			return "firmware"
		}
		return "agent: network, enrolment"
	case "boot program fetched", "boot script fetched", "kernel fetched", "ramdisk fetched":
		return "DHCP, TFTP, HTTP"
	case "kernel started":
		return "kernel unpacks itself"
	case "agent started":
		return "kernel and drivers"
	case "agent enrolled", "agent connected":
		return "agent: network, enrolment"
	case "step done":
		return string(m.Detail)
	}
	return ""
}
