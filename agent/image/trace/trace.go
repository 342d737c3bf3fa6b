// Package trace measures what the stages of an image write wait for, and shows it as a table, a sentence and a picture.
//
// A Recorder belongs to one write. Each goroutine of it has a Track through the stages that it works for, and says
// after each piece of work what the time since its last word was spent on: a stage, or waiting. So no time counts
// twice, and each stage's three shares, busy, waiting for input and waiting for output, make up the time from the
// beginning to the end of its goroutines. A stage waits for input while an earlier one keeps its goroutine, and for
// output while a later one does: a goroutine that decodes and then writes can't decode while the disk is slow.
//
// Times are kept in at most maxSlices slices of equal width. When a write outlasts them, they are merged in pairs: a
// write of any length takes the same memory. Recording is a lock and some additions for a piece of about a MiB. A nil
// Recorder and a nil Track do nothing.
package trace

import (
	"context"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Stage of a write, in the order of the data's way.
type Stage int

// The stages, and the two waits.
const (
	Input        Stage = iota - 1 // a wait for an earlier stage
	Compare                       // with what the disk holds, before a published image's chunk is fetched
	Fetch                         // all connections as one: waiting while no memory is free for what would come
	Digest                        // of the file, or of chunks
	UnpackStream                  // reading the format, with the decoder of a file that is one compressed stream
	UnpackPieces                  // decoders of parts that are compressed alone, on all cores
	ZeroTest                      // looking for zeros
	Write                         // requests to the disk
	Zeros                         // requests that punch holes, or write zeros
	Flush                         // the rest of the zeros, and the flush of the disk's cache
	Output                        // a wait for a later stage
)

var names = [Output]string{"compare", "fetch", "digest", "unpack stream", "unpack pieces", "zero test", "write",
	"zeros", "flush"}

// String returns the stage's name.
func (s Stage) String() string { return names[s] }

// Kinds of time.
const (
	busy = iota
	input
	output
	kinds
)

const (
	maxSlices  = 96 // an even number
	firstWidth = 10 * time.Millisecond
)

// Pace is nil, or called after each piece of work, with its stage and time; what it takes counts as part of the work.
// Benchmarks simulate machines whose cores are many and slow with it. It changes while nothing is written.
var Pace func(on Stage, took time.Duration)

// Recorder records one write.
type Recorder struct {
	began time.Time
	cores Cores // at the beginning

	mu     sync.Mutex
	width  time.Duration // of a slice
	stages [Output]record
}

// record is the time of a stage, of all its goroutines, by slice and kind.
type record struct {
	goroutines int
	slices     [maxSlices][kinds]time.Duration
}

// New returns a Recorder of a write that begins now.
func New() *Recorder { return &Recorder{began: time.Now(), cores: ReadCores(), width: firstWidth} }

// Track is one goroutine's way through stages.
type Track struct {
	r      *Recorder
	stages []Stage
	last   time.Time // guarded by the Recorder's lock
}

// Track adds a goroutine that begins now and works for these stages.
func (r *Recorder) Track(stages ...Stage) *Track {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range stages {
		r.stages[s].goroutines++
	}
	return &Track{r: r, stages: stages, last: time.Now()}
}

// Spent says that the time since the last call was spent on a stage, one of the track's or another, or on a wait.
func (t *Track) Spent(on Stage) {
	if t == nil {
		return
	}
	if Pace != nil && on > Input && on < Output {
		t.r.mu.Lock()
		took := time.Since(t.last)
		t.r.mu.Unlock()
		Pace(on, took)
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	now := time.Now()
	for _, s := range t.stages {
		switch {
		case s == on:
			t.r.add(s, busy, t.last, now)
		case s > on:
			t.r.add(s, input, t.last, now)
		default:
			t.r.add(s, output, t.last, now)
		}
	}
	t.last = now
}

// Follow records Fetch by a clock that runs while bytes are fetched, until Watch of the clock is called again. The time
// for which it stood is of the kind that wait returns at its end.
func (r *Recorder) Follow(c *step.Clock, wait func() Stage) {
	if r == nil {
		return
	}
	track := r.Track(Fetch)
	c.Watch(func(running bool) {
		if running {
			track.Spent(wait())
		} else {
			track.Spent(Fetch)
		}
	})
}

// add divides a time over the slices that it spans. The lock is held.
func (r *Recorder) add(s Stage, kind int, since, until time.Time) {
	from, to := since.Sub(r.began), until.Sub(r.began)
	for to > maxSlices*r.width {
		r.merge()
	}
	for from < to {
		i := from / r.width
		end := min(to, (i+1)*r.width)
		r.stages[s].slices[i][kind] += end - from
		from = end
	}
}

// merge halves the number of slices.
func (r *Recorder) merge() {
	r.width *= 2
	for s := range r.stages {
		old := r.stages[s].slices
		r.stages[s].slices = [maxSlices][kinds]time.Duration{}
		for i, slice := range old {
			for kind, d := range slice {
				r.stages[s].slices[i/2][kind] += d
			}
		}
	}
}

// Busy returns the time for which a stage was at work, on average of its goroutines.
func (r *Recorder) Busy(s Stage) time.Duration { return r.total(s, busy) }

// Starved returns the time for which a stage waited for input, on average of its goroutines.
func (r *Recorder) Starved(s Stage) time.Duration { return r.total(s, input) }

// Cores returns the share of all cores' time since the beginning in which they were in use, by any program, 0 to 1; 0
// if it is not known.
func (r *Recorder) Cores() float64 {
	if r == nil {
		return 0
	}
	return ReadCores().Since(r.cores)
}

func (r *Recorder) total(s Stage, kind int) (sum time.Duration) {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, slice := range r.stages[s].slices {
		sum += slice[kind]
	}
	return sum / time.Duration(max(1, r.stages[s].goroutines))
}

type key struct{}

// In returns a context in which functions that the goroutine calls find the track.
func (t *Track) In(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, t) }

// Of returns the track of a context, or nil.
func Of(ctx context.Context) *Track {
	t, _ := ctx.Value(key{}).(*Track)
	return t
}
