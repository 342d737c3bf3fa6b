package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// scope holds the values that places in a rule's texts can refer to.
type scope struct {
	found *hook.Found
	item  any // of a loop
	loops bool
	mask  bool // secrets are shown as stars
	// lacking is called for places that could not be filled in.
	lacking func(text string, err error)
}

// masked stands for a secret, in rules as in Ironic.
const masked = "***"

// hidden returns a copy of a value without its secrets. No rule sees the node's own secrets.
func hidden(v any) any { return redact.With(v, masked, "configdrive") }

// orNil is a text, or nil where it is empty.
func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// attributes are what {node.NAME} can be.
func attributes(n *node.Node) map[string]any {
	traits := make([]any, len(n.Traits))
	for i, t := range n.Traits {
		traits[i] = t
	}
	object := func(m map[string]any) any { return hidden(m) }
	out := map[string]any{
		"uuid": n.UUID, "name": orNil(n.Name), "driver": n.Driver, "driver_info": object(n.DriverInfo),
		"properties": object(n.Properties), "extra": object(n.Extra), "instance_info": object(n.InstanceInfo),
		"instance_uuid": orNil(n.InstanceUUID), "resource_class": orNil(n.ResourceClass),
		"provision_state": string(n.Provision), "power_state": orNil(n.Power), "owner": orNil(n.Owner),
		"lessee": orNil(n.Lessee), "description": orNil(n.Description), "conductor_group": n.ConductorGroup,
		"chassis_uuid": orNil(n.ChassisUUID), "shard": orNil(n.Shard), "parent_node": orNil(n.ParentNode),
		"maintenance": n.Maintenance, "retired": n.Retired, "protected": n.Protected, "traits": traits,
		"boot_mode": orNil(n.BootMode), "raid_config": object(n.RAIDConfig), "target_raid_config": object(n.TargetRAID),
		"network_data": object(n.NetworkData), "auto_discovered": !n.DiscoveredAt.IsZero(),
	}
	for _, kind := range interfaceKinds {
		out[kind+"_interface"] = orNil(n.Interfaces[kind])
	}
	return out
}

var interfaceKinds = []string{"bios", "boot", "console", "deploy", "firmware", "inspect", "management", "network",
	"power", "raid", "rescue", "storage", "vendor"}

// place is one replacement field of a text, as Python's str.format has it: a name, and how to go on from it.
type place struct {
	root  string
	steps []placeStep
	repr  bool // !r
}

type placeStep struct {
	key string
	dot bool // .key rather than [key]
}

var (
	placeRoot = regexp.MustCompile(`^[a-z_]+`)
	dotKey    = regexp.MustCompile(`^\.([A-Za-z_][A-Za-z0-9_]*)`)
	itemKey   = regexp.MustCompile(`^\[([^][]+)\]`)
)

func parsePlace(s string) (place, error) {
	var p place
	body := s
	if rest, ok := strings.CutSuffix(body, "!r"); ok {
		body, p.repr = rest, true
	} else if rest, ok := strings.CutSuffix(body, "!s"); ok {
		body = rest
	}
	p.root = placeRoot.FindString(body)
	if p.root == "" {
		return p, fmt.Errorf("{%s} does not begin with the name of something", s)
	}
	for body = body[len(p.root):]; body != ""; {
		if m := dotKey.FindStringSubmatch(body); m != nil {
			p.steps, body = append(p.steps, placeStep{m[1], true}), body[len(m[0]):]
		} else if m := itemKey.FindStringSubmatch(body); m != nil {
			p.steps, body = append(p.steps, placeStep{m[1], false}), body[len(m[0]):]
		} else {
			return p, fmt.Errorf("{%s} can't be read from %q on; format specifications are not supported", s, body)
		}
	}
	return p, nil
}

// missingError says that there is nothing at a place.
type missingError struct{ place, what string }

func (e *missingError) Error() string { return fmt.Sprintf("%s: there is no %s", e.place, e.what) }

