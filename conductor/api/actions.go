package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// maxDriveBody is the largest request with a config drive, which may be 64 MiB.
const maxDriveBody = 64<<20 + 1<<20

// stateRoutes are the routes of what is done with nodes.
func (s *Server) stateRoutes() []call.Route {
	const get, put, del = http.MethodGet, http.MethodPut, http.MethodDelete
	return []call.Route{
		{Method: get, Path: "/v1/nodes/validate", Access: call.Read, Handle: s.validateQuery},
		{Method: get, Path: "/v1/nodes/{node}/validate", Access: call.Read, Handle: s.validateNode},
		{Method: get, Path: "/v1/nodes/{node}/states", Access: call.Read, Handle: s.getStates},
		{Method: put, Path: "/v1/nodes/{node}/states/power", Access: call.Write, Handle: s.putPower},
		{Method: put, Path: "/v1/nodes/{node}/states/provision", Access: call.Write, Body: maxDriveBody, Handle: s.putProvision},
		{Method: put, Path: "/v1/nodes/{node}/maintenance", Access: call.Write, Handle: s.putMaintenance},
		{Method: del, Path: "/v1/nodes/{node}/maintenance", Access: call.Write, Handle: s.deleteMaintenance},
		{Method: get, Path: "/v1/nodes/{node}/management/boot_device", Access: call.Read, Handle: s.getBootDevice},
		{Method: put, Path: "/v1/nodes/{node}/management/boot_device", Access: call.Write, Handle: s.putBootDevice},
		{Method: get, Path: "/v1/nodes/{node}/management/boot_device/supported", Access: call.Read, Handle: s.getBootDevices},
	}
}

func (s *Server) getStates(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	shown := s.showNode(c, n)
	st := rest.States{
		ConsoleEnabled: shown.ConsoleEnabled, LastError: shown.LastError, PowerState: shown.PowerState, ProvisionState: shown.ProvisionState,
		TargetPowerState: shown.TargetPowerState, TargetProvisionState: shown.TargetProvisionState, ProvisionUpdatedAt: shown.ProvisionUpdatedAt,
		RAIDConfig: shown.RAIDConfig, TargetRAIDConfig: shown.TargetRAIDConfig, BootMode: shown.BootMode, SecureBoot: shown.SecureBoot,
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.StatesFields.Render(&st, c.Version, nil)}, nil
}

// verbs are the targets of PUT states/provision that are not the verb's own name. Which version brought each is in rest.Verbs.
var verbs = map[string]node.Verb{"deploy": node.Deploy, "undeploy": node.Delete}

func verbOf(target string) (node.Verb, bool) {
	if v, ok := verbs[target]; ok {
		return v, true
	}
	_, ok := rest.Verbs[target]
	return node.Verb(target), ok
}

// stepInterfaces are those that steps belong to; newInterfaces are those of versions that know firmware.
var (
	stepInterfaces = []any{"power", "management", "deploy", "bios", "raid"}
	newInterfaces  = append(slices.Clone(stepInterfaces), "firmware", "vendor", "network")
)

// listedSteps is the schema of the steps of cleaning and service, in the order in which they are to run.
func listedSteps(v rest.Version) *rest.Schema {
	s := &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: []string{"interface", "step"},
		Props: map[string]*rest.Schema{
			"interface": {Enum: newInterfaces}, "step": {Types: []string{"string"}, MinLen: 1}, "args": {Types: []string{"object"}},
		},
	}
	if v < rest.VersionFirmware {
		s.Props["interface"] = &rest.Schema{Enum: stepInterfaces}
	}
	if v >= rest.VersionChildren {
		s.Props["order"] = &rest.Schema{Types: []string{"integer", "string"}, Pattern: wholeNumber}
		s.Props["execute_on_child_nodes"] = &rest.Schema{Types: []string{"boolean"}}
		s.Props["limit_child_node_execution"] = &rest.Schema{Types: []string{"array"}}
	}
	return &rest.Schema{Types: []string{"array"}, Items: s}
}

