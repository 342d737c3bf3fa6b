// Package steparg describes steps: a Row with its arguments, its priorities and its place among other steps.
//
// The agent declares its steps in this form; they are in the ramdisk's manifest, so that the conductor refuses a
// request by the same rules by which the agent would refuse the plan, before a machine is touched. Values are JSON.
package steparg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Arg declares one argument of a step.
type Arg struct {
	Name        string `json:"name"`
	Type        string `json:"type"` // "string", "integer", "number", "boolean", "object", "array" or "any"; "" is any
	Required    bool   `json:"required,omitempty"`
	Description string `json:"description"`
	Secret      bool   `json:"secret,omitempty"` // its value is not shown
	// Given means that the conductor sets the argument from its data of the node, unless a request does.
	Given bool `json:"given,omitempty"`
	// Owner is where authorized users set the argument ("driver_info", or Configuration); "": with the step. With an
	// owner it can't come with the step, whose arguments take precedence.
	Owner string `json:"owner,omitempty"`
	// Items is the type of an array's items; "" is any.
	Items string `json:"items,omitempty"`
	// Enum lists the allowed strings, of a string or of an array's items; nil allows all.
	Enum []string `json:"enum,omitempty"`
	// Min and Max bound a number, the characters of a string, or the items of an array; nil is no bound.
	Min *float64 `json:"min,omitempty"`
	Max *float64 `json:"max,omitempty"`
}

// Configuration is the Owner of arguments that the conductor's configuration decides.
const Configuration = "configuration"

// Limit returns a bound for Min and Max.
func Limit(f float64) *float64 { return &f }

var types = []string{"string", "integer", "number", "boolean", "object", "array", "any"}

// Declared returns the faults of declarations: unknown types, bounds on types without them, duplicate names.
func Declared(args []Arg) error {
	var errs []error
	bad := func(a Arg, format string, v ...any) {
		errs = append(errs, fmt.Errorf("argument %s: %s", strconv.Quote(a.Name), fmt.Sprintf(format, v...)))
	}
	seen := map[string]bool{}
	for _, a := range args {
		if a.Name == "" {
			bad(a, "has no name")
		}
		if seen[a.Name] {
			bad(a, "is declared twice")
		}
		seen[a.Name] = true
		for _, t := range []string{a.Type, a.Items} {
			if t != "" && !slices.Contains(types, t) {
				bad(a, "has the unknown type %q", t)
			}
		}
		if a.Items != "" && a.Type != "array" {
			bad(a, "has items, but is no array")
		}
		if a.Enum != nil && a.Type != "string" && (a.Type != "array" || a.Items != "string") {
			bad(a, "lists the strings that are allowed, but is not made of strings")
		}
		if a.Enum != nil && len(a.Enum) == 0 {
			bad(a, "allows no string at all")
		}
		if bounded := slices.Contains([]string{"integer", "number", "string", "array"}, a.Type); !bounded &&
			(a.Min != nil || a.Max != nil) {
			bad(a, "has bounds, which type %q has not", a.Type)
		}
		if a.Min != nil && a.Max != nil && *a.Min > *a.Max {
			bad(a, "is at least %v and at most %v, which nothing is", *a.Min, *a.Max)
		}
	}
	return errors.Join(errs...)
}

// Parse parses given arguments: a JSON object, or nothing. Numbers are kept as written.
func Parse(step string, given json.RawMessage) (map[string]any, error) {
	got := map[string]any{}
	if len(bytes.TrimSpace(given)) == 0 {
		return got, nil
	}
	dec := json.NewDecoder(bytes.NewReader(given))
	dec.UseNumber()
	err := dec.Decode(&got)
	if err == nil && !json.Valid(given) {
		err = errors.New("something follows it")
	}
	if err != nil {
		return nil, fmt.Errorf("arguments of step %s are not a JSON object: %w", step, err)
	}
	return got, nil
}

// Check checks given arguments (a JSON object, or nothing) against a step's declaration, and returns every fault. null
// counts as absent. In a request, arguments set by the conductor may be absent, and those set elsewhere must be.
func Check(step string, args []Arg, given json.RawMessage, request bool) error {
	got, err := Parse(step, given)
	if err != nil {
		return err
	}
	return CheckValues(step, args, got, request)
}

