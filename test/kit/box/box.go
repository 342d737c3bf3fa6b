// Package box is a machine for an agent that runs as a process among others: one on a net that is up, that can't be
// ended.
package box

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/agent/inventory"
)

// Box is such a machine: what package agent asks of machine and network.
type Box struct{}

// The machine.
func (Box) SetClock(time.Time) error          { return nil }
func (Box) KernelLog() ([]byte, error)        { return nil, nil }
func (Box) End(context.Context, string) error { return errors.New("there is no machine") }
func (Box) KernelLoaded() bool                { return false }
func (Box) Settle(context.Context) error      { return nil }

// The network.
func (Box) Wait(context.Context) error  { return nil }
func (Box) Rotate()                     {}
func (Box) Leave(context.Context) error { return nil }
func (Box) Reset(context.Context) error { return nil }
func (Box) Summary() string             { return "a process" }

// Identity is that of a machine that has just been turned on.
func Identity() inventory.Identity {
	var b [16]byte
	_, _ = rand.Read(b[:])
	boot := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	return inventory.Identity{BootID: boot, MACs: []string{"52:54:00:00:00:01"}, BootMode: "bios"}
}
