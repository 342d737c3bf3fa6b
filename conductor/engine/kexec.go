package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/power"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// How the installed system is started.
const (
	bootReboot = "reboot" // by the machine's firmware
	bootKexec  = "kexec"  // by the agent's kernel, without firmware
)

const (
	stepLoadKernel     = "load_kernel"
	loadKernelPriority = 50 // behind prepare_instance_boot, before the agent is torn down
)

// Keys of instance_info and driver_info, the first of which goes before the second, and both before the configuration.
const (
	keyBootInstance = "boot_instance"
	keySigns        = "sign_of_life"
	keySignTimeout  = "sign_of_life_timeout"
)

// bootArgs is how a deployment starts its system, as it was decided when it was asked for: the arguments of the step boot_instance. The zero
// value is a reboot after which nothing is waited for.
type bootArgs struct {
	Method  string   `json:"method,omitempty"`
	Signs   []string `json:"sign_of_life,omitempty"`
	Seconds int      `json:"sign_of_life_timeout,omitempty"` // 0: as configured
}

// Limits of sign_of_life_timeout.
const (
	minSignTimeout = 10 * time.Second
	maxSignTimeout = 24 * time.Hour
)

// bootArgs decides how a deployment starts its system. asked are the arguments with which the request names boot_instance, if it does.
func (e *Engine) bootArgs(n *node.Node, asked json.RawMessage) (bootArgs, error) {
	var given struct {
		Method  *string `json:"method"`
		Signs   any     `json:"sign_of_life"`
		Timeout any     `json:"sign_of_life_timeout"`
	}
	if !noArgs(asked) {
		dec := json.NewDecoder(bytes.NewReader(asked))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&given); err != nil {
			return bootArgs{}, invalidf("step deploy.%s takes the arguments method, sign_of_life and sign_of_life_timeout: %v", stepBootInstance, err)
		}
	}
	a := bootArgs{Method: e.cfg.BootInstance}
	from := "the configuration's deploy.boot_instance"
	for _, info := range []struct {
		name   string
		values map[string]any
	}{{"driver_info", n.DriverInfo}, {"instance_info", n.InstanceInfo}} {
		if v := info.values[keyBootInstance]; v != nil && v != "" {
			text, _ := v.(string)
			a.Method, from = text, info.name+"'s "+keyBootInstance
			if text == "" {
				return a, invalidf("%s is %v: use %s or %s", from, v, bootReboot, bootKexec)
			}
		}
	}
	if given.Method != nil {
		a.Method, from = *given.Method, "argument method of step deploy."+stepBootInstance
	}
	switch a.Method {
	case bootKexec:
	case bootReboot, "":
		a.Method = ""
	default:
		return a, invalidf("%s is %q: use %s or %s", from, a.Method, bootReboot, bootKexec)
	}
	var err error
	if a.Signs, err = e.wantedSigns(n, given.Signs); err != nil || len(a.Signs) == 0 {
		return a, err
	}
	a.Seconds, err = signTimeout(first(given.Timeout, n.InstanceInfo[keySignTimeout], n.DriverInfo[keySignTimeout]))
	return a, err
}

