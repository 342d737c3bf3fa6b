// Package ramdisk loads the kernel of a workload that runs from memory, so that the agent's kernel can jump into it: a
// kernel with its initramfs, fetched by URL and verified by digest, and the config drive as one more archive.
//
// Nothing is written to a disk; fetched files stay in the ramdisk's memory until the kernel has loaded them. The agent
// makes the jump when the conductor requests it. A machine that can't do it (the kernel refuses under Secure Boot,
// there is too little memory, or an ISO image's boot configuration is not understood) is not a failure: the result has
// the reason, and the machine's firmware boots the same workload from the network. A missing file or a wrong digest is
// a failure: the firmware would fail too, or not even notice.
package ramdisk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/machine/ram"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/drive"
)

// Args declares the arguments of load_ramdisk.
var Args = []step.Arg{
	{Name: "kernel", Type: "string", Description: "http or https URL of the kernel"},
	{Name: "ramdisk", Type: "string", Description: "http or https URL of its initramfs"},
	{Name: "boot_iso", Type: "string",
		Description: "instead of both, http or https URL of an ISO image that contains them"},
	{Name: "kernel_checksum", Type: "string", Description: "its digest: sha256:<hex> or sha512:<hex>"},
	{Name: "ramdisk_checksum", Type: "string", Description: "likewise"},
	{Name: "kernel_append_params", Type: "string", Description: "the kernel's command line"},
	{Name: "configdrive", Type: "any", Secret: true,
		Description: "object with meta_data, user_data, network_data, vendor_data; or base64 of an ISO 9660 or FAT image, gzipped or not"},
	{Name: "instance", Type: "string", Description: "the instance's id, for a config drive without one"},
	{Name: "image_ca", Type: "string", Owner: "driver_info",
		Description: "certificates in PEM form that must have signed the servers'"},
}

// copies is the peak number of copies of the loaded data in memory: the file, the kernel's read buffer, and the
// kernel's final copy.
const copies = 3

// Stall is how long load_ramdisk may show no progress.
const Stall = 5 * time.Minute

// Result of load_ramdisk. Reason says why nothing is loaded.
type Result struct {
	Loaded  bool   `json:"loaded"`
	Reason  string `json:"reason,omitempty"`
	Kernel  string `json:"kernel,omitempty"` // URLs without secrets, or paths on an ISO image
	Ramdisk string `json:"ramdisk,omitempty"`
	Cmdline string `json:"cmdline,omitempty"`
	From    string `json:"from,omitempty"` // "url", or the deciding file of an ISO image
	Bytes   int64  `json:"bytes,omitempty"`
	TookMS  int64  `json:"took_ms"`
}

// machine is the part of the machine that this package uses.
type machine interface {
	Root() string
	// LoadKernel loads a kernel for a jump. initrd may be nil.
	LoadKernel(ctx context.Context, kernel, initrd *os.File, cmdline string) error
}

type args struct {
	Kernel          string          `json:"kernel"`
	Ramdisk         string          `json:"ramdisk"`
	ISO             string          `json:"boot_iso"`
	KernelChecksum  string          `json:"kernel_checksum"`
	RamdiskChecksum string          `json:"ramdisk_checksum"`
	Params          string          `json:"kernel_append_params"`
	ConfigDrive     json.RawMessage `json:"configdrive"`
	Instance        string          `json:"instance"`
	CA              string          `json:"image_ca"`
}

// LoadStep fetches a workload and loads its kernel. bootIF is the interface that the firmware booted from, which the
// workload's command line gets as in network boot; nil if unknown. If the step is stopped or repeated, its memory is
// freed.
func LoadStep(m machine, bootIF net.HardwareAddr) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a args) (step.Outcome, error) {
		begin := time.Now()
		if err := a.check(); err != nil {
			return step.Outcome{}, step.Fail("correct instance_info of the node", err)
		}
		l := loading{m: m, c: c, a: a, files: ram.NewFiles(m.Root())}
		defer l.close()
		if free, err := ram.Available(m.Root()); err == nil { // unknown: no room
			l.room = free / copies
		}
		load := l.loadISO
		if a.ISO == "" {
			load = func(ctx context.Context) (Result, error) { return l.load(ctx, bootIF) }
		}
		r, err := load(ctx)
		var large *tooLarge
		var why *unfit
		switch {
		case errors.As(err, &large):
			r.Reason, err = large.Error(), nil
		case errors.As(err, &why) && ctx.Err() == nil:
			r.Reason, err = why.Error(), nil
		}
		if err != nil {
			return step.Outcome{}, err
		}
		r.TookMS = time.Since(begin).Milliseconds()
		if r.Loaded {
			c.Log.Info("workload loaded", "kernel", r.Kernel, "ramdisk", r.Ramdisk, "bytes", r.Bytes)
		} else {
			c.Log.Warn("the workload can't be started from here", "err", r.Reason)
		}
		return step.Outcome{Result: r}, nil
	})
}