// prioritySteps is the schema of the steps of a deployment.
func prioritySteps(v rest.Version) *rest.Schema {
	if v < rest.VersionFirmware {
		return deploySteps
	}
	item := *deploySteps.Items
	item.Props = maps.Clone(item.Props)
	item.Props["interface"] = &rest.Schema{Enum: newInterfaces[:7]}
	return &rest.Schema{Types: deploySteps.Types, Items: &item}
}

var wholeNumber = regexp.MustCompile(`^[0-9]+$`)

var deploySteps = &rest.Schema{Types: []string{"array"}, Items: &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"interface", "step", "args", "priority"},
	Props: map[string]*rest.Schema{
		"interface": {Enum: stepInterfaces}, "step": {Types: []string{"string"}, MinLen: 1}, "args": {Types: []string{"object"}},
		"priority": {Types: []string{"integer", "string"}, Pattern: wholeNumber},
	},
}}

var driveSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true,
	Props: map[string]*rest.Schema{
		"meta_data": {Types: []string{"object"}}, "network_data": {Types: []string{"object"}},
		"user_data": {Types: []string{"object", "array", "string", "null"}}, "vendor_data": {Types: []string{"object"}},
	},
}

func (s *Server) putProvision(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	names := []string{"target"}
	for name, since := range rest.ProvisionParameters {
		if since <= s.cfg.MaxVersion {
			names = append(names, name)
		}
	}
	b, err := c.Arguments(names...)
	if err != nil {
		return nil, err
	}
	target, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	word, _ := target.(string)
	if target == nil {
		word = "None"
	}
	refused := rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, n.UUID, n.Provision)
	verb, ok := verbOf(word)
	if !ok {
		return nil, refused
	}
	if c.Version < rest.Verbs[word] {
		return nil, rest.NotAcceptable()
	}
	if n.Maintenance && (verb == node.Deploy || verb == node.Rebuild) {
		return nil, rest.BadRequest("The provisioning operation can't be performed on node %s because it's in maintenance mode.", n.UUID)
	}
	if n.Reservation != "" {
		return nil, finder.LockedBy(n) // by whoever has the next move; what state that leads to is not known yet
	}
	if _, _, err := node.Next(n.Provision, n.TargetProvision, verb); err != nil {
		return nil, refused
	}
	switch {
	case n.Protected && (verb == node.Delete || verb == node.Rebuild):
		return nil, rest.Fault(http.StatusForbidden, "Node %s is protected and cannot be undeployed, rebuilt or deleted", n.UUID)
	case n.Retired && verb == node.Provide:
		return nil, rest.BadRequest("The providing operation can't be performed on node %s because it is retired.", n.UUID)
	}
	if verb == node.Abort && c.Version < rest.AbortIn[string(n.Provision)] {
		return nil, rest.NotAcceptable()
	}
	req, err := request(c, b, verb)
	if err != nil {
		return nil, err
	}
	if err := s.useRunbook(ctx, c, b, &req); err != nil {
		return nil, err
	}
	req.User = c.User
	if err := s.engine.Provision(ctx, n.UUID, req); err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusAccepted, Location: c.Base + "/v1/nodes/" + c.Path["node"] + "/states"}, nil
}

