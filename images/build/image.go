package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/initramfs/kernel"
)

// Options of an image. Out is required; zero values of the rest suit most cases.
type Options struct {
	Out    string // directory to write; created if missing
	Cache  string // cache of kernel packages between builds; empty: kernel.DefaultCache
	Kernel string // Debian package or .deb; empty: kernel.Cloud. kernel.Full also drives SATA disks and real hardware
	Qcow2  bool   // write the image as compressed qcow2 too
	Sector int    // size of the disk's sectors: 512 or 4096 (boots by UEFI only); 0 is 512
	Fresh  bool   // build even if an image of the same inputs exists

	// Debian only.
	Sources      []string // files with apt sources of Debian 12; empty: those of this machine
	Packages     []string // more packages
	RootPassword string   // of root on the console; empty: no password login
	SizeMiB      int      // minimum size of the disk; the root grows at the first boot anyway

	Log *slog.Logger
}

// Image describes an image and its files; it is kept beside them as image.json.
type Image struct {
	Format      int    `json:"format"`
	Name        string `json:"name"`
	OS          string `json:"os"`
	Kernel      string `json:"kernel"`
	Inputs      string `json:"inputs"` // digest of all inputs
	VirtualSize int64  `json:"virtual_size"`
	Files       []File `json:"files"`
}

