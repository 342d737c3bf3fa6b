package rootdevice

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Hint is one condition on a disk: an attribute, an operator, and the value to compare with.
type Hint struct {
	Key    string
	Op     string
	Values []string
	Text   string // as given
}

// Hints are conditions that must all hold. Nil means no hints.
type Hints []Hint

// hintKind says how an attribute is compared.
type hintKind int

const (
	textHint hintKind = iota
	sizeHint
	boolHint
)

var hintKinds = map[string]hintKind{
	"size": sizeHint, "rotational": boolHint,
	"model": textHint, "vendor": textHint, "serial": textHint, "wwn": textHint, "wwn_with_extension": textHint,
	"wwn_vendor_extension": textHint, "name": textHint, "hctl": textHint, "by_path": textHint, "tran": textHint,
}

var (
	numberOps = []string{"==", "!=", ">=", "<=", "=", ">", "<", "<or>", "<range-in>"}
	textOps   = []string{"s==", "s!=", "s>=", "s<=", "s>", "s<", "<in>", "<all-in>", "<or>"}
	// operator splits the operator from an expression. A longer one comes before its prefix.
	operator = regexp.MustCompile(`^(<all-in>|<range-in>|<in>|<or>|s==|s!=|s>=|s<=|s>|s<|==|!=|>=|<=|=|>|<)\s*(.*)$`)
)

// ParseHints parses a root_device object. Operators, defaults and meaning are Ironic's: "=" means at least, sizes are
// GiB, text is compared ignoring case. Empty, null and {} return nil.
func ParseHints(raw json.RawMessage) (Hints, error) {
	if t := strings.TrimSpace(string(raw)); t == "" || t == "null" {
		return nil, nil
	}
	fail := func(format string, args ...any) error {
		return &Error{Err: fmt.Errorf(format, args...), Remedy: "correct root_device of the node"}
	}
	var values map[string]any
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&values); err != nil {
		return nil, fail("root device hints: not an object: %w", err)
	}
	var hints Hints
	for key, v := range values {
		h, err := parseHint(key, v)
		if err != nil {
			return nil, fail("root device hint %s: %w", key, err)
		}
		hints = append(hints, h)
	}
	slices.SortFunc(hints, func(a, b Hint) int { return strings.Compare(a.Key, b.Key) })
	return hints, nil
}

func parseHint(key string, v any) (Hint, error) {
	kind, known := hintKinds[key]
	if !known {
		return Hint{}, fmt.Errorf("not a hint; there are %s", strings.Join(slices.Sorted(maps.Keys(hintKinds)), ", "))
	}
	var text string
	switch v := v.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	case bool:
		text = strconv.FormatBool(v)
	default:
		return Hint{}, fmt.Errorf("must be a string, a number or a boolean")
	}
	h := Hint{Key: key, Text: text}
	expr := strings.ToLower(strings.TrimSpace(text))
	if expr == "" {
		return Hint{}, fmt.Errorf("is empty")
	}
	if kind == boolHint {
		b, err := parseBool(expr)
		if err != nil {
			return Hint{}, err
		}
		h.Op, h.Values = "==", []string{strconv.FormatBool(b)}
		return h, nil
	}
	rest, ops := expr, textOps
	h.Op = "s=="
	if kind == sizeHint {
		h.Op, ops = "==", numberOps
	}
	if m := operator.FindStringSubmatch(expr); m != nil {
		h.Op, rest = m[1], m[2]
	}
	// A plain "==" on text means "s==".
	if kind == textHint && slices.Contains([]string{"==", "!=", ">=", "<=", "=", ">", "<"}, h.Op) {
		h.Op = "s" + h.Op
		if h.Op == "s=" {
			h.Op = "s=="
		}
	}
	if !slices.Contains(ops, h.Op) {
		return Hint{}, fmt.Errorf("operator %s does not fit; there are %s", h.Op, strings.Join(ops, " "))
	}
	switch h.Op {
	case "<or>", "<all-in>":
		for _, part := range strings.Split(rest, h.Op) {
			// <all-in> takes a list of words, <or> is repeated between values.
			words := []string{strings.TrimSpace(part)}
			if h.Op == "<all-in>" {
				words = strings.Fields(part)
			}
			for _, w := range words {
				if w != "" {
					h.Values = append(h.Values, w)
				}
			}
		}
	case "<range-in>":
		m := rangeExpr.FindStringSubmatch(rest)
		if m == nil {
			return Hint{}, fmt.Errorf("range %q is not like [ 10 20 ], with ( or ) where an end is not part of it",
				rest)
		}
		h.Values = m[1:]
	default:
		if h.Op == "<in>" && strings.Contains(rest, "<in>") {
			return Hint{}, fmt.Errorf("<in> takes one value; <all-in> takes several words")
		}
		h.Values = []string{strings.TrimSpace(rest)}
	}
	if len(h.Values) == 0 || h.Values[0] == "" {
		return Hint{}, fmt.Errorf("%q has no value after its operator", text)
	}
	if kind == sizeHint {
		numbers := h.Values
		if h.Op == "<range-in>" {
			numbers = h.Values[1:3]
		}
		for _, n := range numbers {
			if f, err := strconv.ParseFloat(n, 64); err != nil || !decimal.MatchString(n) {
				return Hint{}, fmt.Errorf("%q is not a number of GiB", n)
			} else if f <= 0 {
				return Hint{}, fmt.Errorf("%q is not more than nothing", n)
			}
		}
		if h.Op == "<range-in>" && gib(numbers[0]) > gib(numbers[1]) {
			return Hint{}, fmt.Errorf("the range begins at %s and ends at %s", numbers[0], numbers[1])
		}
	}
	return h, nil
}

