// Package inspect turns the results of an inspection into changes: first by the hooks of package hook, then by rules.
//
// A rule is a list of conditions and a list of actions, each an object {"op": name, "args": object or list, "loop":
// object or list}; a condition's op may begin with "!", which inverts it, and a condition with a loop may say in
// "multiple" how its results are combined. Texts in args may hold places such as {inventory[cpu][count]} or
// {item[path]}, which are filled in when the rule is applied: an argument with such a place can only be checked then.
// The names are those of Ironic's inspection rules.
package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// PhaseMain is the one phase there is: after the hooks, before the inventory is stored.
const PhaseMain = "main"

// MaxPriority is the highest priority of a rule; the lowest is 0.
const MaxPriority = 9999

// operator is a condition or an action with its arguments, in the order of a list of arguments.
type operator struct {
	required, optional []string
	// filled are the arguments in which places are filled in; in a loop all are.
	filled []string
	// check looks at arguments that hold no places; nil accepts all.
	check func(args map[string]any) error
}

var compare = operator{required: []string{"values"}, optional: []string{"force_strings"}, filled: []string{"values"},
	check: isList("values")}

var conditions = map[string]operator{
	"eq":       compare,
	"lt":       compare,
	"gt":       compare,
	"is-empty": {required: []string{"value"}, filled: []string{"value"}},
	"is-none":  {required: []string{"value"}, filled: []string{"value"}},
	"is-true":  {required: []string{"value"}, filled: []string{"value"}},
	"is-false": {required: []string{"value"}, filled: []string{"value"}},
	"in-net":   {required: []string{"address", "subnet"}, filled: []string{"address", "subnet"}, check: isSubnet},
	"matches":  {required: []string{"value", "regex"}, filled: []string{"value"}, check: isRegex},
	"contains": {required: []string{"value", "regex"}, filled: []string{"value"}, check: isRegex},
	"one-of": {required: []string{"value"}, optional: []string{"values"}, filled: []string{"value", "values"},
		check: isList("values")},
}

var actions = map[string]operator{
	"fail": {required: []string{"msg"}, filled: []string{"msg"}},
	"log": {required: []string{"msg"}, optional: []string{"level"}, filled: []string{"msg"},
		check: isLevel},
	"set-attribute": {required: []string{"path", "value"}, filled: []string{"value"}, check: isPath},
	"extend-attribute": {required: []string{"path", "value"}, optional: []string{"unique"},
		filled: []string{"value"}, check: isPath},
	"del-attribute":    {required: []string{"path"}, check: isPath},
	"set-capability":   {required: []string{"name", "value"}, filled: []string{"value"}},
	"unset-capability": {required: []string{"name"}},
	"add-trait":        {required: []string{"name"}},
	"remove-trait":     {required: []string{"name"}},
	"set-plugin-data":  {required: []string{"path", "value"}, filled: []string{"value"}, check: isPath},
	"extend-plugin-data": {required: []string{"path", "value"}, optional: []string{"unique"},
		filled: []string{"value"}, check: isPath},
	"unset-plugin-data": {required: []string{"path"}, check: isPath},
	"set-port-attribute": {required: []string{"port_id", "path", "value"}, filled: []string{"port_id", "value"},
		check: isPath},
	"extend-port-attribute": {required: []string{"port_id", "path", "value"}, optional: []string{"unique"},
		filled: []string{"port_id", "value"}, check: isPath},
	"del-port-attribute": {required: []string{"port_id", "path"}, filled: []string{"port_id"}, check: isPath},
	"api-call": {required: []string{"url"}, filled: []string{"url"},
		optional: []string{"headers", "proxies", "timeout", "retries", "backoff_factor"}},
}

// Conditions returns the names of all conditions, sorted, without those that are inverted by "!".
func Conditions() []string { return slices.Sorted(maps.Keys(conditions)) }

// Actions returns the names of all actions, sorted.
func Actions() []string { return slices.Sorted(maps.Keys(actions)) }

// uninverted takes the exclamation mark off a condition's name, if it has one.
func uninverted(name string) (plain string, inverted bool) {
	plain, inverted = strings.CutPrefix(strings.TrimSpace(name), "!")
	return strings.TrimSpace(plain), inverted
}

var multiples = []string{"any", "all", "first", "last"}

// Validate returns the fault of a rule: a sentence that names the condition or action, or nil.
func Validate(r *node.InspectionRule) error {
	if r.Phase != PhaseMain {
		return fmt.Errorf("invalid phase %q: the one phase there is is %q", r.Phase, PhaseMain)
	}
	if r.Priority < 0 || r.Priority > MaxPriority {
		return fmt.Errorf("priority must be between 0 and %d", MaxPriority)
	}
	return validateParts(r)
}

