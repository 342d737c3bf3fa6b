package boot

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/fat"
)

// TestEntryThatCannotBeWritten holds when a missing boot entry is a warning and when it is a failure, for any cause,
// and that the message has the cause and the remedy.
func TestEntryThatCannotBeWritten(t *testing.T) {
	gpt := disk.Partition{Number: 2, Type: strings.ToLower(disk.TypeESP), GUID: "00112233-4455-6677-8899-AABBCCDDEEFF",
		StartLBA: 2048, Sectors: 8192, Start: 1 << 20, Size: 4 << 20}
	mbr := gpt
	mbr.GUID, mbr.Type = "", "0xEF"
	data := disk.Partition{Number: 1, Type: "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", GUID: "x", Start: 1 << 20,
		Size: 1 << 20}
	loaders := []fat.File{{Path: "EFI/debian/shimx64.efi"}, {Path: "EFI/debian/shimaa64.efi"}}
	fallback := append([]fat.File{{Path: "EFI/BOOT/BOOTX64.EFI"}, {Path: "EFI/BOOT/BOOTAA64.EFI"}}, loaders...)
	for _, c := range []struct {
		name      string
		parts     []disk.Partition
		files     []fat.File // nil: no file system
		signature uint32
		novars    bool
		err       error
		entry     bool   // is written
		warning   string // else
		failure   string // else
		remedy    string
	}{
		{name: "all is well", parts: []disk.Partition{data, gpt}, files: loaders, entry: true},
		{name: "on an MBR", parts: []disk.Partition{mbr}, files: loaders, signature: 7, entry: true},
		{name: "on an MBR without a signature", parts: []disk.Partition{mbr}, files: fallback,
			warning: "no disk signature"},
		{name: "on an MBR without either", parts: []disk.Partition{mbr}, files: loaders, failure: "no disk signature",
			remedy: "BOOTX64.EFI"},
		{name: "full, with a fallback loader", parts: []disk.Partition{gpt}, files: fallback, err: unix.ENOSPC,
			warning: "no space left"},
		{name: "full, without", parts: []disk.Partition{gpt}, files: loaders, err: unix.ENOSPC,
			failure: "no space left", remedy: "variable store is full"},
		{name: "locked, with a fallback loader", parts: []disk.Partition{gpt}, files: fallback, err: unix.EPERM,
			warning: "not permitted"},
		{name: "locked, without", parts: []disk.Partition{gpt}, files: loaders, err: unix.EPERM,
			failure: "not permitted", remedy: "refuses boot entries"},
		{name: "no variables, with a fallback loader", parts: []disk.Partition{gpt}, files: fallback, novars: true,
			warning: "no firmware variables"},
		{name: "no loader", parts: []disk.Partition{gpt}, files: []fat.File{{Path: "README"}},
			failure: "no boot loader", remedy: "has a boot loader"},
		{name: "no file system", parts: []disk.Partition{gpt}, failure: "not a FAT", remedy: "has a boot loader"},
		{name: "no system partition", parts: []disk.Partition{data}, failure: "no EFI system partition",
			remedy: "boot_mode:bios"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fake.NewMachine(t.TempDir())
			f := m.Add(fake.DiskSpec{Name: "vda", Size: 1 << 30, Serial: "one"})
			if c.files != nil {
				img, err := fat.Make(c.files, fat.Options{Sector: 512})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt(img.Bytes(), 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			if !c.novars {
				n := newNVRAM(t)
				n.put("BootOrder", []byte{5, 0})
				m.EFI, n.efi.Refuse = n.efi, c.err
			}
			var r Result
			err := r.writeEntry(t.Context(), m,
				&disk.Committed{Disk: disk.Disk{Name: "/dev/vda"}, Partitions: c.parts, Signature: c.signature},
				slog.New(slog.DiscardHandler))
			var se *step.Error
			switch {
			case c.failure != "":
				if err == nil || !strings.Contains(err.Error(), c.failure) || !errors.As(err, &se) ||
					!strings.Contains(se.Remedy, c.remedy) {
					t.Errorf("%v (%+v), want %q and the remedy %q", err, se, c.failure, c.remedy)
				}
			case err != nil:
				t.Error(err)
			case (r.BootEntry != nil) != c.entry || !strings.Contains(r.Warning, c.warning) ||
				c.entry == (r.Warning != ""):
				t.Errorf("result %+v, entry %+v", r, r.BootEntry)
			}
		})
	}
}
