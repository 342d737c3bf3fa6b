// Package toironic makes of what Ingot's API shows what an Ironic takes: a file for `openstack baremetal create`, and a
// script that creates the rest and brings nodes into their states without touching a disk. What can't be carried stands
// as comments at the head of the script.
//
// All values come from clients of the API: in the script each is one quoted word, and in comments one clean line.
package toironic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Object is one as the API shows it.
type Object = map[string]any

// Things are all objects that are carried.
type Things struct {
	Drivers, Nodes, Ports, Portgroups, Chassis, Connectors, Targets, Allocations, Templates, Runbooks, Rules []Object
}

// Secrets are values of driver_info that the API masks, by node (UUID or name; "*" for all).
type Secrets map[string]map[string]any

// Result holds both files.
type Result struct {
	File   []byte // JSON
	Script []byte
	Nodes  int
	Notes  []string // what is not carried, or not as it is
}

// export is one export.
type export struct {
	version rest.Version // of the API that takes it
	secrets Secrets
	things  Things
	script  bytes.Buffer
	notes   []string
	gone    map[string]bool // nodes that are left out
}

type fields interface {
	Since(name string) (rest.Version, bool)
}

// What the openstack command takes in its file. The script sets the rest of a node.
var (
	chassisAttributes = attributes{"uuid description extra", ""}
	nodeAttributes    = attributes{"uuid name driver driver_info properties extra chassis_uuid resource_class " +
		"conductor_group automated_clean network_data", "shard parent_node disable_power_off instance_name"}
	portAttributes = attributes{"uuid address extra local_link_connection physical_network pxe_enabled is_smartnic",
		"name description vendor category"}
	portgroupAttributes = attributes{"address extra name standalone_ports_supported mode properties",
		"uuid physical_network category"}
)

// attributes are names, and those that the commands of up to oldCommands refuse, whatever Ironic's API takes.
type attributes struct{ all, newer string }

const oldCommands = 82

// interfaces that Ironic has not.
var own = []string{"switch"}

// Make makes the file, to be named file and put beside the script, and the script, for an Ironic whose API has a
// version.
func Make(things Things, secrets Secrets, version rest.Version, file string) (*Result, error) {
	e := &export{version: version, secrets: secrets, things: things, gone: map[string]bool{}}
	chassis := make([]Object, 0, len(things.Chassis))
	for _, c := range things.Chassis {
		chassis = append(chassis, e.take("chassis", c, rest.ChassisFields, chassisAttributes))
	}
	nodes := e.nodes()
	content, err := json.MarshalIndent(Object{"chassis": chassis, "nodes": nodes}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the file of nodes: %w", err)
	}
	fmt.Fprintf(&e.script, "openstack baremetal create \"$(cd \"$(dirname \"$0\")\" && pwd)\"/%s\n", quote(file))
	e.resources()
	for _, n := range things.Nodes {
		if !e.gone[text(n, "uuid")] {
			e.state(n)
		}
	}
	e.allocations()
	var b bytes.Buffer
	fmt.Fprintf(&b, "#!/bin/sh\n"+
		"# Brings nodes from Ingot to an Ironic whose API has version %s or newer. Made by ingot export ironic.\n"+
		"# OS_CLOUD, or OS_ENDPOINT and its kin, say where it is. It stops at the first command that fails.\n", version)
	b.WriteString("#\n# Never carried: histories, inventories, firmware and BIOS settings that were read, faults, times.\n")
	for _, note := range e.notes {
		fmt.Fprintf(&b, "# Not carried: %s\n", note)
	}
	fmt.Fprintf(&b, "set -eu\n\n%s", e.script.Bytes())
	return &Result{File: append(content, '\n'), Script: b.Bytes(), Nodes: len(nodes), Notes: e.notes}, nil
}

func (e *export) note(format string, args ...any) {
	e.notes = append(e.notes, clean.Line(fmt.Sprintf(format, args...), 1000))
}

// command adds a command of openstack. Each word is quoted for a shell.
func (e *export) command(words ...string) { e.script.WriteString(command(words...) + "\n") }

// command is a command of the openstack client for a shell.
func command(words ...string) string {
	line := "openstack"
	for _, w := range words {
		line += " " + quote(w)
	}
	return line
}

var plain = regexp.MustCompile(`^[-a-zA-Z0-9_./:=,]+$`)

// quote makes of any text one word of a POSIX shell.
func quote(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func text(o Object, key string) string {
	s, _ := o[key].(string)
	return s
}

func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "null" // it came as JSON
	}
	return string(b)
}

// called is how notes name an object.
func called(kind string, o Object) string {
	if name := text(o, "name"); name != "" {
		return fmt.Sprintf("%s %s (%q)", kind, text(o, "uuid"), name)
	}
	return kind + " " + text(o, "uuid")
}

