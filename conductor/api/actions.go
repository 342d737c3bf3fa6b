package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (s *Server) getStates(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	shown := s.showNode(c, n)
	st := rest.States{
		ConsoleEnabled: shown.ConsoleEnabled, LastError: shown.LastError, PowerState: shown.PowerState, ProvisionState: shown.ProvisionState,
		TargetPowerState: shown.TargetPowerState, TargetProvisionState: shown.TargetProvisionState, ProvisionUpdatedAt: shown.ProvisionUpdatedAt,
		RAIDConfig: shown.RAIDConfig, TargetRAIDConfig: shown.TargetRAIDConfig, BootMode: shown.BootMode, SecureBoot: shown.SecureBoot,
	}
	return &reply{status: http.StatusOK, body: rest.StatesFields.Render(&st, c.v, nil)}, nil
}

// verbs are the targets of PUT states/provision with the version that brought each.
var verbs = map[string]struct {
	verb  node.Verb
	since rest.Version
}{
	"active": {node.Deploy, 1}, "rebuild": {node.Rebuild, 1}, "deleted": {node.Delete, 1},
	"deploy": {node.Deploy, rest.VersionVerbAliases}, "undeploy": {node.Delete, rest.VersionVerbAliases},
	"manage": {node.Manage, rest.VersionManageVerbs}, "provide": {node.Provide, rest.VersionManageVerbs},
	"inspect": {node.Inspect, rest.VersionInspect}, "abort": {node.Abort, rest.VersionAbort}, "clean": {node.Clean, rest.VersionClean},
	"adopt": {node.Adopt, rest.VersionAdopt}, "rescue": {node.DoRescue, rest.VersionRescue}, "unrescue": {node.Unrescue, rest.VersionRescue},
	"unhold": {node.Unhold, rest.VersionUnhold}, "service": {node.Service, rest.VersionService},
}

var stepInterfaces = []any{"power", "management", "deploy", "bios", "raid"}

var cleanSteps = &rest.Schema{Types: []string{"array"}, Items: &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"interface", "step"},
	Props: map[string]*rest.Schema{
		"interface": {Enum: stepInterfaces}, "step": {Types: []string{"string"}, MinLen: 1}, "args": {Types: []string{"object"}},
	},
}}

var deploySteps = &rest.Schema{Types: []string{"array"}, Items: &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"interface", "step", "args", "priority"},
	Props: map[string]*rest.Schema{
		"interface": {Enum: stepInterfaces}, "step": {Types: []string{"string"}, MinLen: 1}, "args": {Types: []string{"object"}},
		"priority": {Types: []string{"integer", "string"}, Pattern: regexp.MustCompile(`^[0-9]+$`)},
	},
}}

var driveSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true,
	Props: map[string]*rest.Schema{
		"meta_data": {Types: []string{"object"}}, "network_data": {Types: []string{"object"}},
		"user_data": {Types: []string{"object", "array", "string", "null"}}, "vendor_data": {Types: []string{"object"}},
	},
}

func (s *Server) putProvision(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, err := c.arguments("target", "configdrive", "clean_steps", "deploy_steps", "service_steps", "runbook", "rescue_password", "disable_ramdisk")
	if err != nil {
		return nil, err
	}
	target, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	n, nerr := s.node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	word, _ := target.(string)
	if target == nil {
		word = "None"
	}
	refused := rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, n.UUID, n.Provision)
	known, ok := verbs[word]
	if !ok {
		return nil, refused
	}
	if c.v < known.since {
		return nil, rest.NotAcceptable()
	}
	if n.Reservation != "" {
		return nil, lockedBy(n) // by whoever has the next move; what state that leads to is not known yet
	}
	if _, _, err := node.Next(n.Provision, n.TargetProvision, known.verb); err != nil {
		return nil, refused
	}
	switch {
	case n.Protected && (known.verb == node.Delete || known.verb == node.Rebuild):
		return nil, rest.Fault(http.StatusForbidden, "Node %s is protected and cannot be undeployed, rebuilt or deleted", n.UUID)
	case n.Retired && known.verb == node.Provide:
		return nil, rest.BadRequest("The providing operation can't be performed on node %s because it is retired.", n.UUID)
	}
	req, err := request(c, b, known.verb)
	if err != nil {
		return nil, err
	}
	req.User = c.user
	if err := s.useRunbook(ctx, c, b, &req); err != nil {
		return nil, err
	}
	if err := s.engine.Provision(ctx, n.UUID, req); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusAccepted, location: c.base + "/v1/nodes/" + c.path["node"] + "/states"}, nil
}

