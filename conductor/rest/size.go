package rest

import (
	"maps"
	"net/http"
	"slices"
)

// How large an attribute may be, in bytes of JSON. Ironic has columns of 64 KiB for most; where it has larger ones, this has too.
const (
	fieldSize      = 64 << 10
	largeFieldSize = 1 << 20
)

// largeFields are the attributes that hold what programs make: what is deployed, networks, and lists of steps with arguments.
var largeFields = map[string]bool{"instance_info": true, "network_data": true, "steps": true, "actions": true, "conditions": true}

// Oversized returns the refusal of a document one of whose attributes is too large, or nil. names are the attributes to look at; nil: all.
func Oversized(doc map[string]any, names []string) *Error {
	if names == nil {
		names = slices.Sorted(maps.Keys(doc))
	}
	for _, name := range names {
		most := fieldSize
		if largeFields[name] {
			most = largeFieldSize
		}
		if size(doc[name], most) > most {
			return Fault(http.StatusRequestEntityTooLarge, "%s is larger than %d bytes, which is the limit for it. Nothing was changed.", name, most)
		}
	}
	return nil
}

// size is about how long the JSON of a value is. It stops counting above most.
func size(v any, most int) int {
	switch v := v.(type) {
	case string:
		return len(v) + 2
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
