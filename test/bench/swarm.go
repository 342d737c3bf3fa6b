package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// swarmed is one line of bench-swarm.
type swarmed struct {
	Nodes   int     `json:"nodes"`
	Rate    string  `json:"rate"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Times   float64 `json:"times"`
	Copies  float64 `json:"copies"`
}

// busiest is how busy the machine may be for its figures to say something about the network.
const busiest = 0.7

// swarm measures many machines that write the same published image at the same time, each with its own uplink.
func (b *bench) swarm(ctx context.Context, _ string, _ *image) error {
	for _, s := range []struct {
		nodes, rate, stored string
		times, copies       float64
	}{
		{"1,16", "100mbit", "48", 2.2, 2.2},
		{"1,64", "10mbit", "22", 2.2, 0},
	} {
		b.say("a swarm: %s nodes, uplinks of %s", s.nodes, s.rate)
		cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "bench-swarm"), "-nodes", s.nodes, "-rate", s.rate,
			"-stored", s.stored)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it has namespaces to remove
		cmd.WaitDelay = 30 * time.Second
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%v: %w", cmd.Args, err)
		}
		sc := scenario{Name: "swarm-" + s.rate,
			Title: fmt.Sprintf("a swarm, every node and the server with uplinks of %s, %s MiB as published", s.rate,
				s.stored)}
		for line := range strings.Lines(string(out)) {
			var r swarmed
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			b.say("  %d nodes: %.1f s, processors %.0f %% busy", r.Nodes, r.Seconds, r.CPU*100)
			sc.Rows = append(sc.Rows,
				row{Name: fmt.Sprintf("ours, %d nodes", r.Nodes), Wall: r.Seconds, Walls: []float64{r.Seconds}})
			if r.Times == 0 || r.Nodes == 1 {
				continue
			}
			what := fmt.Sprintf("%d nodes, uplinks of %s", r.Nodes, s.rate)
			if r.CPU > busiest {
				what += fmt.Sprintf(" (processors %.0f %% busy: it is them that are measured)", r.CPU*100)
			}
			b.most(s.times, r.Times, "%s: time / that of one node", what)
			if s.copies > 0 {
				b.most(s.copies, r.Copies, "%s: sent by the server / for one node", what)
			}
		}
		b.res.Scenarios = append(b.res.Scenarios, sc)
	}
	return nil
}
