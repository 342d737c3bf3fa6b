package limit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// largeAttributes hold data that programs make: instance data, networks, and lists of steps with arguments.
var largeAttributes = map[string]bool{"instance_info": true, "network_data": true, "steps": true, "actions": true,
	"conditions": true}

// OversizeError means that an attribute is too large, or all of them together.
type OversizeError struct {
	Name  string // of the attribute; "" for all together
	Limit int    // bytes
}

func (e *OversizeError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("All attributes together are larger than %d bytes, which is the limit for them.", e.Limit)
	}
	return fmt.Sprintf("%s is larger than %d bytes, which is the limit for it.", e.Name, e.Limit)
}

// Oversized checks the size of some attributes of a document, or of all if names is nil, and the sum of all. was is the
// DocumentSize before the change, 0 for a new document: one that was too large already may be changed as long as it
// does not grow.
func Oversized(doc map[string]any, names []string, was int) *OversizeError {
	if names == nil {
		names = slices.Sorted(maps.Keys(doc))
	}
	for _, name := range names {
		most := Attribute
		if largeAttributes[name] {
			most = LargeAttribute
		}
		if size(doc[name], most) > most {
			return &OversizeError{name, most}
		}
	}
	if n := DocumentSize(doc); n > Document && n > was {
		return &OversizeError{"", Document}
	}
	return nil
}

// DocumentSize is about how long the JSON of a document is, without a config drive.
func DocumentSize(doc map[string]any) int {
	const all = 1 << 62
	n := size(doc, all)
	if info, ok := doc["instance_info"].(map[string]any); ok && info["configdrive"] != nil {
		n -= size(info["configdrive"], all)
	}
	return n
}

// size is about how long the JSON of a value is. It stops counting above most.
func size(v any, most int) int {
	switch v := v.(type) {
	case string:
		return len(v) + 2
	case json.Number:
		return len(v)
	case map[string]any:
		n := 2
		for k, x := range v {
			if n += len(k) + 4 + size(x, most-n); n > most {
				break
			}
		}
		return n
	case []any:
		n := 2
		for _, x := range v {
			if n += 1 + size(x, most-n); n > most {
				break
			}
		}
		return n
	}
	return 8 // numbers, true, false, null
}
