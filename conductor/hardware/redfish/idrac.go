package redfish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/task"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Times of Dell's steps.
const (
	idracPoll = 10 * time.Second
	idracCall = 2 * time.Minute
	// idracSettle is how long a controller that does not say when it restarted last may take to begin, and how long a
	// queue may take to get empty.
	idracSettle = 2 * time.Minute
	// idracLimit bounds a step: sushy looks 96 times, ten seconds apart.
	idracLimit = 16 * time.Minute
	jobWait    = 500 * time.Millisecond
	// mostJobs are looked at.
	mostJobs = 50
)

// IDRAC is the management interface of Dell's controllers: Management, with the steps that only they have.
type IDRAC struct {
	*Management
	// Poll is how long to wait between looks, Settle how long the controller may take to begin with what it took.
	Poll, Settle time.Duration
	now          func() time.Time
}

// NewIDRAC makes the interface.
func NewIDRAC(m *Management) *IDRAC { return &IDRAC{m, idracPoll, idracSettle, time.Now} }

// idracAct is a part of a step.
type idracAct func(context.Context, *Driver, *controller.System, *idracMemory) (hardware.Outcome, error)

// Steps are Ironic's for this interface.
func (i *IDRAC) Steps(n *node.Node) []hardware.Step {
	step := func(name, does string, acts ...idracAct) hardware.Step {
		return hardware.Step{Interface: "management", Name: name, Description: does, Limit: 2 * idracCall,
			Priority: map[node.Phase]int{node.PhaseVerify: 0, node.PhaseClean: 0},
			Run: rerun[idracMemory]{m: i.Management, op: strings.ReplaceAll(name, "_", " "), poll: i.Poll,
				limit: idracLimit, call: idracCall, now: i.now,
				waits: func(mem *idracMemory) bool { return !mem.Asked.IsZero() }, act: inTurn(acts)}.run}
	}
	return append(i.Management.Steps(n),
		step("clear_job_queue", "deletes all jobs of the controller that do not run yet", i.clear),
		step("reset_idrac", "restarts the controller and waits until it is ready; the machine goes on", i.reset),
		step("known_good_state", "restarts the controller, then deletes its jobs", i.reset, i.clear))
}

// idracMemory is the memory of these steps.
type idracMemory struct {
	// Done counts the acts that are over.
	Done int
	// Asked is when the controller took the present act; zero: it did not yet.
	Asked time.Time `json:",omitzero"`
	// Before is when the controller had restarted last.
	Before string `json:",omitempty"`
}

// inTurn is an act of several: the next begins when the one before is over.
func inTurn(acts []idracAct) func(context.Context, *Driver, *controller.System, hardware.Call,
	*idracMemory) (hardware.Outcome, error) {
	return func(ctx context.Context, d *Driver, s *controller.System, _ hardware.Call,
		mem *idracMemory) (hardware.Outcome, error) {
		for {
			out, err := acts[mem.Done](ctx, d, s, mem)
			if err != nil || out.After > 0 || mem.Done == len(acts)-1 {
				return out, err
			}
			mem.Done++
			mem.Asked = time.Time{}
		}
	}
}

// reset restarts the controller, and waits until it has done so and its Lifecycle Controller is ready.
func (i *IDRAC) reset(ctx context.Context, d *Driver, s *controller.System,
	mem *idracMemory) (hardware.Outcome, error) {
	waits := hardware.Outcome{After: i.Poll, Detail: "waiting for the controller to restart"}
	m, err := d.dell(ctx, s)
	if err != nil {
		return waits, err
	}
	if mem.Asked.IsZero() {
		target := m.Actions.Reset.Target
		if target == "" {
			return waits, &power.Error{Kind: power.Unsupported, Err: errors.New("the controller has no action to restart it")}
		}
		err := d.c.Error("restart", d.c.Post(ctx, target, map[string]string{"ResetType": "GracefulRestart"}))
		if err != nil && power.KindOf(err) != power.Unreachable { // it may restart before it answers
			return waits, err
		}
		mem.Asked, mem.Before = i.now(), m.LastResetTime
		return waits, nil
	}
	if m.LastResetTime == mem.Before && (mem.Before != "" || i.now().Sub(mem.Asked) < i.Settle) {
		return waits, nil
	}
	return i.whenReady(ctx, d, m)
}

// clear deletes the jobs, and waits until the Lifecycle Controller is ready again.
func (i *IDRAC) clear(ctx context.Context, d *Driver, s *controller.System,
	mem *idracMemory) (hardware.Outcome, error) {
	var none hardware.Outcome
	m, err := d.dell(ctx, s)
	if err != nil {
		return none, err
	}
	if mem.Asked.IsZero() {
		target, err := d.dellAction(ctx, m.Links.OEM.Dell.DellJobService, "#DellJobService.DeleteJobQueue")
		if err == nil {
			err = d.c.Post(ctx, target, map[string]string{"JobID": "JID_CLEARALL"})
		}
		if err != nil {
			return none, err
		}
		mem.Asked = i.now()
	}
	left, err := d.unfinished(ctx, m)
	if err != nil || left == 0 {
		out, rerr := i.whenReady(ctx, d, m)
		return out, cmp.Or(err, rerr)
	}
	if i.now().Sub(mem.Asked) < i.Settle {
		return hardware.Outcome{After: i.Poll, Detail: fmt.Sprintf("waiting for %d jobs to end", left)}, nil
	}
	return none, failf("%d jobs of the controller are left after the queue was cleared: they run; wait for them, or"+
		" restart the controller with the step management.known_good_state", left)
}

