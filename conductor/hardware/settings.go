package hardware

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Setting is a BIOS setting that a step is to make. Value is a text, number, boolean or nil.
type Setting struct {
	Name  string
	Value any
}

// maxSettings is more than any machine has.
const maxSettings = 10_000

// Settings reads the argument of bios.apply_configuration: a list of objects with name and value, each name once. The
// error is an *InvalidError.
func Settings(v any) ([]Setting, error) {
	list, ok := v.([]any)
	if !ok || len(list) > maxSettings {
		return nil, Invalidf("settings is not a list of at most %d objects with name and value", maxSettings)
	}
	var out []Setting
	for _, item := range list {
		m, _ := item.(map[string]any)
		name, _ := m["name"].(string)
		value, has := m["value"]
		switch value.(type) {
		case map[string]any, []any:
			has = false
		}
		if name == "" || !has {
			return nil, Invalidf("settings: %v is not an object with name and value", item)
		}
		if slices.ContainsFunc(out, func(o Setting) bool { return o.Name == name }) {
			return nil, Invalidf("settings: %s is there twice", name)
		}
		out = append(out, Setting{name, value})
	}
	return out, nil
}

// SettingsArg is that argument.
var SettingsArg = Arg{Name: "settings", Type: "array", Required: true,
	Description: "List of BIOS settings, each item needs to contain a dictionary with name/value pairs"}

// CheckSettings is a Step's Check of it.
func CheckSettings(_ *node.Node, args map[string]any) error {
	_, err := Settings(args["settings"])
	return err
}

// Cached is a node's settings as they are now, by name, after those that were read before: their times follow from what
// changed.
func Cached(was, now []node.BIOSSetting, at time.Time) []node.BIOSSetting {
	out := slices.Clone(now)
	for i := range out {
		s := &out[i]
		s.CreatedAt = at
		if j := slices.IndexFunc(was, func(o node.BIOSSetting) bool { return o.Name == s.Name }); j >= 0 {
			s.CreatedAt, s.UpdatedAt = was[j].CreatedAt, was[j].UpdatedAt
			if !reflect.DeepEqual(was[j], *s) {
				s.UpdatedAt = at
			}
		}
	}
	slices.SortFunc(out, func(a, b node.BIOSSetting) int { return strings.Compare(a.Name, b.Name) })
	return out
}
