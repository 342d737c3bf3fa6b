// Package hardware is the contract of a node's interfaces other than power: console, RAID, BIOS settings, boot mode,
// indicators, virtual media, vendor methods, and the steps that such interfaces bring along.
//
// A node's interfaces choose the implementation ("console_interface": "fake"), so that "not supported" is a property of
// the node and not of a route: a Set finds the implementation, or one that refuses every call with an *UnsupportedError
// when the node's interface is a no-... or lacks the feature. Power and boot devices are in conductor/hardware/power.
//
// Implementations do not write to the store. The documentation of each method says which changes of the node's record
// the caller stores after the call returned nil; those of a step are in its Outcome, to be stored together with the
// step's end.
package hardware

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// UnsupportedError says that the node's interface can't do something. Its text is the one that clients of the API know.
type UnsupportedError struct {
	Driver  string // hardware type
	Feature string // "console", "set_boot_mode", ...
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("Driver %s does not support %s (disabled or not implemented).", e.Driver, e.Feature)
}

// InvalidError says that a request makes no sense; its text is a sentence for the client.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

// Invalidf makes an *InvalidError.
func Invalidf(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// Console controls access to a machine's console. The caller stores ConsoleEnabled after Start and Stop.
type Console interface {
	// Start makes the console reachable, and is called again when in doubt.
	Start(ctx context.Context, n *node.Node) error
	// Stop ends it; one that does not run is no error.
	Stop(ctx context.Context, n *node.Node) error
	// Info returns how to reach a console that was started: console_info of the API.
	Info(ctx context.Context, n *node.Node) (map[string]any, error)
}

// RAID checks the target configuration of a node's disks. The caller sets target_raid_config; steps carry it out.
type RAID interface {
	// Properties describes the properties of a logical disk, in the order in which they are shown.
	Properties(n *node.Node) ([]Property, error)
	// Check returns an *InvalidError for a target_raid_config that can't be made; nil for one that can, and for an
	// empty one.
	Check(n *node.Node, config map[string]any) error
}

// Property is a name and its meaning.
type Property struct{ Name, Description string }

// Management is the functions of a controller other than power and boot devices.
type Management interface {
	// BootModes are the modes that SetBootMode takes.
	BootModes(ctx context.Context, n *node.Node) ([]string, error)
	// SetBootMode chooses "bios" or "uefi"; the caller stores BootMode.
	SetBootMode(ctx context.Context, n *node.Node, mode string) error
	// SetSecureBoot turns Secure Boot on or off; the caller stores SecureBoot.
	SetSecureBoot(ctx context.Context, n *node.Node, on bool) error
	// InjectNMI sends a non-maskable interrupt.
	InjectNMI(ctx context.Context, n *node.Node) error
	// Indicators lists the lamps there are, in the order in which they are shown; of one component if that is not
	// empty.
	Indicators(ctx context.Context, n *node.Node, component string) ([]Indicator, error)
	// Indicator reads a lamp: "on", "off", "blinking", "unknown".
	Indicator(ctx context.Context, n *node.Node, component, name string) (string, error)
	// SetIndicator switches a lamp.
	SetIndicator(ctx context.Context, n *node.Node, component, name, state string) error
	// VirtualMedia lists the devices, in the words of Redfish, and their media.
	VirtualMedia(ctx context.Context, n *node.Node) ([]Media, error)
	// AttachMedia puts an image into a device ("cdrom", "disk", "floppy").
	AttachMedia(ctx context.Context, n *node.Node, device, url string) error
	// DetachMedia ejects the media of the devices; of all if none are named.
	DetachMedia(ctx context.Context, n *node.Node, devices []string) error
}

// Monitor is a Management that reads how the machine is.
type Monitor interface {
	// Controller names the node's controller, for callers that ask each about one node at a time.
	Controller(n *node.Node) string
	// Health reads; it takes seconds to minutes. The caller fills in NodeUUID and the times, and stores the reading.
	Health(ctx context.Context, n *node.Node) (*node.Reading, error)
}

// Indicator is a lamp of a machine.
type Indicator struct {
	Component, Name string // "chassis", "led-0"
	ReadOnly        bool
	States          []string
}

// Media is a device for virtual media; URL is empty when nothing is in it.
type Media struct {
	Types    []string // "CD", "DVD", "USBStick", "Floppy"
	URL      string
	Inserted bool
}

// Method is a vendor's own call.
type Method struct {
	Name, Description string
	HTTPMethods       []string
	Async             bool // 202 and done in the background; else 200 with the result
	Attach            bool // the result is a file
	Exclusive         bool // not while something else is under way on the node
}

// Vendor has the methods of vendor_passthru, by name.
type Vendor interface {
	Methods(n *node.Node) ([]Method, error)
	// Call carries out a method that Methods lists. An *InvalidError names a fault of the parameters: Check finds that
	// before anything is done, so that an asynchronous call is refused at once.
	Check(n *node.Node, method string, params map[string]any) error
	Call(ctx context.Context, n *node.Node, method string, params map[string]any) (any, error)
}

// Arg is an argument of a step.
type Arg = steparg.Arg

// Step is something that an interface does as part of a job, by the conductor (out of band). Interface and Name are
// those of a node.JobStep.
type Step struct {
	Interface, Name, Description string
	Args                         []Arg
	// Priority has the phases that the step may run in. With 0 it runs only on request.
	Priority  map[node.Phase]int
	Abortable bool
	// Check looks at arguments before anything is done, beyond what Args say of them; nil: that is all there is to
	// check.
	Check func(n *node.Node, args map[string]any) error
	// Limit is how long one call of Run may take; 0 is power.call_timeout.
	Limit time.Duration
	// Run does the step or the next part of it. It is called again after Outcome.After, and may be called again for a
	// step that was done, when the conductor was killed before it could store that. It must not take long: what takes
	// time is waited for by After. An error of package power that may pass is followed by another call.
	Run func(ctx context.Context, c Call) (Outcome, error)
}

// Call is a step under way.
type Call struct {
	Node  *node.Node // as it is stored; not to be changed
	Args  map[string]any
	Begun time.Time // when the step was run first in this job
	// the same for every call of this step in this job, and for no other: the job's ID and the step's index
	ID string
	// Memory is that of the call before; empty in the first.
	Memory []byte
}

// Outcome is the result of one call of a step.
type Outcome struct {
	// After is how long to wait before the next call; zero means that the step is done.
	After time.Duration
	// Memory is for the step's next call, whatever happens to the conductor in between: it is stored before that. At
	// most MaxMemory bytes, without secrets.
	Memory []byte
	// Restart has the machine restarted before the next call, which comes as soon as the machine is on again: with the
	// agent, if the job has one that runs. A machine that is off is turned on.
	Restart bool
	// Detail says what is waited for, for people; "" leaves it as it is.
	Detail string
	// Hold leaves the job waiting until a person or the agent goes on (the wait states).
	Hold bool
	// Found is the result of an inspection, in the form in which the agent sends it (inventory, and plugin data beside
	// it): hooks and rules are applied to it, and may fail the step. nil: the step is no inspection.
	Found json.RawMessage
	// Apply changes the node's record, stored together with the end of the step; nil: nothing to change.
	Apply func(n *node.Node, effects *node.SideEffects) error
}

// MaxMemory bounds the memory of a step, in bytes.
const MaxMemory = 64 << 10

// Stepper is an interface that brings steps along.
type Stepper interface {
	// Steps lists the steps for a node, which may depend on its driver_info.
	Steps(n *node.Node) []Step
}
