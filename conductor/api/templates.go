package api

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/driver"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// templateRoutes are the routes of deploy templates and runbooks. In versions that don't have them yet, their methods other than GET
// are not allowed.
func (s *Server) templateRoutes() []call.Route {
	rs := append(s.templates().Routes(), s.runbooks().Routes()...)
	for i := range rs {
		r := &rs[i]
		if r.Method == http.MethodGet {
			continue
		}
		since, handle := r.Since, r.Handle
		r.Since, r.Hidden = 0, false
		r.Handle = func(ctx context.Context, c *call.Call) (*call.Reply, error) {
			if c.Version < since {
				return nil, rest.Routing(http.StatusMethodNotAllowed, "")
			}
			return handle(ctx, c)
		}
	}
	return rs
}

// stepSchema is a step of a template or a runbook. order is what its place among the steps goes by: "priority" or "order".
func stepSchema(order string, needed ...string) *rest.Schema {
	return &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: append([]string{"interface", "step"}, needed...),
		Props: map[string]*rest.Schema{
			"interface": {Types: []string{"string"}}, "step": {Types: []string{"string"}, MinLen: 1}, "args": {Types: []string{"object"}},
			order: {Types: []string{"integer", "string"}, Pattern: regexp.MustCompile(`^[0-9]+$`)},
		},
	}
}

// maxSteps is more than anybody has; each of them is checked with every deployment.
const maxSteps = 255

// stepInterface says what is wrong with the interface of a template's or a runbook's step, or "".
func stepInterface(v rest.Version, name any) string {
	known := stepInterfaces
	if v >= rest.VersionFirmware {
		known = newInterfaces[:len(stepInterfaces)+2] // firmware and vendor; networks have no steps of this kind
	}
	if slices.Contains(known, name) {
		return ""
	}
	return rest.Repr(name) + " is not one of " + rest.Repr(known)
}

// checkSteps refuses what a schema can't: a place that is no number from 0, and a step that is there twice.
func checkSteps(v rest.Version, d map[string]any, order, what string) (fault, invalid string) {
	list, _ := d["steps"].([]any)
	if len(list) > maxSteps {
		return "there are more than " + strconv.Itoa(maxSteps) + " steps", ""
	}
	seen := map[string]bool{}
	for _, item := range list {
		o, _ := item.(map[string]any)
		if fault := stepInterface(v, o["interface"]); fault != "" {
			return fault, ""
		}
		at, ok := place(o[order])
		if !ok {
			return rest.Repr(o[order]) + " is too large", ""
		}
		if at < 0 {
			return strconv.Itoa(at) + " is less than the minimum of 0", ""
		}
		id := "interface: " + document.Text(o, "interface") + ", step: " + document.Text(o, "step")
		if seen[id] {
			return "", "Duplicate " + what + "steps. A " + strings.TrimSpace(map[string]string{"deploy ": "deploy template", "": "runbook"}[what]) +
				" cannot have multiple " + what + "steps with the same interface and step. Duplicates: " + id + "."
		}
		seen[id] = true
	}
	return "", ""
}

// place reads a priority or an order, which may be sent as text.
func place(v any) (int, bool) {
	switch v := v.(type) {
	case float64:
		return int(v), v > -1<<31 && v < 1<<31
	case string:
		n, err := strconv.ParseInt(v, 10, 32)
		return int(n), err == nil
	}
	return 0, true
}

// stepsIn makes steps of a checked document. Secrets that come back masked are those of was.
func stepsIn(d map[string]any, order string, was []node.TemplateStep) ([]node.TemplateStep, *rest.Error) {
	list, _ := d["steps"].([]any)
	var out []node.TemplateStep
	for _, item := range list {
		o, _ := item.(map[string]any)
		st := node.TemplateStep{Interface: document.Text(o, "interface"), Step: document.Text(o, "step")}
		if at, _ := place(o[order]); order == "order" {
			st.Order = at
		} else {
			st.Priority = at
		}
		if args, ok := o["args"].(map[string]any); ok {
			args = rest.Clone(args)
			for _, w := range was {
				if w.Interface == st.Interface && w.Step == st.Step {
					rest.Unmask(args, argsOf(w))
				}
			}
			b, err := json.Marshal(args)
			if err != nil {
				return nil, rest.BadRequest("Arguments of step %s are not JSON: %v", st.Step, err)
			}
			st.Args = b
		}
		out = append(out, st)
	}
	return out, nil
}

