// Command deploy measures how long a deployment takes, from the request to the login prompt, in two ways on the same
// machine of the virtual lab and in the same run: `make bench-deploy`.
//
//	ordinary      the machine is off; it boots the agent from the network, gets its image, and boots that by firmware
//	zero-reboot   the agent was kept by the cleaning before; it gets its image and starts the system by kexec
//
// The two take turns, round after round; told are medians. Firmware of virtual machines is quick, that of servers takes
// minutes: further columns add 60 and 300 seconds for each time that the machine went through its firmware, as counted
// from the trace. They are computed, and marked so. That no firmware ran between the request and the login prompt is
// read from three places: the trace, the machine's console, on which the lab notes each start, and the lab's count of
// the machine's starts. A run in which they don't agree is an error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	images "github.com/ingot-metal/ingot/images/build"
	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/tools/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-deploy:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	rounds   int
	firmware string
	image    string // "tiny" or "debian"
	nic, bus string
	ingotd   string
	dir      string // build/
	report   string

	kernel  string // of the ramdisk
	images  string // folder
	file    string // in it
	sha256  string
	ramdisk string // folder

	machine *lab.Machine
	host    string // of the conductor, in the lab
	con     *lab.Conductor
}

func command(ctx context.Context, args []string) error {
	var b bench
	fs := flag.NewFlagSet("bench-deploy", flag.ContinueOnError)
	fs.IntVar(&b.rounds, "n", 3, "rounds")
	fs.StringVar(&b.firmware, "firmware", "bios", "bios or uefi")
	fs.StringVar(&b.image, "image", "tiny", "tiny, or debian, which is built in two or three minutes the first time")
	fs.StringVar(&b.nic, "nic", "virtio", "network card: virtio, e1000 or e1000e")
	fs.StringVar(&b.bus, "bus", "virtio", "bus of the disk: virtio, nvme or sata")
	fs.StringVar(&b.ingotd, "ingotd", "bin/ingotd", "the conductor's program")
	fs.StringVar(&b.dir, "dir", "build", "folder for what is built, and for the lab's files")
	fs.StringVar(&b.report, "report", "", "file to write the results to (JSON)")
	again := fs.String("again", "", "measure nothing: print the results in this file")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *again != "" {
		var r report
		raw, err := os.ReadFile(*again)
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		if err != nil {
			return err
		}
		return r.print(os.Stdout)
	}
	if os.Getuid() != 0 {
		return errors.New("this needs root: for a network namespace and virtual machines")
	}
	if b.rounds < 1 {
		return fmt.Errorf("-n %d: there is nothing to measure", b.rounds)
	}
	if err := b.build(ctx); err != nil {
		return err
	}
	r, err := b.run(ctx)
	if err != nil {
		return err
	}
	if b.report != "" {
		raw, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(b.report, raw, 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return r.print(os.Stdout)
}

// build makes ramdisk and image, unless they are there.
func (b *bench) build(ctx context.Context) (err error) {
	for _, p := range []*string{&b.dir, &b.ingotd} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	b.ramdisk = filepath.Join(b.dir, "ramdisk", "lab")
	if _, err := ramdisk.Build(ctx, ramdisk.Options{Profile: "lab", Out: b.ramdisk}); err != nil {
		return err
	}
	b.kernel = filepath.Join(b.ramdisk, "vmlinuz")
	var res *images.Result
	switch b.image {
	case "tiny":
		res, err = images.Tiny(ctx, images.Options{Out: filepath.Join(b.dir, "images", "tiny")})
	case "debian":
		res, err = images.Debian(ctx, images.Options{Out: filepath.Join(b.dir, "images", "debian")})
	default:
		err = fmt.Errorf("-image %q is neither tiny nor debian", b.image)
	}
	if err != nil {
		return err
	}
	zst := res.File(res.Zst)
	b.images, b.file, b.sha256 = res.Dir, zst.File, zst.SHA256
	return nil
}
