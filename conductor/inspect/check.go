package inspect

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Report says what a rule would do.
type Report struct {
	Matched    bool
	Conditions []bool // as far as they were looked at: the first that does not hold ends it
	Changes    []Change
	Calls      []string // URLs that would be called; hidden for sensitive rules
	Notes      []hook.Note
	Failure    string // why the inspection would fail; "" when it would not
}

// Change is a value that a rule would change. Secrets, and all values of sensitive rules, are stars.
type Change struct {
	Path     string // "node/driver_info/ipmi_address", "port/52:54:.../extra/a", "plugin_data/a"
	From, To any    // nil: not there
}

// Check returns what a rule would do. It changes f, which must therefore be a copy.
func Check(f *hook.Found, r *node.InspectionRule, o Options) Report {
	var rep Report
	o.Call = func(c Call) error {
		if r.Sensitive {
			c.URL = masked
		}
		rep.Calls = append(rep.Calls, c.URL)
		return nil
	}
	before := shape(f)
	notes := len(f.Notes)
	var out outcome
	err := apply(f, r, &o, &out)
	rep.Matched, rep.Conditions = out.matched, out.conditions
	var rule *RuleError
	if errors.As(err, &rule) {
		rep.Failure = rule.Error()
	} else if err != nil {
		rep.Failure = err.Error()
	}
	rep.Notes = slices.Clone(f.Notes[notes:])
	diff("", before, shape(f), func(path string, from, to any) {
		if r.Sensitive {
			from, to = stars(from), stars(to)
		}
		rep.Changes = append(rep.Changes, Change{path, from, to})
	})
	return rep
}

func stars(v any) any {
	if v == nil {
		return nil
	}
	return masked
}

// shape is all that rules can change, as one object.
func shape(f *hook.Found) map[string]any {
	attrs := func(all map[string]attribute) map[string]any {
		out := map[string]any{}
		for name, a := range all {
			if v := a.get(); v != nil {
				out[name] = v
			}
		}
		return out
	}
	n := attrs(nodeAttributes(f.Node))
	if len(f.Node.Traits) > 0 {
		n["traits"] = attributes(f.Node)["traits"]
	}
	ports := map[string]any{}
	for _, p := range f.Ports {
		ports[p.Address] = attrs(portAttributes(p))
	}
	return map[string]any{"node": n, "port": ports, "plugin_data": clone(f.PluginData)}
}

// diff calls tell for each value that differs, as deep inside as possible. Secrets are shown as stars.
func diff(path string, a, b any, tell func(path string, from, to any)) {
	x, xObject := a.(map[string]any)
	y, yObject := b.(map[string]any)
	if (xObject || a == nil) && (yObject || b == nil) && (xObject || yObject) && (len(x) > 0 || len(y) > 0) {
		keys := map[string]bool{}
		for k := range x {
			keys[k] = true
		}
		for k := range y {
			keys[k] = true
		}
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			diff(strings.TrimPrefix(path+"/"+k, "/"), x[k], y[k], tell)
		}
		return
	}
	if pyRepr(a) == pyRepr(b) {
		return
	}
	if key := path[strings.LastIndexByte(path, '/')+1:]; redact.Secret(key) || key == "configdrive" {
		a, b = stars(a), stars(b)
	}
	tell(path, hidden(a), hidden(b))
}
