package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/protobuf/proto"
)

// protocol is the version of the contract that this agent speaks.
const protocol = 1

// system is what the agent itself asks of the machine; steps have seams of their own.
type system interface {
	SetClock(t time.Time) error
	KernelLog() ([]byte, error)
	// End flushes and unmounts what it can and ends this boot: "reboot", "off", or "kexec" into what was loaded. It
	// returns only when that failed.
	End(ctx context.Context, how string) error
	// KernelLoaded tells whether a kernel is ready for a jump.
	KernelLoaded() bool
	// Settle waits, within reason, until the drivers have brought up their devices.
	Settle(ctx context.Context) error
}

// network is what the agent asks of the network: to be up, and to try another way when the conductor can't be reached.
type network interface {
	// Wait returns when there is an address and a route to the conductor.
	Wait(ctx context.Context) error
	// Rotate prefers another link, if there is one that could do.
	Rotate()
	// Reset lets go of all links and addresses and begins to acquire them anew; Wait waits for that from then on.
	Reset(ctx context.Context) error
	// Leave gives leases back and takes links down; Reset brings them back.
	Leave(ctx context.Context) error
	// Summary is the machine's addresses for a person at the console.
	Summary() string
}

// Options is what an Agent is made of.
type Options struct {
	Config   Config
	Version  string
	Identity inventory.Identity
	MACs     func() []string // addresses of the interfaces there are by now: drivers come up late; nil: Identity's
	Steps    []step.Step
	System   system
	Network  network
	Shell    rescue.Door       // what people who log in to a rescued machine get; nil: nobody can
	SSH      string            // where they do: address and port; empty: ":22"
	BuiltCA  *x509.Certificate // CA built into the ramdisk, or nil
	Log      slog.Handler      // where log records go besides the conductor
	Status   *Status           // status lines for a person at the console; nil: none
	State    string            // StateFile; empty keeps nothing
	LogFiles []string          // what CollectLogs packs
	// Restarts and Reason tell how often the first process had to start the agent again, and why the last time.
	Restarts int
	Reason   string
}

// Agent is one agent in one boot of its machine.
type Agent struct {
	o      Options
	log    *slog.Logger
	q      *queue
	runner *step.Runner
	digest string
	trust  trust
	key    *ecdsa.PrivateKey
	facts  *step.Facts // of the work in progress, which may come in several plans
	swarm  *swarm.Node
	rescue *rescue.Host
	// started is how long the kernel had been up when this was made.
	started time.Duration

	saveMu sync.Mutex // one writer of the state file at a time

	mu      sync.Mutex
	st      saved
	running context.CancelFunc // cancels the running plan; nil when none runs
	ended   chan struct{}      // closed when the running plan has ended
	next    *agentv1.Plan      // starts when the running plan has ended
	phase   string             // of the plan the facts belong to
	carry   bool               // the last plan was done, so its facts count for the next one
	plans   sync.WaitGroup
}

// New makes an agent, taking over what an earlier worker of the same boot left behind.
func New(o Options) (*Agent, error) {
	if err := step.Check(o.Steps); err != nil {
		return nil, err
	}
	m, err := step.Describe(o.Steps)
	if err != nil {
		return nil, err
	}
	if o.Status == nil {
		o.Status = NewStatus(nil)
	}
	if o.Log == nil {
		o.Log = slog.DiscardHandler
	}
	a := &Agent{o: o, q: newQueue(), digest: m.Digest,
		trust: trust{pin: o.Config.CA, next: o.Config.NextCA, built: o.BuiltCA, seen: &seen{}}, facts: &step.Facts{},
		started: o.Identity.Uptime()}
	level := slog.LevelInfo
	if o.Config.Debug {
		level = slog.LevelDebug
	}
	a.log = slog.New(&logHandler{local: o.Log, q: a.q, level: level})
	a.swarm = swarm.New(a.log, a.q.rouse)
	a.rescue = rescue.New(o.Shell, o.SSH, a.log)
	a.q.swarm = func(now time.Time) (*agentv1.Event, time.Duration) { return swarmEvent(a.swarm, now) }
	a.runner = &step.Runner{Table: o.Steps, Log: a.log}
	if err := a.inherit(); err != nil {
		return nil, err
	}
	a.q.save = a.save
	a.save()
	return a, nil
}

