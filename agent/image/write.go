package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/image/chunked"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// Stall is how long write_image may show no progress. It is longer than all inner timeouts, whose errors are better.
const Stall = 5 * time.Minute

// WriteArgs declares the arguments of write_image, under the names of Ironic's instance_info.
var WriteArgs = append([]step.Arg{
	{Name: "image_source", Type: "string", Required: true, Given: true,
		Description: "http or https URL of an image, or of the index of a published one; oci://registry/repository:tag for one in a registry"},
	{Name: "image_mirrors", Type: "array",
		Description: "URLs of the same file at other places, used when the first fails or is slow"},
	{Name: "image_os_hash_algo", Type: "string", Description: "sha256, sha512 or blake3"},
	{Name: "image_os_hash_value", Type: "string",
		Description: "digest of the file at image_source, in hexadecimal digits, or the URL of a checksum file"},
	{Name: "image_checksum", Type: "string", Description: "the same as digits alone, or the URL of a checksum file"},
	{Name: "image_disk_format", Type: "string",
		Description: "expected format of the image; the format is detected by content"},
	{Name: "allow_unverified", Type: "boolean", Owner: step.Configuration,
		Description: "write an image without a digest"},
	{Name: "allow_md5", Type: "boolean", Owner: step.Configuration, Description: "accept an MD5 sum as a digest"},
	{Name: "root_device", Type: "object",
		Description: "hints for the disk; default: the smallest of at least 4 GiB"},
	{Name: "image_ca", Type: "string", Owner: "driver_info",
		Description: "certificates in PEM form that must have signed the image server's"},
	{Name: "image_keys", Type: "array", Owner: "driver_info or instance_info",
		Description: "public keys (minisign, cosign) of which one must have signed the image; then only published images are written"},
	{Name: "image_signature", Type: "string",
		Description: "URL of the signature; default: that of the image with .minisig or .sig appended"},
	{Name: "image_pull_secret", Type: "string", Secret: true,
		Description: "user:password or token for the registry of an oci:// image"},
	{Name: "image_difference", Type: "string",
		Description: "auto, always or never: whether parts of a published image that the disk already holds are kept"},
	{Name: "verify", Type: "boolean", Description: "read back the written data and compare"},
	{Name: "image_memory", Type: "integer", Min: step.Limit(LeastMemory), Max: step.Limit(1 << 20),
		Description: "MiB of memory that the write may use; default: 48 for up to four cores and 12 for each further one, at most a quarter of the RAM"},
	{Name: "trace", Type: "boolean",
		Description: "report what each stage of the write waited for, in the result and the log"},
}, layoutArgs...)

type writeArgs struct {
	Source     string          `json:"image_source"`
	Mirrors    []string        `json:"image_mirrors"`
	HashAlgo   string          `json:"image_os_hash_algo"`
	HashValue  string          `json:"image_os_hash_value"`
	Checksum   string          `json:"image_checksum"`
	DiskFormat string          `json:"image_disk_format"`
	Unverified bool            `json:"allow_unverified"`
	MD5        bool            `json:"allow_md5"`
	RootDevice json.RawMessage `json:"root_device"`
	CA         string          `json:"image_ca"`
	Keys       []string        `json:"image_keys"`
	Signature  string          `json:"image_signature"`
	PullSecret string          `json:"image_pull_secret"`
	Difference string          `json:"image_difference"`
	Verify     bool            `json:"verify"`
	Memory     int64           `json:"image_memory"` // MiB; 0: the default
	Trace      bool            `json:"trace"`
	Type       string          `json:"image_type"`
	disk.Layout
	hints       disk.Hints
	digest      images.Digest
	checksumURL string
	keys        []index.Key
	difference  chunked.Difference
	further     int // cores beyond four for which there is memory
	sums        images.Sums
}

// weak returns the weak digests that are accepted.
func (a writeArgs) weak() []string {
	if a.MD5 {
		return []string{images.MD5}
	}
	return nil
}

