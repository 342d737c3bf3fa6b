// Package watch looks for signs of life of systems that are being started: it reads consoles, tries ports, and receives
// the addresses of machines that use DHCP.
//
// It reports each sign, and the receiver decides whether a job waits for it. Each watch ends with its job.
package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// Watches holds the nodes whose systems are being started, and the activities that watch them. It is in memory only: a
// conductor that takes a node over watches anew.
type Watches struct {
	store   store
	drivers drivers
	found   func(ctx context.Context, nodeUUID, job, kind, detail string) error
	inside  []netip.Prefix // where an address from a config drive may be tried
	guard   *dial.Guard    // special addresses are never tried
	log     *slog.Logger

	mu   sync.Mutex
	of   map[string]*one // by node UUID
	work sync.WaitGroup
}

// one is one node's.
type one struct {
	job    string
	dhcp   bool
	reads  bool                        // a console
	knocks bool                        // tries ports
	begin  func(func(context.Context)) // something that watches, until stop
	stop   context.CancelFunc
}

// store is the part of the store that watch needs.
type store interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	PortByMAC(ctx context.Context, mac string) (*node.Port, error)
	Leases(ctx context.Context) ([]node.Lease, error)
}

// drivers opens consoles.
type drivers interface {
	Open(n *node.Node) (power.Driver, error)
}

// ErrNotAwaited is the error of found when no job waits for the sign.
var ErrNotAwaited = errors.New("nothing waits for this")

// New makes watches, none of which has begun. Each sign, the first time and perhaps again, is passed to found.
// Addresses from a config drive are tried inside of networks only, and no address that g refuses; a g of nil exempts
// nothing.
func New(s store, d drivers, found func(ctx context.Context, nodeUUID, job, kind, detail string) error,
	networks []netip.Prefix, g *dial.Guard, log *slog.Logger) *Watches {
	return &Watches{store: s, drivers: d, found: found, inside: networks, guard: g, log: log, of: map[string]*one{}}
}

// Wait waits until all that watches has ended, which it does with the contexts that it was begun with.
func (ws *Watches) Wait() { ws.work.Wait() }

