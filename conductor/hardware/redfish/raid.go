package redfish

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/raid"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/task"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Times of steps that change volumes.
const (
	raidPoll = 10 * time.Second
	raidCall = 2 * time.Minute // of one call
	// raidSettle is how long a volume may take to show, or to be gone, after the controller says that the work is over.
	raidSettle = 5 * time.Minute
	// raidPatience is how long work may wait that is to be done at once; then the machine is restarted for it.
	raidPatience = 3 * time.Minute
	// raidLimit bounds a step in all: a volume may take a restart of the machine, of up to 15 minutes.
	raidLimit = 3 * time.Hour
	// raidSoon is the time between two calls of which the second asks for what the first remembers.
	raidSoon = time.Millisecond
)

// RAID is the raid interface: it makes and deletes the volumes of RAID controllers.
type RAID struct {
	hardware.GenericRAID
	m *Management
	// Poll, Settle and Patience are how long to wait between looks, for volumes to show, and for work to begin.
	Poll, Settle, Patience time.Duration
	now                    func() time.Time
}

// NewRAID makes the interface, which opens machines as a management interface does.
func NewRAID(m *Management) *RAID {
	return &RAID{m: m, Poll: raidPoll, Settle: raidSettle, Patience: raidPatience, now: time.Now}
}

// Check returns an error for a configuration that no controller can make, before anything is asked.
func (r *RAID) Check(n *node.Node, config map[string]any) error {
	if err := r.GenericRAID.Check(n, config); err != nil || len(config) == 0 {
		return err
	}
	if err := raid.Check(config); err != nil {
		return hardware.Invalidf("%v", err)
	}
	return nil
}

// Steps are Ironic's.
func (r *RAID) Steps(*node.Node) []hardware.Step {
	asked := func(phases ...node.Phase) map[node.Phase]int {
		all := map[node.Phase]int{}
		for _, p := range phases {
			all[p] = 0
		}
		return all
	}
	return []hardware.Step{
		{Interface: "raid", Name: "create_configuration", Limit: 2 * raidCall,
			Description: "makes the volumes of target_raid_config on the machine's RAID controllers",
			Priority:    asked(node.PhaseClean, node.PhaseService), Args: hardware.VolumeArgs,
			Run: r.changing("make volumes", func(c hardware.Call) map[string]any { return c.Node.TargetRAID })},
		{Interface: "raid", Name: "apply_configuration", Limit: 2 * raidCall,
			Description: "makes the volumes of raid_config, which becomes the node's target_raid_config",
			Priority:    asked(node.PhaseDeploy, node.PhaseService),
			Args:        append([]hardware.Arg{hardware.RAIDConfigArg}, hardware.VolumeArgs...),
			Check: func(n *node.Node, args map[string]any) error {
				config, _ := args["raid_config"].(map[string]any)
				if len(config) == 0 {
					return hardware.Invalidf("raid_config has no logical disks")
				}
				return r.Check(n, config)
			},
			Run: r.changing("make volumes", func(c hardware.Call) map[string]any {
				config, _ := c.Args["raid_config"].(map[string]any)
				return config
			})},
		{Interface: "raid", Name: "delete_configuration", Limit: 2 * raidCall,
			Description: "deletes all volumes of the machine's RAID controllers",
			Priority:    asked(node.PhaseDeploy, node.PhaseClean, node.PhaseService),
			Run:         r.changing("delete volumes", nil)},
	}
}

// raidMemory is the memory of these steps.
type raidMemory struct {
	// Planned means that Ops are what is to be done, and that nothing else is; the first At of them are done.
	Planned bool
	Ops     []raidOp
	At      int
	raidWork
	// On means that the machine was turned on for it.
	On bool
}

// raidOp makes a volume, or deletes one.
type raidOp struct {
	Order  *raid.Order `json:",omitempty"`
	Delete string      `json:",omitempty"` // path
	// Made is the path of the volume that was made.
	Made string `json:",omitempty"`
}

// raidWork is how far the present one of the Ops is.
type raidWork struct {
	// Begun means that it is next: Volumes are those that there were before, Known the tasks.
	Begun          bool
	Volumes, Known []string `json:",omitempty"`
	// Sent means that the controller took it, at that time, and works on it at Ref.
	Sent time.Time `json:",omitzero"`
	Ref  task.Ref
	// Restarted means that the machine was restarted for it, Over when it was seen to be over.
	Restarted bool
	Over      time.Time `json:",omitzero"`
}

// what says what an operation does, for people.
func (o raidOp) what() string {
	if o.Order == nil {
		return "delete the volume " + o.Delete
	}
	return fmt.Sprintf("make a volume of type %s on %d disks", o.Order.Type, len(o.Order.Drives))
}

