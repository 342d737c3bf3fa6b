// Package openstack has the interfaces of hardware type openstack, whose machines are servers of an OpenStack cloud:
// power and boot device by Nova (Driver, a power.Driver), and an inspection by what Nova and Neutron know.
//
// driver_info names the cloud and the server; address and credentials are in a file of clouds that the configuration
// names. All machines of a cloud share one login and one listing of servers. Nova acts in the background: the task
// state of a server says that it does, and meanwhile it takes no other action. So each action waits first until the
// server has no task, within the time of its call. The choice of the boot device is kept in the server's metadata.
//
// Nova has no way to boot a server from the network as it is; Ways are what clouds allow instead. Its only way to turn
// a server off asks the guest first, and cuts the power after a time that is the cloud's.
package openstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Service makes drivers whose clouds are those of one file. Safe for concurrent use.
type Service struct {
	file string
	poll time.Duration // between two looks at a server that is being waited for, at first

	mu     sync.Mutex
	clouds map[string]*cloud
}

// New makes a Service; file is that of the clouds, "" if the configuration names none.
func New(file string) *Service {
	return &Service{file: file, poll: time.Second, clouds: map[string]*cloud{}}
}

// maxClouds bounds the clouds that are remembered: users of the API can name clouds that do not exist.
const maxClouds = 100

func (s *Service) cloud(name string) *cloud {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clouds[name]
	if c == nil {
		if len(s.clouds) >= maxClouds {
			clear(s.clouds) // they log in again
		}
		c = newCloud(s.file, name)
		s.clouds[name] = c
	}
	return c
}

