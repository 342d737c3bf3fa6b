package disk

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

// say writes what the kernel says of a path.
func say(t *testing.T, m *fake.Disks, disk, file, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.Root(), "sys/block", disk, "device", file), []byte(content+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
}

// twoPaths returns a machine with a volume of an array on two paths, and a local disk.
func twoPaths(t *testing.T) *fake.Disks {
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "sda", Size: 30 << 30, Bus: "scsi", Vendor: "LIO-ORG", Model: "vol", Serial: "V1",
		WWN: "6001405f00000001000000000000beef"})
	m.Add(fake.DiskSpec{Name: "sdb", Size: 20 << 30, Bus: "scsi", Vendor: "LIO-ORG", Model: "vol", Serial: "V2",
		WWN: "6001405f00000001000000000000bee0"})
	m.Add(fake.DiskSpec{Name: "sdc", Size: 30 << 30, Bus: "scsi", Vendor: "LIO-ORG", Model: "vol", Serial: "V1",
		WWN: "6001405f00000001000000000000beef"})
	return m
}

func TestPathsAreOneDisk(t *testing.T) {
	for name, c := range map[string]struct {
		sda, sdc [2]string // state, access
		used     string
	}{
		"alike": {[2]string{"running", ""}, [2]string{"running", ""}, "/dev/sda"},
		"the array prefers other": {[2]string{"running", "active/non-optimized"},
			[2]string{"running", "active/optimized"}, "/dev/sdc"},
		"one is gone": {[2]string{"transport-offline", "active/optimized"}, [2]string{"running", "standby"},
			"/dev/sdc"},
	} {
		m := twoPaths(t)
		for disk, s := range map[string][2]string{"sda": c.sda, "sdc": c.sdc} {
			say(t, m, disk, "state", s[0])
			say(t, m, disk, "access_state", s[1])
		}
		disks, err := List(t.Context(), m.Root())
		if err != nil {
			t.Fatal(err)
		}
		if len(disks) != 2 {
			t.Fatalf("%s: %d disks, want 2: %v", name, len(disks), disks)
		}
		d := disks[0]
		if d.Serial != "V1" {
			d = disks[1]
		}
		if d.Name != c.used || len(d.Paths) != 2 || d.Paths[0].Name != c.used || d.Paths[1].Name == c.used ||
			d.ByPath == "" {
			t.Errorf("%s: %+v, want %s used", name, d, c.used)
		}
		// It is found by any of its paths, and survives the JSON.
		for _, hint := range []string{`{"name":"/dev/sda"}`, `{"name":"/dev/sdc"}`, `{"by_path":"` + d.Paths[1].ByPath +
			`"}`, `{"hctl":"` + d.Paths[1].HCTL + `"}`} {
			h, err := ParseHints(json.RawMessage(hint))
			if err != nil {
				t.Fatal(err)
			}
			if choice, err := Choose(disks, h); err != nil || choice.Disk.Name != c.used {
				t.Errorf("%s: %s chooses %v, %v", name, hint, choice.Disk, err)
			}
		}
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var back Disk
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		back.Number = d.Number
		if diff := cmp.Diff(d, back); diff != "" {
			t.Errorf("%s: JSON and back (-want +got):\n%s", name, diff)
		}
	}
}

// TestWriteWhenAPathFails: a disk chosen while it had two paths is the same disk when the one that was used has gone.
func TestWriteWhenAPathFails(t *testing.T) {
	m := twoPaths(t)
	disks, err := List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	want := disks[0].Identity()
	if want.Serial != "V1" {
		t.Fatalf("the first disk is %v", disks[0])
	}
	dev, d, err := OpenVerified(t.Context(), m, want)
	if err != nil || d.Name != "/dev/sda" {
		t.Fatalf("open: %v, %v", d, err)
	}
	dev.Close()
	say(t, m, "sda", "state", "offline")
	if dev, d, err = OpenVerified(t.Context(), m, want); err != nil || d.Name != "/dev/sdc" {
		t.Fatalf("open over the other path: %v, %v", d, err)
	}
	dev.Close()
	m.Remove("sda")
	if dev, d, err = OpenVerified(t.Context(), m, want); err != nil || d.Name != "/dev/sdc" {
		t.Fatalf("open over the last path: %v, %v", d, err)
	}
	dev.Close()
}

// TestTwinsAreNotPaths: what only looks like two paths stays two disks, and nothing is written on either.
func TestTwinsAreNotPaths(t *testing.T) {
	for name, specs := range map[string][2]fake.DiskSpec{
		"serial alone": {{Bus: "scsi", Vendor: "QEMU", Serial: "V1"}, {Bus: "scsi", Vendor: "QEMU", Serial: "V1"}},
		"SATA": {{Bus: "sata", Serial: "S", WWN: "5000c500a1b2c3d4"},
			{Bus: "sata", Serial: "S", WWN: "5000c500a1b2c3d4"}},
		"made-up name": {{Bus: "nvme", Serial: "N", WWN: "nvme.1b36-4e-51-00000001"},
			{Bus: "nvme", Serial: "N", WWN: "nvme.1b36-4e-51-00000001"}},
	} {
		m := fake.NewDisks(t.TempDir())
		for i, s := range specs {
			s.Name, s.Size = "sd"+string(rune('a'+i)), 30<<30
			if s.Bus == "nvme" {
				s.Name = "nvme" + string(rune('0'+i)) + "n1"
			}
			m.Add(s)
		}
		disks, err := List(t.Context(), m.Root())
		if err != nil || len(disks) != 2 {
			t.Fatalf("%s: %v, %v", name, disks, err)
		}
		if choice, err := Choose(disks, nil); err == nil {
			t.Errorf("%s: %v is chosen", name, choice.Disk)
		}
		want := disks[0].Identity()
		want.ByPath = disks[1].ByPath
		_, _, err = OpenVerified(t.Context(), m, disks[0].Identity())
		if name == "serial alone" && err != nil {
			t.Errorf("%s: the one at the place that was chosen: %v", name, err)
		}
	}
	// Without places to tell them apart they are refused.
	twins := []Disk{{Name: "/dev/sda", Serial: "V1", Size: 30 << 30}, {Name: "/dev/sdb", Serial: "V1", Size: 30 << 30}}
	_, err := Find(twins, twins[0].Identity())
	var e *step.Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "ambiguous") {
		t.Errorf("Find = %v", err)
	}
	// A world wide name that two serial numbers share is a lie of the firmware.
	liars := joinPaths(t.TempDir(),
		[]Disk{{Name: "/dev/sda", Serial: "V1", WWNWithExtension: "0x5000c500a1b2c3d4"},
			{Name: "/dev/sdb", Serial: "V2", WWNWithExtension: "0x5000c500a1b2c3d4"}})
	if len(liars) != 2 {
		t.Errorf("joined: %v", liars)
	}
}