// Result of write_image.
type Result struct {
	Disk         WrittenDisk `json:"disk"`
	BytesFetched int64       `json:"bytes_fetched"`
	BytesWritten int64       `json:"bytes_written"`
	BytesZero    int64       `json:"bytes_zero"`
	VirtualSize  int64       `json:"virtual_size"`
	SHA256       string      `json:"sha256"` // of the fetched file; empty if another digest was requested
	Digest       string      `json:"digest"` // the compared, or only computed one: "sha512:<hex>"
	Verified     bool        `json:"verified"`
	Format       string      `json:"format"`
	Compression  string      `json:"compression"`
	// BytesSkipped is the part of the disk that needed no write: punched holes, and data already there.
	BytesSkipped int64  `json:"bytes_skipped"`
	BytesKept    int64  `json:"bytes_kept"` // data of a published image that the disk already held
	TookMS       int64  `json:"took_ms"`
	PhasesMS     Phases `json:"phases_ms"`
	Busy         Busy   `json:"busy_percent"`
	// the bottleneck of the deployment: "link", "digest", "unpacking" or "disk"
	Limit    string `json:"limit"`
	Resumes  int    `json:"resumes"`
	Restarts int    `json:"restarts"`
	// Trace of the write until it was flushed, if it is wanted.
	Trace *trace.Trace `json:"trace,omitempty"`
	// Staged: the image was written ahead, by an earlier plan of this boot. Then nothing is counted here.
	Staged bool `json:"staged,omitempty"`
}

// WrittenDisk is the disk's identity and the reason for choosing it.
type WrittenDisk struct {
	disk.Identity
	Why string `json:"why"`
}

// WriteStep chooses the root disk and writes an image to it, except for the data that makes it bootable, which it
// leaves to disk.Commit as a fact. If stopped at any point, also by a power cut, the disk either is untouched or has no
// partition table. A repeated run starts over.
func WriteStep(m machine) step.Func {
	return func(ctx context.Context, c *step.Call) (step.Outcome, error) {
		r, err := write(ctx, m, c, fetch.DefaultPatience)
		if err != nil {
			return step.Outcome{}, Explain(err)
		}
		return step.Outcome{Result: r}, nil
	}
}

// Explain converts an error with a remedy of package images to a step.Error.
func Explain(err error) error {
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
	if err := a.parseTrust(); err != nil {
		return a, err
	}
	if a.further, err = further(a.Memory); err != nil {
		return a, err
	}
	algo, sum := a.HashAlgo, strings.TrimSpace(a.HashValue)
	if sum == "" {
		algo, sum = "", strings.TrimSpace(a.Checksum)
	}
	switch {
	case strings.HasPrefix(sum, "http://"), strings.HasPrefix(sum, "https://"):
		a.checksumURL, a.sums = sum, images.Sums{Algo: algo, Name: sum, Allow: a.weak()}
	case sum != "" && algo != "":
		a.digest, err = images.ParseDigest(algo, sum, a.weak()...)
	case sum != "":
		a.digest, err = images.DigestOf(sum, a.weak()...)
	case !a.Unverified && !a.vouched():
		err = step.Failf("set image_os_hash_algo and image_os_hash_value in instance_info",
			"the image has no digest, and images without one are not allowed here")
	}
	return a, err
}

