// Package steps turns the steps of Ironic's commands into runs of the agent's own table, and their ends into the
// results that Ironic expects.
//
// A step has Ironic's name and priority, its arguments come from the command and from the node, as Ironic's own agent
// takes them, and its result has the form that the conductor reads. What disks are is known to the table alone.
package steps

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/agent/ipa/command"
	"github.com/ingot-metal/ingot/agent/ipa/ironic"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
)

// Manager is this agent's name among hardware managers.
const Manager = "ingot"

// Kind is one of the three families of steps, which differ in their words only.
type Kind struct {
	Phase        step.Phase
	fault, title string
}

// Kinds are all families.
var Kinds = []Kind{
	{step.Clean, "CleaningError", "Clean step failed"},
	{step.Deploy, "DeploymentError", "Deploy step failed"},
	{step.Service, "ServicingError", "Service step failed"},
}

// priorities are Ironic's for steps of ours that its own agent has. A step without one is on request. Erasing is in
// every cleaning there, unless the conductor's configuration says another priority.
var priorities = map[string]map[step.Phase]int{
	"deploy.erase_devices":          {step.Clean: 10},
	"deploy.erase_devices_metadata": {step.Clean: 99, step.Deploy: 0},
	"deploy.erase_devices_express":  {step.Clean: 0},
	"deploy.erase_pstore":           {step.Clean: 0},
	"deploy.clean_uefi_nvram":       {step.Clean: 0, step.Deploy: 0},
	"deploy.burnin_cpu":             {step.Clean: 0, step.Service: 0},
	"deploy.burnin_disk":            {step.Clean: 0},
	"deploy.burnin_memory":          {step.Clean: 0, step.Service: 0},
	"deploy.burnin_network":         {step.Clean: 0, step.Service: 0},
	"deploy.write_image":            {step.Deploy: 0, step.Service: 0},
	"deploy.inject_files":           {step.Deploy: 0, step.Service: 0},
	"raid.create_configuration":     {step.Clean: 0, step.Service: 0},
	"raid.delete_configuration":     {step.Clean: 0, step.Service: 0},
	"raid.apply_configuration":      {step.Deploy: 0, step.Service: 0},
}

// hidden are steps of ours that a conductor of ours plans; here they are parts of write_image, or have another command.
var hidden = []string{"deploy.write_configdrive", "deploy.prepare_instance_boot", "deploy.load_kernel",
	"deploy.load_ramdisk", "inspect.inspect", "rescue.rescue"}

// priority is a step's in a phase; false if it does not run in that phase.
func (r *Runner) priority(row step.Row, phase step.Phase) (int, bool) {
	name := row.Interface + "." + row.Name
	if slices.Contains(hidden, name) {
		return 0, false
	}
	if name == "deploy.inject_files" && phase == step.Deploy {
		return r.o.InjectFiles, true
	}
	if p, has := priorities[name]; has {
		v, has := p[phase]
		return v, has
	}
	v, has := row.Priority[phase] // a step of the site
	return max(v, 0), has
}

// shown is a step as Ironic lists it.
type shown struct {
	Interface string                    `json:"interface"`
	Step      string                    `json:"step"`
	Priority  int                       `json:"priority"`
	Reboot    bool                      `json:"reboot_requested"`
	Abortable bool                      `json:"abortable"`
	Args      map[string]map[string]any `json:"argsinfo,omitempty"`
}

