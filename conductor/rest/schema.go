package rest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Schema describes a valid JSON value. It has the few rules that the API's bodies need; the texts of its errors are
// those that clients of the API have always been shown.
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
	Hidden   bool // errors show nothing of the value: it holds secrets, or may
	// PatternText is how Pattern is written in errors; empty: as it is.
	PatternText string

	// What follows is not checked: it is for the description of the API, see shape.go.

	Since, Until Version            // that brought a property, and the last that has it; 0: all
	Sinces       map[string]Version // of values in Enum, and of texts that Pattern takes
	Optional     bool               // of an answer: the property may be missing
	Others       *Schema            // of an object: all properties that are not in Props
	Maybe        *Schema            // this, or null
	Format       string             // "uuid", "date-time"
	Name         string             // that several descriptions share it by
	// Whole: an answer has all of the properties that its version has, unless the request chose some of them.
	Whole bool
}

// Check returns the first fault of v, or "", in the order unknown property, property, missing property.
func (s *Schema) Check(v any) string { return s.check(v, false) }

// check is Check. Values of hidden parts, and of all in them, are not shown.
func (s *Schema) check(v any, hidden bool) string {
	if s == nil {
		return ""
	}
	hidden = hidden || s.Hidden
	shown := func() string {
		if hidden && v != nil {
			return redact.Stars
		}
		return Shown(v)
	}
	if len(s.Types) > 0 && !slices.ContainsFunc(s.Types, func(t string) bool { return isType(v, t) }) {
		quoted := make([]string, len(s.Types))
		for i, t := range s.Types {
			quoted[i] = Repr(t)
		}
		return fmt.Sprintf("%s is not of type %s", shown(), strings.Join(quoted, ", "))
	}
	if len(s.Enum) > 0 && v != nil && !slices.Contains(s.Enum, v) {
		return fmt.Sprintf("%s is not one of %s", shown(), Repr(s.Enum))
	}
	switch x := v.(type) {
	case map[string]any:
		return s.checkObject(x, hidden)
	case []any:
		if len(x) < s.MinLen {
			return shown() + " is too short"
		}
		for _, item := range x {
			if fault := s.Items.check(item, hidden); fault != "" {
				return fault
			}
		}
	case string:
		n := utf8.RuneCountInString(x)
		switch {
		case s.MaxLen > 0 && n > s.MaxLen:
			return shown() + " is too long"
		case n < s.MinLen:
			return shown() + " is too short"
		case s.Pattern != nil && !s.Pattern.MatchString(x):
			return fmt.Sprintf("%s does not match %s", shown(), Repr(cmp.Or(s.PatternText, s.Pattern.String())))
		}
	}
	return ""
}

func (s *Schema) checkObject(o map[string]any, hidden bool) string {
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
			return fmt.Sprintf("Additional properties are not allowed (%s %s unexpected)",
				strings.Join(unexpected, ", "), verb)
		}
	}
	for _, name := range names {
		if fault := s.Props[name].check(o[name], hidden || redact.Secret(name)); fault != "" {
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

// fits reports whether an object has no fault. To find the first of several faults takes a fixed order, which costs
// more.
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
	switch x := exact.Plain(v).(type) {
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

// shownText is how much of a text an error shows.
const shownText = 256

// Shown writes a JSON value from a request or the store as errors show it: a text or a number as Repr does, a long text
// cut; of lists and objects only the structure and the names of the members, since they may hold anything.
func Shown(v any) string {
	if s, ok := v.(string); ok {
		s = redact.Text(s)
		if r := []rune(s); len(r) > shownText {
			s = string(r[:shownText]) + "..."
		}
		return Repr(s)
	}
	return outline(v, true)
}

func outline(v any, whole bool) string {
	switch x := v.(type) {
	case []any:
		if len(x) > 0 {
			return "[...]"
		}
	case map[string]any:
		items := make([]string, 0, len(x))
		for i, k := range slices.SortedFunc(maps.Keys(x), reprOrder) {
			if i == 16 {
				items = append(items, "...")
				break
			}
			items = append(items, Shown(k)+": "+outline(x[k], false))
		}
		return "{" + strings.Join(items, ", ") + "}"
	default:
		if !whole {
			return "..."
		}
	}
	return Repr(v)
}

// Repr writes a JSON value the way the API's messages have always quoted them, which is Python's: 'text', True, None,
// {'a': 1}.
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
	case json.Number:
		return string(x)
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

// reprOrder sorts names, with those of a patch operation in the order people write them: JSON objects in Go have lost
// theirs.
func reprOrder(a, b string) int {
	rank := func(s string) int {
		if i := slices.Index([]string{"op", "path", "value"}, s); i >= 0 {
			return i
		}
		return 3
	}
	return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
}