// Open makes a driver. It neither reads the file of clouds nor connects.
func (s *Service) Open(info power.Info, log *slog.Logger) (power.Driver, error) {
	d, err := s.open(info, log)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (s *Service) open(info power.Info, log *slog.Logger) (*Driver, error) {
	o, err := parse(info)
	hint := "correct driver_info of the node"
	if err == nil && s.file == "" {
		err = errors.New("the conductor has no file of clouds")
		hint = "set openstack.clouds_file in the configuration of ingotd"
	}
	if err != nil {
		return nil, &power.Error{Kind: power.Config, Op: "read driver_info", Err: err, Hint: hint}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Driver{c: s.cloud(o.cloud), o: o, poll: s.poll,
		log: log.With("driver", "openstack", "cloud", clean.Line(o.cloud, 64), "server", o.server)}, nil
}

// Driver is one server. It is safe for concurrent use.
type Driver struct {
	c    *cloud
	o    options
	poll time.Duration
	log  *slog.Logger
}

var _ power.Driver = (*Driver)(nil)

// Key is the cloud and the server.
func (d *Driver) Key() string { return "openstack:" + d.o.cloud + ":" + d.o.server }

// Close does nothing: clients are shared.
func (d *Driver) Close() error { return nil }

// Power reads the power state, which may be some seconds old if the server was not acted on lately. A server on its way
// to be on is unknown until it is there: it must not count as one that is off, since it will not stay so.
func (d *Driver) Power(ctx context.Context) (power.State, error) {
	const op = "read power state"
	s, err := d.c.look(ctx, d.o.server)
	if err != nil {
		return power.Unknown, d.c.explain(ctx, op, d.o.server, err)
	}
	switch {
	case s.Status == building:
		return power.Unknown, &power.Error{Kind: power.Busy, Op: op, Addr: d.c.addr(d.o.server),
			Err: errors.New("it is still being made"), Hint: "wait until its status is ACTIVE"}
	case s.Status == "DELETED" || s.Status == "SOFT_DELETED":
		return power.Unknown, &power.Error{Kind: power.Config, Op: op, Addr: d.c.addr(d.o.server),
			Err: errors.New("it was deleted"), Hint: "correct openstack_server in driver_info, or delete the node"}
	case d.between(s) || s.halted() && slices.Contains(beginning, s.Task):
		return power.Unknown, nil
	case s.Status == failed:
		return power.Failed, nil
	case s.halted():
		return power.Off, nil
	}
	return power.On, nil
}

// beginning are tasks at whose end a server is on.
var beginning = []string{"powering-on", "rescuing", "rebuilding", "rebuild_block_device_mapping", "rebuild_spawning",
	"rebooting_hard", "reboot_pending_hard", "reboot_started_hard", "resuming", "unshelving", "spawning", "unrescuing"}

// between reports whether a server that is rebuilt while it is off runs for the moment that Nova starts it for.
func (d *Driver) between(s *server) bool {
	return d.o.way == ByRebuild && !s.halted() && readChoice(s.Metadata).begun
}

// margin is the time of a call that stays for its last request, when a server is not waited for any longer.
const margin = 3 * time.Second

// slowest is between two looks at a server that is being waited for.
const slowest = 4 * time.Second

// settled reads the server until Nova has no task for it, and until ok holds if that is not nil.
func (d *Driver) settled(ctx context.Context, op string, ok func(*server) bool) (*server, error) {
	for wait := d.poll; ; wait = min(wait*3/2, slowest) {
		s, err := d.c.get(ctx, d.o.server)
		if err != nil {
			return nil, d.c.explain(ctx, op, d.o.server, err)
		}
		if s.Task == "" && (ok == nil || ok(s) || s.Status == failed) {
			return s, nil
		}
		if end, has := ctx.Deadline(); has && time.Until(end) < wait+margin {
			return nil, &power.Error{Kind: power.Busy, Op: op, Addr: d.c.addr(d.o.server),
				Err:  fmt.Errorf("the server is still %s with the task %q", clean.Line(s.Status, 40), clean.Line(s.Task, 40)),
				Hint: "it is asked again; for a slow cloud, raise power.call_timeout and power.timeout"}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%s: %w", op, ctx.Err())
		}
	}
}

// send asks Nova for one action. A conflict with a task that another client has begun is one that passes.
func (d *Driver) send(ctx context.Context, op, action string,
	f func(ctx context.Context, sc *gophercloud.ServiceClient) error) error {
	d.c.act(d.o.server)
	err := d.c.compute(ctx, action+" server "+d.o.server, f)
	if err == nil {
		d.log.Debug("Nova took an action", "action", action)
		return nil
	}
	out := d.c.explain(ctx, op, d.o.server, err)
	if !oscloud.Is(err, http.StatusConflict) {
		return out
	}
	s, rerr := d.c.get(ctx, d.o.server)
	var e *power.Error
	switch {
	case rerr != nil || !errors.As(out, &e):
	case s.Task != "":
		e.Kind, e.Hint = power.Busy, "another client acts on the server; it is asked again"
	case s.Locked:
		e.Hint = "unlock it: openstack server unlock " + d.o.server
	case s.Status == failed:
		e.Err = fmt.Errorf("%w; it is in ERROR: %s", e.Err, clean.Line(s.Fault.Message, 200))
		e.Hint = "see openstack server event list " + d.o.server
	}
	return out
}

func (d *Driver) start(ctx context.Context, op string) error {
	return d.send(ctx, op, "start", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		return servers.Start(ctx, sc, d.o.server).ExtractErr()
	})
}

func (d *Driver) stop(ctx context.Context, op string) error {
	return d.send(ctx, op, "stop", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		return servers.Stop(ctx, sc, d.o.server).ExtractErr()
	})
}

func (d *Driver) reboot(ctx context.Context, op string) error {
	return d.send(ctx, op, "reboot", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		return servers.Reboot(ctx, sc, d.o.server, servers.RebootOpts{Type: servers.HardReboot}).ExtractErr()
	})
}

func (d *Driver) unrescue(ctx context.Context, op string) error {
	return d.send(ctx, op, "unrescue", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		return servers.Unrescue(ctx, sc, d.o.server).ExtractErr()
	})
}

func (d *Driver) rescue(ctx context.Context, op string) error {
	return d.send(ctx, op, "rescue", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		// The password of the answer is left alone: the image has no accounts.
		return servers.Rescue(ctx, sc, d.o.server, servers.RescueOpts{RescueImageRef: d.o.image}).Err
	})
}

// rebuild writes the image of iPXE over the root disk. The metadata change with it, at the same moment.
func (d *Driver) rebuild(ctx context.Context, op string, metadata map[string]string) error {
	return d.send(ctx, op, "rebuild", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		return servers.Rebuild(ctx, sc, d.o.server, servers.RebuildOpts{ImageRef: d.o.image, Metadata: metadata}).Err
	})
}