// changing makes the function of a step. config returns the configuration to make; nil: all volumes are to be deleted.
func (r *RAID) changing(op string, config func(hardware.Call) map[string]any) func(context.Context,
	hardware.Call) (hardware.Outcome, error) {
	return rerun[raidMemory]{m: r.m, op: op, poll: r.Poll, limit: raidLimit, call: raidCall, now: r.now,
		waits: func(mem *raidMemory) bool { return mem.Begun || mem.On },
		act: func(ctx context.Context, d *Driver, s *controller.System, c hardware.Call,
			mem *raidMemory) (hardware.Outcome, error) {
			var target map[string]any
			if config != nil {
				target = config(c)
				if err := r.Check(c.Node, target); err != nil {
					return hardware.Outcome{}, failf("%v", err)
				}
				if len(target) == 0 {
					return hardware.Outcome{}, failf("the node has no target_raid_config: set it before")
				}
			}
			if !mem.Planned && !mem.On && isPower(s, power.Off) {
				mem.On = true // most controllers show and change volumes only then
				return hardware.Outcome{Restart: true, Detail: "turning the machine on for its RAID controller"}, nil
			}
			all, err := raid.Read(ctx, d.c, s)
			if err != nil {
				return hardware.Outcome{}, err
			}
			if !mem.Planned {
				if mem.Ops, err = plan(all, target, c.Args); err != nil {
					return hardware.Outcome{}, failf("%v; nothing was changed", err)
				}
				mem.Planned = true
			}
			return r.advance(ctx, d, s, all, mem, target)
		}}.run
}

// plan lists the changes for a configuration; nil: all volumes are deleted.
func plan(all []*raid.Controller, config map[string]any, args map[string]any) (ops []raidOp, err error) {
	flag := func(name string, otherwise bool) bool {
		if v, ok := args[name].(bool); ok {
			return v
		}
		return otherwise
	}
	var gone []string
	if config == nil || flag("delete_existing", false) {
		for _, c := range all {
			for _, v := range c.Volumes {
				if v.Type != "" {
					gone = append(gone, v.Path)
					ops = append(ops, raidOp{Delete: v.Path})
				}
			}
		}
	}
	if config == nil {
		return ops, nil
	}
	orders, err := raid.Plan(all, config, gone, flag("create_root_volume", true), flag("create_nonroot_volumes", true))
	if err != nil {
		return nil, err
	}
	if len(orders) == 0 {
		return nil, fmt.Errorf("no volume of the RAID configuration is to be made")
	}
	for _, o := range orders {
		ops = append(ops, raidOp{Order: &o})
	}
	return ops, nil
}

// advance does the changes one after the other: controllers take one for each restart of the machine.
func (r *RAID) advance(ctx context.Context, d *Driver, s *controller.System, all []*raid.Controller,
	mem *raidMemory, target map[string]any) (hardware.Outcome, error) {
	for mem.At < len(mem.Ops) && mem.done(all) {
		mem.At++
		mem.raidWork = raidWork{}
	}
	if mem.At == len(mem.Ops) {
		return r.finish(all, mem, target), nil
	}
	op := mem.Ops[mem.At]
	switch {
	case !mem.Begun:
		var err error
		if mem.Known, err = task.Known(ctx, d.c, s); err != nil {
			return hardware.Outcome{}, err
		}
		for _, c := range all {
			for _, v := range c.Volumes {
				mem.Volumes = append(mem.Volumes, v.Path)
			}
		}
		mem.Begun = true
		return hardware.Outcome{After: raidSoon, Detail: "asking the controller to " + op.what()}, nil
	case mem.Sent.IsZero():
		return r.submit(ctx, d, s, all, mem, op)
	}
	return r.follow(ctx, d, s, all, mem, op)
}

// done reports whether the present change is made. A volume that was made is one that was not there before.
func (mem *raidMemory) done(all []*raid.Controller) bool {
	op := &mem.Ops[mem.At]
	for _, c := range all {
		for _, v := range c.Volumes {
			switch {
			case op.Order == nil && v.Path == op.Delete:
				return false
			case op.Order != nil && mem.Begun && !slices.Contains(mem.Volumes, v.Path) && op.Order.Matches(v):
				op.Made = v.Path
				return true
			}
		}
	}
	return op.Order == nil
}