// argsOf gives a step's arguments, which are the caller's own.
func argsOf(st node.TemplateStep) map[string]any {
	args := map[string]any{}
	if len(st.Args) > 0 {
		_ = json.Unmarshal(st.Args, &args) // it was made by Marshal
	}
	return args
}

// stepDocuments are steps as a client would send them.
func stepDocuments(steps []node.TemplateStep, order string) []any {
	out := make([]any, len(steps))
	for i, st := range steps {
		o := map[string]any{"interface": st.Interface, "step": st.Step, "args": argsOf(st), order: float64(st.Priority)}
		if order == "order" {
			o[order] = float64(st.Order)
		}
		out[i] = o
	}
	return out
}

// showSteps are steps as clients see them: without what is secret in their arguments.
func showSteps(steps []node.TemplateStep, order string) []rest.Object {
	out := make([]rest.Object, len(steps))
	for i, st := range steps {
		at := st.Priority
		if order == "order" {
			at = st.Order
		}
		out[i] = rest.Object{{Name: "interface", Value: st.Interface}, {Name: "step", Value: st.Step}, {Name: "args", Value: rest.Mask(argsOf(st))}, {Name: order, Value: at}}
	}
	return out
}

// driversKey is the key in a deploy template's extra that limits it to hardware types. Clients know no other place for it.
const driversKey = "ingot:drivers"

// driversIn reads what extra says of hardware types; nil when it says nothing.
func driversIn(extra map[string]any) ([]string, *rest.Error) {
	v, ok := extra[driversKey]
	if !ok || v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	names := document.Texts(v)
	if !ok || len(names) != len(list) || len(list) == 0 {
		return nil, rest.BadRequest("extra's %s is not a list of hardware types, such as [\"ipmi\"]", driversKey)
	}
	for _, name := range names {
		if _, ok := driver.ByName(name); !ok {
			return nil, rest.BadRequest("extra's %s names hardware type %s, which is not one of %s", driversKey, rest.Repr(name), strings.Join(driver.Names(), ", "))
		}
	}
	return names, nil
}

func subject(was bool, body string) string {
	if was {
		return "patch"
	}
	return body
}

func (s *Server) templates() *resource.Kind[node.DeployTemplate, rest.DeployTemplate] {
	return &resource.Kind[node.DeployTemplate, rest.DeployTemplate]{
		Path: "deploy_templates", Param: "template", Member: "deploy_templates", Body: "template", Title: "Deploy template", Expects: "template_ident",
		Since: rest.VersionTemplates, Named: rest.VersionTemplates, DetailSince: rest.VersionTemplates, Write: call.Admin,
		Table:  func() *store.Table[node.DeployTemplate] { return s.store.DeployTemplates() },
		Fields: rest.DeployTemplateFields, Short: rest.NamedListFields,
		Show: func(c *call.Call, t *node.DeployTemplate) rest.DeployTemplate {
			return rest.DeployTemplate{UUID: t.UUID, CreatedAt: rest.NullTime{Time: t.CreatedAt}, UpdatedAt: rest.NullTime{Time: t.UpdatedAt}, Name: t.Name,
				Extra: t.Extra, Links: rest.Links(c.Base, "deploy_templates/"+t.UUID), Steps: showSteps(t.Steps, "priority")}
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"steps", "name"}, Props: map[string]*rest.Schema{
			"uuid": document.OptionalText, "extra": document.OptionalObject, "name": {Types: []string{"string"}},
			"steps": {Types: []string{"array"}, MinLen: 1, Items: stepSchema("priority", "args", "priority")},
		}},
		Patchable: []string{"extra", "name", "steps"},
		Document: func(t *node.DeployTemplate) map[string]any {
			return map[string]any{"name": t.Name, "extra": rest.Clone(t.Extra), "steps": stepDocuments(t.Steps, "priority")}
		},
		Check: func(_ context.Context, c *call.Call, was *node.DeployTemplate, d map[string]any) error {
			if fault := document.TraitFault(document.Text(d, "name")); fault != "" {
				return rest.BadRequest("Schema error for %s: %s", subject(was != nil, "template"), fault)
			}
			fault, invalid := checkSteps(c.Version, d, "priority", "deploy ")
			switch {
			case fault != "":
				return rest.BadRequest("Schema error for %s: %s", subject(was != nil, "template"), fault)
			case invalid != "":
				return rest.BadRequest("Deploy template invalid: %s", invalid)
			}
			if _, err := driversIn(document.Object(d, "extra")); err != nil {
				return err
			}
			return nil
		},
		Assign: func(_ *call.Call, t *node.DeployTemplate, d map[string]any) (err *rest.Error) {
			t.Name, t.Extra = document.Text(d, "name"), document.Object(d, "extra")
			if t.Drivers, err = driversIn(t.Extra); err != nil {
				return err
			}
			t.Steps, err = stepsIn(d, "priority", t.Steps)
			return err
		},
	}
}

