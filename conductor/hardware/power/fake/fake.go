// Package fake is the power driver of hardware type fake-hardware: machines that exist only in memory.
//
// A Machines holds them; when the process ends they are lost, and every machine is off. A machine is named by the key
// fake_id of driver_info; the code that opens drivers for nodes sets it to the node's UUID when the node has none.
// Actions take effect at once, or after fake_power_delay, as with a real machine whose controller accepts an order
// before carrying it out. fake_fail makes actions fail (power.on, power.off, power.soft_off, power.cycle, power.reset,
// power.read, management.set_boot_device).
package fake

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Properties describes the keys of driver_info.
var Properties = []power.Property{
	{Name: "fake_id", Description: "name of the machine; default is the node's UUID"},
	{Name: "fake_delay",
		Description: "how long everything takes that has no delay of its own: seconds or a duration (2, 500ms), or a range (1,5); default is no time"},
	{Name: "fake_power_delay", Description: "how long a power action takes"},
	{Name: "fake_fail",
		Description: "what fails: an object such as {\"deploy.write_image\": \"message\", \"power.on\": 2}; a number fails so many times"},
}

// Machines are all fake machines of one process. The zero value has none.
type Machines struct {
	mu     sync.Mutex
	m      map[string]*machine
	faults map[[2]string]counted // by machine and act: how often it has failed
}

type machine struct {
	mu   sync.Mutex
	on   bool
	boot power.Boot
	// The next state, and when it is due. Evaluated on each access: nothing runs in between.
	due  time.Time
	then func()
}

// Open makes a driver for the machine that info names; a new machine is off.
func (ms *Machines) Open(info power.Info, log *slog.Logger) (power.Driver, error) {
	id, _ := info["fake_id"].(string)
	if id == "" {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: fmt.Errorf("fake_id is missing"),
			Hint: "set fake_id to any name"}
	}
	if err := CheckDials(info); err != nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: err,
			Hint: "write delays as 2s or 1,5"}
	}
	delay, err := Delay(info, "power")
	if err != nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: err,
			Hint: "write delays as 2s or 1,5"}
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.m == nil {
		ms.m = map[string]*machine{}
	}
	m := ms.m[id]
	if m == nil {
		m = &machine{boot: power.Boot{Device: power.BootNone}}
		ms.m[id] = m
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Driver{id: id, info: info, delay: delay, ms: ms, m: m, log: log.With("driver", "fake", "machine", id)}, nil
}

// Driver acts on one fake machine. It is safe for concurrent use.
type Driver struct {
	id    string
	info  power.Info
	delay Range
	ms    *Machines
	m     *machine
	log   *slog.Logger
}

var _ power.Driver = (*Driver)(nil)

// lock locks the machine with everything done that is due.
func (d *Driver) lock() {
	d.m.mu.Lock()
	if d.m.then != nil && !time.Now().Before(d.m.due) {
		d.m.then()
		d.m.then = nil
	}
}

func (d *Driver) start() {
	d.m.on = true
	if !d.m.boot.Persistent {
		d.m.boot = power.Boot{Device: power.BootNone}
	}
}

// Power returns whether the machine is on.
func (d *Driver) Power(ctx context.Context) (power.State, error) {
	if err := ctx.Err(); err != nil {
		return power.Unknown, err
	}
	if err := d.powerFault("power.read"); err != nil {
		return power.Unknown, err
	}
	d.lock()
	defer d.m.mu.Unlock()
	if d.m.on {
		return power.On, nil
	}
	return power.Off, nil
}

// SetPower takes the action; a later one replaces one that has not happened yet.
func (d *Driver) SetPower(ctx context.Context, a power.Action) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.powerFault("power." + strings.ReplaceAll(string(a), " ", "_")); err != nil {
		return err
	}
	d.lock()
	defer d.m.mu.Unlock()
	var then func()
	switch a {
	case power.TurnOn:
		then = func() {
			if !d.m.on {
				d.start()
			}
		}
	case power.TurnOff, power.SoftOff:
		then = func() { d.m.on = false }
	case power.Cycle, power.Reset:
		if !d.m.on {
			return &power.Error{Kind: power.Refused, Op: "power " + string(a), Addr: d.Key(),
				Err: fmt.Errorf("the machine is off"), Hint: "turn it on"}
		}
		then = d.start
	default:
		return &power.Error{Kind: power.Unsupported, Op: "power " + string(a), Addr: d.Key(),
			Err: fmt.Errorf("unknown action %q", a)}
	}
	delay := d.delay.At(rand.Float64())
	d.log.Debug("power action taken", "action", string(a), "delay", delay)
	if delay == 0 {
		d.m.then = nil
		then()
		return nil
	}
	d.m.due, d.m.then = time.Now().Add(delay), then
	return nil
}

// SetBoot keeps the choice. One that is not persistent is gone after the next start.
func (d *Driver) SetBoot(ctx context.Context, b power.Boot) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.powerFault("management.set_boot_device"); err != nil {
		return err
	}
	known := false
	for _, dev := range d.Devices() {
		known = known || dev == b.Device
	}
	if !known {
		return &power.Error{Kind: power.Unsupported, Op: "set boot device " + string(b.Device), Addr: d.Key(),
			Err: fmt.Errorf("unknown boot device %q", b.Device)}
	}
	d.lock()
	defer d.m.mu.Unlock()
	b.Mode = cmp.Or(b.Mode, d.m.boot.Mode)
	d.m.boot = b
	return nil
}

// Boot returns the boot device.
func (d *Driver) Boot(ctx context.Context) (power.Boot, error) {
	if err := ctx.Err(); err != nil {
		return power.Boot{}, err
	}
	d.lock()
	defer d.m.mu.Unlock()
	return d.m.boot, nil
}

// Devices lists what SetBoot accepts: all.
func (d *Driver) Devices() []power.Device {
	return []power.Device{power.BootPXE, power.BootDisk, power.BootCDROM, power.BootBIOS, power.BootSafe,
		power.BootNone}
}

// SystemGUIDs has none to tell.
func (d *Driver) SystemGUIDs(ctx context.Context) ([]string, error) { return nil, ctx.Err() }

// Key is the machine's name.
func (d *Driver) Key() string { return "fake:" + d.id }

// Close does nothing; the machine stays as it is.
func (d *Driver) Close() error { return nil }
