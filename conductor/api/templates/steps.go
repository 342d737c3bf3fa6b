package templates

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// StepInterfaces are those that steps belong to; NewInterfaces are those of versions that know firmware.
var (
	StepInterfaces = []any{"power", "management", "deploy", "bios", "raid"}
	NewInterfaces  = append(slices.Clone(StepInterfaces), "firmware", "vendor", "network")
)

// maxSteps is more than anybody has; each of them is checked with every deployment.
const maxSteps = 255

// stepSchema is a step of a template or a runbook. order names the field that orders the steps: "priority" or "order".
func stepSchema(order string, needed ...string) *rest.Schema {
	return &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: append([]string{"interface", "step"}, needed...),
		Props: map[string]*rest.Schema{
			"interface": {Types: []string{"string"}}, "step": {Types: []string{"string"}, MinLen: 1},
			"args": {Types: []string{"object"}, Hidden: true},
			order:  {Types: []string{"integer", "string"}, Pattern: regexp.MustCompile(`^[0-9]+$`)},
		},
	}
}

// stepShapes is the schema of showSteps' result. Arguments that can't be read are null.
func stepShapes(order string) map[string]*rest.Schema {
	return map[string]*rest.Schema{
		"steps": rest.ListOf(rest.Object{{Name: "interface", Value: ""}, {Name: "step", Value: ""},
			{Name: "args", Value: &rest.Schema{Types: []string{"object", "null"}}}, {Name: order, Value: 0}})}
}

// stepInterface returns the fault of the interface of a template's or a runbook's step, or "".
func stepInterface(v rest.Version, name any) string {
	known := StepInterfaces
	if v >= rest.VersionFirmware {
		known = NewInterfaces[:len(StepInterfaces)+2] // firmware and vendor; networks have no steps of this kind
	}
	if slices.Contains(known, name) {
		return ""
	}
	return rest.Shown(name) + " is not one of " + rest.Repr(known)
}

// checkSteps refuses faults beyond a schema: a place that is no number from 0, and a duplicate step.
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
			return rest.Shown(o[order]) + " is too large", ""
		}
		if at < 0 {
			return strconv.Itoa(at) + " is less than the minimum of 0", ""
		}
		id := "interface: " + document.Text(o, "interface") + ", step: " + document.Text(o, "step")
		if seen[id] {
			return "", "Duplicate " + what + "steps. A " +
				strings.TrimSpace(map[string]string{"deploy ": "deploy template", "": "runbook"}[what]) +
				" cannot have multiple " + what + "steps with the same interface and step. Duplicates: " + id + "."
		}
		seen[id] = true
	}
	return "", ""
}

// place reads a priority or an order, which may be sent as text.
func place(v any) (int, bool) {
	switch v := exact.Plain(v).(type) {
	case float64:
		return int(v), v > -1<<31 && v < 1<<31
	case string:
		n, err := strconv.ParseInt(v, 10, 32)
		return int(n), err == nil
	}
	return 0, true
}

// stepsIn makes steps of a checked document. Secrets that come back masked are those of was.
func stepsIn(c *call.Call, d map[string]any, order string, was []node.TemplateStep) ([]node.TemplateStep, *rest.Error) {
	list, _ := d["steps"].([]any)
	var out []node.TemplateStep
	for i, item := range list {
		o, _ := item.(map[string]any)
		st := node.TemplateStep{Interface: document.Text(o, "interface"), Step: document.Text(o, "step")}
		if at, _ := place(o[order]); order == "order" {
			st.Order = at
		} else {
			st.Priority = at
		}
		if args, ok := o["args"].(map[string]any); ok {
			args = rest.Clone(args)
			same := func(w node.TemplateStep) bool { return w.Interface == st.Interface && w.Step == st.Step }
			for _, w := range was {
				if same(w) || !slices.ContainsFunc(was, same) { // which may be w by another name
					stored, err := argsOf(w)
					if err != nil {
						return nil, rest.BadRequest("%v; delete what it belongs to and make it anew.", err)
					}
					if same(w) {
						redact.Restore(args, stored)
					}
					if err := c.Resent([]string{"steps", strconv.Itoa(i), "args"}, stored, args, false); err != nil {
						return nil, err
					}
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

// argsOf returns a step's arguments, which are the caller's own.
func argsOf(st node.TemplateStep) (map[string]any, error) {
	args := map[string]any{}
	if len(st.Args) > 0 {
		if err := exact.Unmarshal(st.Args, &args); err != nil {
			return nil, fmt.Errorf("read stored arguments of step %s.%s: %w", st.Interface, st.Step, err)
		}
	}
	return args, nil
}

// showArgs returns a step's arguments, or null if the stored ones can't be read: not an empty object, which would mean
// that it has none, and which a PATCH of another attribute would store. The schema refuses null.
func showArgs(st node.TemplateStep, show func(map[string]any) map[string]any) any {
	args, err := argsOf(st)
	if err != nil {
		return nil
	}
	return show(args)
}

// stepDocuments are steps as a client would send them.
func stepDocuments(steps []node.TemplateStep, order string) []any {
	out := make([]any, len(steps))
	for i, st := range steps {
		o := map[string]any{"interface": st.Interface, "step": st.Step, "args": showArgs(st, rest.Clone),
			order: float64(st.Priority)}
		if order == "order" {
			o[order] = float64(st.Order)
		}
		out[i] = o
	}
	return out
}

// showSteps returns steps as clients see them: without secret arguments.
func showSteps(steps []node.TemplateStep, order string) []rest.Object {
	out := make([]rest.Object, len(steps))
	for i, st := range steps {
		at := st.Priority
		if order == "order" {
			at = st.Order
		}
		out[i] = rest.Object{{Name: "interface", Value: st.Interface}, {Name: "step", Value: st.Step},
			{Name: "args", Value: showArgs(st, func(args map[string]any) map[string]any { return redact.Map(args) })},
			{Name: order, Value: at}}
	}
	return out
}
