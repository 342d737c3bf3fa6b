package engine

import (
	"errors"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/conductor/node"
)

// fleet is a number of conductors, of which each can die and live, and lose its lease and get it back.
type fleet struct {
	mu     sync.Mutex
	living []string
	ended  map[string]bool // leases, as their conductors see them
	drains map[string]bool
	place  func(n *node.Node) string
	checks func(name string) // called at each check
}

func newFleet(names ...string) *fleet {
	return &fleet{living: names, ended: map[string]bool{}, drains: map[string]bool{}}
}

var errEnded = errors.New("its lease has ended")

// die and live change whether the others take a conductor to be alive.
func (f *fleet) die(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.living = slices.DeleteFunc(slices.Clone(f.living), func(l string) bool { return l == name })
}

func (f *fleet) live(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.living = append(slices.Clone(f.living), name)
}

// lease sets whether a conductor may act, as it sees it itself.
func (f *fleet) lease(name string, holds bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[name] = !holds
}

func (f *fleet) placed(place func(n *node.Node) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.place = place
}

func (f *fleet) of(name string) Conductors { return membership{f, name} }

// membership is the fleet as one of its conductors sees it.
type membership struct {
	f    *fleet
	name string
}

func (m membership) Check() error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.f.checks != nil {
		m.f.checks(m.name)
	}
	if m.f.ended[m.name] {
		return errEnded
	}
	return nil
}

func (m membership) Lives(name string) bool {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return name == m.name || slices.Contains(m.f.living, name)
}

// drain makes a conductor take no nodes.
func (f *fleet) drain(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drains[name] = true
}

func (m membership) Takes(name string) bool {
	m.f.mu.Lock()
	drains := m.f.drains[name]
	m.f.mu.Unlock()
	return m.Lives(name) && !drains
}

// Owner is the first conductor that lives, unless the test has a place for the node.
func (m membership) Owner(n *node.Node) string {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.f.place != nil {
		return m.f.place(n)
	}
	if len(m.f.living) == 0 {
		return m.name
	}
	return m.f.living[0]
}
