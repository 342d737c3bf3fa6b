// Package switches brings machines to networks by the VLANs of the switch ports that they are cabled to.
//
// A table (a file, see Table) names the switches with their credentials and owned ports, and the networks. Where a
// machine is cabled comes from its ports' local_link_connection, which inspection fills in by LLDP; which network of
// a tenant a port gets is the name attached to it as a VIF. A port that the table does not give to Ingot is never
// configured: Switch.commands alone makes commands, and refuses others.
//
// What a switch is told is data: files (package dialect) with prompts, commands and patterns, carried out by
// scrapligo over SSH to a known host key. Each switch has one session at a time, and the requests that come meanwhile
// share the next one. A session reads first and changes only what differs, reads back, and then saves: so it may be
// repeated whenever it was cut off, and nothing is reported that the switch does not show. Switches are strangers:
// what they say is bounded in size and time, and what gets into errors is cleaned, without passwords.
package switches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
)

// attempts is how often a session is begun whose connection fails.
const attempts = 3

// pause before another attempt.
const pause = 2 * time.Second

// Switch is one of the table. Safe for concurrent use.
type Switch struct {
	conf *Config
	log  *slog.Logger

	turn    chan struct{} // holds a token while a session is open
	mu      sync.Mutex
	waiting []*order

	pause time.Duration
}

// order is the wish of one caller.
type order struct {
	ports []dialect.Port
	done  chan error // buffered
	err   error      // as long as it is worked on
}

// errHandedBack is for a caller whose session ended with the caller that had begun it.
var errHandedBack = errors.New("the session was given up")

func newSwitch(c *Config, log *slog.Logger) *Switch {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Switch{conf: c, log: log.With("switch", c.name), turn: make(chan struct{}, 1), pause: pause}
}

// fault names the switch in an error.
func (s *Switch) fault(err error) error { return fmt.Errorf("switch %s: %w", s.conf.name, err) }

// Apply has ports configured as they are to be, and returns nil when the switch shows that they are.
func (s *Switch) Apply(ctx context.Context, ports []dialect.Port) error {
	for _, p := range ports {
		if _, err := s.commands(p, dialect.Shown{}); err != nil {
			return s.fault(err) // before a session
		}
	}
	o := &order{ports: ports, done: make(chan error, 1)}
	s.queue(o)
	for {
		select {
		case err := <-o.done:
			if errors.Is(err, errHandedBack) && ctx.Err() == nil {
				s.queue(o)
				continue
			}
			return cmp.Or(ctx.Err(), err)
		case s.turn <- struct{}{}:
			s.serve(ctx)
			<-s.turn
		case <-ctx.Done():
			s.mu.Lock()
			s.waiting = slices.DeleteFunc(s.waiting, func(w *order) bool { return w == o })
			s.mu.Unlock()
			return ctx.Err()
		}
	}
}

func (s *Switch) queue(o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, o)
}

// serve carries out all orders that wait, in one session.
func (s *Switch) serve(ctx context.Context) {
	s.mu.Lock()
	batch := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	if len(batch) == 0 {
		return // another caller's session had it
	}
	var err error
	for attempt := 1; ; attempt++ {
		for _, o := range batch {
			o.err = nil
		}
		begun := time.Now()
		err = s.session(ctx, func(t *session, vlans map[int]bool) error { return s.carryOut(t, vlans, batch) })
		s.log.Debug("session with a switch", "requests", len(batch), "took", time.Since(begun), "err", err)
		var lost connectionError
		if !errors.As(err, &lost) || ctx.Err() != nil || attempt == attempts {
			break
		}
		s.log.Warn("session with a switch failed, and is tried again", "attempt", attempt, "err", err)
		select {
		case <-time.After(s.pause):
		case <-ctx.Done():
		}
	}
	for _, o := range batch {
		switch {
		case ctx.Err() != nil:
			o.done <- errHandedBack
		case o.err != nil:
			o.done <- s.fault(o.err)
		case err != nil:
			o.done <- s.fault(err)
		default:
			o.done <- nil
		}
	}
}

