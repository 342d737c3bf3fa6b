// Package publish makes a published image out of any image that package images reads: it splits the disk into chunks,
// compresses them, and stores them in a directory that any web server can serve; the format is in
// docs/reference/published-image-format.md.
//
// The image is read once, in the order of its format. Several workers compress complete chunks while the next ones are
// read; chunks that stay incomplete for long, because the image is not in disk order, wait in a sparse temporary file
// in the directory. So memory does not grow with the image, except by 2 MiB for each 4 GiB of data out of order.
//
// Stored objects are named after their contents and written before anything refers to them; the index comes last. An
// interrupted publication leaves objects that the next one uses, and never a wrong index. The same image with the same
// options gives the same bytes, independent of the number of processors.
package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/gpt"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/inspect"
)

// Options of a publication.
type Options struct {
	Name   string // of the index, without its suffix
	Source string // origin of the image, for people; kept in the index
	// LZ4 compresses with lz4, which has one level here: half as large again as with zstd, and more than twice as fast
	// to decompress.
	LZ4   bool
	Level int // of zstd, 1 to MaxLevel; 0: 3
	// Compress replaces the built-in encoder: it compresses a chunk into one zstd frame with its size and without a
	// checksum.
	Compress func(ctx context.Context, raw []byte) ([]byte, error)
	Sign     []Signer
	// Unchanged is called after all of the image has been read, before anything is published. It returns an error if
	// the source changed meanwhile, so that the data is not an image.
	Unchanged func() error
	Workers   int // chunks compressed at a time; 0: one per processor
	Meter     *Meter

	resident int // incomplete chunks in memory; 0: the usual number
}

// MaxLevel is the highest level of the built-in encoder.
const MaxLevel = 11

// Meter shows the progress of a publication to another goroutine.
type Meter struct {
	Done, Total atomic.Int64 // bytes of the disk: read so far, with holes; in all, 0 while unknown
	Stored      atomic.Int64 // bytes of objects that are in place
}

// Result of a publication.
type Result struct {
	Path    string // of the index
	SHA256  [sha256.Size]byte
	Index   *index.Index
	Written int64 // bytes of new objects
	New     int   // number of new objects
	// Unsigned says that the replaced image of that name had a signature, and this one has none.
	Unsigned bool
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// NameOf proposes a name for an image from a file or URL: the file's, without suffixes of formats and compressions.
func NameOf(source string) string {
	name := path.Base(filepath.ToSlash(source))
	for {
		short := name
		for _, s := range []string{".zst", ".zstd", ".gz", ".xz", ".bz2", ".lz4", ".qcow2", ".raw", ".img", ".vhd",
			".vhdx", ".vmdk", ".disk", index.Suffix} {
			short = strings.TrimSuffix(short, s)
		}
		if short == name || short == "" {
			return name
		}
		name = short
	}
}

// Image publishes an image in a directory, which is created if missing.
func Image(ctx context.Context, in images.Input, dir Dir, o Options) (*Result, error) {
	if !nameRule.MatchString(o.Name) {
		return nil, refuse("give it another name",
			"%q can't be the name of a published image: letters, digits and . _ + - are possible", o.Name)
	}
	o.Level = cmp.Or(o.Level, 3)
	o.Workers = cmp.Or(o.Workers, runtime.GOMAXPROCS(0))
	o.Meter = cmp.Or(o.Meter, new(Meter))
	if o.LZ4 {
		o.Compress = func(_ context.Context, raw []byte) ([]byte, error) { return index.EncodeLZ4(raw) }
	}
	if o.Compress == nil {
		if o.Level < 1 || o.Level > MaxLevel {
			return nil, refuse("give another level", "compression level %d is not one of 1 to %d", o.Level, MaxLevel)
		}
		o.Compress = encoder(o.Level, o.Workers)
	}
	e, info, err := images.Open(in, images.Limits{Size: index.MaxSize})
	if err != nil {
		return nil, err
	}
	// Faults of the table or the directory are reported before hours of work, as far as they can be detected here.
	if err = checkTable(info, e.Size()); err == nil {
		err = dir.make(o.Name)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	x, stored, err := assemble(ctx, e, dir, o)
	if err := cmp.Or(err, e.Close()); err != nil {
		return nil, err
	}
	x.Source, x.Head, x.Sector, x.LZ4 = clean(o.Source), info.Head, gpt.SectorSize(info.Start), o.LZ4
	if err := checkTable(info, x.Size); err != nil {
		return nil, err
	}
	// The disk's end may have come at any time, and is in the directory by now.
	last, err := load(ctx, x, len(x.Chunks)-1, dir)
	if err == nil {
		err = checkEnd(last)
	}
	if err != nil {
		return nil, err
	}
	if o.Unchanged != nil {
		if err := o.Unchanged(); err != nil {
			return nil, err
		}
	}
	before, err := dir.signatures(o.Name)
	if err != nil {
		return nil, err
	}
	b := x.Marshal()
	r := &Result{Path: dir.index(o.Name), SHA256: sha256.Sum256(b), Index: x, Written: stored.bytes.Load(),
		New: int(stored.objects.Load()), Unsigned: len(before) > 0 && len(o.Sign) == 0}
	signatures := map[string][]byte{}
	for _, s := range o.Sign {
		if signatures[s.Suffix()], err = s.Sign(b); err != nil {
			return nil, fmt.Errorf("sign the index: %w", err)
		}
	}
	return r, dir.finish(o.Name, b, signatures)
}

// checkTable refuses a disk that agents would not deploy, as inspect does. A partition's file system has no table.
func checkTable(info images.Info, size int64) error {
	if info.Partition {
		return nil
	}
	_, err := inspect.CheckTable(info.Start, size)
	return err
}

// checkEnd does the same for the disk's last chunk; nil stands for zeros.
func checkEnd(chunk []byte) error { return inspect.CheckEnd(chunk[max(0, len(chunk)-512):]) }

// encoder compresses with the built-in encoder.
func encoder(level, workers int) func(context.Context, []byte) ([]byte, error) {
	// No checksum: the object's name is a stronger one. A single segment: otherwise small chunks would lack their size.
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderConcurrency(workers), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true),
		zstd.WithWindowSize(index.ChunkSize))
	return func(_ context.Context, raw []byte) ([]byte, error) {
		if err != nil {
			return nil, err
		}
		return w.EncodeAll(raw, make([]byte, 0, len(raw)/2)), nil
	}
}

// clean makes a text valid for an index.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
	for len(s) > 1024 {
		s = s[:strings.LastIndexFunc(s[:1024], func(rune) bool { return true })]
	}
	return s
}

func refuse(remedy, format string, args ...any) error {
	return &images.Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// errGap says that a format's reader broke its promise to return every byte exactly once.
var errGap = errors.New("the image's reader left bytes out, or gave some twice")
