package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// agentBMC is a machine whose agent is all there is to restart it with; its firmware boots from the network first.
type agentBMC struct{ bmc }

var errByHand = &power.Error{Kind: power.Unsupported, Op: "do that", Err: errors.New("no controller"),
	Hint: "do it by hand"}

func (b *agentBMC) Power(ctx context.Context) (power.State, error) {
	leave, err := b.enter(ctx, "read power state")
	if err != nil {
		return "", err
	}
	defer leave()
	if b.m.agent != nil {
		return power.On, nil
	}
	return power.Unknown, nil
}

func (b *agentBMC) SetPower(ctx context.Context, a power.Action) error {
	if st, err := b.Power(ctx); err != nil || a != power.Reset || st != power.On {
		return errors.Join(err, errByHand)
	}
	leave, err := b.enter(ctx, "reset")
	if err != nil {
		return err
	}
	defer leave()
	b.m.asks = append(b.m.asks, "agent reset")
	b.m.turnOff()
	b.m.boot.Device = power.BootPXE
	b.m.turnOn()
	return nil
}

func (b *agentBMC) SetBoot(context.Context, power.Boot) error { return errByHand }

// TestAgentPower: a machine without a controller is brought up by a person the first time; what follows its agent does,
// as long as it is there.
func TestAgentPower(t *testing.T) {
	w := newWorld(t)
	w.start(nil)
	m := w.add("n1")
	w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"power": program.AgentPower} })
	eng := w.current().eng
	for _, target := range []string{"power on", "power off", "soft power off"} {
		var invalid *InvalidError
		if err := eng.SetPower(t.Context(), m.id, target, 0, ""); !errors.As(err, &invalid) ||
			!strings.Contains(err.Error(), "ask for rebooting") {
			t.Errorf("%s = %v", target, err)
		}
	}
	w.want(m, Request{Verb: node.Manage}, node.Manageable)
	w.want(m, Request{
		Verb: node.Clean, CleanSteps: steps("erase_devices_metadata", "reboot", "erase_devices_metadata")},
		node.CleanWait)
	n := w.until(m, "the call for a person", func(n *node.Node) bool { return n.Job.Note == "wait" })
	h, err := w.store.History(t.Context(), m.id, 0)
	if err != nil ||
		!slices.ContainsFunc(h, func(e node.HistoryEntry) bool { return strings.Contains(e.Event, "by hand") }) {
		t.Errorf("the history does not call for a person (%v); the node waits with %q", err, n.Job.Detail)
	}
	m.mu.Lock()
	m.boot.Device = power.BootPXE
	m.turnOn()
	m.mu.Unlock()
	w.untilState(m, node.Manageable)
	m.mu.Lock()
	if m.pxeBoots != 2 || len(m.plansTaken) != 2 || !slices.Equal(m.asks, []string{"agent reset"}) {
		t.Errorf("%d boots of the agent, %d plans, asked for %v", m.pxeBoots, len(m.plansTaken), m.asks)
	}
	m.mu.Unlock()
	// Without an agent a restart is refused with a sentence, and nothing hangs.
	m.pull()
	if err := eng.SetPower(t.Context(), m.id, "rebooting", 0, ""); err != nil {
		t.Fatal(err)
	}
	wantError(t, w.until(m, "the end", func(n *node.Node) bool { return n.Job == nil }), "by hand")
}
