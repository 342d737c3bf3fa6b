// Command shell compiles the commands for the ramdisk's console into one program.
//
// Usage: shell FILE. The commands are the tools of this module, listed in go.mod: a module of its own, so that their
// dependencies stay out of the conductor and the agent. FILE works like busybox: it runs the command by whose name it
// is called. Their names are printed, one a line. Equal sources give equal bytes.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/u-root/gobusybox/src/pkg/bb"
	"github.com/u-root/gobusybox/src/pkg/golang"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "shell:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: shell FILE")
	}
	out, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	listed, err := exec.Command("go", "list", "tool").Output()
	if err != nil {
		return fmt.Errorf("list the commands in go.mod: %w", err)
	}
	commands := strings.Fields(string(listed))
	tmp, err := os.MkdirTemp("", "shell-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	// goshsmall is the shell without line editing: the full one first queries the terminal for its colours and cursor,
	// and a serial line that does not answer makes it wait.
	err = bb.BuildBusybox(log.New(os.Stderr, "", 0), &bb.Opts{
		Env: golang.Default(golang.DisableCGO(), golang.WithGOOS("linux"), golang.WithGOARCH("amd64"),
			golang.WithBuildTag("goshsmall")),
		GenSrcDir:    filepath.Join(tmp, "src"),
		CommandPaths: commands,
		BinaryPath:   out,
		GoBuildOpts:  &golang.BuildOpts{},
	})
	if err != nil {
		return fmt.Errorf("compile the commands: %w", err)
	}
	for _, c := range commands {
		fmt.Println(path.Base(c))
	}
	return nil
}
