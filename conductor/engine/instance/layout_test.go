package instance

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/conductor/node"
)

func TestDiskLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		info map[string]any
		caps any
		site string // deploy.boot_mode
		want map[string]any
		err  string
	}{
		{"nothing", nil, nil, "", map[string]any{}, ""},
		{"numbers and text",
			map[string]any{"root_gb": 10.0, "swap_mb": "512", "ephemeral_gb": 0.0, "preserve_ephemeral": "True"}, nil,
			"", map[string]any{"root_gb": int64(10), "swap_mb": int64(512), "preserve_ephemeral": true}, ""},
		{"empty", map[string]any{"root_gb": "", "swap_mb": nil, "preserve_ephemeral": false}, nil, "", map[string]any{},
			""},
		{"half", map[string]any{"root_gb": 1.5}, nil, "", nil, "root_gb"},
		{"negative", map[string]any{"swap_mb": -1.0}, nil, "", nil, "swap_mb"},
		{"word", map[string]any{"ephemeral_gb": "lots"}, nil, "", nil, "ephemeral_gb"},
		{"huge", map[string]any{"ephemeral_gb": 1e300}, nil, "", nil, "ephemeral_gb"},
		{"memory", map[string]any{"image_memory": "96"}, nil, "", map[string]any{"image_memory": int64(96)}, ""},
		{"default memory", map[string]any{"image_memory": 0.0}, nil, "", map[string]any{}, ""},
		{"little memory", map[string]any{"image_memory": 47.0}, nil, "", nil, "at least 48"},
		{"very much memory", map[string]any{"image_memory": 2097152.0}, nil, "", nil, "image_memory"},
		{"maybe", map[string]any{"preserve_ephemeral": "maybe"}, nil, "", nil, "preserve_ephemeral"},
		{"read back", map[string]any{"verify": "true"}, nil, "", map[string]any{"verify": true}, ""},
		{"not read back", map[string]any{"verify": false}, nil, "", map[string]any{}, ""},
		{"perhaps read back", map[string]any{"verify": "perhaps"}, nil, "", nil, "verify"},
		{"read back by a number", map[string]any{"verify": 1.0}, nil, "", nil, "verify"},
		{"type", map[string]any{"image_type": "floppy"}, nil, "", nil, "floppy"},
		{"format", map[string]any{"ephemeral_format": "xfs"}, nil, "", nil, "xfs"},
		{"BIOS", map[string]any{"image_type": "partition"}, "boot_mode:bios", "uefi", nil, "capability boot_mode:bios"},
		{"UEFI", map[string]any{"image_type": "partition"}, "boot_mode:uefi", "bios", map[string]any{}, ""},
		{"BIOS everywhere", map[string]any{"image_type": "partition"}, nil, "bios", nil, "deploy.boot_mode is bios"},
		{"BIOS everywhere, no such capability", map[string]any{"image_type": "partition"}, "boot_mode:sparc", "bios",
			nil, "deploy.boot_mode is bios"},
		{"UEFI everywhere", map[string]any{"image_type": "partition"}, nil, "uefi", map[string]any{}, ""},
		{"BIOS everywhere, whole disk", map[string]any{"image_type": "whole-disk"}, nil, "bios", map[string]any{}, ""},
	} {
		n := &node.Node{InstanceInfo: c.info, Properties: map[string]any{"capabilities": c.caps}}
		got, err := Site{DefaultBootMode: c.site}.layout(n)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// TestSizesAreTheAgents holds the sizes that are taken here to the bounds of the agent's arguments.
func TestSizesAreTheAgents(t *testing.T) {
	for _, s := range sizes {
		i := slices.IndexFunc(image.WriteArgs, func(a step.Arg) bool { return a.Name == s.key })
		if i < 0 {
			t.Errorf("write_image has no argument %s", s.key)
			continue
		}
		a := image.WriteArgs[i]
		if a.Min == nil || *a.Min != float64(s.least) || a.Max != nil && *a.Max != float64(s.most) {
			t.Errorf("%s is taken from %d to %d, which is not what the agent takes: %+v", s.key, s.least, s.most, a)
		}
	}
}
