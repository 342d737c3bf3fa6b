package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// Rates say how often things go wrong, each from 0 to 1.
type Rates struct {
	// Die is the rate of steps in whose middle the agent dies, while the machine stays on: its connection is closed.
	Die float64
	// Freeze is the rate of steps in whose middle the machine falls silent, while its connections stay open.
	Freeze float64
	// Lie is the rate of power actions that a controller takes and does not do, or does and denies for a while.
	Lie float64
	// Fail is the rate of power actions after which a controller is busy, or silent, for a while.
	Fail float64
	// Slow is the share of controllers that answer late, by about a fortieth of Options.Trouble.
	Slow float64
}

// check returns the faults of rates.
func (r Rates) check() error {
	for name, v := range map[string]float64{"die": r.Die, "freeze": r.Freeze, "lie": r.Lie, "fail": r.Fail,
		"slow": r.Slow} {
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("rate %s is %v: it must be from 0 to 1", name, v)
		}
	}
	return nil
}

// drawLocked reports whether something of a rate happens now.
func (m *Machine) drawLocked(rate float64) bool { return rate > 0 && m.rng.Float64() < rate }

// mishap is an accident of an agent in the middle of a step.
type mishap int

const (
	none mishap = iota
	death
	frost
)

// mishap draws what happens in a step, and when in it, from 0 to 1.
func (m *Machine) mishap() (what mishap, at float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r := m.f.o.Rates; {
	case m.drawLocked(r.Die):
		what = death
	case m.drawLocked(r.Freeze):
		what = frost
	default:
		return none, 0
	}
	m.mishaps++
	return what, m.rng.Float64()
}

// befall has a mishap happen.
func (b *boot) befall(what mishap) {
	f := b.m.f
	switch what {
	case death:
		f.count(&f.deaths, 1)
		f.log.Debug("an agent dies", "machine", b.m.Name)
		b.kill()
	case frost:
		f.count(&f.frosts, 1)
		f.log.Debug("a machine freezes", "machine", b.m.Name)
		b.freeze()
	}
}

// errDead is the error of a step whose agent is no more.
var errDead = errors.New("the agent has died")

// actLocked carries out a power action, unless a fault prevents it.
func (m *Machine) actLocked(do func()) error {
	r, pause := m.f.o.Rates, m.aboutLocked(m.f.o.Trouble)
	switch {
	case m.drawLocked(r.Fail):
		m.f.count(&m.f.fails, 1)
		m.mishaps++
		f := bmc.Faults{Delay: m.delay, Silent: m.rng.IntN(2) == 0}
		f.Busy = !f.Silent
		m.bmc.SetFaults(f)
		m.healAfter(pause, func() { m.bmc.SetFaults(bmc.Faults{Delay: m.delay}) })
		if f.Busy {
			return bmc.ErrBusy
		}
	case m.drawLocked(r.Lie):
		m.f.count(&m.f.lies, 1)
		m.mishaps++
		if m.rng.IntN(2) == 0 {
			return nil // taken, and not done
		}
		on := m.now != nil
		m.said = &on
		m.healAfter(pause, func() {
			m.mu.Lock()
			m.said = nil
			m.mu.Unlock()
		})
	}
	do()
	return nil
}

// healAfter ends a fault after a while.
func (m *Machine) healAfter(d time.Duration, heal func()) {
	m.f.life.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			heal()
		case <-m.f.ctx.Done():
		}
	})
}

// withKill is a context that kill ends.
func (b *boot) withKill(ctx context.Context) context.Context {
	ctx, kill := context.WithCancelCause(ctx)
	b.kill = func() { kill(errDead) }
	return ctx
}