func write(ctx context.Context, m machine, c *step.Call, wait fetch.Patience) (*Result, error) {
	began := time.Now()
	disk.SetPending(c.Facts, nil)
	there := takeStaged(c.Facts)
	a, err := parseArgs(c)
	if err != nil {
		return nil, err
	}
	// The few buffers are reused, so that the collector rarely runs; without a limit it would allow garbage of the same
	// size.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit + int64(a.further)*perCore))
	connect, release := a.connection(ctx, m, wait, c.Log, there == nil)
	defer release()
	c.Report(step.Progress{Phase: "choose disk"})
	choice, err := disk.ChooseWhenReady(ctx, m, disk.RootOf(c.Facts, a.hints))
	if err != nil {
		return nil, err
	}
	c.Log.Info("root disk chosen", "disk", choice.Disk.Name, "why", choice.Why)
	if there != nil {
		ok, why := there.serves(ctx, m, &a, choice.Disk, wait, c.Log)
		if ok {
			disk.SetPending(c.Facts, there.pending)
			there.leave(c.Facts)
			c.Log.Info("the image is there, it was written ahead", "disk", choice.Disk.Name, "digest",
				there.result.Digest)
			return there.found(began, choice.Why), nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.Log.Info("the image that was written ahead can't be used", "disk", there.pending.Disk.Name, "why", why)
	}

	drive, err := configdrive.Foresee(ctx, c, choice.Disk.LogicalSectors)
	if err != nil {
		return nil, err
	}
	c.Report(step.Progress{Phase: "connect"})
	src, err := connect() // nil for an image in a registry, which is always a published one
	if err != nil {
		return nil, err
	}
	prepared := time.Now()
	dev, d, err := disk.OpenVerified(ctx, m, choice.Disk.Identity())
	if err != nil {
		return nil, err
	}
	p := &pass{c: c, machine: m, src: src, dev: dev, disk: d, args: a, drive: drive}
	var r *Result
	if err = errPublished; src != nil {
		r, err = p.untilDone(ctx)
	}
	if errors.Is(err, errPublished) {
		r, err = p.published(ctx, wait)
	}
	if cerr := dev.Close(); err == nil && cerr != nil {
		err = sink.Fault(fmt.Errorf("close %s: %w", d.Name, cerr))
	}
	if err != nil {
		return nil, err
	}
	disk.SetPending(c.Facts, p.pending)
	(&staged{args: a, result: r, pending: p.pending}).leave(c.Facts)
	r.Disk = WrittenDisk{d.Identity(), choice.Why}
	r.PhasesMS.Prepare = prepared.Sub(began).Milliseconds()
	r.TookMS = time.Since(began).Milliseconds()
	if src != nil {
		stats := src.Stats()
		r.Resumes, r.Restarts = stats.Resumes, stats.Restarts
	}
	c.Log.Info("image written", "disk", d.Name, "bytes", r.BytesWritten, "zero", r.BytesZero, "fetched", r.BytesFetched,
		"resumes", r.Resumes, "took", time.Since(began).Round(time.Millisecond), "limit", r.Limit, "busy",
		r.Busy.String())
	return r, nil
}

// localImages is a machine that allows images that are its own files. LocalImages returns the path of one that it
// serves to itself, or "".
type localImages interface{ LocalImages() (served string) }

// connection returns a function that connects to the image server, and one that ends everything. If now is set it is
// begun at once: the server, maybe far away, and drives that have still to be found do not wait for each other.
func (a *writeArgs) connection(ctx context.Context, m machine, wait fetch.Patience, log *slog.Logger,
	now bool) (connect func() (*fetch.File, error), release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var src *fetch.File
	open := sync.OnceValue(func() (err error) {
		src, err = a.connect(ctx, m, wait, log)
		return err
	})
	var ahead sync.WaitGroup
	if now {
		ahead.Go(func() { _ = open() }) // its error is connect's
	}
	connect = func() (*fetch.File, error) {
		err := open()
		return src, err
	}
	return connect, func() {
		cancel()
		ahead.Wait()
		if src != nil {
			src.Close()
		}
	}
}

// connect opens the file at image_source and finds its digest. Local images require a machine that allows them: a
// deployment must not be able to name a file of the ramdisk. For an image in a registry it returns nil.
func (a *writeArgs) connect(ctx context.Context, m machine, wait fetch.Patience,
	log *slog.Logger) (*fetch.File, error) {
	if oci.IsReference(a.Source) {
		if a.checksumURL != "" {
			return nil, step.Failf("give the digest of the image's index itself, or name a digest in image_source",
				"an image in a registry is in no checksum file")
		}
		return nil, nil
	}
	_, local := m.(localImages)
	src, err := fetch.Open(fetch.Source{
		URLs: append([]string{a.Source}, a.Mirrors...), CA: a.CA, Digest: a.digest.Algo != "" || a.checksumURL != "",
		Local: local,
	}, wait, log)
	if err != nil {
		return nil, err
	}
	if a.checksumURL != "" {
		a.digest, err = fetchDigest(ctx, *a, src.Path(), wait, log)
	}
	if err == nil {
		err = src.Connect(ctx)
	}
	if err != nil {
		src.Close()
		return nil, err
	}
	return src, nil
}

// maxSums is the largest accepted checksum file: those of whole distributions have some thousand lines.
const maxSums = 4 << 20

// fetchDigest looks up the image in a checksum file.
func fetchDigest(ctx context.Context, a writeArgs, imagePath string, wait fetch.Patience,
	log *slog.Logger) (images.Digest, error) {
	o, err := fetch.OriginOf("checksum file", "the checksum file's URL", []string{a.checksumURL}, a.CA, wait, log)
	if err != nil {
		return images.Digest{}, fmt.Errorf("checksum file: %w", err)
	}
	defer o.Close()
	text, err := o.GetUpTo(ctx, "", maxSums)
	if err != nil {
		return images.Digest{}, fmt.Errorf("checksum file: %w", err)
	}
	d, err := a.sums.Find(string(text), imagePath)
	if err != nil {
		return d, fmt.Errorf("checksum file %s: %w", o.Name(), err)
	}
	return d, nil
}