// value returns the value at a place.
func (sc *scope) value(text string) (any, error) {
	p, err := parsePlace(text)
	if err != nil {
		return nil, err
	}
	name := "{" + text + "}"
	var v any
	steps, mask := p.steps, sc.mask
	switch p.root {
	case "inventory":
		v = sc.found.Inventory
	case "plugin_data":
		v = sc.found.PluginData
	case "node":
		// As in Python: attributes of an object, so a dot.
		if len(steps) == 0 || !steps[0].dot {
			return nil, fmt.Errorf("%s: write {node.ATTRIBUTE}", name)
		}
		all := attributes(sc.found.Node)
		got, ok := all[steps[0].key]
		if !ok {
			return nil, &missingError{name, "attribute " + steps[0].key}
		}
		v, steps, mask = got, steps[1:], false // it has been masked
	case "item":
		if !sc.loops {
			return nil, fmt.Errorf("%s: there is no loop", name)
		}
		v, mask = sc.item, false // the rule's own, or masked when it was filled in
	default:
		return nil, &missingError{name, p.root}
	}
	for _, s := range steps {
		if s.dot {
			return nil, fmt.Errorf("%s: inside of it write [%s] instead of .%s", name, s.key, s.key)
		}
		switch in := v.(type) {
		case map[string]any:
			got, ok := in[s.key]
			if !ok {
				return nil, &missingError{name, s.key}
			}
			if v = got; mask && redact.Secret(s.key) {
				v = masked
			}
		case []any:
			i, err := strconv.Atoi(s.key)
			if err != nil || i < 0 || i >= len(in) {
				return nil, &missingError{name, "item " + s.key}
			}
			v = in[i]
		default:
			return nil, &missingError{name, s.key}
		}
	}
	if mask {
		v = hidden(v)
	}
	if p.repr {
		v = pyRepr(v)
	}
	return v, nil
}

// piece is a part of a text: literal, or a place.
type piece struct {
	text  string
	place bool
}

// pieces cuts a text at its places. Doubled braces stand for themselves.
func pieces(s string) ([]piece, error) {
	var out []piece
	var lit strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case (c == '{' || c == '}') && i+1 < len(s) && s[i+1] == c:
			lit.WriteByte(c)
			i += 2
		case c == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return nil, fmt.Errorf("%q has a { without }", s)
			}
			if lit.Len() > 0 {
				out = append(out, piece{text: lit.String()})
				lit.Reset()
			}
			out = append(out, piece{s[i+1 : i+end], true})
			i += end + 1
		case c == '}':
			return nil, fmt.Errorf("%q has a } without {", s)
		default:
			lit.WriteByte(c)
			i++
		}
	}
	if lit.Len() > 0 {
		out = append(out, piece{text: lit.String()})
	}
	return out, nil
}

// format fills in the places of a text, as Python's str.format does.
func (sc *scope) format(s string) (string, error) {
	all, err := pieces(s)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, p := range all {
		if !p.place {
			out.WriteString(p.text)
			continue
		}
		v, err := sc.value(p.text)
		if err != nil {
			return "", err
		}
		out.WriteString(pyString(v))
	}
	return out.String(), nil
}

// fill fills in the places of all texts in a value. A text whose places can't be filled in stays unchanged, and lacking
// is called; with typed a text that is a single place becomes the value there, of any kind, and with none a missing
// value becomes nil.
func (sc *scope) fill(v any, typed, none bool) any {
	switch v := v.(type) {
	case string:
		if !strings.ContainsAny(v, "{}") {
			return v
		}
		var out any
		all, err := pieces(v)
		if err == nil && typed && len(all) == 1 && all[0].place {
			out, err = sc.value(all[0].text)
		} else if err == nil {
			out, err = sc.format(v)
		}
		if err == nil {
			return out
		}
		if missing := (*missingError)(nil); errors.As(err, &missing) && none {
			return nil
		}
		if sc.lacking != nil {
			sc.lacking(v, err)
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out[pyString(sc.fill(k, false, false))] = sc.fill(v[k], typed, none)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = sc.fill(v[i], typed, none)
		}
		return out
	}
	return v
}

// pyString is how Python's str shows a value: rules were written with that in mind.
func pyString(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return pyRepr(v)
}

func pyRepr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case string:
		q := "'"
		if strings.Contains(v, "'") && !strings.Contains(v, `"`) {
			q = `"`
		}
		return q + strings.NewReplacer(`\`, `\\`, q, `\`+q, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(v) + q
	case json.Number:
		return string(v)
	case float64:
		// JSON does not tell whole numbers from others, and inventories have whole ones.
		return strconv.FormatFloat(v, 'f', -1, 64)
	case map[string]any:
		parts := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, pyRepr(k)+": "+pyRepr(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = pyRepr(v[i])
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return fmt.Sprint(v)
}
