package inspect

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// act carries out an action of a rule.
func (sc *scope) act(a map[string]any, o *Options) error {
	name, _ := a["op"].(string)
	op, ok := actions[name]
	if !ok {
		return fmt.Errorf("there is no action %q", name)
	}
	args, err := op.named(a["args"])
	if err != nil {
		return err
	}
	items, _, looped := sc.items(a["loop"])
	if !looped {
		return sc.do(name, sc.args(&op, args, false, false), o)
	}
	for _, item := range items {
		in := *sc
		in.item, in.loops = item, true
		if err := in.do(name, in.args(&op, args, false, false), o); err != nil {
			return err
		}
	}
	return nil
}

var severities = map[string]string{"debug": "", "info": "INFO", "warning": "WARNING", "error": "ERROR",
	"critical": "ERROR"}

var trait = regexp.MustCompile(`^(CUSTOM|COMPUTE|HW|MISC|OWNER|STORAGE)_[A-Z0-9_]+$`)

// do is an action with its arguments.
func (sc *scope) do(name string, args map[string]any, o *Options) error {
	f := sc.found
	text := func(key string) string { return pyString(args[key]) }
	path := func() ([]string, error) {
		s, ok := args["path"].(string)
		parts := pathOf(s)
		if !ok || parts == nil || slices.Contains(parts, "") {
			return nil, fmt.Errorf("%s is not a path", pyRepr(args["path"]))
		}
		return parts, nil
	}
	switch name {
	case "fail":
		return errors.New(text("msg"))
	case "log":
		level := "info"
		if args["level"] != nil {
			level = strings.ToLower(text("level"))
		}
		severity, ok := severities[level]
		if !ok {
			return fmt.Errorf("invalid log level %q", level)
		}
		f.Notes = append(f.Notes, hook.Note{Severity: severity, Text: text("msg")})
		return nil
	case "add-trait":
		if !trait.MatchString(text("name")) || len(text("name")) > 255 {
			return fmt.Errorf(
				"%q is not a trait: those of a site's own begin with CUSTOM_ and have capitals, digits and underscores",
				text("name"))
		}
		if !slices.Contains(f.Node.Traits, text("name")) {
			f.Node.Traits = append(slices.Clone(f.Node.Traits), text("name"))
			slices.Sort(f.Node.Traits)
		}
		return nil
	case "remove-trait":
		f.Node.Traits = slices.DeleteFunc(slices.Clone(f.Node.Traits), func(t string) bool { return t == text("name") })
		return nil
	case "set-capability", "unset-capability":
		list, err := f.Node.Capabilities()
		if err != nil {
			return err
		}
		if name == "unset-capability" {
			list.Unset(text("name")).Store(f.Node)
			return nil
		}
		if strings.ContainsAny(text("name"), ":,") || strings.Contains(text("value"), ",") {
			return fmt.Errorf("capability %q can't be %q: names have no colon, and neither has a comma", text("name"),
				text("value"))
		}
		list.Set(text("name"), text("value")).Store(f.Node)
		return nil
	case "api-call":
		return sc.call(args, o)
	}

	parts, err := path()
	if err != nil {
		return err
	}
	unique, err := flag(args, "unique")
	if err != nil {
		return err
	}
	change := setIn
	verb, _, _ := strings.Cut(name, "-")
	switch verb {
	case "extend":
		change = func(m map[string]any, p []string, v any) error { return extendIn(m, p, v, unique) }
	case "del", "unset":
		change = func(m map[string]any, p []string, _ any) error { return unsetIn(m, p) }
	}
	if strings.HasSuffix(name, "-plugin-data") {
		return change(f.PluginData, parts, args["value"])
	}
	if strings.HasSuffix(name, "-port-attribute") {
		p := f.Port(text("port_id"))
		if p == nil {
			return fmt.Errorf("the node has no port %q", text("port_id"))
		}
		return changeAttribute(portAttributes(p), parts, args["value"], change)
	}
	return changeAttribute(nodeAttributes(f.Node), parts, args["value"], change)
}

// pathOf cuts a path: "/driver_info/address" or "driver_info.address".
func pathOf(s string) []string {
	if strings.Contains(s, "/") {
		return strings.Split(strings.Trim(s, "/"), "/")
	}
	if s == "" {
		return nil
	}
	return strings.Split(s, ".")
}

// attribute is one that rules may change: get returns a copy of it in JSON's form, set stores one or returns its fault.
// nil is "not set".
type attribute struct {
	get func() any
	set func(any) error
}