// wordForm is the form of a word of a command line, the same as in the conductor.
var wordForm = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)

func (a *args) check() error {
	for w := range strings.FieldsSeq(a.Params) {
		if !wordForm.MatchString(w) {
			return fmt.Errorf("kernel parameter %q has characters other than letters, digits and _.,:/=@%%+-", w)
		}
	}
	for _, sum := range []string{a.KernelChecksum, a.RamdiskChecksum} {
		if _, _, err := digest(sum); err != nil {
			return err
		}
	}
	if a.ISO != "" && (a.Kernel+a.Ramdisk+a.KernelChecksum+a.RamdiskChecksum+a.Params != "" || given(a.ConfigDrive)) {
		return errors.New(
			"an ISO image is booted as it is: without kernel, ramdisk, checksums, parameters and config drive")
	}
	if a.ISO == "" && a.Kernel == "" {
		return errors.New("there is neither a kernel nor an ISO image")
	}
	if a.Ramdisk == "" && a.RamdiskChecksum != "" {
		return errors.New("there is a checksum of the ramdisk, but no ramdisk")
	}
	return nil
}

// digest reads "sha256:<hex>"; an empty one gives a nil hash.
func digest(sum string) (hash.Hash, []byte, error) {
	if sum == "" {
		return nil, nil, nil
	}
	algo, text, _ := strings.Cut(sum, ":")
	want, err := hex.DecodeString(text)
	if err == nil && algo == "sha256" && len(want) == sha256.Size {
		return sha256.New(), want, nil
	}
	if err == nil && algo == "sha512" && len(want) == sha512.Size {
		return sha512.New(), want, nil
	}
	return nil, nil, fmt.Errorf("checksum %q is not sha256:<hex> or sha512:<hex>", sum)
}

// loading is one run of the step.
type loading struct {
	m     machine
	c     *step.Call
	a     args
	files *ram.Files
	room  int64 // bytes that may still be filled
	bytes int64
}

func (l *loading) close() {
	if err := l.files.Close(); err != nil {
		l.c.Log.Debug("close files in memory", "err", err)
	}
}

// tooLarge is the error for data that does not fit into the machine's memory.
type tooLarge struct{ what string }

func (e *tooLarge) Error() string {
	return e.what + " does not fit into the machine's memory beside the agent"
}

func (l *loading) load(ctx context.Context, bootIF net.HardwareAddr) (Result, error) {
	kernel, from, err := l.kernel(ctx)
	r := Result{Kernel: from}
	var initrd *os.File
	if err == nil {
		initrd, r.Ramdisk, err = l.initrd(ctx)
	}
	if err != nil {
		return r, err
	}
	r.From = "url"
	r.Cmdline = strings.Join(strings.Fields(l.a.Params), " ")
	if bootIF != nil {
		r.Cmdline = strings.TrimSpace(r.Cmdline + " BOOTIF=01-" + strings.ReplaceAll(bootIF.String(), ":", "-"))
	}
	return l.finish(ctx, kernel, initrd, r)
}

// finish loads the fetched files into the kernel.
func (l *loading) finish(ctx context.Context, kernel, initrd *os.File, r Result) (Result, error) {
	l.c.Report(step.Progress{Phase: "load kernel", Bytes: uint64(l.bytes), Total: uint64(l.bytes)})
	if err := l.m.LoadKernel(ctx, kernel, initrd, r.Cmdline); err != nil {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		r.Reason = err.Error()
		return r, nil
	}
	r.Loaded, r.Bytes = true, l.bytes
	return r, nil
}

