// Package alloc assigns nodes to allocations: requests for any node that fits.
//
// The choice of a node is a pure function (Choose); the store calls it inside the transaction that claims the node, so
// a node is assigned once however many requests arrive at the same time. Runner processes the waiting allocations in
// the background, and at its start those that a killed conductor left.
//
// Of the nodes that fit, a warm one (see conductor/schedule/pool) is preferred, and among those one that has the image
// already.
//
// In addition to Ironic's rules (resource class, traits, candidate nodes, owner) a request may require exact properties
// of a node, under the key PropertiesKey of its extra: clients of the API know no other place for it.
package alloc

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// PropertiesKey is the key in an allocation's extra that holds the properties that its node must have, such as
// {"memory_mb": 16384, "cpus": 4}. A node with more is not given.
const PropertiesKey = "ingot:properties"

const maxProperties = 64

// ImageKey is the key in an allocation's extra that holds the digest of the image that its node will be deployed with,
// such as "sha256:7f3c...". A node to which that was written ahead is preferred; one without it is given all the same.
const ImageKey = "ingot:image"

// Image reads what extra says of the image to come; empty when it says nothing. The error is a sentence for the client.
func Image(extra map[string]any) (string, error) {
	v, ok := extra[ImageKey]
	if !ok || v == nil {
		return "", nil
	}
	digest, ok := v.(string)
	hex := digest[strings.IndexByte(digest, ':')+1:]
	if !ok || len(hex) < 32 || strings.Trim(strings.ToLower(hex), "0123456789abcdef") != "" {
		return "", fmt.Errorf("extra's %s is not the digest of an image: sha256: and 64 hexadecimal digits", ImageKey)
	}
	return digest, nil
}

// Properties reads what extra asks of a node's properties; nil when it asks nothing. The error is a sentence for the
// client.
func Properties(extra map[string]any) (map[string]any, error) {
	v, ok := extra[PropertiesKey]
	if !ok || v == nil {
		return nil, nil
	}
	want, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf(
			"extra's %s is not an object of properties and their values, such as {\"memory_mb\": 16384}", PropertiesKey)
	}
	if len(want) > maxProperties {
		return nil, fmt.Errorf("extra's %s names %d properties; %d is the limit", PropertiesKey, len(want),
			maxProperties)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if name == "" {
			return nil, fmt.Errorf("extra's %s has a property without a name", PropertiesKey)
		}
		if want[name] == nil {
			return nil, fmt.Errorf("extra's %s asks for %q without a value: leave it out if any will do", PropertiesKey,
				name)
		}
	}
	return want, nil
}

// Choose picks a node for an allocation: the one of the allocation's name if it fits, else any of those that fit, first
// one without work in progress, and of those a warm one, preferably with the image. random returns a number below n. An
// empty UUID comes with the reason, in the words that clients know.
func Choose(a *node.Allocation, from []store.Candidate, random func(n int) int) (nodeUUID, why string) {
	fail := func(format string, args ...any) (string, string) {
		return "", fmt.Sprintf("Failed to process allocation %s: %s.", a.UUID, fmt.Sprintf(format, args...))
	}
	if len(from) == 0 {
		if len(a.CandidateNodes) > 0 {
			return fail("none of the requested nodes are available and match the resource class %s", a.ResourceClass)
		}
		return fail("no available nodes match the resource class %s", a.ResourceClass)
	}
	fit := filter(from, func(c store.Candidate) bool { return covers(c.Traits, a.Traits) })
	if len(fit) == 0 {
		return fail("no suitable nodes have the requested traits %s", strings.Join(a.Traits, ", "))
	}
	fit = filter(fit, func(c store.Candidate) bool { return hasProperties(c.Properties, a.Properties) })
	if len(fit) == 0 {
		return fail("no suitable nodes have exactly the requested properties %s", describe(a.Properties))
	}
	if a.Name != "" {
		if i := slices.IndexFunc(fit, func(c store.Candidate) bool { return c.Name == a.Name }); i >= 0 {
			return fit[i].UUID, ""
		}
	}
	digest, err := Image(a.Extra)
	for _, better := range []func(store.Candidate) bool{
		func(c store.Candidate) bool { return !c.Locked },
		func(c store.Candidate) bool { return c.Warm },
		func(c store.Candidate) bool { return err == nil && digest != "" && node.SameDigest(c.Staged, digest) },
	} {
		if some := filter(fit, better); len(some) > 0 {
			fit = some
		}
	}
	return fit[random(len(fit))].UUID, ""
}

func filter(from []store.Candidate, keep func(store.Candidate) bool) []store.Candidate {
	return slices.DeleteFunc(slices.Clone(from), func(c store.Candidate) bool { return !keep(c) })
}

func covers(have, want []string) bool {
	return !slices.ContainsFunc(want, func(t string) bool { return !slices.Contains(have, t) })
}

func hasProperties(have, want map[string]any) bool {
	for name, w := range want {
		h, ok := have[name]
		if !ok || !same(h, w) {
			return false
		}
	}
	return true
}

// same compares values of properties. A number and its text are the same: people and clients store both.
func same(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		// Beyond 2^53 different numbers are the same as floats.
		return ok && x == y && (x > -1<<53 && x < 1<<53 || fmt.Sprint(a) == fmt.Sprint(b))
	}
	return reflect.DeepEqual(a, b)
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	case string:
		// Only plain digits: "1e3" and "0x10" are texts to people.
		if strings.Trim(v, "0123456789.") != "" {
			return 0, false
		}
		f, err := strconv.ParseFloat(v, 64)
		return f, err == nil
	}
	return 0, false
}

func describe(want map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		b, err := json.Marshal(want[name])
		if err != nil {
			b = []byte("?")
		}
		parts = append(parts, name+" = "+string(b))
	}
	return strings.Join(parts, ", ")
}

// Unfit says why an allocation can't be made for a node that has its instance already, or "" when it can.
func Unfit(a *node.Allocation, n *node.Node) string {
	var faults []string
	for _, c := range []struct {
		unfit bool
		why   string
	}{
		{n.Provision != node.Active,
			fmt.Sprintf(`Node must be in the "active" state, but the current state is %q`, string(n.Provision))},
		{a.ResourceClass != n.ResourceClass, fmt.Sprintf(
			"Resource class %s does not match the requested resource class %s", n.ResourceClass, a.ResourceClass)},
		{!covers(n.Traits, a.Traits), fmt.Sprintf("List of traits [%s] does not match the requested traits [%s]",
			strings.Join(n.Traits, ", "), strings.Join(a.Traits, ", "))},
		{!hasProperties(n.Properties, a.Properties),
			"The node's properties are not exactly the requested " + describe(a.Properties)},
		{len(a.CandidateNodes) > 0 && !slices.Contains(a.CandidateNodes, n.UUID),
			"Candidate nodes must be empty or contain the target node, but got " +
				strings.Join(a.CandidateNodes, ", ")},
		{a.Owner != "" && a.Owner != n.Owner && a.Owner != n.Lessee,
			fmt.Sprintf("The node is neither owned by nor leased to the allocation's owner %s", a.Owner)},
	} {
		if c.unfit {
			faults = append(faults, c.why)
		}
	}
	if len(faults) == 0 {
		return ""
	}
	return fmt.Sprintf("Failed to process allocation %s: Cannot backfill an allocation for node %s: %s.", a.UUID,
		n.UUID, strings.Join(faults, "; "))
}
