package redfish

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/firmware"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/task"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Times of firmware updates.
const (
	firmwarePoll = 10 * time.Second
	firmwareCall = 5 * time.Minute // of one call, which may read a file to compare its checksum
	// firmwareSettle is how long a new version may take to be shown after the task is over and the machine or the
	// controller was restarted. An update's wait and the node's firmware_update_unresponsive_bmc_wait come before it.
	firmwareSettle = 15 * time.Minute
	// firmwareSilence is how long a controller may take to answer again.
	firmwareSilence = 30 * time.Minute
	firmwareLimit   = 2 * time.Hour // of a step in all, as in Ironic
)

// Firmware is the firmware interface: it reads the versions of a machine's firmware and updates it by files that the
// controller fetches.
type Firmware struct {
	m     *Management
	files http.RoundTripper
	// Poll, Settle and Silence are how long to wait between looks, for a version to be shown, and for a controller that
	// does not answer.
	Poll, Settle, Silence time.Duration
	now                   func() time.Time
}

// NewFirmware makes the interface, which opens machines as a management interface does. files reads files to compare
// their checksums; addresses of files are users'.
func NewFirmware(m *Management, files http.RoundTripper) *Firmware {
	return &Firmware{m: m, files: files, Poll: firmwarePoll, Settle: firmwareSettle, Silence: firmwareSilence,
		now: time.Now}
}

// Steps are Ironic's, and the reading of the versions, which Ironic does without a step.
func (f *Firmware) Steps(*node.Node) []hardware.Step {
	return []hardware.Step{
		{Interface: "firmware", Name: "update", Limit: 2 * firmwareCall,
			Priority:    map[node.Phase]int{node.PhaseDeploy: 0, node.PhaseClean: 0, node.PhaseService: 0},
			Description: "updates firmware by files that the controller fetches, and compares the versions",
			Args: []hardware.Arg{{Name: "settings", Type: "array", Required: true,
				Description: "A list of dicts with firmware components to be updated: component and url; wait (seconds), checksum (SHA-256 or SHA-512) and version (which it has afterwards) as needed"}},
			Check: func(_ *node.Node, args map[string]any) error {
				_, err := firmware.Updates(args["settings"])
				return err
			},
			Run: rerun[updating]{m: f.m, op: "update firmware", poll: f.Poll / 2, limit: firmwareLimit,
				call: firmwareCall, now: f.now,
				passing: []power.Kind{power.Config, power.Refused}, waits: f.waits, act: f.act}.run},
		{Interface: "firmware", Name: "cache_firmware_components", Limit: 2 * firmwareCall, Abortable: true,
			Priority:    map[node.Phase]int{node.PhaseVerify: 49, node.PhaseClean: 1, node.PhaseService: 0},
			Description: "reads the versions of firmware into the node's record",
			Run: rerun[struct{}]{m: f.m, op: "read firmware versions", limit: firmwareLimit, call: firmwareCall,
				now: f.now, act: func(ctx context.Context, d *Driver, s *controller.System, _ hardware.Call,
					_ *struct{}) (hardware.Outcome, error) {
					all, err := firmware.Read(ctx, d.c, s)
					return f.cached(all), err
				}}.run},
	}
}

// cached ends a step with the versions in the node's record.
func (f *Firmware) cached(all []node.FirmwareComponent) hardware.Outcome {
	at := f.now().UTC()
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		n.Firmware = firmware.Cached(n.Firmware, all, at)
		return nil
	}}
}

// Phases of the update of a component.
const (
	asking    = "asking"    // the controller is asked next, or was and the answer got lost
	following = "following" // the task is under way
	comparing = "comparing" // the task is over, or unknown: the version shows what became of it
)

// updating is the memory of a step.
type updating struct {
	Index int // of the component
	Phase string
	// Before is the version before the update; Known are the tasks that the controller showed then.
	Before string   `json:",omitempty"`
	Known  []string `json:",omitempty"`
	Ref    task.Ref
	// Unknown means that the controller lost the task, or never gave one.
	Unknown bool `json:",omitempty"`
	// Restarted means that the machine was restarted for the component, or is to be.
	Restarted bool `json:",omitempty"`
	// Since is the beginning of the phase, or the restart in it; Silent since when calls fail.
	Since  time.Time `json:",omitzero"`
	Silent time.Time `json:",omitzero"`
}

// waits reports whether a failing call is followed by another one: when an update was begun, and the controller does
// not answer as it should for not too long.
func (f *Firmware) waits(mem *updating) bool {
	if mem.Silent.IsZero() {
		mem.Silent = f.now()
	}
	return (mem.Phase != "" || mem.Index > 0) && f.now().Sub(mem.Silent) < f.Silence
}

