package raid

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
)

// parted is a machine whose disks have partitions.
type parted struct {
	*fake.Machine
	t     *testing.T
	parts map[string]int64 // "/dev/sda2": where it begins, sectors
}

func newParted(t *testing.T, disks int) *parted {
	t.Helper()
	m := &parted{fake.NewMachine(t.TempDir()), t, map[string]int64{}}
	for i := range disks {
		n := "sd" + string(rune('a'+i))
		m.Add(fake.DiskSpec{Name: n, Bus: "scsi", Size: 8 << 30, Serial: n, Rotational: i == 1})
	}
	return m
}

func (m *parted) file(text string, elem ...string) {
	m.t.Helper()
	path := filepath.Join(append([]string{m.Root(), "sys/block"}, elem...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
		m.t.Fatal(err)
	}
}

// cut makes a partition, from and of a number of sectors.
func (m *parted) cut(on string, number int, start, sectors int64) {
	name := fmt.Sprint(on, number)
	m.parts["/dev/"+name] = start
	m.file(fmt.Sprint(number), on, name, "partition")
	m.file(fmt.Sprint(start), on, name, "start")
	m.file(fmt.Sprint(sectors), on, name, "size")
}

func (m *parted) whole(path string) (string, int64) {
	if start, ok := m.parts[path]; ok {
		return strings.TrimRight(path, "0123456789"), start * 512
	}
	return path, 0
}

func (m *parted) ReadRaw(ctx context.Context, path string, p []byte, off int64) error {
	whole, start := m.whole(path)
	return m.Machine.ReadRaw(ctx, whole, p, start+off)
}

// mark writes a superblock at a sector of a disk or partition.
func (m *parted) mark(path string, s superblock, sector int64) {
	m.t.Helper()
	whole, start := m.whole(path)
	dev, err := m.OpenExclusive(m.t.Context(), whole)
	if err != nil {
		m.t.Fatal(err)
	}
	b := s.encode()
	b[144], b[145], b[146], b[147] = byte(sector), byte(sector>>8), byte(sector>>16), byte(sector>>24)
	sum := superSum(b, maxMembers)
	b[216], b[217], b[218], b[219] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	if _, err := dev.WriteAt(b, start+sector*512); err != nil {
		m.t.Fatal(err)
	}
	if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
		m.t.Fatal(err)
	}
}

// summary returns the compared properties of arrays.
func summary(all []Known) (out []string) {
	for _, a := range all {
		line := fmt.Sprintf("%s %q level %s %d MiB %s %s degraded %d of %d ingot %v:", a.Name, a.Volume, a.Level,
			a.Size>>20, a.Metadata, a.State, a.Degraded, a.Devices, a.Ingot)
		for _, p := range a.Members {
			slot := "-"
			if p.Slot != nil {
				slot = fmt.Sprint(*p.Slot)
			}
			line += fmt.Sprintf(" %s on %s [%s] %s", p.Name, p.Disk, slot, p.State)
		}
		out = append(out, line)
	}
	return out
}

func array1(name string, level int32, members int, sectors uint64) superblock {
	s := superblock{UUID: uuid.New(), Name: name, Level: level, Members: uint32(members), Size: sectors, Data: sectors,
		Offset: dataSector, Created: example().Created, Events: 7, Resync: noResync}
	if level != 1 {
		s.Chunk = chunkSectors
	}
	if level == 10 {
		s.Layout = 0x102
	}
	if level == 0 {
		s.Size = 0
	}
	return s
}

// place puts a superblock onto members, in the order of their slots; "" is one that is missing, and ! before a name one
// with old data.
func (m *parted) place(s superblock, at func(path string) int64, members ...string) {
	m.t.Helper()
	for i, path := range members {
		if path == "" {
			continue
		}
		s := s
		s.Number, s.Device = uint32(i), uuid.New()
		if rest, old := strings.CutPrefix(path, "!"); old {
			path = rest
			s.Events -= 3
		}
		m.mark(path, s, at(path))
	}
}

func v12(string) int64 { return superSector }