func owns(r *node.Runbook) access.Object { return access.Object{Owner: r.Owner} }

func (s *Server) runbooks() *resource.Kind[node.Runbook, rest.Runbook] {
	k := &resource.Kind[node.Runbook, rest.Runbook]{
		Path: "runbooks", Param: "runbook", Member: "runbooks", Body: "runbook", Title: "Runbook", Expects: "runbook_ident",
		Since: rest.VersionRunbooks, Named: rest.VersionRunbooks, DetailSince: rest.VersionRunbooks, Write: call.Admin,
		Table:  func() *store.Table[node.Runbook] { return s.store.Runbooks() },
		Fields: rest.RunbookFields, Short: rest.NamedListFields,
		Show: func(c *call.Call, r *node.Runbook) rest.Runbook {
			return rest.Runbook{UUID: r.UUID, CreatedAt: rest.NullTime{Time: r.CreatedAt}, UpdatedAt: rest.NullTime{Time: r.UpdatedAt}, Name: r.Name,
				Extra: r.Extra, Public: r.Public, Owner: rest.Null(r.Owner), DisableRamdisk: r.DisableRamdisk, Description: rest.Null(r.Description),
				Links: rest.Links(c.Base, "runbooks/"+r.UUID), Steps: showSteps(r.Steps, "order"), Traits: r.Traits}
		},
		Sees: func(c *call.Call, r *node.Runbook) bool {
			return c.Actor.May(access.RunbookGet, owns(r)) || r.Public && c.Actor.May(access.RunbookList, access.Object{})
		},
		May: func(c *call.Call, r *node.Runbook) error {
			if c.Request.Method == http.MethodDelete {
				return c.MayFor(access.RunbookDelete, owns(r))
			}
			rules := map[access.Rule]bool{}
			for _, root := range patchRoots(c.Body) {
				switch root {
				case "owner":
					rules[access.RunbookOwner] = true
				case "public":
					rules[access.RunbookPublic] = true
				default:
					rules[access.RunbookUpdate] = true
				}
			}
			if len(rules) == 0 {
				rules[access.RunbookUpdate] = true
			}
			for _, rule := range []access.Rule{access.RunbookUpdate, access.RunbookPublic, access.RunbookOwner} {
				if rules[rule] {
					if err := c.MayFor(rule, owns(r)); err != nil {
						return err
					}
				}
			}
			return nil
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"steps", "name"}, Props: map[string]*rest.Schema{
			"uuid": document.OptionalText, "extra": document.OptionalObject, "name": {Types: []string{"string"}}, "owner": {Types: []string{"string", "null"}, MaxLen: 255},
			"public": {Types: []string{"boolean", "null"}}, "disable_ramdisk": {Types: []string{"boolean", "null"}},
			"description": {Types: []string{"string", "null"}, MaxLen: 255},
			"steps":       {Types: []string{"array"}, MinLen: 1, Items: stepSchema("order", "order")},
		}},
		Patchable: []string{"disable_ramdisk", "extra", "name", "owner", "public", "steps", "description"},
		Document: func(r *node.Runbook) map[string]any {
			return map[string]any{"name": r.Name, "extra": rest.Clone(r.Extra), "owner": document.OrNull(r.Owner), "public": r.Public,
				"disable_ramdisk": r.DisableRamdisk, "description": document.OrNull(r.Description), "steps": stepDocuments(r.Steps, "order")}
		},
		Check: checkRunbook,
		Assign: func(_ *call.Call, r *node.Runbook, d map[string]any) (err *rest.Error) {
			r.Name, r.Extra, r.Owner, r.Description = document.Text(d, "name"), document.Object(d, "extra"), document.Text(d, "owner"), document.Text(d, "description")
			r.Public, _ = d["public"].(bool)
			r.DisableRamdisk, _ = d["disable_ramdisk"].(bool)
			r.Steps, err = stepsIn(d, "order", r.Steps)
			return err
		},
	}
	return k
}

