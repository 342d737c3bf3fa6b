package templates

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func owns(r *node.Runbook) access.Object { return access.Object{Owner: r.Owner} }

func (s *Handlers) runbooks() *resource.Kind[node.Runbook, rest.Runbook] {
	k := &resource.Kind[node.Runbook, rest.Runbook]{
		Path: "runbooks", Param: "runbook", Member: "runbooks", Body: "runbook", Title: "Runbook",
		Expects: "runbook_ident", Since: rest.VersionRunbooks, Named: rest.VersionRunbooks,
		DetailSince: rest.VersionRunbooks, Write: call.Admin, Unknown: true,
		Table: func() *store.Table[node.Runbook] { return s.store.Runbooks() }, Fields: rest.RunbookFields,
		Shapes: stepShapes("order"), Short: rest.NamedListFields, Marker: names,
		Show: func(c *call.Call, r *node.Runbook) rest.Runbook {
			return rest.Runbook{UUID: r.UUID, CreatedAt: rest.NullTime{Time: r.CreatedAt},
				UpdatedAt: rest.NullTime{Time: r.UpdatedAt}, Name: r.Name, Extra: r.Extra, Public: r.Public,
				Owner: rest.Null(r.Owner), DisableRamdisk: r.DisableRamdisk, Description: rest.Null(r.Description),
				Links: rest.Links(c.Base, "runbooks/"+r.UUID), Steps: showSteps(r.Steps, "order"), Traits: r.Traits}
		},
		Sees: func(c *call.Call, r *node.Runbook) bool {
			return c.Actor.May(access.RunbookGet, owns(r)) || r.Public &&
				c.Actor.May(access.RunbookList, access.Object{})
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
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"steps", "name"},
			Props: map[string]*rest.Schema{
				"uuid": document.OptionalText, "extra": document.OptionalObject, "name": {Types: []string{"string"}},
				"owner":  {Types: []string{"string", "null"}, MaxLen: 255},
				"public": {Types: []string{"boolean", "null"}}, "disable_ramdisk": {Types: []string{"boolean", "null"}},
				"description": {Types: []string{"string", "null"}, MaxLen: 255},
				"steps":       {Types: []string{"array"}, MinLen: 1, Items: stepSchema("order", "order")},
			}},
		Patchable: []string{"disable_ramdisk", "extra", "name", "owner", "public", "steps", "description"},
		Document: func(r *node.Runbook) map[string]any {
			return map[string]any{"name": r.Name, "extra": rest.Clone(r.Extra), "owner": document.OrNull(r.Owner),
				"public": r.Public, "disable_ramdisk": r.DisableRamdisk, "description": document.OrNull(r.Description),
				"steps": stepDocuments(r.Steps, "order")}
		},
		Check: checkRunbook,
		Assign: func(c *call.Call, r *node.Runbook, d map[string]any) (err *rest.Error) {
			r.Name, r.Extra, r.Owner, r.Description = document.Text(d, "name"), document.Object(d, "extra"),
				document.Text(d, "owner"), document.Text(d, "description")
			r.Public, _ = d["public"].(bool)
			r.DisableRamdisk, _ = d["disable_ramdisk"].(bool)
			r.Steps, err = stepsIn(c, d, "order", r.Steps)
			return err
		},
	}
	return k
}

// runbookName matches names of runbooks where they need not be traits: in new versions, and in a PATCH of any version.
var runbookName = regexp.MustCompile(`^[A-Za-z0-9\-._~]+$`)

func checkRunbook(_ context.Context, c *call.Call, was *node.Runbook, d map[string]any) error {
	body, name := subject(was != nil, "runbook"), document.Text(d, "name")
	switch trait := was == nil && c.Version < rest.VersionRunbookTraits; {
	case trait:
		if fault := document.TraitFault(name); fault != "" {
			return rest.BadRequest("Schema error for %s: %s", body, fault)
		}
	case len(name) > 255:
		return rest.BadRequest("Schema error for %s: %s is too long", body, rest.Shown(name))
	case !runbookName.MatchString(name):
		return rest.BadRequest("Schema error for %s: %s does not match %s", body, rest.Shown(name),
			rest.Repr(runbookName.String()))
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
			return rest.BadRequest(
				"Cannot create a runbook as a project scoped admin with an owner other than your own project.")
		case public:
			return rest.BadRequest("Cannot create a public runbook as a project scoped admin.")
		}
		d["owner"] = c.Actor.ProjectID
		return nil
	}
	// A public runbook has no owner: making it public, or ending that, removes the owner, unless the patch names one.
	roots := patchRoots(c.Body)
	if slices.Contains(roots, "public") && !slices.Contains(roots, "owner") {
		d["owner"] = nil
	}
	if public && document.Text(d, "owner") != "" {
		return rest.RefusedPatch("There cannot be an owner for a public runbook", c.Body)
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

// UseRunbook puts the runbook that the body of a PUT names into the request, if the caller may use it. The engine
// checks whether it suits the node.
func (s *Handlers) UseRunbook(ctx context.Context, c *call.Call, b map[string]any, req *engine.Request) error {
	v, ok := b["runbook"]
	if !ok || v == nil {
		return nil
	}
	if c.Version < rest.VersionRunbooks {
		return rest.NotAcceptable()
	}
	ident, ok := v.(string)
	if !ok || ident == "" {
		return rest.BadRequest("Expected UUID or name for runbook: %s", rest.Shown(v))
	}
	if req.Verb != node.Clean && req.Verb != node.Service {
		return rest.BadRequest(
			`"runbooks" is only valid when setting target provision state to any of ['clean', 'service']`)
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
	req.Runbook, req.RunbookByName = r.UUID, c.Version < rest.VersionRunbookTraits
	return nil
}