func TestSurveyAtRest(t *testing.T) {
	const gib = 1 << 21 // sectors
	old := func(string) int64 { return 0 }
	end := func(n int64) func(string) int64 { return func(string) int64 { return (n - 16) &^ 7 } }
	for _, c := range []struct {
		name  string
		disks int
		make  func(m *parted)
		want  []string
		list  []string // the list of disks, and what they are members of
	}{
		{name: "nothing", disks: 1, list: []string{"/dev/sda"}},
		{name: "ours", disks: 3, make: func(m *parted) {
			for _, d := range []string{"sda", "sdb"} {
				m.cut(d, 1, 2048, gib)
				m.cut(d, 2, 2048+gib, 3*gib)
			}
			m.place(array1("ingot:data", 0, 2, 2*gib+100), v12, "/dev/sda2", "/dev/sdb2")
			m.place(array1("ingot:root", 1, 2, gib-2048), v12, "/dev/sda1", "/dev/sdb1")
		}, want: []string{
			`/dev/md0 "root" level 1 1023 MiB 1.2 not started degraded 0 of 2 ingot true: /dev/sda1 on /dev/sda [0] present /dev/sdb1 on /dev/sdb [1] present`,
			`/dev/md1 "data" level 0 4096 MiB 1.2 not started degraded 0 of 2 ingot true: /dev/sda2 on /dev/sda [0] present /dev/sdb2 on /dev/sdb [1] present`,
		}, list: []string{"/dev/sda in 2", "/dev/sdb in 2", "/dev/sdc", "/dev/md0 Software RAID 1 root rotates",
			"/dev/md1 Software RAID 0 data rotates"}},
		{name: "ours, a member gone", disks: 2, make: func(m *parted) {
			m.cut("sda", 1, 2048, gib)
			m.place(array1("ingot:root", 1, 2, gib-2048), v12, "", "/dev/sda1")
		}, want: []string{
			`/dev/md0 "root" level 1 1023 MiB 1.2 not started degraded 1 of 2 ingot true: /dev/sda1 on /dev/sda [1] present`},
			list: []string{"/dev/sda in 1", "/dev/sdb", "/dev/md0 Software RAID 1 root"}},
		{name: "ours, too many gone", disks: 2, make: func(m *parted) {
			m.cut("sda", 1, 2048, gib)
			m.cut("sdb", 1, 2048, gib)
			m.place(array1("ingot:data", 5, 3, gib-2048), v12, "/dev/sda1", "!/dev/sdb1")
		}, want: []string{
			` "data" level 5 2046 MiB 1.2 incomplete degraded 2 of 3 ingot true: /dev/sda1 on /dev/sda [0] present /dev/sdb1 on /dev/sdb [1] stale`},
			list: []string{"/dev/sda in 1", "/dev/sdb in 1"}},
		{name: "somebody's, whole disks", disks: 4, make: func(m *parted) {
			m.place(array1("box:vault", 6, 4, 4*gib), v12, "/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd")
		}, want: []string{
			` "box:vault" level 6 8192 MiB 1.2 not started degraded 0 of 4 ingot false: /dev/sda on /dev/sda [0] present /dev/sdb on /dev/sdb [1] present ` +
				`/dev/sdc on /dev/sdc [2] present /dev/sdd on /dev/sdd [3] present`},
			list: []string{"/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"}},
		{name: "old places", disks: 4, make: func(m *parted) {
			m.cut("sdc", 1, 2048, gib+5)
			m.cut("sdd", 1, 2048, gib+5)
			m.place(array1("begin", 1, 2, gib), old, "/dev/sda", "/dev/sdb")
			m.place(array1("end", 1, 2, gib-16), end(gib+5), "/dev/sdc1", "/dev/sdd1")
		}, want: []string{
			` "begin" level 1 1024 MiB 1.1 not started degraded 0 of 2 ingot false: /dev/sda on /dev/sda [0] present /dev/sdb on /dev/sdb [1] present`,
			` "end" level 1 1023 MiB 1.0 not started degraded 0 of 2 ingot false: /dev/sdc1 on /dev/sdc [0] present /dev/sdd1 on /dev/sdd [1] present`,
		}, list: []string{"/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"}},
		{name: "mirrored pairs", disks: 4, make: func(m *parted) {
			m.place(array1("ten", 10, 4, gib), v12, "/dev/sda", "", "", "/dev/sdd")
			m.place(array1("none", 10, 4, gib), v12, "", "", "/dev/sdb", "/dev/sdc")
		}, want: []string{
			` "ten" level 1+0 2048 MiB 1.2 not started degraded 2 of 4 ingot false: /dev/sda on /dev/sda [0] present /dev/sdd on /dev/sdd [3] present`,
			` "none" level 1+0 2048 MiB 1.2 incomplete degraded 2 of 4 ingot false: /dev/sdb on /dev/sdb [2] present /dev/sdc on /dev/sdc [3] present`,
		}, list: []string{"/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"}},
		{name: "parity", disks: 4, make: func(m *parted) {
			m.place(array1("even", 5, 3, gib), v12, "/dev/sda", "", "/dev/sdb")
			odd := array1("odd", 5, 3, gib)
			odd.Resync = 4096
			m.place(odd, v12, "/dev/sdc", "/dev/sdd", "")
		}, want: []string{
			` "even" level 5 2048 MiB 1.2 not started degraded 1 of 3 ingot false: /dev/sda on /dev/sda [0] present /dev/sdb on /dev/sdb [2] present`,
			` "odd" level 5 2048 MiB 1.2 incomplete degraded 1 of 3 ingot false: /dev/sdc on /dev/sdc [0] present /dev/sdd on /dev/sdd [1] present`,
		}, list: []string{"/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"}},
		// Half a stripe: what there is of it can't tell how large it was.
		{name: "half", disks: 1, make: func(m *parted) {
			m.place(array1("half", 0, 2, gib), v12, "/dev/sda")
		}, want: []string{
			` "half" level 0 0 MiB 1.2 incomplete degraded 1 of 2 ingot false: /dev/sda on /dev/sda [0] present`},
			list: []string{"/dev/sda"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newParted(t, c.disks)
			if c.make != nil {
				c.make(m)
			}
			all, err := Survey(t.Context(), m.Root(), m.ReadRaw)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, summary(all)); d != "" {
				t.Errorf("arrays (-want +got):\n%s", d)
			}
			checkList(t, m, all, c.list)
		})
	}
}

