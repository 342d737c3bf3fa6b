package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// powerSync is the memory between two rounds of reading every machine's power. A round reads a few columns of the nodes
// that are due from the store and keeps of each the data that opens its controller, by the version it was read at, so
// that a machine whose power is as recorded costs no more than the query.
type powerSync struct {
	mu     sync.Mutex
	known  map[string]*node.Node // what Open and Mine need of a node; Version says how old it is
	bad    map[string]int        // failed reads in a row
	pushed map[string]int        // times in a row that the power was set back
}

func newPowerSync() *powerSync {
	return &powerSync{known: map[string]*node.Node{}, bad: map[string]int{}, pushed: map[string]int{}}
}

// forget drops the data of nodes that are not watched any more.
func (s *powerSync) forget(watched []node.Idle) {
	ids := make(map[string]bool, len(watched))
	for _, n := range watched {
		ids[n.UUID] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.known {
		if !ids[id] {
			delete(s.known, id)
			delete(s.bad, id) // not pushed: a node whose power is being set back is not watched meanwhile
		}
	}
}

// drop drops the data of a node that may be another conductor's now: it is read anew before its controller is asked.
func (s *powerSync) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, id)
	delete(s.bad, id)
}

// syncPower is one round. It ends when every machine has been asked, or is in other hands.
func (e *Engine) syncPower(ctx context.Context) error {
	begun := time.Now()
	due, err := e.db.Idle(ctx)
	if err != nil {
		return err
	}
	e.sync.forget(due)
	work := make(chan node.Idle)
	var wg sync.WaitGroup
	for range min(e.cfg.Workers, len(due)) {
		wg.Go(func() {
			for n := range work {
				e.syncOne(ctx, n)
			}
		})
	}
feed:
	for _, n := range due {
		select {
		case work <- n:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	wg.Wait()
	if took := time.Since(begun); took > 3*e.cfg.PowerSync {
		e.log.Warn("reading the power of all machines takes longer than three times the interval for it", "took", took,
			"nodes", len(due))
	}
	return nil
}

// handle returns the data that opens the controller of a node.
func (e *Engine) handle(ctx context.Context, r node.Idle) (*node.Node, error) {
	s := e.sync
	s.mu.Lock()
	h := s.known[r.UUID]
	s.mu.Unlock()
	if h != nil && h.Version == r.Version {
		return h, nil
	}
	n, err := e.db.Node(ctx, r.UUID)
	if err != nil {
		return nil, err
	}
	h = &node.Node{UUID: n.UUID, Name: n.Name, Version: n.Version, Driver: n.Driver, DriverInfo: n.DriverInfo,
		Interfaces: n.Interfaces, DisablePowerOff: n.DisablePowerOff, Conductor: n.Conductor,
		ConductorGroup: n.ConductorGroup, Boot: n.Boot, MediaInserted: n.MediaInserted,
		ControllerRows: n.ControllerRows}
	s.mu.Lock()
	s.known[r.UUID] = h
	s.mu.Unlock()
	return h, nil
}

// syncOne reads the power of a node on which nothing is under way and corrects the record, or the power if the
// configuration says so.
func (e *Engine) syncOne(ctx context.Context, r node.Idle) {
	log := e.log.With("node", r.UUID)
	// It is not handed over meanwhile, nor acted on: who acts on it learns more than this check.
	if !e.queue.Take(r.UUID) {
		return
	}
	defer e.queue.Done(r.UUID, never)
	if r.Conductor != "" && r.Conductor != e.cfg.Hostname && e.conductors.Lives(r.Conductor) {
		return
	}
	h, err := e.handle(ctx, r)
	if err != nil {
		log.Debug("read power", "err", err)
		return
	}
	if e.Here(h) != nil || e.drivers.Interface(h, "power") == program.AgentPower {
		return
	}
	st, err := power.Unknown, error(nil)
	var rows []string
	d, err := e.drivers.Open(h)
	if err == nil {
		// The current user of the controller learns more about the machine than this check.
		me := "power sync of " + r.UUID
		if !e.bmcs.TryNow(d.Key(), me) {
			d.Close()
			return
		}
		// The lock outlasts the write, so that the stored state is not older than another reader's.
		defer e.bmcs.Release(me)
		cctx, cancel := context.WithTimeout(ctx, e.cfg.CallTimeout)
		if h.DriverInfo[nextPassword] != nil { // a change of it ended early
			if serr := e.settlePassword(cctx, h, nil, ""); serr != nil {
				log.Warn("find out which password of the controller is right", "err", serr)
			}
			cancel()
			d.Close()
			return // the node is another now
		}
		st, err = d.Power(cctx)
		rows = power.RowsOf(d)
		if err == nil && imageLeft(h) {
			e.ejectLeft(cctx, r.UUID, d)
		}
		cancel()
		if cerr := d.Close(); cerr != nil {
			log.Debug("close driver", "err", cerr)
		}
	}
	if ctx.Err() != nil || lapsed(err) {
		return
	}
	bad := e.sync.count(r.UUID, err != nil)
	if err != nil && (bad < e.cfg.PowerSyncTries || r.Fault == node.FaultPower) {
		log.Debug("power can't be read", "err", err, "times", bad)
		return
	}
	if err == nil && string(st) == r.Power && r.Fault != node.FaultPower && slices.Equal(rows, h.ControllerRows) {
		e.sync.settled(r.UUID)
		return
	}
	n, cerr := e.change(ctx, r.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if n.Job != nil || n.Maintenance || n.Reservation != "" {
			return errMoved // the next round comes
		}
		if err != nil {
			e.powerFault(n, effects, fmt.Sprintf("power could not be read %d times in a row: %v", bad, err))
			n.Power = string(power.Unknown)
			return nil
		}
		n.ControllerRows = rows // a node whose driver was changed, or firmware
		return e.powerSeen(n, effects, st)
	})
	switch {
	case cerr != nil:
		log.Debug("record power", "err", cerr)
	case n.Job != nil:
		e.wake(n.UUID)
	}
}

// powerFault marks a node whose power is not in hand. The operator's maintenance is left alone: a fault is another
// thing.
func (e *Engine) powerFault(n *node.Node, effects *node.SideEffects, why string) {
	n.Fault = node.FaultPower
	n.SetLastError("Power failure: "+sentence(why), node.FaultPower)
	e.history(n, effects, "monitoring", "ERROR", why, "")
}

// powerSeen handles a reading of the power.
func (e *Engine) powerSeen(n *node.Node, effects *node.SideEffects, st power.State) error {
	if n.Fault == node.FaultPower {
		n.Fault = n.StandingFault()
		n.TakeBackError(node.FaultPower)
		e.history(n, effects, "monitoring", "INFO", "power can be read again", "")
	}
	if n.Power == string(st) {
		return nil
	}
	if st == power.Off && (inRescue(n) || n.Boot != nil && n.Boot.Kept) {
		// A user does not want it warm any more, or the machine lost its power: no reason to set it back.
		e.letGo(n, effects, "its machine is off, which was not asked for here")
		e.recordPower(n, effects, st)
		return nil
	}
	known := func(s string) bool { return s == string(power.On) || s == string(power.Off) }
	if e.cfg.ForcePower && known(n.Power) && known(string(st)) && (n.Power == string(power.On) || !e.staysOn(n)) {
		if times := e.sync.push(n.UUID); times <= e.cfg.PowerSyncTries {
			e.history(n, effects, "power", "WARNING",
				fmt.Sprintf("power is %q instead of %q, which was not asked for here; it is set back (%d of %d)", st,
					n.Power, times, e.cfg.PowerSyncTries), "")
			e.beginPower(n, effects, n.Power, nil, "power sync")
			return nil
		}
		why := fmt.Sprintf("power was set back to %q %d times and is %q again: from now on that is taken to be wanted",
			n.Power, e.cfg.PowerSyncTries, st)
		n.SetLastError(sentence(why), "")
		e.history(n, effects, "power", "ERROR", why, "")
		e.recordPower(n, effects, st)
		return nil
	}
	e.history(n, effects, "power", "WARNING",
		fmt.Sprintf("power was %q and is now %q, which was not asked for here", n.Power, st), "")
	e.recordPower(n, effects, st)
	return nil
}

// count counts failed reads in a row.
func (s *powerSync) count(id string, failed bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !failed {
		delete(s.bad, id)
		return 0
	}
	s.bad[id]++
	return s.bad[id]
}

func (s *powerSync) push(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushed[id]++
	return s.pushed[id]
}

func (s *powerSync) settled(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pushed, id)
}
