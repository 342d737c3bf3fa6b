package raid

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
)

// NotStarted is the state of an array that is not assembled, Incomplete that of one with too few members to start it.
// All other states are the kernel's words for an assembled array: clean, active, inactive, readonly, ...
const (
	NotStarted = "not started"
	Incomplete = "incomplete"
)

// Known is an array in an inventory, made here or not.
type Known struct {
	// "/dev/md0"; of an array of ours that is not started, its future name; of others not started, ""
	Name      string  `json:"name"`
	Volume    string  `json:"volume_name"` // name in the superblock
	UUID      string  `json:"uuid"`        // in the kernel's format; "" if unknown
	Level     string  `json:"raid_level"`  // Ironic's name if it has one: 0, 1, 1+0, 5, 6; else the kernel's
	Size      int64   `json:"size"`        // bytes; 0 if unknown because it is not started
	State     string  `json:"state"`
	Metadata  string  `json:"metadata_version"` // "1.2", "0.90", "external:imsm"
	Devices   int     `json:"raid_disks"`       // number of devices when complete
	Degraded  int     `json:"degraded"`         // number of them missing or failed
	ChunkSize int64   `json:"chunk_size"`       // bytes; 0 for levels without
	Sync      *string `json:"sync_action"`      // "idle", "resync", "recover", "check", ...; null when not started
	Synced    *string `json:"sync_completed"`   // sectors done and in all, "1024 / 4096", during an action
	Ingot     bool    `json:"made_by_ingot"`
	Members   []Part  `json:"members"`

	root string
	ours bool // one that Assemble would put together
}

// Part is a member of an array.
type Part struct {
	Name string `json:"name"` // "/dev/sda2"
	Disk string `json:"disk"` // "/dev/sda"
	Slot *int   `json:"slot"` // its place in the array; null for a spare
	// the kernel's words: "in_sync", "spare", "faulty", ...; "stale" if others have newer data, "present" if not
	// started
	State string `json:"state"`

	super  superblock
	sector int64 // of the superblock on the member
}

// Survey lists all software arrays: those assembled in the kernel, by whatever program, and those with metadata of
// format 1 on the disks. It starts none and writes nothing, unlike Assemble. Errors of reading disks are returned along
// with the rest of the list. On a machine without access to disks (nil) only the kernel's arrays are listed.
func Survey(ctx context.Context, root string,
	read func(ctx context.Context, path string, p []byte, off int64) error) ([]Known, error) {
	all, err := kernelArrays(root)
	if err != nil {
		return nil, fmt.Errorf("list arrays: %w", err)
	}
	if read == nil {
		return all, nil
	}
	parts, err := superblocks(ctx, root, read)
	running := map[string]bool{}
	for i := range all {
		for k := range all[i].Members {
			m := &all[i].Members[k]
			running[m.Name] = true
			j := slices.IndexFunc(parts, func(p Part) bool { return p.Name == m.Name })
			if j < 0 {
				continue
			}
			m.super = parts[j].super
			all[i].say(m.super)
		}
	}
	// Arrays that exist on the disks only, in the order in which Assemble would find them.
	groups := map[[16]byte][]Part{}
	var ids [][16]byte
	held := map[[16]byte]bool{}
	for _, p := range parts {
		id := p.super.UUID
		held[id] = held[id] || running[p.Name]
		same := func(o Part) bool { return o.super.Device == p.super.Device }
		if running[p.Name] || slices.ContainsFunc(groups[id], same) {
			continue // another path to the same disk
		}
		if groups[id] == nil {
			ids = append(ids, id)
		}
		groups[id] = append(groups[id], p)
	}
	slices.SortStableFunc(ids, func(a, b [16]byte) int {
		return strings.Compare(filepath.Base(groups[a][0].Name), filepath.Base(groups[b][0].Name))
	})
	n := 0
	for _, id := range ids {
		if held[id] { // a member that dropped out of a running array
			if i := slices.IndexFunc(all, func(a Known) bool { return a.UUID == uuidText(id) }); i >= 0 {
				for _, p := range groups[id] {
					p.State = "stale"
					p.place()
					all[i].Members = append(all[i].Members, p)
				}
			}
			continue
		}
		a := atRest(root, groups[id])
		if a.ours && a.State == NotStarted {
			for exists(filepath.Join(root, "sys/block", fmt.Sprintf("md%d", n))) {
				n++
			}
			a.Name = fmt.Sprintf("/dev/md%d", n)
			n++
		}
		all = append(all, a)
	}
	return all, err
}