// CheckValues is Check for decoded arguments, with or without UseNumber.
func CheckValues(step string, args []Arg, got map[string]any, request bool) error {
	var errs []error
	known := map[string]bool{}
	for _, a := range args {
		known[a.Name] = true
		v, there := got[a.Name]
		if there && request && a.Owner == Configuration {
			return fmt.Errorf("argument %s of step %s is set by the conductor's configuration", a.Name, step)
		} else if there && request && a.Owner != "" {
			return fmt.Errorf("argument %s of step %s does not come with a step: set it in %s of the node", a.Name,
				step, a.Owner)
		}
		if v == nil {
			if a.Required && !(request && a.Given) {
				errs = append(errs, fmt.Errorf("step %s needs the argument %s%s", step, a.Name, described(a)))
			}
			continue
		}
		if fault := a.fault(v); fault != "" {
			errs = append(errs, fmt.Errorf("argument %s of step %s %s", a.Name, step, fault))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if !known[name] {
			errs = append(errs, fmt.Errorf("step %s has no argument %s%s", step, name, names(args)))
		}
	}
	return join(errs)
}

func described(a Arg) string {
	if a.Description == "" {
		return ""
	}
	return " (" + a.Description + ")"
}

func names(args []Arg) string {
	if len(args) == 0 {
		return "; it takes none"
	}
	var out []string
	for _, a := range args {
		out = append(out, a.Name)
	}
	return "; it takes " + strings.Join(out, ", ")
}

// join is errors.Join on one line.
func join(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
	}
	return errors.New(strings.Join(texts, "; "))
}

// fault describes how a value violates its declaration; "" if it does not.
func (a Arg) fault(v any) string {
	if !of(v, a.Type) {
		return fmt.Sprintf("is %s, but has to be %s", withArticle(typeOf(v)), withArticle(a.Type))
	}
	switch v := v.(type) {
	case string:
		if fault := a.listed(v); fault != "" {
			return fault
		}
		return a.bounded(float64(utf8.RuneCountInString(v)), " characters long")
	case []any:
		for i, item := range v {
			if !of(item, a.Items) {
				return fmt.Sprintf("has %s as item %d, but its items have to be %s", withArticle(typeOf(item)), i+1,
					withArticle(a.Items))
			}
			if s, ok := item.(string); ok {
				if fault := a.listed(s); fault != "" {
					return fault
				}
			}
		}
		return a.bounded(float64(len(v)), " items long")
	}
	if f, ok := number(v); ok {
		return a.bounded(f, "")
	}
	return ""
}

func (a Arg) listed(s string) string {
	if a.Enum == nil || slices.Contains(a.Enum, s) {
		return ""
	}
	return fmt.Sprintf("is %q, but has to be one of %s", cut(s), strings.Join(a.Enum, ", "))
}

func (a Arg) bounded(f float64, unit string) string {
	text := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	if a.Min != nil && f < *a.Min {
		return fmt.Sprintf("is %s%s, but has to be at least %s", text(f), unit, text(*a.Min))
	}
	if a.Max != nil && f > *a.Max {
		return fmt.Sprintf("is %s%s, but has to be at most %s", text(f), unit, text(*a.Max))
	}
	return ""
}

// cut truncates a client's value in an error.
func cut(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "..."
	}
	return s
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	case float64:
		return v, true
	}
	return 0, false
}

// of reports whether a value is of a type.
func of(v any, typ string) bool {
	switch typ {
	case "integer":
		if n, ok := v.(json.Number); ok {
			if _, err := n.Int64(); err == nil {
				return true
			}
		}
		// 2.0 is an integer too, and clients write it.
		f, ok := number(v)
		return ok && f == math.Trunc(f) && math.Abs(f) < 1<<53
	case "number":
		_, ok := number(v)
		return ok
	case "string", "boolean", "object", "array":
		return typeOf(v) == typ
	}
	return true // "any", and types of newer agents
}

// typeOf returns the type of a JSON value.
func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64, json.Number:
		return "number"
	case map[string]any:
		return "object"
	case []any:
		return "array"
	}
	return "null"
}

func withArticle(typ string) string {
	switch typ {
	case "integer", "object", "array":
		return "an " + typ
	case "null":
		return typ
	}
	return "a " + typ
}
