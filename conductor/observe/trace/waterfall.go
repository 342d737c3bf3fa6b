package trace

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// marksOf are the characters of a bar, by kind: it can be read without colour, and in a log.
var marksOf = map[string]byte{
	Group: '-', Conductor: 'c', BMC: 'p', Firmware: 'F', Network: 'n', Kernel: 'k', Agent: 'a', Step: '#', Kexec: 'x',
	OS: 'o', Wait: '.', Unknown: '?',
}

// legend names the characters in the order in which they usually come.
var legend = []struct{ kind, text string }{
	{Conductor, "conductor"}, {BMC, "power, BMC"}, {Firmware, "firmware"}, {Network, "network boot"},
	{Kernel, "kernel"}, {Agent, "agent"}, {Step, "step"}, {Kexec, "kexec"}, {OS, "operating system"}, {Wait, "waiting"},
	{Unknown, "not known"},
}

// brief is the duration below which a span gets no line.
const brief = 0.05 // seconds

// row is a line of a waterfall.
type row struct {
	name string
	span rest.Span
}

// rows are the lines of spans below each other; short ones are summed up.
func rows(spans []rest.Span, depth int, left *short) []row {
	var out []row
	for _, s := range spans {
		if s.Seconds < brief && s.Bytes == 0 && !s.Failed {
			left.n, left.seconds = left.n+1, left.seconds+s.Seconds
			continue
		}
		out = append(out, row{strings.Repeat("  ", depth) + s.Name, s})
		out = append(out, rows(s.Spans, depth+1, left)...)
	}
	return out
}

type short struct {
	n       int
	seconds float64
}

// Waterfall draws a trace: a line for each span, fitted to width characters. From 50 characters on nothing is cut but
// names.
func Waterfall(out io.Writer, t rest.Trace, width int) error {
	b := bufio.NewWriter(out)
	width = max(width, 50)
	fmt.Fprintln(b, headline(t))
	var left short
	lines := rows(t.Spans, 1, &left)
	names, notes := 16, 0
	for _, l := range lines {
		names, notes = max(names, utf8.RuneCountInString(l.name)), max(notes, len(note(l.span)))
	}
	names = min(names, width/2-6)
	if width < 100 {
		notes = min(notes, 10) // the rate alone
	}
	bar := width - names - notes - 14
	if notes == 0 {
		bar += 2
	}
	if bar < 10 {
		bar, notes = bar+notes+2, 0
	}
	for _, l := range lines {
		n := ""
		if notes > 0 {
			n = note(l.span)
			if len(n) > notes {
				n = rate(l.span)
			}
			n = fmt.Sprintf("  %*s", notes, n)
		}
		fmt.Fprintf(b, "%s %8.2f s%s %s\n", pad(l.name, names), l.span.Seconds, n,
			strings.TrimRight(draw(t, l.span, bar), " "))
		if l.span.Failed && l.span.Detail != "" && len(l.span.Spans) == 0 {
			fmt.Fprintln(b, strings.TrimRight(pad("    failed: "+l.span.Detail, width), " "))
		}
	}
	if left.n > 0 {
		fmt.Fprintf(b, "%s %8.2f s\n", pad(fmt.Sprintf("  %d shorter ones", left.n), names), left.seconds)
	}
	fmt.Fprintf(b, "%s %8.2f s\n", pad("  together", names), t.Seconds)
	used := map[string]bool{}
	for _, s := range Leaves(t.Spans) {
		used[s.Kind] = used[s.Kind] || s.Seconds >= brief
	}
	line := " "
	for _, l := range legend {
		if !used[l.kind] {
			continue
		}
		word := fmt.Sprintf(" %c %s", marksOf[l.kind], l.text)
		if len(line)+len(word) > width {
			fmt.Fprintln(b, line)
			line = " "
		}
		line += word + " "
	}
	fmt.Fprintln(b, strings.TrimRight(line, " "))
	return b.Flush()
}

// headline says the most important of a trace.
func headline(t rest.Trace) string {
	parts := []string{fmt.Sprintf("%s: %.1f s", t.Phase, t.Seconds)}
	switch t.FirmwareBoots {
	case 0:
		parts = append(parts, "no firmware ran")
	case 1:
		parts = append(parts, "once through the firmware")
	default:
		parts = append(parts, fmt.Sprintf("%d times through the firmware", t.FirmwareBoots))
	}
	if t.Kexecs > 0 {
		parts = append(parts, "started by kexec")
	}
	parts = append(parts, fmt.Sprintf("%.1f %% of the time is attributed", math.Floor(t.Attributed*1000)/10))
	switch {
	case t.Open:
		parts = append(parts, "still going on")
	case t.Outcome != "":
		parts = append(parts, "led to "+string(t.Outcome))
	}
	return strings.Join(parts, ", ")
}

// draw makes the bar of a span.
func draw(t rest.Trace, s rest.Span, width int) string {
	if t.Seconds <= 0 {
		return ""
	}
	place := func(seconds float64) int { return int(math.Round(seconds / t.Seconds * float64(width))) }
	from := min(place(s.Begin.Sub(t.Begin).Seconds()), width-1)
	to := max(place(s.End.Sub(t.Begin).Seconds()), from+1)
	return strings.Repeat(" ", from) + strings.Repeat(string(marksOf[s.Kind]), min(to, width)-from)
}

// note returns the remark beside a span's time.
func note(s rest.Span) string {
	if s.Bytes == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%.0f MB %s", float64(s.Bytes)/1e6, rate(s)))
}

func rate(s rest.Span) string {
	if s.Rate == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f MB/s", float64(s.Rate)/1e6)
}

// pad makes a text exactly width characters long, cut with a dot if need be.
func pad(s string, width int) string {
	n := utf8.RuneCountInString(s)
	if n > width {
		r := []rune(s)
		return string(r[:width-1]) + "…"
	}
	return s + strings.Repeat(" ", width-n)
}