func first(values ...any) any {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// wantedSigns are the signs of life that a deployment waits for.
func (e *Engine) wantedSigns(n *node.Node, given any) ([]string, error) {
	v := first(given, n.InstanceInfo[keySigns], n.DriverInfo[keySigns])
	if v == nil {
		v = e.cfg.SignOfLife
	}
	signs, err := signoflife.Parse(v)
	if err != nil {
		return nil, invalidf("%s: %v", keySigns, err)
	}
	for _, s := range signs {
		switch s.Kind {
		case signoflife.PhoneHome:
			if e.cfg.PhoneHomeURL == "" || len(e.cfg.PhoneHomeKey) == 0 {
				return nil, invalidf("sign of life phone_home needs an address at which deployed systems reach this conductor: set deploy.phone_home_url, or ask for another sign")
			}
		case signoflife.Console:
			d, err := e.drivers.Open(n)
			if err != nil {
				return nil, invalidf("sign of life %s: %v", s, err)
			}
			_, ok := d.(power.ConsoleWatcher)
			if err := d.Close(); err != nil {
				e.log.Debug("close driver", "node", n.UUID, "err", err)
			}
			if !ok {
				return nil, invalidf("sign of life %s: the console of node %s can't be read (power interface %s): ask for another sign", s, n.UUID, orElse(e.drivers.Interface(n, "power"), "none"))
			}
		}
	}
	return signoflife.Texts(signs), nil
}

// signTimeout reads a number of seconds; nil is 0.
func signTimeout(v any) (int, error) {
	if v == nil || v == "" {
		return 0, nil
	}
	n, ok := instance.WholeNumber(v)
	if !ok || n < int64(minSignTimeout.Seconds()) || n > int64(min(maxSignTimeout.Seconds(), math.MaxInt32)) {
		return 0, invalidf("%s is %v: it is a number of seconds from %d to %d", keySignTimeout, v, int(minSignTimeout.Seconds()), int(maxSignTimeout.Seconds()))
	}
	return int(n), nil
}

func (a bootArgs) json() json.RawMessage {
	if a.Method == "" && len(a.Signs) == 0 {
		return nil
	}
	b, err := json.Marshal(a)
	if err != nil {
		return nil // of strings and a number: never
	}
	return b
}

func (a bootArgs) signs() []signoflife.Sign {
	signs, err := signoflife.Parse(a.Signs)
	if err != nil {
		return nil // they were checked when they were stored
	}
	return signs
}

func (e *Engine) signTimeout(a bootArgs) time.Duration {
	if a.Seconds > 0 {
		return time.Duration(a.Seconds) * time.Second
	}
	return e.cfg.SignTimeout
}

// startOf tells how a list of steps starts the installed system.
func startOf(steps []node.JobStep) (a bootArgs) {
	for _, s := range steps {
		if !s.InBand && !s.Plug && s.Interface == "deploy" && s.Name == stepBootInstance && len(s.Args) > 0 {
			if err := json.Unmarshal(s.Args, &a); err != nil {
				return bootArgs{}
			}
		}
	}
	return a
}

// phonesHome tells whether the system that these steps start is to call back, for which its config drive has to be made or completed.
func phonesHome(steps []node.JobStep) bool {
	return signoflife.Has(startOf(steps).signs(), signoflife.PhoneHome)
}

// withStart puts into the steps of a deployment what starting the system the way that is asked for needs.
func (e *Engine) withStart(n *node.Node, steps, asked []node.JobStep) ([]node.JobStep, error) {
	named := func(list []node.JobStep, name string) int {
		return slices.IndexFunc(list, func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == name && !s.Plug })
	}
	var given json.RawMessage
	if i := named(asked, stepBootInstance); i >= 0 {
		given = asked[i].Args
	}
	a, err := e.bootArgs(n, given)
	if err != nil {
		return nil, err
	}
	if i := named(steps, stepBootInstance); i >= 0 {
		steps[i].Args = a.json()
	}
	if a.Method == bootKexec && named(steps, stepLoadKernel) < 0 {
		s, ok := e.agentTable("deploy", stepLoadKernel)
		if !ok {
			return nil, invalidf("the system can't be started by kexec: the ramdisk's agent has no step deploy.%s: use a ramdisk that was built with this release, or set %s to %s", stepLoadKernel, keyBootInstance, bootReboot)
		}
		p := e.priority(node.PhaseDeploy, s.Interface, s.Name, loadKernelPriority)
		if p <= 0 {
			p = loadKernelPriority
		}
		steps = append(steps, inBand(s, nil, p))
	}
	if phonesHome(steps) && named(steps, "write_configdrive") < 0 {
		s, ok := e.agentTable("deploy", "write_configdrive")
		if !ok {
			return nil, invalidf("sign of life phone_home: the ramdisk's agent has no deploy step write_configdrive: use a ramdisk that was built with this release")
		}
		steps = append(steps, inBand(s, nil, e.priority(node.PhaseDeploy, s.Interface, s.Name, s.Priority.Deploy)))
	}
	return steps, nil
}

// checkStart refuses a deployment whose steps, once the request's are merged in, can't start the system the way that is asked for.
func checkStart(steps []node.JobStep) error {
	a := startOf(steps)
	has := func(name string) bool {
		return slices.ContainsFunc(steps, func(s node.JobStep) bool {
			return s.InBand && s.Interface == "deploy" && s.Name == name && s.Priority > 0
		})
	}
	if a.Method == bootKexec && !has(stepLoadKernel) {
		return invalidf("step deploy.%s can't be left out of a deployment that starts its system by kexec: set %s to %s, or give the step a priority", stepLoadKernel, keyBootInstance, bootReboot)
	}
	if phonesHome(steps) && !has("write_configdrive") {
		return invalidf("step deploy.write_configdrive can't be left out while the sign of life phone_home is waited for: ask for another sign (%s), or give the step a priority", keySigns)
	}
	return nil
}

