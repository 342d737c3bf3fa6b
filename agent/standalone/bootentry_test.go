package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/boot"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/fat"
)

// bootable is a disk with one partition, an EFI system partition.
func bootable(t *testing.T, size int) []byte {
	t.Helper()
	esp, err := fat.Make([]fat.File{{Path: "EFI/BOOT/BOOTX64.EFI"}, {Path: "EFI/BOOT/BOOTAA64.EFI"}},
		fat.Options{Sector: 512})
	if err != nil {
		t.Fatal(err)
	}
	b := mbrImage(size)
	b[440], b[446+4] = 7, 0xef
	copy(b[mib:], esp.Bytes())
	return b
}

// TestBootEntry writes an image and the entry of a firmware in memory.
func TestBootEntry(t *testing.T) {
	img := bootable(t, 12*mib)
	path, _ := dirty(t, 100*mib, false)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys/firmware/efi"), 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := openMachine(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	vars := &fake.Variables{}
	m.root, m.efi = root, vars
	o := Options{Image: serve(t, img), Digest: digest(img), Disk: path, BootEntry: true,
		ConfigDrive: []byte(`{"meta_data": {}}`)}
	r, err := m.write(t.Context(), o, nil, silent)
	if err != nil {
		t.Fatalf("%v (%s)", err, step.AsError(err).Remedy)
	}
	b, ok := r.Boot.(boot.Result)
	if !ok || b.BootEntry == nil || !b.Committed || r.Table != "mbr" || len(r.Partitions) != 2 ||
		m.seen.left() != Complete {
		t.Errorf("result %+v, boot %+v, left %s", r, r.Boot, m.seen.left())
	}
	if list, err := vars.List(); err != nil || len(list) != 2 { // the entry and the order
		t.Errorf("the firmware's variables: %v, %v", list, err)
	}
}

// TestBootEntryWithoutUEFI is refused before the disk is touched.
func TestBootEntryWithoutUEFI(t *testing.T) {
	if err := (machine{root: t.TempDir()}).canBoot(); err == nil ||
		!strings.Contains(step.AsError(err).Remedy, "--boot-entry") {
		t.Errorf("without UEFI: %v", err)
	}
	if isThere("/sys/firmware/efi") {
		return // what follows asks this machine's own firmware, which there is
	}
	img := bootable(t, 12*mib)
	path, file := dirty(t, 40*mib, false)
	o := Options{Image: serve(t, img), Digest: digest(img), Disk: path, BootEntry: true}
	_, werr := Write(t.Context(), o, nil, silent)
	_, eerr := Examine(t.Context(), o, nil)
	for _, err := range []error{werr, eerr} {
		if err == nil || !strings.Contains(err.Error(), "not started by UEFI") {
			t.Errorf("without UEFI: %v", err)
		}
	}
	wantOld(t, file)
}
