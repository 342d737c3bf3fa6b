package states

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/templates"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// verbs are the targets of PUT states/provision that are not the verb's own name. Which version brought each is in
// rest.Verbs.
var verbs = map[string]node.Verb{"deploy": node.Deploy, "undeploy": node.Delete}

func verbOf(target string) (node.Verb, bool) {
	if v, ok := verbs[target]; ok {
		return v, true
	}
	_, ok := rest.Verbs[target]
	return node.Verb(target), ok
}

// listedSteps is the schema of the steps of cleaning and service, in the order in which they are to run.
func listedSteps(v rest.Version) *rest.Schema {
	s := &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: []string{"interface", "step"},
		Props: map[string]*rest.Schema{
			"interface": {Enum: templates.NewInterfaces}, "step": {Types: []string{"string"}, MinLen: 1},
			"args": {Types: []string{"object"}, Hidden: true},
		},
	}
	if v < rest.VersionFirmware {
		s.Props["interface"] = &rest.Schema{Enum: templates.StepInterfaces}
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
	item.Props["interface"] = &rest.Schema{Enum: templates.NewInterfaces[:7]}
	return &rest.Schema{Types: deploySteps.Types, Items: &item}
}

var wholeNumber = regexp.MustCompile(`^[0-9]+$`)

var deploySteps = &rest.Schema{Types: []string{"array"}, Items: &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"interface", "step", "args", "priority"},
	Props: map[string]*rest.Schema{
		"interface": {Enum: templates.StepInterfaces}, "step": {Types: []string{"string"}, MinLen: 1},
		"args":     {Types: []string{"object"}, Hidden: true},
		"priority": {Types: []string{"integer", "string"}, Pattern: wholeNumber},
	},
}}

var driveSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true, Hidden: true,
	Props: map[string]*rest.Schema{
		"meta_data": {Types: []string{"object"}}, "network_data": {Types: []string{"object"}},
		"user_data": {Types: []string{"object", "array", "string", "null"}}, "vendor_data": {Types: []string{"object"}},
	},
}

func (s *Handlers) putProvision(ctx context.Context, c *call.Call) (*call.Reply, error) {
	names := []string{"target"}
	for name, since := range rest.ProvisionParameters {
		if since <= s.newest {
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
	if err := c.Typed(typesOfProvision); err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	word, _ := target.(string)
	if target == nil {
		word = "None"
	}
	verb, ok := verbOf(word)
	if !ok {
		return nil, rest.BadRequest(
			`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, word, n.UUID, n.Provision)
	}
	if c.Version < rest.Verbs[word] {
		return nil, rest.NotAcceptable()
	}
	if n.Reservation != "" {
		return nil, finder.LockedBy(n) // by the owner of the next move; the state that it leads to is not known yet
	}
	if err := engine.Allowed(n, verb); err != nil {
		return nil, err
	}
	if verb == node.Abort && c.Version < rest.AbortIn[string(n.Provision)] {
		return nil, rest.NotAcceptable()
	}
	req, err := request(c, n, b, verb)
	if err != nil {
		return nil, err
	}
	if err := s.templates.UseRunbook(ctx, c, b, &req); err != nil {
		return nil, err
	}
	req.User = c.User
	if err := s.engine.Provision(ctx, n.UUID, req); err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusAccepted, Location: c.Base + "/v1/nodes/" + c.Path["node"] + "/states"}, nil
}

// emptyIsNone are the parameters that go with any verb when they are empty.
var emptyIsNone = map[string]bool{"configdrive": true, "clean_steps": true, "deploy_steps": true, "service_steps": true}

func isEmpty(v any) bool {
	switch x := v.(type) {
	case string:
		return x == ""
	case []any:
		return len(x) == 0
	case map[string]any:
		return len(x) == 0
	}
	return false
}

// request checks the arguments of a verb and makes the engine's request of them.
func request(c *call.Call, n *node.Node, b map[string]any, verb node.Verb) (engine.Request, *rest.Error) {
	req := engine.Request{Verb: verb}
	b = maps.Clone(b)
	maps.DeleteFunc(b, func(name string, v any) bool { return emptyIsNone[name] && isEmpty(v) })
	for name, since := range rest.ProvisionParameters {
		if b[name] != nil && c.Version < since {
			return req, rest.Fault(http.StatusNotAcceptable,
				"Request not acceptable. The minimal required API version should be %s", since)
		}
	}
	if drive := b["configdrive"]; drive != nil {
		if verb != node.Deploy && verb != node.Rebuild {
			return req, rest.BadRequest(
				`Adding a config drive is only supported when setting provision state to active or rebuild`)
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
	req.DeploySteps, err = stepList(b, "deploy_steps", verb == node.Deploy || verb == node.Rebuild, "active or rebuild",
		prioritySteps(c.Version))
	if err != nil {
		return req, err
	}
	pw, has := b["rescue_password"]
	if has && pw != nil && verb != node.DoRescue {
		return req, rest.BadRequest(`"rescue_password" is only valid when setting target provision state to rescue`)
	}
	// Ironic knows passwords only. With keys in the node, none is needed; the engine checks the keys.
	keys, kerr := instance.RescueKeys(n)
	if req.RescuePassword, _ = pw.(string); verb == node.DoRescue && strings.TrimSpace(req.RescuePassword) == "" &&
		kerr == nil && len(keys) == 0 {
		return req, rest.BadRequest(
			`A non-empty "rescue_password" is required when setting target provision state to rescue`)
	}
	if v, ok := b["disable_ramdisk"]; ok && v != nil {
		if req.DisableRamdisk, err = document.Argument("disable_ramdisk", v); err != nil {
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
func stepList(b map[string]any, name string, fits bool, targets string,
	schema *rest.Schema) ([]node.JobStep, *rest.Error) {
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
			return nil, rest.BadRequest(
				"Invalid %s: step %s can't be run on child nodes from their parent; ask each child for it", name,
				st.Name)
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

// configDrive checks a config drive: an object to make one from, the text of such an object, a URL, or the image itself
// as base64.
func configDrive(v rest.Version, drive any) (any, *rest.Error) {
	if text, ok := drive.(string); ok {
		o, ok := instance.DriveText(text)
		if !ok {
			return nil, rest.BadRequest(
				"Invalid configdrive format: it is neither a JSON, nor a URL, nor a base64 string")
		}
		if o == nil {
			return text, nil
		}
		drive = o
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
