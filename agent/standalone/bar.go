package standalone

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ingot-metal/ingot/agent/step"
)

// Bar shows progress: on a terminal a line that is redrawn, elsewhere a line for each tenth.
type Bar struct {
	w     io.Writer
	width int // of the terminal; 0: no terminal
	now   func() time.Time

	what  string
	began time.Time
	tenth uint64
	drawn time.Time
	open  bool // the line is not ended
}

// NewBar makes a Bar. A width of 0 means that w is no terminal.
func NewBar(w io.Writer, width int) *Bar { return &Bar{w: w, width: width, now: time.Now} }

var words = map[string]string{
	"write": "writing", "zero": "making the rest zero", "verify": "reading back", "flush": "flushing",
	"commit": "committing the partition table", "connect": "connecting", "choose disk": "looking at the disk",
	"build config drive": "building the config drive", "write config drive": "writing the config drive",
	"boot entry": "making the boot entry", "index": "fetching the index",
	"compare": "comparing with what is on the disk",
}

const redrawEvery = 100 * time.Millisecond

// Show shows how far it is.
func (b *Bar) Show(_ string, p step.Progress) {
	if p.Phase == "" {
		return
	}
	now := b.now()
	what := cmp.Or(words[p.Phase], p.Phase)
	if what != b.what {
		b.End()
		b.what, b.began, b.tenth, b.drawn = what, now, 0, time.Time{}
		if b.width == 0 {
			fmt.Fprintln(b.w, what)
		}
	}
	switch {
	case b.width > 0 && now.Sub(b.drawn) >= redrawEvery || b.width > 0 && p.Bytes == p.Total && p.Total > 0:
		b.drawn, b.open = now, true
		fmt.Fprint(b.w, "\r\x1b[K"+b.line(p, now))
	case b.width == 0 && p.Total > 0 && p.Bytes*10/p.Total != b.tenth:
		b.tenth = p.Bytes * 10 / p.Total
		fmt.Fprintln(b.w, b.line(p, now))
	}
}

// line is one look: percent, rate, time left, and what needed no writing.
func (b *Bar) line(p step.Progress, now time.Time) string {
	if p.Bytes == 0 && p.Total == 0 {
		return b.what
	}
	rate := p.Rate
	if took := now.Sub(b.began).Seconds(); rate == 0 && took > 0.2 {
		rate = uint64(float64(p.Bytes) / took)
	}
	right := " " + size(p.Bytes)
	if p.Total > 0 {
		right = fmt.Sprintf(" %3d%%  %s of %s", min(p.Bytes, p.Total)*100/p.Total, size(p.Bytes), size(p.Total))
	}
	if rate > 0 {
		right += fmt.Sprintf("  %s/s", size(rate))
		if p.Total > p.Bytes {
			left := time.Duration(float64(p.Total-p.Bytes) / float64(rate) * float64(time.Second))
			right += "  " + left.Round(time.Second).String() + " left"
		}
	}
	if p.Skipped > 0 {
		right += fmt.Sprintf("  (%s skipped)", size(p.Skipped))
	}
	room := min(b.width-len(b.what)-len(right)-4, 40)
	if p.Total == 0 || room < 8 {
		return b.what + right
	}
	full := int(min(p.Bytes, p.Total) * uint64(room) / p.Total)
	return b.what + " [" + strings.Repeat("=", full) + strings.Repeat(" ", room-full) + "]" + right
}

// End ends the line that is being redrawn.
func (b *Bar) End() {
	if b.open {
		fmt.Fprintln(b.w)
		b.open = false
	}
}

func size(n uint64) string { return humanize.IBytesN(n, 3) }
