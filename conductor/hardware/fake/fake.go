// Package fake has the interfaces called "fake" of hardware type fake-hardware: consoles, RAID, BIOS settings,
// firmware, indicators, vendor methods, and steps for every phase, of machines that exist only in memory.
//
// They do what Ironic's fakes do, and in addition remember: what bios.apply_configuration set is in the node's BIOS
// settings, what raid.create_configuration made is in its raid_config. How long things take and what fails is dialled
// in per node, in driver_info: fake_delay, fake_<kind>_delay and fake_fail, which conductor/hardware/power/fake reads.
// A step that takes time waits by hardware.Outcome.After; how long is decided by the step's ID, so that it ends when it
// was going to even if the conductor is killed meanwhile. Indicators, media and counted failures are forgotten with the
// process.
package fake

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Fakes are the interfaces of all fake machines of one process.
type Fakes struct {
	machines *powerfake.Machines
	now      func() time.Time

	mu    sync.Mutex
	lamps map[[3]string]string // node, component, name -> state
	media map[[2]string]string // node, device -> URL
}

// New makes the interfaces. machines counts failures; the power driver should have the same. A nil now is time.Now.
func New(machines *powerfake.Machines, now func() time.Time) *Fakes {
	if now == nil {
		now = time.Now
	}
	return &Fakes{machines: machines, now: now, lamps: map[[3]string]string{}, media: map[[2]string]string{}}
}

// Plugs are the interfaces by kind, all named "fake".
func (f *Fakes) Plugs() hardware.Plugs {
	return hardware.Plugs{
		"console":    {"fake": console{f}},
		"management": {"fake": management{f: f}},
		"raid":       {"fake": raid{f: f}},
		"vendor":     {"fake": vendor{f}},
		"deploy":     {"fake": stepper(f.deploySteps)},
		"inspect":    {"fake": stepper(f.inspectSteps)},
		"bios":       {"fake": stepper(f.biosSteps)},
		"firmware":   {"fake": stepper(f.firmwareSteps)},
		"rescue":     {"fake": stepper(f.rescueSteps)},
	}
}

type stepper func(n *node.Node) []hardware.Step

func (s stepper) Steps(n *node.Node) []hardware.Step { return s(n) }

// fault returns the configured failure of an action, as a sentence for an operator.
func (f *Fakes) fault(n *node.Node, act string) error {
	id, _ := n.DriverInfo["fake_id"].(string)
	id = cmp.Or(id, n.UUID)
	return f.machines.Fault(id, n.DriverInfo, act)
}

// act is something that is done at once for a client: it takes its time and may fail.
func (f *Fakes) act(ctx context.Context, n *node.Node, kind, name string) error {
	r, err := powerfake.Delay(n.DriverInfo, kind)
	if err != nil {
		return hardware.Invalidf("driver_info: %v", err)
	}
	if d := r.At(fraction(fmt.Sprint(n.UUID, f.now().UnixNano()))); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.fault(n, kind+"."+name)
}

