// Package templates answers requests for named lists of steps: deploy templates, which follow from a node's traits, and
// runbooks, which a request for cleaning or service names.
package templates

import (
	"context"
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// tables are where templates and runbooks are kept.
type tables interface {
	DeployTemplates() *store.Table[node.DeployTemplate]
	Runbooks() *store.Table[node.Runbook]
}

// Handlers answer the requests.
type Handlers struct{ store tables }

// New makes Handlers.
func New(st tables) *Handlers { return &Handlers{store: st} }

// Routes are the routes of deploy templates and runbooks. In versions that don't have them yet, their methods other
// than GET are not allowed.
func (s *Handlers) Routes() []call.Route {
	rs := append(s.templates().Routes(), s.runbooks().Routes()...)
	rs = append(rs, s.runbookTraits()...)
	for i := range rs {
		rs[i].Barred = rs[i].Method != http.MethodGet
	}
	return rs
}

// names says that markers may be names, as in Ironic; there, too, a page can only begin after a UUID, and after a name
// nothing is found.
var names = call.Marker{What: "name", May: document.IsName}

// driversKey is the key in a deploy template's extra that limits it to hardware types. Clients know no other place for
// it.
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
			return nil, rest.BadRequest("extra's %s names hardware type %s, which is not one of %s", driversKey,
				rest.Shown(name), strings.Join(driver.Names(), ", "))
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

func (s *Handlers) templates() *resource.Kind[node.DeployTemplate, rest.DeployTemplate] {
	return &resource.Kind[node.DeployTemplate, rest.DeployTemplate]{
		Path: "deploy_templates", Param: "template", Member: "deploy_templates", Body: "template",
		Title: "Deploy template", Expects: "template_ident", Since: rest.VersionTemplates, Named: rest.VersionTemplates,
		DetailSince: rest.VersionTemplates, Write: call.Admin,
		Table:  func() *store.Table[node.DeployTemplate] { return s.store.DeployTemplates() },
		Fields: rest.DeployTemplateFields, Shapes: stepShapes("priority"), Short: rest.NamedListFields, Marker: names,
		Show: func(c *call.Call, t *node.DeployTemplate) rest.DeployTemplate {
			return rest.DeployTemplate{UUID: t.UUID, CreatedAt: rest.NullTime{Time: t.CreatedAt},
				UpdatedAt: rest.NullTime{Time: t.UpdatedAt}, Name: t.Name, Extra: t.Extra,
				Links: rest.Links(c.Base, "deploy_templates/"+t.UUID), Steps: showSteps(t.Steps, "priority")}
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"steps", "name"},
			Props: map[string]*rest.Schema{
				"uuid": document.OptionalText, "extra": document.OptionalObject, "name": {Types: []string{"string"}},
				"steps": {Types: []string{"array"}, MinLen: 1, Items: stepSchema("priority", "args", "priority")},
			}},
		Patchable: []string{"extra", "name", "steps"},
		Document: func(t *node.DeployTemplate) map[string]any {
			return map[string]any{"name": t.Name, "extra": rest.Clone(t.Extra),
				"steps": stepDocuments(t.Steps, "priority")}
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
		Assign: func(c *call.Call, t *node.DeployTemplate, d map[string]any) (err *rest.Error) {
			t.Name, t.Extra = document.Text(d, "name"), document.Object(d, "extra")
			if t.Drivers, err = driversIn(t.Extra); err != nil {
				return err
			}
			t.Steps, err = stepsIn(c, d, "priority", t.Steps)
			return err
		},
	}
}