// say sets the fields that a member's superblock has of its array.
func (a *Known) say(s superblock) {
	a.UUID = uuidText(s.UUID)
	a.Ingot = strings.HasPrefix(s.Name, mark)
	a.Volume = strings.TrimPrefix(s.Name, mark)
	a.ours = a.Ingot
}

// levelName returns Ironic's name of the kernel's raid10, or the kernel's own.
func levelName(kernel string) string {
	switch kernel {
	case "raid10":
		return "1+0"
	case "raid0", "raid1", "raid4", "raid5", "raid6":
		return strings.TrimPrefix(kernel, "raid")
	}
	return kernel
}

// kernelArrays returns the arrays in sysfs.
func kernelArrays(root string) ([]Known, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "sys/block/md*/md"))
	if err != nil {
		return nil, err
	}
	var out []Known
	for _, md := range dirs {
		dir := filepath.Dir(md)
		is := func(name string) string { return text(filepath.Join(md, name)) }
		first := func(name string) int64 { // "2 (3)" while an array is reshaped
			word, _, _ := strings.Cut(is(name), " ")
			return disk.ParseNumber(word)
		}
		a := Known{Name: "/dev/" + strings.ReplaceAll(filepath.Base(dir), "!", "/"), UUID: is("uuid"),
			Level: levelName(is("level")), State: is("array_state"), Metadata: is("metadata_version"),
			Devices: int(first("raid_disks")), Degraded: int(first("degraded")), ChunkSize: first("chunk_size"),
			root: root}
		if a.State == "" || a.State == "clear" {
			continue // a name without an array
		}
		a.Size = 512 * disk.ParseNumber(text(filepath.Join(dir, "size")))
		if s := is("sync_action"); s != "" {
			a.Sync = &s
		}
		if s := is("sync_completed"); s != "" && s != "none" {
			a.Synced = &s
		}
		members, err := filepath.Glob(filepath.Join(md, "dev-*"))
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			p := Part{State: text(filepath.Join(m, "state"))}
			p.Name = "/dev/" + strings.ReplaceAll(strings.TrimPrefix(filepath.Base(m), "dev-"), "!", "/")
			p.Disk = p.Name
			if real, err := filepath.EvalSymlinks(filepath.Join(m, "block")); err == nil &&
				exists(filepath.Join(real, "partition")) {
				p.Disk = "/dev/" + strings.ReplaceAll(filepath.Base(filepath.Dir(real)), "!", "/")
			}
			if n, err := strconv.Atoi(text(filepath.Join(m, "slot"))); err == nil {
				p.Slot = &n
			}
			a.Members = append(a.Members, p)
		}
		slices.SortStableFunc(a.Members, bySlot)
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b Known) int {
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name))
	})
	return out, nil
}

func bySlot(a, b Part) int {
	last := new(maxMembers * 100)
	return cmp.Or(*cmp.Or(a.Slot, last)-*cmp.Or(b.Slot, last), strings.Compare(a.Name, b.Name))
}