// request checks what comes with a verb and makes the engine's request of it.
func request(c *call, b map[string]any, verb node.Verb) (engine.Request, *rest.Error) {
	req := engine.Request{Verb: verb}
	if drive := b["configdrive"]; drive != nil {
		if verb != node.Deploy && verb != node.Rebuild {
			return req, rest.BadRequest(`Adding a config drive is only supported when setting provision state to active or rebuild`)
		}
		if verb == node.Rebuild && c.v < rest.VersionRebuildDrive {
			return req, rest.NotAcceptable()
		}
		var err *rest.Error
		if req.ConfigDrive, err = configDrive(c.v, drive); err != nil {
			return req, err
		}
	}
	steps, err := stepList(c, b, "clean_steps", verb == node.Clean, "clean", rest.VersionClean, cleanSteps)
	if err != nil {
		return req, err
	}
	if verb == node.Clean && len(steps) == 0 && b["runbook"] == nil {
		return req, rest.BadRequest(`"clean_steps" is required when setting target provision state to clean`)
	}
	req.CleanSteps = steps
	req.ServiceSteps, err = stepList(c, b, "service_steps", verb == node.Service, "service", rest.VersionService, cleanSteps)
	if err != nil {
		return req, err
	}
	if verb == node.Service && len(req.ServiceSteps) == 0 && b["runbook"] == nil {
		return req, rest.BadRequest(`"service_steps" is required when setting target provision state to service`)
	}
	req.DeploySteps, err = stepList(c, b, "deploy_steps", verb == node.Deploy || verb == node.Rebuild, "active or rebuild", rest.VersionDeploySteps, deploySteps)
	if err != nil {
		return req, err
	}
	pw, has := b["rescue_password"]
	if has && verb != node.DoRescue {
		return req, rest.BadRequest(`"rescue_password" is only valid when setting target provision state to rescue`)
	}
	if text, _ := pw.(string); verb == node.DoRescue && strings.TrimSpace(text) == "" {
		return req, rest.BadRequest(`A non-empty "rescue_password" is required when setting target provision state to rescue`)
	}
	if v, ok := b["disable_ramdisk"]; ok && v != nil {
		off, err := boolean("disable_ramdisk", v)
		if err != nil {
			return req, err
		}
		if c.v < 70 {
			return req, rest.NotAcceptable()
		}
		if verb != node.Clean {
			return req, rest.BadRequest(`"disable_ramdisk" is only valid when setting target provision state to clean`)
		}
		if off {
			return req, rest.BadRequest("Cleaning without the ramdisk is not supported: every clean step of this server runs in the agent.")
		}
	}
	return req, nil
}

