// Command member is the agent as a process among others: the ramdisk's, with its steps, on one disk of this machine. It
// does not touch the rest of the machine, and it is as large as the agent is.
//
//	member CONDUCTOR CA TOKEN DISK
package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/test/kit/box"
)

// machine is this machine with one disk.
type machine struct {
	linux.Machine
	disk disk.Disk
}

func (m machine) Disks(context.Context) ([]disk.Disk, error) { return []disk.Disk{m.disk}, nil }
func (machine) Settle(context.Context) error                 { return nil }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("usage: member CONDUCTOR CA TOKEN DISK")
	}
	var ca [32]byte
	if n, err := hex.Decode(ca[:], []byte(args[1])); err != nil || n != len(ca) {
		return fmt.Errorf("%s is no fingerprint", args[1])
	}
	dev, err := linux.OpenExclusive(ctx, args[3])
	if err != nil {
		return err
	}
	major, minor := dev.Number()
	m := machine{disk: disk.Disk{Name: args[3], ByPath: args[3], Number: fmt.Sprintf("%d:%d", major, minor),
		Size: dev.Size(), LogicalSectors: dev.SectorSize(), PhysicalSectors: dev.SectorSize()}}
	if err := dev.Close(); err != nil {
		return err
	}
	a, err := agent.New(agent.Options{
		Config:  agent.Config{Conductors: args[:1], CA: ca, Token: agent.Secret(args[2])},
		Version: "test", Identity: box.Identity(), System: box.Box{}, Network: box.Box{}, Steps: agent.Steps(m, nil),
		Log: slog.NewTextHandler(os.Stderr, nil),
	})
	if err != nil {
		return err
	}
	if err := a.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
