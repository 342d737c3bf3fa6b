package fleet

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// Machine is one simulated machine, which its controller controls.
type Machine struct {
	Name string
	MAC  string
	UUID uuid.UUID
	Addr netip.Addr // of its controller and of its agent

	number int
	f      *Fleet
	bmc    *bmc.BMC
	take   func() bmc.Boot
	// delay of each answer of its controller
	delay time.Duration

	mu        sync.Mutex
	rng       *rand.Rand
	now       *boot // nil: it is off
	boots     int
	mishaps   int
	installed bool  // there is an image on its disk
	said      *bool // the power state that the controller claims; nil: the true one
	discs     map[int]bmc.Medium
}

// BMC is its controller, which may get a Redfish service.
func (m *Machine) BMC() *bmc.BMC { return m.bmc }

// SetMedium changes the medium of a drive.
func (m *Machine) SetMedium(drive int, d bmc.Medium) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.discs == nil {
		m.discs = map[int]bmc.Medium{}
	}
	m.discs[drive] = d
	return nil
}

// Medium returns the medium in a drive; nil when it is empty.
func (m *Machine) Medium(drive int) bmc.Medium {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.discs[drive]
}

// Disc reports whether the system on a disc runs that is not an agent's.
func (m *Machine) Disc() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now != nil && m.now.disc
}

// Port is the UDP port of its controller.
func (m *Machine) Port() int { return int(m.bmc.Addr().Port()) }

// Wire keeps the function that reads the boot flags.
func (m *Machine) Wire(takeBoot func() bmc.Boot) { m.take = takeBoot }

// On reports whether the power is on, as the controller has it.
func (m *Machine) On() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.said != nil {
		return *m.said
	}
	return m.now != nil
}

// Start turns it on.
func (m *Machine) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.actLocked(func() {
		if m.now == nil {
			m.startLocked()
		}
	})
}

// Stop takes its power away.
func (m *Machine) Stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.actLocked(m.stopLocked)
}

// Reset restarts it.
func (m *Machine) Reset() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.actLocked(func() {
		m.stopLocked()
		m.startLocked()
	})
}

// PressPower turns it off, as a well-behaved operating system does.
func (m *Machine) PressPower() error { return m.Stop() }

// Console returns nil: there is no serial port.
func (m *Machine) Console() (bmc.Console, error) { return nil, nil }

func (m *Machine) stopLocked() {
	if m.now != nil {
		m.now.cut()
		m.now = nil
	}
}

func (m *Machine) startLocked() {
	m.f.count(&m.f.boots, 1)
	m.boots++
	ctx, off := context.WithCancel(m.f.ctx)
	b := &boot{m: m, number: m.boots, from: m.take(), off: off, dark: make(chan struct{}),
		waits: m.aboutLocked(m.f.o.Boot)}
	m.now = b
	m.f.life.Go(func() {
		defer off()
		b.run(ctx)
	})
}

// aboutLocked draws a duration with the median d.
func (m *Machine) aboutLocked(d time.Duration) time.Duration {
	return d/2 + time.Duration(m.rng.Int64N(int64(d)+1))
}

// about draws a duration with the median d.
func (m *Machine) about(d time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aboutLocked(d)
}

// setInstalled notes whether there is an image on the disk.
func (m *Machine) setInstalled(is bool) {
	m.mu.Lock()
	m.installed = is
	m.mu.Unlock()
}

// Mishaps is how often its agent died, it froze, or its controller lied or was out of order.
func (m *Machine) Mishaps() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mishaps
}

// Instance reports whether the system on its disk runs.
func (m *Machine) Instance() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now != nil && m.now.instance
}