func (l *loading) kernel(ctx context.Context) (*os.File, string, error) {
	f, err := l.files.New("kernel")
	if err != nil {
		return nil, "", err
	}
	from, err := l.fetch(ctx, "kernel", l.a.Kernel, l.a.KernelChecksum, f)
	return f, from, err
}

// initrd builds the file that the kernel unpacks: the config drive's archive, whose length is a multiple of 512, and
// then the ramdisk. It is nil when there is neither.
func (l *loading) initrd(ctx context.Context) (f *os.File, from string, err error) {
	if !given(l.a.ConfigDrive) && l.a.Ramdisk == "" {
		return nil, "", nil
	}
	if f, err = l.files.New("initrd"); err != nil {
		return nil, "", err
	}
	if given(l.a.ConfigDrive) {
		seed, err := drive.Seed(l.a.ConfigDrive, l.a.Instance, time.Now())
		if err != nil {
			return nil, "", step.Fail("correct the config drive", fmt.Errorf("config drive: %w", err))
		}
		if l.room -= int64(len(seed)); l.room < 0 {
			return nil, "", &tooLarge{"the config drive"}
		}
		if _, err := f.Write(seed); err != nil {
			return nil, "", fmt.Errorf("keep the config drive in memory: %w", err)
		}
		l.bytes += int64(len(seed))
	}
	if l.a.Ramdisk != "" {
		from, err = l.fetch(ctx, "ramdisk", l.a.Ramdisk, l.a.RamdiskChecksum, f)
	}
	return f, from, err
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) }

// fetch appends the content of a URL to a file. A broken transfer is continued; if that is impossible, or the digest is
// wrong, it starts again if that makes sense.
func (l *loading) fetch(ctx context.Context, what, url, sum string, to *os.File) (from string, err error) {
	src, err := fetch.Open(fetch.Source{URLs: []string{url}, CA: l.a.CA, Digest: sum != ""}, fetch.DefaultPatience,
		l.c.Log)
	if err != nil {
		return "", step.Fail("correct instance_info's "+what, fmt.Errorf("fetch the %s: %w", what, err))
	}
	defer src.Close()
	start, err := to.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", fmt.Errorf("keep the %s in memory: %w", what, err)
	}
	for {
		n, got, err := l.copy(ctx, what, src, sum, to)
		switch {
		case err == nil && got == nil:
			l.bytes, l.room = l.bytes+n, l.room-n
			return src.Name(), nil
		case err == nil && !src.Distrust(got):
			return "", step.Failf("check that instance_info's "+what+" and "+what+"_checksum belong together",
				"the %s from %s has digest %x, not %s", what, src.Name(), got, sum)
		case err != nil && !errors.Is(err, fetch.ErrRestart):
			return "", err
		}
		src.Rewind()
		if err := to.Truncate(start); err != nil {
			return "", fmt.Errorf("keep the %s in memory: %w", what, err)
		}
		if _, err := to.Seek(start, io.SeekStart); err != nil {
			return "", fmt.Errorf("keep the %s in memory: %w", what, err)
		}
	}
}

// copy fetches once. wrong is the digest of the bytes if it is not the expected one.
func (l *loading) copy(ctx context.Context, what string, src *fetch.File, sum string,
	to *os.File) (n int64, wrong []byte, err error) {
	h, want, err := digest(sum)
	if err != nil {
		return 0, nil, err
	}
	if err := src.Connect(ctx); err != nil {
		return 0, nil, err
	}
	for {
		if n > l.room || src.Size() > l.room {
			return 0, nil, &tooLarge{"the " + what}
		}
		b, err := src.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, nil, err
		}
		if h != nil {
			h.Write(b)
		}
		_, err = to.Write(b)
		n += int64(len(b))
		src.Free(b)
		if err != nil {
			return 0, nil, fmt.Errorf("keep the %s in memory: %w", what, err)
		}
		l.c.Report(step.Progress{Phase: "fetch " + what, Bytes: uint64(n), Total: uint64(max(0, src.Size()))})
	}
	if n == 0 {
		return 0, nil, step.Failf("put the "+what+" there", "the %s from %s is empty", what, src.Name())
	}
	if h != nil {
		if got := h.Sum(nil); !bytes.Equal(got, want) {
			return 0, got, nil
		}
	}
	return n, nil, nil
}
