package steparg

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Phase is the purpose of a list of steps. The names are those of Ironic's step fields.
type Phase string

// The phases in which the agent's steps run.
const (
	Deploy  Phase = "deploy"
	Clean   Phase = "clean"
	Inspect Phase = "inspect"
	Service Phase = "service"
	Rescue  Phase = "rescue"
)

// OnRequest is the priority of a step that runs in a phase only on request. In deployment and cleaning every step may
// be requested, zero or not; on a machine with an instance (service) only steps with this priority.
const OnRequest = -1

// Priorities are a step's own per phase; absent means that the step runs in the phase only on request.
type Priorities map[Phase]int

// Properties of a deployment, for Row.When.
const (
	WhenAgent    = "agent"       // the agent is booted for it
	WhenDisk     = "disk"        // a system is installed on a disk
	WhenDrive    = "configdrive" // with a config drive
	WhenKexec    = "kexec"       // and the system is started by kexec
	WhenLoaded   = "workload"    // a workload that runs from memory is started by the agent
	WhenFromLink = "network"     // such a workload boots from the network
)

// ExportTarget is the iSCSI name of a disk that step export_disk lends: an agent lends one at a time.
const ExportTarget = "iqn.2026-01.dev.ingot:disk"

var whens = []string{"", WhenAgent, WhenDisk, WhenDrive, WhenKexec, WhenLoaded, WhenFromLink}

// Row describes a step, without its function. The rows of the agent's steps are in the ramdisk's manifest, and the
// conductor derives from them the steps of a deployment, their possible orders, the visible arguments, and the steps to
// repeat when an agent is lost.
type Row struct {
	Interface string `json:"interface"` // Ironic's name: deploy, raid, inspect, ...; "": any
	Name      string `json:"step"`
	// Description describes the step in a sentence, for people.
	Description string     `json:"description,omitempty"`
	Args        []Arg      `json:"args,omitempty"`
	Priority    Priorities `json:"priority"`
	// When names the property that a deployment needs for the step to be part of it by its priority. "" is a system on
	// a disk for the agent's steps, and no condition for the conductor's.
	When string `json:"when,omitempty"`
	// From names the step's inputs among the outputs (Provide) of earlier steps. An agent's step finds them in the
	// agent's memory, so the machine must not be restarted in between.
	From     []string `json:"from,omitempty"`
	Provides []string `json:"provides,omitempty"`
	// After and Before name steps of the same interface that must come before and after this one, if a deployment has
	// both.
	After  []string `json:"after,omitempty"`
	Before []string `json:"before,omitempty"`
	// Repeatable steps run again with the following ones when the agent's memory is lost; others take hours, and are
	// not repeated.
	Repeatable bool `json:"repeatable,omitempty"`
	Abortable  bool `json:"abortable,omitempty"` // stops at once when cancelled; else runs to its end
	// nanoseconds in JSON; without progress for this long the step fails
	Stall time.Duration `json:"stall,omitempty"`
	// nanoseconds in JSON; a run that takes longer fails, progress or not; zero: no limit
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Title is the step's name for people.
func (r Row) Title() string { return r.Interface + "." + r.Name }

// interfaces is the order of steps with the same priority, as in Ironic; others come last.
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

// Precedes reports whether step a must come before step b according to the rows, including steps between them.
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

// Secrets returns the names of the arguments that must not be shown.
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

// CheckRows returns the faults of a table: two steps of one name, a step without a name, one that must come before
// itself, invalid declarations of arguments.
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