// whenReady is over when the Lifecycle Controller is ready.
func (i *IDRAC) whenReady(ctx context.Context, d *Driver, m *dellManager) (hardware.Outcome, error) {
	ready, err := d.dellReady(ctx, m, "LCStatus")
	if err != nil || ready {
		return hardware.Outcome{}, err
	}
	return hardware.Outcome{After: i.Poll, Detail: "waiting for the Lifecycle Controller to be ready"}, nil
}

// dellManager has the properties of Dell's managers that are used.
type dellManager struct {
	ID            string `json:"Id"`
	LastResetTime string
	Actions       struct {
		Reset struct{ Target string } `json:"#Manager.Reset"`
		// OEM are actions by names whose beginnings have versions.
		OEM map[string]json.RawMessage `json:"Oem"`
	}
	Links struct {
		OEM struct {
			Dell struct{ DellLCService, DellJobService, Jobs schemas.Link }
		} `json:"Oem"`
	}
}

// dell reads the machine's manager.
func (d *Driver) dell(ctx context.Context, s *controller.System) (*dellManager, error) {
	all, err := d.managers(ctx, s)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, &power.Error{Kind: power.Unsupported, Err: errors.New("the service shows no manager of the machine")}
	}
	m := &dellManager{}
	_, err = d.c.Read(ctx, string(all[0]), m)
	return m, err
}

// dellAction finds the target of an action of one of Dell's services.
func (d *Driver) dellAction(ctx context.Context, service schemas.Link, action string) (string, error) {
	var o struct {
		Actions map[string]struct{ Target string }
	}
	if service != "" {
		if _, err := d.c.Read(ctx, string(service), &o); err != nil {
			return "", err
		}
	}
	if target := o.Actions[action].Target; target != "" {
		return target, nil
	}
	return "", &power.Error{Kind: power.Unsupported, Err: fmt.Errorf("the controller has no action %s", action[1:]),
		Hint: "this is for Dell's iDRAC9 and later: update its firmware, or use hardware type redfish"}
}

// dellReady reports whether Dell's service calls a part of the controller ready: "LCStatus" is the Lifecycle
// Controller, "RTStatus" is for changes of storage at once. A controller without the service is taken for ready.
func (d *Driver) dellReady(ctx context.Context, m *dellManager, part string) (bool, error) {
	target, err := d.dellAction(ctx, m.Links.OEM.Dell.DellLCService, "#DellLCService.GetRemoteServicesAPIStatus")
	if power.KindOf(err) == power.Unsupported {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var status map[string]any
	r, err := d.c.Submit(ctx, http.MethodPost, target, map[string]any{})
	_ = json.Unmarshal(r.Body, &status) // else it is not ready
	return status[part] == "Ready", err
}

// unfinished counts the jobs of the queue that are not over.
func (d *Driver) unfinished(ctx context.Context, m *dellManager) (n int, err error) {
	all, err := d.c.Members(ctx, string(m.Links.OEM.Dell.Jobs))
	for _, path := range all[:min(len(all), mostJobs)] {
		var j struct{ JobState string }
		if _, err := d.c.Try(ctx, path.Path, &j); err != nil {
			return n, err
		}
		if slices.Contains([]string{"Scheduled", "Running", "Paused"}, j.JobState) {
			n++
		}
	}
	return n, err
}

// virtualDisc is the configuration that makes the controller's virtual disc the boot device. Space between elements
// fails its job.
const virtualDisc = `<SystemConfiguration><Component FQDD="%s">` +
	`<Attribute Name="ServerBoot.1#BootOnce">%s</Attribute>` +
	`<Attribute Name="ServerBoot.1#FirstBootDevice">VCD-DVD</Attribute></Component></SystemConfiguration>`

// bootVirtualDisc makes the controller's virtual disc the boot device by Dell's import of a configuration, for one
// start or for all, and waits for it.
func (d *Driver) bootVirtualDisc(ctx context.Context, s *controller.System, persistent bool) error {
	m, err := d.dell(ctx, s)
	if err != nil {
		return err
	}
	var action struct{ Target string }
	for name, raw := range m.Actions.OEM {
		if strings.HasSuffix(name, "#OemManager.ImportSystemConfiguration") {
			if err := json.Unmarshal(raw, &action); err != nil {
				return err
			}
		}
	}
	if action.Target == "" {
		return &power.Error{Kind: power.Unsupported,
			Err:  errors.New("the controller imports no configuration, without which it boots from its own drive only"),
			Hint: "update its firmware, or use another boot interface"}
	}
	once := map[bool]string{true: "Disabled", false: "Enabled"}[persistent]
	r, err := d.c.Submit(ctx, http.MethodPost, action.Target, map[string]any{
		"ShareParameters": map[string]any{"Target": []string{"ALL"}},
		"ImportBuffer":    fmt.Sprintf(virtualDisc, m.ID, once)})
	if err != nil {
		return err
	}
	ref, later := task.Of(r)
	for later {
		st, err := task.Poll(ctx, d.c, s, ref)
		switch {
		case err != nil:
			return err
		case st.Failed:
			return &power.Error{Kind: power.Refused, Err: fmt.Errorf("the controller's job failed: %s", st.Message),
				Hint: "look at the controller's job queue; the step management.clear_job_queue empties it"}
		case st.Over || st.Gone:
			return nil
		}
		if !controller.Sleep(ctx, jobWait) {
			return ctx.Err()
		}
	}
	return nil
}
