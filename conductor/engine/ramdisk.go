package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/signoflife"
	"github.com/ingot-metal/ingot/conductor/workload"
)

// A node with deploy_interface "ramdisk" runs from memory: nothing is written to a disk, so no agent is needed. Its machine is set to boot
// from the network for good and restarted; network boot then answers each of its starts with the workload of instance_info. Where the
// workload is to be started by kexec, or an agent waits on the machine anyway, the agent loads it and jumps, which takes no firmware; its
// later starts are the same.

const (
	stepLoadRamdisk     = "load_ramdisk"
	loadRamdiskPriority = 50
	bootRamdiskPriority = 100
)

// runsFromMemory tells whether a node's instance is a workload of conductor/workload.
func (e *Engine) runsFromMemory(n *node.Node) bool {
	return e.drivers.Interface(n, "deploy") == workload.Interface
}

// checkWorkload refuses a workload that could not be booted.
func (e *Engine) checkWorkload(n *node.Node) error {
	w, err := workload.Of(n, e.cfg.ImageBase)
	if err == nil && w.Drive != nil {
		_, err = w.Seed(n.UUID, time.Now())
	}
	if err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	return nil
}

// ramdiskStart decides how the workload is first started. By kexec if that is asked for, or if an agent is there anyway and nobody asked for
// anything else.
func (e *Engine) ramdiskStart(n *node.Node, asked json.RawMessage) (bootArgs, error) {
	a, err := e.bootArgs(n, asked)
	if err != nil {
		return a, err
	}
	if signoflife.Has(a.signs(), signoflife.PhoneHome) {
		return a, invalidf("the sign of life phone_home can't be asked of a workload that runs from memory, which gets its config drive as it was handed in: ask for another sign (%s)", keySigns)
	}
	var given struct {
		Method string `json:"method"`
	}
	if !noArgs(asked) {
		if err := json.Unmarshal(asked, &given); err != nil {
			return a, invalidf("arguments of step deploy.%s are not a JSON object: %v", stepBootInstance, err)
		}
	}
	own, _ := n.InstanceInfo[keyBootInstance].(string)
	ofNode, _ := n.DriverInfo[keyBootInstance].(string)
	_, able := e.agentTable("deploy", stepLoadRamdisk)
	switch {
	case a.Method == bootKexec && !able:
		return a, invalidf("the workload can't be started by kexec: the ramdisk's agent has no step deploy.%s: use a ramdisk that was built with this release, or set %s to %s", stepLoadRamdisk, keyBootInstance, bootReboot)
	case a.Method == "" && able && given.Method+own+ofNode == "":
		if b := n.Boot; b != nil && b.Kept && b.Connected && !b.Ended {
			a.Method = bootKexec
		}
	}
	return a, nil
}

// ramdiskSteps is the program of a deployment of a workload, with the client's steps merged in as deploySteps does.
func (e *Engine) ramdiskSteps(n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	if err := e.checkWorkload(n); err != nil {
		return nil, err
	}
	is := func(name string) func(node.JobStep) bool {
		return func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == name && !s.Plug }
	}
	var given json.RawMessage
	if i := slices.IndexFunc(asked, is(stepBootInstance)); i >= 0 {
		given = asked[i].Args
	}
	a, err := e.ramdiskStart(n, given)
	if err != nil {
		return nil, err
	}
	hot := a.Method == bootKexec
	steps := append(conductorPhase(node.PhaseDeploy), e.plugSteps(n, node.PhaseDeploy)...)
	if hot {
		s, _ := e.agentTable("deploy", stepLoadRamdisk)
		p := e.priority(node.PhaseDeploy, s.Interface, s.Name, loadRamdiskPriority)
		if p <= 0 {
			p = loadRamdiskPriority
		}
		steps = append(steps, inBand(s, nil, p))
	} else {
		steps = slices.DeleteFunc(steps, func(s node.JobStep) bool { return bootsAgent(s) || is(stepTearDown)(s) })
		steps = append(steps, node.JobStep{Interface: "deploy", Name: workload.Step, Priority: bootRamdiskPriority, Abortable: true})
	}
	if i := slices.IndexFunc(steps, is(stepBootInstance)); i >= 0 {
		steps[i].Args = a.json()
	}
	for _, s := range asked {
		if steps, err = e.mergeRamdisk(n, steps, s, hot); err != nil {
			return nil, err
		}
	}
	steps = ordered(steps)
	return steps, checkRamdiskOrder(steps)
}

