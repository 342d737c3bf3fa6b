// Command ingot is the command line of Ingot.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/ingot-metal/ingot/tools/cli"
)

// version is set by the build: -ldflags "-X main.version=...".
var version = "dev"

func main() {
	if slices.Equal(os.Args[1:], []string{"--version"}) {
		fmt.Println("ingot", version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ingot: "+cli.Message(err))
		os.Exit(1)
	}
}
