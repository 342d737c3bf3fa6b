package build

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ingot-metal/ingot/images/fs/fat"
)

// Paths of Debian's packages grub-pc-bin, grub-efi-amd64-signed and shim-signed.
const (
	grubBoot = "/usr/lib/grub/i386-pc/boot.img"
	grubEFI  = "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
	shimEFI  = "/usr/lib/shim/shimx64.efi.signed"
	shimCSV  = "/usr/lib/shim/BOOTX64.CSV"
)

// grubModules are the modules with which GRUB finds the root by its UUID and reads a configuration there.
var grubModules = []string{
	"biosdisk", "part_gpt", "ext2", "search", "search_fs_uuid", "configfile", "linux", "normal", "serial", "terminal",
	"echo", "test",
}

// findRoot returns GRUB's early configuration, which continues with the one on the root file system.
func findRoot(rootUUID string) string {
	return "search --no-floppy --fs-uuid --set=root " + rootUUID +
		"\nset prefix=($root)/boot/grub\nconfigfile /boot/grub/grub.cfg\n"
}

// embedGRUB writes GRUB for BIOS to a disk: its first sector to the MBR, the rest to the boot partition p.
func embedGRUB(ctx context.Context, disk *os.File, p partition, rootUUID, tmp string) error {
	early, core := filepath.Join(tmp, "early.cfg"), filepath.Join(tmp, "core.img")
	if err := os.WriteFile(early, []byte(findRoot(rootUUID)), 0o644); err != nil {
		return err
	}
	args := append([]string{"-O", "i386-pc", "-o", core, "-c", early, "-p", "/boot/grub"}, grubModules...)
	if err := run(ctx, nil, "grub-mkimage", args...); err != nil {
		return err
	}
	boot, err := os.ReadFile(grubBoot)
	if err != nil {
		return err
	}
	rest, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	if err := patchGRUB(boot, rest, p); err != nil {
		return err
	}
	if _, err := disk.WriteAt(boot[:440], 0); err != nil {
		return err
	}
	_, err = disk.WriteAt(rest, p.start)
	return err
}

// patchGRUB sets the place of the second sector in the first, and the place of the rest in the second.
func patchGRUB(boot, core []byte, p partition) error {
	lba := uint64(p.start / sector)
	switch {
	case len(boot) != sector || len(core) <= sector:
		return fmt.Errorf("GRUB's boot.img has %d bytes and its core %d: not what this was written for", len(boot),
			len(core))
	case int64(len(core)) > p.size:
		return fmt.Errorf("GRUB needs %d bytes, its partition has %d", len(core), p.size)
	case boot[0x66] != 0xEB: // the jump that is disabled below
		return errors.New("GRUB's boot.img is not as this was written for: no jump at 0x66")
	}
	binary.LittleEndian.PutUint64(boot[0x5c:], lba)
	boot[0x66], boot[0x67] = 0x90, 0x90 // on a hard disk: ignore a BIOS that names a floppy as boot drive
	binary.LittleEndian.PutUint64(core[0x1f4:], lba+1)
	binary.LittleEndian.PutUint16(core[0x1fc:], uint16((len(core)+sector-1)/sector-1))
	return nil
}

// writeESP writes the EFI system partition. The loaders are at the fallback path of firmware and at the path of
// Debian's boot entries; GRUB as signed by Debian reads its configuration from /EFI/debian.
func writeESP(disk io.WriterAt, p partition, sectorSize int64, image, rootUUID string) error {
	files := []fat.File{{Path: "EFI/debian/grub.cfg", Data: []byte(findRoot(rootUUID))}}
	for _, c := range []struct {
		from string
		to   []string
	}{
		{shimEFI, []string{"EFI/BOOT/BOOTX64.EFI", "EFI/debian/shimx64.efi"}},
		{grubEFI, []string{"EFI/BOOT/grubx64.efi", "EFI/debian/grubx64.efi"}},
		{shimCSV, []string{"EFI/debian/BOOTX64.CSV"}},
	} {
		data, err := os.ReadFile(c.from)
		if err != nil {
			return err
		}
		for _, path := range c.to {
			files = append(files, fat.File{Path: path, Data: data})
		}
	}
	id := named(image, "EFI system partition")
	img, err := fat.Make(files, fat.Options{Sector: int(sectorSize), Size: p.size, Label: "ESP",
		Serial: binary.LittleEndian.Uint32(id[:]), Time: time.Unix(epoch, 0)})
	if err != nil {
		return fmt.Errorf("make the EFI system partition: %w", err)
	}
	for _, piece := range img.Pieces {
		if _, err := disk.WriteAt(piece.Data, p.start+piece.Off); err != nil {
			return err
		}
	}
	return nil
}