// atRestart reports whether the controller of a change makes it at a restart of the machine only, and which apply time
// is to be asked for; "" is none.
func (o raidOp) applyTime(all []*raid.Controller) string {
	for _, c := range all {
		if o.Order != nil && c.Collection != o.Order.Collection || o.Order == nil &&
			!slices.ContainsFunc(c.Volumes, func(v raid.Volume) bool { return v.Path == o.Delete }) {
			continue
		}
		for _, at := range []string{applyNow, applyAtReset} {
			if slices.Contains(c.ApplyTimes, at) {
				return at
			}
		}
	}
	return ""
}

// Values of Redfish's OperationApplyTime.
const (
	applyNow     = "Immediate"
	applyAtReset = "OnReset"
)

// submit asks for a change, unless a call that did not live to remember it did so.
func (r *RAID) submit(ctx context.Context, d *Driver, s *controller.System, all []*raid.Controller, mem *raidMemory,
	op raidOp) (hardware.Outcome, error) {
	method, path, body := http.MethodDelete, op.Delete, map[string]any{}
	if op.Order != nil {
		method, path, body = http.MethodPost, op.Order.Collection, op.Order.Body()
	}
	if at := op.applyTime(all); at != "" {
		body["@Redfish.OperationApplyTime"] = at
	}
	ref, begun, err := task.Begun(ctx, d.c, s, mem.Known, path)
	if err != nil {
		return hardware.Outcome{}, err
	}
	if !begun {
		var send any = body
		if len(body) == 0 {
			send = nil
		}
		reply, err := d.c.Submit(ctx, method, path, send)
		if err = d.c.Error(op.what(), err); power.KindOf(err) == power.Unsupported {
			return hardware.Outcome{}, failf("%v", err)
		} else if err != nil {
			return hardware.Outcome{}, err
		}
		ref, _ = task.Of(reply)
	}
	mem.Sent, mem.Ref = r.now(), ref
	return hardware.Outcome{After: raidSoon, Detail: "waiting for the controller to " + op.what()}, nil
}

// follow waits until a change is made, and restarts the machine for it where that is needed.
func (r *RAID) follow(ctx context.Context, d *Driver, s *controller.System, all []*raid.Controller, mem *raidMemory,
	op raidOp) (hardware.Outcome, error) {
	st, err := task.Poll(ctx, d.c, s, mem.Ref)
	if err != nil {
		return hardware.Outcome{}, err
	}
	atReset := op.applyTime(all) == applyAtReset
	late := r.now().Sub(mem.Sent) > r.Patience
	switch {
	case st.Failed:
		return hardware.Outcome{}, failf("the controller did not %s: %s", op.what(), st.Message)
	case !mem.Restarted && (st.Waits && (atReset || late) || st.Gone && atReset):
		mem.Restarted = true
		return hardware.Outcome{Restart: true, Detail: "restarting the machine to " + op.what()}, nil
	case !st.Over && !st.Gone:
		return hardware.Outcome{After: r.Poll,
			Detail: fmt.Sprintf("waiting for the controller to %s (%d %%)", op.what(), st.Percent)}, nil
	case mem.Over.IsZero():
		mem.Over = r.now()
	}
	if r.now().Sub(mem.Over) < r.Settle {
		return hardware.Outcome{After: r.Poll, Detail: "waiting for the controller to show the change: " + op.what()}, nil
	}
	return hardware.Outcome{}, failf("the controller took the request to %s, and does not show that it is done: look at"+
		" its log", op.what())
}

// finish ends a step with the volumes in the node's record.
func (r *RAID) finish(all []*raid.Controller, mem *raidMemory, target map[string]any) hardware.Outcome {
	root := ""
	for _, op := range mem.Ops {
		if op.Order != nil && op.Order.Root {
			root = op.Made
		}
	}
	disks := []any{}
	var hint map[string]any
	var level string
	var size int64
	for _, c := range all {
		for _, v := range c.Volumes {
			if v.Level() == "" {
				continue
			}
			disk := map[string]any{"id": v.ID, "name": v.Name, "controller": c.ID, "size_gb": v.Bytes >> 30,
				"raid_level": v.Level()}
			if v.Path == root {
				disk["is_root_volume"] = true
				level, size = v.Level(), v.Bytes>>30
				if v.WWN != "" {
					hint = map[string]any{"wwn": v.WWN}
					disk["root_device_hint"] = hint
				}
			}
			disks = append(disks, disk)
		}
	}
	at := r.now()
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		if target != nil {
			n.TargetRAID = target
		}
		n.SetRAID(disks, hint, at)
		if root == "" {
			return nil
		}
		n.Properties = node.With(n.Properties, "local_gb", any(size))
		list, err := n.Capabilities()
		if err == nil {
			list.Set("raid_level", level).Store(n)
		}
		return err
	}}
}