// validateParts is Validate without regard to phase and priority.
func validateParts(r *node.InspectionRule) error {
	for _, c := range r.Conditions {
		name, _ := c["op"].(string)
		plain, _ := uninverted(name)
		op, ok := conditions[plain]
		if !ok {
			return fmt.Errorf(
				"unsupported condition operator %q: it must be one of %s, or one of them after an exclamation mark",
				name, strings.Join(Conditions(), ", "))
		}
		if m, ok := c["multiple"]; ok {
			if text, ok := m.(string); !ok || !slices.Contains(multiples, text) {
				return fmt.Errorf("condition %q: multiple must be one of %s", name, strings.Join(multiples, ", "))
			}
		}
		if err := op.validate(c); err != nil {
			return fmt.Errorf("condition %q: %w", name, err)
		}
	}
	if len(r.Actions) == 0 {
		return fmt.Errorf("a rule must have at least one action")
	}
	for _, a := range r.Actions {
		name, _ := a["op"].(string)
		op, ok := actions[name]
		if !ok {
			return fmt.Errorf("unsupported action operator %q: it must be one of %s", name,
				strings.Join(Actions(), ", "))
		}
		if err := op.validate(a); err != nil {
			return fmt.Errorf("action %q: %w", name, err)
		}
	}
	return nil
}

func (o *operator) validate(use map[string]any) error {
	args, err := o.named(use["args"])
	if err != nil {
		return err
	}
	looped := false
	switch loop := use["loop"].(type) {
	case nil:
	case []any:
		looped = len(loop) > 0
	case map[string]any:
		looped = len(loop) > 0
	default:
		return fmt.Errorf("loop must be a list or an object")
	}
	if looped || o.check == nil {
		return nil // in a loop, all arguments may hold places
	}
	return o.check(args)
}

// named adds the names of arguments, which a list lacks, and refuses missing and unknown ones.
func (o *operator) named(v any) (map[string]any, error) {
	all := slices.Concat(o.required, o.optional)
	switch x := v.(type) {
	case map[string]any:
		for _, name := range o.required {
			if _, ok := x[name]; !ok {
				return nil, fmt.Errorf("missing required argument(s): %s", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(x)) {
			if !slices.Contains(all, name) {
				return nil, fmt.Errorf("unexpected argument(s): %s; it takes %s", name, strings.Join(all, ", "))
			}
		}
		return x, nil
	case []any:
		if len(x) < len(o.required) {
			return nil, fmt.Errorf("missing required argument(s): %s", strings.Join(o.required[len(x):], ", "))
		}
		if len(x) > len(all) {
			return nil, fmt.Errorf("%d arguments, but it takes no more than %s", len(x), strings.Join(all, ", "))
		}
		args := make(map[string]any, len(x))
		for i := range x {
			args[all[i]] = x[i]
		}
		return args, nil
	}
	return nil, fmt.Errorf("args must be either a list or an object")
}

// plain returns an argument that is a text without places.
func plain(args map[string]any, name string) (string, bool) {
	s, ok := args[name].(string)
	return s, ok && !strings.ContainsAny(s, "{}")
}

func isList(name string) func(map[string]any) error {
	return func(args map[string]any) error {
		switch v := args[name].(type) {
		case nil, []any:
			return nil
		case string:
			if strings.Contains(v, "{") {
				return nil
			}
		}
		return fmt.Errorf("%s must be a list", name)
	}
}

// isRegex wants a regular expression that can be used here: those of Go, which have no look-around and no
// back-references.
func isRegex(args map[string]any) error {
	text, ok := args["regex"].(string)
	if !ok {
		return fmt.Errorf("regex must be a text")
	}
	if _, err := regexp.Compile(text); err != nil {
		return fmt.Errorf("invalid regular expression: %w", err)
	}
	return nil
}

func isSubnet(args map[string]any) error {
	text, ok := plain(args, "subnet")
	if !ok {
		return nil
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return nil // a network of one
	}
	return fmt.Errorf("subnet %q is not a network such as 192.0.2.0/24", text)
}

func isLevel(args map[string]any) error {
	levels := []string{"debug", "info", "warning", "error", "critical"}
	if text, ok := plain(args, "level"); ok && !slices.Contains(levels, strings.ToLower(text)) {
		return fmt.Errorf("invalid log level %q: it must be one of %s", text, strings.Join(levels, ", "))
	}
	return nil
}

func isPath(args map[string]any) error {
	if text, ok := args["path"].(string); !ok || strings.Trim(text, "/.") == "" {
		return fmt.Errorf("path must be the name of an attribute, with / or . before what is inside of it")
	}
	return nil
}

// Order puts rules into the order in which they are applied: higher priorities first, among equals those made first. It
// expects them in the order they were made.
func Order(rules []*node.InspectionRule) {
	slices.SortStableFunc(rules, func(a, b *node.InspectionRule) int { return cmp.Compare(b.Priority, a.Priority) })
}
