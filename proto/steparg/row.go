package steparg

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Phase is what a list of steps is for. The names are those of Ironic's step fields.
type Phase string

// The phases in which the agent's steps run.
const (
	Deploy  Phase = "deploy"
	Clean   Phase = "clean"
	Inspect Phase = "inspect"
	Service Phase = "service"
	Rescue  Phase = "rescue"
)

// OnRequest is the priority of a step that is not part of a phase by itself, but may be asked for in it. In deployment
// and cleaning every step may be, zero or not; on a machine with an instance (service) only what says so.
const OnRequest = -1

// Priorities are a step's own per phase; absent means that the step is not part of the phase unless asked for.
type Priorities map[Phase]int

// What a deployment can have, for Row.When.
const (
	WhenAgent    = "agent"       // the agent is booted for it
	WhenDisk     = "disk"        // a system is put on a disk
	WhenDrive    = "configdrive" // and a config drive beside it
	WhenKexec    = "kexec"       // and the system is started by kexec
	WhenLoaded   = "workload"    // a workload that runs from memory is started by the agent
	WhenFromLink = "network"     // such a workload boots from the network
)

var whens = []string{"", WhenAgent, WhenDisk, WhenDrive, WhenKexec, WhenLoaded, WhenFromLink}

// Row is all there is to know of a step, but for what does it. Steps of the agent stand in the ramdisk's manifest in
// this form, and the conductor derives from it which steps a deployment has, which orders of them make sense, what is
// shown of their arguments, and what runs again when an agent is lost.
type Row struct {
	Interface string `json:"interface"` // Ironic's word: deploy, raid, inspect, ...; "": any
	Name      string `json:"step"`
	// Description says in a sentence what the step does, for people.
	Description string     `json:"description,omitempty"`
	Args        []Arg      `json:"args,omitempty"`
	Priority    Priorities `json:"priority"`
	// When names what a deployment must have for the step to be part of it by its priority. "" is a system on a disk
	// for the agent's steps, and nothing for the conductor's.
	When string `json:"when,omitempty"`
	// From names what the step needs of what the steps before it Provide. An agent's step finds it in the memory of the
	// agent, so that the machine must not be restarted in between.
	From     []string `json:"from,omitempty"`
	Provides []string `json:"provides,omitempty"`
	// After and Before name steps of the same interface that have their place before and behind this one, where a
	// deployment has both.
	After  []string `json:"after,omitempty"`
	Before []string `json:"before,omitempty"`
	// Repeatable steps run again with those behind them when what an agent had in memory is lost; others take hours,
	// and stay done.
	Repeatable bool `json:"repeatable,omitempty"`
	Abortable  bool `json:"abortable,omitempty"` // stops at once when cancelled; else runs to its end
	// nanoseconds in JSON; fails when it shows no progress for this long
	Stall time.Duration `json:"stall,omitempty"`
	// nanoseconds in JSON; fails when one run takes longer, progress or not; zero: no limit
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Title is how the step is named to people.
func (r Row) Title() string { return r.Interface + "." + r.Name }

// interfaces is the order in which steps of the same priority run, which is Ironic's; others come last.
var interfaces = []string{"network", "vendor", "power", "management", "firmware", "deploy", "bios", "raid"}

// Compare orders steps by priority, highest first, then by interface.
func Compare(priorityA int, interfaceA string, priorityB int, interfaceB string) int {
	rank := func(name string) int {
		if i := slices.Index(interfaces, name); i >= 0 {
			return i
		}
		return len(interfaces)
	}
	return cmp.Or(priorityB-priorityA, rank(interfaceA)-rank(interfaceB))
}

// Precedes tells whether step a has its place before step b by what the rows say, those of steps between them included.
func Precedes(rows []Row, a, b Row) bool {
	seen := map[string]bool{}
	var leads func(from Row) bool
	leads = func(from Row) bool {
		if seen[from.Title()] {
			return false
		}
		seen[from.Title()] = true
		return slices.ContainsFunc(rows, func(to Row) bool {
			return from.directly(to) && (to.Title() == b.Title() || leads(to))
		})
	}
	return leads(a)
}

func (r Row) directly(to Row) bool {
	return r.Interface == to.Interface && (slices.Contains(r.Before, to.Name) || slices.Contains(to.After, r.Name)) ||
		slices.ContainsFunc(r.Provides, func(what string) bool { return slices.Contains(to.From, what) })
}

// Secrets are the names of the arguments that must not be shown.
func Secrets(rows []Row) (names []string) {
	for _, r := range rows {
		for _, a := range r.Args {
			if a.Secret {
				names = append(names, a.Name)
			}
		}
	}
	return names
}

// CheckRows finds faults of a table: two steps of one name, a step without a name, one that has its place before
// itself, a fault in what arguments it declares.
func CheckRows(rows []Row) error {
	var errs []error
	seen := map[string]bool{}
	for _, r := range rows {
		title := r.Title()
		if seen[title] {
			errs = append(errs, fmt.Errorf("step %s is in the table twice", title))
		}
		seen[title] = true
		if r.Interface == "" || r.Name == "" {
			errs = append(errs, fmt.Errorf("step %q lacks an interface or a name", title))
		}
		if !slices.Contains(whens, r.When) {
			errs = append(errs, fmt.Errorf("step %s is to run when a deployment has %q, which is unknown", title, r.When))
		}
		if Precedes(rows, r, r) {
			errs = append(errs, fmt.Errorf("step %s has its place before itself", title))
		}
		if err := Declared(r.Args); err != nil {
			errs = append(errs, fmt.Errorf("step %s: %w", title, err))
		}
	}
	return errors.Join(errs...)
}
