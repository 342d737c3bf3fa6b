package image

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/image/trace"
)

// Phases holds the durations of write_image's phases, in sequence.
type Phases struct {
	Prepare int64 `json:"prepare"` // choosing the disk, connecting, fetching the checksum file
	Write   int64 `json:"write"`
	Flush   int64 `json:"flush"`
	Verify  int64 `json:"verify"`
}

// Busy holds the share of the writing's time for which each stage was at work, in percent. The stages run concurrently;
// the one near 100 is the bottleneck.
type Busy struct {
	Link      int `json:"link"` // waiting for bytes
	Digest    int `json:"digest"`
	Unpacking int `json:"unpacking"`
	Disk      int `json:"disk"`  // with at least one request in progress
	Cores     int `json:"cores"` // all cores of the machine, by any program; 0: not known
}

// String formats the shares for the log.
func (b Busy) String() string {
	return fmt.Sprintf("link %d%% digest %d%% unpacking %d%% disk %d%% cores %d%%", b.Link, b.Digest, b.Unpacking, b.Disk,
		b.Cores)
}

// limit returns the busiest stage.
func (b Busy) limit() string {
	name, most := "link", b.Link
	for _, s := range []struct {
		name string
		busy int
	}{{"digest", b.Digest}, {"unpacking", b.Unpacking}, {"disk", b.Disk}} {
		if s.busy > most {
			name, most = s.name, s.busy
		}
	}
	return name
}

// busy computes the shares of the stages.
func busy(rec *trace.Recorder, s *sink.Sink, took time.Duration) Busy {
	percent := func(d time.Duration) int { return percent(d, took) }
	return Busy{
		Link: percent(rec.Starved(trace.Digest)), Digest: percent(rec.Busy(trace.Digest)),
		Unpacking: percent(max(rec.Busy(trace.UnpackStream), rec.Busy(trace.UnpackPieces))),
		Disk:      percent(s.Counts().Busy), Cores: int(100*rec.Cores() + 0.5),
	}
}

func percent(d, of time.Duration) int {
	if of <= 0 {
		return 0
	}
	return int(min(max(100*d/of, 0), 100))
}

// Picture writes the trace as a page of HTML.
func (r *Result) Picture(w io.Writer) error {
	seconds := float64(max(1, r.Trace.TookMS)) / 1000
	rate := func(n int64) string {
		return fmt.Sprintf("%.1f MB, %.1f MB/s", float64(n)/1e6, float64(n)/1e6/seconds)
	}
	return r.Trace.HTML(w, []trace.Fact{
		{Name: "format", Value: r.Format}, {Name: "compression", Value: cmp.Or(r.Compression, "none")},
		{Name: "took", Value: fmt.Sprintf("%.1f s", seconds)},
		{Name: "size of the image", Value: rate(r.VirtualSize)}, {Name: "fetched", Value: rate(r.BytesFetched)},
		{Name: "written", Value: rate(r.BytesWritten)},
	})
}
