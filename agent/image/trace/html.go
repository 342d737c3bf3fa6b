package trace

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
)

// Fact is something to be said of a write beside its trace.
type Fact struct{ Name, Value string }

// Sizes of the picture, in pixels.
const (
	plotWidth  = 720
	laneHeight = 44
	laneStep   = 56
	plotLeft   = 120
)

// head is the page up to the sentences. The page is written without html/template, which has the linker keep methods
// that nothing calls: a ramdisk larger by a tenth.
const head = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Trace of an image write</title>
<style>
body { font: 15px/1.5 sans-serif; color: #222; background: #fff; max-width: 900px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em }
svg { max-width: 100%; height: auto; font: 13px sans-serif }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child { text-align: left }
.facts td { text-align: left }
.k0 { fill: #0072b2 } .k1 { fill: #f0e442 } .k2 { fill: #d55e00 }
.lane { fill: #f4f4f4 } .axis { stroke: #999 }
</style>
</head>
<body>
<h1>Trace of an image write</h1>
`

const explanation = `<p>A stage waits for input while an earlier one keeps it waiting, for output while a later one does. What is missing
from 100 % is the time before it began and after it ended. Each lane's full height is all its goroutines.</p>
`

// HTML writes one page that needs nothing else: the picture, the table, the sentences, and facts about the write.
func (t *Trace) HTML(w io.Writer, facts []Fact) error {
	var b bytes.Buffer
	// put formats a line; texts are escaped.
	put := func(format string, args ...any) {
		for i, a := range args {
			if text, is := a.(string); is {
				args[i] = html.EscapeString(text)
			}
		}
		fmt.Fprintf(&b, format+"\n", args...)
	}
	bottom := 28 + laneStep*len(t.Stages)
	b.WriteString(head)
	put("<p><strong>%s</strong></p>", t.Words)
	put(`<svg viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-label="%[3]s">`,
		plotLeft+plotWidth+40, bottom+28, "What each stage did over time")
	for kind, name := range [kinds]string{"busy", "waits for input", "waits for output"} {
		x := plotLeft + 150*kind
		put(`<rect class="k%d" x="%d" y="4" width="14" height="14"/><text x="%d" y="16">%s</text>`, kind, x, x+20, name)
	}
	for i, l := range t.Stages {
		top := 28 + laneStep*i
		put("<g><title>%s: busy %d %%, waits for input %d %%, waits for output %d %%</title>", l.Stage, l.Busy, l.Input,
			l.Output)
		put(`<text x="0" y="%d">%s</text>`, top+laneHeight/2+5, l.Stage)
		put(`<rect class="lane" x="%d" y="%d" width="%d" height="%d"/>`, plotLeft, top, plotWidth, laneHeight)
		for kind, area := range t.areas(l.Slices, top) {
			if area != "" {
				put(`<path class="k%d" d="%s"/>`, kind, area)
			}
		}
		put("</g>")
	}
	for i := range 5 {
		seconds := float64(t.TookMS) / 1000 * float64(i) / 4
		put(`<line class="axis" x1="%[1]d" y1="%[2]d" x2="%[1]d" y2="%[3]d"/>`+
			`<text x="%[1]d" y="%[4]d" text-anchor="middle">%.3[5]g s</text>`, plotLeft+plotWidth*i/4, bottom, bottom+5,
			bottom+20, seconds)
	}
	put("</svg>\n<table>\n<tr><th>stage</th><th>goroutines</th><th>busy</th><th>waits for input</th>" +
		"<th>waits for output</th></tr>")
	for _, l := range t.Stages {
		put("<tr><td>%s</td><td>%d</td><td>%d %%</td><td>%d %%</td><td>%d %%</td></tr>", l.Stage, l.Goroutines, l.Busy,
			l.Input, l.Output)
	}
	b.WriteString("</table>\n" + explanation + "<table class=\"facts\">\n")
	for _, f := range append([]Fact{{"image", t.Image}, {"disk", t.Disk}}, facts...) {
		put("<tr><td>%s</td><td>%s</td></tr>", f.Name, f.Value)
	}
	put("</table>\n</body>\n</html>")
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	return nil
}

// areas returns the outlines of a lane, as paths of SVG.
func (t *Trace) areas(shares [][3]uint8, top int) (paths [kinds]string) {
	x := func(i int) float64 {
		return plotLeft + plotWidth*min(1, float64(i)*float64(t.SliceMS)/max(1, float64(t.TookMS)))
	}
	below := make([]int, len(shares)) // percent
	for kind := range paths {
		high := slices.Clone(below)
		for i, s := range shares {
			high[i] = min(100, below[i]+int(s[kind]))
		}
		if slices.Equal(high, below) {
			continue
		}
		var b strings.Builder
		at := -1
		step := func(i, share int) {
			if share != at {
				fmt.Fprintf(&b, "H%.1f V%.1f ", x(i), float64(top)+laneHeight*float64(100-share)/100)
				at = share
			}
		}
		for i := range high {
			step(i, high[i])
		}
		for i := range slices.Backward(below) {
			step(i+1, below[i])
		}
		paths[kind] = fmt.Sprintf("M%d %d %sH%d Z", plotLeft, top+laneHeight, b.String(), plotLeft)
		below = high
	}
	return paths
}