// changeAttribute changes an attribute, or something inside of it.
func changeAttribute(all map[string]attribute, parts []string, v any,
	change func(map[string]any, []string, any) error) error {
	a, ok := all[parts[0]]
	if !ok {
		return fmt.Errorf("%s is no attribute that rules can change; there are %s", parts[0],
			strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	doc := map[string]any{}
	if now := a.get(); now != nil {
		doc[parts[0]] = now
	}
	if err := change(doc, parts, v); err != nil {
		return err
	}
	if err := a.set(doc[parts[0]]); err != nil {
		return fmt.Errorf("%s: %w", parts[0], err)
	}
	return nil
}

// inner finds the object that the last part of a path is in, and makes those on the way that are not there if make is
// set. nil: not there.
func inner(m map[string]any, path []string, create bool) (map[string]any, error) {
	for i, key := range path[:len(path)-1] {
		next, ok := m[key]
		if !ok || next == nil {
			if !create {
				return nil, nil
			}
			next = map[string]any{}
			m[key] = next
		}
		o, ok := next.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is not an object, so it has no %s", strings.Join(path[:i+1], "/"), path[i+1])
		}
		m = o
	}
	return m, nil
}

func setIn(m map[string]any, path []string, v any) error {
	in, err := inner(m, path, true)
	if err == nil {
		in[path[len(path)-1]] = clone(v)
	}
	return err
}

func extendIn(m map[string]any, path []string, v any, unique bool) error {
	in, err := inner(m, path, true)
	if err != nil {
		return err
	}
	key := path[len(path)-1]
	list, ok := in[key].([]any)
	if !ok && in[key] != nil {
		return fmt.Errorf("%s is not a list", strings.Join(path, "/"))
	}
	if unique {
		for _, there := range list {
			if pyRepr(there) == pyRepr(v) {
				return nil
			}
		}
	}
	in[key] = append(slices.Clone(list), clone(v))
	return nil
}

// unsetIn removes the value at a path, and its object if that becomes empty. A missing value is removed already.
func unsetIn(m map[string]any, path []string) error {
	in, err := inner(m, path, false)
	if err != nil || in == nil {
		return err
	}
	delete(in, path[len(path)-1])
	if len(in) == 0 && len(path) > 2 {
		outer, err := inner(m, path[:len(path)-1], false)
		if err != nil {
			return err
		}
		delete(outer, path[len(path)-2])
	}
	return nil
}

// clone is a copy of a JSON value.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, in := range v {
			out[k] = clone(in)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = clone(v[i])
		}
		return out
	}
	return v
}

func textAttribute(p *string, most int, check func(string) error) attribute {
	return attribute{
		get: func() any { return orNil(*p) },
		set: func(v any) error {
			if v == nil {
				*p = ""
				return nil
			}
			s, ok := v.(string)
			if !ok {
				return errors.New("must be a text")
			}
			if len(s) > most {
				return fmt.Errorf("must not be longer than %d", most)
			}
			if check != nil && s != "" {
				if err := check(s); err != nil {
					return err
				}
			}
			*p = s
			return nil
		},
	}
}

func flagAttribute(p *bool) attribute {
	return attribute{
		get: func() any { return *p },
		set: func(v any) error {
			b, err := flag(map[string]any{"it": v}, "it")
			if err == nil {
				*p = b
			}
			return err
		},
	}
}

func objectAttribute(p *map[string]any) attribute {
	return attribute{
		get: func() any {
			if *p == nil {
				return nil
			}
			return clone(*p)
		},
		set: func(v any) error {
			if v == nil {
				*p = nil
				return nil
			}
			m, ok := v.(map[string]any)
			if !ok {
				return errors.New("must be an object")
			}
			*p = m
			return nil
		},
	}
}

var nodeName = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)

// nodeAttributes are the attributes of a node that a rule may change: those that PATCH may, apart from what ties the
// node to an instance or to other nodes.
func nodeAttributes(n *node.Node) map[string]attribute {
	all := map[string]attribute{
		"driver": textAttribute(&n.Driver, 255, nil), "resource_class": textAttribute(&n.ResourceClass, 80, nil),
		"owner": textAttribute(&n.Owner, 255, nil), "lessee": textAttribute(&n.Lessee, 255, nil),
		"description": textAttribute(&n.Description, 4096, nil), "shard": textAttribute(&n.Shard, 255, nil),
		"name": textAttribute(&n.Name, 255, func(s string) error {
			if !nodeName.MatchString(s) {
				return fmt.Errorf("%q is no valid name", s)
			}
			return nil
		}),
		"driver_info": objectAttribute(&n.DriverInfo), "properties": objectAttribute(&n.Properties),
		"extra": objectAttribute(&n.Extra), "instance_info": objectAttribute(&n.InstanceInfo),
		"network_data": objectAttribute(&n.NetworkData), "target_raid_config": objectAttribute(&n.TargetRAID),
		"maintenance": flagAttribute(&n.Maintenance), "retired": flagAttribute(&n.Retired),
		"disable_power_off":  flagAttribute(&n.DisablePowerOff),
		"maintenance_reason": textAttribute(&n.MaintenanceReason, 4096, nil),
		"retired_reason":     textAttribute(&n.RetiredReason, 4096, nil), "automated_clean": {
			get: func() any {
				if n.AutomatedClean == nil {
					return nil
				}
				return *n.AutomatedClean
			},
			set: func(v any) error {
				if n.AutomatedClean = nil; v == nil {
					return nil
				}
				b, err := flag(map[string]any{"it": v}, "it")
				n.AutomatedClean = &b
				return err
			},
		},
	}
	for _, kind := range interfaceKinds {
		all[kind+"_interface"] = attribute{
			get: func() any { return orNil(n.Interfaces[kind]) },
			set: func(v any) error {
				s, ok := v.(string)
				if !ok && v != nil {
					return errors.New("must be a text")
				}
				if n.Interfaces = node.With(n.Interfaces, kind, s); s == "" {
					delete(n.Interfaces, kind)
				}
				return nil
			},
		}
	}
	return all
}

// portAttributes are the attributes of a port that a rule may change.
func portAttributes(p *node.Port) map[string]attribute {
	return map[string]attribute{
		"name": textAttribute(&p.Name, 255, nil), "description": textAttribute(&p.Description, 255, nil),
		"physical_network": textAttribute(&p.PhysicalNetwork, 64, nil), "category": textAttribute(&p.Category, 80, nil),
		"vendor": textAttribute(&p.Vendor, 32, nil), "pxe_enabled": flagAttribute(&p.PXEEnabled),
		"is_smartnic": flagAttribute(&p.IsSmartNIC), "extra": objectAttribute(&p.Extra),
		"local_link_connection": objectAttribute(&p.LocalLinkConnection),
	}
}
