// Package instance reads a node's settings for its system, in instance_info, driver_info and properties: its image, the
// layout of its disk, the disk itself, its traits, and who may log in for a rescue.
//
// It refuses, with a sentence for the client, settings that the agent would refuse later, or that would make the system
// untrustworthy. Errors are *node.InvalidError. Only functions whose names say so change a node.
package instance

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Site is the part of the conductor's configuration that is about all instances.
type Site struct {
	AllowUnverified bool   // deploy images without a digest
	AllowMD5        bool   // deploy images of which no more than an MD5 sum is known
	DefaultBootMode string // "bios", "uefi", or "" for the machine's own setting; a node's capabilities override it
	// URL below which the conductor's own images are served; for an image_source that is a bare file name
	ImageBase string
	// GlanceAddress returns where a node's agent gets an image of OpenStack's image service in the node's present job;
	// nil: that service is not used.
	GlanceAddress func(n *node.Node, id string) string
}

// BootMode is how the machine is to boot, and what says so: its capabilities, else the configuration.
func (s Site) BootMode(n *node.Node) (mode, from string) {
	if m := Capability(n.Properties["capabilities"], "boot_mode"); m == "bios" || m == "uefi" {
		return m, "capability boot_mode:" + m
	}
	return s.DefaultBootMode, "the conductor's deploy.boot_mode is " + s.DefaultBootMode
}

// Capability reads one key of properties.capabilities: "boot_mode:uefi,x:y", or an object.
func Capability(v any, key string) string {
	switch c := v.(type) {
	case string:
		for _, part := range strings.Split(c, ",") {
			if k, val, ok := strings.Cut(strings.TrimSpace(part), ":"); ok && k == key {
				return val
			}
		}
	case map[string]any:
		s, _ := c[key].(string)
		return s
	}
	return ""
}

// Traits returns the traits that an instance requires of its node.
func Traits(n *node.Node) ([]string, error) {
	v := n.InstanceInfo["traits"]
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	var traits, missing []string
	for _, item := range list {
		t, is := item.(string)
		ok = ok && is
		switch {
		case slices.Contains(traits, t):
			continue
		case !slices.Contains(n.Traits, t):
			missing = append(missing, t)
		}
		traits = append(traits, t)
	}
	if !ok {
		return nil, node.Invalidf("Error parsing traits from Node %s instance_info field. A list of strings is expected.",
			n.UUID)
	}
	if len(missing) > 0 {
		return nil, node.Invalidf(
			"Cannot specify instance traits that are not also set on the node. Node %s is missing traits %s", n.UUID,
			strings.Join(missing, ", "))
	}
	return traits, nil
}

// HasConfigDrive reports whether the instance has a config drive, in any of the forms that it may have.
func HasConfigDrive(n *node.Node) bool {
	switch d := n.InstanceInfo["configdrive"].(type) {
	case nil:
		return false
	case string:
		return d != ""
	}
	return true
}

// WholeNumber returns a number of a document that has no fraction and fits into 64 bits.
func WholeNumber(v any) (int64, bool) {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, true
		}
		f, err := v.Float64() // 10.0 is one, too
		return int64(f), err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53
	case int:
		return int64(v), true
	case int64:
		return v, true
	case string:
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		return n, err == nil
	}
	return 0, false
}