// planArgs are the arguments of a step of a job as the agent gets them.
func (e *Engine) planArgs(n *node.Node, j *node.Job, s node.JobStep) (json.RawMessage, error) {
	args, err := e.stepArgs(n, s)
	if err != nil || s.Name != "write_configdrive" || !phonesHome(j.Steps) {
		return args, err
	}
	var a map[string]any
	if err := json.Unmarshal(args, &a); err != nil {
		return nil, fmt.Errorf("read arguments of step %s: %w", s.Name, err)
	}
	url := strings.TrimSuffix(e.cfg.PhoneHomeURL, "/") + signoflife.Path + signoflife.Token(e.cfg.PhoneHomeKey, n.UUID, j.ID)
	drive, err := signoflife.AddPhoneHome(a["configdrive"], url, orElse(n.InstanceUUID, n.UUID))
	if err != nil {
		return nil, invalidf("sign of life phone_home: %v", err)
	}
	a["configdrive"] = drive
	b, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("make arguments of step %s: %w", s.Name, err)
	}
	return b, nil
}

// loaded tells whether the agent of a job holds the kernel of the installed system, and else why not.
func loaded(j *node.Job) (ok bool, why string) {
	for _, s := range j.Steps {
		if !s.InBand || s.Interface != "deploy" || s.Name != stepLoadKernel && s.Name != stepLoadRamdisk {
			continue
		}
		var r struct {
			Loaded bool   `json:"loaded"`
			Reason string `json:"reason"`
		}
		if s.Status != node.StepDone || json.Unmarshal(s.Result, &r) != nil {
			return false, "the agent did not say that it has loaded the system's kernel"
		}
		return r.Loaded, orElse(r.Reason, "the agent could not load the system's kernel")
	}
	return false, "the agent was not asked to load the system's kernel"
}

// jumped tells whether the step tear_down_agent of a job ended with a kexec.
func jumped(j *node.Job) bool {
	for _, s := range j.Steps {
		if s.InBand || s.Name != stepTearDown || s.Status != node.StepDone {
			continue
		}
		var r struct {
			Kexec bool `json:"kexec"`
		}
		return len(s.Result) > 0 && json.Unmarshal(s.Result, &r) == nil && r.Kexec
	}
	return false
}

// noteKexec is where tear_down_agent is once the jump is about to be asked for.
const noteKexec = "kexec asked"

// beginKexec decides, when the boot device is set, whether the machine jumps. If it does not although it should, the history says why.
func beginKexec(ctx context.Context, p *pass) (begun bool, err error) {
	e := p.e
	if startOf(p.n.Job.Steps).Method != bootKexec || p.n.Job.Failure != "" {
		return false, nil
	}
	ok, why := loaded(p.n.Job)
	if b := p.n.Boot; ok && (b == nil || b.Ended) {
		ok, why = false, "the agent that had loaded the system's kernel is gone"
	}
	if !ok {
		return false, p.note(ctx, "agent off", func(n *node.Node, also *node.Also) error {
			e.history(n, also, "boot", "WARNING", "the installed system is not started by kexec but by the machine's firmware: "+strings.TrimSuffix(why, "."), "")
			return nil
		})
	}
	return true, p.note(ctx, noteKexec, func(n *node.Node, also *node.Also) error {
		e.mark(n, also, node.MarkKexecAsked, "")
		return nil
	})
}

