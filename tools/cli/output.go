package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
)

// printJSON writes v the way the API has it, indented.
func (p *program) printJSON(v any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// say writes a line of what was asked for.
func (p *program) say(format string, args ...any) error {
	_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
	return err
}

// result writes what a command has done: v with -o json, else a line.
func (p *program) result(v any, format string, args ...any) error {
	if p.output == "json" {
		return p.printJSON(v)
	}
	return p.say(format, args...)
}

// list writes items: with -o json as they are, else as a table with a row for each.
func list[T any](p *program, items []T, head []string, row func(*T) []string) error {
	if p.output == "json" {
		if items == nil {
			items = []T{}
		}
		return p.printJSON(items)
	}
	return table(p.stdout, head, mapped(items, row))
}

// mapped returns the results of f for each item.
func mapped[T, R any](items []T, f func(*T) R) []R {
	out := make([]R, len(items))
	for i := range items {
		out[i] = f(&items[i])
	}
	return out
}

// table writes rows under a head in columns; without a head, rows alone.
func table(w io.Writer, head []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if head != nil {
		fmt.Fprintln(tw, strings.Join(head, "\t"))
	}
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(mapped(r, func(cell *string) string { return clean.Quote(*cell) }), "\t"))
	}
	return tw.Flush()
}

// sheet writes names and values, values of several lines under each other.
func sheet(w io.Writer, pairs [][2]string) error {
	var rows [][]string
	for _, kv := range pairs {
		name := kv[0]
		for line := range strings.SplitSeq(kv[1], "\n") {
			rows = append(rows, []string{name, line})
			name = ""
		}
	}
	return table(w, nil, rows)
}

// filled are the pairs that have a value.
func filled(pairs ...[2]string) [][2]string {
	return slices.DeleteFunc(pairs, func(kv [2]string) bool { return kv[1] == "" || kv[1] == "-" })
}

// dash shows that there is nothing.
func dash(s string) string { return cmp.Or(s, "-") }

// choose is one of two words.
func choose(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// when writes a moment in the user's time zone.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// clock writes the time of day of a moment that came as text, by a layout; what is no moment stays as it is.
func clock(at, layout string) string {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return at
	}
	return t.Local().Format(layout)
}

// object writes a JSON object as sorted lines "key = value".
func object(m map[string]any) string {
	lines := mapped(slices.Sorted(maps.Keys(m)), func(k *string) string { return *k + " = " + plain(m[*k]) })
	return dash(strings.Join(lines, "\n"))
}

// plain writes a text as it is, and everything else as JSON.
func plain(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return compact(v)
}

// compact writes JSON in one line.
func compact(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}

// size writes a number of bytes for people.
func size(n uint64) string { return humanize.IBytesN(n, 3) }

// span writes how long something took.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d:%02d min", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d:%02d h", int(d.Hours()), int(d.Minutes())%60)
}