// machine is the part of the machine that this package uses.
type machine interface {
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// Options of a Runner.
type Options struct {
	Table   []step.Step
	Version string // of the agent
	Machine machine
	Rescue  *rescue.Host // nil: no logins
	// Guard refuses to erase disks with cluster file systems.
	Guard bool
	// InjectFiles is the priority of deploy.inject_files in a deployment; 0: on request.
	InjectFiles int
	Log         *slog.Logger
	Status      func(format string, args ...any)   // receives lines for the console
	Progress    func(name string, p step.Progress) // receives the progress of the running step for the console
}

// Done is the state that the runs of this boot have left, for another worker.
type Done struct {
	// Written says that an image was written and committed, and Partitions which UUIDs get_partition_uuids returns.
	Written    bool              `json:"written"`
	Partitions map[string]string `json:"partitions,omitempty"`
}

// Runner runs the steps of commands.
type Runner struct {
	o       Options
	steps   *step.Runner
	version map[string]string // hardware_manager_version

	mu    sync.Mutex
	facts map[step.Phase]*step.Facts
	done  Done
}

// New returns a runner that goes on after an earlier one.
func New(o Options, done Done) (*Runner, error) {
	if err := step.Check(o.Table); err != nil {
		return nil, err
	}
	m, err := step.Describe(o.Table)
	if err != nil {
		return nil, err
	}
	return &Runner{o: o, steps: &step.Runner{Table: o.Table, Log: o.Log}, facts: map[step.Phase]*step.Facts{},
		version: map[string]string{Manager: o.Version + "." + m.Digest[:12]}, done: done}, nil
}

// Done returns what the runs so far have left.
func (r *Runner) Done() Done {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// List answers get_X_steps.
func (r *Runner) List(k Kind) map[string]any {
	all := []shown{}
	for _, s := range r.o.Table {
		p, has := r.priority(s.Row, k.Phase)
		if !has {
			continue
		}
		one := shown{Interface: s.Interface, Step: s.Name, Priority: p, Abortable: s.Abortable}
		for _, a := range s.Args {
			if a.Owner != "" || a.Given && s.Name == "write_image" {
				continue
			}
			if one.Args == nil {
				one.Args = map[string]map[string]any{}
			}
			one.Args[a.Name] = map[string]any{"description": a.Description, "required": a.Required && !a.Given}
		}
		if s.Name == "write_image" {
			one.Args = nil // they are image_info's, which the conductor makes
		}
		all = append(all, one)
	}
	return map[string]any{string(k.Phase) + "_steps": map[string]any{Manager: all},
		"hardware_manager_version": r.version}
}

// stepParam is the step that a command names.
type stepParam struct {
	Interface string          `json:"interface"`
	Step      string          `json:"step"`
	Args      json.RawMessage `json:"args"`
}

// CheckStep refuses what can't be a step before it is listed.
func (k Kind) CheckStep(p command.Params) error {
	var s stepParam
	if json.Unmarshal(p["step"], &s) != nil || s.Step == "" {
		return command.InvalidParams("step is no object with the name of a step")
	}
	return k.CheckNode(p)
}

// CheckNode refuses a command without a node.
func (k Kind) CheckNode(p command.Params) error {
	if _, err := parseNode(p["node"]); err != nil {
		return command.InvalidParams(err.Error())
	}
	return nil
}

// Execute runs the step of a command and answers with its result and the step itself, by which the conductor knows that
// it is the one that it waits for.
func (r *Runner) Execute(ctx context.Context, k Kind, p command.Params, set ironic.Settings) (any, error) {
	if err := r.sameVersion(p[string(k.Phase)+"_version"]); err != nil {
		return nil, err
	}
	result, err := r.translated(ctx, k, p, set)
	if err != nil {
		return nil, &command.Error{Type: k.fault, Code: http.StatusInternalServerError, Message: k.title,
			Details: Text(err)}
	}
	return map[string]any{string(k.Phase) + "_result": result, string(k.Phase) + "_step": p["step"]}, nil
}

// sameVersion compares the versions that the conductor got with the steps; null is no comparison.
func (r *Runner) sameVersion(raw json.RawMessage) error {
	var given map[string]string
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if json.Unmarshal(raw, &given) == nil && maps.Equal(given, r.version) {
		return nil
	}
	return command.Mismatch(fmt.Sprintf("the agent's steps are those of %s, and the command is for %.200s",
		r.version[Manager], raw))
}

func (r *Runner) translated(ctx context.Context, k Kind, p command.Params, set ironic.Settings) (any, error) {
	var s stepParam
	if err := json.Unmarshal(p["step"], &s); err != nil {
		return nil, fmt.Errorf("read the step: %w", err)
	}
	n, err := parseNode(p["node"])
	if err != nil {
		return nil, err
	}
	found := step.Step{}
	for _, t := range r.o.Table {
		// Ironic's agent goes by the name alone: a conductor may call a step through another interface.
		if _, has := r.priority(t.Row, k.Phase); has && t.Name == s.Step &&
			(found.Name == "" || t.Interface == s.Interface) {
			found = t
		}
	}
	if found.Name == "" {
		return nil, step.Failf("leave the step out, or use a ramdisk that has it",
			"this agent has no %s step %q", k.Phase, s.Step)
	}
	if err := r.o.Machine.Settle(ctx); err != nil && ctx.Err() == nil {
		r.o.Log.Warn("the step starts although devices may be missing", "err", err)
	}
	if found.Interface == "deploy" && found.Name == "write_image" {
		return r.writeImage(ctx, k, n, s.Args, set)
	}
	args, err := argsOf(found, n, s.Args, r.o.Guard)
	if err != nil {
		return nil, err
	}
	phase := k.Phase
	if found.Name == "inject_files" && r.wrote() {
		phase = step.Service // write_image has committed: the disk has an installed system
	}
	result, err := r.Run(ctx, phase, n.UUID, step.Planned{Interface: found.Interface, Name: found.Name, Args: args})
	if err != nil {
		return nil, err
	}
	return resultOf(found, result[0])
}

func (r *Runner) wrote() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done.Written
}

// Run runs steps one after another and returns their results.
func (r *Runner) Run(ctx context.Context, phase step.Phase, node string,
	plan ...step.Planned) ([]json.RawMessage, error) {
	r.mu.Lock()
	if r.facts[phase] == nil {
		r.facts[phase] = &step.Facts{}
	}
	facts := r.facts[phase]
	r.mu.Unlock()
	facts.Set(step.During{}, phase)
	facts.Set(step.Node{}, node)
	if phase == step.Rescue && r.o.Rescue != nil {
		rescue.Offer(facts, r.o.Rescue)
	}
	t := &tape{o: &r.o, results: make([]json.RawMessage, len(plan))}
	end := r.steps.Run(ctx, facts, plan, t)
	switch {
	case end.Err != nil:
		return nil, end.Err
	case end.Cancelled:
		return nil, fmt.Errorf("step %s was stopped", plan[0].Name)
	case end.Halted != step.Done:
		return nil, step.Failf("run it under Ingot's own conductor, or let the step say reboot_requested",
			"step %s asks for a reboot or a person in its middle, which Ironic can't do", plan[0].Name)
	}
	return t.results, nil
}

// tape keeps the steps' results and shows on the console what runs.
type tape struct {
	o       *Options
	results []json.RawMessage
}

func (t *tape) StepStarted(_ int, s step.Planned) { t.o.Status("step %s", s.Name) }

func (t *tape) Progress(_ int, s step.Planned, p step.Progress) { t.o.Progress(s.Name, p) }

func (t *tape) StepFinished(i int, s step.Planned, res step.Result) {
	if res.Err != nil {
		t.o.Status("step %s failed: %v", s.Name, res.Err)
		return
	}
	b, err := json.Marshal(res.Outcome.Result)
	if err != nil {
		t.o.Log.Error("put the result of a step into JSON", "step", s.Name, "err", err)
		return
	}
	t.results[i] = b
}

// Text is an error with its remedy, for the one string that Ironic shows.
func Text(err error) string {
	e := step.AsError(err)
	if e.Remedy == "" {
		return e.Error()
	}
	return e.Error() + "; remedy: " + e.Remedy
}
