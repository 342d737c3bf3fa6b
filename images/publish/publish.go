// Package publish makes a published image out of any image that package images reads: it cuts the disk into chunks,
// packs them, and stores them in a folder that any web server can serve; docs/reference/published-image-format.md has
// the format.
//
// The image is read once, in whatever order its format has it. A chunk that is complete is packed by one of several
// workers while the next ones are read; pieces of chunks that stay incomplete for long, because the image is not in the
// disk's order, wait in a sparse temporary file in the folder. So memory does not grow with the image, except by 2 MiB
// for each 4 GiB of data that come out of order.
//
// What is stored is named after its contents and written before anything refers to it; the index comes last. A
// publication that is cut off leaves objects that the next one uses, and never an index that lies. The same image with
// the same options gives the same bytes, however many processors work on it.
package publish

import (
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

// Options say how an image is published.
type Options struct {
	Name   string // of the index, without its suffix
	Source string // what the image is made from, for people: it is kept in the index
	// LZ4 packs chunks with lz4, which has one level here: half as large again as with zstd, and more than twice as
	// fast to unpack.
	LZ4   bool
	Level int // of zstd, 1 to MaxLevel; 0: 3
	// Compress packs a chunk instead of the encoder that is built in: into one zstd frame that tells its size, without
	// a checksum.
	Compress func(ctx context.Context, raw []byte) ([]byte, error)
	Sign     []Signer
	// Unchanged is asked when all of the image has been read, before anything is published: its error says that what
	// was read is no image.
	Unchanged func() error
	Workers   int // how many chunks are packed at a time; 0: as many as there are processors
	Meter     *Meter

	resident int // incomplete chunks in memory; 0: the usual number
}

// MaxLevel is the highest level of the encoder that is built in.
const MaxLevel = 11

// Meter tells another goroutine how far a publication is.
type Meter struct {
	Done, Total atomic.Int64 // bytes of the disk that were read, holes included, and of the disk; 0: not known yet
	Stored      atomic.Int64 // bytes of objects that are in place
}

// Result is what was published.
type Result struct {
	Path    string // of the index
	SHA256  [sha256.Size]byte
	Index   *index.Index
	Written int64 // bytes of objects that were not there before
	New     int   // how many those are
	// Unsigned says that the image of that name which was there had a signature, and this one has none.
	Unsigned bool
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// NameOf proposes the name of an image that comes from a file or URL: the file's, without what tells formats and
// compressions.
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

// Image publishes an image in a folder, which is made if it is not there.
func Image(ctx context.Context, in images.Input, dir Dir, o Options) (*Result, error) {
	if !nameRule.MatchString(o.Name) {
		return nil, refuse("give it another name",
			"%q can't be the name of a published image: letters, digits and . _ + - are possible", o.Name)
	}
	if o.Level == 0 {
		o.Level = 3
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Meter == nil {
		o.Meter = new(Meter)
	}
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
	// What is wrong with the table or the folder is told before hours of work, as far as it shows by then.
	if err = checkTable(info, e.Size()); err == nil {
		err = dir.make(o.Name)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	x, stored, err := assemble(ctx, e, dir, o)
	if cerr := e.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	x.Source, x.Head, x.Sector, x.LZ4 = clean(o.Source), info.Head, gpt.SectorSize(info.Start), o.LZ4
	if err := checkTable(info, x.Size); err != nil {
		return nil, err
	}
	// The disk's end came in any order, and is in the folder by now.
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

// checkTable refuses a disk that no agent would deploy, as inspect does. A partition's file system has no table.
func checkTable(info images.Info, size int64) error {
	if info.Partition {
		return nil
	}
	_, err := inspect.CheckTable(info.Start, size)
	return err
}

// checkEnd does so by the disk's last chunk; nil stands for zeros.
func checkEnd(chunk []byte) error { return inspect.CheckEnd(chunk[max(0, len(chunk)-512):]) }

// encoder packs with the built-in encoder.
func encoder(level, workers int) func(context.Context, []byte) ([]byte, error) {
	// No checksum: the object's own name is a better one. A single segment: else small chunks would not tell their
	// size.
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

// clean makes a text fit for an index.
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

// errGap says that a format's reader has broken the promise that every byte comes exactly once.
var errGap = errors.New("the image's reader left bytes out, or gave some twice")
