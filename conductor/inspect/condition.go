package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// holds reports whether a condition of a rule holds.
func (sc *scope) holds(c map[string]any) (bool, error) {
	op, _ := c["op"].(string)
	name, inverted := uninverted(op)
	o, ok := conditions[name]
	if !ok {
		return false, fmt.Errorf("there is no condition %q", name)
	}
	args, err := o.named(c["args"])
	if err != nil {
		return false, err
	}
	once := func(sc *scope) (bool, error) {
		none := name == "is-empty" || name == "is-none"
		is, err := judge(name, sc.args(&o, args, true, none))
		return is != inverted, err
	}
	items, single, looped := sc.items(c["loop"])
	if !looped {
		return once(sc)
	}
	multiple, _ := c["multiple"].(string)
	var any, all, last = false, true, false
	for i, item := range items {
		in := *sc
		in.item, in.loops = item, true
		is, err := once(&in)
		if err != nil {
			return false, err
		}
		if i == 0 && multiple == "first" || single {
			return is, nil
		}
		any, all, last = any || is, all && is, is
	}
	switch multiple {
	case "all":
		return all, nil
	case "last":
		return last, nil
	}
	return any, nil
}

// items returns the items of a loop, with the places of its own texts filled in: here, and not again when they are put
// into arguments, so that no text from a machine is taken for a place. An object is one item.
func (sc *scope) items(loop any) (items []any, single, looped bool) {
	switch l := loop.(type) {
	case []any:
		for _, item := range l {
			items = append(items, sc.fill(item, true, false))
		}
		return items, false, len(l) > 0
	case map[string]any:
		if len(l) > 0 {
			return []any{sc.fill(l, true, false)}, true, true
		}
	}
	return nil, false, false
}

// args fills in the places of those arguments that may have them.
func (sc *scope) args(o *operator, args map[string]any, typed, none bool) map[string]any {
	out := make(map[string]any, len(args))
	for k, v := range args {
		if out[k] = v; sc.loops || slices.Contains(o.filled, k) {
			out[k] = sc.fill(v, typed, none)
		}
	}
	return out
}

// judge is a condition with its arguments.
func judge(name string, args map[string]any) (bool, error) {
	v := args["value"]
	switch name {
	case "eq", "lt", "gt":
		return chain(name, args)
	case "is-empty":
		return slices.Contains([]string{"", "None", "[]", "{}"}, pyString(v)), nil
	case "is-none":
		return v == nil, nil
	case "is-true":
		switch v := exact.Plain(v).(type) {
		case bool:
			return v, nil
		case float64:
			return v != 0, nil
		case string:
			return strings.EqualFold(v, "yes") || strings.EqualFold(v, "true"), nil
		}
		return false, nil
	case "is-false":
		switch v := exact.Plain(v).(type) {
		case nil:
			return true, nil
		case bool:
			return !v, nil
		case float64:
			return v == 0, nil
		case string:
			return strings.EqualFold(v, "no") || strings.EqualFold(v, "false"), nil
		}
		return false, nil
	case "in-net":
		return inNet(pyString(args["address"]), pyString(args["subnet"]))
	case "matches", "contains":
		text, _ := args["regex"].(string)
		if name == "matches" {
			text = `\A(?:` + text + `)\z`
		}
		re, err := regexp.Compile(text)
		if err != nil {
			return false, fmt.Errorf("invalid regular expression: %w", err)
		}
		return re.MatchString(pyString(v)), nil
	case "one-of":
		values, ok := args["values"].([]any)
		if !ok && args["values"] != nil {
			return false, errors.New("values is not a list")
		}
		for _, other := range values {
			if equal(v, other) {
				return true, nil
			}
		}
		return false, nil
	}
	return false, fmt.Errorf("there is no condition %q", name)
}

// chain compares each value with the one after it.
func chain(name string, args map[string]any) (bool, error) {
	values, ok := args["values"].([]any)
	if !ok {
		return false, errors.New("values is not a list")
	}
	asText, err := flag(args, "force_strings")
	if err != nil {
		return false, err
	}
	for i := 1; i < len(values); i++ {
		a, b := values[i-1], values[i]
		if asText {
			a, b = pyString(a), pyString(b)
		}
		if name == "eq" {
			if !(equal(a, b)) {
				return false, nil
			}
			continue
		}
		c, err := order(a, b, asText)
		if err != nil {
			return false, err
		}
		if name == "lt" && c >= 0 || name == "gt" && c <= 0 {
			return false, nil
		}
	}
	return true, nil
}

// equal compares two values. A number equals the text of that number, since a text with more than one place becomes
// text.
func equal(a, b any) bool {
	if same, numbers := exact.Equal(a, b); numbers {
		return same
	}
	x, xNumber := exact.Float(a)
	y, yNumber := exact.Float(b)
	if !xNumber && !yNumber {
		return pyRepr(a) == pyRepr(b)
	}
	s, isText := a.(string)
	n := y
	if xNumber {
		s, isText = b.(string)
		n = x
	}
	f, err := strconv.ParseFloat(s, 64)
	return isText && err == nil && f == n
}

// order reports which of two values comes first. Numbers, and texts that are whole numbers, are compared by size; other
// texts by their letters.
func order(a, b any, asText bool) (int, error) {
	x, xErr := numeric(a)
	y, yErr := numeric(b)
	s, sText := a.(string)
	t, tText := b.(string)
	switch {
	case asText:
		return cmp.Compare(s, t), nil
	case sText && tText:
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			if j, err := strconv.ParseInt(t, 10, 64); err == nil {
				return cmp.Compare(i, j), nil
			}
		}
		return cmp.Compare(s, t), nil
	case xErr == nil && yErr == nil:
		return cmp.Compare(x, y), nil
	}
	return 0, fmt.Errorf("%s and %s can't be compared", pyRepr(a), pyRepr(b))
}

func numeric(v any) (float64, error) {
	switch v := exact.Plain(v).(type) {
	case float64:
		return v, nil
	case string:
		return strconv.ParseFloat(v, 64)
	}
	return 0, errors.New("not a number")
}

// inNet: a text that is not an address is in no network.
func inNet(address, subnet string) (bool, error) {
	p, err := netip.ParsePrefix(subnet)
	if err != nil {
		a, aerr := netip.ParseAddr(subnet)
		if aerr != nil {
			return false, fmt.Errorf("subnet %q is not a network such as 192.0.2.0/24", subnet)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	a, err := netip.ParseAddr(address)
	return err == nil && p.Contains(a.WithZone("")), nil
}

// flag reads an argument that is true or false; a missing one is false.
func flag(args map[string]any, name string) (bool, error) {
	switch v := args[name].(type) {
	case nil:
		return false, nil
	case bool:
		return v, nil
	case string:
		switch strings.ToLower(v) {
		case "true", "yes", "1":
			return true, nil
		case "false", "no", "0":
			return false, nil
		}
	}
	return false, fmt.Errorf("%s is neither true nor false", name)
}
