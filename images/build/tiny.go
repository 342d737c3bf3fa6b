package build

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/initramfs/kernel"
)

var (
	//go:embed tiny-init.sh
	tinyInit []byte
	//go:embed tiny-dhcp.sh
	tinyDHCP []byte
)

// tinyModules are the modules with which the tiny image finds its disk and its config drive on any machine of the lab.
var tinyModules = strings.Fields(`
	virtio_pci virtio_net virtio_blk virtio_scsi virtio_rng sd_mod nvme ahci? ata_piix? e1000? e1000e?
	ext4 vfat nls_cp437 nls_ascii isofs efivarfs? md_mod raid1`)

// tinyBond are those with which it makes a bond with a VLAN, when the config drive asks for it.
var tinyBond = []string{"bonding", "8021q"}

// Tiny makes a small system that boots in seconds even in software emulation. On the serial console it prints a line
//
//	INGOT-TINY up=.. host=.. uuid=.. ssh_keys=n user_data=<SHA-256|none> root=.. cfg=.. efi=0|1 boots=n
//
// (followed by raid=raid1 degraded=0|1 if its root is on a software RAID, which it assembles) with the values from its
// config drive, then INGOT-TINY-NET and its address once it has one, and offers a login (root, no password). With a
// bond in the config drive's meta_data, such as 802.3ad, its cards become one, and with a vlan that is on top of it;
// the line INGOT-TINY-BOND has the cards, how many of them the switch has joined by LACP, and the switch's address.
// Building it does not need root.
func Tiny(ctx context.Context, o Options) (*Result, error) {
	tools := needed{"busybox": "busybox-static"}
	maps.Copy(tools, diskTools)
	if err := tools.check(); err != nil {
		return nil, err
	}
	o, err := o.complete("tiny", kernel.Cloud)
	if err != nil {
		return nil, err
	}
	deb, err := kernel.Fetch(ctx, o.Kernel, o.Cache, o.Log)
	if err != nil {
		return nil, err
	}
	tree, err := kernel.Open(ctx, deb, o.Cache)
	if err != nil {
		return nil, err
	}
	inputs, err := inputsOf("tiny", tree.SHA256, tinyInit, tinyDHCP, file("/bin/busybox"), file(grubBoot),
		file(grubEFI), file(shimEFI), o.Qcow2, o.Sector)
	if err != nil {
		return nil, err
	}
	return o.produce(ctx, inputs, &Image{Name: "tiny", OS: "busybox", Kernel: tree.Package + " " + tree.Version},
		func(raw, tmp string) error {
			root := filepath.Join(tmp, "root")
			if err := tinyRoot(tree, root); err != nil {
				return fmt.Errorf("make the tiny image's root: %w", err)
			}
			l := tinyLayout(root)
			l.sector = int64(o.Sector)
			return l.write(ctx, raw)
		})
}

func tinyLayout(root string) layout {
	return layout{image: "tiny", root: root, label: "tinyroot", espSize: 34 * mib, rootSize: 40 * mib, fixTimes: true}
}

func tinyRoot(tree *kernel.Tree, root string) error {
	grub := filepath.Join(root, "boot/grub")
	if err := os.MkdirAll(grub, 0o755); err != nil {
		return err
	}
	linux, err := os.ReadFile(tree.Vmlinuz())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "boot/vmlinuz"), linux, 0o644); err != nil {
		return err
	}
	cfg := fmt.Sprintf(`serial --unit=0 --speed=115200
terminal_output serial
linux /boot/vmlinuz root=UUID=%s console=tty0 console=ttyS0,115200n8 quiet no_timer_check mitigations=off cryptomgr.notests panic=10
initrd /boot/initrd
boot
`, tinyLayout(root).rootUUID())
	if err := os.WriteFile(filepath.Join(grub, "grub.cfg"), []byte(cfg), 0o644); err != nil {
		return err
	}
	a, err := tinyInitrd(tree)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(root, "boot/initrd"))
	if err != nil {
		return err
	}
	_, err = a.Write(f)
	return errors.Join(err, f.Close())
}

func tinyInitrd(tree *kernel.Tree) (*archive.Tree, error) {
	a := archive.New()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"bin/busybox": busybox, "init": tinyInit, "etc/dhcp.sh": tinyDHCP,
		"etc/passwd": []byte("root::0:0:root:/:/bin/sh\n"), "etc/group": []byte("root:x:0:\n"),
	}
	for list, modules := range map[string][]string{"order": tinyModules, "order.bond": tinyBond} {
		set, err := tree.Select(modules)
		if err != nil {
			return nil, err
		}
		var order strings.Builder
		for _, m := range set.LoadOrder() {
			data, err := tree.Read(m)
			if err != nil {
				return nil, err
			}
			name := filepath.Base(m.File)
			files["lib/modules/"+name] = data
			order.WriteString(name + "\n")
		}
		files["lib/modules/"+list] = []byte(order.String())
	}
	for name, data := range files {
		if err := a.File(name, data, 0o755); err != nil {
			return nil, err
		}
	}
	return a, errors.Join(a.Dir("dev", 0o755), a.Dir("proc", 0o755), a.Dir("sys", 0o755),
		a.CharDev("dev/console", 0o600, 5, 1))
}