// Begin begins to listen for the node's system, which is about to be started: a console says a thing once. With knock,
// which is when it has been started, ports are tried, too. It is called again at each look at the node.
func (ws *Watches) Begin(ctx context.Context, id, job string, signs []signoflife.Sign, knock bool) error {
	if len(signs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.of[id]
	if w != nil && w.job != job {
		w.stop()
		w = nil
	}
	if w == nil {
		w = &one{job: job, dhcp: signoflife.Has(signs, signoflife.DHCP),
			reads: signoflife.Has(signs, signoflife.Console)}
		wctx, stop := context.WithCancel(ctx)
		w.begin, w.stop = func(f func(context.Context)) { ws.work.Go(func() { f(wctx) }) }, stop
		ws.of[id] = w
		w.begin(func(ctx context.Context) { ws.untilOver(ctx, stop, id, job) })
		for _, s := range signs {
			if s.Kind == signoflife.Console {
				w.begin(func(ctx context.Context) { ws.watchConsole(ctx, id, job, s) })
			}
		}
	}
	if !knock || w.knocks {
		return nil
	}
	w.knocks = true
	for _, s := range signs {
		if s.Kind == signoflife.Port {
			w.begin(func(ctx context.Context) { ws.watchPort(ctx, id, job, s) })
		}
	}
	return nil
}

// Reads reports whether a node's console is read, which says a thing once.
func (ws *Watches) Reads(id string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.of[id]
	return w != nil && w.reads
}

// End ends watching a node.
func (ws *Watches) End(id string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.of[id]; w != nil {
		w.stop()
	}
	delete(ws.of, id)
}

// untilOver ends the watching of a node whose job came to its end in another way.
func (ws *Watches) untilOver(ctx context.Context, stop context.CancelFunc, id, job string) {
	defer stop()
	tick := time.NewTicker(watchPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := ws.store.Node(ctx, id)
		if errors.Is(err, node.ErrNotFound) || err == nil &&
			(n.Job == nil || n.Job.ID != job || n.Job.Failure != "" || n.Job.Sign != nil) {
			ws.mu.Lock()
			if w := ws.of[id]; w != nil && w.job == job {
				delete(ws.of, id)
			}
			ws.mu.Unlock()
			return
		}
	}
}

// watchPoll is how often it is looked whether watching still makes sense, and how soon a console that broke off is
// tried again.
const watchPoll = 5 * time.Second

func (ws *Watches) watchPort(ctx context.Context, id, job string, s signoflife.Sign) {
	at, err := signoflife.WaitPort(ctx, ws.guard.Dial, s.Port,
		func(ctx context.Context) []netip.Addr { return ws.addresses(ctx, id) })
	if err != nil {
		return
	}
	ws.noteSign(ctx, id, job, s.String(), at.String())
}

// addresses returns where the node's system may be reached: the addresses that were leased to it, the one that its
// agent's newest session came from, and those in its config drive that are inside of the configured networks. Without
// that limit a user who may edit a node could have the conductor try any port of any host. None is a loopback,
// link-local or other special address, or the conductor's own.
func (ws *Watches) addresses(ctx context.Context, id string) []netip.Addr {
	n, err := ws.store.Node(ctx, id)
	if err != nil {
		ws.log.Debug("look for the addresses of a deployed system", "node", id, "err", err)
		return nil
	}
	out := signoflife.Addresses(n.InstanceInfo["configdrive"], ws.inside)
	if n.Boot != nil {
		if a, err := netip.ParseAddr(n.Boot.Address); err == nil {
			out = append(out, a)
		}
	}
	list, err := ws.store.Leases(ctx)
	if err != nil {
		ws.log.Debug("look for the addresses of a deployed system", "node", id, "err", err)
	}
	now := time.Now()
	for _, l := range list {
		if a, err := netip.ParseAddr(l.IP); err == nil && l.NodeUUID == id && l.ExpiresAt.After(now) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.DeleteFunc(slices.Compact(out),
		func(a netip.Addr) bool { return ws.guard.Check(netip.AddrPortFrom(a, 0)) != nil })
}

// watchConsole reads the node's console until the text is there. It has a session of its own with the controller, so
// that everything else goes on beside it.
func (ws *Watches) watchConsole(ctx context.Context, id, job string, s signoflife.Sign) {
	logged := ""
	pause := time.NewTimer(0)
	defer pause.Stop()
	f := signoflife.NewFinder(s.Text)
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		err := ws.readConsole(ctx, id, f)
		switch {
		case errors.Is(err, signoflife.ErrFound):
			ws.noteSign(ctx, id, job, s.String(), "")
			return
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != logged:
			logged = err.Error()
			ws.log.Warn("the console can't be read for a sign of life, it is tried again", "node", id, "err", err)
		}
		pause.Reset(watchPoll)
	}
}

func (ws *Watches) readConsole(ctx context.Context, id string, f *signoflife.Finder) error {
	n, err := ws.store.Node(ctx, id)
	if err != nil {
		return err
	}
	d, err := ws.drivers.Open(n)
	if err != nil {
		return err
	}
	defer func() {
		if err := d.Close(); err != nil {
			ws.log.Debug("close driver", "node", id, "err", err)
		}
	}()
	w, ok := power.As[power.ConsoleWatcher](d)
	if !ok {
		return fmt.Errorf("the node's driver can't read its console")
	}
	return w.WatchConsole(ctx, f)
}

// noteSign records a sign that the conductor found by itself.
func (ws *Watches) noteSign(ctx context.Context, id, job, kind, detail string) {
	err := ws.found(ctx, id, job, kind, detail)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, ErrNotAwaited):
		ws.End(id)
	default:
		ws.log.Error("a sign of life can't be recorded", "node", id, "sign", kind, "err", err)
	}
}

// DHCPSeen handles a request for an address by an operating system with this MAC. It is cheap when no watch waits for
// it.
func (ws *Watches) DHCPSeen(ctx context.Context, mac string) {
	wanted := false
	ws.mu.Lock()
	for _, w := range ws.of {
		wanted = wanted || w.dhcp
	}
	ws.mu.Unlock()
	if !wanted {
		return
	}
	port, err := ws.store.PortByMAC(ctx, mac)
	if err != nil {
		return // a stranger
	}
	ws.mu.Lock()
	w := ws.of[port.NodeUUID]
	job := ""
	if w != nil && w.dhcp {
		job = w.job
	}
	ws.mu.Unlock()
	if job != "" {
		ws.noteSign(ctx, port.NodeUUID, job, string(signoflife.DHCP), mac)
	}
}
