package hardware

import (
	"context"
	"maps"
	"slices"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Plugs are the implementations by kind of interface and name. The value of a kind "console" is a Console, of "raid" a
// RAID, of "management" a Management, of "vendor" a Vendor; any of them, and those of other kinds, may be a Stepper.
type Plugs map[string]map[string]any

// Set finds the implementations of a node's interfaces.
type Set struct {
	use   func(n *node.Node, kind string) string
	plugs Plugs
}

// New makes a Set. use returns the name of the interface of a kind that a node uses.
func New(use func(n *node.Node, kind string) string, plugs Plugs) *Set {
	return &Set{use: use, plugs: plugs}
}

func find[T any](s *Set, n *node.Node, kind string, none T) T {
	if s == nil {
		return none
	}
	if v, ok := s.plugs[kind][s.use(n, kind)].(T); ok {
		return v
	}
	return none
}

// Console is the node's console, never nil.
func (s *Set) Console(n *node.Node) Console { return find[Console](s, n, "console", noConsole{}) }

// RAID returns the node's RAID interface, never nil.
func (s *Set) RAID(n *node.Node) RAID { return find[RAID](s, n, "raid", noRAID{}) }

// Management returns the other functions of the node's controller, never nil.
func (s *Set) Management(n *node.Node) Management {
	return find[Management](s, n, "management", NoManagement{})
}

// Monitor reads the health of the node's machine; nil when its management interface can't.
func (s *Set) Monitor(n *node.Node) Monitor { return find[Monitor](s, n, "management", nil) }

// Vendor has the vendor's own methods of the node, never nil: there may be none.
func (s *Set) Vendor(n *node.Node) Vendor { return find[Vendor](s, n, "vendor", noVendor{}) }

// kinds are those that may bring steps, in the order in which those of the same priority run, which is Ironic's.
var kinds = []string{"vendor", "power", "management", "deploy", "bios", "raid", "firmware", "inspect", "rescue",
	"storage"}

// Steps lists the steps that the node's interfaces bring along.
func (s *Set) Steps(n *node.Node) []Step {
	var steps []Step
	if s == nil {
		return nil
	}
	for _, kind := range kinds {
		if v, ok := s.plugs[kind][s.use(n, kind)].(Stepper); ok {
			steps = append(steps, v.Steps(n)...)
		}
	}
	return steps
}

// All lists the steps that interfaces bring along, whichever a node may use.
func (s *Set) All() []Step {
	var steps []Step
	if s == nil {
		return nil
	}
	for _, kind := range kinds {
		for _, name := range slices.Sorted(maps.Keys(s.plugs[kind])) {
			if v, ok := s.plugs[kind][name].(Stepper); ok {
				steps = append(steps, v.Steps(&node.Node{})...)
			}
		}
	}
	return steps
}

// Step finds a step by interface and name.
func (s *Set) Step(n *node.Node, iface, name string) (Step, bool) {
	for _, st := range s.Steps(n) {
		if st.Interface == iface && st.Name == name {
			return st, true
		}
	}
	return Step{}, false
}

// CheckArgs returns an *InvalidError when arguments are missing, unknown, or of the wrong form.
func (st Step) CheckArgs(n *node.Node, args map[string]any) error {
	if err := steparg.CheckValues(st.Interface+"."+st.Name, st.Args, args, true); err != nil {
		return &InvalidError{err.Error()}
	}
	if st.Check != nil {
		return st.Check(n, args)
	}
	return nil
}

func unsupported(n *node.Node, feature string) error {
	return &UnsupportedError{Driver: n.Driver, Feature: feature}
}

// noConsole is the console of a node that has none.
type noConsole struct{}

func (noConsole) Start(_ context.Context, n *node.Node) error { return unsupported(n, "console") }
func (noConsole) Stop(_ context.Context, n *node.Node) error  { return unsupported(n, "console") }
func (noConsole) Info(_ context.Context, n *node.Node) (map[string]any, error) {
	return nil, unsupported(n, "console")
}

type noRAID struct{}

func (noRAID) Properties(n *node.Node) ([]Property, error) { return nil, unsupported(n, "raid") }

// Check takes the configuration of nothing: one of an earlier interface can be cleared.
func (noRAID) Check(n *node.Node, config map[string]any) error {
	if len(config) == 0 {
		return nil
	}
	return unsupported(n, "raid")
}

type noVendor struct{}

func (noVendor) Methods(*node.Node) ([]Method, error) { return nil, nil }
func (noVendor) Check(_ *node.Node, method string, _ map[string]any) error {
	return Invalidf("No handler for method %s", method)
}
func (v noVendor) Call(_ context.Context, n *node.Node, method string, params map[string]any) (any, error) {
	return nil, v.Check(n, method, params)
}

// NoManagement refuses everything. Implementations embed it for the calls that they lack.
type NoManagement struct{}

// BootModes implements Management, as do all others: none is supported.
func (NoManagement) BootModes(_ context.Context, n *node.Node) ([]string, error) {
	return nil, unsupported(n, "get_supported_boot_modes")
}

// SetBootMode is not supported.
func (NoManagement) SetBootMode(_ context.Context, n *node.Node, _ string) error {
	return unsupported(n, "set_boot_mode")
}

// SetSecureBoot is not supported.
func (NoManagement) SetSecureBoot(_ context.Context, n *node.Node, _ bool) error {
	return unsupported(n, "set_secure_boot_state")
}

// InjectNMI is not supported.
func (NoManagement) InjectNMI(_ context.Context, n *node.Node) error {
	return unsupported(n, "inject_nmi")
}

// Indicators is not supported.
func (NoManagement) Indicators(_ context.Context, n *node.Node, _ string) ([]Indicator, error) {
	return nil, unsupported(n, "get_supported_indicators")
}

// Indicator is not supported.
func (NoManagement) Indicator(_ context.Context, n *node.Node, _, _ string) (string, error) {
	return "", unsupported(n, "get_indicator_state")
}

// SetIndicator is not supported.
func (NoManagement) SetIndicator(_ context.Context, n *node.Node, _, _, _ string) error {
	return unsupported(n, "set_indicator_state")
}

// VirtualMedia is not supported.
func (NoManagement) VirtualMedia(_ context.Context, n *node.Node) ([]Media, error) {
	return nil, unsupported(n, "get_virtual_media")
}

// AttachMedia is not supported.
func (NoManagement) AttachMedia(_ context.Context, n *node.Node, _, _ string) error {
	return unsupported(n, "attach_virtual_media")
}

// DetachMedia is not supported.
func (NoManagement) DetachMedia(_ context.Context, n *node.Node, _ []string) error {
	return unsupported(n, "detach_virtual_media")
}