// masked reports whether a value is a mask or holds one.
func masked(v any) bool { return strings.Contains(encoded(v), rest.Masked) }

// blank reports whether a value is that of an attribute that is not set.
func blank(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case string:
		return x == ""
	case map[string]any:
		return len(x) == 0
	case []any:
		return len(x) == 0
	}
	return false
}

// take copies the attributes that are set, and names those for which the other API is too old.
func (e *export) take(kind string, o Object, known fields, names attributes) Object {
	out := Object{}
	newer := strings.Fields(names.newer)
	for _, name := range append(strings.Fields(names.all), newer...) {
		v := o[name]
		if blank(v) {
			continue
		}
		since, ok := known.Since(name)
		switch old := e.version <= oldCommands && slices.Contains(newer, name); {
		case (old || ok && since > e.version) && v == false:
			continue
		case old && name == "uuid":
			e.note("%s: its UUID, it gets another", called(kind, o))
			continue
		case old || ok && since > e.version:
			e.note("%s: its %s, which is for newer versions", called(kind, o), name)
			continue
		}
		out[name] = v
	}
	return out
}

// unmask replaces masked values, and names those that are left out.
func (e *export) unmask(what string, m map[string]any, secrets ...map[string]any) map[string]any {
	out := maps.Clone(m)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if !masked(m[key]) {
			continue
		}
		delete(out, key)
		for _, s := range secrets {
			if v, ok := s[key]; ok {
				out[key] = v
				break
			}
		}
		if _, given := out[key]; !given {
			e.note("%s: the secret %s, which the API masks: give it with --secrets, or set it afterwards", what, key)
		}
	}
	return out
}

// nodes are those of the file, with their ports.
func (e *export) nodes() []Object {
	ports, groups := map[string][]Object{}, map[string][]Object{}
	for _, p := range e.things.Ports {
		owner := text(p, "portgroup_uuid")
		if owner == "" {
			owner = text(p, "node_uuid")
		}
		ports[owner] = append(ports[owner], e.take("port", p, rest.PortFields, portAttributes))
	}
	for _, g := range e.things.Portgroups {
		out := e.take("port group", g, rest.PortgroupFields, portgroupAttributes)
		if members := ports[text(g, "uuid")]; len(members) > 0 {
			out["ports"] = members
		}
		if g["dynamic_portgroup"] == true {
			e.note("%s: that it is dynamic", called("port group", g))
		}
		groups[text(g, "node_uuid")] = append(groups[text(g, "node_uuid")], out)
	}
	defaults := map[string]Object{}
	for _, d := range e.things.Drivers {
		defaults[text(d, "name")] = d
	}
	out := []Object{}
	for _, n := range parentsFirst(e.things.Nodes) {
		what := called("node", n)
		if s := text(n, "provision_state"); !slices.Contains(stable, s) || text(n, "reservation") != "" {
			e.gone[text(n, "uuid")] = true
			e.note("%s: it is being worked on (%s): wait until that is over, then export again", what, s)
			continue
		}
		o := e.take("node", n, rest.NodeFields, nodeAttributes)
		if info, ok := o["driver_info"].(map[string]any); ok {
			o["driver_info"] = e.unmask(what, info, e.secrets[text(n, "uuid")],
				e.secrets[text(n, "name")], e.secrets["*"])
		}
		for name, v := range n {
			kind, ok := strings.CutSuffix(name, "_interface")
			if !ok || blank(v) || v == defaults[text(n, "driver")]["default_"+name] {
				continue // Ironic has defaults of its own
			}
			since, known := rest.NodeFields.Since(name)
			if !known || since > e.version || slices.Contains(own, fmt.Sprint(v)) {
				e.note("%s: its %s interface %v, which that Ironic does not have", what, kind, v)
				continue
			}
			o[name] = v
		}
		id := text(n, "uuid")
		for key, list := range map[string][]Object{"ports": ports[id], "portgroups": groups[id]} {
			if len(list) > 0 {
				o[key] = list
			}
		}
		out = append(out, o)
	}
	return out
}

// parentsFirst orders nodes so that a parent comes before its children.
func parentsFirst(nodes []Object) []Object {
	depth := func(n Object) (d int) {
		for up := n; text(up, "parent_node") != "" && d < len(nodes); d++ {
			i := slices.IndexFunc(nodes, func(o Object) bool { return text(o, "uuid") == text(up, "parent_node") })
			if i < 0 {
				break
			}
			up = nodes[i]
		}
		return d
	}
	out := slices.Clone(nodes)
	slices.SortStableFunc(out, func(a, b Object) int { return depth(a) - depth(b) })
	return out
}