// request checks what comes with a verb and makes the engine's request of it.
func request(c *call.Call, b map[string]any, verb node.Verb) (engine.Request, *rest.Error) {
	req := engine.Request{Verb: verb}
	for name, since := range rest.ProvisionParameters {
		if b[name] != nil && c.Version < since {
			return req, rest.Fault(http.StatusNotAcceptable, "Request not acceptable. The minimal required API version should be %s", since)
		}
	}
	if drive := b["configdrive"]; drive != nil {
		if verb != node.Deploy && verb != node.Rebuild {
			return req, rest.BadRequest(`Adding a config drive is only supported when setting provision state to active or rebuild`)
		}
		if verb == node.Rebuild && c.Version < rest.VersionRebuildDrive {
			return req, rest.NotAcceptable()
		}
		var err *rest.Error
		if req.ConfigDrive, err = configDrive(c.Version, drive); err != nil {
			return req, err
		}
	}
	for _, l := range []struct {
		name string
		verb node.Verb
		to   *[]node.JobStep
	}{{"clean_steps", node.Clean, &req.CleanSteps}, {"service_steps", node.Service, &req.ServiceSteps}} {
		steps, err := stepList(b, l.name, verb == l.verb, string(l.verb), listedSteps(c.Version))
		if err != nil {
			return req, err
		}
		if verb == l.verb && len(steps) == 0 && b["runbook"] == nil {
			return req, rest.BadRequest("%q is required when setting target provision state to %s", l.name, l.verb)
		}
		*l.to = steps
	}
	var err *rest.Error
	req.DeploySteps, err = stepList(b, "deploy_steps", verb == node.Deploy || verb == node.Rebuild, "active or rebuild", prioritySteps(c.Version))
	if err != nil {
		return req, err
	}
	pw, has := b["rescue_password"]
	if has && pw != nil && verb != node.DoRescue {
		return req, rest.BadRequest(`"rescue_password" is only valid when setting target provision state to rescue`)
	}
	if req.RescuePassword, _ = pw.(string); verb == node.DoRescue && strings.TrimSpace(req.RescuePassword) == "" {
		return req, rest.BadRequest(`A non-empty "rescue_password" is required when setting target provision state to rescue`)
	}
	if v, ok := b["disable_ramdisk"]; ok && v != nil {
		if req.DisableRamdisk, err = document.Boolean("disable_ramdisk", v); err != nil {
			return req, err
		}
		switch {
		case verb != node.Clean && verb != node.Service:
			return req, rest.BadRequest("disable_ramdisk is supported only with manual cleaning or servicing")
		case verb == node.Service && c.Version < rest.VersionServiceNoAgent:
			return req, rest.Fault(http.StatusNotAcceptable, "disable_ramdisk is not acceptable in this API version")
		}
	}
	return req, nil
}

// stepList reads a list of steps that only goes with certain verbs.
func stepList(b map[string]any, name string, fits bool, targets string, schema *rest.Schema) ([]node.JobStep, *rest.Error) {
	v, ok := b[name]
	if !ok || v == nil {
		return nil, nil
	}
	if !fits {
		return nil, rest.BadRequest("%q is only valid when setting target provision state to %s", name, targets)
	}
	if fault := schema.Check(v); fault != "" {
		return nil, rest.BadRequest("Invalid %s: %s", name, fault)
	}
	var (
		steps  []node.JobStep
		orders []int // where each wants to be; those that don't say stay in front
	)
	for _, item := range v.([]any) {
		o := item.(map[string]any)
		st := node.JobStep{Interface: o["interface"].(string), Name: o["step"].(string)}
		if on, _ := o["execute_on_child_nodes"].(bool); on {
			return nil, rest.BadRequest("Invalid %s: step %s can't be run on child nodes from their parent; ask each child for it", name, st.Name)
		}
		order := 0
		for member, to := range map[string]*int{"priority": &st.Priority, "order": &order} {
			v, ok := o[member]
			if !ok {
				continue
			}
			n, err := integer(v)
			if err != nil || n > 1<<31 {
				return nil, rest.BadRequest("Invalid %s: %s %v is too large", name, member, v)
			}
			if n < 0 {
				return nil, rest.BadRequest("Invalid %s: %d is less than the minimum of 0", name, n)
			}
			*to = n
		}
		orders = append(orders, order)
		if args, ok := o["args"]; ok {
			raw, err := json.Marshal(args)
			if err != nil {
				return nil, rest.BadRequest("Invalid %s: %v", name, err)
			}
			st.Args = raw
		}
		steps = append(steps, st)
	}
	at := make([]int, len(steps))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return orders[a] - orders[b] })
	sorted := make([]node.JobStep, len(steps))
	for i, j := range at {
		sorted[i] = steps[j]
	}
	return sorted, nil
}