// superblocks reads those of all disks and partitions. An unreadable disk does not hide the others.
func superblocks(ctx context.Context, root string,
	read func(context.Context, string, []byte, int64) error) ([]Part, error) {
	list, err := os.ReadDir(filepath.Join(root, "sys/block"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Part
	var faults []error
	for _, e := range list {
		dir := filepath.Join(root, "sys/block", e.Name())
		if !disk.Candidate(e.Name()) || text(filepath.Join(dir, "hidden")) == "1" {
			continue
		}
		folders := []string{dir}
		parts, _ := filepath.Glob(filepath.Join(dir, "*", "partition"))
		for _, p := range parts {
			folders = append(folders, filepath.Dir(p))
		}
		for _, f := range folders {
			if ctx.Err() != nil {
				return out, context.Cause(ctx)
			}
			sectors, err := strconv.ParseInt(text(filepath.Join(f, "size")), 10, 64)
			if err != nil || sectors < 64 {
				continue // an empty card reader, an extended partition
			}
			s, at, err := superblockOf(ctx, read, "/dev/"+strings.ReplaceAll(filepath.Base(f), "!", "/"), sectors)
			switch {
			case err == nil:
				out = append(out,
					Part{Name: "/dev/" + strings.ReplaceAll(filepath.Base(f), "!", "/"),
						Disk: "/dev/" + strings.ReplaceAll(e.Name(), "!", "/"), super: s, sector: at})
			case !errors.Is(err, errNoMember):
				faults = append(faults, err)
			}
			if errors.Is(err, fs.ErrPermission) {
				return out, errors.New("only root may read the arrays' metadata from disks")
			}
		}
	}
	return out, errors.Join(faults...)
}

// superblockOf tries the places of versions 1.2, 1.1 and 1.0.
func superblockOf(ctx context.Context, read func(context.Context, string, []byte, int64) error, path string,
	sectors int64) (superblock, int64, error) {
	head := make([]byte, superSector*512+superSize)
	if err := read(ctx, path, head, 0); err != nil {
		return superblock{}, 0, err
	}
	for _, at := range []int64{superSector, 0} {
		s, err := parseAt(head[at*512:], at)
		if err == nil || !errors.Is(err, errNoMember) {
			return s, at, silent(err)
		}
	}
	// At least 8 KiB from the end, on a boundary of 4 KiB.
	at := (sectors - 16) &^ 7
	if err := read(ctx, path, head[:superSize], at*512); err != nil {
		return superblock{}, 0, err
	}
	s, err := parseAt(head[:superSize], at)
	return s, at, silent(err)
}

// silent ignores the error of a superblock that the kernel would not accept either.
func silent(err error) error {
	if err != nil {
		return errNoMember
	}
	return nil
}

// atRest describes an array that is not assembled.
func atRest(root string, parts []Part) Known {
	newest := parts[0].super
	for _, p := range parts {
		if p.super.Events > newest.Events {
			newest = p.super
		}
	}
	a := Known{State: NotStarted, Devices: int(newest.Members), root: root,
		Metadata: cmp.Or(map[int64]string{superSector: "1.2", 0: "1.1"}[parts[0].sector], "1.0")}
	a.say(newest)
	a.Level = levelName(kernelLevel(newest.Level))
	if newest.Level == 0 || newest.Level >= 4 {
		a.ChunkSize = int64(newest.Chunk) * 512
	}
	have := map[int]bool{}
	least := int64(-1) // sectors of data on every member
	for _, p := range parts {
		p.State = "present"
		switch {
		case p.place():
			// The newest superblock decides about each member. The kernel also accepts a member that is one event
			// behind: the machine died between two updates.
			if p.super.Events+1 < newest.Events || newest.roleOf(p.super.Number) != p.super.Role {
				p.State = "stale"
			} else if *p.Slot < a.Devices {
				have[*p.Slot] = true
			}
		case p.super.Role == 0xfffe:
			p.State = "faulty"
		case p.super.Role == roleSpare:
			p.State = "spare"
		}
		if d := int64(min(p.super.Data, 1<<53)); least < 0 || d < least {
			least = d
		}
		a.ours = a.ours && a.Metadata == "1.2" && p.Name != p.Disk
		a.Members = append(a.Members, p)
	}
	slices.SortStableFunc(a.Members, bySlot)
	a.Degraded = max(a.Devices-len(have), 0)
	// The kernel does not start an array that has lost a member while its parity was out of sync: the member's data
	// can't be reconstructed.
	torn := newest.Level >= 4 && newest.Level <= 6 && newest.Resync != noResync && len(have) < a.Devices
	if torn || !startable(a.Level, newest.Layout, a.Devices, have) {
		a.State = Incomplete
	}
	a.Size = 512 * sizeOf(newest, least, len(parts))
	return a
}

// place sets the member's slot from its superblock, and reports whether it has one. As in the kernel, higher numbers
// are spares, faulty members and journals.
func (p *Part) place() bool {
	if p.super.Role >= 0xff00 {
		return false
	}
	p.Slot = new(int(p.super.Role))
	return true
}

func kernelLevel(n int32) string {
	switch n {
	case -1:
		return "linear"
	case -4:
		return "multipath"
	}
	return fmt.Sprintf("raid%d", n)
}

// startable reports whether the present members suffice for the level.
func startable(level string, layout uint32, want int, have map[int]bool) bool {
	lost := want - len(have)
	switch level {
	case "1", "multipath":
		return len(have) > 0
	case "4", "5":
		return lost <= 1
	case "6":
		return lost <= 2
	case "1+0":
		near, far := int(layout&0xff), int(layout>>8&0xff)
		// copies overlap in ways that depend on the layout: losing all but one copy is safe
		if far > 1 || near < 2 || want%near != 0 {
			return lost < max(near*far, 1)
		}
		// It ends after len(have)+1 groups of copies at the latest, however many a hostile superblock claims.
		for first := 0; first < want; first += near {
			n := first
			for n < first+near && !have[n] {
				n++
			}
			if n == first+near {
				return false
			}
		}
		return want > 0
	}
	return lost <= 0
}

// sizeOf returns the size of an array, in sectors; 0 if its members are not enough to compute it.
func sizeOf(s superblock, least int64, present int) int64 {
	n, per := int64(s.Members), int64(min(s.Size, 1<<53))
	if n < 1 || n > 1<<16 {
		return 0
	}
	if s.Level == 0 || s.Level == -1 {
		if present < int(n) {
			return 0
		}
		per = least // zones of members of different size are not counted
	}
	if c := int64(s.Chunk); c > 0 && s.Level != 1 {
		per -= per % c
	}
	switch s.Level {
	case 1:
		return per
	case 4, 5:
		return per * (n - 1)
	case 6:
		return per * max(n-2, 0)
	case 10:
		copies := int64(s.Layout&0xff) * int64(s.Layout>>8&0xff)
		if copies < 1 {
			return 0
		}
		size := per * n / copies
		if c := int64(s.Chunk); c > 0 {
			size -= size % c
		}
		return size
	case 0, -1:
		return per * n
	}
	return 0
}

// AddTo adds arrays to a list of disks, as in ironic-python-agent's inventory: running arrays, and those that a
// deployment would start. Their member disks stay in the list, marked as such.
func AddTo(disks []disk.Disk, arrays []Known) []disk.Disk {
	out := slices.Clone(disks)
	for _, a := range arrays {
		stands := a.State != NotStarted && a.State != Incomplete && a.State != "inactive" || a.ours
		// containers hold arrays, but are none
		if !stands || a.Metadata == "external:imsm" || a.Metadata == "external:ddf" {
			continue
		}
		d := disk.Disk{Name: a.Name, Serial: a.UUID, Vendor: "Linux", Size: a.Size, LogicalSectors: 512,
			PhysicalSectors: 512,
			Model: strings.TrimSpace("Software RAID " + strings.ReplaceAll(a.Level, "1+0", "10") + " " +
				a.Volume)}
		for _, p := range a.Members {
			for i := range out {
				o := &out[i]
				if o.Name != p.Disk &&
					!slices.ContainsFunc(o.Paths, func(w disk.Path) bool { return w.Name == p.Disk }) {
					continue
				}
				if id := cmp.Or(a.UUID, a.Name); !slices.Contains(o.MemberOf, id) {
					o.MemberOf = append(slices.Clone(o.MemberOf), id)
				}
				d.Rotational = d.Rotational || o.Rotational
				d.LogicalSectors, d.PhysicalSectors = max(d.LogicalSectors, o.LogicalSectors),
					max(d.PhysicalSectors, o.PhysicalSectors)
			}
		}
		if a.State == Incomplete || a.Size == 0 ||
			slices.ContainsFunc(out, func(o disk.Disk) bool { return o.Name == a.Name }) {
			continue // unreadable
		}
		dir := filepath.Join(a.root, "sys/block", strings.ReplaceAll(strings.TrimPrefix(a.Name, "/dev/"), "/", "!"))
		if n, err := strconv.Atoi(text(filepath.Join(dir, "queue/logical_block_size"))); err == nil {
			d.LogicalSectors = n
		}
		if n, err := strconv.Atoi(text(filepath.Join(dir, "queue/physical_block_size"))); err == nil {
			d.PhysicalSectors = n
		}
		d.ReadOnly, d.Number = text(filepath.Join(dir, "ro")) == "1", text(filepath.Join(dir, "dev"))
		out = append(out, d)
	}
	return out
}
