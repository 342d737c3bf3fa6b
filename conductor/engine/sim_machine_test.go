package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// drivers opens simulated controllers.
type drivers struct{ c *conductor }

func (d drivers) Open(n *node.Node) (power.Driver, error) {
	m := d.c.w.machine(n.UUID)
	if m == nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: errors.New("ipmi_address is missing"),
			Hint: "set ipmi_address"}
	}
	if d.Interface(n, "power") == program.AgentPower {
		return &agentBMC{bmc{m, d.c}}, nil
	}
	if d.Interface(n, "power") == "mute" { // a controller without a console
		return struct{ power.Driver }{&bmc{m, d.c}}, nil
	}
	return &bmc{m, d.c}, nil
}

func (d drivers) Interface(n *node.Node, kind string) string { return n.Interfaces[kind] }

func (w *world) machine(id string) *machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machines[id]
}

// machine is a computer: a power button, a disk, memory in which an agent may run.
type machine struct {
	w    *world
	id   string
	mu   sync.Mutex
	key  string // of its controller
	on   bool
	boot power.Boot

	// The disk.
	writes    int    // how often an image write was begun
	content   string // what was written
	bootable  bool   // the table is there
	osStarted int    // how often it booted from disk
	pxeBoots  int    // how often the agent was booted

	// The installed system.
	drive   string                                            // its config drive, as JSON
	osStop  context.CancelFunc                                // of the one that runs; nil: none does
	os      func(ctx context.Context, m *machine, kexec bool) // what it does; nil: nothing that shows
	console string                                            // what it says on it
	delay   time.Duration                                     // before the last jump
	kexecs  int                                               // jumps into it

	disc       string // address of the image in its virtual drive
	mediaBoots int    // how often the agent was booted from there

	// A workload that runs from memory.
	netboot   func() bool // whether a start from the network gets it, and not the agent
	workloads int         // such starts

	// Faults.
	hang      atomic.Pointer[func()] // what a call does first, without the lock
	callErr   func(op string) error  // of the controller
	staysOff  bool
	noNetBoot bool
	turnedOn  func()      // called after each turning on, with the lock
	deaf      int         // so many plans don't reach its agent
	away      atomic.Bool // its agent opens no session
	late      atomic.Bool // its agents do not enrol yet
	digest    string      // of the agent's steps
	stepTook  time.Duration
	// between the end of the agent's session and its turning the machine off
	flushTook time.Duration
	// steps that do something else than usual
	behave     map[string]func(a *agent, s node.PlanStep) (node.StepResult, bool)
	asks       []string // what the controller was asked for
	inUse      int      // calls at once
	mostInUse  int
	agent      *agent
	plansTaken []node.Plan
	cancels    int           // of plans
	redirects  int           // of its agent
	lost       time.Duration // how long ago its agent, when its session ends, is said to have been lost
	runs       []string      // steps of script that ran
}

// bmc is the machine's controller as one conductor reaches it.
type bmc struct {
	m *machine
	c *conductor
}

