package rest

import (
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
)

// destinationWords mark the keys whose values decide where stored credentials are sent, or how well they are guarded on
// the way.
var destinationWords = []string{"address", "addr", "host", "hostname", "ip", "port", "ports", "portal", "portals",
	"protocol", "bridging", "transit", "target", "channel", "cipher", "verify", "ca", "insecure", "url", "uri",
	"endpoint", "server", "source", "mirrors"}

func isDestination(key string) bool {
	words := strings.Split(strings.ToLower(key), "_")
	return !slices.Contains(words, "terminal") &&
		slices.ContainsFunc(words, func(w string) bool { return slices.Contains(destinationWords, w) })
}

// Moved compares an object before and after a PATCH: moved are the keys of changed destinations, kept the paths of
// secrets that are still the stored ones without having been sent. body is the PATCH, at the path of the object in the
// resource. With grouped, only secrets count whose keys begin as that of a destination that moved: ipmi_password is
// sent to ipmi_address.
func Moved(body any, at []string, was, now map[string]any, grouped bool) (moved, kept []string) {
	before, after := map[string]string{}, map[string]string{}
	walk(was, nil, func(path []string, v any) { destination(before, path, v) })
	walk(now, nil, func(path []string, v any) { destination(after, path, v) })
	groups := map[string]bool{}
	note := func(path string) {
		moved = append(moved, path)
		group, _, _ := strings.Cut(path, "_")
		groups[group] = true
	}
	for path, v := range before {
		if after[path] != v {
			note(path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			note(path)
		}
	}
	if len(moved) == 0 {
		return nil, nil
	}
	var stored []any
	walk(was, nil, func(path []string, v any) {
		if redact.Secret(path[len(path)-1]) && v != nil && v != "" {
			stored = append(stored, v)
		}
	})
	walk(now, nil, func(path []string, v any) {
		same := func(s any) bool { return reflect.DeepEqual(s, v) }
		if !redact.Secret(path[len(path)-1]) || !slices.ContainsFunc(stored, same) ||
			sent(body, slices.Concat(at, path)) {
			return
		}
		if group, _, _ := strings.Cut(path[0], "_"); !grouped || groups[group] {
			kept = append(kept, strings.Join(path, "/"))
		}
	})
	slices.Sort(moved)
	slices.Sort(kept)
	return slices.Compact(moved), kept
}

// walk calls tell for all members of an object, and recursively for those of members that are objects or lists and not
// secrets.
func walk(v any, path []string, tell func(path []string, v any)) {
	step := func(key string, in any) {
		at := append(slices.Clone(path), key)
		_, err := strconv.Atoi(key)
		if err != nil {
			tell(at, in)
		}
		if err == nil || !redact.Secret(key) {
			walk(in, at, tell)
		}
	}
	switch x := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(x)) {
			step(k, x[k])
		}
	case []any:
		for i := range x {
			step(strconv.Itoa(i), x[i])
		}
	}
}

// destination records where a member sends credentials. Of a URL, the host counts and not the path.
func destination(to map[string]string, path []string, v any) {
	key := path[len(path)-1]
	if redact.Secret(key) || v == nil {
		return
	}
	place := func(v any) string {
		if s, ok := v.(string); ok && strings.Contains(s, "://") {
			if u, err := url.Parse(s); err == nil {
				return u.Scheme + "://" + strings.ToLower(u.Host)
			}
		}
		return fmt.Sprint(v)
	}
	s, text := v.(string)
	switch list, ok := v.([]any); {
	case ok && isDestination(key):
		for i := range list {
			to[strings.Join(path, "/")] += " " + place(redact.Value(list[i]))
		}
	case isDestination(key), text && strings.Contains(s, "://"):
		to[strings.Join(path, "/")] = place(redact.Value(v))
	}
}

// sent reports whether a PATCH sets the value at a path, rather than only requiring that it stays.
func sent(body any, path []string) (said bool) {
	ops, _ := body.([]any)
	for _, item := range ops {
		op, _ := item.(map[string]any)
		text, _ := op["path"].(string)
		var keys []string
		for key := range strings.SplitSeq(strings.TrimPrefix(text, "/"), "/") {
			keys = append(keys, unescape.Replace(key))
		}
		if len(keys) > len(path) || !slices.Equal(keys, path[:len(keys)]) {
			continue
		}
		v := op["value"]
		for _, key := range path[len(keys):] {
			switch x := v.(type) {
			case map[string]any:
				v = x[key]
			case []any:
				i, err := strconv.Atoi(key)
				if v = nil; err == nil && i >= 0 && i < len(x) {
					v = x[i]
				}
			default:
				v = nil
			}
		}
		said = op["op"] != "remove" && v != nil && !strings.Contains(fmt.Sprint(v), redact.Stars)
	}
	return said
}
