package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// errLineUp means that another node uses the controller; this one is woken when its turn comes.
var errLineUp = errors.New("the controller is in use")

// driver opens the node's power driver with its controller locked for as long as this look lasts.
func (p *pass) driver() (power.Driver, error) {
	if p.d != nil {
		return p.d, nil
	}
	d, err := p.e.drivers.Open(p.n)
	if err != nil {
		return nil, err
	}
	id := p.n.UUID
	if !p.e.bmcs.Try(d.Key(), id, func() { p.e.wake(id) }) {
		if err := d.Close(); err != nil {
			p.e.log.Debug("close driver", "node", id, "err", err)
		}
		return nil, errLineUp
	}
	p.d = d
	return d, nil
}

func (p *pass) close() {
	if p.d == nil {
		return
	}
	if err := p.d.Close(); err != nil {
		p.e.log.Debug("close driver", "node", p.n.UUID, "err", err)
	}
	p.d = nil
}

// slowCall is how long a controller may take to tell something before it is noted on the time line.
const slowCall = time.Second

// read is call for frequent read-only requests: only slow ones are noted on the time line.
func (p *pass) read(ctx context.Context, what string, f func(context.Context, power.Driver) error) error {
	return p.callNoting(ctx, slowCall, "read "+what, f)
}

// call makes one call to the controller within the limit for it. A controller that takes longer is one that does not
// answer.
func (p *pass) call(ctx context.Context, op string, f func(context.Context, power.Driver) error) error {
	return p.callNoting(ctx, 0, op, f)
}

// callNoting makes a call, and notes one that takes so long or longer.
func (p *pass) callNoting(ctx context.Context, least time.Duration, op string,
	f func(context.Context, power.Driver) error) error {
	d, err := p.driver()
	if err != nil {
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, p.e.cfg.CallTimeout)
	defer cancel()
	began := time.Now()
	err = f(cctx, d)
	if took := time.Since(began); p.n.Job != nil && took >= least {
		p.edit(func(n *node.Node, effects *node.SideEffects) error {
			p.e.mark(n, effects, node.MarkBMC, node.CallDetail(op, took))
			return nil
		})
	}
	if err == nil || ctx.Err() != nil || power.KindOf(err) != "" || lapsed(err) {
		return err
	}
	if cctx.Err() != nil {
		return &power.Error{Kind: power.Unreachable, Op: op, Addr: d.Key(),
			Err:  fmt.Errorf("no answer in %s", p.e.cfg.CallTimeout),
			Hint: "check the controller's address and that it is reachable"}
	}
	// What a driver does not sort is passed on as the controller's refusal: trying for ever would be worse.
	return &power.Error{Kind: power.Refused, Op: op, Addr: d.Key(), Err: err}
}

// power reads the power state and corrects the record.
func (p *pass) power(ctx context.Context) (power.State, error) {
	var st power.State
	err := p.read(ctx, "power state", func(ctx context.Context, d power.Driver) (err error) {
		st, err = d.Power(ctx)
		return err
	})
	if err != nil {
		return st, err
	}
	if p.n.Power != string(st) {
		p.edit(func(n *node.Node, effects *node.SideEffects) error {
			p.e.recordPower(n, effects, st)
			return nil
		})
	}
	return st, nil
}

// recordPower stores the power state that the controller reports.
func (e *Engine) recordPower(n *node.Node, effects *node.SideEffects, st power.State) {
	if n.Power == string(st) {
		return
	}
	n.Power = string(st)
	switch st {
	case power.On:
		e.mark(n, effects, node.MarkOn, "")
	case power.Off:
		e.mark(n, effects, node.MarkOff, "")
	}
}

// drivePower brings the power to where an action leads, one act at a time: the verdict is done when it is there. Notes
// are "<name>" before the first request and "<name> asked" after it. A request that had no effect is repeated twice
// within the limit.
func (p *pass) drivePower(ctx context.Context, name string, action power.Action, limit time.Duration) (verdict, error) {
	e, want := p.e, power.Off
	mark, event := node.MarkOffAsked, "power off requested"
	if action == power.TurnOn {
		want, mark, event = power.On, node.MarkOnAsked, "power on requested"
	}
	st, err := p.power(ctx)
	if err != nil {
		return verdict{}, err
	}
	if st == want {
		return stepDone, p.clearBackoff(ctx)
	}
	if note := name + " asked"; p.n.Job.Note != note {
		err := p.note(ctx, note, func(n *node.Node, effects *node.SideEffects) error {
			n.DriveWindow = nil
			if want == power.On {
				e.openDrive(n)
			}
			e.mark(n, effects, mark, string(action))
			e.history(n, effects, "power", "INFO", event+" ("+string(n.Job.Phase)+")", n.Job.Requester)
			return nil
		})
		if err != nil {
			return verdict{}, err
		}
		e.forgetAsked(p.n.UUID)
	}
	now, over := e.askAgain(p.n.UUID, limit)
	if over {
		return verdict{}, errPowerStuck(want, st, limit)
	}
	if now {
		err := p.setPower(ctx, action)
		if power.KindOf(err) == power.Unsupported && st == power.Unknown {
			// No controller: an operator does it, and the conductor can't know when it is done.
			e.log.Warn("the node has no controller to act through", "node", p.n.UUID, "err", err)
			_, err := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
				n.Job.Detail = err.Error()
				e.history(n, effects, "power", "WARNING", err.Error(), "")
				return nil
			})
			return stepDone, err
		}
		if err != nil {
			return verdict{}, err
		}
		// Many controllers have done it by now.
		if st, err = p.power(ctx); err != nil {
			return verdict{}, err
		}
		if st == want {
			return stepDone, p.clearBackoff(ctx)
		}
	}
	return again(e.cfg.PowerPoll), p.clearBackoff(ctx)
}

