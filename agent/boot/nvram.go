package boot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/efivarfs"

	"github.com/ingot-metal/ingot/agent/step"
)

// CleanNVRAMArgs declares the arguments of clean_uefi_nvram.
var CleanNVRAMArgs = []step.Arg{
	{Name: "match_patterns", Type: "array", Items: "string",
		Description: "regular expressions, ignoring case: entries whose label or path matches one of them are removed; default: entries that start from a disk, and those of shim and GRUB"},
}

// nvramDefaults match the entries that installed systems leave; same as Ironic's.
var nvramDefaults = []string{`HD\(`, `shim.*\.efi`, `grub.*\.efi`}

// Removed is a removed boot entry.
type Removed struct {
	Name  string `json:"name"`
	Label string `json:"label"`
	Path  string `json:"path"`
}

type nvramArgs struct {
	Patterns []string `json:"match_patterns"`
}

// CleanNVRAMStep removes the boot entries of earlier systems from the firmware. A machine without UEFI has none. If
// stopped, some are removed; a repeated run removes the rest.
func CleanNVRAMStep(m interface {
	Root() string
	Variables() (efivarfs.EFIVar, error)
}) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args nvramArgs) (step.Outcome, error) {
		if args.Patterns == nil {
			args.Patterns = nvramDefaults
		}
		var patterns []*regexp.Regexp
		for _, p := range args.Patterns {
			re, err := regexp.Compile("(?i)" + p)
			if err != nil {
				return step.Outcome{}, step.Failf("correct match_patterns", "match_patterns: %q: %w", p, err)
			}
			patterns = append(patterns, re)
		}
		removed := []Removed{}
		if _, err := os.Stat(filepath.Join(m.Root(), "sys/firmware/efi")); errors.Is(err, os.ErrNotExist) {
			c.Log.Info("the machine did not start by UEFI: there are no boot entries")
			return step.Outcome{Result: map[string]any{"removed": removed}}, nil
		}
		firmware, err := m.Variables()
		if err != nil {
			return step.Outcome{}, step.Fail("clear the boot entries in the firmware's setup",
				fmt.Errorf("the kernel shows no firmware variables: %w", err))
		}
		v := vars{firmware}
		all, err := v.entries()
		if err != nil {
			return step.Outcome{}, err
		}
		gone := map[uint16]bool{}
		for n, option := range all {
			r := Removed{Name: entryName(n), Label: description(option), Path: pathText(devicePath(option))}
			if slices.ContainsFunc(patterns,
				func(re *regexp.Regexp) bool { return re.MatchString(r.Label + " " + r.Path) }) {
				gone[n] = true
				removed = append(removed, r)
			}
		}
		slices.SortFunc(removed, func(a, b Removed) int { return strings.Compare(a.Name, b.Name) })
		// The boot order is changed first: with an entry missing from the variables, some firmware creates a new one.
		if err := v.unlist(gone); err != nil {
			return step.Outcome{}, err
		}
		for _, r := range removed {
			if err := ctx.Err(); err != nil {
				return step.Outcome{}, err
			}
			if err := v.remove(r.Name); err != nil {
				return step.Outcome{}, step.Fail("clear the boot entries in the firmware's setup", err)
			}
			c.Log.Info("boot entry removed", "entry", r.Name, "label", r.Label, "path", r.Path)
		}
		left, err := v.entries()
		if err != nil {
			return step.Outcome{}, err
		}
		for n := range gone {
			if _, there := left[n]; there {
				return step.Outcome{},
					step.Failf("clear the boot entries in the firmware's setup", "the firmware did not let go of %s",
						entryName(n))
			}
		}
		return step.Outcome{Result: map[string]any{"removed": removed}}, nil
	})
}

// unlist removes entries from the boot order, and from BootNext.
func (v vars) unlist(gone map[uint16]bool) error {
	if len(gone) == 0 {
		return nil
	}
	raw, err := v.read("BootOrder")
	if err != nil {
		return err
	}
	var order []byte
	for ; len(raw) >= 2; raw = raw[2:] {
		if !gone[binary.LittleEndian.Uint16(raw)] {
			order = append(order, raw[:2]...)
		}
	}
	if len(order) > 0 {
		err = v.write("BootOrder", order)
	} else if err = v.remove("BootOrder"); errors.Is(err, efivarfs.ErrVarNotExist) { // UEFI has no empty variables
		err = nil
	}
	if err != nil {
		return err
	}
	next, err := v.read("BootNext")
	if err == nil && len(next) == 2 && gone[binary.LittleEndian.Uint16(next)] {
		err = v.remove("BootNext")
	}
	return err
}

// pathText formats a device path for people and patterns, in the UEFI specification's notation for the nodes that
// matter here: partitions and files.
func pathText(path []byte) string {
	var parts []string
	for len(path) >= 4 {
		kind, sub, n := path[0], path[1], int(binary.LittleEndian.Uint16(path[2:]))
		if n < 4 || n > len(path) || kind == 0x7f {
			break
		}
		data := path[4:n]
		switch {
		case kind == 4 && sub == 1 && len(data) >= 38:
			table := map[byte]string{1: "MBR", 2: "GPT"}[data[36]]
			parts = append(parts, fmt.Sprintf("HD(%d,%s,%x)", binary.LittleEndian.Uint32(data), table, data[20:36]))
		case kind == 4 && sub == 4:
			file, _, _ := cutUTF16(data)
			parts = append(parts, "File("+file+")")
		case kind == 3 && sub == 11 && len(data) >= 6:
			parts = append(parts, fmt.Sprintf("MAC(%x)", data[:6]))
		default:
			parts = append(parts, fmt.Sprintf("Path(%d,%d)", kind, sub))
		}
		path = path[n:]
	}
	return strings.Join(parts, "/")
}
