// Package raid reads the RAID controllers of a machine from its Redfish service, and plans volumes on their disks.
//
// Nothing here changes a machine. Sizes are bytes but for those of logical disks, which are GiB, in the words of
// Ironic's target_raid_config. Errors of Plan are sentences for an operator: each says which logical disk can't be made
// and why.
package raid

import (
	"context"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
)

// Level is a RAID level by its name in target_raid_config.
type Level struct {
	Name, Type string // Type is Redfish's name
	// least and most disks; in multiples of step.
	least, most, step int
	// data is how many of n disks hold data.
	data func(n int) int
}

// manyDisks is more than any controller has.
const manyDisks = 1000

// levels are those that Redfish services make, as Ironic has them.
var levels = []Level{
	{"0", "RAID0", 1, manyDisks, 1, func(n int) int { return n }},
	{"1", "RAID1", 2, 2, 2, func(int) int { return 1 }},
	{"5", "RAID5", 3, manyDisks, 1, func(n int) int { return n - 1 }},
	{"6", "RAID6", 4, manyDisks, 1, func(n int) int { return n - 2 }},
	{"1+0", "RAID10", 4, manyDisks, 2, func(n int) int { return n / 2 }},
	{"5+0", "RAID50", 6, manyDisks, 2, func(n int) int { return n - 2 }},
	{"6+0", "RAID60", 8, manyDisks, 2, func(n int) int { return n - 4 }},
}

// LevelNames are the levels of target_raid_config that can be made.
func LevelNames() (names []string) {
	for _, l := range levels {
		names = append(names, l.Name)
	}
	return names
}

func levelOf(name string) (Level, bool) {
	i := slices.IndexFunc(levels, func(l Level) bool { return l.Name == name || l.Type == name })
	if i < 0 {
		return Level{}, false
	}
	return levels[i], true
}

// older are the types of volumes of services that have no RAIDType yet.
var older = map[string]string{"NonRedundant": "RAID0", "Mirrored": "RAID1", "StripedWithParity": "RAID5",
	"SpannedMirrors": "RAID10", "SpannedStripesWithParity": "RAID50"}

// Controller is a storage of a machine with a collection of volumes.
type Controller struct {
	ID, Path string
	// Collection is the path of the volumes' collection.
	Collection string
	// Types are the RAID types that it says it has; nil: it does not say.
	Types []string
	// ApplyTimes are when changes may be made: Immediate, OnReset; none: it does not say.
	ApplyTimes []string
	Disks      []Disk
	Volumes    []Volume
}

// Disk is a drive of a controller.
type Disk struct {
	ID, Path string
	// Media is "hdd" or "ssd", Protocol "sas", "sata", "nvme", ...; "" when it does not say.
	Media, Protocol string
	Bytes           int64
}

// Volume is one that a controller has. Type is Redfish's RAIDType; "" is a single disk that is passed through.
type Volume struct {
	ID, Path, Name, Type string
	Bytes                int64
	Drives               []string // paths
	// WWN is its world wide name with 0x; "": not known.
	WWN string
}

type link = schemas.Link

// Read lists the RAID controllers of a machine with their disks and volumes. Storage without volumes, and that which
// says that it has no RAID, is left out.
func Read(ctx context.Context, c *controller.Controller, s *controller.System) (all []*Controller, err error) {
	ctx = controller.Bounded(ctx)
	var system struct{ Storage link }
	if _, err := c.Read(ctx, s.Path, &system); err != nil {
		return nil, err
	}
	type engine struct{ SupportedRAIDTypes *[]string }
	type storage struct {
		ID                   string `json:"Id"`
		Drives               []link
		Volumes, Controllers link
		StorageControllers   []engine
	}
	found := map[*Controller]*storage{}
	if err := controller.Each(ctx, c, string(system.Storage), func(path string, st *storage) {
		if st.Volumes != "" {
			all = append(all, &Controller{ID: c.Clean(st.ID), Path: path, Collection: string(st.Volumes)})
			found[all[len(all)-1]] = st
		}
	}); err != nil {
		return nil, err
	}
	for _, o := range all {
		st := found[o]
		engines := st.StorageControllers
		if err := controller.Each(ctx, c, string(st.Controllers), func(_ string, e *engine) {
			engines = append(engines, *e)
		}); err != nil {
			return nil, err
		}
		for _, e := range engines {
			if e.SupportedRAIDTypes != nil && len(o.Types) == 0 {
				o.Types = append([]string{}, *e.SupportedRAIDTypes...)
			}
		}
		if err := o.readVolumes(ctx, c); err != nil {
			return nil, err
		}
		for _, path := range st.Drives {
			var d struct {
				ID                  string `json:"Id"`
				MediaType, Protocol string
				CapacityBytes       float64
			}
			if ok, err := c.Try(ctx, string(path), &d); err != nil {
				return nil, err
			} else if ok && d.CapacityBytes > 0 {
				o.Disks = append(o.Disks, Disk{ID: c.Clean(d.ID), Path: string(path),
					Media: strings.ToLower(c.Clean(d.MediaType)), Protocol: strings.ToLower(c.Clean(d.Protocol)),
					Bytes: int64(d.CapacityBytes)})
			}
		}
	}
	return slices.DeleteFunc(all, func(o *Controller) bool { return o.Types != nil && len(o.Types) == 0 }), nil
}

// readVolumes reads the volumes of a controller, and when they may be changed.
func (o *Controller) readVolumes(ctx context.Context, c *controller.Controller) error {
	var all struct {
		Support struct{ SupportedValues []string } `json:"@Redfish.OperationApplyTimeSupport"`
	}
	if _, err := c.Try(ctx, o.Collection, &all); err != nil {
		return err
	}
	o.ApplyTimes = all.Support.SupportedValues
	type volume struct {
		ID                         string `json:"Id"`
		Name, RAIDType, VolumeType string
		CapacityBytes              float64
		Identifiers                []struct{ DurableName, DurableNameFormat string }
		Links                      struct{ Drives []link }
	}
	return controller.Each(ctx, c, o.Collection, func(path string, v *volume) {
		made := Volume{ID: c.Clean(v.ID), Path: path, Name: c.Clean(v.Name), Type: v.RAIDType,
			Bytes: int64(v.CapacityBytes)}
		if made.Type == "" {
			made.Type = older[v.VolumeType]
		}
		for _, d := range v.Links.Drives {
			made.Drives = append(made.Drives, string(d))
		}
		for _, id := range v.Identifiers {
			if id.DurableNameFormat == "NAA" && id.DurableName != "" {
				made.WWN = "0x" + strings.TrimPrefix(strings.ToLower(c.Clean(id.DurableName)), "0x")
			}
		}
		o.Volumes = append(o.Volumes, made)
	})
}

// Level is the RAID level of a volume in the words of target_raid_config; "" when it has none.
func (v Volume) Level() string {
	l, _ := levelOf(v.Type)
	return l.Name
}

// use is how much of each of its disks a volume has.
func (v Volume) use() int64 {
	l, ok := levelOf(v.Type)
	if !ok || l.data(len(v.Drives)) < 1 {
		return v.Bytes
	}
	return share(v.Bytes, l.data(len(v.Drives)))
}

// share is the n-th part of a size, rounded up.
func share(bytes int64, n int) int64 { return (bytes + int64(n) - 1) / int64(n) }