func (b *bmc) enter(ctx context.Context, op string) (func(), error) {
	if hang := b.m.hang.Load(); hang != nil {
		(*hang)()
	}
	if b.c.isDead() {
		return nil, errDead
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := b.m
	m.mu.Lock()
	m.inUse++
	m.mostInUse = max(m.mostInUse, m.inUse)
	if m.callErr != nil {
		if err := m.callErr(op); err != nil {
			m.inUse--
			m.mu.Unlock()
			return nil, err
		}
	}
	return func() { m.inUse--; m.mu.Unlock() }, nil
}

func (b *bmc) Power(ctx context.Context) (power.State, error) {
	leave, err := b.enter(ctx, "read power state")
	if err != nil {
		return "", err
	}
	defer leave()
	if b.m.on {
		return power.On, nil
	}
	return power.Off, nil
}

func (b *bmc) SetPower(ctx context.Context, a power.Action) error {
	leave, err := b.enter(ctx, "power "+string(a))
	if err != nil {
		return err
	}
	defer leave()
	m := b.m
	m.asks = append(m.asks, string(a))
	switch a {
	case power.TurnOff, power.SoftOff:
		m.turnOff()
	case power.TurnOn:
		if !m.on && !m.staysOff {
			m.turnOn()
		}
	case power.Reset, power.Cycle:
		if m.on {
			m.turnOff()
			m.turnOn()
		}
	}
	return nil
}

func (b *bmc) SetBoot(ctx context.Context, boot power.Boot) error {
	leave, err := b.enter(ctx, "set boot device")
	if err != nil {
		return err
	}
	defer leave()
	b.m.boot = boot
	return nil
}

func (b *bmc) Boot(ctx context.Context) (power.Boot, error) {
	leave, err := b.enter(ctx, "read boot device")
	if err != nil {
		return power.Boot{}, err
	}
	defer leave()
	return b.m.boot, nil
}

func (b *bmc) Devices() []power.Device { return []power.Device{power.BootPXE, power.BootDisk} }

func (b *bmc) SystemGUIDs(ctx context.Context) ([]string, error) {
	leave, err := b.enter(ctx, "read system GUID")
	if err != nil {
		return nil, err
	}
	defer leave()
	return []string{"guid-" + b.m.id}, nil
}

// WatchConsole says what the machine's console says once a system runs.
func (b *bmc) WatchConsole(ctx context.Context, w io.Writer) error {
	for {
		b.m.mu.Lock()
		runs, text := b.m.osStop != nil, b.m.console
		b.m.mu.Unlock()
		if runs {
			for _, c := range []byte(text) { // as slow as a serial line
				if _, err := w.Write([]byte{c}); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.c.dead:
			return errDead
		case <-time.After(time.Millisecond):
		}
	}
}

func (b *bmc) InsertMedia(ctx context.Context, image power.BootImage) (bool, error) {
	leave, err := b.enter(ctx, "insert virtual media")
	if err != nil {
		return false, err
	}
	defer leave()
	b.m.disc = image.Address
	return false, nil
}

func (b *bmc) EjectMedia(ctx context.Context) error {
	leave, err := b.enter(ctx, "eject virtual media")
	if err != nil {
		return err
	}
	defer leave()
	b.m.disc = ""
	return nil
}

func (b *bmc) Key() string  { return b.m.key }
func (b *bmc) Close() error { return nil }

func (m *machine) turnOff() {
	m.on = false
	if m.osStop != nil {
		m.osStop()
		m.osStop = nil
	}
	m.stopAgent()
}

func (m *machine) lostFor() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

func (m *machine) stopAgent() {
	if m.agent != nil {
		m.agent.stop()
		m.agent = nil
	}
}

// turnOn boots: from the network if that was chosen and somebody answers, else from a disk that is bootable.
func (m *machine) turnOn() {
	m.on = true
	pxe, media := m.boot.Device == power.BootPXE, m.boot.Device == power.BootCDROM
	if !m.boot.Persistent {
		m.boot = power.Boot{}
	}
	if m.turnedOn != nil {
		m.turnedOn()
	}
	if pxe && m.netboot != nil && m.netboot() {
		m.workloads++
		return
	}
	if pxe && !m.noNetBoot {
		m.pxeBoots++
		a := newAgent(m)
		m.agent = a
		m.w.wg.Go(a.live)
		return
	}
	if media && m.disc == liveISO {
		m.workloads++
		return
	}
	if media && !m.noNetBoot {
		n := m.w.node(m)
		if image, hash, _ := (bootImages{}).BootImage(context.Background(), n); m.disc != image.Address ||
			n.Boot.TokenHash != hash {
			m.w.t.Errorf("node %s boots from %q with the token %q, want %q, %q", n.Name, m.disc, n.Boot.TokenHash, image.Address,
				hash)
		}
		m.mediaBoots++
		a := newAgent(m)
		m.agent = a
		m.w.wg.Go(a.live)
		return
	}
	m.startOS(false)
}

// bootImages has an image for each boot of a node.
type bootImages struct{}

func (bootImages) BootImage(_ context.Context, n *node.Node) (image power.BootImage, tokenHash string, err error) {
	g := n.Boot.Generation
	return power.BootImage{Address: fmt.Sprintf("http://images/%s/%d.iso", n.UUID, g)}, fmt.Sprint("token ", g), nil
}

// liveISO is the instance of a machine that runs from its virtual drive.
const liveISO = "http://h/live.iso"

// inDrive is the image in its virtual drive.
func (m *machine) inDrive() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disc
}

// hold has the agent stay in a step until goOn is called, or its power goes.
func (m *machine) hold(step string) (goOn func()) {
	held := make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behave[step] = func(a *agent, _ node.PlanStep) (node.StepResult, bool) {
		select {
		case <-held:
		case <-a.ctx.Done():
		}
		return node.StepResult{}, false
	}
	return func() { close(held) }
}

// agentFinishes waits until the agent, if there is one, has no plan running.
func (m *machine) agentFinishes() {
	for {
		m.mu.Lock()
		a := m.agent
		m.mu.Unlock()
		if a == nil {
			return
		}
		a.mu.Lock()
		running := a.running
		a.mu.Unlock()
		if !running {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// pull is the plug.
func (m *machine) pull() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turnOff()
}
