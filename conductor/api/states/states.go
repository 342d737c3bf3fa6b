// Package states answers requests for actions on a node: power, provision state, maintenance, boot device, and a check
// of its settings (validate).
//
// A verb's arguments are checked here; conductor/engine decides whether the node's state allows it, and carries it out.
package states

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/nodes"
	"github.com/ingot-metal/ingot/conductor/api/templates"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/images/inspect"
)

// machines does the work.
type machines interface {
	Provision(ctx context.Context, ident string, r engine.Request) error
	DryRun(ctx context.Context, ident string, r engine.Request) (engine.Dry, error)
	SetPower(ctx context.Context, ident, target string, timeout time.Duration, user string) error
	SetBootDevice(ctx context.Context, ident, device string, persistent bool, user string) error
	BootDevice(ctx context.Context, ident string) (device string, persistent bool, err error)
	BootDevices(ctx context.Context, ident string) ([]string, error)
	Validate(ctx context.Context, ident string) (map[string]engine.Validation, error)
	// ImageURL is the address of an image, which may be given by the name of a file that the conductor serves.
	ImageURL(source string) string
}

// nodeStore is the part of the store that states need.
type nodeStore interface {
	UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error)
}

// Handlers answer the requests.
type Handlers struct {
	store     nodeStore
	engine    machines
	find      *finder.Finder
	nodes     *nodes.Handlers
	templates *templates.Handlers
	images    Images // nil: none are looked at
	newest    rest.Version
}

// New makes Handlers, which know requests of versions up to newest.
func New(st nodeStore, en machines, find *finder.Finder, ns *nodes.Handlers, ts *templates.Handlers, images Images,
	newest rest.Version) *Handlers {
	return &Handlers{store: st, engine: en, find: find, nodes: ns, templates: ts, images: images, newest: newest}
}

// Routes are the routes of actions on nodes.
func (s *Handlers) Routes() []call.Route {
	const get, put, del = http.MethodGet, http.MethodPut, http.MethodDelete
	validated := call.OK(rest.MapOf(&rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"result"},
		Props: map[string]*rest.Schema{"result": rest.SchemaOf(new(bool)), "reason": call.Text}}))
	later, done := call.None(http.StatusAccepted), call.None(http.StatusNoContent)
	return []call.Route{
		{Method: get, Path: "/v1/nodes/validate", Access: call.Read, Query: call.Named,
			Args: call.Args{"node_uuid": call.Text, "node": call.Text}, Answers: validated, Handle: s.validateQuery},
		{Method: get, Path: "/v1/nodes/{node}/validate", Access: call.Read, Answers: validated,
			Handle: s.find.Named(s.validate)},
		{Method: get, Path: "/v1/nodes/{node}/states", Access: call.Read, Answers: call.OK(rest.StatesFields.Schema()),
			Handle: s.find.Named(s.getStates)},
		{Method: put, Path: "/v1/nodes/{node}/states/power", Access: call.Write, Query: call.Members, Takes: powerShape,
			Answers: later, Handle: s.putPower},
		{Method: put, Path: "/v1/nodes/{node}/states/provision", Access: call.Write, Query: call.Members,
			Body: limit.DriveBody, Takes: provisionShape(), Answers: later, Handle: s.putProvision},
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/image_check", Access: call.Use,
			Takes:   call.Body([]string{"image_source"}, call.Args{"image_source": call.Text}),
			Answers: call.OK(inspect.Report{}), Handle: s.checkImage},
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/plan", Access: call.Write, Takes: provisionShape(),
			Answers: call.OK(rest.Plan{}), Handle: s.postPlan},
		{Method: put, Path: "/v1/nodes/{node}/maintenance", Access: call.Write, Query: call.Members,
			Takes: call.Body(nil, call.Args{"reason": document.OptionalText}), Answers: later,
			Handle: s.putMaintenance},
		{Method: del, Path: "/v1/nodes/{node}/maintenance", Access: call.Write, Answers: later,
			Handle: s.deleteMaintenance},
		{Method: get, Path: "/v1/nodes/{node}/management/boot_device", Access: call.Read,
			Answers: call.OK(
				rest.Object{{Name: "boot_device", Value: rest.Null("")},
					{Name: "persistent", Value: rest.SchemaOf(new(bool))}}), Handle: s.find.Named(s.getBootDevice)},
		{Method: put, Path: "/v1/nodes/{node}/management/boot_device", Access: call.Write, Query: call.Members,
			Takes:   call.Body([]string{"boot_device"}, call.Args{"boot_device": call.Text, "persistent": call.Truth}),
			Answers: done, Handle: s.putBootDevice},
		{Method: get, Path: "/v1/nodes/{node}/management/boot_device/supported", Access: call.Read,
			Answers: call.OK(rest.Object{{Name: "supported_boot_devices", Value: []string{}}}),
			Handle:  s.find.Named(s.getBootDevices)},
	}
}

func (s *Handlers) getStates(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	shown := s.nodes.Show(c, n)
	st := rest.States{
		ConsoleEnabled: shown.ConsoleEnabled, LastError: shown.LastError, PowerState: shown.PowerState,
		ProvisionState: shown.ProvisionState, TargetPowerState: shown.TargetPowerState,
		TargetProvisionState: shown.TargetProvisionState, ProvisionUpdatedAt: shown.ProvisionUpdatedAt,
		RAIDConfig: shown.RAIDConfig, TargetRAIDConfig: shown.TargetRAIDConfig, BootMode: shown.BootMode,
		SecureBoot: shown.SecureBoot,
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.StatesFields.Render(&st, c.Version, nil)}, nil
}

