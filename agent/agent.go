package agent

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

// protocol is this agent's version of the contract.
const protocol = 1

// system is the part of the machine that the agent itself uses; steps declare their own.
type system interface {
	SetClock(t time.Time) error
	KernelLog() ([]byte, error)
	// End flushes and unmounts everything it can and ends this boot: "reboot", "off", or "kexec" into the loaded
	// kernel. It returns only if that failed.
	End(ctx context.Context, how string) error
	// KernelLoaded reports whether a kernel is ready for a jump.
	KernelLoaded() bool
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// network is the part of the network that the agent uses.
type network interface {
	// Wait returns when there is an address and a route to the conductor.
	Wait(ctx context.Context) error
	// Rotate prefers another link, if there is a suitable one.
	Rotate()
	// Reset drops all links and addresses and starts to acquire them again; Wait waits for that from then on.
	Reset(ctx context.Context) error
	// Leave releases leases and takes links down; Reset brings them up again.
	Leave(ctx context.Context) error
	// Summary lists the machine's addresses for the console.
	Summary() string
}

// Options of an Agent.
type Options struct {
	Config   Config
	Version  string
	Identity inventory.Identity
	MACs     func() []string // addresses of the present interfaces, as drivers load late; nil: Identity's
	Steps    []step.Step
	System   system
	Network  network
	Shell    rescue.Machine    // shell for logins in rescue; nil: no logins
	SSH      string            // address and port for logins; empty: ":22"
	BuiltCA  *x509.Certificate // CA built into the ramdisk, or nil
	Log      slog.Handler      // second receiver of log records, besides the conductor
	Status   *Status           // status lines for the console; nil: none
	State    string            // StateFile; empty: no state is kept
	LogFiles []string          // files for CollectLogs
	// Dial connects to a conductor's HOST:PORT; nil: TCP, from any address of the machine.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Restarts counts the restarts of the agent by the first process; Reason is the cause of the last one.
	Restarts int
	Reason   string
}

// Agent is one agent in one boot of its machine. Its parts only know lower ones: the session knows the plans, and both
// know the memory and the queue of messages for the conductor.
type Agent struct {
	o       Options
	log     *slog.Logger
	q       *queue
	mem     *memory
	rescue  *rescue.Host
	plans   *plans
	session *session
}

// New returns an agent, with the state of an earlier worker of the same boot.
func New(o Options) (*Agent, error) {
	if err := step.Check(o.Steps); err != nil {
		return nil, err
	}
	m, err := step.Describe(o.Steps)
	if err != nil {
		return nil, err
	}
	o.Status = cmp.Or(o.Status, NewStatus(nil))
	o.Log = cmp.Or(o.Log, slog.DiscardHandler)
	a := &Agent{o: o, q: newQueue()}
	level := slog.LevelInfo
	if o.Config.Debug {
		level = slog.LevelDebug
	}
	a.log = slog.New(&logHandler{local: o.Log, q: a.q, level: level})
	neighbours := swarm.New(a.log, a.q.rouse)
	a.rescue = rescue.New(o.Shell, o.SSH, a.log)
	a.q.swarm = func(now time.Time) (*agentv1.Event, time.Duration) { return swarmEvent(neighbours, now) }
	a.mem = &memory{file: o.State, log: a.log, q: a.q, open: a.rescue.Keep}
	key, err := a.inherit()
	if err != nil {
		return nil, err
	}
	a.plans = &plans{runner: &step.Runner{Table: o.Steps, Log: a.log}, log: a.log, status: o.Status, q: a.q, mem: a.mem,
		swarm: neighbours, rescue: a.rescue, settle: o.System.Settle, facts: &step.Facts{}}
	a.session = &session{o: &a.o, log: a.log, q: a.q, mem: a.mem, plans: a.plans, swarm: neighbours, key: key,
		digest: m.Digest, started: o.Identity.Uptime(),
		route: newRoute(o.Config.Conductors, a.mem.st.Conductors, a.mem.st.Conductor),
		trust: trust{pin: o.Config.CA, next: o.Config.NextCA, built: o.BuiltCA, seen: &seen{}}}
	a.q.save = a.mem.save
	a.mem.save()
	return a, nil
}

// inherit reads the last worker's state. A plan that was running then has failed: half a step can't be resumed. It
// returns the key of this boot.
func (a *Agent) inherit() (*ecdsa.PrivateKey, error) {
	var old *saved
	if a.o.State != "" {
		var err error
		if old, err = loadState(a.o.State, a.o.Identity.BootID); err != nil {
			// An unreadable state file means a new key, which the conductor refuses: the reason must be visible.
			a.log.Error("the last worker's state is lost", "err", err)
		}
	}
	if old == nil {
		key, err := newKey()
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, fmt.Errorf("keep the key: %w", err)
		}
		a.mem.st = saved{BootID: a.o.Identity.BootID, Key: der}
		return key, nil
	}
	key, err := old.key()
	if err != nil {
		return nil, err
	}
	events, err := old.events()
	if err != nil {
		a.log.Error("results of the last worker are lost", "err", err)
	}
	a.mem.st = *old
	a.mem.st.Results = nil
	if old.Rescue != nil {
		if err := a.rescue.Restore(old.Rescue); err != nil {
			a.log.Error("rescue could not be reopened: logins are not possible", "err", err)
		}
	}
	a.q.lastSeq, a.q.results = old.LastSeq, events
	reason := cmp.Or(a.o.Reason, "the agent was started again")
	a.q.result(&agentv1.Event{Body: &agentv1.Event_WorkerRestarted{WorkerRestarted: &agentv1.WorkerRestarted{
		Reason: reason, Count: uint32(max(a.o.Restarts, 0)),
	}}})
	if p := old.Plan; p.Running {
		a.q.result(&agentv1.Event{Body: &agentv1.Event_StepFinished{StepFinished: &agentv1.StepFinished{
			PlanId: p.ID, StepIndex: uint32(p.Index), Interface: p.Interface, Name: p.Name,
			Outcome: agentv1.Outcome_OUTCOME_FAILED,
			Error:   fmt.Sprintf("the agent died in step %s (%s)", p.Name, reason),
			Remedy:  "try again; if it happens again report it as a bug of the agent, with its log", Retryable: true,
		}}})
		a.q.result(&agentv1.Event{Body: &agentv1.Event_PlanFinished{PlanFinished: &agentv1.PlanFinished{PlanId: p.ID}}})
		a.mem.st.Plan.Running = false
	}
	return key, nil
}

// Run connects the agent to its conductor and serves it until ctx ends or the boot is over. It waits for a running
// plan.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.o.Config.Validate(); err != nil {
		a.o.Status.Line("%v: nothing to do", err)
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer a.rescue.Close("the agent ends")
	defer a.plans.work.Wait()
	defer stop()
	a.log.Info("agent started", "version", a.o.Version, "restarts", a.o.Restarts, "boot_mode", a.o.Identity.BootMode)
	a.o.Status.Line("waiting for the network")
	if err := a.o.Network.Wait(ctx); err != nil {
		return err
	}
	a.o.Status.Line("network: %s", a.o.Network.Summary())
	a.log.Info("network is up", "addresses", a.o.Network.Summary())
	err := a.session.run(ctx)
	if ctx.Err() != nil {
		a.plans.cancel("")
		return context.Cause(ctx)
	}
	return err
}
