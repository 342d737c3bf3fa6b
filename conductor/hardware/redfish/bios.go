package redfish

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/bios"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Times of steps that change BIOS settings.
const (
	biosPoll = 10 * time.Second
	biosCall = 2 * time.Minute // of one call
	// biosSettle is how long settings may be neither pending nor made, which they are in POST: large machines take this
	// long for it. Then they are believed to be dropped.
	biosSettle = 15 * time.Minute
	// biosQueue is for how many looks an earlier job is waited for.
	biosQueue = 12
	// biosLimit bounds a step in all.
	biosLimit = time.Hour
)

// BIOS is the bios interface: it reads and changes the settings of a machine's firmware.
type BIOS struct {
	m *Management
	// Poll and Settle are how long to wait between looks, and for settings that are neither pending nor made.
	Poll, Settle time.Duration
	now          func() time.Time
}

// NewBIOS makes the interface, which opens machines as a management interface does.
func NewBIOS(m *Management) *BIOS {
	return &BIOS{m: m, Poll: biosPoll, Settle: biosSettle, now: time.Now}
}

// Steps are Ironic's, and the reading of the settings, which Ironic does without a step.
func (b *BIOS) Steps(*node.Node) []hardware.Step {
	asked := map[node.Phase]int{node.PhaseDeploy: 0, node.PhaseClean: 0, node.PhaseService: 0}
	return []hardware.Step{
		{Interface: "bios", Name: "apply_configuration", Limit: 2 * biosCall, Priority: asked,
			Description: "sets BIOS settings, restarts the machine for it, and compares them afterwards",
			Args:        []hardware.Arg{hardware.SettingsArg}, Check: hardware.CheckSettings,
			Run: b.changing("set BIOS settings", b.apply)},
		{Interface: "bios", Name: "factory_reset", Limit: 2 * biosCall, Priority: asked,
			Description: "resets all BIOS settings, and restarts the machine for it",
			Run:         b.changing("reset BIOS settings", b.reset)},
		{Interface: "bios", Name: "cache_bios_settings", Limit: 2 * biosCall, Abortable: true,
			Description: "reads the BIOS settings into the node's record",
			Priority:    map[node.Phase]int{node.PhaseVerify: 50, node.PhaseClean: 1, node.PhaseService: 0},
			Run: func(ctx context.Context, c hardware.Call) (hardware.Outcome, error) {
				out, err := b.changing("read BIOS settings", func(ctx context.Context, d *Driver, st *bios.State,
					_ hardware.Call, _ *memory) (hardware.Outcome, error) {
					return b.cached(ctx, d, st)
				})(ctx, c)
				if power.KindOf(err) == power.Unsupported { // there is nothing to read
					err = nil
				}
				return out, err
			}},
	}
}

// cached ends a step with the settings in the node's record.
func (b *BIOS) cached(ctx context.Context, d *Driver, st *bios.State) (hardware.Outcome, error) {
	if err := st.Describe(ctx, d.c); err != nil {
		return hardware.Outcome{}, err
	}
	read, at := st.Settings(), b.now().UTC()
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		n.BIOS = hardware.Cached(n.BIOS, read, at)
		return nil
	}}, nil
}

// memory of a step that changes settings, for its next call.
type memory struct {
	// Asked means that the controller took the change; the machine was restarted for it since, or is to be.
	Asked bool
	// Before are settings that a reset changes.
	Before map[string]string `json:",omitempty"`
	// Unmade is since when settings are neither pending nor made.
	Unmade time.Time `json:",omitzero"`
	// Queued is since when the controller takes nothing because of an earlier job.
	Queued time.Time `json:",omitzero"`
}

// changing makes the function of a step whose act is called at each look.
func (b *BIOS) changing(op string, act func(context.Context, *Driver, *bios.State, hardware.Call,
	*memory) (hardware.Outcome, error)) func(context.Context, hardware.Call) (hardware.Outcome, error) {
	return rerun[memory]{m: b.m, op: op, poll: b.Poll, limit: biosLimit, call: biosCall, now: b.now,
		waits: func(mem *memory) bool { return mem.Asked },
		act: func(ctx context.Context, d *Driver, s *controller.System, c hardware.Call,
			mem *memory) (hardware.Outcome, error) {
			st, err := bios.Read(ctx, d.c, s)
			if err != nil {
				return hardware.Outcome{}, err
			}
			out, err := act(ctx, d, st, c, mem)
			if mem.Asked || !controller.HasJob(err) {
				return out, err
			}
			// The settings of an earlier job show before it ends; one that waits for a restart does not end.
			if mem.Queued.IsZero() {
				mem.Queued = b.now()
			}
			if b.now().Sub(mem.Queued) >= biosQueue*b.Poll {
				return out, err
			}
			return hardware.Outcome{After: b.Poll, Detail: "waiting for the end of an earlier job of the controller"}, nil
		}}.run
}