// runbookName is what a runbook may be called in versions in which its name need not be a trait.
var runbookName = regexp.MustCompile(`^[A-Za-z0-9\-._~]+$`)

func checkRunbook(_ context.Context, c *call.Call, was *node.Runbook, d map[string]any) error {
	body, name := subject(was != nil, "runbook"), document.Text(d, "name")
	switch free := c.Version >= rest.VersionRunbookTraits; {
	case free && (!runbookName.MatchString(name) || len(name) > 255):
		return rest.BadRequest("Schema error for %s: %s does not match %s", body, rest.Repr(name), rest.Repr(runbookName.String()))
	case !free && (was == nil || was.Name != name):
		if fault := document.TraitFault(name); fault != "" {
			return rest.BadRequest("Schema error for %s: %s", body, fault)
		}
	}
	fault, invalid := checkSteps(c.Version, d, "order", "")
	switch {
	case fault != "":
		return rest.BadRequest("Schema error for %s: %s", body, fault)
	case invalid != "":
		return rest.BadRequest("Runbook invalid: %s", invalid)
	}
	public, _ := d["public"].(bool)
	if was == nil {
		if c.Actor.May(access.RunbookOwner, access.Object{}) {
			return nil
		}
		switch owner := document.Text(d, "owner"); {
		case owner != "" && owner != c.Actor.ProjectID:
			return rest.BadRequest("Cannot create a runbook as a project scoped admin with an owner other than your own project.")
		case public:
			return rest.BadRequest("Cannot create a public runbook as a project scoped admin.")
		}
		d["owner"] = c.Actor.ProjectID
		return nil
	}
	// A public runbook is nobody's: whoever makes it so, or ends that, takes its owner away, unless the patch names one.
	roots := patchRoots(c.Body)
	if slices.Contains(roots, "public") && !slices.Contains(roots, "owner") {
		d["owner"] = nil
	}
	if public && document.Text(d, "owner") != "" {
		return rest.BadRequest("Couldn't apply patch '%s'. Reason: There cannot be an owner for a public runbook", rest.Repr(c.Body))
	}
	return nil
}

// patchRoots are the attributes that a checked PATCH body changes.
func patchRoots(body any) []string {
	var roots []string
	list, _ := body.([]any)
	for _, item := range list {
		o, _ := item.(map[string]any)
		root, _, _ := strings.Cut(strings.TrimPrefix(document.Text(o, "path"), "/"), "/")
		roots = append(roots, root)
	}
	return roots
}

// useRunbook puts the runbook that the body of a PUT names into the request, if whoever asks may use it. That it suits the node is for
// the engine to say.
func (s *Server) useRunbook(ctx context.Context, c *call.Call, b map[string]any, req *engine.Request) error {
	v, ok := b["runbook"]
	if !ok || v == nil {
		return nil
	}
	if c.Version < rest.VersionRunbooks {
		return rest.NotAcceptable()
	}
	ident, ok := v.(string)
	if !ok || ident == "" {
		return rest.BadRequest("Expected UUID or name for runbook: %s", rest.Repr(v))
	}
	if req.Verb != node.Clean && req.Verb != node.Service {
		return rest.BadRequest(`"runbooks" is only valid when setting target provision state to any of ['clean', 'service']`)
	}
	if len(req.CleanSteps)+len(req.ServiceSteps) > 0 {
		return rest.BadRequest(`Please provide either "%s_steps" or a runbook, but not both.`, req.Verb)
	}
	k := s.runbooks()
	r, err := k.ByIdent(ctx, c, ident)
	if err != nil {
		return err
	}
	if !r.Public || c.Actor.Role < access.Member && !c.Actor.Service { // public ones are every member's to use
		if err := c.MayFor(access.RunbookUse, owns(r)); err != nil {
			return err
		}
	}
	req.Runbook = r.UUID
	return nil
}