// mergeRamdisk puts one step that a client asks for into the program of a workload.
func (e *Engine) mergeRamdisk(n *node.Node, steps []node.JobStep, a node.JobStep, hot bool) ([]node.JobStep, error) {
	join := func(s node.JobStep) []node.JobStep {
		steps = slices.DeleteFunc(steps, func(o node.JobStep) bool { return o.Interface == a.Interface && o.Name == a.Name })
		if a.Priority > 0 {
			steps = append(steps, s)
		}
		return steps
	}
	if _, ok := reservedSteps()[a.Name]; ok {
		s, err := e.askReserved(n, a)
		if err == nil && s.Priority > 0 {
			steps = append(steps, s)
		}
		return steps, err
	}
	if s, ok, err := e.askPlug(n, node.PhaseDeploy, a); err != nil {
		return nil, err
	} else if ok {
		return join(s), nil
	}
	if i := slices.IndexFunc(steps, func(s node.JobStep) bool { return s.Interface == a.Interface && s.Name == a.Name && !s.InBand }); i >= 0 {
		switch {
		case a.Priority == 0:
			return nil, invalidf("step %s.%s can't be left out", a.Interface, a.Name)
		case !noArgs(a.Args) && a.Name != stepBootInstance:
			return nil, invalidf("step %s.%s takes no arguments", a.Interface, a.Name)
		}
		steps[i].Priority = a.Priority
		return steps, nil
	}
	s, err := e.agentStep(a)
	switch {
	case err != nil:
		return nil, err
	case !hot:
		return nil, invalidf("step %s.%s runs in the agent, which a workload that boots from the network does without: set %s to %s, or leave the step out", a.Interface, a.Name, keyBootInstance, bootKexec)
	case a.Interface == "deploy" && slices.Contains([]string{"write_image", "write_configdrive", "prepare_instance_boot", stepLoadKernel}, a.Name):
		return nil, invalidf("step %s.%s is for a system on a disk, and node %s runs from memory (deploy interface %s)", a.Interface, a.Name, n.UUID, workload.Interface)
	case a.Name == stepLoadRamdisk && a.Interface == "deploy" && a.Priority == 0:
		return nil, invalidf("step %s.%s can't be left out", a.Interface, a.Name)
	}
	return join(inBand(s, a.Args, a.Priority)), nil
}

// ramdiskOrder is what of such a deployment has one order only.
var ramdiskOrder = []string{stepBootAgent, workload.Step, stepLoadRamdisk, stepTearDown, stepSwitchNetwork, stepBootInstance}

func checkRamdiskOrder(steps []node.JobStep) error {
	up, down := -1, len(steps)
	last, before := -1, node.JobStep{}
	for i, s := range steps {
		if bootsAgent(s) {
			up = i
		}
		if s.Interface != "deploy" || s.Plug {
			continue
		}
		if s.Name == stepTearDown {
			down = i
		}
		at := slices.Index(ramdiskOrder, s.Name)
		if at < 0 {
			continue
		}
		if at < last {
			return invalidf("step deploy.%s with priority %d would run after deploy.%s with priority %d, but has to run before it: give it a higher priority (the order is %s)",
				s.Name, s.Priority, before.Name, before.Priority, strings.Join(ramdiskOrder, ", "))
		}
		last, before = at, s
	}
	for i, s := range steps {
		if s.InBand && (up < 0 || i < up || i > down) {
			return invalidf("step %s.%s with priority %d does not lie between the start (100) and the end (40) of the agent", s.Interface, s.Name, s.Priority)
		}
	}
	return nil
}

