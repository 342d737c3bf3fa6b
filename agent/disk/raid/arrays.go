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
	"sort"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// Machine is the part of the machine that this package uses.
type Machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	ReadRaw(ctx context.Context, path string, p []byte, off int64) error
	LoadModule(ctx context.Context, name string) error
	Settle(ctx context.Context) error
}

// mark is the prefix of our arrays' names, where mdadm writes the host's name.
const mark = "ingot:"

// Array is an array assembled in the kernel.
type Array struct {
	Name   string // "/dev/md0"
	UUID   string // as the kernel writes it
	Volume string // its name in the superblock
	Level  string
}

// found is a partition with a member's superblock.
type found struct {
	superblock
	partition string // "sda2"
	number    string // "8:2"
	held      bool   // in use by an array
}

// look reads the superblocks of all partitions of all disks. Read errors are skipped: a broken disk must not hide the
// rest of an array.
func look(ctx context.Context, m Machine) ([]found, error) {
	list, err := os.ReadDir(filepath.Join(m.Root(), "sys/block"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []found
	for _, e := range list {
		if !disk.Candidate(e.Name()) {
			continue
		}
		parts, _ := filepath.Glob(filepath.Join(m.Root(), "sys/block", e.Name(), "*", "partition"))
		for _, p := range parts {
			dir := filepath.Dir(p)
			buf := make([]byte, 2*superSize)
			if err := m.ReadRaw(ctx, "/dev/"+filepath.Base(dir), buf, 0); err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				continue
			}
			s, err := parseSuperblock(buf[superSector*512:])
			if err != nil || !strings.HasPrefix(s.Name, mark) {
				continue
			}
			holders, _ := os.ReadDir(filepath.Join(dir, "holders"))
			out = append(out, found{s, filepath.Base(dir), text(filepath.Join(dir, "dev")), len(holders) > 0})
		}
	}
	return out, nil
}

func text(file string) string {
	b, _ := os.ReadFile(file)
	return strings.TrimSpace(string(b))
}

// running lists the assembled arrays in sysfs whose members have our mark, by name.
func running(root string) ([]Array, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "sys/block/md*/md"))
	if err != nil {
		return nil, err
	}
	var out []Array
	for _, d := range dirs {
		if text(filepath.Join(d, "array_state")) == "clear" || text(filepath.Join(d, "metadata_version")) != "1.2" {
			continue
		}
		out = append(out, Array{Name: "/dev/" + filepath.Base(filepath.Dir(d)), UUID: text(filepath.Join(d, "uuid")),
			Level: strings.TrimPrefix(text(filepath.Join(d, "level")), "raid")})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// Assemble assembles every array of ours, with missing members too if its level allows that, and returns the running
// ones.
func Assemble(ctx context.Context, m Machine) ([]Array, error) {
	members, err := look(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("look for arrays: %w", err)
	}
	groups := map[[16]byte][]found{}
	for _, f := range members {
		groups[f.UUID] = append(groups[f.UUID], f)
	}
	var ids [][16]byte
	for id := range groups {
		if !slices.ContainsFunc(groups[id], func(f found) bool { return f.held }) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b [16]byte) int {
		return strings.Compare(groups[a][0].partition, groups[b][0].partition)
	})
	for _, id := range ids {
		if err := start(ctx, m, groups[id]); err != nil {
			return nil, err
		}
	}
	all, err := running(m.Root())
	if err != nil {
		return nil, err
	}
	out := all[:0]
	for _, a := range all {
		i, err := a.memberIn(m.Root(), members)
		if err != nil {
			return nil, err
		}
		if i < 0 {
			continue
		}
		a.UUID, a.Volume = uuidText(members[i].UUID), strings.TrimPrefix(members[i].Name, mark)
		out = append(out, a)
	}
	return out, nil
}

// memberIn is which of the partitions belongs to the array, or -1: older kernels show no UUID.
func (a Array) memberIn(root string, members []found) (int, error) {
	list, err := disk.Members(root, a.Name)
	return slices.IndexFunc(members, func(f found) bool {
		return slices.ContainsFunc(list, func(p disk.Member) bool { return p.Partition == "/dev/"+f.partition })
	}), err
}

const appears = 30 * time.Second // for a requested device

