package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
)

// machine says what it was measured on.
func machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s", runtime.NumCPU(), model)
}

// print writes the results, as Markdown.
func (b *bench) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s; image of %s; medians of %d rounds.\n", b.res.Machine, b.res.Image, b.res.Rounds)
	for _, s := range b.res.Scenarios {
		fmt.Fprintf(w, "\n%s", s.Title)
		if s.Ideal > 0 {
			fmt.Fprintf(w, " (arithmetic: %.2f s)", s.Ideal)
		}
		fmt.Fprint(w, "\n\n")
		t := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
		fmt.Fprintln(t, "| \t| seconds\t| CPU seconds\t| processors in use\t| memory, MiB\t| landed, MiB\t|")
		fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|")
		for _, r := range s.Rows {
			landed, memory := "–", "–"
			if r.Landed > 0 {
				landed = fmt.Sprint(r.Landed / mib)
			}
			if r.ours() && r.RSS > 0 { // of a pipe, the shell's would be told
				memory = fmt.Sprint(r.RSS / mib)
			}
			fmt.Fprintf(t, "| %s\t| %.2f\t| %.2f\t| %.0f %%\t| %s\t| %s\t|\n", r.Name, r.Wall, r.CPU, 100*r.Busy, memory,
				landed)
		}
		t.Flush()
	}
	fmt.Fprint(w, "\nGoals\n\n")
	t := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
	for _, g := range b.res.Goals {
		how, verdict := "≥", "met"
		if g.Most {
			how = "≤"
		}
		if !g.met() {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%.2f\t%s %.2f\t%s\n", g.What, g.Is, how, g.Want, verdict)
	}
	t.Flush()
}

func (r row) ours() bool {
	return strings.HasPrefix(r.Name, "ours") || r.Name == "full" || r.Name == "difference"
}

func (b *bench) save() error {
	if b.report != "" {
		raw, err := json.MarshalIndent(b.res, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(b.report, append(raw, '\n'), 0o644); err != nil {
			return err
		}
	}
	if b.picture == "" {
		return nil
	}
	return os.WriteFile(b.picture, []byte(b.res.svg()), 0o644)
}

// svg draws the seconds of all scenarios as bars.
func (r results) svg() string {
	const (
		width, left, bar, gap = 860, 170, 18, 6
		title                 = 34
	)
	height := 60
	for _, s := range r.Scenarios {
		height += title + len(s.Rows)*(bar+gap) + 14
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="12" y="22" font-size="15" font-weight="bold">Seconds until the image is on the disk, durable (less is better)</text>`+"\n")
	fmt.Fprintf(&b, `<text x="12" y="40" fill="#555">%s; image of %s; medians of %d rounds</text>`+"\n",
		escape(r.Machine), escape(r.Image), r.Rounds)
	y := 56
	for _, s := range r.Scenarios {
		y += title - 12
		fmt.Fprintf(&b, `<text x="12" y="%d" font-weight="bold">%s</text>`+"\n", y, escape(s.Title))
		y += 8
		longest := s.Ideal
		for _, row := range s.Rows {
			longest = max(longest, row.Wall)
		}
		scale := float64(width-left-150) / longest
		top := y
		for _, row := range s.Rows {
			color := "#9aa5b1"
			if row.ours() {
				color = "#1f7a5c"
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-8, y+bar-5, escape(row.Name))
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, y, row.Wall*scale, bar,
				color)
			label := fmt.Sprintf("%.2f s", row.Wall)
			if row.CPU > 0 {
				label += fmt.Sprintf(", %.1f CPU s", row.CPU)
			}
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(left)+row.Wall*scale+6, y+bar-5, label)
			y += bar + gap
		}
		if s.Ideal > 0 {
			x := float64(left) + s.Ideal*scale
			fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#c0392b" stroke-dasharray="4 3"/>`+"\n",
				x, top-2, x, y)
		}
		y += 14
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
