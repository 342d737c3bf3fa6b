package raid

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

func example() superblock {
	return superblock{UUID: uuid.New(), Name: mark + "root", Level: 1, Members: 2, Size: 4096, Data: 4096,
		Offset: dataSector, Number: 1, Device: uuid.New(), Created: time.Unix(1700000000, 0).UTC(), Events: 1}
}

func TestSuperblock(t *testing.T) {
	s := example()
	got, err := parseSuperblock(s.encode())
	if err != nil {
		t.Fatal(err)
	}
	want := s
	want.Role, want.Roles = 1, got.Roles
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("a superblock comes back different (-want +got):\n%s", d)
	}
	if len(got.Roles) != maxMembers || got.roleOf(0) != 0 || got.roleOf(2) != roleSpare ||
		got.roleOf(maxMembers) != roleSpare {
		t.Errorf("its roles are %v", got.Roles)
	}
	b := s.encode()
	b[80] ^= 1
	if _, err := parseSuperblock(b); err == nil {
		t.Error("a damaged superblock was taken")
	}
}

// blkid and mdadm read the intended values from a superblock.
func TestSuperblockForOthers(t *testing.T) {
	kit.NeedPrograms(t, "blkid")
	file := kit.TempDisk(t, 8*mib)
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := example()
	if _, err := f.WriteAt(s.encode(), superSector*512); err != nil {
		t.Fatal(err)
	}
	out := kit.Run(t, "blkid", "-p", "-o", "export", file)
	for _, want := range []string{"TYPE=linux_raid_member", "VERSION=1.2", "LABEL=ingot:root",
		"UUID=" + uuidText(s.UUID), "UUID_SUB=" + uuidText(s.Device)} {
		if !strings.Contains(strings.ReplaceAll(out, `\:`, ":"), want+"\n") {
			t.Errorf("blkid says\n%s\nwithout %s", out, want)
		}
	}
}

// The bytes of the boot record are those of its source.
func TestBootRecord(t *testing.T) {
	kit.NeedPrograms(t, "as", "ld")
	dir := t.TempDir()
	object, binary := filepath.Join(dir, "shift.o"), filepath.Join(dir, "shift.bin")
	kit.Run(t, "as", "--32", "testdata/shift.S", "-o", object)
	if out, err := exec.CommandContext(t.Context(), "ld", "-m", "elf_i386", "-Ttext", "0", "--oformat", "binary", "-e",
		"start", object, "-o", binary).CombinedOutput(); err != nil {
		t.Fatalf("ld: %v\n%s", err, out)
	}
	want, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if got := bootRecord(0); !bytes.Equal(got, want) {
		t.Errorf("the boot record has %d bytes that differ from testdata/shift.S, assembled: %x, want %x", len(got),
			got, want)
	}
	if got := bootRecord(0x1122334455); !bytes.Equal(got[bootOffset:], []byte{0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0}) ||
		len(got) != bootCodeSize {
		t.Errorf("the record's sector is %x", got[bootOffset:])
	}
}