func checkList(t *testing.T, m *parted, all []Known, want []string) {
	t.Helper()
	disks, err := disk.List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range AddTo(disks, all) {
		line := d.Name
		if strings.Contains(d.Name, "/md") {
			line += " " + d.Model
			if d.Rotational {
				line += " rotates"
			}
			if len(d.Serial) != 36 || d.Size == 0 || d.LogicalSectors == 0 || len(d.MemberOf) != 0 {
				t.Errorf("an array is listed as %+v", d)
			}
		}
		if n := len(d.MemberOf); n > 0 {
			line += fmt.Sprintf(" in %d", n)
		}
		got = append(got, line)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("disks (-want +got):\n%s", d)
	}
}

// runs makes sysfs show an array as the kernel does.
func (m *parted) runs(name string, sectors int64, about map[string]string, members map[string][2]string) {
	m.t.Helper()
	m.file(fmt.Sprint(sectors), name, "size")
	m.file("4096", name, "queue/logical_block_size")
	m.file("9:0", name, "dev")
	for k, v := range about {
		m.file(v, name, "md", k)
	}
	for n, is := range members {
		m.file(is[0], name, "md", "dev-"+n, "slot")
		m.file(is[1], name, "md", "dev-"+n, "state")
		block := filepath.Join(m.Root(), "sys/block", n)
		if whole := strings.TrimRight(n, "0123456789"); whole != n {
			block = filepath.Join(m.Root(), "sys/block", whole, n)
		}
		if err := os.Symlink(block, filepath.Join(m.Root(), "sys/block", name, "md", "dev-"+n, "block")); err != nil {
			m.t.Fatal(err)
		}
	}
}

