package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
)

// pass is the writing of one image to one disk.
type pass struct {
	c        *step.Call
	machine  machine
	src      *fetch.File
	dev      disk.Device
	disk     disk.Disk
	args     writeArgs
	drive    int64 // size of the config drive that will be written after the image
	pending  *disk.Pending
	division *disk.Division  // for a partition image
	wrong    error           // error of the last attempt's file
	short    bool            // memory is short, because the decoder has a large window
	rec      *trace.Recorder // of the last attempt
	name     string          // of the image, without secrets
}

// untilDone runs the pass, and restarts it if the server can't continue a transfer. Only the disk, whose head is zero
// all the time, is kept between attempts.
func (p *pass) untilDone(ctx context.Context) (*Result, error) {
	for {
		r, err := p.once(ctx)
		if !errors.Is(err, fetch.ErrRestart) {
			return r, err
		}
		p.src.Rewind()
		if err := p.src.Connect(ctx); err != nil {
			if p.wrong != nil && ctx.Err() == nil {
				err = p.wrong // error of the reachable mirrors
			}
			return nil, err
		}
	}
}

func (p *pass) once(ctx context.Context) (*Result, error) {
	began := time.Now()
	s, got, r, err := p.stream(ctx)
	if p.short {
		// The decoder is garbage now, and its window would stay in memory during the rest: reading back, the commit, or
		// another attempt.
		debug.FreeOSMemory()
	}
	if err != nil {
		var damaged *images.Error
		// another mirror may have the undamaged file, or the published one
		if ctx.Err() == nil && errors.As(err, &damaged) && p.src.Distrust(nil) {
			p.wrong = err
			return nil, fetch.ErrRestart
		}
		return nil, err
	}
	r.PhasesMS.Write = time.Since(began).Milliseconds()
	if err := p.finish(ctx, s, got, r); err != nil {
		return nil, rootCause(ctx, ctx, err)
	}
	return r, nil
}

// traced adds the trace to the result, if it is wanted.
func (p *pass) traced(r *Result) {
	if !p.args.Trace {
		return
	}
	r.Trace = p.rec.Trace(p.name, p.disk.String())
	for _, l := range r.Trace.Stages {
		p.c.Log.Info("stage of the write", "stage", l.Stage, "goroutines", l.Goroutines, "busy_percent", l.Busy,
			"input_percent", l.Input, "output_percent", l.Output)
	}
	p.c.Log.Info("trace of the write", "limit", r.Trace.Limit, "words", r.Trace.Words)
}

// stream writes the image to the disk, except for the withheld data, and returns the digest of the fetched file.
func (p *pass) stream(outer context.Context) (*sink.Sink, []byte, *Result, error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	fail := func(err error) (*sink.Sink, []byte, *Result, error) { return nil, nil, nil, rootCause(outer, ctx, err) }
	p.rec, p.name = trace.New(), p.src.Name()
	f := startFlow(ctx, p.src, p.args.digest.New(), p.rec)
	defer f.close()
	p.rec.Follow(&p.src.Clock, func() trace.Stage { return trace.Output })
	defer p.src.Clock.Watch(nil)
	e, info, err := images.Open(p.input(ctx, f),
		images.Limits{Size: p.disk.Size, Memory: int64(p.args.further) * perCorePacked})
	if info.Format == images.Published && info.Compression == images.Plain {
		return nil, nil, nil, errPublished
	}
	if err != nil {
		return fail(err)
	}
	defer func() { // a decoder may wait for bytes that do not come
		f.cancel()
		e.Close()
	}()
	p.short = info.Keeps > largeWindow
	if p.short {
		// The memory used so far is garbage: for a qcow2 in zstd a second decoder with its own window has read the
		// tables. The first decoder's window is hardly in memory yet. It fills without allocations, so the collector
		// would not run in time.
		debug.FreeOSMemory()
	}
	p.src.Widen(ahead(info, e.Size(), p.args.further))
	if err := p.args.onlySigned(); err != nil {
		return nil, nil, nil, err
	}
	dev, err := p.place(info)
	if err != nil {
		return nil, nil, nil, err
	}
	if want := strings.ToLower(p.args.DiskFormat); want != "" && want != string(info.Format) {
		p.c.Log.Info("image is not in the format it is said to be in; its content decides", "said", want, "format",
			string(info.Format))
	}
	p.c.Log.Info("writing image", "disk", p.disk.Name, "url", p.src.Name(), "format", string(info.Format),
		"compression", string(info.Compression), "table", string(info.Head), "bytes", p.src.Size())

	s := sink.New(dev, p.disk, sink.Options{Verify: p.args.Verify, Partition: info.Partition})
	if err := p.begin(ctx, s, info.Start, e.Size()); err != nil {
		return fail(err)
	}
	info.Start = nil // frees a MiB
	var reported time.Time
	report := func() {
		p.c.Report(step.Progress{Phase: "write", Bytes: uint64(f.fetched.Load()), Total: uint64(max(p.src.Size(), 0)),
			Skipped: uint64(s.Skipped())})
	}
	po := &pour{e: e, s: s, small: p.short, further: p.args.further, rec: p.rec, track: f.reading}
	now := func() bool {
		due := time.Since(reported) >= reportEvery
		if due {
			reported = time.Now()
		}
		return due
	}
	if err := po.run(ctx, cancel, func() {
		if now() {
			report()
		}
	}, func(n, of int64) {
		if now() {
			p.c.Report(step.Progress{Phase: "zero", Bytes: uint64(n), Total: uint64(of), Skipped: uint64(s.Skipped())})
		}
	}); err != nil {
		return fail(err)
	}
	if err := e.Close(); err != nil { // a decoder may still read the flow
		return fail(err)
	}
	got, err := f.finish()
	if err != nil {
		return fail(err)
	}
	report()
	p.src.Clock.Watch(nil)
	r := &Result{BytesFetched: f.fetched.Load(), Format: string(info.Format), Compression: string(info.Compression),
		Busy: busy(p.rec, s, time.Since(began))}
	r.Limit = r.Busy.limit()
	return s, got, r, nil
}