func TestPlan(t *testing.T) {
	disks := func(gib ...int64) (out []disk.Disk) {
		for i, n := range gib {
			out = append(out,
				disk.Disk{Name: "/dev/sd" + string(rune('a'+i)), Serial: string(rune('A' + i)), Size: n << 30,
					LogicalSectors: 512, Rotational: i > 1})
		}
		return out
	}
	for _, c := range []struct {
		name, config string
		disks        []disk.Disk
		want         []string // name, size in MiB, members
		err          string
	}{
		{name: "all of two", config: `[{"raid_level":"1","size_gb":"MAX"}]`, disks: disks(10, 10),
			want: []string{"volume0 9687 sda@551 sdb@551"}},
		{name: "the smaller decides", config: `[{"raid_level":"1","size_gb":"MAX"}]`, disks: disks(10, 5),
			want: []string{"volume0 4567 sda@551 sdb@551"}},
		{name: "two arrays",
			config: `[{"raid_level":"1","size_gb":4,"volume_name":"root","is_root_volume":true},{"raid_level":"5","size_gb":"MAX"}]`, disks: disks(10, 10, 10, 10),
			want: []string{"root 4096 sda@551 sdb@551 sdc@551 sdd@551",
				"volume1 16770 sda@4648 sdb@4648 sdc@4648 sdd@4648"}},
		{name: "by hints",
			config: `[{"raid_level":"1","size_gb":"MAX","controller":"software","physical_disks":[{"serial":"B"},{"serial":"D"}]}]`, disks: disks(10, 10, 10, 10),
			want: []string{"volume0 9687 sdb@551 sdd@551"}},
		{name: "hints that fit several",
			config: `[{"raid_level":"1","size_gb":"MAX","physical_disks":[{"rotational":true},{"rotational":true}]}]`,
			disks:  disks(10, 10, 10, 10), want: []string{"volume0 9687 sdc@551 sdd@551"}},
		{name: "disks of their own", disks: disks(10, 10, 10, 10, 10),
			want:   []string{"volume0 9687 sda@551 sdb@551", "volume1 19374 sdc@551 sdd@551 sde@551"},
			config: `[{"raid_level":"1","size_gb":"MAX","physical_disks":[{"serial":"A"},{"serial":"B"}]},{"raid_level":"5","size_gb":"MAX","physical_disks":[{"serial":"C"},{"serial":"D"},{"serial":"E"}]}]`},
		{name: "mirrored stripes", config: `[{"raid_level":"1","size_gb":1},{"raid_level":"1+0","size_gb":10}]`,
			disks: disks(10, 10, 10, 10),
			want: []string{"volume0 1024 sda@551 sdb@551 sdc@551 sdd@551",
				"volume1 10240 sda@1576 sdb@1576 sdc@1576 sdd@1576"}},

		{name: "no memory stick", config: `[{"raid_level":"1","size_gb":"MAX"}]`,
			disks: append(disks(10, 10),
				disk.Disk{Name: "/dev/sdz", Size: 8 << 30, LogicalSectors: 512, Removable: true}),
			want: []string{"volume0 9687 sda@551 sdb@551"}},

		{name: "none", config: `[]`, disks: disks(10, 10), err: "one or two"},
		{name: "three", config: `[{"raid_level":"1","size_gb":1},{"raid_level":"1","size_gb":1},{"raid_level":"1","size_gb":1}]`, disks: disks(10, 10), err: "one or two"},
		{name: "first no mirror", config: `[{"raid_level":"5","size_gb":"MAX"}]`, disks: disks(10, 10, 10),
			err: "must be of level 1"},
		{name: "second is root",
			config: `[{"raid_level":"1","size_gb":1},{"raid_level":"0","size_gb":1,"is_root_volume":true}]`,
			disks:  disks(10, 10), err: "root volume must be the first"},
		{name: "unknown level", config: `[{"raid_level":"1","size_gb":1},{"raid_level":"2","size_gb":1}]`,
			disks: disks(10, 10), err: "level \"2\""},
		{name: "hardware", config: `[{"raid_level":"1","size_gb":1,"controller":"RAID.Integrated.1-1"}]`,
			disks: disks(10, 10), err: "not software"},
		{name: "too large", config: `[{"raid_level":"1","size_gb":10}]`, disks: disks(10, 10), err: "10240 are needed"},
		{name: "no room for the second", config: `[{"raid_level":"1","size_gb":9},{"raid_level":"0","size_gb":1}]`,
			disks: disks(10, 10), err: "logical disk 2"},
		{name: "one disk", config: `[{"raid_level":"1","size_gb":"MAX"}]`, disks: disks(10), err: "made of 1 disks"},
		{name: "odd", config: `[{"raid_level":"1","size_gb":1},{"raid_level":"1+0","size_gb":"MAX"}]`,
			disks: disks(10, 10, 10, 10, 10), err: "made of 5 disks"},
		{name: "MAX first", config: `[{"raid_level":"1","size_gb":"MAX"},{"raid_level":"0","size_gb":1}]`,
			disks: disks(10, 10), err: "MAX"},
		{name: "no such disk",
			config: `[{"raid_level":"1","size_gb":1,"physical_disks":[{"serial":"A"},{"serial":"Z"}]}]`,
			disks:  disks(10, 10), err: "no disk fits"},
		{name: "size", config: `[{"raid_level":"1","size_gb":"most"}]`, disks: disks(10, 10), err: "neither a number"},
		{name: "twins", config: `[{"raid_level":"1","size_gb":1,"volume_name":"a"},{"raid_level":"1","size_gb":1,"volume_name":"a"}]`, disks: disks(10, 10), err: "the name a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config Config
			if err := json.Unmarshal([]byte(`{"logical_disks":`+c.config+`}`), &config); err != nil {
				t.Fatal(err)
			}
			arrays, err := plan(config, c.disks)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || step.AsError(err).Remedy == "" {
					t.Errorf("plan = %v, want an error with %q and a remedy", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			ends := map[string]int64{}
			for _, a := range arrays {
				line := a.name + " " + itoa(a.size/mib)
				for _, m := range a.members {
					line += " " + filepath.Base(m.disk.Name) + "@" + itoa(m.start/mib)
					if m.start < ends[m.disk.Name] || m.start+m.size > m.disk.Size-mib || m.start < firstMiB+espSize {
						t.Errorf("%s lies over something else", line)
					}
					ends[m.disk.Name] = m.start + m.size
				}
				got = append(got, line)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("plan (-want +got):\n%s", d)
			}
		})
	}
}

func itoa(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// A disk gets its table, its boot record, and its superblocks; one that holds something else is refused.
func TestDivide(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		m := fake.NewMachine(t.TempDir())
		const size = 2 << 30
		for _, n := range []string{"sda", "sdb"} {
			m.Add(fake.DiskSpec{Name: n, Bus: "scsi", Size: size, Serial: n, SectorSize: sector})
		}
		disks, err := disk.List(t.Context(), m.Root())
		if err != nil {
			t.Fatal(err)
		}
		arrays, err := plan(
			Config{[]LogicalDisk{{Level: "1", Size: json.RawMessage("1")},
				{Level: "0", Size: json.RawMessage(`"MAX"`)}}}, disks)
		if err != nil {
			t.Fatal(err)
		}
		uuids := [][16]byte{uuid.New(), uuid.New()}
		for i, name := range []string{"sda", "sdb"} {
			if err := divide(t.Context(), m, disks[i], arrays, uuids, time.Now()); err != nil {
				t.Fatal(err)
			}
			dev, err := m.OpenExclusive(t.Context(), "/dev/"+name)
			if err != nil {
				t.Fatal(err)
			}
			kind, parts, err := disk.ReadTable(dev)
			if kind != "gpt" || err != nil || len(parts) != 3 || !ours(parts) || parts[0].Type != disk.TypeESP ||
				parts[1].Type != disk.TypeRAID {
				t.Fatalf("%s: table %s, %+v, %v", name, kind, parts, err)
			}
			for k, p := range parts[1:] {
				b := make([]byte, superSize)
				if _, err := dev.ReadAt(b, p.Start+superSector*512); err != nil {
					t.Fatal(err)
				}
				s, err := parseSuperblock(b)
				if err != nil || s.UUID != uuids[k] || int(s.Role) != i || int64(s.Data+s.Offset)*512 != p.Size {
					t.Errorf("%s, array %d: %+v, %v", name, k, s, err)
				}
			}
			head := make([]byte, 4096)
			if _, err := dev.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			if want := bootRecord(uint64(parts[1].Start+mib) / uint64(sector)); !bytes.Equal(head[:bootCodeSize],
				want) {
				t.Error("the boot record is missing")
			}
			dev.Close()
			if err := divide(t.Context(), m, disks[i], arrays, uuids, time.Now()); err != nil {
				t.Errorf("a second time: %v", err)
			}
		}
		if err := removeFrom(t.Context(), m, disks[0]); err != nil {
			t.Fatal(err)
		}
		dev, err := m.OpenExclusive(t.Context(), "/dev/sda")
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range arrays {
			for _, at := range []int64{0, a.members[0].start, a.members[0].start + a.members[0].size - mib,
				size - mib} {
				b := make([]byte, mib)
				if _, err := dev.ReadAt(b, at); err != nil {
					t.Fatal(err)
				}
				if bytes.Count(b, []byte{0}) != len(b) {
					t.Errorf("the removal left something at byte %d", at)
				}
			}
		}
		if err := disk.WriteTable(t.Context(), dev, nil,
			[]disk.NewPartition{{Name: "data", Type: disk.TypeRAID, Start: mib, Size: mib}}); err != nil {
			t.Fatal(err)
		}
		dev.Close()
		if err := divide(t.Context(), m, disks[0], arrays, uuids, time.Now()); err == nil ||
			!strings.Contains(step.AsError(err).Remedy, "erase_devices_metadata") {
			t.Errorf("a disk with somebody's table: %v", err)
		}
		if err := removeFrom(t.Context(), m, disks[0]); err != nil {
			t.Fatal(err)
		}
		if dev, err = m.OpenExclusive(t.Context(), "/dev/sda"); err != nil {
			t.Fatal(err)
		}
		if _, parts, err := disk.ReadTable(dev); err != nil || len(parts) != 1 {
			t.Errorf("delete_configuration touched somebody's disk: %+v, %v", parts, err)
		}
		dev.Close()
	}
}

func FuzzSuperblock(f *testing.F) {
	s := example()
	f.Add(s.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSuperblock(b)
		if err == nil && s.Number < s.Members && s.Role == 0 && len(b) < superSize {
			t.Error("a short superblock was taken")
		}
		// Behind a checksum that is right, everything else may be wrong.
		p := make([]byte, superSize)
		copy(p, b)
		e := example()
		copy(p, e.encode()[:8])
		copy(p[144:152], e.encode()[144:152])
		p[221], p[222], p[223] = p[221]&7, 0, 0
		roles := int(p[220]) | int(p[221])<<8
		if roles > (superSize-256)/2 {
			return
		}
		sum := superSum(p, roles)
		p[216], p[217], p[218], p[219] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		if _, err := parseSuperblock(p); err != nil {
			t.Errorf("a sound superblock was refused: %v", err)
		}
	})
}