// kexec has the agent jump into the installed system. Over is false when the agent would not, and the machine has to be restarted the
// ordinary way.
func kexec(ctx context.Context, p *pass) (v verdict, over bool, err error) {
	e, b := p.e, p.n.Boot
	// Whoever starts may be heard of before this conductor has stored that it was told to.
	if err := e.watch(ctx, p, false); err != nil {
		return verdict{}, true, err
	}
	left := verdict{done: true, result: json.RawMessage(`{"kexec":true}`), apply: func(n *node.Node, also *node.Also) error {
		e.closeBoot(n)
		e.mark(n, also, node.MarkKexec, "")
		e.history(n, also, "boot", "INFO", "the agent has left and starts the installed system by kexec, without the machine's firmware", n.Job.Requester)
		return nil
	}}
	switch {
	case b == nil || b.Ended || p.n.Job.Sign != nil:
		e.agents().CloseSession(p.n.UUID)
		return left, true, nil
	case !b.Connected:
		// It may have jumped, or be about to come back to a conductor that was away, not knowing that it is to jump.
		if wait := time.Until(b.LostAt.Add(e.cfg.SessionGrace)); wait > 0 {
			return again(wait), true, nil
		}
		return left, true, nil
	}
	cctx, cancel := context.WithTimeout(ctx, e.cfg.AgentOff)
	err = e.agents().Kexec(cctx, p.n.UUID, e.kexecDelay(p.n))
	stayed := cctx.Err() != nil
	cancel()
	switch {
	case err == nil:
		return left, true, nil
	case ctx.Err() != nil:
		return verdict{}, true, ctx.Err()
	case !stayed:
		// No session, or one that broke off. The record says connected when the conductor before this one died: as above.
		e.log.Info("the agent could not be asked to start the installed system by kexec", "node", p.n.UUID, "err", err)
		if time.Since(e.lastSign(p.n.UUID, p.n.Job.BegunAt)) > e.cfg.SessionGrace {
			return left, true, nil
		}
		return again(e.cfg.RetryBase), true, nil
	}
	_, cerr := p.change(ctx, func(n *node.Node, also *node.Also) error {
		if n.Boot != nil && !n.Boot.Connected {
			return nil // it has gone, in whatever way: see above
		}
		n.Job.Note, n.Job.BegunAt = "agent off", time.Now().UTC()
		e.history(n, also, "boot", "WARNING", fmt.Sprintf("the installed system is not started by kexec but by the machine's firmware: the agent did not leave: %v", err), "")
		return nil
	})
	if cerr != nil {
		return verdict{}, true, cerr
	}
	return again(0), p.n.Job.Note == noteKexec, nil
}

// AgentStale takes in that an agent asks for a session of a boot that is over: it still runs. That matters where it is thought to have
// jumped: after a session that broke off, and did not come back in time, nobody knows. Then no system runs on the machine, and it is started
// the ordinary way.
func (e *Engine) AgentStale(ctx context.Context, nodeUUID, bootID string) {
	const why = "the agent still runs, although it was asked to start the installed system by kexec: the machine is restarted and boots from its disk"
	_, err := e.change(ctx, nodeUUID, func(n *node.Node, also *node.Also) error {
		b, j := n.Boot, n.Job
		if b == nil || !b.Ended || b.BootID != bootID {
			return errMoved
		}
		switch past := n.Past[node.PhaseDeploy]; {
		case j != nil && j.Phase == node.PhaseDeploy && j.Failure == "" && j.Sign == nil && jumped(j) && j.Note == "sign":
			j.Note, j.BegunAt = "cold off", time.Now().UTC()
			e.history(n, also, "boot", "WARNING", why, "")
			return e.resume(n, also)
		case j == nil && n.Provision == node.Active && past != nil && jumped(past) && n.TargetPower == "" && !n.Maintenance && past.Sign == nil && b.EnrolledAt.Before(past.EndedAt):
			e.history(n, also, "boot", "WARNING", why, "")
			b.BootID = "" // once
			e.beginPower(n, also, "rebooting", nil, "kexec")
			return nil
		}
		return errMoved
	})
	switch {
	case err == nil:
		e.wake(nodeUUID)
	case !errors.Is(err, errMoved):
		e.log.Warn("record that an agent still runs", "node", nodeUUID, "err", err)
	}
}

// kexecDelay is how long the agent waits between its leave and the jump: the time in which the machine's network is switched, where it is.
func (e *Engine) kexecDelay(n *node.Node) time.Duration {
	switch e.drivers.Interface(n, "network") {
	case "", "noop", "flat":
		return 0
	}
	return e.cfg.KexecDelay
}

