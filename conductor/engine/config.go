package engine

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Config is the engine's configuration. Zero values mean the defaults named here.
type Config struct {
	// TraceID is the ID of the trace of a job, for the log; nil: there are no traces.
	TraceID  func(job string) string
	Hostname string // names this conductor in reservations and histories
	// Conductors says which nodes are this conductor's; nil: it is the only one.
	Conductors Conductors
	Workers    int // nodes worked on at once; 32
	// Meter counts what the engine does; nil: nothing is counted.
	Meter meter

	DHCP string // netboot.dhcp, which decides which events of a booting machine are seen; "": this conductor boots none

	AllowUnverified bool             // deploy images without a digest
	AllowMD5        bool             // deploy images of which no more than an MD5 sum is known
	AllowExport     bool             // deployments may lend the machine's disk to another host
	Writers         []program.Writer // hosts that write disks for deploy interface iscsi
	AutomatedClean  bool             // clean on the way to available, unless the node says otherwise
	// keep the agent between inspection, cleaning and deployment, unless the node's driver_info.fast_track says
	// otherwise
	FastTrack bool
	BootMode  string // "bios", "uefi", or "" for the machine's own setting; a node's capabilities override it
	// URL below which the conductor's own images are served; for an image_source that is a bare file name
	ImageBase string
	Images    ImageService // of OpenStack; nil: image_source names no image of its

	BootTimeout  time.Duration // from the opened boot window to a connected agent; 30 min
	SessionGrace time.Duration // how long an agent may be out of reach before its machine is booted anew; 60 s
	Silence      time.Duration // how long a connected agent may say nothing about its plan; 30 min
	// how long the store and the session here may say different things of an agent; 5 s, tests take less
	sessionSettles time.Duration
	MaxBoots       int // boots of the agent per job; 3
	// of a machine whose installed system started instead of the agent, per job; 2, negative: none
	Restarts  int
	PlanTries int // tries of a plan per boot, if its failure says that trying again makes sense; 2

	PowerTimeout   time.Duration // from the request to turn on or off until it is done; 60 s
	SoftOffTimeout time.Duration // the same for shutting down an operating system; 10 min
	AgentOff       time.Duration // how long the agent may take to end its boot before the power is cut; 30 s
	PowerPoll      time.Duration // between two readings of power while waiting; 1 s
	CallTimeout    time.Duration // one call to a controller; 60 s
	RetryBase      time.Duration // first pause after a failed call, doubled each time; 1 s
	RetryTries     int           // calls in a row before giving up; 5
	PowerSync      time.Duration // between two readings of every machine's power; 60 s, negative: never
	// readings that must fail in a row, or settings back that are undone, before that is a fault; 3
	PowerSyncTries int
	// a machine found on or off against the record is set back, instead of correcting the record
	ForcePower bool
	Rescan     time.Duration // between two searches of the store for work that was not reported; 60 s

	// how an installed system is started unless the node says otherwise: "reboot", which is the default, or "kexec"
	BootInstance string
	KexecDelay   time.Duration // how long an agent waits before a kexec for its network to be switched; 5 s
	SignOfLife   []string      // what deployments wait for unless the node says otherwise, see signoflife.Parse; none
	SignTimeout  time.Duration // how long; 10 min
	PhoneHomeURL string        // where deployed systems reach this conductor; "": phone_home can't be requested
	PhoneHomeKey []byte        // makes the tokens of phone_home

	SignNetworks []netip.Prefix // where addresses of network_data are tried for a port as a sign of life; none
	signGuard    *dial.Guard    // which addresses are tried for that; nil, as it is but in tests, exempts nothing
	Guard        *dial.Guard    // which addresses are connected to for a user; nil exempts nothing

	Inspection inspect.Options // hooks and the site's own rules; without hooks those that are on by default

	// The ramdisk's table of steps and its digest, from its manifest. Without them requests can name only the engine's
	// own steps, and agents are not compared.
	AgentSteps  catalog.Table
	StepsDigest string
	// Priorities are those of steps ("interface.step") that are not to run, or to run at another place than by
	// themselves, by phase; 0 leaves a step out.
	Priorities map[node.Phase]map[string]int
}

// site returns the part of the configuration that is about instances.
func (e *Engine) site() instance.Site {
	s := instance.Site{AllowUnverified: e.cfg.AllowUnverified, AllowMD5: e.cfg.AllowMD5,
		DefaultBootMode: e.cfg.BootMode, ImageBase: e.cfg.ImageBase}
	if e.cfg.Images != nil {
		s.GlanceAddress = e.cfg.Images.Address
	}
	return s
}

// ImageURL is the address of an image; "" for what is none.
func (e *Engine) ImageURL(source string) string { return e.site().ImageURL(source) }

func (c Config) withDefaults() Config {
	c.Hostname, c.Meter = cmp.Or(c.Hostname, "ingotd"), cmp.Or(c.Meter, meter(noMeter{}))
	for at, usual := range map[*int]int{
		&c.Workers: 32, &c.MaxBoots: 3, &c.Restarts: 2, &c.PlanTries: 2, &c.RetryTries: 5, &c.PowerSyncTries: 3,
	} {
		*at = cmp.Or(*at, usual)
	}
	for at, usual := range map[*time.Duration]time.Duration{
		&c.BootTimeout: 30 * time.Minute, &c.SessionGrace: time.Minute, &c.Silence: 30 * time.Minute,
		&c.sessionSettles: 5 * time.Second, &c.KexecDelay: 5 * time.Second, &c.SignTimeout: 10 * time.Minute,
		&c.PowerTimeout:   time.Minute,
		&c.SoftOffTimeout: 10 * time.Minute, &c.AgentOff: 30 * time.Second, &c.PowerPoll: time.Second,
		&c.CallTimeout: time.Minute, &c.RetryBase: time.Second, &c.PowerSync: time.Minute, &c.Rescan: time.Minute,
	} {
		*at = cmp.Or(*at, usual)
	}
	if c.Inspection.Hooks == nil {
		c.Inspection.Hooks = hook.Default()
	}
	if len(c.AgentSteps) == 0 {
		c.AgentSteps = catalog.BuiltinSteps()
	}
	return c
}

// planner makes programs of jobs.
func (e *Engine) planner() program.Planner {
	c := &e.cfg
	return program.Planner{
		Site: e.site(), AgentSteps: c.AgentSteps, Priorities: c.Priorities, AutomatedClean: c.AutomatedClean,
		LLDPTimeout: c.Inspection.LLDPTimeout, AllowExport: c.AllowExport, Writers: c.Writers,
		Start: start.Options{Method: c.BootInstance, Signs: c.SignOfLife, PhoneHomeURL: c.PhoneHomeURL,
			PhoneHomeKey: c.PhoneHomeKey, Drivers: e.drivers, Log: e.log},
		Own: e.rows, Drivers: e.drivers, Plugs: e.plugs, Library: e.db,
	}
}

// UnknownPriorities lists the configuration's overrides that match no step with a priority of its own: mistyped, of
// another ramdisk, or one of the conductor's steps, whose priorities are fixed. Each has its phase before it ("clean:
// deploy.erase_device").
func (e *Engine) UnknownPriorities() []string { return e.planner().UnknownPriorities() }