// apply sets settings. The registry is asked before anything is changed.
func (b *BIOS) apply(ctx context.Context, d *Driver, st *bios.State, c hardware.Call,
	mem *memory) (hardware.Outcome, error) {
	list, err := hardware.Settings(c.Args["settings"])
	if err != nil {
		return hardware.Outcome{}, failf("%v", err)
	}
	pending, other := st.Compare(list)
	if mem.Asked {
		return b.await(ctx, d, st, mem, pending, other)
	}
	if err := st.Describe(ctx, d.c); err != nil {
		return hardware.Outcome{}, err
	}
	wanted, err := st.Check(list)
	if err != nil {
		return hardware.Outcome{}, failf("%v", err)
	}
	other = append(other, st.Overruled(list)...)
	if len(pending)+len(other) == 0 {
		return b.cached(ctx, d, st)
	}
	if len(other) > 0 { // else they were asked for, and the conductor died
		change := map[string]any{}
		for _, name := range append(pending, other...) {
			change[name] = wanted[name]
		}
		if err := st.Set(ctx, d.c, change); err != nil {
			return hardware.Outcome{}, err
		}
	}
	mem.Asked = true
	return hardware.Outcome{Restart: true, Detail: "restarting the machine for its BIOS settings"}, nil
}

// await waits until the settings are made.
func (b *BIOS) await(ctx context.Context, d *Driver, st *bios.State, mem *memory,
	pending, other []string) (hardware.Outcome, error) {
	if len(pending)+len(other) == 0 {
		return b.cached(ctx, d, st)
	}
	if len(pending) > 0 {
		mem.Unmade = time.Time{}
		return hardware.Outcome{After: b.Poll, Detail: "waiting for the firmware to make " + names(pending)}, nil
	}
	return b.unmade(mem, other, "the BIOS settings")
}

// unmade waits for settings that are neither pending nor made, until what the controller took is believed to be lost.
func (b *BIOS) unmade(mem *memory, settings []string, took string) (hardware.Outcome, error) {
	if mem.Unmade.IsZero() {
		mem.Unmade = b.now()
	}
	if b.now().Sub(mem.Unmade) < b.Settle {
		return hardware.Outcome{After: b.Poll, Detail: "waiting for the firmware to start with " + names(settings)}, nil
	}
	return hardware.Outcome{}, failf("the controller took %s, and the machine was restarted, but %s"+
		" stayed as before: another setting may forbid the change; look at the machine's setup", took, names(settings))
}

// reset resets all settings.
func (b *BIOS) reset(ctx context.Context, d *Driver, st *bios.State, _ hardware.Call,
	mem *memory) (hardware.Outcome, error) {
	if !mem.Asked {
		if err := st.Describe(ctx, d.c); err != nil {
			return hardware.Outcome{}, err
		}
		if !st.ResetPending { // else it was asked for, and the conductor died
			if err := st.Reset(ctx, d.c); err != nil {
				return hardware.Outcome{}, err
			}
		}
		mem.Asked, mem.Before = true, st.Changed()
		return hardware.Outcome{Restart: true, Detail: "restarting the machine for the reset of its BIOS settings"}, nil
	}
	if st.ResetPending {
		mem.Unmade = time.Time{}
		return hardware.Outcome{After: b.Poll, Detail: "waiting for the firmware to reset its settings"}, nil
	}
	same := st.Same(mem.Before)
	if len(mem.Before) == 0 || len(same) < len(mem.Before) {
		return b.cached(ctx, d, st)
	}
	return b.unmade(mem, same, "the reset of the BIOS settings")
}

// names lists settings for people, at most a few.
func names(all []string) string {
	const few = 10
	if more := len(all) - few; more > 0 {
		return strings.Join(all[:few], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(all, ", ")
}
