package raid

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Order is a volume to make.
type Order struct {
	// Controller and Collection are paths: of the storage, and of its volumes.
	Controller, Collection string
	Type                   string
	// Bytes is its size; 0: all that there is.
	Bytes  int64    `json:",omitempty"`
	Name   string   `json:",omitempty"`
	Drives []string // paths, sorted
	// Root is the volume for the operating system.
	Root bool `json:",omitempty"`
}

// Matches reports whether a volume may be the one of an order. Names are not compared where drives are: controllers
// shorten them.
func (o Order) Matches(v Volume) bool {
	if len(v.Drives) == 0 { // the controller does not say
		return v.Type == o.Type && (o.Name == "" || v.Name == o.Name)
	}
	return v.Type == o.Type && slices.Equal(slices.Sorted(slices.Values(v.Drives)), o.Drives)
}

// Body is the request for the volume.
func (o Order) Body() map[string]any {
	drives := []map[string]string{}
	for _, d := range o.Drives {
		drives = append(drives, map[string]string{"@odata.id": d})
	}
	body := map[string]any{"RAIDType": o.Type, "Links": map[string]any{"Drives": drives}}
	if o.Bytes > 0 {
		body["CapacityBytes"] = o.Bytes
	}
	if o.Name != "" {
		body["Name"] = o.Name
	}
	return body
}

// wanted is a logical disk of target_raid_config.
type wanted struct {
	number                        int
	level                         Level
	bytes                         int64 // 0: all
	name, media, protocol, holder string
	disks                         []string // IDs; none: any
	count                         int      // of disks; 0: as few as do
	shares, root                  bool
}

// checked reads the logical disks of a configuration that has the form of target_raid_config, and returns an error for
// one that no controller can make.
func checked(config map[string]any) ([]wanted, error) {
	list, _ := config["logical_disks"].([]any)
	var all []wanted
	names := map[string]bool{}
	for i, one := range list {
		d, _ := one.(map[string]any)
		text := func(key string) string { s, _ := d[key].(string); return s }
		w := wanted{number: i + 1, name: text("volume_name"), media: text("disk_type"),
			protocol: text("interface_type"), holder: text("controller"), shares: d["share_physical_disks"] == true,
			root: d["is_root_volume"] == true}
		var known bool
		w.level, known = levelOf(text("raid_level"))
		size, isNumber := exact.Float(d["size_gb"])
		count, _ := exact.Float(d["number_of_physical_disks"])
		w.count = int(count)
		disks, _ := d["physical_disks"].([]any)
		for _, v := range disks {
			id, isText := v.(string)
			if !isText {
				return nil, w.fault("physical_disks are the Ids of drives, as texts")
			}
			if slices.Contains(w.disks, id) {
				return nil, w.fault("physical_disks has %s twice", id)
			}
			w.disks = append(w.disks, id)
		}
		if len(w.disks) > 0 {
			w.count = cmp.Or(w.count, len(w.disks))
		}
		switch {
		case !known:
			return nil, w.fault("a RAID controller has the levels %s, not %s", strings.Join(LevelNames(), ", "),
				text("raid_level"))
		case w.protocol == "scsi":
			return nil, w.fault("interface type `scsi` not supported by Redfish RAID")
		case isNumber && (size < 1 || size > 1<<30):
			return nil, w.fault("a size of %g GiB can't be made", size)
		case w.count != 0 && len(w.disks) > 0 && w.count != len(w.disks):
			return nil, w.fault("number_of_physical_disks is %d, and physical_disks has %d", w.count, len(w.disks))
		case w.count != 0 && (w.count < w.level.least || w.count > w.level.most || w.count%w.level.step != 0):
			return nil, w.fault("RAID level %s can't be made of %d disks: it needs %s", w.level.Name, w.count,
				w.level.needs())
		case w.name != "" && names[w.name]:
			return nil, w.fault("another one has the name %s, too", w.name)
		}
		names[w.name] = true
		w.bytes = int64(size) << 30
		all = append(all, w)
	}
	return all, nil
}

