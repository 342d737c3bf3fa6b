package cli

import (
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

// table writes rows under a head in columns.
func table(w io.Writer, head []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(head, "\t"))
	for _, r := range rows {
		cells := make([]string, len(r))
		for i := range r {
			cells[i] = clean.Quote(r[i])
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// dash shows that there is nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// when writes a moment in the user's time zone.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// object writes a JSON object as sorted lines "key = value".
func object(m map[string]any) string {
	if len(m) == 0 {
		return "-"
	}
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v, ok := m[k].(string)
		if !ok {
			b, err := json.Marshal(m[k])
			if err != nil {
				b = fmt.Append(nil, m[k])
			}
			v = string(b)
		}
		lines = append(lines, k+" = "+v)
	}
	return strings.Join(lines, "\n")
}

// sheet writes names and values, values of several lines under each other.
func sheet(w io.Writer, pairs [][2]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, kv := range pairs {
		name := kv[0]
		for line := range strings.SplitSeq(kv[1], "\n") {
			fmt.Fprintf(tw, "%s\t%s\n", name, clean.Quote(line))
			name = ""
		}
	}
	return tw.Flush()
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
