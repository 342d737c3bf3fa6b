// Command vm replaces ingot-agent in a virtual machine: it prints a capture of the machine, and the matching inventory,
// on the console.
package main

import (
	"bytes"
	"compress/gzip"
	"context"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/test/standin"
)

func main() { standin.Main(work) }

func work(ctx context.Context, m linux.Machine) error {
	if err := m.Settle(ctx); err != nil {
		return err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := inventory.Capture("/", z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	r, err := inventory.Collect(ctx, m, inventory.Options{})
	if err != nil {
		return err
	}
	standin.Say("REPORT", r)
	standin.Say("CAPTURE", packed.Bytes())
	return nil
}