// Check returns an error for a configuration that no controller can make; it has the form of target_raid_config.
func Check(config map[string]any) error {
	_, err := checked(config)
	return err
}

// needs returns the number of disks of a level, for people.
func (l Level) needs() string {
	switch {
	case l.most == l.least:
		return fmt.Sprint(l.least)
	case l.step == 1:
		return fmt.Sprintf("%d or more", l.least)
	}
	return fmt.Sprintf("%d or more, a multiple of %d", l.least, l.step)
}

func (w wanted) fault(format string, args ...any) error {
	return fmt.Errorf("logical disk %d: %s", w.number, fmt.Sprintf(format, args...))
}

// mostTries bounds the search for disks.
const mostTries = 10_000

// space is the room that is left on disks.
type space struct {
	controllers []*Controller
	free        map[string]int64 // by path of the disk
	taken       map[string]bool  // has a volume
	tries       int
}

// Plan chooses disks for the logical disks of a configuration, in their order. Volumes that are there keep their disks,
// but for those in without, which are going to be deleted. root and others say which of the logical disks are to be
// made.
func Plan(controllers []*Controller, config map[string]any, without []string, root, others bool) ([]Order, error) {
	all, err := checked(config)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(w wanted) bool { return w.root && !root || !w.root && !others })
	s := &space{controllers: controllers, free: map[string]int64{}, taken: map[string]bool{}}
	for _, c := range controllers {
		for _, d := range c.Disks {
			s.free[d.Path] = d.Bytes
		}
		for _, v := range c.Volumes {
			if slices.Contains(without, v.Path) || v.Type == "" && len(v.Drives) == 0 {
				continue
			}
			for _, path := range v.Drives {
				s.free[path] -= v.use()
				s.taken[path] = true
			}
		}
	}
	// Those that name their disks come first; of these the ones that take all that is left come last of all.
	order := slices.Clone(all)
	rank := func(w wanted) int {
		switch {
		case len(w.disks) > 0 && w.bytes > 0:
			return 0
		case len(w.disks) == 0:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(order, func(a, b wanted) int { return rank(a) - rank(b) })
	made := map[int]Order{}
	if err := s.place(order, made); err != nil {
		return nil, err
	}
	var orders []Order
	for _, w := range all {
		orders = append(orders, made[w.number])
	}
	return orders, nil
}

// place finds disks for all logical disks of a list. Its error is that of the one that no choice for those before it
// leaves disks for.
func (s *space) place(list []wanted, made map[int]Order) error {
	if len(list) == 0 {
		return nil
	}
	w := list[0]
	options, err := s.options(w)
	if err != nil {
		return err
	}
	var first error
	for _, o := range options {
		if s.tries++; s.tries > mostTries {
			return w.fault("no disks were found for it in %d tries: name them in physical_disks", mostTries)
		}
		undo := s.take(w, o)
		if err = s.place(list[1:], made); err == nil {
			made[w.number] = o
			return nil
		}
		first = cmp.Or(first, err)
		undo()
	}
	return first
}

// take marks the disks of an order as used, and returns the way back.
func (s *space) take(w wanted, o Order) (undo func()) {
	was := map[string]int64{}
	taken := map[string]bool{}
	use := share(o.Bytes, w.level.data(len(o.Drives)))
	for _, path := range o.Drives {
		was[path], taken[path] = s.free[path], s.taken[path]
		s.free[path], s.taken[path] = s.free[path]-use, true
		if o.Bytes == 0 {
			s.free[path] = 0
		}
	}
	return func() {
		for path := range was {
			s.free[path], s.taken[path] = was[path], taken[path]
		}
	}
}

// options are the sets of disks that a logical disk could be made of, the fewest disks first; never none without error.
func (s *space) options(w wanted) (all []Order, err error) {
	reasons := []string{}
	for _, c := range s.controllers {
		if w.holder != "" && w.holder != c.ID {
			continue
		}
		if c.Types != nil && !slices.Contains(c.Types, w.level.Type) {
			reasons = append(reasons, fmt.Sprintf("%s has no level %s", c.ID, w.level.Name))
			continue
		}
		found, reason := s.optionsOf(c, w)
		all = append(all, found...)
		if reason != "" {
			reasons = append(reasons, c.ID+": "+reason)
		}
	}
	slices.SortStableFunc(all, func(a, b Order) int { return len(a.Drives) - len(b.Drives) })
	switch {
	case len(all) > 0:
		return all, nil
	case len(s.controllers) == 0:
		return nil, w.fault("the machine has no RAID controller")
	case len(reasons) == 0:
		var ids []string
		for _, c := range s.controllers {
			ids = append(ids, c.ID)
		}
		return nil, w.fault("there is no controller %s; there are %s", w.holder, strings.Join(ids, ", "))
	}
	return nil, w.fault("%s", strings.Join(reasons, "; "))
}

func (s *space) optionsOf(c *Controller, w wanted) (all []Order, reason string) {
	order := func(disks []Disk) Order {
		o := Order{Controller: c.Path, Collection: c.Collection, Type: w.level.Type, Bytes: w.bytes, Name: w.name,
			Root: w.root}
		for _, d := range disks {
			o.Drives = append(o.Drives, d.Path)
		}
		slices.Sort(o.Drives)
		return o
	}
	if len(w.disks) > 0 {
		var disks []Disk
		for _, id := range w.disks {
			i := slices.IndexFunc(c.Disks, func(d Disk) bool { return d.ID == id })
			if i < 0 {
				return nil, "it has no disk " + id
			}
			disks = append(disks, c.Disks[i])
		}
		if reason := s.fits(w, disks); reason != "" {
			return nil, reason
		}
		return []Order{order(disks)}, ""
	}
	// A volume has disks of one kind.
	kinds := map[string][]Disk{}
	var names []string
	for _, d := range c.Disks {
		if w.media != "" && w.media != d.Media || w.protocol != "" && w.protocol != d.Protocol ||
			s.taken[d.Path] && !w.shares || s.free[d.Path] <= 0 {
			continue
		}
		kind := fmt.Sprint(d.Media, " ", d.Protocol, " ", d.Bytes)
		if kinds[kind] == nil {
			names = append(names, kind)
		}
		kinds[kind] = append(kinds[kind], d)
	}
	reason = fmt.Sprintf("level %s needs %s free disks of one kind", w.level.Name, w.level.needs())
	if w.count > 0 {
		reason = fmt.Sprintf("there are no %d free disks of one kind", w.count)
	}
	if w.media != "" || w.protocol != "" {
		reason += strings.TrimRight(" ("+strings.TrimSpace(w.media+" "+w.protocol), " ") + ")"
	}
	for _, kind := range names {
		disks := kinds[kind]
		// The least room first: it leaves the most for others.
		slices.SortStableFunc(disks, func(a, b Disk) int { return cmp.Compare(s.free[a.Path], s.free[b.Path]) })
		for n := w.level.least; n <= min(len(disks), w.level.most); n += w.level.step {
			if w.count > 0 && n != w.count {
				continue
			}
			why := s.fits(w, disks[:n])
			if why == "" {
				all = append(all, order(disks[:n]))
			} else {
				reason = why
			}
		}
	}
	if len(all) > 0 {
		reason = ""
	}
	return all, reason
}

// fits returns why a logical disk can't be made of these disks; "" if it can.
func (s *space) fits(w wanted, disks []Disk) string {
	left := int64(1) << 62
	for _, d := range disks {
		if s.taken[d.Path] && !w.shares {
			return fmt.Sprintf("disk %s has a volume: delete it first (delete_existing), or set share_physical_disks", d.ID)
		}
		left = min(left, s.free[d.Path])
	}
	room := max(left, 0) * int64(w.level.data(len(disks)))
	switch {
	case room == 0:
		return "the disks are full"
	case w.bytes > room:
		return fmt.Sprintf("level %s has room for %d GiB on %d disks, not for %d GiB", w.level.Name, room>>30,
			len(disks), w.bytes>>30)
	}
	return ""
}
