// Package fake is the agent's access to the machine in memory and plain files, for tests of the packages above.
//
// It models behaviour instead of replaying calls: a disk has a write cache that a power cut loses, a second exclusive
// open is refused, a machine that was ended stays ended.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/u-root/u-root/pkg/efivarfs"
)

// Machine is a machine in memory. The zero value of each field is a machine without that part; Disks must be set.
type Machine struct {
	*Disks
	// Nets are the interfaces' addresses.
	Nets map[string][]netip.Prefix
	// BMC answers IPMI commands, completion code first; nil: the machine has no BMC.
	BMC func(netFn, command byte, data []byte) ([]byte, error)
	// EFI are the firmware's variables; nil: none.
	EFI *Variables
	// Cores is the speed of each processor; 1 is normal.
	Cores []float64
	// Stuck lists faults of the memory; Free is its free size, zero: enough; with NoLock it can't be locked.
	Stuck  []Stuck
	Free   int64
	NoLock bool
	// Again is the number of a connection's retransmitted segments.
	Again int64
	// Stays makes End fail.
	Stays error
	// RefuseKernel makes LoadKernel fail.
	RefuseKernel error

	mu     sync.Mutex
	clock  time.Time
	ended  string
	kernel *Kernel
}

// NewMachine returns a machine whose sys and proc are below dir, an empty directory.
func NewMachine(dir string) *Machine { return &Machine{Disks: NewDisks(dir)} }

// Addresses returns an interface's addresses.
func (m *Machine) Addresses(ifname string) ([]netip.Prefix, error) { return m.Nets[ifname], nil }

// IPMI sends a command to the BMC.
func (m *Machine) IPMI(ctx context.Context, netFn, command byte, data []byte) ([]byte, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if m.BMC == nil {
		return nil, fmt.Errorf("open the BMC: %w", os.ErrNotExist)
	}
	return m.BMC(netFn, command, data)
}

// Settle returns at once: all devices exist.
func (m *Machine) Settle(ctx context.Context) error { return context.Cause(ctx) }

// Variables returns the firmware's variables.
func (m *Machine) Variables() (efivarfs.EFIVar, error) {
	if m.EFI == nil {
		return nil, efivarfs.ErrNoFS
	}
	return m.EFI, nil
}

// SetClock records the time.
func (m *Machine) SetClock(t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock = t
	return nil
}

// Clock returns the time last set by SetClock.
func (m *Machine) Clock() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clock
}

// KernelLog returns one line.
func (m *Machine) KernelLog() ([]byte, error) { return []byte("<6>[    0.000000] fake kernel\n"), nil }

// Sync does nothing: steps flush their own writes.
func (m *Machine) Sync() {}

// End ends the machine.
func (m *Machine) End(_ context.Context, how string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Stays != nil {
		return m.Stays
	}
	if how == "kexec" && m.kernel == nil {
		return errors.New("end this boot (kexec): no kernel is loaded")
	}
	m.ended = how
	return nil
}

// Ended returns how the machine was ended; empty while it runs.
func (m *Machine) Ended() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}
