// Command ingotd is the conductor.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/ingot-metal/ingot/conductor/app"
)

// version is set by the build: -ldflags "-X main.version=...".
var version = "dev"

func main() {
	if slices.Equal(os.Args[1:], []string{"--version"}) {
		fmt.Println("ingotd", version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := app.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "ingotd:", err)
		os.Exit(1)
	}
}
