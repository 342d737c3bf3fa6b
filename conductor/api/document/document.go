// Package document reads and checks JSON values of clients: attributes of a resource by name, and their words.
//
// A document holds the values of all attributes that a client may set, as in the body of a POST: numbers are in the
// form of package exact, lists []any. A value is null, absent or of the type that the schema requires, which is checked
// before.
package document

import (
	"slices"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// TextList is a list of texts, or null.
var TextList = &rest.Schema{Types: []string{"array", "null"}, Items: &rest.Schema{Types: []string{"string"}}}

// What a client may leave out or send null for.
var (
	OptionalText   = &rest.Schema{Types: []string{"string", "null"}}
	OptionalFlag   = &rest.Schema{Types: []string{"string", "boolean", "null"}}
	OptionalObject = &rest.Schema{Types: []string{"object", "null"}}
	SecretObject   = &rest.Schema{Types: []string{"object", "null"}, Hidden: true} // holds secrets among other things
)

// Texts returns the strings of a JSON list.
func Texts(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, item := range list {
		if t, ok := item.(string); ok {
			out = append(out, t)
		}
	}
	return out
}

// Text returns a text; "" for null and no value.
func Text(d map[string]any, name string) string {
	v, _ := d[name].(string)
	return v
}

// Object returns an object of the caller's own, which is not nil.
func Object(d map[string]any, name string) map[string]any {
	m, _ := d[name].(map[string]any)
	return rest.Clone(m)
}

// OrNull makes null of no text.
func OrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Blank returns those of names that d holds as an empty string, which is not the same as null.
func Blank(d map[string]any, names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return d[name] != "" })
}

// Kept is OrNull for an attribute that is an empty string when it is among blank.
func Kept(s, name string, blank []string) any {
	if slices.Contains(blank, name) {
		return s
	}
	return OrNull(s)
}

// Number returns a whole number; 0 for null and no value.
func Number(d map[string]any, name string) int {
	f, _ := exact.Float(d[name])
	return int(f)
}

// Flag reads a boolean in any of its words; absent is the value of null and of a missing field.
func Flag(d map[string]any, name string, absent bool) (bool, *rest.Error) {
	if d[name] == nil {
		return absent, nil
	}
	return Boolean(name, d[name])
}

// MAC checks the MAC of a document and puts it as it is stored; null and no value are fine.
func MAC(d map[string]any, name string) *rest.Error {
	sent, ok := d[name].(string)
	if !ok {
		return nil
	}
	mac, ok := HardwareAddress(sent)
	if !ok {
		return rest.BadRequest("Expected valid MAC address for %s: %s", name, sent)
	}
	d[name] = mac
	return nil
}