// soon is when a step is called again at once, after its memory was stored.
const soon = time.Millisecond

func (f *Firmware) act(ctx context.Context, d *Driver, s *controller.System, c hardware.Call,
	mem *updating) (hardware.Outcome, error) {
	list, err := firmware.Updates(c.Args["settings"])
	if err != nil || mem.Index >= len(list) {
		return hardware.Outcome{}, failf("the step can't be continued: %v", err)
	}
	all, err := firmware.Read(ctx, d.c, s)
	if err != nil {
		return hardware.Outcome{}, err
	}
	u := componentUpdate{Update: list[mem.Index], f: f, d: d, s: s, mem: mem, last: mem.Index == len(list)-1, all: all,
		settle: f.settle(list[mem.Index], c.Node), log: d.log.With("node", c.Node.UUID)}
	if i := slices.IndexFunc(all, func(o node.FirmwareComponent) bool { return o.Component == u.Component }); i >= 0 {
		u.now = all[i].CurrentVersion
	}
	out, err := hardware.Outcome{}, error(nil)
	switch mem.Phase {
	case "":
		if mem.Index == 0 {
			err = f.check(ctx, d, list, all)
		}
		if err == nil {
			out, err = u.begin(ctx)
		}
	case asking:
		out, err = u.ask(ctx)
	case following:
		out, err = u.follow(ctx)
	default:
		out, err = u.compare()
	}
	if err == nil {
		mem.Silent = time.Time{}
	}
	return out, err
}

// settle is how long the new version may take to be shown.
func (f *Firmware) settle(u firmware.Update, n *node.Node) time.Duration {
	if seconds, is := n.DriverInfo[unresponsiveWait].(float64); is && u.Wait == 0 && seconds > 0 {
		return min(time.Duration(seconds)*time.Second, firmwareLimit)
	}
	if u.Wait > 0 {
		return u.Wait
	}
	return f.Settle
}

// unresponsiveWait is Ironic's key of driver_info.
const unresponsiveWait = "firmware_update_unresponsive_bmc_wait"

// check refuses updates that can't be made, before anything is done.
func (f *Firmware) check(ctx context.Context, d *Driver, list []firmware.Update, all []node.FirmwareComponent) error {
	var has []string
	for _, o := range all {
		has = append(has, o.Component)
	}
	service, err := firmware.Open(ctx, d.c)
	if err != nil {
		return err
	}
	for _, u := range list {
		if !slices.Contains(has, u.Component) {
			return failf("the controller shows no firmware of %s, but of %s: nothing was changed", u.Component,
				strings.Join(has, ", "))
		}
		if err := service.Reads(d.c, u); err != nil {
			return err
		}
		if u.Checksum != "" {
			if err := firmware.Compare(ctx, f.files, u); err != nil {
				return failf("%v; nothing was changed", err)
			}
		}
	}
	return nil
}

// componentUpdate is the update of one component in one call.
type componentUpdate struct {
	firmware.Update
	f      *Firmware
	d      *Driver
	s      *controller.System
	mem    *updating
	last   bool
	all    []node.FirmwareComponent
	log    *slog.Logger
	now    string // version; "": not shown
	settle time.Duration
}

// begin prepares the request. It is sent by the next call, so that a step that dies then knows that it may have been.
func (u *componentUpdate) begin(ctx context.Context) (hardware.Outcome, error) {
	if u.Version != "" && firmware.Same(u.s.Quirks, u.now, u.Version) {
		u.log.Info("firmware has the version already", "component", u.Component, "version", u.now)
		return u.next(), nil
	}
	known, err := task.Known(ctx, u.d.c, u.s)
	if err != nil {
		return hardware.Outcome{}, err
	}
	u.mem.Known = known
	u.mem.Before = u.now
	u.enter(asking)
	return u.wait(soon, "asking the controller to update %s", u.Component), nil
}

func (u *componentUpdate) enter(phase string) { u.mem.Phase, u.mem.Since = phase, u.f.now() }

func (u *componentUpdate) wait(after time.Duration, format string, args ...any) hardware.Outcome {
	return hardware.Outcome{After: after, Detail: fmt.Sprintf(format, args...)}
}

// poll is how long to wait for the next look: less at the beginning of a phase.
func (u *componentUpdate) poll() time.Duration {
	if u.f.now().Sub(u.mem.Since) < 3*u.f.Poll {
		return u.f.Poll / 5
	}
	return u.f.Poll
}