// Log is the logger whose records reach both the local log and the conductor.
func (a *Agent) Log() *slog.Logger { return a.log }

// inherit reads what the last worker left. A plan that ran when it died has failed: half of a step can't be taken up
// again.
func (a *Agent) inherit() error {
	var old *saved
	if a.o.State != "" {
		var err error
		if old, err = loadState(a.o.State, a.o.Identity.BootID); err != nil {
			// A state file that can't be read means a new key, which the conductor refuses: better said than hidden.
			a.log.Error("the last worker's state is lost", "err", err)
		}
	}
	if old == nil {
		key, err := newKey()
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return fmt.Errorf("keep the key: %w", err)
		}
		a.key, a.st = key, saved{BootID: a.o.Identity.BootID, Key: der}
		return nil
	}
	key, err := old.key()
	if err != nil {
		return err
	}
	events, err := old.events()
	if err != nil {
		a.log.Error("results of the last worker are lost", "err", err)
	}
	a.key, a.st = key, *old
	a.st.Results = nil
	if old.Rescue != nil {
		if err := a.rescue.Restore(old.Rescue); err != nil {
			a.log.Error("nobody can log in to this machine any more", "err", err)
		}
	}
	a.q.lastSeq, a.q.results = old.LastSeq, events
	reason := a.o.Reason
	if reason == "" {
		reason = "the agent was started again"
	}
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
		a.st.Plan.Running = false
	}
	return nil
}

// save writes the state file. The queue calls it after each change of the results, and the agent after each change of
// its own.
func (a *Agent) save() {
	if a.o.State == "" {
		return
	}
	a.saveMu.Lock()
	defer a.saveMu.Unlock()
	open := a.rescue.Keep()
	a.mu.Lock()
	st := a.st
	st.Rescue = open
	st.PlansSeen = append([]string(nil), st.PlansSeen...)
	a.mu.Unlock()
	a.q.mu.Lock()
	st.LastSeq = a.q.lastSeq
	for _, e := range a.q.results {
		if b, err := proto.Marshal(e); err == nil {
			st.Results = append(st.Results, b)
		}
	}
	a.q.mu.Unlock()
	if err := st.store(a.o.State); err != nil {
		a.log.Error("a restart of the agent would lose results", "err", err)
	}
}

// change alters the state under the lock and writes it.
func (a *Agent) change(f func(*saved)) {
	a.mu.Lock()
	f(&a.st)
	a.mu.Unlock()
	a.save()
}

// Run brings the agent to its conductor and serves it until ctx ends or the boot is over. It waits for a plan that
// runs.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.o.Config.Validate(); err != nil {
		a.o.Status.Line("%v: nothing to do", err)
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer a.rescue.Close("the agent ends")
	defer a.plans.Wait()
	defer stop()
	a.log.Info("agent started", "version", a.o.Version, "restarts", a.o.Restarts, "boot_mode", a.o.Identity.BootMode)
	a.o.Status.Line("waiting for the network")
	if err := a.o.Network.Wait(ctx); err != nil {
		return err
	}
	a.o.Status.Line("network: %s", a.o.Network.Summary())
	a.log.Info("network is up", "addresses", a.o.Network.Summary())
	err := a.sessions(ctx)
	if ctx.Err() != nil {
		a.cancelPlan("")
		return context.Cause(ctx)
	}
	return err
}

// errEnded means that the conductor asked for the end of this boot.
var errEnded = errors.New("this boot is over")