// largeWindow is the decoder window from which memory is short.
const largeWindow = 12 << 20

// ahead returns how many MiB of the file may wait to be read, two more for each further core. With a large decoder
// window, the decoder is the bottleneck, and memory is short.
func ahead(info images.Info, size int64, further int) int {
	// A large qcow2 has a long list of its clusters.
	if info.Keeps > largeWindow {
		return 2 + 2*further
	}
	if info.Format == images.QCow2 && size > 16<<30 {
		return 4
	}
	return 7 + 2*further
}

// input is the file as package images needs it. Tables are read outside of the hashed stream; the formats compare them
// with it.
func (p *pass) input(ctx context.Context, f *flow) images.Input {
	return images.Input{
		Stream: f, Stop: f.cancel, Size: p.src.Size(), At: p.src.At(ctx),
		Again: func() (io.ReadCloser, error) { return p.src.Again(ctx) },
	}
}

// finish makes the written data durable, and then verifies it.
func (p *pass) finish(ctx context.Context, s *sink.Sink, got []byte, r *Result) error {
	d := p.args.digest
	err := p.settle(ctx, s, r, func() error {
		if d.Algo == "" || d.Matches(got) {
			return nil
		}
		if p.wrong = d.Mismatch(got); !p.src.Distrust(got) {
			return p.wrong
		}
		return fetch.ErrRestart
	})
	if err != nil {
		return err
	}
	algo := cmp.Or(d.Algo, "sha256")
	r.Digest = algo + ":" + hex.EncodeToString(got)
	if algo == "sha256" {
		r.SHA256 = hex.EncodeToString(got)
	}
	return nil
}

// settle makes the written data durable, verifies it, and leaves the withheld data for the commit.
func (p *pass) settle(ctx context.Context, s *sink.Sink, r *Result, right func() error) error {
	r.VirtualSize, r.Verified = s.Size(), p.args.Verify
	p.c.Report(step.Progress{Phase: "flush"})
	began, track := time.Now(), p.rec.Track(trace.Flush)
	if err := s.Finish(ctx); err != nil {
		return err
	}
	track.Spent(trace.Flush)
	r.PhasesMS.Flush = time.Since(began).Milliseconds()
	if err := right(); err != nil {
		return err
	}
	p.traced(r)
	if tail := s.Tail(); bytes.HasPrefix(tail[max(0, len(tail)-512):], []byte("conectix")) {
		return step.Failf("convert it: qemu-img convert -f vpc -O raw", "images in vhd format are not supported")
	}
	pending, err := p.held(s)
	if err != nil {
		return err
	}
	if p.args.Verify {
		began = time.Now()
		if err := s.ReadBack(ctx, func(done, total int64) {
			p.c.Report(step.Progress{Phase: "verify", Bytes: uint64(done), Total: uint64(total)})
		}); err != nil {
			return err
		}
		r.PhasesMS.Verify = time.Since(began).Milliseconds()
	}
	p.pending = pending
	c := s.Counts()
	r.BytesWritten, r.BytesZero, r.BytesSkipped = c.Written, c.Zero, c.Skipped
	return nil
}

// rootCause returns the decisive error: the end of the step's context, then the first failure, then err.
func rootCause(outer, inner context.Context, err error) error {
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	if cause := context.Cause(inner); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}
