package instance

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// layoutSizes are the keys of instance_info that say how the disk is divided for a partition image.
var layoutSizes = []string{"root_gb", "swap_mb", "ephemeral_gb"}

// flags are the keys of instance_info that are true or false.
var flags = []string{"preserve_ephemeral", "verify"}

// layout returns the disk's layout from instance_info, and whether the disk is read back, in the agent's form: Nova and
// people store numbers and truth as text too. It is refused where the agent would refuse it, but before anything is
// begun.
func (s Site) layout(n *node.Node) (map[string]any, error) {
	out := map[string]any{}
	for _, k := range layoutSizes {
		v, ok := n.InstanceInfo[k]
		if !ok || v == nil || v == "" {
			continue
		}
		size, ok := WholeNumber(v)
		if !ok || size < 0 || size > 1<<30 {
			return nil, node.Invalidf("instance_info's %s is not a size: %v", k, v)
		}
		if size > 0 {
			out[k] = size
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
