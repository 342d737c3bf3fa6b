// Package fleet simulates many machines for a running ingotd: a controller each, which speaks IPMI on a loopback
// address of its own, boots that take time, and the real agent's session over gRPC and TLS, above steps that pretend to
// work.
//
// A machine that is turned on boots for a while. From the network it fetches its boot script from ingotd's HTTP server
// over loopback, as iPXE does, and runs the agent that the script names; there is no DHCP and no TFTP. From its disk it
// runs its instance, if an image was "written". Nothing is read from or written to a disk.
//
// Faults are drawn per machine from a generator that the seed and the machine's number start: the same seed gives the
// same machines, and the same faults as long as ingotd asks the same of them. Times are medians; a single duration is
// between half and one and a half of one.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// Most is how many machines a fleet may have.
const Most = 50_000

// Account of every controller.
const (
	User     = "admin"
	Password = "ingot-fleet"
)

// Port is the UDP port of every controller, at its own address, in the network 77. In network n it is larger by n-77:
// the controllers of a fleet share one socket, which would get the packets of another fleet at its port.
const Port = 6230

// Options of a fleet.
type Options struct {
	Nodes int    // number of machines, 1 to Most
	Seed  uint64 // of all that is drawn
	// BootURL is ingotd's HTTP server for booting machines, such as http://127.0.0.1:8080; of several conductors all,
	// separated by commas: machines begin with another one each, and ask the next one while there is no answer.
	BootURL string
	// Network is the second byte of the machines' addresses in 127.0.0.0/8; zero: 77. Another lets two fleets run on a
	// host.
	Network byte
	Boot    time.Duration // time from power-on to the first sign of what is booted; zero: 45 s
	Write   time.Duration // time that write_image takes; zero: one minute
	Step    time.Duration // time of each other step; zero: 5 s
	Rates   Rates         // of faults
	Trouble time.Duration // time that a controller is busy, is silent or lies; zero: 20 s
	Log     *slog.Logger  // nil is silent
	// Image, if set, is called by write_image, and what it returns is the step's error: who wants to know whether the
	// image can be had fetches it there.
	Image func(ctx context.Context, c *step.Call) error
	// Own are the site's own steps, as the ramdisk has them (Site); each installs a system.
	Own       []step.Row
	Inventory func(*inventory.Report) // changes what an inspection finds; may be nil
	// Seen, if set, is called when an agent begins a step and when it ends one, from many goroutines.
	Seen func(Event)
}

// Event is the beginning or the end of a step.
type Event struct {
	Machine *Machine
	Boot    int // number of the machine's start, from 1
	Step    string
	End     bool
}

// Fleet is running machines. Make it with Start.
type Fleet struct {
	o     Options
	log   *slog.Logger
	http  *http.Client
	table []step.Step // the agent's, without functions that work here
	ctx   context.Context
	stop  context.CancelFunc
	life  sync.WaitGroup
	wires *exchange

	Machines []*Machine
	counters
}

// Start makes the machines, which are off. Close ends them.
func Start(ctx context.Context, o Options) (*Fleet, error) {
	if o.Nodes < 1 || o.Nodes > Most {
		return nil, fmt.Errorf("a fleet of %d machines: it may have 1 to %d", o.Nodes, Most)
	}
	if err := o.Rates.check(); err != nil {
		return nil, err
	}
	o.Network = cmp.Or(o.Network, 77)
	o.Boot = cmp.Or(o.Boot, 45*time.Second)
	o.Write = cmp.Or(o.Write, time.Minute)
	o.Step = cmp.Or(o.Step, 5*time.Second)
	o.Trouble = cmp.Or(o.Trouble, 20*time.Second)
	f := &Fleet{o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), table: withOwn(o.Own)}
	f.http = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	var err error
	if f.wires, err = listen(ctx, Port+int(f.o.Network)-77); err != nil {
		return nil, fmt.Errorf("start the controllers of a fleet (another one on this host needs another network): %w", err)
	}
	f.ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	for i := range o.Nodes {
		m, err := f.machine(i)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.Machines = append(f.Machines, m)
	}
	return f, nil
}

// machine makes the machine of a number.
func (f *Fleet) machine(i int) (*Machine, error) {
	rng := rand.New(rand.NewPCG(f.o.Seed, uint64(i)))
	var id uuid.UUID
	for k := range id {
		id[k] = byte(rng.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	m := &Machine{number: i, f: f, rng: rng, Name: fmt.Sprintf("fleet-%05d", i), UUID: id,
		MAC:  fmt.Sprintf("02:f1:ee:%02x:%02x:%02x", byte(i>>16), byte(i>>8), byte(i)),
		Addr: netip.AddrFrom4([4]byte{127, f.o.Network, byte(i / 250), byte(i%250 + 1)})}
	conn := f.wires.at(m.Addr)
	var err error
	m.bmc, err = bmc.Start(conn, bmc.Config{Name: m.Name, UUID: id, User: User, Password: Password, Machine: m,
		Log: f.log})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	m.mu.Lock() // it can be asked already
	defer m.mu.Unlock()
	if m.drawLocked(f.o.Rates.Slow) {
		m.delay = m.aboutLocked(f.o.Trouble / 40)
		m.bmc.SetFaults(bmc.Faults{Delay: m.delay})
	}
	return m, nil
}

// Close ends all machines and controllers.
func (f *Fleet) Close() error {
	f.stop()
	var errs []error
	for _, m := range f.Machines {
		errs = append(errs, m.bmc.Close())
	}
	f.life.Wait()
	return errors.Join(append(errs, f.wires.Close())...)
}

// Overlaps counts requests that reached a controller while another client waited for its answer.
func (f *Fleet) Overlaps() (n int64) {
	for _, m := range f.Machines {
		n += m.bmc.Overlaps()
	}
	return n
}

// counters count what happens, over all machines.
type counters struct {
	mu       sync.Mutex
	sessions int // open now
	opened   int // sessions so far
	refused  int // sessions and enrolments that ingotd refused for good
	boots    int // starts of machines
	agents   int // agents running now
	images   int // images written
	deaths   int // agents that died
	frosts   int // machines that froze
	lies     int // power actions about which a controller lied
	fails    int // times that a controller was out of order
}

// Counts is a snapshot of what happened.
type Counts struct {
	Sessions, Opened, Refused, Boots, Agents, Images int
	Deaths, Frosts, Lies, Fails                      int
}

// Counts returns what happened so far.
func (f *Fleet) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.counters
	return Counts{c.sessions, c.opened, c.refused, c.boots, c.agents, c.images, c.deaths, c.frosts,
		c.lies, c.fails}
}

// count changes a counter.
func (f *Fleet) count(of *int, by int) {
	f.mu.Lock()
	*of += by
	f.mu.Unlock()
}
