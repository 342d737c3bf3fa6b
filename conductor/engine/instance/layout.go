package instance

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// sizes are the keys of instance_info that say how the disk is divided for a partition image, and how much memory the
// agent may use. 0 is the default; less than the least is refused.
var sizes = []struct {
	key         string
	least, most int64
}{
	{"root_gb", 0, 1 << 30}, {"swap_mb", 0, 1 << 30}, {"ephemeral_gb", 0, 1 << 30}, {"image_memory", 48, 1 << 20},
}

// flags are the keys of instance_info that are true or false.
var flags = []string{"preserve_ephemeral", "verify"}

// layout returns the disk's layout from instance_info, the memory for the write, and whether the disk is read back, in
// the agent's form: Nova and people store numbers and truth as text too. It is refused where the agent would refuse it,
// but before anything is begun.
func (s Site) layout(n *node.Node) (map[string]any, error) {
	out := map[string]any{}
	for _, known := range sizes {
		v, ok := n.InstanceInfo[known.key]
		if !ok || v == nil || v == "" {
			continue
		}
		switch size, ok := WholeNumber(v); {
		case !ok || size < 0 || size > known.most:
			return nil, node.Invalidf("instance_info's %s is not a size: %v", known.key, v)
		case size > 0 && size < known.least:
			return nil, node.Invalidf("instance_info's %s is %d: give at least %d, or leave it out", known.key, size, known.least)
		case size > 0:
			out[known.key] = size
		}
	}
	for _, k := range flags {
		yes, err := false, error(nil)
		switch v := n.InstanceInfo[k].(type) {
		case nil:
		case bool:
			yes = v
		case string:
			yes, err = strconv.ParseBool(strings.ToLower(v))
		default:
			err = strconv.ErrSyntax
		}
		if err != nil {
			return nil, node.Invalidf("instance_info's %s is neither true nor false: %v", k, n.InstanceInfo[k])
		}
		if yes {
			out[k] = true
		}
	}
	text := func(key string) string {
		s, _ := n.InstanceInfo[key].(string)
		return s
	}
	if kind := text("image_type"); kind != "" && kind != "whole-disk" && kind != "partition" {
		return nil, node.Invalidf("image_type %q is not supported: use whole-disk or partition, or leave it out", kind)
	}
	if f := text("ephemeral_format"); f != "" && !slices.Contains([]string{"ext4", "vfat"}, strings.ToLower(f)) {
		return nil, node.Invalidf("ephemeral_format %q is not supported: use ext4 or vfat", f)
	}
	if mode, from := s.BootMode(n); text("image_type") == "partition" && mode == "bios" {
		return nil, node.Invalidf(
			"a partition image can't be booted by BIOS (%s): use a whole-disk image, or set boot_mode:uefi in the node's capabilities", from)
	}
	return out, nil
}
