package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestRAIDBoots makes arrays of every level in a machine, deploys an image onto a RAID 1, and starts it with either
// disk removed, by BIOS and by UEFI, whose variables know no entry.
func TestRAIDBoots(t *testing.T) {
	kit.NeedPrograms(t, "apt-get", "apt-cache", "go", "qemu-system-x86_64")
	img := made.Image(t, made.Tiny)
	agent := filepath.Join(t.TempDir(), "agent")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "./testdata/raidvm")
	overlay := t.TempDir()
	if err := os.Mkdir(filepath.Join(overlay, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(img.Zst)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(overlay, "images", "tiny.zst"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := build.Build(t.Context(),
		build.Options{Profile: "lab", Out: t.TempDir(), Agent: agent, Overlay: []string{overlay},
			Modules: []string{"md_mod", "raid0", "raid1", "raid10", "raid456"}})
	if err != nil {
		t.Fatal(err)
	}
	const size = 5 << 30 // sparse; the smallest root disk has 4 GiB
	var disks, args []string
	for i := range 4 {
		d := kit.TempDisk(t, size)
		disks = append(disks, d)
		args = append(args, "-drive", fmt.Sprintf("if=none,format=raw,cache=unsafe,id=d%d,file=%s", i, kit.Quote(d)),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=d%d,serial=d%d", i, i))
	}
	console := kit.Boot(t, kit.VM{UEFI: true, MemoryMiB: 1024, Args: args, Until: `VM END`, Timeout: 15 * time.Minute,
		Kernel: filepath.Join(r.Dir, r.Manifest.Kernel.File), Initrd: filepath.Join(r.Dir, r.Manifest.Initramfs.File),
		Append: r.Manifest.Cmdline})
	said := map[string][]string{}
	for line := range strings.Lines(console) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "VM "); ok {
			what, v, _ := strings.Cut(rest, " ")
			said[what] = append(said[what], v)
		}
	}
	if said["FAILED"] != nil {
		t.Fatalf("%s\nconsole:\n%s", said["FAILED"], console)
	}
	if len(said["LEVEL"]) != 4 || len(said["LEFT"]) != 4 || len(said["RUNNING"]) != 4 || len(said["STOPPED"]) != 4 ||
		len(said["PREPARED"]) != 1 {
		t.Fatalf("the machine said %v", said)
	}
	type seen struct {
		Name, Model, Serial string
		Size                int64
	}
	// The rest of 5 GiB after the first MiB, the EFI system partition, the last MiB, and the first array with its own
	// MiB.
	const per = 5<<10 - 1 - 550 - 1 - 1025 - 1
	for i, members := range []int64{4, 2, 3, 2} {
		var l struct {
			Level string
			Made  struct {
				Config struct {
					Disks []struct {
						Level   string   `json:"raid_level"`
						Members []string `json:"physical_disks"`
						UUID    string
						Name    string `json:"volume_name"`
					} `json:"logical_disks"`
				} `json:"raid_config"`
				Root map[string]string `json:"root_device"`
			}
			Disks, Again []seen
		}
		if err := json.Unmarshal([]byte(said["LEVEL"][i]), &l); err != nil {
			t.Fatal(err)
		}
		made := l.Made.Config.Disks
		if len(made) != 2 || made[0].Level != "1" || made[0].Name != "root" || made[1].Level != l.Level ||
			len(made[1].Members) != 4 || l.Made.Root["serial"] != made[0].UUID {
			t.Errorf("made %+v", l.Made)
			continue
		}
		if len(l.Disks) != 2 || l.Disks[0].Size != 1<<30 || l.Disks[1].Size != members*per<<20 ||
			l.Disks[1].Serial != made[1].UUID {
			t.Errorf("level %s: the disks are %+v, want 1 GiB and %d MiB", l.Level, l.Disks, members*per)
		}
		if fmt.Sprint(l.Again) != fmt.Sprint(l.Disks) {
			t.Errorf("level %s: found again as %+v, was %+v", l.Level, l.Again, l.Disks)
		}
		checkInventory(t, l.Level, said["RUNNING"][i], true, made[0].UUID, made[1].UUID)
		checkInventory(t, l.Level, said["STOPPED"][i], false, made[0].UUID, made[1].UUID)
		var left []seen
		if err := json.Unmarshal([]byte(said["LEFT"][i]), &left); err != nil || len(left) != 4 || left[0].Size != size {
			t.Errorf("level %s: after delete_configuration there is %+v (%v)", l.Level, left, err)
		}
	}
	var prepared struct {
		Entries []struct{ Label, Partition string } `json:"boot_entries"`
	}
	if err := json.Unmarshal([]byte(said["PREPARED"][0]), &prepared); err != nil || len(prepared.Entries) != 2 ||
		prepared.Entries[0].Partition == prepared.Entries[1].Partition {
		t.Errorf("prepared: %s (%v)", said["PREPARED"][0], err)
	}
	for _, uefi := range []bool{false, true} {
		for i := range 2 {
			t.Run(fmt.Sprintf("uefi %v, disk %d alone", uefi, i), func(t *testing.T) {
				efi := map[bool]int{false: 0, true: 1}[uefi]
				kit.Boot(t, kit.VM{UEFI: uefi, MemoryMiB: 512, Disks: disks[i : i+1], Timeout: osLimit,
					Until: fmt.Sprintf(
						`INGOT-TINY .*host=raid-1 .*root=/dev/md0p\d+ cfg=/dev/md0p\d+ efi=%d boots=\d+ raid=raid1 degraded=1`, efi)})
			})
		}
	}
	t.Run("both disks", func(t *testing.T) {
		// Whichever is the fresher is taken; the other has to be put back by hand.
		kit.Boot(t, kit.VM{Disks: disks[:2], Timeout: osLimit, Until: `INGOT-TINY .*root=/dev/md0p\d+ .*raid=raid1`})
	})
}

// checkInventory compares an inspection's data of a mirror and an array of some level over four disks with the created
// ones.
func checkInventory(t *testing.T, level, said string, running bool, uuids ...string) {
	t.Helper()
	var got struct {
		Arrays []struct {
			Name, UUID, State string
			Volume            string `json:"volume_name"`
			Level             string `json:"raid_level"`
			Size              int64
			Devices           int `json:"raid_disks"`
			Degraded          int
			Metadata          string `json:"metadata_version"`
			Ingot             bool   `json:"made_by_ingot"`
			Members           []struct {
				Name, Disk, State string
				Slot              *int
			}
		}
		Disks []struct {
			Name, Serial string
			Size         int64
			MemberOf     []string `json:"member_of"`
		}
		Root   struct{ Name string }
		Errors []string
	}
	if err := json.Unmarshal([]byte(said), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Arrays) != 2 || len(got.Disks) != 6 {
		t.Errorf("level %s, running %v: the inventory is %s", level, running, said)
		return
	}
	for i, a := range got.Arrays {
		if a.UUID != uuids[i] || a.Level != []string{"1", level}[i] || a.Volume != []string{"root", "volume1"}[i] ||
			a.Devices != 4 || a.Degraded != 0 || !a.Ingot || a.Metadata != "1.2" ||
			running == (a.State == "not started") || len(a.Members) != 4 {
			t.Errorf("level %s, running %v: array %d is %+v", level, running, i, a)
			continue
		}
		if d := got.Disks[4+i]; d.Name != a.Name || d.Serial != a.UUID || d.Size != a.Size || d.Size == 0 {
			t.Errorf("level %s, running %v: among the disks the array %+v is %+v", level, running, a, d)
		}
		for _, m := range a.Members {
			state := map[bool]string{true: "in_sync", false: "present"}[running]
			if m.Name != fmt.Sprintf("%s%d", m.Disk, 2+i) || m.State != state || m.Slot == nil {
				t.Errorf("level %s, running %v: member %+v of array %d", level, running, m, i)
			}
		}
	}
	for _, d := range got.Disks[:4] {
		if fmt.Sprint(d.MemberOf) != fmt.Sprint(uuids) {
			t.Errorf("level %s, running %v: the disk %+v is not known as a member", level, running, d)
		}
	}
	// The mirror of 1 GiB is too small, and the disks are taken.
	if got.Root.Name != got.Arrays[1].Name {
		t.Errorf("level %s, running %v: the root disk is %s", level, running, got.Root.Name)
	}
}
