package engine

import (
	"context"
	"errors"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/engine/watch"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// watch begins to listen for the node's system, which is about to be started: a console says a thing once. With knock,
// which is when it has been started, ports are tried, too. It is called again at each look at the node.
func (e *Engine) watch(ctx context.Context, p *pass, knock bool) error {
	return e.watches.Begin(ctx, p.n.UUID, p.n.Job.ID, start.Of(p.n.Job.Steps).Wanted(), knock)
}

// sign records a sign of life of the system that a job starts, the first one only. watch.ErrNotAwaited says that
// nothing waits for it.
func (e *Engine) sign(ctx context.Context, id, job, kind, detail string) error {
	n, err := e.request(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		j := n.Job
		s := j.Current()
		if s == nil || j.ID != job || j.Failure != "" || j.Sign != nil || !starts(j) {
			return watch.ErrNotAwaited
		}
		now := time.Now().UTC()
		j.Sign = &node.SignOfLife{Kind: kind, Detail: detail, At: now}
		n.DriveWindow = nil // the system has its config drive
		e.mark(n, effects, node.MarkSign, kind)
		words := "the deployed system has given a sign of life: " + kind
		if detail != "" {
			words += " (" + detail + ")"
		}
		e.history(n, effects, "boot", "INFO", words, "")
		return nil
	})
	if err == nil {
		e.wake(n.UUID)
	}
	return err
}

// starts reports whether a job has reached the point from which its system may have been started.
func starts(j *node.Job) bool {
	s := j.Current()
	return !s.InBand && !s.Plug && s.Interface == "deploy" &&
		(s.Name == catalog.StepBootInstance && s.Status == node.StepRunning || s.Name == catalog.StepSwitchNetwork ||
			s.Name == catalog.StepTearDown && j.Note == noteKexec)
}

// PhoneHome handles a call with a one-time token. Node.ErrNotFound means that the token is unknown, was used, or is not
// due.
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
	if errors.Is(err, watch.ErrNotAwaited) {
		return node.ErrNotFound
	}
	return err
}

// DHCPSeen handles a request for an address by an operating system with this MAC. It is cheap when no watch waits for
// it.
func (e *Engine) DHCPSeen(ctx context.Context, mac string) {
	e.watches.DHCPSeen(ctx, mac)
	if e.cfg.Conductors == nil {
		return
	}
	// The watch is at the node's owner, which need not be the conductor that answers on this segment.
	port, err := e.db.PortByMAC(ctx, mac)
	if err != nil {
		return // a stranger
	}
	n, err := e.db.Node(ctx, port.NodeUUID)
	if err != nil || n.Job == nil || e.Mine(n) || !signoflife.Has(start.Of(n.Job.Steps).Wanted(), signoflife.DHCP) {
		return
	}
	if err := e.sign(ctx, n.UUID, n.Job.ID, string(signoflife.DHCP), mac); err != nil &&
		!errors.Is(err, watch.ErrNotAwaited) {
		e.log.Error("a sign of life can't be recorded", "node", n.UUID, "sign", signoflife.DHCP, "err", err)
	}
}