// stepList reads a list of steps that only goes with certain verbs.
func stepList(c *call, b map[string]any, name string, fits bool, targets string, since rest.Version, schema *rest.Schema) ([]node.JobStep, *rest.Error) {
	v, ok := b[name]
	if !ok || v == nil {
		return nil, nil
	}
	if c.v < since {
		return nil, rest.NotAcceptable()
	}
	if !fits {
		return nil, rest.BadRequest("%q is only valid when setting target provision state to %s", name, targets)
	}
	if fault := schema.Check(v); fault != "" {
		return nil, rest.BadRequest("Invalid %s: %s", name, fault)
	}
	var steps []node.JobStep
	for _, item := range v.([]any) {
		o := item.(map[string]any)
		st := node.JobStep{Interface: o["interface"].(string), Name: o["step"].(string)}
		switch p := o["priority"].(type) {
		case float64:
			st.Priority = int(p)
		case string:
			n, err := strconv.Atoi(p)
			if err != nil {
				return nil, rest.BadRequest("Invalid %s: priority %s is too large", name, p)
			}
			st.Priority = n
		}
		if st.Priority < 0 {
			return nil, rest.BadRequest("Invalid %s: %d is less than the minimum of 0", name, st.Priority)
		}
		if args, ok := o["args"]; ok {
			raw, err := json.Marshal(args)
			if err != nil {
				return nil, rest.BadRequest("Invalid %s: %v", name, err)
			}
			st.Args = raw
		}
		steps = append(steps, st)
	}
	return steps, nil
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

// powerTargets are the targets of PUT states/power with the version that brought each.
var powerTargets = map[string]rest.Version{
	"power on": 1, "power off": 1, "rebooting": 1, "soft power off": rest.VersionSoftPower, "soft rebooting": rest.VersionSoftPower,
}

func (s *Server) putPower(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, err := c.arguments("target", "timeout")
	if err != nil {
		return nil, err
	}
	target, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	var timeout time.Duration
	if t, ok := b["timeout"]; ok && t != nil {
		if c.v < rest.VersionSoftPower {
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
	n, nerr := s.node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	word, _ := target.(string)
	since, ok := powerTargets[word]
	if !ok {
		state := n.Power
		if state == "" {
			state = "None"
		}
		return nil, rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, c.path["node"], state)
	}
	if c.v < since {
		return nil, rest.NotAcceptable()
	}
	if n.Provision == node.Cleaning || n.Provision == node.CleanWait {
		return nil, rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, n.UUID, n.Provision)
	}
	if n.Reservation != "" {
		return nil, lockedBy(n)
	}
	if err := s.engine.SetPower(ctx, n.UUID, word, timeout, c.user); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusAccepted, location: c.base + "/v1/nodes/" + c.path["node"] + "/states"}, nil
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

func (s *Server) putMaintenance(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, err := c.arguments("reason")
	if err != nil {
		return nil, err
	}
	reason, _ := b["reason"].(string)
	return s.setMaintenance(ctx, c, true, reason)
}

func (s *Server) deleteMaintenance(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	return s.setMaintenance(ctx, c, false, "")
}

func (s *Server) setMaintenance(ctx context.Context, c *call, on bool, reason string) (*reply, error) {
	n, err := s.node(ctx, c)
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
	return &reply{status: http.StatusAccepted}, nil
}

func (s *Server) getBootDevice(ctx context.Context, c *call) (*reply, error) {
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	device, persistent, err := s.engine.BootDevice(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusOK, body: rest.Object{{Name: "boot_device", Value: rest.Null(device)}, {Name: "persistent", Value: persistent}}}, nil
}

func (s *Server) getBootDevices(ctx context.Context, c *call) (*reply, error) {
	n, err := s.node(ctx, c)
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
	return &reply{status: http.StatusOK, body: rest.Object{{Name: "supported_boot_devices", Value: devices}}}, nil
}

func (s *Server) putBootDevice(ctx context.Context, c *call) (*reply, error) {
	b, err := c.arguments("boot_device", "persistent")
	if err != nil {
		return nil, err
	}
	v, ok := b["boot_device"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: boot_device")
	}
	persistent := false
	if p, ok := b["persistent"]; ok && p != nil {
		if persistent, err = boolean("persistent", p); err != nil {
			return nil, err
		}
	}
	n, nerr := s.node(ctx, c)
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
	if err := s.engine.SetBootDevice(ctx, n.UUID, device, persistent, c.user); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusNoContent}, nil
}

func (s *Server) validateQuery(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow("node_uuid", "node"); err != nil {
		return nil, err
	}
	ident := c.query.Get("node_uuid")
	if ident == "" {
		ident = c.query.Get("node")
	}
	if ident == "" {
		return nil, rest.BadRequest("Missing mandatory parameter: node_uuid")
	}
	c.path["node"] = ident
	return s.validate(ctx, c)
}

func (s *Server) validateNode(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	return s.validate(ctx, c)
}

func (s *Server) validate(ctx context.Context, c *call) (*reply, error) {
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := c.may(access.NodeValidate, n); err != nil {
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
	return &reply{status: http.StatusOK, body: out}, nil
}
