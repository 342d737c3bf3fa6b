package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ingot-metal/ingot/tools/cli/render"
)

// values reports whether values are asked for, as the API has them, and no tables.
func (p *program) values() bool { return p.format.Values() }

// print writes v the way the API has it, in the format that is asked for.
func (p *program) print(v any) error { return p.format.Value(p.stdout, v) }

// table writes rows under a head in columns; without a head, rows alone.
func (p *program) table(head []string, rows [][]string) error {
	return p.format.Rows(p.stdout, head, rows)
}

// sheet writes names and values.
func (p *program) sheet(pairs [][2]string) error { return p.format.Sheet(p.stdout, pairs) }

// say writes a line of what was asked for.
func (p *program) say(format string, args ...any) error {
	_, err := fmt.Fprintf(p.stdout, format+"\n", args...)
	return err
}

// result writes what a command has done: v with -o json and its like, its fields as CSV, its name as such, else a line.
func (p *program) result(v any, format string, args ...any) error {
	if p.values() {
		return p.print(v)
	}
	var fields map[string]any
	if p.format.ForPeople() || json.Unmarshal([]byte(compact(v)), &fields) != nil {
		return p.say(format, args...)
	}
	pairs := mapped(slices.Sorted(maps.Keys(fields)),
		func(k *string) [2]string { return [2]string{*k, plain(fields[*k])} })
	if err := p.sheet(pairs); !errors.Is(err, render.ErrNameless) {
		return err
	}
	return p.say(format, args...)
}

// list writes items: with -o json and its like as they are, else as a table with a row for each.
func list[T any](p *program, items []T, head []string, row func(*T) []string) error {
	if p.values() {
		if items == nil {
			items = []T{}
		}
		return p.print(items)
	}
	return p.table(head, mapped(items, row))
}

// mapped returns the results of f for each item.
func mapped[T, R any](items []T, f func(*T) R) []R {
	out := make([]R, len(items))
	for i := range items {
		out[i] = f(&items[i])
	}
	return out
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
