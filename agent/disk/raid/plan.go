package raid

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// LogicalDisk is one array of target_raid_config, under Ironic's names. Fields for hardware controllers are accepted
// and ignored.
type LogicalDisk struct {
	Level         string            `json:"raid_level"`
	Size          json.RawMessage   `json:"size_gb"` // GiB, or "MAX"
	Controller    string            `json:"controller,omitempty"`
	VolumeName    string            `json:"volume_name,omitempty"`
	Root          bool              `json:"is_root_volume,omitempty"`
	PhysicalDisks []json.RawMessage `json:"physical_disks,omitempty"` // hints, as in root_device
	Number        int               `json:"number_of_physical_disks,omitempty"`
	Share         bool              `json:"share_physical_disks,omitempty"`
	DiskType      string            `json:"disk_type,omitempty"`
	InterfaceType string            `json:"interface_type,omitempty"`
}

// Config is a RAID configuration.
type Config struct {
	LogicalDisks []LogicalDisk `json:"logical_disks"`
}

const remedyConfig = "correct target_raid_config of the node"

// bytes returns the wanted size; zero is MAX.
func (l LogicalDisk) bytes() (int64, error) {
	if string(l.Size) == `"MAX"` {
		return 0, nil
	}
	var gib int64
	if err := json.Unmarshal(l.Size, &gib); err != nil || gib <= 0 || gib > 1<<30 {
		return 0, fmt.Errorf("size_gb %s is neither a number of GiB nor MAX", l.Size)
	}
	return gib << 30, nil
}

// Check enforces Ironic's rules for software RAID: at most two arrays, the first of which is a RAID 1.
func (c Config) Check() error {
	bad := func(format string, args ...any) error {
		return step.Failf(remedyConfig, "software RAID: "+format, args...)
	}
	if n := len(c.LogicalDisks); n == 0 || n > 2 {
		return bad("one or two logical disks can be made, not %d", n)
	}
	names := map[string]bool{}
	for i, l := range c.LogicalDisks {
		if l.Controller != "" && l.Controller != "software" {
			return bad("controller %q is not software", l.Controller)
		}
		if _, ok := levels[l.Level]; !ok {
			return bad("RAID level %q is not one of 0, 1, 1+0, 5 and 6", l.Level)
		}
		if i == 0 && l.Level != "1" {
			return bad("the first logical disk must be of level 1, not %s: machines start from it", l.Level)
		}
		if i > 0 && l.Root {
			return bad("the root volume must be the first logical disk")
		}
		size, err := l.bytes()
		if err != nil {
			return bad("%w", err)
		}
		if size == 0 && i < len(c.LogicalDisks)-1 && !c.apart() {
			return bad("only the last logical disk on the same disks can have the size MAX")
		}
		if len(l.VolumeName) > 26 || strings.ContainsAny(l.VolumeName, ":/\n\x00") {
			return bad("volume_name %q has more than 26 characters, or a colon or slash", l.VolumeName)
		}
		if l.VolumeName != "" && names[l.VolumeName] {
			return bad("two logical disks have the name %s", l.VolumeName)
		}
		names[l.VolumeName] = true
		for _, h := range l.PhysicalDisks {
			if _, err := disk.ParseHints(h); err != nil {
				return bad("physical_disks: %w", err)
			}
		}
	}
	return nil
}

// apart reports whether both arrays name their own disks.
func (c Config) apart() bool {
	return !slices.ContainsFunc(c.LogicalDisks, func(l LogicalDisk) bool { return len(l.PhysicalDisks) == 0 })
}

// member is a future member partition on a disk.
type member struct {
	disk        disk.Disk
	start, size int64 // bytes
}

// array is a future array.
type array struct {
	want    LogicalDisk
	name    string
	members []member
	size    int64 // bytes of data
	per     int64 // bytes of data on each member
}

const (
	mib      = 1 << 20
	espSize  = 550 * mib // at the beginning of each disk, as with Ironic's agent
	firstMiB = mib
)

// plan decides the arrays and their places on the disks. Nothing is touched.
func plan(c Config, disks []disk.Disk) ([]array, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	const remedy = "correct target_raid_config of the node, or change its disks; its inventory shows what they are"
	fail := func(i int, format string, args ...any) error {
		return step.Failf(remedy, fmt.Sprintf("logical disk %d (RAID %s): ", i+1, c.LogicalDisks[i].Level)+format,
			args...)
	}
	// Free range of each disk: after the EFI system partition, before the backup table.
	next, end := map[string]int64{}, map[string]int64{}
	for _, d := range disks {
		next[d.Name] = firstMiB + espSize
		end[d.Name] = (d.Size - mib) / mib * mib
	}
	var out []array
	for i, l := range c.LogicalDisks {
		kind := levels[l.Level]
		var on []disk.Disk
		if len(l.PhysicalDisks) > 0 {
			for _, raw := range l.PhysicalDisks {
				h, err := disk.ParseHints(raw)
				if err != nil {
					return nil, err
				}
				n := slices.IndexFunc(disks, func(d disk.Disk) bool {
					return h.Fit(d) && !slices.ContainsFunc(on, func(o disk.Disk) bool { return o.Name == d.Name })
				})
				if n < 0 {
					return nil, fail(i, "no disk fits the hints %s", h)
				}
				on = append(on, disks[n])
			}
		} else {
			// Removable disks (a memory stick) are members only if named.
			on = slices.DeleteFunc(slices.Clone(disks), func(d disk.Disk) bool { return d.Removable })
		}
		if l.Number > 0 {
			if l.Number > len(on) {
				return nil, fail(i, "%d disks are requested, there are %d", l.Number, len(on))
			}
			on = on[:l.Number]
		}
		if len(on) < kind.least || len(on) > maxMembers || l.Level == "1+0" && len(on)%2 != 0 {
			return nil, fail(i, "it can't be made of %d disks", len(on))
		}
		for _, d := range on {
			if d.ReadOnly {
				return nil, fail(i, "%s is read-only", d.Name)
			}
			if d.LogicalSectors != on[0].LogicalSectors {
				return nil, fail(i, "%s has sectors of %d bytes, %s of %d", d.Name, d.LogicalSectors, on[0].Name,
					on[0].LogicalSectors)
			}
		}
		num, den := kind.data(len(on))
		want, err := l.bytes()
		if err != nil {
			return nil, err
		}
		room := int64(1) << 62
		for _, d := range on {
			room = min(room, end[d.Name]-next[d.Name]-dataSector*512)
		}
		per := room / mib * mib
		if want > 0 {
			per = (want*int64(den)/int64(num) + mib - 1) / mib * mib
		}
		if per < 16*mib || per > room {
			return nil, fail(i, "its disks have %d MiB left each, and %d are needed", max(room, 0)/mib,
				max(per, 16*mib)/mib)
		}
		a := array{want: l, name: cmp.Or(l.VolumeName, fmt.Sprintf("volume%d", i)), per: per,
			size: per * int64(num) / int64(den)}
		for _, d := range on {
			a.members = append(a.members, member{disk: d, start: next[d.Name], size: per + dataSector*512})
			next[d.Name] += per + dataSector*512
		}
		out = append(out, a)
	}
	return out, nil
}
