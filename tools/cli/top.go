package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/cli/render"
)

// How often ingot top looks at the states of all machines, and at running work.
const (
	topStates = 5 * time.Second
	topWork   = time.Second
)

// mostFailures bounds of how many failed machines the reasons are read.
const mostFailures = 10

func (p *program) topCommand() *cobra.Command {
	var once bool
	return p.online(&cobra.Command{
		Use: "top", Short: "Show the whole fleet live: states, failures, running work with rates",
		Long: `Show the whole fleet until Ctrl-C: how many machines are in which state, the failed ones with their reasons,
and how far running work is, the fastest first. Without a terminal, or with --once, it is shown once.`,
	}, []option{opt("once", &once, "show it once")}, func(ctx context.Context, c *client.Client, _ []string) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		_, live := isTerminal(p.terminal)
		t := &topView{now: time.Now}
		if !live || once || !p.format.ForPeople() {
			if err := t.look(ctx, c, true); err != nil {
				return err
			}
			if p.values() {
				return p.print(t.summary())
			}
			return p.say("%s", t.frame(120, 1<<16))
		}
		return ignoreCancel(p.top(ctx, c, t))
	})
}

// top redraws the view until ctx ends. A conductor that does not answer for a while ends nothing: the view says so.
func (p *program) top(ctx context.Context, c *client.Client, t *topView) error {
	tick := time.NewTicker(topWork)
	defer tick.Stop()
	var last time.Time
	for lines := 0; ; {
		all := time.Since(last) >= topStates
		if all {
			last = time.Now()
		}
		t.err = t.look(ctx, c, all)
		if t.err != nil && (t.states == nil || ctx.Err() != nil) {
			return t.err
		}
		width, height := 80, 24
		if f, ok := p.terminal.(*os.File); ok {
			if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
				width, height = w, h
			}
		}
		text := t.frame(width, height-1)
		if lines > 0 {
			fmt.Fprintf(p.terminal, "\x1b[%dA\r\x1b[J", lines)
		}
		fmt.Fprintln(p.stdout, text)
		lines = strings.Count(text, "\n") + 1
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// topView is the state of the fleet that ingot top shows.
type topView struct {
	now      func() time.Time
	states   map[string]int // machines by state
	kept     int            // in maintenance
	failed   []rest.Node    // with their reasons, at most mostFailures
	failures int
	running  []rest.NodeTransfer // the fastest first
	err      error               // of the last look
}

// look reads running work, and all states if all is set.
func (t *topView) look(ctx context.Context, c *client.Client, all bool) error {
	if all {
		nodes, err := c.States(ctx)
		if err != nil {
			return err
		}
		states, kept := map[string]int{}, 0
		var failed []rest.Node
		for _, n := range nodes {
			states[string(n.ProvisionState)]++
			if n.Maintenance {
				kept++
			}
			if client.IsFailure(string(n.ProvisionState)) {
				failed = append(failed, n)
			}
		}
		failures := len(failed)
		failed = failed[:min(failures, mostFailures)]
		for i := range failed {
			n, err := c.Node(ctx, failed[i].UUID)
			if err != nil {
				return err
			}
			failed[i] = *n
		}
		t.states, t.kept, t.failed, t.failures = states, kept, failed, failures
	}
	running, err := c.Running(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(running, func(a, b rest.NodeTransfer) int {
		return cmp.Or(cmp.Compare(b.Transfer.Rate, a.Transfer.Rate), cmp.Compare(a.NodeName, b.NodeName))
	})
	t.running = running
	return nil
}

// topSummary is the view for programs.
type topSummary struct {
	States      map[string]int      `json:"states"`
	Maintenance int                 `json:"maintenance"`
	Failed      []topFailure        `json:"failed"`
	Rate        uint64              `json:"rate"` // bytes per second, of all running work
	Running     []rest.NodeTransfer `json:"running"`
}

type topFailure struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Error string `json:"error"`
}

func (t *topView) summary() topSummary {
	s := topSummary{States: t.states, Maintenance: t.kept, Failed: []topFailure{}, Running: t.running, Rate: t.rate()}
	for i := range t.failed {
		n := &t.failed[i]
		s.Failed = append(s.Failed, topFailure{label(n), string(n.ProvisionState), string(n.LastError)})
	}
	return s
}

func (t *topView) rate() (sum uint64) {
	for i := range t.running {
		sum += t.running[i].Transfer.Rate
	}
	return sum
}

// frame draws the view in a number of columns and lines. What has no place is counted.
func (t *topView) frame(width, height int) string {
	total := 0
	var states []string
	for _, state := range slices.SortedFunc(maps.Keys(t.states), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.states[b], t.states[a]), cmp.Compare(a, b))
	}) {
		total += t.states[state]
		states = append(states, fmt.Sprintf("%s %d", state, t.states[state]))
	}
	if t.kept > 0 {
		states = append(states, fmt.Sprintf("(maintenance %d)", t.kept))
	}
	lines := []string{fmt.Sprintf("%s  %s  %d at work, %s/s", t.now().Format("15:04:05"),
		fmt.Sprintf("%d %s", total, choose(total == 1, "machine", "machines")), len(t.running), size(t.rate()))}
	if t.err != nil {
		lines = append(lines, "NOT LIVE: "+strings.SplitN(Message(t.err), "\n", 2)[0])
	}
	lines = append(lines, wrapped(states, width)...)
	if t.failures > 0 {
		lines = append(lines, "", "FAILED")
		for i := range t.failed {
			n := &t.failed[i]
			lines = append(lines, fmt.Sprintf("  %s  %s  %s", label(n), n.ProvisionState, n.LastError))
		}
		if more := t.failures - len(t.failed); more > 0 {
			lines = append(lines, fmt.Sprintf("  and %d more", more))
		}
	}
	if len(t.running) > 0 {
		lines = append(lines, "")
		lines = append(lines, t.work(max(1, height-len(lines)-1))...)
	}
	if total == 0 {
		lines = append(lines, "There are no machines. Enrol one: ingot node create NAME --bmc ADDRESS --bmc-user USER")
	}
	for i, line := range lines {
		line = clean.Quote(line)
		if utf8.RuneCountInString(line) > width {
			line = string([]rune(line)[:max(0, width-1)]) + "…"
		}
		lines[i] = line
	}
	return strings.Join(lines[:min(len(lines), max(1, height))], "\n")
}

