// Command underironic shows Ingot's ramdisk under a real Ironic: Debian's ironic-api and ironic-conductor, a machine of
// the virtual rack that they reach by IPMI and that boots by PXE, and Ingot's kernel and ramdisk as deploy_kernel and
// deploy_ramdisk. Nothing else is Ingot's.
//
// The machine is enrolled, cleaned, deployed from a raw and a qcow2 image, rescued and deleted. In the end a table says
// what it took. It needs root, for the rack; at its end nothing is left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	images "github.com/ingot-metal/ingot/images/build"
	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/proc"
	"github.com/ingot-metal/ingot/tools/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo-under-ironic:", err)
		os.Exit(1)
	}
}

// labParams keep a kernel from panicking where the emulator does not get a processor for long.
const labParams = "quiet no_timer_check mitigations=off cryptomgr.notests console=ttyS0,115200n8"

// demo is a rack with an Ironic.
type demo struct {
	out      io.Writer
	log      *slog.Logger
	dir      string
	programs debian.Tree
	ramdisk  string
	image    *images.Result
	sums     map[string]string // SHA-256 of images by their format
	specs    []lab.NodeSpec
	rack     *lab.Lab
	running  []*proc.Process
	web      *http.Server
	rows     []row
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("underironic", flag.ContinueOnError)
	firmware := flags.String("firmware", "bios,uefi", "bios, uefi or both")
	verbose := flags.Bool("v", false, "log what the rack does")
	keep := flags.String("keep", "build/demo-under-ironic", "folder for the logs of a demo that failed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	d := &demo{out: out, log: slog.New(slog.DiscardHandler)}
	if err := d.nodes(*firmware); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the rack needs root: run it with sudo")
	}
	if *verbose {
		d.log = slog.New(slog.NewTextHandler(out, nil))
	}
	if d.dir, err = os.MkdirTemp("", "ui-"); err != nil { // short: MariaDB's socket is in it
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Chmod(d.dir, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if kerr := d.keepLogs(*keep); kerr != nil {
				err = errors.Join(err, fmt.Errorf("keep the logs: %w", kerr))
			} else {
				fmt.Fprintf(out, "\nThe logs are kept in %s.\n", *keep)
			}
		}
		err = errors.Join(err, d.close(), os.RemoveAll(d.dir))
	}()
	return d.show(ctx)
}

// show runs the demo for each firmware, and prints the table.
func (d *demo) show(ctx context.Context) error {
	if err := d.up(ctx); err != nil {
		return err
	}
	for _, n := range d.specs {
		if err := d.life(ctx, n); err != nil {
			return fmt.Errorf("machine %s: %w", n.Name, err)
		}
	}
	return d.table()
}

// up makes and starts all that there is beside the nodes.
func (d *demo) up(ctx context.Context) error {
	d.say("Building the ramdisk and an image; getting Ironic from Debian's packages (the first time this takes minutes).")
	var err error
	if d.ramdisk, err = made.Make(ctx, made.RamdiskShell); err != nil { // a rescue wants a shell
		return err
	}
	built, err := made.Make(ctx, made.Tiny)
	if err != nil {
		return err
	}
	if d.image, err = images.Load(built); err != nil {
		return err
	}
	if d.programs, err = debian.Unpack(ctx, d.log, "ironic-common", mariadb.Package); err != nil {
		return fmt.Errorf("get Ironic from Debian's packages (of Debian 12; was apt-get update run?): %w", err)
	}
	d.say("Starting the rack, MariaDB, ironic-conductor, ironic-api, dnsmasq.")
	if d.rack, err = lab.Up(ctx, lab.Options{Name: "under-ironic", Dir: d.path("lab"), Log: d.log, Nodes: d.specs,
		Accel: lab.TCG}); err != nil {
		return err
	}
	if err := d.startIronic(ctx); err != nil {
		return err
	}
	if err := d.startBoot(ctx); err != nil {
		return err
	}
	return d.files()
}

// nodes decides which machines there are.
func (d *demo) nodes(firmware string) error {
	for _, f := range []lab.Firmware{lab.BIOS, lab.UEFI} {
		if slices.Contains([]string{string(f), "bios,uefi"}, firmware) {
			d.specs = append(d.specs, lab.NodeSpec{Name: string(f), Firmware: f, MemoryMiB: memory,
				Disks: []lab.DiskSpec{{SizeBytes: 8 << 30}}})
		}
	}
	if len(d.specs) == 0 {
		return fmt.Errorf("firmware %q: there are bios, uefi, and bios,uefi", firmware)
	}
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, "\n* "+format+"\n", args...) }

func (d *demo) close() (err error) {
	if d.web != nil {
		err = d.web.Close()
	}
	for _, p := range slices.Backward(d.running) {
		p.Stop()
	}
	if d.rack != nil {
		err = errors.Join(err, d.rack.Down(context.Background()))
	}
	return err
}

// keepLogs copies the logs to where they survive the demo.
func (d *demo) keepLogs(to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{"*.log", "lab/*.log", "lab/*/*.log", "agent-logs/*", "ironic.conf"} {
		files, err := filepath.Glob(filepath.Join(d.dir, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err == nil {
				err = os.WriteFile(filepath.Join(to, filepath.Base(f)), b, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