// write keeps a choice in the server's metadata, unless they have it.
func (d *Driver) write(ctx context.Context, op string, s *server, c choice) error {
	m := c.metadata(d.o.way)
	patch, patched := m[patchKey]
	if readChoice(s.Metadata) != c || patched && s.Metadata[patchKey] != patch {
		err := d.send(ctx, op, "change the metadata of",
			func(ctx context.Context, sc *gophercloud.ServiceClient) error {
				return servers.UpdateMetadata(ctx, sc, d.o.server, servers.MetadataOpts(m)).Err
			})
		if err != nil {
			return err
		}
	}
	d.c.kept(d.o.server)
	return nil
}

// chosen is the choice for the next start: that which a rescue began with is used up while it lasts.
func (d *Driver) chosen(s *server) choice {
	c := readChoice(s.Metadata)
	if s.Status != rescued && !c.begun {
		return c
	}
	if later, ok := d.c.awaited(d.o.server); ok {
		return later
	}
	if s.Status == rescued && c.begun {
		c = c.used()
	}
	return c
}

// SetPower asks for an action. Turning on a server that is on, or off one that is off, is no error.
func (d *Driver) SetPower(ctx context.Context, a power.Action) error {
	op := "power " + string(a)
	if !slices.Contains([]power.Action{power.TurnOn, power.TurnOff, power.SoftOff, power.Cycle, power.Reset}, a) {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.c.addr(d.o.server),
			Err: fmt.Errorf("unknown action %q", a)}
	}
	s, err := d.settled(ctx, op, nil)
	if err != nil {
		return err
	}
	switch a {
	case power.TurnOff, power.SoftOff:
		return d.off(ctx, op, s)
	case power.TurnOn:
		if d.between(s) {
			if s, err = d.settled(ctx, op, is(shutoff)); err != nil {
				return err
			}
		}
		if !s.halted() && s.Status != failed {
			return nil
		}
	default:
		if s.halted() {
			return &power.Error{Kind: power.Refused, Op: op, Addr: d.c.addr(d.o.server),
				Err: errors.New("the machine is off"), Hint: "turn it on"}
		}
	}
	return d.boot(ctx, op, s)
}

// off stops the server. A rescued one must be unrescued first: Nova has no other way, and the server's disk boots for
// the moment in between.
func (d *Driver) off(ctx context.Context, op string, s *server) (err error) {
	c := d.chosen(s)
	wasRescued := s.Status == rescued
	if wasRescued {
		if err := d.unrescue(ctx, op); err != nil {
			return err
		}
		if s, err = d.settled(ctx, op, isNot(rescued)); err != nil {
			return err
		}
	} else if d.o.way == ByRescue && c.begun { // it was unrescued by another call, or client
		c = c.used()
	}
	if (wasRescued || d.o.way == ByRescue) && s.Status != failed {
		if err := d.write(ctx, op, s, c); err != nil {
			return err
		}
	}
	if s.Status == shutoff {
		return nil
	}
	return d.stop(ctx, op)
}

func is(status string) func(*server) bool { return func(s *server) bool { return s.Status == status } }
func isNot(status string) func(*server) bool {
	return func(s *server) bool { return s.Status != status }
}

// boot starts or restarts the server by what was chosen.
func (d *Driver) boot(ctx context.Context, op string, s *server) (err error) {
	c := d.chosen(s)
	switch s.Status {
	case rescued:
		err = d.unrescue(ctx, op)
	case failed:
		err = d.reboot(ctx, op)
	default:
		return d.bootBy(ctx, op, s, c)
	}
	if err != nil {
		return err
	}
	if s, err = d.settled(ctx, op, isNot(rescued)); err != nil {
		return err
	}
	switch {
	case s.Status == failed:
		return &power.Error{Kind: power.Refused, Op: op, Addr: d.c.addr(d.o.server),
			Err: fmt.Errorf("it is in ERROR: %s", clean.Line(s.Fault.Message, 200)), Hint: "see openstack server event list " + d.o.server}
	case c.network():
		return d.bootBy(ctx, op, s, c)
	}
	return d.write(ctx, op, s, c.used()) // its disk boots already
}

