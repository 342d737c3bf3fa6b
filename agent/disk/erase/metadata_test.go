package erase

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

func runErase(ctx context.Context, m machine, args string) (string, error) {
	out, err := MetadataStep(m)(ctx,
		&step.Call{Args: json.RawMessage(args), Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{},
			Report: func(step.Progress) {}})
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(out.Result)
	return string(b), err
}

func TestEraseMakesADiskForget(t *testing.T) {
	const size = 96 << 20
	m := fake.NewDisks(t.TempDir())
	f := m.Add(fake.DiskSpec{Name: "vda", Size: size, Serial: "one", Fill: 0x11})
	putGPT(f, size, 512, part{0, 2048, 20480}, part{0, 24576, 160 << 10})
	raid, raidEnd, btrfs := int64(2048*512), int64((2048+20480)*512), int64(24576*512)
	magics := map[string]struct {
		off   int64
		magic string
	}{
		"md 1.2":                   {raid + 4096, "\xfc\x4e\x2b\xa9"},
		"md 1.1":                   {raid, "\xfc\x4e\x2b\xa9"},
		"md 1.0":                   {raidEnd - 8192, "\xfc\x4e\x2b\xa9"},
		"md 0.90":                  {(raidEnd-raid)/65536*65536 - 65536 + raid, "\xfc\x4e\x2b\xa9"},
		"md 0.90 of the disk":      {size - 65536, "\xfc\x4e\x2b\xa9"},
		"btrfs":                    {btrfs + 0x10040, "_BHRfS_M"},
		"btrfs copy":               {btrfs + 64<<20 + 0x40, "_BHRfS_M"},
		"lvm":                      {512, "LABELONE"},
		"ext4":                     {1024 + 56, "\x53\xef"},
		"zfs label at the end":     {size - 256<<10, "\x0c\xb1\xba\x00"},
		"firmware raid at the end": {size - 1024, "Intel Raid ISM Cfg Sig. "},
		"backup gpt":               {size - 512, "EFI PART"},
	}
	for _, s := range magics {
		if _, err := f.WriteAt([]byte(s.magic), s.off); err != nil {
			t.Fatal(err)
		}
	}
	// The primary table is damaged by the LVM label now: the partitions are found by the backup.
	got, err := runErase(t.Context(), m, `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(`{"devices":[{"name":"/dev/vda","serial":"one","wwn":"","size":%d}]}`, size); got != want {
		t.Errorf("result = %s, want %s", got, want)
	}
	after := contents(t, f, size)
	for name, s := range magics {
		if bytes.HasPrefix(after[s.off:], []byte(s.magic)) {
			t.Errorf("%s is still there", name)
		}
	}
	if !zero(after[:disk.HeadSize]) || !zero(after[size-disk.HeadSize:]) {
		t.Error("the ends of the disk are not zero")
	}
	if zero(after[raid+2<<20 : raidEnd-2<<20]) {
		t.Error("data that is no metadata was erased too: this would take hours on a real disk")
	}
}

func TestEraseFollowsLogicalPartitions(t *testing.T) {
	const size = 32 << 20
	m := fake.NewDisks(t.TempDir())
	f := m.Add(fake.DiskSpec{Name: "vda", Size: size, Serial: "one"})
	put(f, bytes.Repeat([]byte{0x11}, size), 0)
	putMBR(f, 0, part{0, 2048, 4096}, part{5, 8192, 32768})
	putMBR(f, 8192*512, part{0, 2048, 8192}, part{5, 16384, 8192})
	putMBR(f, (8192+16384)*512, part{0, 2048, 8192})
	if _, err := runErase(t.Context(), m, ``); err != nil {
		t.Fatal(err)
	}
	after := contents(t, f, size)
	for _, lba := range []int64{2048, 8192 + 2048, 8192 + 16384 + 2048} {
		if !zero(after[lba*512 : lba*512+4096]) {
			t.Errorf("the partition at sector %d keeps its superblock", lba)
		}
	}
}

func TestEraseNamesTheDiskThatFailed(t *testing.T) {
	m := fake.NewDisks(t.TempDir())
	for i := range 12 {
		f := m.Add(fake.DiskSpec{Name: "vd" + string(rune('a'+i)), Size: 16 << 20, Serial: fmt.Sprint("serial-", i),
			Fill: 0xff})
		if i == 6 {
			f.Fail(func(kind string, off, n int64) error {
				if kind == "write" && off > 0 {
					return errors.New("medium error")
				}
				return nil
			})
		}
	}
	_, err := runErase(t.Context(), m, ``)
	if err == nil || !strings.Contains(err.Error(), "11 of 12 done, not ") ||
		!strings.Contains(err.Error(), "/dev/vdg") || !strings.Contains(err.Error(), "serial-6") {
		t.Fatalf("one disk in twelve fails: %v", err)
	}
	if strings.Contains(err.Error(), "\n") || step.AsError(err).Remedy == "" {
		t.Errorf("not one line with a remedy: %q", err)
	}
	for i := range 12 {
		if b := contents(t, m.Disk("vd"+string(rune('a'+i))), disk.HeadSize); i != 6 && !zero(b) {
			t.Errorf("disk %d was not tried", i)
		}
	}
	if got, err := runErase(t.Context(), m, `{"skip_block_devices": [{"serial": "serial-6"}]}`); err != nil ||
		strings.Contains(got, "vdg") || !strings.Contains(got, "vdh") {
		t.Errorf("with the bad disk skipped: %s, %v", got, err)
	}
}

func TestEraseRefuses(t *testing.T) {
	cases := []struct {
		name  string
		spec  fake.DiskSpec
		setup func(f *fake.Disk)
		want  string
	}{
		{"read-only", fake.DiskSpec{ReadOnly: true}, nil, "read-only"},
		{"cluster file system", fake.DiskSpec{}, func(f *fake.Disk) { f.WriteAt([]byte("\x0d\xd0\x01\xc0"), 1<<20) },
			"VMFS"},
		{"a disk that forgets", fake.DiskSpec{}, func(f *fake.Disk) {
			f.Fail(func(kind string, off, n int64) error {
				if kind == "sync" {
					return errors.New("lost write")
				}
				return nil
			})
		}, "lost write"},
	}
	for _, c := range cases {
		m := fake.NewDisks(t.TempDir())
		c.spec.Name, c.spec.Size, c.spec.Serial = "sda", 16<<20, "s"
		c.spec.Bus = "scsi"
		f := m.Add(c.spec)
		if c.setup != nil {
			c.setup(f)
		}
		if _, err := runErase(t.Context(), m, ``); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "/dev/sda") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 16 << 20, Serial: "s"})
	held, err := m.OpenExclusive(t.Context(), "/dev/vda")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runErase(t.Context(), m, ``); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("a disk in use: %v", err)
	}
	held.Close()
	if _, err := runErase(t.Context(), m, `{"devices": []}`); err == nil {
		t.Error("an unknown argument was ignored")
	}
	if got, err := runErase(t.Context(), fake.NewDisks(t.TempDir()), ``); err != nil || got != `{"devices":[]}` {
		t.Errorf("a machine without disks: %s, %v", got, err)
	}
}

// TestEraseSparesWhatWasJustWritten: after write_image in a plan, before and after the commit, every disk keeps its
// content.
func TestEraseSparesWhatWasJustWritten(t *testing.T) {
	const mib = 1 << 20
	m := fake.NewDisks(t.TempDir())
	f := m.Add(fake.DiskSpec{Name: "vda", Serial: "one", Size: 8 * mib, Fill: 0xa5})
	other := m.Add(fake.DiskSpec{Name: "vdb", Serial: "two", Size: 8 * mib, Fill: 0x11})
	img := fake.NewDisks(t.TempDir()).Add(fake.DiskSpec{Name: "image", Size: 4 * mib})
	putGPT(img, 4*mib, 512, part{0, 2048, 4096})
	d := one(t, m, "one")
	p, err := disk.NewPending(d, contents(t, img, mib), contents(t, img, 4*mib)[4*mib-33*512:], 4*mib-33*512, 4*mib)
	if err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	disk.SetPending(facts, p)
	for _, when := range []string{"before", "after"} {
		if when == "after" {
			f.WriteAt(make([]byte, mib), 0)
			if _, err := disk.Commit(t.Context(), facts, m, nil); err != nil {
				t.Fatal(err)
			}
		}
		was := contents(t, f, d.Size)
		_, err := MetadataStep(m)(t.Context(),
			&step.Call{Args: json.RawMessage(`{}`), Log: slog.New(slog.DiscardHandler), Facts: facts,
				Report: func(step.Progress) {}})
		if err == nil || !strings.Contains(err.Error(), "just been written to /dev/vda") ||
			!strings.Contains(step.AsError(err).Remedy, "before write_image") {
			t.Errorf("%s the commit: %v", when, err)
		}
		if !bytes.Equal(contents(t, f, d.Size), was) || other.Written() != 0 {
			t.Errorf("%s the commit: disks were erased", when)
		}
	}
}

// one finds a disk by its serial number.
func one(t testing.TB, m machine, serial string) disk.Disk {
	t.Helper()
	all, err := disk.All(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.Serial == serial {
			return d
		}
	}
	t.Fatalf("no disk %s", serial)
	return disk.Disk{}
}

func contents(t testing.TB, d *fake.Disk, size int64) []byte {
	t.Helper()
	b := make([]byte, size)
	if _, err := d.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
