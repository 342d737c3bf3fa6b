package linux

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// targetModules are what an iSCSI target needs of the kernel.
var targetModules = []string{"target_core_mod", "target_core_iblock", "iscsi_target_mod"}

const (
	configFS = "/sys/kernel/config"
	backing  = "core/iblock_0/ingot" // the disk, below the folder of targets
)

// Target is a disk to export, at a port of loopback. It is an alias of the same struct that package export declares.
type Target = struct {
	Name, Disk, Initiator, User, Password string
	Port                                  int
}

// Export makes a disk an iSCSI target of the kernel, on loopback, for one initiator that knows the secret. The kernel
// holds the disk exclusively until remove is called, which may be done again after an error.
func (m Machine) Export(ctx context.Context, t Target) (remove func() error, err error) {
	for _, name := range targetModules {
		if err := m.LoadModule(ctx, name); err != nil {
			return nil, err
		}
	}
	root := filepath.Join(configFS, "target")
	if _, err := os.Stat(root); err != nil {
		err := unix.Mount("none", configFS, "configfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		if err != nil {
			return nil, fmt.Errorf("mount configfs: %w", err)
		}
	}
	remove = func() error { return unexport(root, t) }
	if err := remove(); err != nil { // what a step left whose agent died
		return nil, err
	}
	if err := makeTarget(root, t); err != nil {
		return nil, errors.Join(fmt.Errorf("export %s: %w", t.Disk, err), remove())
	}
	return remove, nil
}

// makeTarget follows Documentation/target in the kernel's sources, and rtslib in the order.
func makeTarget(root string, t Target) error {
	disk := filepath.Join(root, backing)
	group := filepath.Join(root, "iscsi", t.Name, "tpgt_1")
	acl := filepath.Join(group, "acls", t.Initiator)
	for _, act := range []struct{ folder, file, text, link string }{
		{folder: disk},
		{file: filepath.Join(disk, "control"), text: "udev_path=" + t.Disk},
		{file: filepath.Join(disk, "udev_path"), text: t.Disk},
		{file: filepath.Join(disk, "enable"), text: "1"},
		// without it who writes the disk has nothing to recognise it by but its path
		{file: filepath.Join(disk, "wwn", "vpd_unit_serial"), text: rand.Text()},
		{folder: filepath.Join(root, "iscsi")},
		{folder: group},
		{folder: filepath.Join(group, "lun", "lun_0")},
		{file: disk, link: filepath.Join(group, "lun", "lun_0", "disk")},
		{file: filepath.Join(group, "attrib", "authentication"), text: "1"},
		{file: filepath.Join(group, "attrib", "generate_node_acls"), text: "0"},
		{file: filepath.Join(group, "attrib", "demo_mode_write_protect"), text: "1"},
		{file: filepath.Join(group, "param", "AuthMethod"), text: "CHAP"},
		{folder: acl},
		{file: filepath.Join(acl, "auth", "userid"), text: t.User},
		{file: filepath.Join(acl, "auth", "password"), text: t.Password},
		{folder: filepath.Join(acl, "lun_0")},
		{file: filepath.Join(group, "lun", "lun_0"), link: filepath.Join(acl, "lun_0", "disk")},
		{file: filepath.Join(acl, "lun_0", "write_protect"), text: "0"},
		{folder: filepath.Join(group, "np", "127.0.0.1:"+strconv.Itoa(t.Port))},
		{file: filepath.Join(group, "enable"), text: "1"},
	} {
		var err error
		switch {
		case act.link != "":
			err = os.Symlink(act.file, act.link)
		case act.folder != "":
			err = os.MkdirAll(act.folder, 0o700)
		default:
			err = writeTo(act.file, act.text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeTo writes a file of configfs. Its error names no secret.
func writeTo(name, text string) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// unexport removes the target, which ends the sessions of initiators, and lets go of the disk.
func unexport(root string, t Target) error {
	whole := filepath.Join(root, "iscsi", t.Name)
	group := filepath.Join(whole, "tpgt_1")
	var errs []error
	if err := writeTo(filepath.Join(group, "enable"), "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	acls, err := filepath.Glob(filepath.Join(group, "acls", "*"))
	errs = append(errs, err)
	var names []string
	for _, acl := range acls {
		names = append(names, filepath.Join(acl, "lun_0", "disk"), filepath.Join(acl, "lun_0"), acl)
	}
	portals, err := filepath.Glob(filepath.Join(group, "np", "*"))
	errs = append(errs, err)
	names = append(append(names, portals...), filepath.Join(group, "lun", "lun_0", "disk"),
		filepath.Join(group, "lun", "lun_0"), group, whole, filepath.Join(root, backing))
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the export of %s: %w", t.Disk, err)
	}
	return nil
}
