// Package rules answers requests for inspection rules. What conditions and actions have to be is conductor/inspect's to
// say.
package rules

import (
	"cmp"
	"context"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// ruleStore is the part of the store that rules need.
type ruleStore interface {
	InspectionRules() *store.Table[node.InspectionRule]
	Inventory(ctx context.Context, nodeUUID string) ([]byte, error)
	Ports(ctx context.Context, q store.PortQuery) ([]*node.Port, error)
}

// Handlers answer the requests.
type Handlers struct {
	store ruleStore
	find  *finder.Finder
	mask  inspect.Masking
}

// New makes Handlers. mask says from which rules secrets are kept when one is tried out.
func New(st ruleStore, find *finder.Finder, mask inspect.Masking) *Handlers {
	return &Handlers{store: st, find: find, mask: mask}
}

// ruleParts is a list of conditions or actions; package inspect defines their content.
func ruleParts(min int) *rest.Schema {
	args := &rest.Schema{Types: []string{"array", "object"}}
	return &rest.Schema{Types: []string{"array"}, MinLen: min, Hidden: true, Items: &rest.Schema{
		Types: []string{"object"}, Required: []string{"op", "args"},
		Props: map[string]*rest.Schema{"op": {Types: []string{"string"}}, "args": args, "loop": args,
			"multiple": {Types: []string{"string"}}},
	}}
}

// Routes are the routes of inspection rules.
func (s *Handlers) Routes() []call.Route { return append(s.kind().Routes(), s.checkRoutes()...) }

func (s *Handlers) kind() *resource.Kind[node.InspectionRule, rest.InspectionRule] {
	return &resource.Kind[node.InspectionRule, rest.InspectionRule]{
		Path: "inspection_rules", Param: "rule", Member: "inspection_rules", Body: "inspection_rule", Title: "Rule",
		Expects: "inspection_rule_uuid", Since: rest.VersionRules, DetailSince: rest.VersionRules, Write: call.Admin,
		Table:  func() *store.Table[node.InspectionRule] { return s.store.InspectionRules() },
		Fields: rest.InspectionRuleFields,
		Shapes: map[string]*rest.Schema{"conditions": partsShape, "actions": partsShape},
		Short:  rest.InspectionRuleListFields, Show: func(c *call.Call, v *node.InspectionRule) rest.InspectionRule {
			out := rest.InspectionRule{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				Description: rest.Null(v.Description), Priority: v.Priority, Sensitive: v.Sensitive, Phase: v.Phase,
				Links: rest.Links(c.Base, "inspection_rules/"+v.UUID),
			}
			if !v.Sensitive {
				out.Conditions, out.Actions = showParts(v.Conditions, "any"), showParts(v.Actions, "")
			}
			return out
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"actions"},
			Props: map[string]*rest.Schema{
				"uuid": document.OptionalText, "actions": ruleParts(1), "conditions": ruleParts(0),
				"description": {Types: []string{"string", "null"}, MaxLen: 255},
				"phase":       {Types: []string{"string", "null"}, MaxLen: 16},
				"priority":    {Types: []string{"integer"}}, "sensitive": {Types: []string{"boolean", "null"}},
			}},
		Patchable: []string{"actions", "conditions", "description", "phase", "priority", "sensitive"},
		Document: func(v *node.InspectionRule) map[string]any {
			return map[string]any{
				"actions": partsDocument(v.Actions), "conditions": partsDocument(v.Conditions),
				"description": document.OrNull(v.Description), "phase": v.Phase, "priority": float64(v.Priority),
				"sensitive": v.Sensitive,
			}
		},
		Check: func(_ context.Context, _ *call.Call, was *node.InspectionRule, d map[string]any) error {
			if sensitive, _ := d["sensitive"].(bool); was != nil && was.Sensitive && !sensitive {
				// or its secrets could be read
				return rest.BadRequest("Inspection rules cannot have the sensitive flag unset.")
			}
			return nil
		},
		Assign: func(_ *call.Call, v *node.InspectionRule, d map[string]any) *rest.Error {
			v.Description, v.Phase, v.Priority = document.Text(d, "description"), document.Text(d, "phase"),
				document.Number(d, "priority")
			v.Sensitive, _ = d["sensitive"].(bool)
			v.Conditions, v.Actions = partsIn(d, "conditions"), partsIn(d, "actions")
			v.Phase = cmp.Or(v.Phase, inspect.PhaseMain)
			if err := inspect.Validate(v); err != nil {
				if v.Sensitive {
					return rest.BadRequest(
						"Inspection rule validation failed. The reason is not shown, since the rule is sensitive: try it out with other values, and not sensitive.")
				}
				return rest.BadRequest("Inspection rule validation failed. Reason: %s", err)
			}
			return nil
		},
		Filters: []resource.Filter[node.InspectionRule]{
			{Name: "phase", Match: func(_ context.Context, _ *call.Call,
				value string) (func(*node.InspectionRule) bool, error) {
				return func(v *node.InspectionRule) bool { return v.Phase == value }, nil
			}}},
	}
}

// partsShape is the schema of showParts' result, or null in a sensitive rule.
var partsShape = func() *rest.Schema {
	s := *ruleParts(0)
	part := *s.Items
	part.Closed = true
	s.Types, s.Items = []string{"array", "null"}, &part
	return &s
}()

// showParts shows the known fields of each condition or action; multiple stands for a missing one of a loop.
func showParts(parts []map[string]any, multiple string) []map[string]any {
	out := make([]map[string]any, len(parts))
	for i, p := range parts {
		out[i] = map[string]any{"op": p["op"], "args": p["args"]}
		if rest.Repr(p["loop"]) == "[]" || rest.Repr(p["loop"]) == "{}" || p["loop"] == nil {
			continue
		}
		out[i]["loop"] = p["loop"]
		if m, ok := p["multiple"]; ok {
			out[i]["multiple"] = m
		} else if multiple != "" {
			out[i]["multiple"] = multiple
		}
	}
	return out
}

func partsDocument(parts []map[string]any) []any {
	out := make([]any, len(parts))
	for i, p := range parts {
		out[i] = rest.Clone(p)
	}
	return out
}

func partsIn(d map[string]any, name string) []map[string]any {
	list, _ := d[name].([]any)
	out := make([]map[string]any, len(list))
	for i := range list {
		part, _ := list[i].(map[string]any)
		out[i] = rest.Clone(part)
	}
	return out
}
