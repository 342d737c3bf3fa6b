package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// watches are the nodes whose systems are being started, and what is done to notice. It is in memory only: whoever goes on with a node
// watches anew.
type watches struct {
	mu   sync.Mutex
	of   map[string]*watch // by node UUID
	work sync.WaitGroup
}

// watch is one node's.
type watch struct {
	job    string
	dhcp   bool
	knocks bool                        // tries ports
	begin  func(func(context.Context)) // something that watches, until stop
	stop   context.CancelFunc
}

// watch begins to listen for the node's system, which is about to be started: a console says a thing once. With knock, which is when it has
// been started, ports are tried, too. It is called again at each look at the node.
func (e *Engine) watch(ctx context.Context, p *pass, knock bool) error {
	a := start.Of(p.n.Job.Steps)
	if len(a.Signs) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	signs, id, job := a.Wanted(), p.n.UUID, p.n.Job.ID
	e.watches.mu.Lock()
	defer e.watches.mu.Unlock()
	w := e.watches.of[id]
	if w != nil && w.job != job {
		w.stop()
		w = nil
	}
	if w == nil {
		w = &watch{job: job, dhcp: signoflife.Has(signs, signoflife.DHCP)}
		wctx, stop := context.WithCancel(ctx)
		w.begin, w.stop = func(f func(context.Context)) { e.watches.work.Go(func() { f(wctx) }) }, stop
		e.watches.of[id] = w
		w.begin(func(ctx context.Context) { e.untilOver(ctx, stop, id, job) })
		for _, s := range signs {
			if s.Kind == signoflife.Console {
				w.begin(func(ctx context.Context) { e.watchConsole(ctx, id, job, s) })
			}
		}
	}
	if !knock || w.knocks {
		return nil
	}
	w.knocks = true
	for _, s := range signs {
		if s.Kind == signoflife.Port {
			w.begin(func(ctx context.Context) { e.watchPort(ctx, id, job, s) })
		}
	}
	return nil
}

// unwatch ends watching a node.
func (e *Engine) unwatch(id string) {
	e.watches.mu.Lock()
	defer e.watches.mu.Unlock()
	if w := e.watches.of[id]; w != nil {
		w.stop()
	}
	delete(e.watches.of, id)
}

// untilOver ends the watching of a node whose job came to its end in another way.
func (e *Engine) untilOver(ctx context.Context, stop context.CancelFunc, id, job string) {
	defer stop()
	tick := time.NewTicker(watchPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := e.db.Node(ctx, id)
		if errors.Is(err, node.ErrNotFound) || err == nil && (n.Job == nil || n.Job.ID != job || n.Job.Failure != "" || n.Job.Sign != nil) {
			e.watches.mu.Lock()
			if w := e.watches.of[id]; w != nil && w.job == job {
				delete(e.watches.of, id)
			}
			e.watches.mu.Unlock()
			return
		}
	}
}

// watchPoll is how often it is looked whether watching still makes sense, and how soon a console that broke off is tried again.
const watchPoll = 5 * time.Second

func (e *Engine) watchPort(ctx context.Context, id, job string, s signoflife.Sign) {
	at, err := signoflife.WaitPort(ctx, s.Port, func(ctx context.Context) []netip.Addr { return e.addresses(ctx, id) })
	if err != nil {
		return
	}
	e.noteSign(ctx, id, job, s.String(), at.String())
}

// addresses are where the node's system may be reached: those that its config drive gives it, and those that were leased to it.
func (e *Engine) addresses(ctx context.Context, id string) []netip.Addr {
	n, err := e.db.Node(ctx, id)
	if err != nil {
		e.log.Debug("look for the addresses of a deployed system", "node", id, "err", err)
		return nil
	}
	out := signoflife.Addresses(n.InstanceInfo["configdrive"])
	list, err := e.db.Leases(ctx)
	if err != nil {
		e.log.Debug("look for the addresses of a deployed system", "node", id, "err", err)
		return out
	}
	now := time.Now()
	for _, l := range list {
		if a, err := netip.ParseAddr(l.IP); err == nil && l.NodeUUID == id && l.ExpiresAt.After(now) && signoflife.Reachable(a) {
			out = append(out, a)
		}
	}
	return out
}

