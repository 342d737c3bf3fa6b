package image

import (
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/agent/image/sink"
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
	Disk      int `json:"disk"` // with at least one request in progress
}

// String formats the shares for the log.
func (b Busy) String() string {
	return fmt.Sprintf("link %d%% digest %d%% unpacking %d%% disk %d%%", b.Link, b.Digest, b.Unpacking, b.Disk)
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
func busy(f *flow, p *pour, s *sink.Sink, took time.Duration) Busy {
	percent := func(d time.Duration) int { return percent(d, took) }
	return Busy{
		Link: percent(time.Duration(f.waited.Load())), Digest: percent(time.Duration(f.hashing.Load())),
		// A stream is decompressed inside Next; its wait for bytes does not count as unpacking.
		Unpacking: percent(
			max(p.next-time.Duration(f.starved.Load()), time.Duration(p.decode.Load())/time.Duration(p.workers()))),
		Disk: percent(s.Counts().Busy),
	}
}

func percent(d, of time.Duration) int {
	if of <= 0 {
		return 0
	}
	return int(min(max(100*d/of, 0), 100))
}