// bootBy is boot for a server that is ACTIVE or SHUTOFF.
func (d *Driver) bootBy(ctx context.Context, op string, s *server, c choice) (err error) {
	switch {
	case c.network() && d.o.way == ByRescue:
		// Written first, because Nova takes no metadata while it rescues. If the conductor ends in between, the server
		// is off with this choice begun, and it is rescued when it is next turned on.
		c.begun = true
		if err := d.write(ctx, op, s, c); err != nil {
			return err
		}
		return d.rescue(ctx, op)
	case c.network() && d.o.way == ByRebuild && !c.begun:
		return d.rebuilt(ctx, op, s, c)
	case d.o.way != ByMetadata:
		if err := d.write(ctx, op, s, c.used()); err != nil {
			return err
		}
	}
	if s.Status == shutoff {
		err = d.start(ctx, op)
	} else {
		err = d.reboot(ctx, op)
	}
	if err != nil || d.o.way != ByMetadata || c.used() == c {
		return err
	}
	// Nova reads the metadata while it starts the server, and takes no others meanwhile.
	if s, err = d.settled(ctx, op, nil); err != nil {
		return err
	}
	return d.write(ctx, op, s, c.used())
}

// rebuilt has the image of iPXE written onto the server's root disk and booted. A server that was off is off after it:
// Nova starts it for a moment, and stops it again.
func (d *Driver) rebuilt(ctx context.Context, op string, s *server, c choice) error {
	on := s.Status != shutoff
	if on {
		c = c.used()
	} else {
		c.begun = true
	}
	metadata := map[string]string{}
	maps.Copy(metadata, s.Metadata) // a rebuild replaces all
	maps.Copy(metadata, c.metadata(d.o.way))
	if err := d.rebuild(ctx, op, metadata); err != nil || on {
		return err
	}
	s, err := d.settled(ctx, op, is(shutoff))
	if err != nil {
		return err
	}
	return d.bootBy(ctx, op, s, c)
}

// Devices lists what SetBoot accepts.
func (d *Driver) Devices() []power.Device { return []power.Device{power.BootPXE, power.BootDisk} }

// SetBoot keeps the choice in the server's metadata. The mode is kept, too, and changes nothing: the firmware is that
// of the server's image. While Nova rescues the server, it takes no metadata: until the end of that, the choice is kept
// here, and lost with the conductor.
func (d *Driver) SetBoot(ctx context.Context, b power.Boot) error {
	op := "set boot device " + string(b.Device)
	if !slices.Contains(d.Devices(), b.Device) {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.c.addr(d.o.server),
			Err: fmt.Errorf("a server boots from pxe or disk, not from %q", b.Device)}
	}
	s, err := d.settled(ctx, op, nil)
	if err != nil {
		return err
	}
	was := d.chosen(s)
	c := choice{device: b.Device, persistent: b.Persistent, mode: b.Mode}
	if c.mode == "" {
		c.mode = was.mode
	}
	if err := d.possible(ctx, op, s, c); err != nil {
		return err
	}
	if s.Status == rescued {
		d.c.await(d.o.server, c)
		return nil
	}
	return d.write(ctx, op, s, c)
}

// possible looks for what the way to boot from the network needs.
func (d *Driver) possible(ctx context.Context, op string, s *server, c choice) error {
	need := map[string]int{ByRescue: volumeRescue, ByRebuild: volumeRebuild}[d.o.way]
	if !c.network() || !s.volume() || need == 0 {
		return nil
	}
	minor, err := d.c.minor(ctx)
	if err != nil {
		return d.c.explain(ctx, op, d.o.server, err)
	}
	if minor < need {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.c.addr(d.o.server), Err: fmt.Errorf(
			"it boots from a volume, and for %s of such a server Nova needs version 2.%d of its API; this one has 2.%d",
			d.o.way, need, minor), Hint: "use a server that boots from an image, or another openstack_boot"}
	}
	return nil
}

// Boot reads the choice.
func (d *Driver) Boot(ctx context.Context) (power.Boot, error) {
	s, err := d.c.get(ctx, d.o.server)
	if err != nil {
		return power.Boot{}, d.c.explain(ctx, "read boot device", d.o.server, err)
	}
	c := d.chosen(s)
	return power.Boot{Device: c.device, Persistent: c.persistent, Mode: c.mode}, nil
}

// SystemGUIDs is the server's UUID, which Nova gives the guest's firmware, in both byte orders.
func (d *Driver) SystemGUIDs(ctx context.Context) ([]string, error) {
	u, err := uuid.Parse(d.o.server)
	if err != nil {
		return nil, err
	}
	return power.GUIDs(u), ctx.Err()
}