// driveThen is drivePower within the usual limit, after which the step goes on at another note.
func (p *pass) driveThen(ctx context.Context, name string, action power.Action, next string,
	more ...func(*node.Node, *node.SideEffects) error) (verdict, error) {
	v, err := p.drivePower(ctx, name, action, p.e.cfg.PowerTimeout)
	if err != nil || !v.done {
		return v, err
	}
	return again(0), p.note(ctx, next, more...)
}

// setPower asks the controller for a power action.
func (p *pass) setPower(ctx context.Context, action power.Action) error {
	op := "power " + string(action)
	if action == power.Reset {
		op = "reset"
	}
	return p.call(ctx, op, func(ctx context.Context, d power.Driver) error { return d.SetPower(ctx, action) })
}

// clearBackoff forgets failed calls once one has worked.
func (p *pass) clearBackoff(ctx context.Context) error {
	if p.n.Job.Attempt == 0 {
		return nil
	}
	_, err := p.change(ctx, func(n *node.Node, _ *node.SideEffects) error {
		n.Job.Attempt, n.Job.NotBefore, n.Job.Detail = 0, time.Time{}, ""
		return nil
	})
	return err
}

// ask holds when this conductor requested a power action, first and last. A conductor that took the node over requests
// it again and waits anew, since it can't know whether the earlier request got through.
type ask struct{ first, last time.Time }

// askAgain reports whether a power action is to be requested now, the first time or because a third of the limit has
// passed without effect, and whether the limit is over.
func (e *Engine) askAgain(id string, limit time.Duration) (now, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a, asked := e.asked[id]
	switch {
	case !asked:
		a.first = time.Now()
	case time.Since(a.first) > limit:
		return false, true
	case time.Since(a.last) < limit/3:
		return false, false
	}
	a.last = time.Now()
	e.asked[id] = a
	return true, false
}

// mayReset notes that this conductor is about to restart a machine and has not asked for it yet; resets reports whether
// that is so.
func (e *Engine) mayReset(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[id] = ask{}
}

func (e *Engine) resets(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.asked[id]
	return ok
}

func (e *Engine) forgetAsked(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.asked, id)
}

// errPowerStuck says that a machine does not carry out its controller's request.
func errPowerStuck(want, is power.State, limit time.Duration) error {
	state := map[power.State]string{power.On: "on", power.Off: "off", power.Failed: "in state error",
		power.Unknown: "in an unknown state"}
	hint := "look at the machine itself: power supplies, front panel, the controller's event log"
	if want == power.Off {
		hint = "turn it off by hand, and look at the controller's event log"
	}
	return failf("the controller took the request to turn the machine %s, but says that it stays %s after %s; %s",
		state[want], state[is], limit, hint)
}

func (p *pass) bootMode() string {
	mode, _ := p.e.site().BootMode(p.n)
	return mode
}

// viaAgent reports whether the machine has no controller but its agent.
func (p *pass) viaAgent() bool { return p.e.drivers.Interface(p.n, "power") == program.AgentPower }

// setBoot chooses the boot device. A machine without a controller has a person for that.
func (p *pass) setBoot(ctx context.Context, b power.Boot) error {
	err := p.call(ctx, "set boot device "+string(b.Device),
		func(ctx context.Context, d power.Driver) error { return d.SetBoot(ctx, b) })
	if power.KindOf(err) == power.Unsupported && b.Device == power.BootHTTP && b.Address == "" {
		p.e.log.Info("the controller can't have the machine boot by HTTP: by PXE then", "node", p.n.UUID, "err", err)
		b.Device = power.BootPXE
		return p.setBoot(ctx, b)
	}
	if power.KindOf(err) == power.Unsupported && (p.n.Power == string(power.Unknown) || p.viaAgent()) {
		p.e.log.Warn("the node has no controller to choose the boot device with", "node", p.n.UUID, "err", err)
		return nil
	}
	return err
}

func (e *Engine) attach(ctx context.Context, n *node.Node, to NetworkName) error {
	if e.network == nil {
		return nil
	}
	if err := e.check(); err != nil {
		return err
	}
	err := e.network.Attach(ctx, n, to)
	var down *ServiceError
	switch {
	case err == nil || ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &down):
		return &ServiceError{fmt.Errorf("connect the machine to the %s network: %w", to, down.Err)}
	}
	return failf("connect the machine to the %s network: %v", to, err)
}

// disconnect takes the machine's networks away after a ramdisk has ended. What was to be done is done: a failure is
// noted, and the network sees to the rest, at the latest when the machine is next connected.
func (e *Engine) disconnect(ctx context.Context, n *node.Node) error {
	err := e.attach(ctx, n, NoNetwork)
	if err == nil || ctx.Err() != nil || lapsed(err) {
		return err
	}
	e.log.Warn("the ramdisk's network is not taken away from the machine yet", "node", n.UUID, "err", err)
	return nil
}
