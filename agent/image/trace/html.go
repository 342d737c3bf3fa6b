package trace

import (
	"fmt"
	"html/template"
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

// lane is a stage in the picture: one outline for each kind of time, stacked.
type lane struct {
	Line
	Top, Middle int
	Areas       [kinds]string
}

const page = `<!DOCTYPE html>
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
<p><strong>{{.Words}}</strong></p>
<svg viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" role="img" aria-label="What each stage did over time">
<rect class="k0" x="{{.Left}}" y="4" width="14" height="14"/><text x="{{.Legend 0}}" y="16">busy</text>
<rect class="k1" x="{{.Key 1}}" y="4" width="14" height="14"/><text x="{{.Legend 1}}" y="16">waits for input</text>
<rect class="k2" x="{{.Key 2}}" y="4" width="14" height="14"/><text x="{{.Legend 2}}" y="16">waits for output</text>
{{- range .Lanes}}
<g><title>{{.Stage}}: busy {{.Busy}} %, waits for input {{.Input}} %, waits for output {{.Output}} %</title>
<text x="0" y="{{.Middle}}">{{.Stage}}</text>
<rect class="lane" x="{{$.Left}}" y="{{.Top}}" width="{{$.Plot}}" height="{{$.LaneHeight}}"/>
{{- range $kind, $area := .Areas}}{{if $area}}
<path class="k{{$kind}}" d="{{$area}}"/>
{{- end}}{{end}}</g>
{{- end}}
{{- range .Ticks}}
<line class="axis" x1="{{.X}}" y1="{{$.Bottom}}" x2="{{.X}}" y2="{{$.TickEnd}}"/><text x="{{.X}}" y="{{$.TickText}}" text-anchor="middle">{{.Text}}</text>
{{- end}}
</svg>
<table>
<tr><th>stage</th><th>goroutines</th><th>busy</th><th>waits for input</th><th>waits for output</th></tr>
{{- range .Lanes}}
<tr><td>{{.Stage}}</td><td>{{.Goroutines}}</td><td>{{.Busy}} %</td><td>{{.Input}} %</td><td>{{.Output}} %</td></tr>
{{- end}}
</table>
<p>A stage waits for input while an earlier one keeps it waiting, for output while a later one does. What is missing
from 100 % is the time before it began and after it ended. Each lane's full height is all its goroutines.</p>
<table class="facts">
{{- range .Facts}}
<tr><td>{{.Name}}</td><td>{{.Value}}</td></tr>
{{- end}}
</table>
</body>
</html>
`

// picture is the data of the page.
type picture struct {
	*Trace
	Facts []Fact
	Lanes []lane
	Ticks []tick
}

type tick struct {
	X    int
	Text string
}

func (picture) Left() int          { return plotLeft }
func (picture) Plot() int          { return plotWidth }
func (picture) LaneHeight() int    { return laneHeight }
func (picture) Width() int         { return plotLeft + plotWidth + 40 }
func (p picture) Bottom() int      { return 28 + laneStep*len(p.Lanes) }
func (p picture) TickEnd() int     { return p.Bottom() + 5 }
func (p picture) TickText() int    { return p.Bottom() + 20 }
func (p picture) Height() int      { return p.Bottom() + 28 }
func (picture) Key(i int) int      { return plotLeft + 150*i }
func (p picture) Legend(i int) int { return p.Key(i) + 20 }

// HTML writes one page that needs nothing else: the picture, the table, the sentences, and facts about the write.
func (t *Trace) HTML(w io.Writer, facts []Fact) error {
	p := picture{Trace: t, Facts: append([]Fact{{"image", t.Image}, {"disk", t.Disk}}, facts...)}
	for i, l := range t.Stages {
		top := 28 + laneStep*i
		p.Lanes = append(p.Lanes, lane{l, top, top + laneHeight/2 + 5, t.areas(l.Slices, top)})
	}
	for i := range 5 {
		seconds := float64(t.TookMS) / 1000 * float64(i) / 4
		p.Ticks = append(p.Ticks, tick{plotLeft + plotWidth*i/4, fmt.Sprintf("%.3g s", seconds)})
	}
	if err := template.Must(template.New("trace").Parse(page)).Execute(w, p); err != nil {
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