// work is a table of running work, with a bar for each transfer.
func (t *topView) work(height int) []string {
	rows := make([][]string, 0, height)
	for i := range t.running[:min(len(t.running), height)] {
		r := &t.running[i]
		x := &r.Transfer
		row := []string{cmp.Or(string(r.NodeName), r.NodeUUID), joined(x.Step, phaseOf(x)), "", "", "", ""}
		if x.Total > 0 {
			row[2], row[3] = bar(x, 20), fmt.Sprintf("%3d%%", percent(x))
		}
		if x.Rate > 0 {
			row[4] = size(x.Rate) + "/s"
			if x.Total > x.Bytes {
				row[5] = span(time.Duration(float64(x.Total-x.Bytes) / float64(x.Rate) * float64(time.Second)))
			}
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	if err := render.Table(&b, []string{"MACHINE", "STEP", "", "DONE", "RATE", "LEFT"}, rows); err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if more := len(t.running) - len(rows); more > 0 {
		lines[len(lines)-1] = fmt.Sprintf("and %d more", more+1)
	}
	return lines
}

// wrapped sets words into lines of a width, two spaces between them.
func wrapped(words []string, width int) (lines []string) {
	line := ""
	for _, w := range words {
		switch {
		case line == "":
			line = w
		case utf8.RuneCountInString(line)+2+utf8.RuneCountInString(w) > width:
			lines = append(lines, line)
			line = w
		default:
			line += "  " + w
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
