package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/sink"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
)

// Stall is how long write_image may show no progress. It is longer than every patience inside, so that the better error wins.
const Stall = 5 * time.Minute

// WriteArgs declares the arguments of write_image, under the names of Ironic's instance_info.
var WriteArgs = []step.Arg{
	{Name: "image_source", Type: "string", Required: true, Description: "http or https URL of a whole-disk image: raw, or raw in zstd"},
	{Name: "image_mirrors", Type: "array", Description: "URLs of the same file at other places, asked when the first fails or is slow"},
	{Name: "image_os_hash_algo", Type: "string", Description: "sha256 or sha512"},
	{Name: "image_os_hash_value", Type: "string", Description: "digest of the file at image_source, in hexadecimal digits"},
	{Name: "image_checksum", Type: "string", Description: "the same as digits alone, or the URL of a checksum file"},
	{Name: "image_disk_format", Type: "string", Description: "what the image is thought to be; it is found out by content"},
	{Name: "allow_unverified", Type: "boolean", Description: "write an image that comes without a digest"},
	{Name: "root_device", Type: "object", Description: "hints that choose the disk; without them the smallest of at least 4 GiB"},
	{Name: "image_ca", Type: "string", Description: "certificates in PEM form that the image server's must be signed by"},
	{Name: "verify", Type: "boolean", Description: "read back what was written and compare"},
}

type writeArgs struct {
	Source      string          `json:"image_source"`
	Mirrors     []string        `json:"image_mirrors"`
	HashAlgo    string          `json:"image_os_hash_algo"`
	HashValue   string          `json:"image_os_hash_value"`
	Checksum    string          `json:"image_checksum"`
	DiskFormat  string          `json:"image_disk_format"`
	Unverified  bool            `json:"allow_unverified"`
	RootDevice  json.RawMessage `json:"root_device"`
	CA          string          `json:"image_ca"`
	Verify      bool            `json:"verify"`
	hints       disk.Hints
	digest      images.Digest
	checksumURL string
}

// Result is what write_image ends with.
type Result struct {
	Disk         WrittenDisk `json:"disk"`
	BytesFetched int64       `json:"bytes_fetched"`
	BytesWritten int64       `json:"bytes_written"`
	BytesZero    int64       `json:"bytes_zero"`
	VirtualSize  int64       `json:"virtual_size"`
	SHA256       string      `json:"sha256"` // of the file as fetched; empty when another digest was asked for
	Digest       string      `json:"digest"` // the one that was compared, or just computed: "sha512:<hex>"
	Verified     bool        `json:"verified"`
	Format       string      `json:"format"`
	Compression  string      `json:"compression"`
	// BytesSkipped is what of the disk needed no write: holes that were punched, and what it held already.
	BytesSkipped int64  `json:"bytes_skipped"`
	TookMS       int64  `json:"took_ms"`
	PhasesMS     Phases `json:"phases_ms"`
	Busy         Busy   `json:"busy_percent"`
	Limit        string `json:"limit"` // what a faster deployment would need first: "link", "digest", "unpacking" or "disk"
	Resumes      int    `json:"resumes"`
	Restarts     int    `json:"restarts"`
}

// WrittenDisk is the disk's identity and why it was chosen.
type WrittenDisk struct {
	disk.Identity
	Why string `json:"why"`
}

// WriteStep chooses the root disk and writes an image onto it, all but what makes it bootable, which it leaves to disk.Commit as a fact.
// Stopped at any point, also by losing power, the disk either is untouched or has no partition table. Run again, it starts over.
func WriteStep(m machine) step.Func {
	return func(ctx context.Context, c *step.Call) (step.Outcome, error) {
		r, err := write(ctx, m, c, fetch.DefaultPatience)
		if err != nil {
			return step.Outcome{}, explain(err)
		}
		return step.Outcome{Result: r}, nil
	}
}

// explain makes a step.Error of an error that package images has a remedy for.
func explain(err error) error {
	var se *step.Error
	var ie *images.Error
	if !errors.As(err, &se) && errors.As(err, &ie) {
		return step.Fail(ie.Remedy, err)
	}
	return err
}