// watchConsole reads the node's console until the text is there. It has a session of its own with the controller, so that everything else
// goes on beside it.
func (e *Engine) watchConsole(ctx context.Context, id, job string, s signoflife.Sign) {
	told := ""
	pause := time.NewTimer(0)
	defer pause.Stop()
	f := signoflife.NewFinder(s.Text)
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		err := e.readConsole(ctx, id, f)
		switch {
		case errors.Is(err, signoflife.ErrFound):
			e.noteSign(ctx, id, job, s.String(), "")
			return
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != told:
			told = err.Error()
			e.log.Warn("the console can't be read for a sign of life, it is tried again", "node", id, "err", err)
		}
		pause.Reset(watchPoll)
	}
}

func (e *Engine) readConsole(ctx context.Context, id string, f *signoflife.Finder) error {
	n, err := e.db.Node(ctx, id)
	if err != nil {
		return err
	}
	d, err := e.drivers.Open(n)
	if err != nil {
		return err
	}
	defer func() {
		if err := d.Close(); err != nil {
			e.log.Debug("close driver", "node", id, "err", err)
		}
	}()
	w, ok := d.(power.ConsoleWatcher)
	if !ok {
		return fmt.Errorf("the node's driver can't read its console")
	}
	return w.WatchConsole(ctx, f)
}

// noteSign records a sign that the conductor found by itself.
func (e *Engine) noteSign(ctx context.Context, id, job, kind, detail string) {
	err := e.sign(ctx, id, job, kind, detail)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errNoSuchSign):
		e.unwatch(id)
	default:
		e.log.Error("a sign of life can't be recorded", "node", id, "sign", kind, "err", err)
	}
}

var errNoSuchSign = errors.New("nothing waits for this")

// sign records a sign of life of the system that a job starts, the first one only. errNoSuchSign says that nothing waits for it.
func (e *Engine) sign(ctx context.Context, id, job, kind, detail string) error {
	n, err := e.change(ctx, id, func(n *node.Node, also *node.Also) error {
		j := n.Job
		s := j.Current()
		if s == nil || j.ID != job || j.Failure != "" || j.Sign != nil || !starts(j) {
			return errNoSuchSign
		}
		now := time.Now().UTC()
		j.Sign = &node.SignOfLife{Kind: kind, Detail: detail, At: now}
		e.mark(n, also, node.MarkSign, kind)
		words := "the deployed system has given a sign of life: " + kind
		if detail != "" {
			words += " (" + detail + ")"
		}
		e.history(n, also, "boot", "INFO", words, "")
		return nil
	})
	if err == nil {
		e.wake(n.UUID)
	}
	return err
}

// starts tells whether a job is where its system may have been started already.
func starts(j *node.Job) bool {
	s := j.Current()
	return !s.InBand && !s.Plug && s.Interface == "deploy" &&
		(s.Name == catalog.StepBootInstance && s.Status == node.StepRunning || s.Name == catalog.StepSwitchNetwork || s.Name == catalog.StepTearDown && j.Note == noteKexec)
}

// PhoneHome takes in a call with a one-time token. Node.ErrNotFound says that the token is nobody's, or was used, or is not due.
func (e *Engine) PhoneHome(ctx context.Context, token, from string) error {
	id := signoflife.NodeOf(token)
	if id == "" {
		return node.ErrNotFound
	}
	n, err := e.db.Node(ctx, id)
	if err != nil {
		return err
	}
	j := n.Job
	if j == nil || !signoflife.Good(e.cfg.PhoneHomeKey, token, n.UUID, j.ID) || !start.PhonesHome(j.Steps) {
		return node.ErrNotFound
	}
	err = e.sign(ctx, n.UUID, j.ID, string(signoflife.PhoneHome), from)
	if errors.Is(err, errNoSuchSign) {
		return node.ErrNotFound
	}
	return err
}

// DHCPSeen takes in that an operating system with this MAC asks for an address. It is cheap when nobody waits for that.
func (e *Engine) DHCPSeen(ctx context.Context, mac string) {
	wanted := false
	e.watches.mu.Lock()
	for _, w := range e.watches.of {
		wanted = wanted || w.dhcp
	}
	e.watches.mu.Unlock()
	if !wanted {
		return
	}
	port, err := e.db.PortByMAC(ctx, mac)
	if err != nil {
		return // a stranger
	}
	e.watches.mu.Lock()
	w := e.watches.of[port.NodeUUID]
	job := ""
	if w != nil && w.dhcp {
		job = w.job
	}
	e.watches.mu.Unlock()
	if job != "" {
		e.noteSign(ctx, port.NodeUUID, job, string(signoflife.DHCP), mac)
	}
}
