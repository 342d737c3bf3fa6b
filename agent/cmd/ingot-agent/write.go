package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/standalone"
	"github.com/ingot-metal/ingot/agent/step"
	"golang.org/x/term"
)

const writeUsage = `usage: ingot-agent write --image URL|FILE --sha256 HEX --disk /dev/DISK [options]

Writes an operating-system image onto a disk in one pass: fetched (connections that break are mended), verified, unpacked, zeros skipped
but zero afterwards, and the partition table last, so that whatever goes wrong leaves a disk that does not boot, never half a system.
Formats are found by content. The disk may be a block device or a file.

`

// texts is a flag that may be repeated.
type texts []string

func (t *texts) String() string     { return strings.Join(*t, " ") }
func (t *texts) Set(s string) error { *t = append(*t, s); return nil }

// write is the command that writes an image without a conductor.
func write(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var o standalone.Options
	var sha256, sha512, blake3, checksum, ca, drive, picture, arguments string
	var keys texts
	var dry, yes, asJSON, quiet, verbose bool
	fs := flag.NewFlagSet("ingot-agent write", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, writeUsage); fs.PrintDefaults() }
	fs.StringVar(&o.Image, "image", "",
		"`URL` (http, https, oci) or path of the image, or of the index of a published one")
	fs.Var((*texts)(&o.Mirrors), "mirror", "another `URL` of the same image; may be repeated")
	fs.StringVar(&sha256, "sha256", "", "SHA-256 of the image file, `HEX` digits")
	fs.StringVar(&sha512, "sha512", "", "SHA-512 of the image file, `HEX` digits")
	fs.StringVar(&blake3, "blake3", "", "BLAKE3 of the image file, `HEX` digits")
	fs.StringVar(&checksum, "checksum", "", "`URL` of a file of checksums that names the image")
	fs.Var(&keys, "key",
		"public `KEY` (minisign), or a file with one (minisign or PEM), that must have signed a published image; may be repeated")
	fs.StringVar(&o.Signature, "signature", "", "`URL` of the signature, when it is not beside the index")
	fs.BoolVar(&o.Unverified, "allow-unverified", false, "write an image without digest or signature")
	fs.StringVar(&ca, "ca", "", "`FILE` with certificates (PEM) that the image server's must be signed by")
	fs.StringVar(&o.Disk, "disk", "",
		"the disk to write: a `PATH` like /dev/sda or /dev/disk/by-id/..., or a file that is as large as a disk")
	fs.StringVar(&drive, "configdrive", "",
		"config drive: `FILE|URL`; an object (JSON), or an ISO 9660 or FAT image, also in base64 and gzip")
	fs.BoolVar(&o.BootEntry, "boot-entry", false, "make the disk what this machine's UEFI firmware boots")
	fs.BoolVar(&o.Verify, "verify", false, "read back the written data and compare")
	fs.StringVar(&o.Difference, "difference", "",
		"write only what differs from what the disk holds (published images): auto, always, never (default auto)")
	fs.Int64Var(&o.Memory, "memory", 0,
		"`MiB` of memory that the write may use, at least 48 (default 48 for up to four cores and 12 for each further one)")
	fs.StringVar(&arguments, "arguments", "",
		"`FILE` (-: standard input) with the arguments of the step write_image (JSON), in place of all options about the image; URLs alone")
	fs.StringVar(&picture, "trace", "",
		"draw what each stage of the write waited for into this `FILE` (HTML), which must not exist, and print it as a table")
	fs.BoolVar(&dry, "dry-run", false, "say what would happen and what would be refused, and write nothing")
	fs.BoolVar(&yes, "yes", false,
		"overwrite a disk that has something on it without asking; needed where there is no terminal to ask at")
	fs.BoolVar(&asJSON, "json", false, "print the result as JSON")
	fs.BoolVar(&quiet, "quiet", false, "no progress bar")
	fs.BoolVar(&verbose, "verbose", false, "show the log")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("write: %q is no option; everything has a name: --image, --disk, ... (see --help)", fs.Arg(0))
	}
	if err := digestFlags(&o, checksum,
		map[string]string{"sha256": sha256, "sha512": sha512, "blake3": blake3}); err != nil {
		return err
	}
	var err error
	if arguments != "" {
		if o, err = stepOptions(fs, arguments, stdin, o.Disk); err != nil {
			return remedied(err)
		}
	}
	if o.CA, err = readText(ca); err != nil {
		return err
	}
	if ca != "" && strings.TrimSpace(o.CA) == "" { // an empty file would count as no CA
		return remedied(step.Failf("give a file with certificates in PEM form, or leave out --ca", "--ca: %s is empty",
			ca))
	}
	for _, k := range keys {
		text, err := keyText(k)
		if err != nil {
			return err
		}
		o.Keys = append(o.Keys, text)
	}
	if o.ConfigDrive, err = standalone.ReadConfigDrive(drive); err != nil {
		return remedied(err)
	}
	if dry && picture != "" {
		return errors.New("write: --dry-run writes nothing that --trace could draw; leave one out")
	}
	log := slog.New(slog.DiscardHandler)
	if verbose {
		log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	limitMemory()

	if dry {
		plan, err := standalone.Examine(ctx, o, log)
		if err != nil {
			return remedied(err)
		}
		if asJSON {
			return printJSON(stdout, plan)
		}
		_, err = io.WriteString(stdout, plan.Text())
		return err
	}
	target, err := standalone.LookAt(ctx, o)
	if err != nil {
		return remedied(err)
	}
	if target.Holds != "" && !yes {
		if !canAnswer(stdin) {
			return fmt.Errorf("%s, holds %s, and there is no terminal\n  what to do: give --yes to overwrite it",
				target.Disk, target.Holds)
		}
		// Faults of the image are reported before the question.
		if err := standalone.Rehearse(ctx, o, nil); err != nil {
			return remedied(err)
		}
		if err := confirm(ctx, target, stdin, stderr); err != nil {
			return remedied(err)
		}
	}
	// Never an existing file: it could be the disk itself.
	var drawing *os.File
	if picture != "" {
		if drawing, err = os.OpenFile(picture, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err != nil {
			return fmt.Errorf("create the file for the trace: %w\n  what to do: give --trace a new name", err)
		}
		defer drawing.Close() // closed below, if all went well
		o.Trace = true
	}
	report := func(string, step.Progress) {}
	bar := standalone.NewBar(stderr, widthOf(stderr))
	if !quiet {
		report = bar.Show
	}
	r, err := standalone.Write(ctx, o, log, report)
	bar.End()
	switch {
	case err != nil:
		if drawing != nil {
			_ = os.Remove(picture) // nothing is in it
		}
		return remedied(err)
	case asJSON:
		err = printJSON(stdout, r)
	default:
		_, err = io.WriteString(stdout, r.Text())
	}
	if drawing == nil {
		return err
	}
	table := stdout
	if asJSON {
		table = stderr
	}
	return errors.Join(err, r.Trace.Table(table), r.Picture(drawing), drawing.Close())
}

// besideArguments are the options that go together with --arguments.
var besideArguments = []string{"arguments", "disk", "yes", "json", "quiet", "verbose"}

// stepOptions reads the arguments of write_image from a file.
func stepOptions(fs *flag.FlagSet, name string, stdin io.Reader, disk string) (o standalone.Options, err error) {
	fs.Visit(func(f *flag.Flag) {
		if !slices.Contains(besideArguments, f.Name) {
			err = fmt.Errorf("write: --%s and --arguments don't go together", f.Name)
		}
	})
	if err != nil {
		return o, err
	}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return o, fmt.Errorf("write: --arguments: %w", err)
		}
		defer f.Close()
		stdin = f
	}
	b, err := io.ReadAll(io.LimitReader(stdin, 1<<20))
	if err != nil {
		return o, fmt.Errorf("write: --arguments: %w", err)
	}
	o, err = standalone.FromStep(b)
	o.Disk = disk
	return o, err
}