// File is one form of the image.
type File struct {
	File   string `json:"file"`
	Type   string `json:"type"` // raw, raw+zstd or qcow2
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Result of Tiny and Debian. Paths are those of the files, empty if not made.
type Result struct {
	Image
	Dir             string
	Raw, Zst, Qcow2 string
	Reused          bool // the image existed already
	Took            time.Duration
}

// File returns the description of one of the result's paths.
func (r *Result) File(path string) File {
	if i := slices.IndexFunc(r.Files, func(f File) bool { return f.File == filepath.Base(path) }); i >= 0 {
		return r.Files[i]
	}
	return File{}
}

// Print writes the result for a person.
func (r *Result) Print(w io.Writer) error {
	how := fmt.Sprintf("made in %.1f s", r.Took.Seconds())
	if r.Reused {
		how = "was there already, made of the same"
	}
	fmt.Fprintf(w, "%s: %s, %s, %d MiB, %s\n", r.Name, r.OS, r.Kernel, r.VirtualSize>>20, how)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	for _, f := range r.Files {
		fmt.Fprintf(t, "%s\t%.1f MB\t SHA-256 %s\n", filepath.Join(r.Dir, f.File), float64(f.Size)/1e6, f.SHA256)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

const (
	imageFormat  = 1
	imageFile    = "image.json"
	sumsFile     = "SHA256SUMS"
	builderState = "3" // part of every image's inputs: change it when the output changes
)

// complete sets defaults of empty fields.
func (o Options) complete(name, defaultKernel string) (Options, error) {
	if o.Out == "" {
		return o, fmt.Errorf("make image %s: no folder to write it to was given", name)
	}
	o.Sector = cmp.Or(o.Sector, sector)
	if o.Sector != sector && o.Sector != 4096 {
		return o, fmt.Errorf("make image %s: sectors of %d bytes: disks have 512 or 4096", name, o.Sector)
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Kernel = cmp.Or(o.Kernel, defaultKernel)
	if o.Cache == "" {
		var err error
		if o.Cache, err = kernel.DefaultCache(); err != nil {
			return o, err
		}
	}
	if o.Qcow2 {
		if err := (needed{"qemu-img": "qemu-utils"}).check(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// file marks an input as a file, which counts by its content.
type file string

// inputsOf returns the digest of an image's inputs.
func inputsOf(parts ...any) (string, error) {
	h := sha256.New()
	for _, p := range append([]any{builderState}, parts...) {
		if f, ok := p.(file); ok {
			sum, _, err := sumFile(string(f))
			if err != nil {
				return "", fmt.Errorf("read the inputs of the image: %w", err)
			}
			p = sum
		}
		fmt.Fprintf(h, "%v\x00", p)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// produce returns the image in o.Out if it has these inputs, else builds it: fill writes the raw disk.
func (o Options) produce(ctx context.Context, inputs string, img *Image,
	fill func(raw, tmp string) error) (*Result, error) {
	start := time.Now()
	img.Format, img.Inputs = imageFormat, inputs
	again := func() *Result {
		r, err := Load(o.Out)
		if err != nil || r.Inputs != inputs || o.Fresh {
			return nil
		}
		r.Reused = true
		return r
	}
	if r := again(); r != nil {
		return r, nil
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make the image's folder: %w", err)
	}
	unlock, err := lock(ctx, o.Out, o.Log)
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Name, err)
	}
	defer unlock()
	if r := again(); r != nil { // built by another process meanwhile
		return r, nil
	}
	tmp, err := os.MkdirTemp(o.Out, ".build-*")
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", img.Name, err)
	}
	defer os.RemoveAll(tmp)
	raw := filepath.Join(tmp, img.Name+".raw")
	o.Log.Info("making an image", "image", img.Name)
	if err := fill(raw, tmp); err != nil {
		return nil, err
	}
	files := [][2]string{{raw, "raw"}, {raw + ".zst", "raw+zstd"}}
	if err := compress(ctx, raw, raw+".zst"); err != nil {
		return nil, fmt.Errorf("compress image %s: %w", img.Name, err)
	}
	if o.Qcow2 {
		q := filepath.Join(tmp, img.Name+".qcow2")
		if err := run(ctx, nil, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd",
			raw, q); err != nil {
			return nil, fmt.Errorf("write image %s as qcow2: %w", img.Name, err)
		}
		files = append(files, [2]string{q, "qcow2"})
	}
	var sums strings.Builder
	for _, f := range files {
		sum, size, err := sumFile(f[0])
		if err != nil {
			return nil, fmt.Errorf("digest image %s: %w", img.Name, err)
		}
		name := filepath.Base(f[0])
		img.Files = append(img.Files, File{File: name, Type: f[1], Size: size, SHA256: sum})
		fmt.Fprintf(&sums, "%s  %s\n", sum, name)
		if f[1] == "raw" {
			img.VirtualSize = size
		}
	}
	data, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("describe image %s: %w", img.Name, err)
	}
	for name, content := range map[string][]byte{sumsFile: []byte(sums.String()), imageFile: append(data, '\n')} {
		if err := os.WriteFile(filepath.Join(tmp, name), content, 0o644); err != nil {
			return nil, fmt.Errorf("describe image %s: %w", img.Name, err)
		}
	}
	// The description last, after the files that it names.
	names := []string{sumsFile}
	for _, f := range img.Files {
		names = append(names, f.File)
	}
	for _, name := range append(names, imageFile) {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(o.Out, name)); err != nil {
			return nil, fmt.Errorf("put image %s in place: %w", img.Name, err)
		}
	}
	r, err := Load(o.Out)
	if err != nil {
		return nil, fmt.Errorf("read back image %s: %w", img.Name, err)
	}
	r.Took = time.Since(start)
	return r, nil
}

// lock waits until no other process builds an image in a directory.
func lock(ctx context.Context, dir string, log *slog.Logger) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for logged := false; ; logged = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // only a lock
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock folder %s: %w", dir, err)
		}
		if !logged {
			log.Info("another process builds an image here: waiting", "folder", dir)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// Load reads the directory of an existing image and checks its files against their digests.
func Load(dir string) (*Result, error) {
	data, err := os.ReadFile(filepath.Join(dir, imageFile))
	if err != nil {
		return nil, err
	}
	r := &Result{Dir: dir}
	if err := json.Unmarshal(data, &r.Image); err != nil {
		return nil, fmt.Errorf("read %s: %w", imageFile, err)
	}
	if r.Format != imageFormat || len(r.Files) == 0 {
		return nil, fmt.Errorf("read %s: unknown format", imageFile)
	}
	for _, f := range r.Files {
		path := filepath.Join(dir, f.File)
		sum, size, err := sumFile(path)
		if err != nil {
			return nil, err
		}
		if sum != f.SHA256 || size != f.Size {
			return nil, fmt.Errorf("%s is not as %s describes it", path, imageFile)
		}
		if into := map[string]*string{"raw": &r.Raw, "raw+zstd": &r.Zst, "qcow2": &r.Qcow2}[f.Type]; into != nil {
			*into = path
		}
	}
	return r, nil
}

func compress(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return errors.Join(err, out.Close())
	}
	_, err = io.Copy(z, &whileAlive{ctx, in})
	return errors.Join(err, z.Close(), out.Close())
}

// whileAlive is a reader that ends with its context.
type whileAlive struct {
	ctx context.Context
	r   io.Reader
}

func (w *whileAlive) Read(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.r.Read(p)
}

func sumFile(name string) (string, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return "", 0, fmt.Errorf("read %s: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), n, nil
}