// start assembles one array under the first free number.
func start(ctx context.Context, m Machine, members []found) (err error) {
	what := func(err error) error {
		return step.Fail(
			"see the kernel log for messages of md; delete_configuration removes the array, create_configuration creates it again",
			fmt.Errorf("put array %s together: %w", strings.TrimPrefix(members[0].Name, mark), err))
	}
	ask := filepath.Join(m.Root(), "sys/module/md_mod/parameters/new_array")
	if _, err := os.Stat(ask); err != nil {
		if err := m.LoadModule(ctx, "md_mod"); err != nil {
			return step.Fail(
				"build the ramdisk with the profile server, or add the modules md_mod, raid0, raid1, raid10 and raid456", what(err))
		}
	}
	n := 0
	for exists(filepath.Join(m.Root(), "sys/block", fmt.Sprintf("md%d", n))) {
		n++
	}
	name := fmt.Sprintf("md%d", n)
	if err := put(ask, name); err != nil {
		return what(err)
	}
	md := filepath.Join(m.Root(), "sys/block", name, "md")
	if err := await(ctx, filepath.Join(md, "array_state")); err != nil {
		return what(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, put(filepath.Join(md, "array_state"), "clear"))
		}
	}()
	if err := put(filepath.Join(md, "metadata_version"), "1.2"); err != nil {
		return what(err)
	}
	// The most recent first: the kernel compares the others with it.
	slices.SortFunc(members, func(a, b found) int {
		return cmp.Or(cmp.Compare(b.Events, a.Events), strings.Compare(a.partition, b.partition))
	})
	for _, f := range members {
		if err := put(filepath.Join(md, "new_dev"), f.number); err != nil {
			if f.Events == members[0].Events {
				return what(fmt.Errorf("member %s: %w", f.partition, err))
			}
			continue // a member that dropped out earlier
		}
	}
	if err := put(filepath.Join(md, "array_state"), "active"); err != nil {
		return what(err)
	}
	return nil
}

// stop stops an array; its members keep their superblocks.
func stop(root string, a Array) error {
	err := put(filepath.Join(root, "sys/block", filepath.Base(a.Name), "md/array_state"), "clear")
	if err != nil {
		return step.Fail("see what uses the array (a mount, a volume group) and release it",
			fmt.Errorf("stop %s: %w", a.Name, err))
	}
	return nil
}

func put(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// await waits for a file of sysfs or devtmpfs.
func await(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, appears, fmt.Errorf("%s does not appear", path))
	defer cancel()
	for !exists(path) {
		if err := step.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Disks lists the candidates for an operating system: the machine's disks, with arrays in place of their members.
// Arrays are assembled first. An array is identified by its UUID, which is used as its serial number.
func Disks(ctx context.Context, m Machine) ([]disk.Disk, error) {
	disks, err := disk.List(ctx, m.Root())
	if err != nil {
		return nil, err
	}
	arrays, err := Assemble(ctx, m)
	if err != nil || len(arrays) == 0 {
		return disks, err
	}
	for _, a := range arrays {
		members, err := disk.Members(m.Root(), a.Name)
		if err != nil {
			return nil, err
		}
		d := describe(m.Root(), a)
		disks = slices.DeleteFunc(disks, func(o disk.Disk) bool {
			is := slices.ContainsFunc(members, func(p disk.Member) bool { return p.Disk == o.Name })
			d.Rotational = d.Rotational || is && o.Rotational
			return is
		})
		disks = append(disks, d)
	}
	// A disk that dropped out of its array is not a candidate either: its data is stale, and its table is an array's.
	left, err := look(ctx, m)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(disks, func(d disk.Disk) bool {
		return slices.ContainsFunc(left, func(f found) bool {
			return exists(filepath.Join(m.Root(), "sys/block", filepath.Base(d.Name), f.partition))
		})
	}), nil
}

func describe(root string, a Array) disk.Disk {
	dir := filepath.Join(root, "sys/block", filepath.Base(a.Name))
	number := func(name string, otherwise int64) int64 {
		return cmp.Or(disk.ParseNumber(text(filepath.Join(dir, name))), otherwise)
	}
	return disk.Disk{Name: a.Name, Serial: a.UUID, Model: "Software RAID " + a.Level + " " + a.Volume, Vendor: "Linux",
		Size: 512 * number("size", 0), LogicalSectors: int(number("queue/logical_block_size", 512)),
		PhysicalSectors: int(number("queue/physical_block_size", 512)), ReadOnly: number("ro", 0) == 1,
		Number: text(filepath.Join(dir, "dev"))}
}