// digestFlags combines the flags into one digest.
func digestFlags(o *standalone.Options, checksum string, values map[string]string) error {
	for algo, value := range values {
		switch {
		case value == "":
		case o.Digest != "":
			return errors.New("write: give one digest, not several")
		default:
			o.Digest = algo + ":" + value
		}
	}
	if checksum != "" && o.Digest != "" {
		return errors.New("write: give a digest or --checksum, not both")
	}
	o.Checksum = checksum
	return nil
}

// canAnswer reports whether input is a terminal.
func canAnswer(stdin io.Reader) bool {
	f, ok := stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// confirm asks before a disk with content is overwritten.
func confirm(ctx context.Context, t standalone.Target, stdin io.Reader, stderr io.Writer) error {
	fmt.Fprintf(stderr, "%s holds: %s. Overwrite it? [y/N] ", t.Disk, t.Holds)
	answers := make(chan string, 1)
	go func() { // a read of a terminal can't be ended; the program ends soon after
		answer, _ := bufio.NewReader(stdin).ReadString('\n')
		answers <- answer
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case answer := <-answers:
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
			return errors.New("nothing was written")
		}
	}
	return nil
}

func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 0
}

// remedied appends the remedy to an error, and the state of the disk if that may be in doubt.
func remedied(err error) error {
	state := ""
	var f *standalone.Failure
	if errors.As(err, &f) {
		state = f.State()
	}
	switch e := step.AsError(err); {
	case errors.Is(err, context.Canceled) && state == "":
		return errors.New("stopped; nothing was written")
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped; %s", state)
	case e.Remedy != "":
		err = fmt.Errorf("%w\n  what to do: %s", err, e.Remedy)
	}
	if state != "" {
		err = fmt.Errorf("%w\n  the disk: %s", err, state)
	}
	return err
}

// readText reads a file; without a name it returns no text.
func readText(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	b, err := os.ReadFile(name)
	return string(b), err
}

// keyText returns a key given as text, or the content of the file of that name.
func keyText(k string) (string, error) {
	if _, err := os.Stat(k); err == nil {
		return readText(k)
	}
	if strings.ContainsAny(k, "/.") {
		return "", fmt.Errorf("write: --key: there is no file %s", k)
	}
	return k, nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
