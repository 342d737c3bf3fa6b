package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// looks are what a wait sees of a deployment.
func looks() []*rest.Progress {
	at := func(s int) rest.NullTime { return rest.NullTime{Time: time.Unix(int64(1000+s), 0)} }
	steps := func(write, boot string) []rest.JobStep {
		return []rest.JobStep{
			{Step: "write_image", InBand: true, Status: write, StartedAt: at(0), EndedAt: at(20)},
			{Step: "boot_instance", Status: boot, StartedAt: at(20)},
		}
	}
	transfer := func(n uint64) *rest.Transfer {
		return &rest.Transfer{Step: "write_image", Phase: "write", Bytes: n << 20, Total: 1000 << 20, Rate: 50 << 20}
	}
	job := func(s []rest.JobStep) *rest.Job { return &rest.Job{ID: "j", Phase: "deploy", Steps: s} }
	return []*rest.Progress{
		{ProvisionState: "deploying", TargetProvisionState: "active", Job: job(steps("pending", "pending"))},
		{ProvisionState: "wait call-back", TargetProvisionState: "active", Job: job(steps("running", "pending")),
			Running: transfer(0)},
		{ProvisionState: "wait call-back", TargetProvisionState: "active", Job: job(steps("running", "pending")),
			Running: transfer(50)},
		{ProvisionState: "wait call-back", TargetProvisionState: "active", Job: job(steps("running", "pending")),
			Running: transfer(510)},
		{ProvisionState: "wait call-back", TargetProvisionState: "active", Job: job(steps("running", "pending")),
			Running: transfer(1000)},
		{ProvisionState: "deploying", TargetProvisionState: "active", Job: job(steps("done", "running"))},
		{ProvisionState: "active"},
	}
}

func show(d *display) string {
	var out bytes.Buffer
	d.w = &out
	for _, p := range looks() {
		d.update(p)
	}
	d.end(true)
	return out.String()
}

func TestProgressInALogFile(t *testing.T) {
	got := show(&display{now: func() time.Time { return time.Unix(1010, 0) }, shown: map[int]bool{}, running: -1,
		width: 80})
	want := `deploying
wait call-back
  write_image: begins
  write_image (write) [====================                    ]  51%  510 MiB of 1000 MiB  50.0 MiB/s  9.8 s left
  write_image (write) [========================================] 100%  1000 MiB of 1000 MiB  50.0 MiB/s
deploying
  write_image: done in 20 s
  boot_instance: begins
  boot_instance: done
active
`
	// The bar is as wide as the terminal allows, which a log file has none of.
	squeeze := strings.NewReplacer("=", "", " [", "", "]", "")
	if strip(squeeze.Replace(got)) != strip(squeeze.Replace(want)) {
		t.Errorf("progress:\n%s\nwant:\n%s", got, want)
	}
}

func strip(s string) string {
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestProgressOnATerminal(t *testing.T) {
	got := show(&display{now: func() time.Time { return time.Unix(1010, 0) }, shown: map[int]bool{}, running: -1,
		width: 100, live: true})
	if !strings.Contains(got, "\r\x1b[K  write_image (write) [") ||
		!strings.Contains(got, " 51%  510 MiB of 1000 MiB  50.0 MiB/s  9.8 s left") {
		t.Errorf("no bar in %q", got)
	}
	if strings.Contains(got, "begins") || !strings.HasSuffix(got, "  boot_instance: done\nactive\n") {
		t.Errorf("terminal shows %q", got)
	}
	for line := range strings.SplitSeq(got, "\r\x1b[K") {
		first, _, _ := strings.Cut(line, "\n")
		if len([]rune(first)) > 100 {
			t.Errorf("line longer than the terminal: %q", first)
		}
	}
}

func TestSizesAndSpans(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1536: "1.50 KiB", 3 << 30: "3.00 GiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{1500 * time.Millisecond: "1.5 s", 75 * time.Second: "1:15 min",
		2*time.Hour + 5*time.Minute: "2:05 h"} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestPhaseOf(t *testing.T) {
	for want, tr := range map[string]rest.Transfer{
		"write": {Phase: "write"},
		"erase, 1 of 3 done, 1 failed": {
			Phase: "erase", Items: []rest.ItemProgress{
				{Name: "sda", Done: true}, {Name: "sdb", Done: true, Error: "lies"}, {Name: "sdc"}}},
		"0 of 1 done": {Items: []rest.ItemProgress{{Name: "sda"}}},
	} {
		if got := phaseOf(&tr); got != want {
			t.Errorf("phaseOf(%+v) = %q, want %q", tr, got, want)
		}
	}
}

// TestEveryWaitingCommandTakesBothFlags: what waits can be told not to, and takes the --wait of openstack's scripts.
func TestEveryWaitingCommandTakesBothFlags(t *testing.T) {
	found := 0
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if wait, no := c.Flags().Lookup("wait"), c.Flags().Lookup("no-wait"); (wait == nil) != (no == nil) {
			t.Errorf("%s has --wait: %v, --no-wait: %v", c.CommandPath(), wait != nil, no != nil)
		} else if wait != nil {
			found++
			if wait.DefValue != "true" {
				t.Errorf("%s does not wait by itself", c.CommandPath())
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look((&program{getenv: func(string) string { return "" }}).root())
	if found < 12 {
		t.Errorf("%d commands wait; does this test still find them?", found)
	}
	for _, c := range []struct {
		w    waiting
		want bool
	}{{waiting{wait: true}, false}, {waiting{}, true}, {waiting{wait: true, noWait: true}, true}} {
		if got := c.w.skips(); got != c.want {
			t.Errorf("%+v skips the wait: %v, want %v", c.w, got, c.want)
		}
	}
}
