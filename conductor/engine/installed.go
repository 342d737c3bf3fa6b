package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// SystemStarted is called when network boot has seen the installed system of a node that waits for its agent, and has
// recorded it.
func (e *Engine) SystemStarted(_ context.Context, nodeUUID string) { e.wake(nodeUUID) }

// insteadOfAgent checks whether the installed system runs on a machine that was to boot the agent. Then waiting for the
// agent is useless, and the system, which may be a previous tenant's, must not go on: the machine is booted again, or
// the job fails, which turns it off. over reports whether the wait is over. It is not where only a person can turn the
// machine off: there the system has run before the boot, too.
func (p *pass) insteadOfAgent(ctx context.Context) (over bool, err error) {
	e, b := p.e, p.n.Boot
	if b.System == nil || !b.EnrolledAt.IsZero() || p.viaAgent() || p.n.Power == string(power.Unknown) {
		return false, nil
	}
	if p.n.Job.Systems >= e.cfg.Restarts {
		reason, err := p.whySystem(ctx)
		if err != nil {
			return false, err
		}
		return true, failf("%s", reason)
	}
	_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		j := n.Job
		why := "the installed system started instead of the agent"
		j.Systems++
		j.Boots = max(0, j.Boots-1) // such boots have a limit of their own
		j.Current().Status, j.Note, j.Attempt, j.Detail = node.StepPending, "", 0, why
		e.closeBoot(n)
		e.mark(n, effects, node.MarkBootAgain, why)
		e.history(n, effects, "boot", "WARNING",
			fmt.Sprintf("the machine is restarted (%d of %d), because %s", j.Systems, e.cfg.Restarts, why), "")
		return e.resume(n, effects)
	})
	return true, err
}

// whySystem says what happened on a machine whose installed system starts again and again, and what to look at.
func (p *pass) whySystem(ctx context.Context) (string, error) {
	b, s := p.n.Boot, p.n.Boot.System
	marks, err := p.e.bootMarks(ctx, p)
	if err != nil {
		return "", err
	}
	times := ""
	if n := p.n.Job.Systems + 1; n > 1 {
		times = fmt.Sprintf(" %d times in a row", n)
	}
	end := "the machine is turned off"
	if p.e.staysOn(p.n) {
		end = "the machine must not be turned off, so that system goes on running"
	}
	firmware := "its firmware had not asked for an address"
	remedy := "check that it boots from the network first, that its switch port forwards as soon as the link is up (spanning tree: edge port), and that DHCP answers it then"
	if b.Media {
		firmware = "the agent did not start from its boot image"
		remedy = "check that the machine takes the boot device that the controller sets for one start (boot mode, Secure Boot, boot order)"
		marks = nil
	}
	for _, m := range marks {
		if m.Name == node.MarkDHCP && !m.At.Before(b.OpenedAt.Truncate(time.Microsecond)) && m.At.Before(s.At) {
			firmware = "its firmware had been answered at " + m.At.Format("15:04:05") + ", but the agent was not loaded"
			remedy = "check that it reaches TFTP and HTTP, and that no other DHCP server answers it"
			break
		}
	}
	return fmt.Sprintf("the installed system started instead of the agent%s (%s at %s); %s, and %s: %s", times, s,
		s.At.Format("15:04:05"), firmware, end, remedy), nil
}