// fraction makes a number in [0, 1) of a text, the same each time.
func fraction(s string) float64 {
	h := fnv.New64a()
	h.Write([]byte(s)) // never fails
	x := h.Sum64()
	x ^= x >> 33 // FNV's high bits are hardly touched by the last bytes
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// step makes a step that takes the delay of a kind, fails as dialled, and then does what do says.
func (f *Fakes) step(kind string, s hardware.Step, do func(c hardware.Call) (hardware.Outcome, error)) hardware.Step {
	s.Abortable = true
	s.Run = func(_ context.Context, c hardware.Call) (hardware.Outcome, error) {
		r, err := powerfake.Delay(c.Node.DriverInfo, kind)
		if err != nil {
			return hardware.Outcome{}, fmt.Errorf("driver_info: %w", err)
		}
		if left := r.At(fraction(c.ID)) - f.now().Sub(c.Begun); left > 0 {
			return hardware.Outcome{After: left}, nil
		}
		if err := f.fault(c.Node, s.Interface+"."+s.Name); err != nil {
			return hardware.Outcome{}, err
		}
		if do == nil {
			return hardware.Outcome{}, nil
		}
		return do(c)
	}
	return s
}

// dialled reports whether an interface of a kind is to take time or to fail on this node.
func dialled(n *node.Node, kind, iface string) bool {
	r, err := powerfake.Delay(n.DriverInfo, kind)
	return err != nil || r.Max > 0 || powerfake.Fails(n.DriverInfo, iface)
}

// deploySteps are one step for a deployment, as in Ironic. With delays or failures dialled in for deployments or
// cleaning there are those of a real one, so that there is something to watch, and to fail.
func (f *Fakes) deploySteps(n *node.Node) []hardware.Step {
	deploy := func(name, text string, priority int) hardware.Step {
		return f.step("deploy",
			hardware.Step{Interface: "deploy", Name: name, Description: text,
				Priority: map[node.Phase]int{node.PhaseDeploy: priority}}, nil)
	}
	steps := []hardware.Step{deploy("deploy", "prepares nothing", 100)}
	if dialled(n, "deploy", "deploy") {
		steps = append(steps, deploy("write_image", "writes no image", 80),
			deploy("prepare_instance_boot", "writes no boot entry", 60))
	}
	priority := 0
	if dialled(n, "clean", "deploy") {
		priority = 10
	}
	erase := func(name, text string, priority int) hardware.Step {
		return f.step("clean",
			hardware.Step{Interface: "deploy", Name: name, Description: text,
				Priority: map[node.Phase]int{node.PhaseClean: priority}}, nil)
	}
	return append(steps, erase("erase_devices_metadata", "erases nothing", priority),
		erase("erase_devices", "erases nothing", 0))
}

func (f *Fakes) rescueSteps(*node.Node) []hardware.Step {
	return []hardware.Step{
		f.step("rescue",
			hardware.Step{Interface: "rescue", Name: "rescue", Description: "pretends to boot a rescue system",
				Priority: map[node.Phase]int{node.PhaseRescue: 100}}, nil),
		f.step("rescue",
			hardware.Step{Interface: "rescue", Name: "unrescue", Description: "pretends to boot the instance again",
				Priority: map[node.Phase]int{node.PhaseUnresc: 100}}, nil),
	}
}

type console struct{ f *Fakes }

func (c console) Start(ctx context.Context, n *node.Node) error {
	return c.f.act(ctx, n, "console", "start")
}

func (c console) Stop(ctx context.Context, n *node.Node) error {
	return c.f.act(ctx, n, "console", "stop")
}

// Info returns nothing: the fake has no console.
func (c console) Info(ctx context.Context, _ *node.Node) (map[string]any, error) {
	return map[string]any{}, ctx.Err()
}

type management struct {
	hardware.NoManagement
	f *Fakes
}

func (m management) BootModes(ctx context.Context, _ *node.Node) ([]string, error) {
	return []string{"bios", "uefi"}, ctx.Err()
}

func (m management) SetBootMode(ctx context.Context, n *node.Node, mode string) error {
	if mode != "bios" && mode != "uefi" {
		return hardware.Invalidf("Invalid boot mode %s requested for node. Allowed boot modes are: bios, uefi", mode)
	}
	return m.f.act(ctx, n, "management", "set_boot_mode")
}

func (m management) SetSecureBoot(ctx context.Context, n *node.Node, on bool) error {
	return m.f.act(ctx, n, "management", "set_secure_boot")
}

// indicators are the lamps of every fake machine.
var indicators = []hardware.Indicator{
	{Component: "chassis", Name: "led-0", ReadOnly: true, States: []string{"off", "on"}},
	{Component: "system", Name: "led", States: []string{"blinking", "off", "on"}},
}

func (m management) Indicators(_ context.Context, _ *node.Node, component string) ([]hardware.Indicator, error) {
	var found []hardware.Indicator
	for _, i := range indicators {
		if component == "" || component == i.Component {
			i.States = slices.Clone(i.States)
			found = append(found, i)
		}
	}
	return found, nil
}

func lamp(component, name string) (hardware.Indicator, error) {
	known := false
	for _, i := range indicators {
		if i.Component != component {
			continue
		}
		known = true
		if i.Name == name {
			return i, nil
		}
	}
	if known {
		return hardware.Indicator{}, hardware.Invalidf("Invalid indicator %s specified.", name)
	}
	return hardware.Indicator{}, hardware.Invalidf("Invalid component %s specified.", component)
}

// Indicator is on until it is set to something else.
func (m management) Indicator(ctx context.Context, n *node.Node, component, name string) (string, error) {
	if _, err := lamp(component, name); err != nil {
		return "", err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if s := m.f.lamps[[3]string{n.UUID, component, name}]; s != "" {
		return s, nil
	}
	return "on", ctx.Err()
}

func (m management) SetIndicator(ctx context.Context, n *node.Node, component, name, state string) error {
	i, err := lamp(component, name)
	if err != nil {
		return err
	}
	state = strings.ToLower(state)
	if i.ReadOnly {
		return hardware.Invalidf("Indicator %s of component %s can only be read.", name, component)
	}
	if !slices.Contains(i.States, state) {
		return hardware.Invalidf("Invalid state %s specified for indicator %s. Allowed states are: %s", state, name,
			strings.Join(i.States, ", "))
	}
	if err := m.f.act(ctx, n, "management", "set_indicator"); err != nil {
		return err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.lamps[[3]string{n.UUID, component, name}] = state
	return nil
}

// mediaDevices are those of every fake machine.
var mediaDevices = []struct {
	device string
	types  []string
}{{"cdrom", []string{"CD", "DVD"}}, {"disk", []string{"USBStick"}}, {"floppy", []string{"Floppy"}}}

func (m management) VirtualMedia(ctx context.Context, n *node.Node) ([]hardware.Media, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	var list []hardware.Media
	for _, d := range mediaDevices {
		url := m.f.media[[2]string{n.UUID, d.device}]
		list = append(list, hardware.Media{Types: slices.Clone(d.types), URL: url, Inserted: url != ""})
	}
	return list, ctx.Err()
}

func mediaDevice(device string) error {
	for _, d := range mediaDevices {
		if d.device == device {
			return nil
		}
	}
	return hardware.Invalidf("Invalid device type %s specified: the machine has cdrom, disk, floppy.", device)
}

func (m management) AttachMedia(ctx context.Context, n *node.Node, device, url string) error {
	if err := mediaDevice(device); err != nil {
		return err
	}
	if err := m.f.act(ctx, n, "management", "attach_virtual_media"); err != nil {
		return err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.media[[2]string{n.UUID, device}] = url
	return nil
}

func (m management) DetachMedia(ctx context.Context, n *node.Node, devices []string) error {
	for _, d := range devices {
		if err := mediaDevice(d); err != nil {
			return err
		}
	}
	if err := m.f.act(ctx, n, "management", "detach_virtual_media"); err != nil {
		return err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	for _, d := range mediaDevices {
		if len(devices) == 0 || slices.Contains(devices, d.device) {
			delete(m.f.media, [2]string{n.UUID, d.device})
		}
	}
	return nil
}

type vendor struct{ f *Fakes }

// vendorWords are the expected values of each method's parameter bar.
var vendorWords = map[string]string{"second_method": "kazoo", "third_method_sync": "meow",
	"fourth_method_shared_lock": "woof"}

func (vendor) Methods(*node.Node) ([]hardware.Method, error) {
	post := []string{"POST"}
	return []hardware.Method{
		{Name: "second_method", HTTPMethods: post, Async: true, Exclusive: true,
			Description: "Test if the value of bar is kazoo"},
		{Name: "third_method_sync", HTTPMethods: post, Exclusive: true,
			Description: "Test if the value of bar is meow"},
		{Name: "fourth_method_shared_lock", HTTPMethods: post, Async: true,
			Description: "Test if the value of bar is woof"},
	}, nil
}

func (vendor) Check(_ *node.Node, method string, params map[string]any) error {
	if vendorWords[method] == "" {
		return hardware.Invalidf("No handler for method %s", method)
	}
	if bar := params["bar"]; bar == nil || bar == "" || bar == false || bar == 0.0 {
		return hardware.Invalidf("Parameter 'bar' not passed to method '%s'.", method)
	}
	return nil
}

func (v vendor) Call(ctx context.Context, n *node.Node, method string, params map[string]any) (any, error) {
	if err := v.Check(n, method, params); err != nil {
		return nil, err
	}
	if err := v.f.act(ctx, n, "vendor", method); err != nil {
		return nil, err
	}
	return params["bar"] == vendorWords[method], nil
}

func (v vendor) Steps(*node.Node) []hardware.Step {
	s := v.f.step("vendor",
		hardware.Step{Interface: "vendor", Name: "log_passthrough", Description: "waits for fake_vendor_delay",
			Priority: map[node.Phase]int{node.PhaseClean: 0, node.PhaseService: 0}}, nil)
	hold := v.f.step("vendor",
		hardware.Step{Interface: "vendor", Name: "trigger_servicewait", Description: "leaves the node in service wait",
			Priority: map[node.Phase]int{node.PhaseService: 0}}, func(hardware.Call) (hardware.Outcome, error) {
			return hardware.Outcome{Hold: true}, nil
		})
	return []hardware.Step{s, hold}
}