func (s *Handlers) putPower(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("target", "timeout")
	if err != nil {
		return nil, err
	}
	target, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	seconds, timed := 0, b["timeout"] != nil
	if timed {
		var err error
		if seconds, err = wholeSeconds(b["timeout"]); err != nil {
			return nil, rest.BadRequest("Expected an integer for timeout: %v", b["timeout"])
		}
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	switch {
	case seconds != 0 && c.Version < rest.VersionSoftPower:
		return nil, rest.NotAcceptable()
	case timed && seconds < 1:
		return nil, rest.BadRequest("timeout has to be positive integer")
	}
	timeout := time.Duration(min(seconds, math.MaxInt32)) * time.Second
	word, _ := target.(string)
	since, ok := rest.PowerTargets[word]
	if !ok {
		state := cmp.Or(n.Power, "None")
		return nil, rest.BadRequest(
			`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word,
			c.Path["node"], state)
	}
	if c.Version < since {
		return nil, rest.NotAcceptable()
	}
	if n.Provision == node.Cleaning || n.Provision == node.CleanWait {
		return nil, rest.BadRequest(
			`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, n.UUID,
			n.Provision)
	}
	if n.Reservation != "" {
		return nil, finder.LockedBy(n)
	}
	if n.DisablePowerOff && (word == "power off" || word == "soft power off") {
		return nil, rest.Conflict("Failed to set node power state to %s.", word)
	}
	if err := s.engine.SetPower(ctx, n.UUID, word, timeout, c.User); err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusAccepted, Location: c.Base + "/v1/nodes/" + c.Path["node"] + "/states"}, nil
}

// integer reads a whole number, also one that came as text.
func integer(v any) (int, error) {
	switch x := exact.Plain(v).(type) {
	case float64:
		if x == float64(int(x)) {
			return int(x), nil
		}
	case string:
		return strconv.Atoi(x)
	}
	return 0, fmt.Errorf("%v is not a whole number", v)
}

// wholeSeconds reads a timeout as Ironic does: a fraction is cut off, and true is 1.
func wholeSeconds(v any) (int, error) {
	switch x := v.(type) {
	case bool:
		return map[bool]int{true: 1}[x], nil
	case float64:
		return integer(math.Trunc(x))
	}
	return integer(v)
}

func (s *Handlers) putMaintenance(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("reason")
	if err != nil {
		return nil, err
	}
	if _, ok := b["reason"].(string); !ok && b["reason"] != nil {
		return nil, rest.BadRequest("Expected string for reason: %s", rest.Shown(b["reason"]))
	}
	return s.setMaintenance(ctx, c, true, b)
}

func (s *Handlers) deleteMaintenance(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.setMaintenance(ctx, c, false, nil)
}

// setMaintenance sets it, with the reason in b if there is one.
func (s *Handlers) setMaintenance(ctx context.Context, c *call.Call, on bool, b map[string]any) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	_, err = s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		n.Maintenance, n.MaintenanceReason = on, document.Text(b, "reason")
		n.Blank = slices.DeleteFunc(n.Blank, func(name string) bool { return name == "maintenance_reason" })
		if b["reason"] == "" {
			n.Blank = append(n.Blank, "maintenance_reason")
		}
		if !on {
			n.Fault = ""
		}
		return nil
	})
	return &call.Reply{Status: http.StatusAccepted}, err
}

func (s *Handlers) getBootDevice(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	device, persistent, err := s.engine.BootDevice(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	return &call.Reply{
			Status: http.StatusOK,
			Body: rest.Object{{Name: "boot_device", Value: rest.Null(device)},
				{Name: "persistent", Value: persistent}}},
		nil
}

func (s *Handlers) getBootDevices(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	devices, err := s.engine.BootDevices(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	if devices == nil {
		devices = []string{}
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "supported_boot_devices", Value: devices}}}, nil
}

func (s *Handlers) putBootDevice(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("boot_device", "persistent")
	if err != nil {
		return nil, err
	}
	v, ok := b["boot_device"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: boot_device")
	}
	persistent := false
	if p, ok := b["persistent"]; ok && p != nil {
		if persistent, err = document.Argument("persistent", p); err != nil {
			return nil, err
		}
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	device, _ := v.(string)
	devices, nerr := s.engine.BootDevices(ctx, n.UUID)
	if nerr != nil {
		return nil, nerr
	}
	if !slices.Contains(devices, device) {
		return nil, rest.BadRequest("Invalid boot device %v specified.", v)
	}
	return call.NoContent(), s.engine.SetBootDevice(ctx, n.UUID, device, persistent, c.User)
}

func (s *Handlers) validateQuery(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if name := c.Query.Get("node"); name != "" && !document.IsUUID(name) && c.Version < rest.VersionNames {
		return nil, rest.NotAcceptable()
	}
	ident := cmp.Or(c.Query.Get("node_uuid"), c.Query.Get("node"))
	if ident == "" {
		return nil, rest.BadRequest("Missing mandatory parameter: node_uuid")
	}
	c.Path["node"] = ident
	return s.find.Named(s.validate)(ctx, c)
}

func (s *Handlers) validate(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	if err := c.May(access.NodeValidate, n); err != nil {
		return nil, err
	}
	found, err := s.engine.Validate(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	var out rest.Object
	for _, kind := range []string{"boot", "deploy", "management", "network", "power", "bios", "console", "inspect",
		"raid", "rescue", "storage"} {
		v, ok := found[kind]
		if !ok {
			continue
		}
		o := rest.Object{{Name: "result", Value: v.Result}}
		if v.Reason != "" {
			o = append(o, rest.Member{Name: "reason", Value: v.Reason})
		}
		out = append(out, rest.Member{Name: kind, Value: o})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}