// workloadArgs are the arguments of load_ramdisk, as instance_info has them.
func (e *Engine) workloadArgs(n *node.Node, args map[string]any) error {
	w, err := workload.Of(n, e.cfg.ImageBase)
	if err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	for k, v := range map[string]string{"kernel": w.Kernel, "ramdisk": w.Ramdisk, "boot_iso": w.ISO, "kernel_checksum": w.KernelDigest, "ramdisk_checksum": w.RamdiskDigest,
		"kernel_append_params": w.Params} {
		if v != "" {
			args[k] = v
		}
	}
	if w.Drive != nil {
		args["configdrive"], args["instance"] = w.Drive, n.UUID
	}
	if v, ok := n.DriverInfo["image_ca"].(string); ok && v != "" {
		args["image_ca"] = v
	}
	return nil
}

// bootFromNetwork has the machine boot from the network from now on, which is how a workload that runs from memory is started, each time.
func (p *pass) bootFromNetwork(ctx context.Context) error {
	b := power.Boot{Device: power.BootPXE, Persistent: true, Mode: p.bootMode()}
	err := p.setBoot(ctx, b)
	if k := power.KindOf(err); k != power.Unsupported && k != power.Refused {
		return err
	}
	reason := err.Error()
	b.Persistent = false
	if again := p.setBoot(ctx, b); again != nil {
		return errors.Join(err, again)
	}
	_, err = p.change(ctx, func(n *node.Node, also *node.Also) error {
		p.e.history(n, also, "boot", "WARNING", "the boot device was set to the network for the next start only, so that what the machine does at later ones is up to its firmware: "+reason, "")
		return nil
	})
	return err
}

// bootRamdisk turns the machine off, whatever runs on it, and sets it to boot from the network; the step boot_instance turns it on. A machine
// that must not be turned off is restarted at once.
func bootRamdisk(ctx context.Context, p *pass) (verdict, error) {
	e := p.e
	switch p.n.Job.Note {
	case "":
		next := "off"
		if e.staysOn(p.n) {
			next = "device"
		}
		err := p.note(ctx, next, func(n *node.Node, also *node.Also) error {
			e.closeBoot(n) // an agent that was kept and is not wanted
			return nil
		})
		if err == nil && !p.viaAgent() { // else the session is what restarts it
			e.agents().CloseSession(p.n.UUID)
		}
		return again(0), err

	case "off", "off asked":
		ok, v, err := p.reach(ctx, "off", power.Off, power.TurnOff, e.cfg.PowerTimeout)
		if !ok || err != nil {
			return v, err
		}
		return again(0), p.note(ctx, "device")

	case "device":
		if err := p.bootFromNetwork(ctx); err != nil {
			return verdict{}, err
		}
		marked := func(n *node.Node, also *node.Also) error {
			e.mark(n, also, node.MarkBootDevice, strings.TrimSpace(string(power.BootPXE)+" "+p.bootMode()))
			return nil
		}
		if !e.staysOn(p.n) {
			return verdict{done: true, apply: marked}, nil
		}
		return again(0), p.note(ctx, "reset", marked)

	case "reset": // of a machine that must not be turned off
		st, err := p.power(ctx)
		if err != nil {
			return verdict{}, err
		}
		if st == power.On {
			if err := p.call(ctx, "reset", func(ctx context.Context, d power.Driver) error { return d.SetPower(ctx, power.Reset) }); err != nil {
				return verdict{}, err
			}
		}
		if p.viaAgent() {
			e.agents().CloseSession(p.n.UUID)
		}
		return verdict{done: true, apply: func(n *node.Node, also *node.Also) error {
			e.mark(n, also, node.MarkReset, "")
			return nil
		}}, nil
	}
	return verdict{}, failf("it was left at %q, which this version of Ingot does not know; ask for the operation again", p.n.Job.Note)
}
