package rest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Schema is what a JSON value has to be. It knows the few rules that the API's bodies need; the texts of its errors are those
// that clients of the API have always been shown.
type Schema struct {
	Types    []string           // "object", "array", "string", "boolean", "integer", "null"; empty: anything
	Props    map[string]*Schema // of an object; a nil Schema is anything
	Required []string
	Closed   bool // no other properties than Props
	Items    *Schema
	MaxLen   int // of a string; 0: no limit
	MinLen   int // of a string or an array
	Enum     []any
	Pattern  *regexp.Regexp
	// PatternText is how Pattern is written in errors; empty: as it is.
	PatternText string
}

// Check returns what is wrong with v, or "". The first fault in the order unknown property, property, missing property.
func (s *Schema) Check(v any) string {
	if s == nil {
		return ""
	}
	if len(s.Types) > 0 && !slices.ContainsFunc(s.Types, func(t string) bool { return isType(v, t) }) {
		quoted := make([]string, len(s.Types))
		for i, t := range s.Types {
			quoted[i] = Repr(t)
		}
		return fmt.Sprintf("%s is not of type %s", Repr(v), strings.Join(quoted, ", "))
	}
	if len(s.Enum) > 0 && v != nil && !slices.Contains(s.Enum, v) {
		return fmt.Sprintf("%s is not one of %s", Repr(v), Repr(s.Enum))
	}
	switch x := v.(type) {
	case map[string]any:
		return s.checkObject(x)
	case []any:
		if len(x) < s.MinLen {
			return Repr(v) + " is too short"
		}
		for _, item := range x {
			if fault := s.Items.Check(item); fault != "" {
				return fault
			}
		}
	case string:
		n := utf8.RuneCountInString(x)
		switch {
		case s.MaxLen > 0 && n > s.MaxLen:
			return Repr(v) + " is too long"
		case n < s.MinLen:
			return Repr(v) + " is too short"
		case s.Pattern != nil && !s.Pattern.MatchString(x):
			return fmt.Sprintf("%s does not match %s", Repr(v), Repr(cmp.Or(s.PatternText, s.Pattern.String())))
		}
	}
	return ""
}

func (s *Schema) checkObject(o map[string]any) string {
	if s.fits(o) {
		return ""
	}
	names := slices.Sorted(maps.Keys(o))
	if s.Closed {
		var unexpected []string
		for _, name := range names {
			if _, ok := s.Props[name]; !ok {
				unexpected = append(unexpected, Repr(name))
			}
		}
		if len(unexpected) > 0 {
			verb := "was"
			if len(unexpected) > 1 {
				verb = "were"
			}
			return fmt.Sprintf("Additional properties are not allowed (%s %s unexpected)", strings.Join(unexpected, ", "), verb)
		}
	}
	for _, name := range names {
		if fault := s.Props[name].Check(o[name]); fault != "" {
			return fault
		}
	}
	for _, name := range s.Required {
		if _, ok := o[name]; !ok {
			return Repr(name) + " is a required property"
		}
	}
	return ""
}

// fits tells whether an object has no fault. Which is the first, of those that have some, takes an order that costs more.
func (s *Schema) fits(o map[string]any) bool {
	for name, v := range o {
		prop, ok := s.Props[name]
		if s.Closed && !ok || prop.Check(v) != "" {
			return false
		}
	}
	for _, name := range s.Required {
		if _, ok := o[name]; !ok {
			return false
		}
	}
	return true
}

func isType(v any, t string) bool {
	switch x := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case string:
		return t == "string"
	case float64:
		return t == "number" || t == "integer" && x == float64(int64(x))
	case []any:
		return t == "array"
	case map[string]any:
		return t == "object"
	}
	return false
}

// Repr writes a JSON value the way the API's messages have always quoted them, which is Python's: 'text', True, None, {'a': 1}.
func Repr(v any) string {
	switch x := v.(type) {
	case nil:
		return "None"
	case bool:
		if x {
			return "True"
		}
		return "False"
	case string:
		quote := "'"
		if strings.Contains(x, "'") && !strings.Contains(x, `"`) {
			quote = `"`
		}
		r := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`)
		x = r.Replace(x)
		if quote == "'" {
			x = strings.ReplaceAll(x, "'", `\'`)
		}
		return quote + x + quote
	case int:
		return strconv.Itoa(x)
	case float64:
		if x == float64(int64(x)) {
			return strconv.FormatInt(int64(x), 10)
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	case []any:
		items := make([]string, len(x))
		for i := range x {
			items[i] = Repr(x[i])
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		items := make([]string, 0, len(x))
		for _, k := range slices.SortedFunc(maps.Keys(x), reprOrder) {
			items = append(items, Repr(k)+": "+Repr(x[k]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return fmt.Sprint(v)
}

// reprOrder sorts names, with those of a patch operation in the order people write them: JSON objects in Go have lost theirs.
func reprOrder(a, b string) int {
	rank := func(s string) int {
		if i := slices.Index([]string{"op", "path", "value"}, s); i >= 0 {
			return i
		}
		return 3
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}
