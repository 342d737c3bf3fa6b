package bmc

import (
	"errors"
	"sync"
)

// Memory is a Machine that is nothing but a power state, for tests of what talks to controllers. The zero value is off.
type Memory struct {
	mu    sync.Mutex
	on    bool
	boots []Boot
	take  func() Boot
	lines *memoryConsole
	nmis  int
	discs map[int]Medium

	// Started is called after each start with the boot choice, outside of locks; may be nil.
	Started func(Boot)
	// DeafButton makes the operating system ignore the power button.
	DeafButton bool
}

// Wire keeps the function that reads the boot flags.
func (m *Memory) Wire(takeBoot func() Boot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.take = takeBoot
}

// On reports whether the power is on.
func (m *Memory) On() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on
}

// Start turns it on.
func (m *Memory) Start() error {
	m.mu.Lock()
	if m.on {
		m.mu.Unlock()
		return nil
	}
	return m.startUnlock()
}

// startUnlock is called locked and unlocks.
func (m *Memory) startUnlock() error {
	m.on = true
	var b Boot
	if m.take != nil {
		b = m.take()
	}
	m.boots = append(m.boots, b)
	started := m.Started
	m.mu.Unlock()
	if started != nil {
		started(b)
	}
	return nil
}

// Stop turns it off.
func (m *Memory) Stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.on = false
	return nil
}

// Reset restarts it.
func (m *Memory) Reset() error {
	m.mu.Lock()
	return m.startUnlock()
}

// PressPower turns it off, as a well-behaved operating system does.
func (m *Memory) PressPower() error {
	if m.DeafButton {
		return nil
	}
	return m.Stop()
}

// NMI counts an interrupt.
func (m *Memory) NMI() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nmis++
	return nil
}

// NMIs returns how many interrupts there were.
func (m *Memory) NMIs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nmis
}

// Boots returns the boot choice of each start so far.
func (m *Memory) Boots() []Boot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Boot(nil), m.boots...)
}

// Console attaches to a serial port that echoes. There is one attachment at a time.
func (m *Memory) Console() (Console, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lines != nil && !m.lines.closed() {
		return nil, errors.New("console is in use")
	}
	m.lines = &memoryConsole{}
	return m.lines, nil
}

// Say has the serial port say something. It reports whether anybody is attached to hear it.
func (m *Memory) Say(text string) bool {
	m.mu.Lock()
	c := m.lines
	m.mu.Unlock()
	if c == nil || c.closed() {
		return false
	}
	_, err := c.Write([]byte(text))
	return err == nil
}

type memoryConsole struct {
	mu   sync.Mutex
	buf  []byte
	gone bool
}

func (c *memoryConsole) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

func (c *memoryConsole) ReadAvailable(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(p, c.buf)
	c.buf = c.buf[n:]
	return n, nil
}

func (c *memoryConsole) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = append(c.buf, p...)
	return len(p), nil
}

func (c *memoryConsole) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	return nil
}

// SetMedium changes the medium of a drive.
func (m *Memory) SetMedium(drive int, d Medium) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.discs == nil {
		m.discs = map[int]Medium{}
	}
	m.discs[drive] = d
	return nil
}

// Medium returns the medium in a drive; nil when it is empty.
func (m *Memory) Medium(drive int) Medium {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.discs[drive]
}