// session logs in, reads which VLANs are active, and calls f.
func (s *Switch) session(ctx context.Context, f func(t *session, vlans map[int]bool) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.conf.Timeout,
		fmt.Errorf("the session takes longer than %v", s.conf.Timeout))
	defer cancel()
	t, err := open(ctx, s.conf)
	if err != nil {
		return err
	}
	defer func() { t.close(err == nil) }()
	shown, err := t.run(s.conf.dialect.VLANs.Command)
	if err != nil {
		return err
	}
	return f(t, s.conf.dialect.ActiveVLANs(shown))
}

// carryOut carries out orders. An error of an order is in it, the one returned is of all others.
func (s *Switch) carryOut(t *session, vlans map[int]bool, batch []*order) error {
	d := s.conf.dialect
	type change struct {
		o    *order
		port dialect.Port
		was  dialect.Shown
	}
	var changes []change
	wanted := map[string]dialect.Port{}
	for _, o := range batch {
		for _, p := range o.ports {
			if i := slices.IndexFunc(p.VLANs(), func(v int) bool { return !vlans[v] }); i >= 0 && o.err == nil {
				o.err = fmt.Errorf("it has no active VLAN %d: make it there, or correct the table", p.VLANs()[i])
			}
			if other, twice := wanted[p.Interface]; twice && other.String() != p.String() && o.err == nil {
				o.err = fmt.Errorf("port %s is wanted %s and %s at the same time", p.Interface, other, p)
			}
			wanted[p.Interface] = p
		}
		for _, p := range o.ports {
			if o.err != nil {
				break
			}
			was, err := s.read(t, p)
			if lost := new(connectionError); errors.As(err, lost) {
				return err
			}
			if err != nil || !was.Is(p) { // a LAG that is not there yet is refused
				changes = append(changes, change{o, p, was})
			}
		}
	}
	if len(changes) > 0 {
		if err := t.level("configuration"); err != nil {
			return err
		}
		for _, c := range changes {
			if c.o.err != nil {
				continue
			}
			lines, err := s.commands(c.port, c.was)
			for i := 0; i < len(lines) && err == nil; i++ {
				_, err = t.run(lines[i])
			}
			if lost := new(connectionError); errors.As(err, lost) {
				return err
			}
			c.o.err = err
		}
		if err := t.level("privilege-exec"); err != nil {
			return err
		}
	}
	for _, c := range changes {
		if c.o.err != nil {
			continue
		}
		is, err := s.read(t, c.port)
		switch lost := new(connectionError); {
		case errors.As(err, lost):
			return err
		case err != nil:
			c.o.err = fmt.Errorf("read port %s back: %w", c.port.Interface, err)
		case !is.Is(c.port):
			c.o.err = fmt.Errorf("port %s was to be %s, but the switch shows it %s: look at its log", c.port.Interface,
				c.port, is)
		default:
			s.log.Info("a switch port was changed", "port", c.port.Interface, "is", c.port.String(), "was",
				c.was.String())
		}
	}
	if !s.conf.Save || !slices.ContainsFunc(batch, func(o *order) bool { return o.err == nil }) {
		return nil
	}
	// Also without a change: an earlier session may have been cut off before it saved.
	said, err := t.run(d.Save.Command)
	if err == nil && !d.Saved(said) {
		err = &refusedError{d.Save.Command, t.safe(said)}
	}
	if err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	return nil
}

// read asks for a port's configuration.
func (s *Switch) read(t *session, p dialect.Port) (dialect.Shown, error) {
	command, err := s.conf.dialect.ReadCommand(p.Interface)
	if err != nil {
		return dialect.Shown{}, err
	}
	shown, err := t.run(command)
	if err != nil {
		return dialect.Shown{}, err
	}
	h, err := s.conf.dialect.Parse(p.Interface, shown)
	if err != nil {
		return dialect.Shown{}, fmt.Errorf("what it shows of port %s can't be read: %w", p.Interface, err)
	}
	return h, nil
}

// commands is the only maker of commands that change something, and the only place that decides whether a port may be
// touched.
func (s *Switch) commands(p dialect.Port, was dialect.Shown) ([]string, error) {
	if !s.conf.owned[p.Interface] {
		return nil, fmt.Errorf("port %s is not one that Ingot may configure: add it to ports or channels of the switch"+
			" in the table, or correct the node's port", dialect.Plain(p.Interface))
	}
	return s.conf.dialect.Commands(p, was)
}