func parseArgs(c *step.Call) (writeArgs, error) {
	var a writeArgs
	if err := c.Decode(&a); err != nil {
		return a, err
	}
	if a.Source == "" {
		return a, step.Failf("set image_source in instance_info", "no image is given")
	}
	var err error
	if a.hints, err = disk.ParseHints(a.RootDevice); err != nil {
		return a, err
	}
	switch sum := strings.TrimSpace(a.Checksum); {
	case a.HashValue != "":
		if a.HashAlgo == "" {
			a.digest, err = images.DigestOf(a.HashValue)
		} else {
			a.digest, err = images.ParseDigest(a.HashAlgo, a.HashValue)
		}
	case strings.HasPrefix(sum, "http://"), strings.HasPrefix(sum, "https://"):
		a.checksumURL = sum
	case sum != "":
		a.digest, err = images.DigestOf(sum)
	case !a.Unverified:
		err = step.Failf("set image_os_hash_algo and image_os_hash_value in instance_info", "the image has no digest, and images without one are not allowed here")
	}
	return a, err
}

func write(ctx context.Context, m machine, c *step.Call, wait fetch.Patience) (*Result, error) {
	began := time.Now()
	disk.SetPending(c.Facts, nil)
	a, err := parseArgs(c)
	if err != nil {
		return nil, err
	}
	c.Report(step.Progress{Phase: "choose disk"})
	choice, err := disk.ChooseWhenReady(ctx, m, a.hints)
	if err != nil {
		return nil, err
	}
	c.Log.Info("root disk chosen", "disk", choice.Disk.Name, "why", choice.Why)

	c.Report(step.Progress{Phase: "connect"})
	src, err := fetch.Open(fetch.Source{URLs: append([]string{a.Source}, a.Mirrors...), CA: a.CA, Digest: a.digest.Algo != "" || a.checksumURL != ""}, wait, c.Log)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if a.checksumURL != "" {
		if a.digest, err = fetchDigest(ctx, a, src.Path(), wait, c.Log); err != nil {
			return nil, err
		}
	}
	if err := src.Connect(ctx); err != nil {
		return nil, err
	}

	prepared := time.Now()
	dev, d, err := disk.OpenVerified(ctx, m, choice.Disk.Identity())
	if err != nil {
		return nil, err
	}
	p := &pass{c: c, src: src, dev: dev, disk: d, args: a}
	r, err := p.untilDone(ctx)
	if cerr := dev.Close(); err == nil && cerr != nil {
		err = sink.Fault(fmt.Errorf("close %s: %w", d.Name, cerr))
	}
	if err != nil {
		return nil, err
	}
	disk.SetPending(c.Facts, p.pending)
	r.Disk = WrittenDisk{d.Identity(), choice.Why}
	r.PhasesMS.Prepare = prepared.Sub(began).Milliseconds()
	r.TookMS = time.Since(began).Milliseconds()
	stats := src.Stats()
	r.Resumes, r.Restarts = stats.Resumes, stats.Restarts
	c.Log.Info("image written", "disk", d.Name, "bytes", r.BytesWritten, "zero", r.BytesZero, "fetched", r.BytesFetched, "resumes", r.Resumes,
		"took", time.Since(began).Round(time.Millisecond), "limit", r.Limit, "busy", r.Busy.String())
	return r, nil
}

<<<<<<< theirs
// pass is one image on its way to one disk.
type pass struct {
	c       *step.Call
	src     *fetch.File
	dev     disk.Device
	disk    disk.Disk
	args    writeArgs
	pending *disk.Pending
	wrong   error // what the last attempt's digest was refused with
}

// untilDone runs the pass, from the beginning whenever the server can't go on where it stopped. Nothing is kept from one attempt to the
// next but the disk, whose head is zero all the time.
func (p *pass) untilDone(ctx context.Context) (*Result, error) {
	for {
		r, err := p.once(ctx)
		if !errors.Is(err, fetch.ErrRestart) {
			return r, err
		}
		p.src.Rewind()
		if err := p.src.Connect(ctx); err != nil {
			if p.wrong != nil && ctx.Err() == nil {
				err = p.wrong // what the mirrors that answer have
			}
			return nil, err
		}
	}
}

