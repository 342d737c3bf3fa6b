package disk

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/proto/rootdevice"
)

// joinPaths merges disks that are paths to the same one: they have the same world wide name, serial number, size,
// vendor, model and sectors, on a transport with multiple paths. The ramdisk has no device mapper, and needs none: it
// runs only briefly. The path in use is one that the kernel calls running, then one that the array calls optimized,
// then the first by location; never by name, since names change.
//
// Disks that share a serial number and have no world wide name are not merged: they may be different. Find refuses to
// write to them.
func joinPaths(root string, disks []Disk) []Disk {
	groups := map[string][]Disk{}
	var order []string
	for i, d := range disks {
		key := fmt.Sprint(i) // unique
		if manyPaths(d) {
			key = strings.Join(
				[]string{d.WWNWithExtension, d.Serial, fmt.Sprint(d.Size), d.Vendor, d.Model,
					fmt.Sprint(d.LogicalSectors)}, "\x00")
		}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], d)
	}
	var out []Disk
	for _, key := range order {
		g := groups[key]
		if len(g) == 1 {
			out = append(out, g[0])
			continue
		}
		state := map[string]pathState{}
		for _, d := range g {
			state[d.Name] = readPathState(root, d.Name)
		}
		slices.SortFunc(g, func(a, b Disk) int {
			return cmp.Or(state[b.Name].rank()-state[a.Name].rank(), strings.Compare(a.ByPath, b.ByPath),
				strings.Compare(a.Name, b.Name))
		})
		d := g[0]
		d.ByPathAlso = slices.Clone(d.ByPathAlso)
		for i, p := range g {
			d.Paths = append(d.Paths,
				rootdevice.Path{Name: p.Name, ByPath: p.ByPath, HCTL: p.HCTL, State: state[p.Name].String()})
			if i > 0 {
				if p.ByPath != "" {
					d.ByPathAlso = append(d.ByPathAlso, p.ByPath)
				}
				d.ByPathAlso = append(d.ByPathAlso, p.ByPathAlso...)
			}
		}
		out = append(out, d)
	}
	return out
}

// manyPaths reports whether a disk may be one of several paths: SATA, USB, virtio and cards have one path, and equal
// names there come from a bridge that returns the same for all. The kernel derives names that begin with nvme. from the
// serial number.
func manyPaths(d Disk) bool {
	return slices.Contains([]string{"sas", "fc", "iscsi", "nvme", ""}, d.Tran) &&
		d.WWNWithExtension != "" && !strings.HasPrefix(d.WWNWithExtension, "nvme.")
}

// pathState is the state of a path in the kernel and the array.
type pathState struct{ device, access string }

func readPathState(root, name string) pathState {
	dir := attributes(filepath.Join(root, "sys/block", strings.ReplaceAll(strings.TrimPrefix(name, "/dev/"), "/", "!"),
		"device"))
	return pathState{dir.text("state"), dir.text("access_state")}
}

func (p pathState) rank() int {
	n := 0
	if slices.Contains([]string{"running", "live", ""}, p.device) {
		n = 4
	}
	switch p.access {
	case "active/optimized", "":
		n += 2
	case "active/non-optimized":
		n++
	}
	return n
}

func (p pathState) String() string {
	return strings.Trim(p.device+", "+p.access, ", ")
}