// decimal excludes other numbers that strconv accepts: infinities, hexadecimal, underscores.
var decimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// gib parses a number that parseHint has checked.
func gib(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

var rangeExpr = regexp.MustCompile(`^([\[(])\s*(\S+)\s+([^\s\])]+)\s*([\])])$`)

func parseBool(s string) (bool, error) {
	switch s {
	case "true", "t", "1", "on", "yes", "y":
		return true, nil
	case "false", "f", "0", "off", "no", "n":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

// values returns the disk's values for a hint's name, in lower case. Paths have more than one spelling.
func (d Disk) values(key string) []string {
	var v []string
	switch key {
	case "size":
		v = []string{strconv.FormatFloat(float64(d.Size)/(1<<30), 'f', -1, 64)}
	case "rotational":
		v = []string{strconv.FormatBool(d.Rotational)}
	case "model":
		v = []string{d.Model}
	case "vendor":
		v = []string{d.Vendor}
	case "serial":
		v = []string{d.Serial}
	case "wwn":
		v = []string{d.WWN}
	case "wwn_with_extension":
		v = []string{d.WWNWithExtension}
	case "wwn_vendor_extension":
		v = []string{d.WWNVendorExtension}
	case "name":
		v = []string{d.Name}
		for _, p := range d.Paths[min(1, len(d.Paths)):] {
			v = append(v, p.Name)
		}
	case "hctl":
		v = []string{d.HCTL}
		for _, p := range d.Paths[min(1, len(d.Paths)):] {
			v = append(v, p.HCTL)
		}
	case "by_path":
		v = append([]string{d.ByPath}, d.ByPathAlso...)
	case "tran":
		v = []string{d.Tran}
	}
	for i := range v {
		v[i] = strings.ToLower(strings.TrimSpace(v[i]))
	}
	return v
}

// fits compares with all values of a disk: one equal value is enough, but a disk is "not equal" only if no value is
// equal. Alphabetical comparisons use the first value.
func (h Hint) fits(values []string) bool {
	known := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" })
	switch {
	case len(known) == 0: // unknown values fit nothing, not even "not equal"
		return false
	case h.Op == "s!=":
		return !slices.ContainsFunc(known, func(v string) bool { return !h.match(v) })
	case h.Op == "s<", h.Op == "s<=", h.Op == "s>", h.Op == "s>=":
		return h.match(known[0])
	}
	return slices.ContainsFunc(known, h.match)
}

func (h Hint) match(value string) bool {
	want := h.Values[0]
	switch h.Op {
	case "<in>":
		return strings.Contains(value, want)
	case "<all-in>":
		return !slices.ContainsFunc(h.Values, func(w string) bool { return !strings.Contains(value, w) })
	case "s==":
		return value == want
	case "s!=":
		return value != want
	case "s>=":
		return value >= want
	case "s>":
		return value > want
	case "s<=":
		return value <= want
	case "s<":
		return value < want
	}
	if h.Key != "size" { // rotational, or <or> on text
		return slices.Contains(h.Values, value)
	}
	return h.matchNumber(value)
}

func (h Hint) matchNumber(value string) bool {
	is, want := gib(value), gib(h.Values[0])
	// Disks are rarely whole GiB, while local_gb and all tools show them so: a whole number means that many, rounded
	// down.
	equal := func(want float64) bool { return is == want || float64(int64(is)) == want }
	switch h.Op {
	case "==":
		return equal(want)
	case "!=":
		return !equal(want)
	case "=", ">=":
		return is >= want
	case ">":
		return is > want
	case "<=":
		return is <= want || equal(want)
	case "<":
		return is < want
	case "<or>":
		return slices.ContainsFunc(h.Values, func(s string) bool { return equal(gib(s)) })
	case "<range-in>":
		low, high := gib(h.Values[1]), gib(h.Values[2])
		return (is > low || h.Values[0] == "[" && is == low) &&
			(is < high || h.Values[3] == "]" && (is == high || equal(high)))
	}
	return false
}

// HintsOf returns the hints that a deployment of a node uses, and where they are: in its instance_info, in its
// properties, or none. A text is read as JSON.
func HintsOf(instanceInfo, properties map[string]any) (source string, _ Hints, _ error) {
	for _, from := range []struct {
		name string
		m    map[string]any
	}{{"instance_info", instanceInfo}, {"properties", properties}} {
		raw, err := json.Marshal(from.m["root_device"])
		if err != nil {
			return from.name, nil, err
		}
		if text, ok := from.m["root_device"].(string); ok {
			raw = []byte(text)
		}
		hints, err := ParseHints(raw)
		if err != nil || hints != nil {
			return from.name, hints, err
		}
	}
	return "none", nil, nil
}
