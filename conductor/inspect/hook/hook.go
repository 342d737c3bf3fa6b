// Package hook turns the results of an inspection into changes of the node and its ports.
//
// A hook is a function over Found: it reads the inventory and the plugin data (the names and shapes are
// ironic-python-agent's) and changes the node, its ports and the plugin data that Found holds. It has no I/O; the
// caller stores the result, all or nothing. The one table of hooks is in table.go; names, order and meaning are
// Ironic's.
//
// Values that an operator set are not overwritten: Found.Wrote records the values that earlier inspections set, so a
// value that is still theirs may follow the hardware, and any other stays unchanged with a note, unless the
// configuration says overwrite_existing.
package hook

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Found is the result of an inspection, and the changes that follow from it.
type Found struct {
	Node       *node.Node     // changed in place; a clone of the one in the store
	Ports      []*node.Port   // of the node, clones too; new ones have no UUID yet
	Gone       []string       // UUIDs of ports to be removed; they are no longer in Ports
	Inventory  map[string]any // not changed
	PluginData map[string]any // changed in place
	// Foreign maps those of the machine's addresses that are ports of other nodes to these nodes.
	Foreign map[string]string
	// LastSerials are those of the disks that the inspection before this one found; nil: there was none.
	LastSerials []string
	// Wrote holds the values that inspections set, by place ("properties/cpus", "capabilities/boot_mode",
	// "ports/52:54:.../physical_network"): at the beginning those of the previous ones, at the end those of all.
	Wrote map[string]any
	// OutOfBand means that the machine's controller was asked and not an agent: it lists less, which is no failure. It
	// is never read from the result: an agent must not choose milder checks.
	OutOfBand bool

	Notes []Note // for the node's history, in order
}

// Note is a sentence for a node's history.
type Note struct {
	Severity string // "INFO", "WARNING"
	Text     string
}

// outOfBand are hooks that run when a controller was asked, whether they are configured or not, as in Ironic.
var outOfBand = []string{"boot-mode", "secure-boot"}

func (f *Found) note(severity, format string, args ...any) {
	f.Notes = append(f.Notes, Note{severity, fmt.Sprintf(format, args...)})
}

// Port returns the node's port with an address or a UUID, or nil.
func (f *Found) Port(id string) *node.Port {
	id = strings.ToLower(id)
	for _, p := range f.Ports {
		if p.Address == id || id != "" && p.UUID == id {
			return p
		}
	}
	return nil
}

// may reports whether a value at a place may become to, from its present value (nil, "" and the like: nothing). It
// records the change, or that the value of an operator stays unchanged.
func (f *Found) may(s *Settings, place string, now, to any) bool {
	if same(now, to) {
		return false
	}
	was, ours := f.Wrote[place]
	if ours = ours && same(was, now); !ours {
		delete(f.Wrote, place) // if it was ours, it is not any more
	}
	if !blank(now) && !ours && !s.Overwrite {
		f.note("INFO", "%s stays %s as it was set, although the inspection found %s", place, show(now), show(to))
		return false
	}
	if f.Wrote == nil {
		f.Wrote = map[string]any{}
	}
	f.Wrote[place] = to
	return true
}

// setProperty sets one of the node's properties, unless an operator set it.
func (f *Found) setProperty(s *Settings, key string, v any) {
	if !f.may(s, "properties/"+key, f.Node.Properties[key], v) {
		return
	}
	f.Node.Properties = node.With(f.Node.Properties, key, v)
}

// setCapability sets one of the capabilities in the node's properties, unless an operator set it. Unreadable
// capabilities are an error.
func (f *Found) setCapability(s *Settings, name, v string) error {
	list, err := f.Node.Capabilities()
	if err != nil {
		return err
	}
	var now any
	if v, ok := list.Get(name); ok {
		now = v
	}
	if f.may(s, "capabilities/"+name, now, v) {
		list.Set(name, v).Store(f.Node)
	}
	return nil
}

// same compares values as JSON has them: a number is a number whatever its Go type.
func same(a, b any) bool { return reflect.DeepEqual(plain(a), plain(b)) }

// plain is a value as it comes out of JSON.
func plain(v any) any {
	switch v.(type) {
	case nil, string, bool, float64, json.Number:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return v
	}
	var out any
	if exact.Unmarshal(b, &out) != nil {
		return v
	}
	return out
}

func blank(v any) bool {
	switch v := plain(v).(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(b) > 200 {
		return string(b[:200]) + "..."
	}
	return string(b)
}

// Readers of JSON values: a missing one, or one of another kind, is the zero value.

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }
func list(v any) []any            { l, _ := v.([]any); return l }
func text(v any) string           { s, _ := v.(string); return s }

// number reads a count: anything but a whole number above zero is zero.
func number(v any) int64 {
	switch v := exact.Plain(plain(v)).(type) {
	case float64:
		if v > 0 && v < 1<<62 {
			return int64(v)
		}
	case string:
		var n int64
		if _, err := fmt.Sscanf(v, "%d", &n); err == nil && n > 0 {
			return n
		}
	}
	return 0
}