// ask sends the request, unless a call before this one did.
func (u *componentUpdate) ask(ctx context.Context) (hardware.Outcome, error) {
	if u.now != "" && u.now != u.mem.Before {
		u.enter(comparing)
		return u.compare()
	}
	service, err := firmware.Open(ctx, u.d.c)
	if err != nil {
		return hardware.Outcome{}, err
	}
	ref, sent, err := task.Begun(ctx, u.d.c, u.s, u.mem.Known, service.Target())
	if err != nil {
		return hardware.Outcome{}, err
	}
	later := true
	if !sent {
		reply, err := service.Request(ctx, u.d.c, u.Update)
		if err != nil {
			err = u.d.c.Error("ask for the update of "+u.Component, err)
			if kind := power.KindOf(err); kind != power.Unreachable && kind != power.Busy {
				return hardware.Outcome{}, failf("%v", err) // else it is asked again
			}
			return hardware.Outcome{}, err
		}
		ref, later = task.Of(reply)
	}
	u.mem.Ref, u.mem.Known = ref, nil
	u.log.Info("firmware update was begun", "component", u.Component, "version", u.now)
	u.enter(following)
	if !later {
		u.enter(comparing)
	}
	return u.wait(u.poll(), "the controller updates %s", u.Component), nil
}

// follow waits for the task.
func (u *componentUpdate) follow(ctx context.Context) (hardware.Outcome, error) {
	st, err := task.Poll(ctx, u.d.c, u.s, u.mem.Ref)
	if err != nil {
		return hardware.Outcome{}, err
	}
	elapsed := u.f.now().Sub(u.mem.Since)
	switch {
	case st.Failed:
		return hardware.Outcome{}, failf("the controller did not update %s, which has version %s: %s", u.Component,
			shownVersion(u.now), cmp.Or(st.Message, "it gives no reason"))
	case st.Over, st.Gone:
		u.mem.Unknown = st.Gone
		u.enter(comparing)
		return u.compare()
	case u.Component == firmware.BMC || u.mem.Restarted:
	// A BIOS is written in a start of the machine; some network cards, too. Some tasks run until then.
	case st.Waits && (u.Component == firmware.BIOS || elapsed > u.settle/30), elapsed > u.settle:
		return u.restart(), nil
	}
	return u.wait(u.poll(), "the controller updates %s: %d %% %s", u.Component, st.Percent, st.Message), nil
}

func (u *componentUpdate) restart() hardware.Outcome {
	u.mem.Restarted, u.mem.Since = true, u.f.now()
	return hardware.Outcome{Restart: true, Detail: "restarting the machine for its firmware of " + u.Component}
}

// compare looks at the version after the task.
func (u *componentUpdate) compare() (hardware.Outcome, error) {
	elapsed := u.f.now().Sub(u.mem.Since)
	changed := u.now != "" && u.now != u.mem.Before
	switch {
	case changed && u.Version != "" && !firmware.Same(u.s.Quirks, u.now, u.Version) && elapsed >= u.settle:
		return hardware.Outcome{}, failf("%s has version %s now, not %s: the file at the URL is another one", u.Component,
			u.now, u.Version)
	case changed && (u.Version == "" || firmware.Same(u.s.Quirks, u.now, u.Version)):
		msg := "firmware was updated"
		if firmware.Older(u.s.Quirks, u.now, u.mem.Before) {
			msg = "firmware was replaced by an older one"
		}
		u.log.Info(msg, "component", u.Component, "version", u.now, "before", u.mem.Before)
		return u.next(), nil
	// The task may end before the start that brings the firmware into use. One that is lost may still run.
	case !u.mem.Restarted && u.Component != firmware.BMC && (!u.mem.Unknown || elapsed > u.settle/10):
		return u.restart(), nil
	case elapsed < u.settle:
		return u.wait(u.poll(), "waiting for the new version of %s", u.Component), nil
	}
	said := "the controller reported success"
	if u.mem.Unknown {
		said = "the controller took the update and reported nothing more"
	}
	return hardware.Outcome{}, failf("%s of %s, but its version is still %s: the file may have this version (name it in"+
		" the setting, and such an update is skipped), or the controller declined it; look at its log", said, u.Component,
		shownVersion(u.now))
}

func shownVersion(v string) string { return cmp.Or(v, "unknown") }

// next goes on with the next component, or ends the step. After an update of the controller the machine is restarted
// before the next one: some network cards are updated only then.
func (u *componentUpdate) next() hardware.Outcome {
	if u.last {
		return u.f.cached(u.all)
	}
	restart := u.Component == firmware.BMC && u.mem.Phase != ""
	*u.mem = updating{Index: u.mem.Index + 1}
	if restart {
		return hardware.Outcome{Restart: true, Detail: "restarting the machine before its next update"}
	}
	return u.wait(soon, "%s is done", u.Component)
}