func (p *pass) once(outer context.Context) (*Result, error) {
	s, ctx := newSink(outer, p.dev, p.disk, p.args.Verify)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			s.stop()
		}
	}
	defer stop()
	f := startFlow(ctx, p.src, p.args.digest.New())
	defer f.close()

	e, info, err := images.Open(images.Input{Stream: f, Size: p.src.Size(), Cancel: f.cancel}, images.Limits{Size: p.disk.Size})
	if err != nil {
		return nil, p.told(outer, ctx, err)
	}
	defer e.Close()
	if err := info.WholeDisk(); err != nil {
		return nil, err
	}
	if want := strings.ToLower(p.args.DiskFormat); want != "" && want != string(info.Format) {
		p.c.Log.Info("image is not in the format it is said to be in; its content decides", "said", want, "format", string(info.Format))
	}
	p.c.Log.Info("writing image", "disk", p.disk.Name, "url", p.src.Name(), "format", string(info.Format), "compression", string(info.Compression),
		"table", string(info.Head), "bytes", p.src.Size())

	var reported time.Time
	total := uint64(max(p.src.Size(), 0))
	if err := s.take(ctx, e, func() {
		if now := time.Now(); now.Sub(reported) >= reportEvery {
			reported = now
			p.c.Report(step.Progress{Phase: "write", Bytes: uint64(f.fetched.Load()), Total: total})
		}
	}); err != nil {
		return nil, p.told(outer, ctx, err)
	}
	got, err := f.finish()
	if err != nil {
		return nil, p.told(outer, ctx, err)
	}
	p.c.Report(step.Progress{Phase: "write", Bytes: uint64(f.fetched.Load()), Total: total})
	stop()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return nil, err // of a writer that was still at work
	}
	if err := outer.Err(); err != nil {
		return nil, context.Cause(outer)
	}
	return p.finish(outer, s, info, f.fetched.Load(), got)
}

// finish makes what was written durable, and only then believes in it.
func (p *pass) finish(ctx context.Context, s *sink, info images.Info, fetched int64, got []byte) (*Result, error) {
	p.c.Report(step.Progress{Phase: "flush"})
	if err := p.dev.Sync(); err != nil {
		return nil, diskFault(fmt.Errorf("flush %s: %w", p.disk.Name, err))
	}
	d := p.args.digest
	known := d.Algo != ""
	if known && !d.Matches(got) {
		if p.wrong = d.Mismatch(got); !p.src.Distrust(got) {
			return nil, p.wrong
		}
		return nil, fetch.ErrRestart
	}
	if bytes.HasPrefix(s.tail[max(0, len(s.tail)-512):], []byte("conectix")) {
		return nil, step.Failf("convert it: qemu-img convert -f vpc -O raw", "images in vhd format are not supported")
	}
	pending, err := disk.NewPending(p.disk, s.head[:min(s.size, disk.HeadSize)], s.tail, s.tailOff, s.size)
	if err != nil {
		return nil, err
	}
	if p.args.Verify {
		if err := s.readBack(ctx, func(done int64) {
			p.c.Report(step.Progress{Phase: "verify", Bytes: uint64(done), Total: uint64(s.written)})
		}); err != nil {
			return nil, err
		}
	}
	p.pending = pending
	r := &Result{
		BytesFetched: fetched, BytesWritten: s.written + s.zeroer.Written, BytesZero: s.zeroer.Punched + s.zeroer.Written, VirtualSize: s.size,
		Verified: p.args.Verify, Format: string(info.Format), Compression: string(info.Compression),
	}
	algo := d.Algo
	if algo == "" {
		algo = "sha256"
	}
	r.Digest = algo + ":" + hex.EncodeToString(got)
	if algo == "sha256" {
		r.SHA256 = hex.EncodeToString(got)
	}
	return r, nil
}

// told picks the error that matters: the end of the step's own context, then what a writer said, then err.
func (p *pass) told(outer, inner context.Context, err error) error {
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	if cause := context.Cause(inner); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

=======
>>>>>>> engine
// maxSums is the largest checksum file that is read: those of whole distributions have some thousand lines.
const maxSums = 4 << 20

// fetchDigest looks the image up in a checksum file.
func fetchDigest(ctx context.Context, a writeArgs, imagePath string, wait fetch.Patience, log *slog.Logger) (images.Digest, error) {
	o, err := fetch.NewOrigin([]string{a.checksumURL}, a.CA, wait, log)
	if err != nil {
		return images.Digest{}, fmt.Errorf("checksum file: %w", err)
	}
	defer o.Close()
	text, err := o.GetUpTo(ctx, "", maxSums)
	if err != nil {
		return images.Digest{}, fmt.Errorf("checksum file: %w", err)
	}
	d, err := images.ParseSums(string(text), imagePath)
	if err != nil {
		return d, fmt.Errorf("checksum file %s: %w", o.Name(), err)
	}
	return d, nil
}