// Arrays that run are the kernel's to describe; superblocks add the name. One that has lost a member, which came back,
// names it.
func TestSurveyRunning(t *testing.T) {
	const gib = 1 << 21
	m := newParted(t, 4)
	m.cut("sda", 2, 4096, gib)
	m.cut("sdb", 2, 4096, gib)
	root := array1("box:root", 1, 2, gib-2048)
	m.place(root, v12, "/dev/sda2", "!/dev/sdb2")
	m.runs("md127", gib-2048,
		map[string]string{"level": "raid1", "raid_disks": "2", "degraded": "1", "array_state": "active",
			"metadata_version": "1.2", "chunk_size": "0", "sync_action": "recover", "sync_completed": "1024 / 4096"},
		map[string][2]string{"sda2": {"0", "in_sync,write_mostly"}, "sdc": {"none", "spare"}})
	m.runs("md5", 2*gib,
		map[string]string{"level": "raid10", "raid_disks": "4 (3)", "degraded": "0", "array_state": "clean",
			"metadata_version": "0.90", "chunk_size": "65536", "uuid": "01234567-89ab-cdef-0123-456789abcdef",
			"sync_action": "idle", "sync_completed": "none"}, map[string][2]string{"sdd": {"0", "in_sync"}})
	m.runs("md9", 0, map[string]string{"array_state": "clear"}, nil)
	m.runs("md10", 0,
		map[string]string{"array_state": "inactive", "metadata_version": "external:imsm", "level": "container",
			"uuid": "11234567-89ab-cdef-0123-456789abcdef"}, nil)

	const five = `/dev/md5 "" level 1+0 2048 MiB 0.90 clean degraded 0 of 4 ingot false: /dev/sdd on /dev/sdd [0] in_sync`
	const ten = `/dev/md10 "" level container 0 MiB external:imsm inactive degraded 0 of 0 ingot false:`
	all, err := Survey(t.Context(), m.Root(), m.ReadRaw)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(
		[]string{five, ten, `/dev/md127 "box:root" level 1 1023 MiB 1.2 active degraded 1 of 2 ingot false: ` +
			`/dev/sda2 on /dev/sda [0] in_sync,write_mostly /dev/sdc on /dev/sdc [-] spare /dev/sdb2 on /dev/sdb [1] stale`}, summary(all)); d != "" {
		t.Errorf("arrays (-want +got):\n%s", d)
	}
	if a := all[2]; a.UUID != uuidText(root.UUID) || a.Sync == nil || *a.Sync != "recover" || a.Synced == nil ||
		*a.Synced != "1024 / 4096" || all[0].Synced != nil || all[0].ChunkSize != 65536 {
		t.Errorf("the array is %+v, the other %+v", a, all[0])
	}
	checkList(t, m, all,
		[]string{"/dev/sda in 1", "/dev/sdb in 1", "/dev/sdc in 1", "/dev/sdd in 1", "/dev/md5 Software RAID 10",
			"/dev/md127 Software RAID 1 box:root rotates"})

	// Without a way to the disks, and without the right to read them.
	all, err = Survey(t.Context(), m.Root(), nil)
	if err != nil || len(all) != 3 || all[2].Volume != "" || len(all[2].Members) != 2 {
		t.Errorf("with sysfs alone: %v, %v", summary(all), err)
	}
	all, err = Survey(t.Context(), m.Root(),
		func(context.Context, string, []byte, int64) error { return fs.ErrPermission })
	if err == nil || !strings.Contains(err.Error(), "only root") || len(all) != 3 {
		t.Errorf("without rights: %v, %v", summary(all), err)
	}
	// A disk that can't be read hides no other.
	all, err = Survey(t.Context(), m.Root(), func(ctx context.Context, path string, p []byte, off int64) error {
		if path == "/dev/sdb" {
			return errors.New("input/output error")
		}
		return m.ReadRaw(ctx, path, p, off)
	})
	if err == nil || !strings.Contains(err.Error(), "input/output") || len(all) != 3 || all[2].Volume != "box:root" {
		t.Errorf("with a broken disk: %v, %v", summary(all), err)
	}
}

// TestStartableIsBounded: a level 1+0 with two or three copies beside each other starts with one copy of each block,
// and a superblock that claims billions of members costs no memory.
func TestStartableIsBounded(t *testing.T) {
	for want := range 7 {
		for near := range 4 {
			for set := range 1 << want {
				have, groups := map[int]bool{}, map[int]bool{}
				for n := range want {
					if set>>n&1 == 1 {
						have[n] = true
						groups[n/max(near, 1)] = true
					}
				}
				start := want-len(have) < max(near, 1) // where copies overlap
				if near > 1 && want%near == 0 {
					start = want > 0 && len(groups) == want/near
				}
				if got := startable("1+0", uint32(near|0x100), want, have); got != start {
					t.Errorf("%d copies, members %v of %d: startable = %v, want %v", near, have, want, got, start)
				}
			}
		}
	}
	have := map[int]bool{0: true, 2: true, 5: true}
	if n := testing.AllocsPerRun(1, func() {
		if startable("1+0", 0x102, math.MaxUint32-1, have) {
			t.Error("three members of billions start")
		}
	}); n != 0 {
		t.Errorf("startable allocates %v times", n)
	}
}