// configDrive checks a config drive: an object to make one from, the text of such an object, a URL, or the image itself as base64.
func configDrive(v rest.Version, drive any) (any, *rest.Error) {
	if text, ok := drive.(string); ok {
		var o map[string]any
		if json.Unmarshal([]byte(text), &o) == nil {
			drive = o
		} else {
			u, err := url.Parse(text)
			if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
				return text, nil
			}
			if _, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), "")); err != nil || text == "" {
				return nil, rest.BadRequest("Invalid configdrive format: it is neither a JSON, nor a URL, nor a base64 string")
			}
			return text, nil
		}
	}
	if v < rest.VersionDriveObject {
		return nil, rest.NotAcceptable()
	}
	if fault := driveSchema.Check(drive); fault != "" {
		return nil, rest.BadRequest("Invalid configdrive format: %s", fault)
	}
	if _, ok := drive.(map[string]any)["vendor_data"]; ok && v < rest.VersionVendorData {
		return nil, rest.NotAcceptable()
	}
	return drive, nil
}

func (s *Server) putPower(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	b, err := c.Arguments("target", "timeout")
	if err != nil {
		return nil, err
	}
	target, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	var timeout time.Duration
	if t, ok := b["timeout"]; ok && t != nil {
		if c.Version < rest.VersionSoftPower {
			return nil, rest.NotAcceptable()
		}
		seconds, err := integer(t)
		if err != nil {
			return nil, rest.BadRequest("Expected an integer for timeout: %v", t)
		}
		if seconds < 1 {
			return nil, rest.BadRequest("timeout has to be positive integer")
		}
		timeout = time.Duration(seconds) * time.Second
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	word, _ := target.(string)
	since, ok := rest.PowerTargets[word]
	if !ok {
		state := n.Power
		if state == "" {
			state = "None"
		}
		return nil, rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, c.Path["node"], state)
	}
	if c.Version < since {
		return nil, rest.NotAcceptable()
	}
	if n.Provision == node.Cleaning || n.Provision == node.CleanWait {
		return nil, rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, n.UUID, n.Provision)
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
	switch x := v.(type) {
	case float64:
		if x == float64(int(x)) {
			return int(x), nil
		}
	case string:
		return strconv.Atoi(x)
	}
	return 0, fmt.Errorf("%v is not a whole number", v)
}

func (s *Server) putMaintenance(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	b, err := c.Arguments("reason")
	if err != nil {
		return nil, err
	}
	reason, _ := b["reason"].(string)
	return s.setMaintenance(ctx, c, true, reason)
}

func (s *Server) deleteMaintenance(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	return s.setMaintenance(ctx, c, false, "")
}

func (s *Server) setMaintenance(ctx context.Context, c *call.Call, on bool, reason string) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	_, err = s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		n.Maintenance, n.MaintenanceReason = on, reason
		if !on {
			n.Fault = ""
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusAccepted}, nil
}

func (s *Server) getBootDevice(ctx context.Context, c *call.Call) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	device, persistent, err := s.engine.BootDevice(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "boot_device", Value: rest.Null(device)}, {Name: "persistent", Value: persistent}}}, nil
}

func (s *Server) getBootDevices(ctx context.Context, c *call.Call) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	devices, err := s.engine.BootDevices(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	if devices == nil {
		devices = []string{}
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "supported_boot_devices", Value: devices}}}, nil
}

func (s *Server) putBootDevice(ctx context.Context, c *call.Call) (*call.Reply, error) {
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
		if persistent, err = document.Boolean("persistent", p); err != nil {
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
	if err := s.engine.SetBootDevice(ctx, n.UUID, device, persistent, c.User); err != nil {
		return nil, err
	}
	return call.NoContent(), nil
}

func (s *Server) validateQuery(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow("node_uuid", "node"); err != nil {
		return nil, err
	}
	ident := c.Query.Get("node_uuid")
	if ident == "" {
		ident = c.Query.Get("node")
	}
	if ident == "" {
		return nil, rest.BadRequest("Missing mandatory parameter: node_uuid")
	}
	c.Path["node"] = ident
	return s.validate(ctx, c)
}

func (s *Server) validateNode(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	return s.validate(ctx, c)
}

func (s *Server) validate(ctx context.Context, c *call.Call) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := c.May(access.NodeValidate, n); err != nil {
		return nil, err
	}
	found, err := s.engine.Validate(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	var out rest.Object
	for _, kind := range []string{"boot", "deploy", "management", "network", "power", "bios", "console", "inspect", "raid", "rescue", "storage"} {
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
