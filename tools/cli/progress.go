package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// display shows how far the work on a node is.
type display struct {
	w     io.Writer
	width int  // of the terminal
	live  bool // a terminal, on which a line can be redrawn
	now   func() time.Time

	start   time.Time
	drawn   bool // a redrawn line is on the screen
	state   string
	job     string
	shown   map[int]bool // steps whose end is on the screen
	running int          // step whose beginning is on the screen, -1: none
	steps   []rest.JobStep
	tenth   uint64    // of the transfer in the last line, where lines can't be redrawn
	printed time.Time // when the last such line was printed
}

func newDisplay(w io.Writer) *display {
	d := &display{w: w, now: time.Now, start: time.Now(), shown: map[int]bool{}, running: -1}
	d.width, d.live = isTerminal(w)
	return d
}

// update shows one look at the work.
func (d *display) update(p *rest.Progress) {
	if p.Job == nil {
		d.endJob(p.LastError == "" && !client.IsFailure(p.ProvisionState))
	}
	if p.ProvisionState != d.state {
		d.state = p.ProvisionState
		d.line("%s", d.state)
	}
	if p.Job == nil {
		d.redraw("")
		return
	}
	if p.Job.ID != d.job {
		d.endJob(true)
		d.job, d.shown, d.running = p.Job.ID, map[int]bool{}, -1
	}
	d.steps = p.Job.Steps
	for i, s := range p.Job.Steps {
		switch s.Status {
		case "done", "failed":
			d.ended(i, s.Status)
		case "running":
			if d.running != i {
				d.running, d.tenth, d.printed = i, 0, d.now()
				if !d.live {
					d.line("  %s: begins", s.Step)
				}
			}
		}
	}
	d.redraw(d.status(p))
	if !d.live && d.running >= 0 {
		d.report(p.Running, d.status(p))
	}
}

// ended prints, once, that a step has ended.
func (d *display) ended(i int, how string) {
	if d.shown[i] {
		return
	}
	d.shown[i] = true
	after := took(&d.steps[i])
	if after != "" {
		after = " in " + after
	}
	d.line("  %s: %s%s", d.steps[i].Step, how, after)
}

// endJob prints the steps that ended together with their job, between two looks.
func (d *display) endJob(well bool) {
	for i := range d.steps {
		if well {
			d.ended(i, "done")
		}
	}
	d.steps = nil
}

// status is the line that is redrawn: the running step and how far it is.
func (d *display) status(p *rest.Progress) string {
	if d.running < 0 || d.running >= len(d.steps) {
		if p.Job.Detail != "" {
			return "  " + string(p.Job.Detail)
		}
		return ""
	}
	s := d.steps[d.running]
	t := p.Running
	if t == nil || t.Step != s.Step || t.Total == 0 && t.Bytes == 0 {
		text := "  " + s.Step
		if p.Job.Detail != "" {
			text += ": " + string(p.Job.Detail)
		}
		if !s.StartedAt.IsZero() {
			text += ", " + span(d.now().Sub(s.StartedAt.Time))
		}
		return text
	}
	left := "  " + s.Step
	if phase := phaseOf(t); phase != "" {
		left += " (" + phase + ")"
	}
	return d.transfer(left, t)
}

// transfer is a line that says how far something is, with a bar where there is space for one.
func (d *display) transfer(what string, t *rest.Transfer) string {
	right := " " + size(t.Bytes)
	if t.Total > 0 {
		right = fmt.Sprintf(" %3d%%  %s of %s", percent(t), size(t.Bytes), size(t.Total))
	}
	if t.Rate > 0 {
		right += fmt.Sprintf("  %s/s", size(t.Rate))
		if t.Total > t.Bytes {
			right += "  " + span(time.Duration(float64(t.Total-t.Bytes)/float64(t.Rate)*float64(time.Second))) + " left"
		}
	}
	space := d.width - utf8.RuneCountInString(what) - utf8.RuneCountInString(right) - 4
	if t.Total == 0 || space < 8 {
		return what + right
	}
	return what + " " + bar(t, min(space, 40)) + right
}

// phaseOf describes the present phase of a step, with how many of several items are done where it has several.
func phaseOf(t *rest.Transfer) string {
	if len(t.Items) == 0 {
		return t.Phase
	}
	done, failed := 0, 0
	for _, it := range t.Items {
		switch {
		case it.Error != "":
			failed++
		case it.Done:
			done++
		}
	}
	text := fmt.Sprintf("%d of %d done", done, len(t.Items))
	if failed > 0 {
		text += fmt.Sprintf(", %d failed", failed)
	}
	if t.Phase == "" {
		return text
	}
	return t.Phase + ", " + text
}

func percent(t *rest.Transfer) uint64 {
	if t.Bytes >= t.Total {
		return 100
	}
	return uint64(float64(t.Bytes) * 100 / float64(t.Total))
}

// bar draws how much of a transfer is done in width characters.
func bar(t *rest.Transfer, width int) string {
	full := min(int(float64(t.Bytes)*float64(width)/float64(t.Total)), width)
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", width-full) + "]"
}

// report prints how far a transfer is where lines can't be redrawn: each tenth, and each half minute.
func (d *display) report(t *rest.Transfer, text string) {
	tenth := d.tenth
	if t != nil && t.Total > 0 {
		tenth = percent(t) / 10
	}
	if tenth == d.tenth && d.now().Sub(d.printed) < 30*time.Second {
		return
	}
	d.tenth, d.printed = tenth, d.now()
	d.line("%s", text)
}

// line writes a line that stays.
func (d *display) line(format string, args ...any) {
	if d.drawn {
		fmt.Fprint(d.w, "\r\x1b[K")
		d.drawn = false
	}
	fmt.Fprintln(clean.Writer{W: d.w}, fmt.Sprintf(format, args...))
}

// redraw replaces the last line of a terminal.
func (d *display) redraw(text string) {
	if !d.live || text == "" && !d.drawn {
		return
	}
	if utf8.RuneCountInString(text) >= d.width {
		text = string([]rune(text)[:d.width-1])
	}
	fmt.Fprint(d.w, "\r\x1b[K"+clean.Quote(text))
	d.drawn = text != ""
}

// every calls draw at each tick until the function that it returns is called, and clears the redrawn line then.
func (d *display) every(tick time.Duration, draw func()) (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer d.redraw("")
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				draw()
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// end clears the redrawn line and prints the ends of steps that are not on the screen yet.
func (d *display) end(well bool) {
	d.endJob(well)
	d.redraw("")
}

// wait waits for the end of a node's work in one of the states wanted, and shows how far it is.
func (p *program) wait(ctx context.Context, c *client.Client, name string, wanted ...string) error {
	d := newDisplay(p.stderr)
	end, err := c.Wait(ctx, name, d.update, wanted...)
	d.end(err == nil)
	if err != nil {
		return about(name, err)
	}
	p.note("%s is %s, after %s", name, end.ProvisionState, span(time.Since(d.start)))
	return nil
}

// waitPower waits until a machine is on or off, and shows for how long it does.
func (p *program) waitPower(ctx context.Context, c *client.Client, name, wanted string) error {
	d := newDisplay(p.stderr)
	end := d.every(time.Second, func() {
		d.redraw(fmt.Sprintf("%s: waiting for %s, %s", name, wanted, span(time.Since(d.start))))
	})
	defer end()
	return c.WaitPower(ctx, name, wanted)
}

// ignoreCancel makes the end by Ctrl-C of a command that only looks no error.
func ignoreCancel(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
