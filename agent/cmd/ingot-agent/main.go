// Command ingot-agent is the program of the ramdisk: by its name it is the first process, the worker, or the kernel's
// modprobe.
//
// On any Linux it also writes images, and prints its table of steps and the machine's inventory.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/ingot-metal/ingot/agent/step/site"
	"github.com/ingot-metal/ingot/initramfs/pid1"
	"golang.org/x/sys/unix"
)

// version is set by the build: -ldflags "-X main.version=...".
var version = "dev"

func main() {
	if os.Getpid() == 1 {
		_ = pid1.Run(pid1.Config{Version: version}) // prints on the console why it returned
		select {}                                   // an exit of the first process would panic the kernel
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "ingot-agent:", err)
		os.Exit(1)
	}
}

const usage = `usage: ingot-agent COMMAND

  write ...           write an image onto a disk; ingot-agent write --help
  trace               draw the trace in the result of a write, JSON on standard input, as HTML on standard output
  inventory ...       what this machine is; ingot-agent inventory --help
  steps [--json]      the steps this agent can run; --site FOLDER: with a site's own
  worker              the agent proper; the first process of the ramdisk starts it
  version             the version of this program; --version prints its name, too
`

// run is the program, except for the first process. args begins with the program's name.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if filepath.Base(args[0]) == "modprobe" {
		return pid1.Modprobe(args[1:])
	}
	command := ""
	if len(args) > 1 {
		command = args[1]
	}
	switch command {
	case "write":
		return write(ctx, args[2:], os.Stdin, stdout, stderr)
	case "inventory":
		return showInventory(ctx, args[2:], stdout, stderr)
	case "trace":
		return drawTrace(args[2:], os.Stdin, stdout, stderr)
	}
	fs := flag.NewFlagSet("ingot-agent "+command, flag.ContinueOnError)
	fs.SetOutput(stderr)
	asJSON := fs.Bool("json", false, "print JSON")
	siteFolder := site.Folder
	if command == "steps" {
		fs.StringVar(&siteFolder, "site", cmp.Or(os.Getenv("INGOT_SITE_STEPS"), site.Folder),
			"folder with the site's own steps")
	}
	if command != "" {
		if err := fs.Parse(args[2:]); err != nil {
			return err
		}
	}
	switch command {
	case "worker":
		return worker(ctx, stdout, stderr)
	case "steps":
		return printSteps(stdout, *asJSON, siteFolder)
	case "version":
		_, err := fmt.Fprintln(stdout, version)
		return err
	case "--version": // as ingot and ingotd have it
		_, err := fmt.Fprintln(stdout, "ingot-agent", version)
		return err
	}
	fmt.Fprint(stderr, usage)
	if command == "" || command == "help" || command == "-h" || command == "--help" {
		return flag.ErrHelp
	}
	return fmt.Errorf("there is no command %q", command)
}
