package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/image/chunked"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// errPublished says that image_source is the index of a published image. The disk has not been touched.
var errPublished = errors.New("the image is a published one")

// parseTrust parses the arguments that are only for published images.
func (a *writeArgs) parseTrust() (err error) {
	for _, s := range a.Keys {
		k, err := index.ParseKey(s)
		if err != nil {
			return fmt.Errorf("image_keys: %w", err)
		}
		a.keys = append(a.keys, k)
	}
	a.difference, err = chunked.ParseDifference(a.Difference)
	return err
}

// vouched reports whether an image without a digest may still be verified: by a signature, or by the digest in its
// reference. Failing that, the error comes later.
func (a *writeArgs) vouched() bool {
	ref, err := oci.ParseReference(a.Source)
	return err == nil && ref.Pinned() || len(a.keys) > 0
}

// onlySigned refuses an unpublished image if signatures are required: it can't have one. The error is an images.Error
// because another mirror may have the published image.
func (a *writeArgs) onlySigned() error {
	if len(a.keys) == 0 {
		return nil
	}
	return &images.Error{
		Err: errors.New(
			"this node accepts signed images only, and this is not a published image: it can't be signed"),
		Remedy: "publish the image and sign it (ingot image publish), or leave out image_keys",
	}
}

// published writes a published image.
func (p *pass) published(ctx context.Context, wait fetch.Patience) (*Result, error) {
	began := time.Now()
	p.rec = trace.New()
	a := p.args
	img, err := chunked.Open(ctx, chunked.Where{
		URLs: append([]string{a.Source}, a.Mirrors...), Signature: a.Signature, CA: a.CA, PullSecret: a.PullSecret,
		Wait: wait, Log: p.c.Log,
	}, chunked.Trust{Digest: a.digest, Keys: a.keys, Unverified: a.Unverified})
	if err != nil {
		return nil, err
	}
	defer img.Close()
	p.name = img.Name
	if m, ok := p.machine.(localImages); ok {
		p.name = cmp.Or(m.LocalImages(), p.name)
	}
	// A plan's buffers are most of the agent's memory. Without this a second attempt could overlap with those of the
	// first.
	defer debug.FreeOSMemory()
	p.c.Log.Info("writing published image", "disk", p.disk.Name, "url", img.Name, "from", img.Index.Source, "bytes",
		img.Index.Size, "data", img.Index.Data(), "digest", img.Digest)

	var s *sink.Sink
	plan := &chunked.Plan{
		Index: img.Index, Sum: img.Sum, Objects: img.Objects, Disk: p.dev, Difference: a.difference, Log: p.c.Log,
		Rec: p.rec, Further: a.further,
		Progress: func(phase string, done, total int64) {
			p.c.Report(step.Progress{Phase: phase, Bytes: uint64(done), Total: uint64(total),
				Skipped: uint64(s.Skipped())})
		},
	}
	var member *swarm.Member
	plan.Join = func(from chunked.Objects, read chunked.Read) chunked.Member {
		if member = swarm.Of(p.c.Facts).Join(img.Index, img.Sum, from, swarm.Read(read)); member == nil {
			return nil
		}
		return member
	}
	written := false
	defer func() {
		switch {
		case member == nil:
		case written:
			member.Rest() // it continues to serve chunks from memory
		default:
			member.Leave()
		}
	}()
	start, err := plan.Start(ctx)
	if err != nil {
		return nil, err
	}
	info, err := contentOf(start)
	if err != nil {
		return nil, err
	}
	if plan.Disk, err = p.place(info); err != nil {
		return nil, err
	}
	p.c.Report(step.Progress{Phase: "compare"})
	if err := plan.Survey(ctx); err != nil {
		return nil, err
	}
	s = sink.New(plan.Disk, p.disk, sink.Options{Verify: a.Verify, Look: plan.Compares(), Partition: info.Partition})
	if err := p.begin(ctx, s, start, img.Index.Size); err != nil {
		return nil, err
	}
	if err := plan.Run(ctx, s); err != nil {
		return nil, err
	}
	wrote := time.Since(began)
	r := &Result{}
	if err := p.settle(ctx, s, r, func() error { return nil }); err != nil { // each chunk was verified
		return nil, err
	}
	written = true
	r.PhasesMS.Write = wrote.Milliseconds()
	c := plan.Counts()
	r.BytesFetched, r.BytesKept = img.Fetched+c.Fetched, c.Kept
	r.Format, r.Digest, r.SHA256 = string(images.Published), img.Digest, fmt.Sprintf("%x", img.Sum)
	r.Busy = Busy{Link: percent(c.Fetching, wrote), Unpacking: percent(c.Unpacking, wrote),
		Disk: percent(s.Counts().Busy, wrote), Cores: int(100*p.rec.Cores() + 0.5)}
	r.Limit = r.Busy.limit()
	return r, nil
}

// contentOf identifies the content of a published image by its beginning.
func contentOf(start []byte) (images.Info, error) {
	format, head := images.Detect(start)
	switch format {
	case images.Raw, images.NotAnImage, images.FileSystem: // for NotAnImage the sink reports the fault of the table
		return images.Info{Head: head, Start: start, Partition: format == images.FileSystem}, nil
	}
	return images.Info{},
		step.Failf("publish the image again: ingot image publish unpacks images in all formats that it knows",
			"the published image holds an image in %s format", format)
}
