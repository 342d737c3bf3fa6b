package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CapabilityList is a node's capabilities in their order.
type CapabilityList [][2]string

// Capabilities reads the capabilities in the node's properties: "boot_mode:uefi,cpu_vt:true", or an object.
func (n *Node) Capabilities() (CapabilityList, error) {
	var list CapabilityList
	switch v := n.Properties["capabilities"].(type) {
	case nil:
	case string:
		for part := range strings.SplitSeq(v, ",") {
			if v == "" {
				break
			}
			name, value, ok := strings.Cut(part, ":")
			if !ok {
				return nil, fmt.Errorf("invalid capabilities string %q in the node's properties: %q is not name:value",
					v, part)
			}
			list = append(list, [2]string{name, value})
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list = append(list, [2]string{name, fmt.Sprint(v[name])})
		}
	default:
		return nil, fmt.Errorf("the capabilities in the node's properties are neither a text nor an object")
	}
	return list, nil
}

func (l CapabilityList) index(name string) int {
	return slices.IndexFunc(l, func(c [2]string) bool { return c[0] == name })
}

// Get returns a capability; ok is false if there is none of that name.
func (l CapabilityList) Get(name string) (value string, ok bool) {
	if i := l.index(name); i >= 0 {
		return l[i][1], true
	}
	return "", false
}

// Set returns the list with a capability set: in its place, or at the end.
func (l CapabilityList) Set(name, value string) CapabilityList {
	l = slices.Clone(l)
	if i := l.index(name); i >= 0 {
		l[i][1] = value
		return l
	}
	return append(l, [2]string{name, value})
}

// Unset returns the list without a capability.
func (l CapabilityList) Unset(name string) CapabilityList {
	return slices.DeleteFunc(slices.Clone(l), func(c [2]string) bool { return c[0] == name })
}

// Store puts the capabilities into the node's properties.
func (l CapabilityList) Store(n *Node) {
	parts := make([]string, len(l))
	for i, c := range l {
		parts[i] = c[0] + ":" + c[1]
	}
	n.Properties = With(n.Properties, "capabilities", any(strings.Join(parts, ",")))
}