// bootInstance starts the installed system, unless the agent has jumped into it, and waits for its sign of life, if one is asked for. A
// system that was started by kexec and gives none is started once more, by the machine's firmware.
func bootInstance(ctx context.Context, p *pass) (verdict, error) {
	e, j := p.e, p.n.Job
	a := startOf(j.Steps)
	hot := jumped(j)
	if err := e.watch(ctx, p, false); err != nil { // before it can show itself
		return verdict{}, err
	}
	switch j.Note {
	case "", "on asked":
		if !hot {
			v, err := powerOn(ctx, p)
			if err != nil || !v.done {
				return v, err
			}
		}
		if len(a.Signs) == 0 {
			return verdict{done: true, result: started(hot, false, nil)}, nil
		}
		return again(0), p.note(ctx, "sign", e.waitForSign)

	case "sign", "sign after cold boot":
		if j.Sign != nil {
			e.unwatch(p.n.UUID)
			return verdict{done: true, result: started(hot, j.Note != "sign", j.Sign)}, nil
		}
		if err := e.watch(ctx, p, true); err != nil {
			return verdict{}, err
		}
		from := j.BegunAt
		if e.began.After(from) {
			from = e.began // nobody listened before
		}
		limit := e.signTimeout(a)
		if left := time.Until(from.Add(limit)); left > 0 {
			return again(left), nil
		}
		if p.n.Maintenance {
			return again(e.cfg.Lease / 3), nil
		}
		none := fmt.Sprintf("the deployed system gave no sign of life (%s) within %s", strings.Join(a.Signs, ", "), limit)
		switch {
		case !hot || j.Note != "sign":
			if j.Note != "sign" {
				none += ", neither after kexec nor after a start by the machine's firmware"
			}
			return verdict{}, failf("%s: look at the machine's console; if the system runs well, correct %s", none, keySigns)
		case p.viaAgent():
			return verdict{}, failf("%s after kexec, and there is no controller to restart the machine with (power interface agent): look at its console, restart it by hand and deploy again", none)
		}
		return again(0), p.note(ctx, "cold off", func(n *node.Node, also *node.Also) error {
			if n.Job.Sign != nil {
				return errMoved // just in time
			}
			e.history(n, also, "boot", "WARNING", none+" after kexec; the machine is restarted and boots from its disk", "")
			return e.resume(n, also)
		})

	case "cold off", "cold off asked":
		if j.Sign != nil && j.Note == "cold off" {
			return again(0), p.note(ctx, "sign") // late, and still before anything was done
		}
		if !e.staysOn(p.n) {
			ok, v, err := p.reach(ctx, "cold off", power.Off, power.TurnOff, e.cfg.PowerTimeout)
			if !ok || err != nil {
				return v, err
			}
		}
		return again(0), p.note(ctx, "cold disk")

	case "cold disk": // many controllers forget what they were told before the jump
		if err := p.bootFromDisk(ctx); err != nil {
			return verdict{}, err
		}
		e.forgetAsked(p.n.UUID)
		next := "cold on"
		if e.staysOn(p.n) {
			next = "cold reset"
		}
		return again(0), p.note(ctx, next)

	case "cold reset":
		if err := p.call(ctx, "reset", func(ctx context.Context, d power.Driver) error { return d.SetPower(ctx, power.Reset) }); err != nil {
			return verdict{}, err
		}
		return again(0), p.note(ctx, "cold on")

	case "cold on", "cold on asked":
		ok, v, err := p.reach(ctx, "cold on", power.On, power.TurnOn, e.cfg.PowerTimeout)
		if !ok || err != nil {
			return v, err
		}
		return again(0), p.note(ctx, "sign after cold boot", e.waitForSign)
	}
	return verdict{}, failf("it was left at %q, which this version of Ingot does not know; ask for the operation again", j.Note)
}

// waitForSign leaves the next move to the system that starts.
func (e *Engine) waitForSign(n *node.Node, also *node.Also) error {
	n.Job.Detail = "waiting for a sign of life of the deployed system (" + strings.Join(startOf(n.Job.Steps).Signs, ", ") + ")"
	return e.waitForAgent(n, also)
}

// started is the result of boot_instance.
func started(hot, cold bool, sign *node.SignOfLife) json.RawMessage {
	r := struct {
		Method     string           `json:"method"`
		ColdBooted bool             `json:"cold_booted,omitempty"` // after a kexec that came to nothing
		Sign       *node.SignOfLife `json:"sign_of_life,omitempty"`
	}{bootReboot, cold, sign}
	if hot {
		r.Method = bootKexec
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil // of text and a time: never
	}
	return b
}

// bootFromDisk has the machine boot from its disk from now on. One that can't be told does so by itself, most likely: the choice of the
// network held for one boot only.
func (p *pass) bootFromDisk(ctx context.Context) error {
	if p.e.runsFromMemory(p.n) {
		return p.bootFromNetwork(ctx)
	}
	err := p.setBoot(ctx, power.Boot{Device: power.BootDisk, Persistent: true, Mode: p.bootMode()})
	if k := power.KindOf(err); k == power.Unsupported || k == power.Refused {
		reason := err.Error()
		_, err = p.change(ctx, func(n *node.Node, also *node.Also) error {
			p.e.history(n, also, "boot", "WARNING", "the boot device was not set to disk: "+reason, "")
			return nil
		})
	}
	return err
}
