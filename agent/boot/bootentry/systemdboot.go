package bootentry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// hasSystemdBoot reports whether systemd-boot is installed.
func (d *disk) hasSystemdBoot() bool {
	for i, v := range d.vols {
		if v.ESP && d.isFile(i, "EFI/systemd/systemd-boot"+d.m.efiName()+".efi") {
			return true
		}
	}
	return false
}

// systemdBoot decides as systemd-boot does: among the entries of both types on the EFI system partition and on the boot
// partition beside it, the one that loader.conf names, else the first in order. The loader's firmware variables are not
// considered: the disk is freshly written.
func (d *disk) systemdBoot() (*Entry, error) {
	var all []*blsEntry
	pattern := ""
	for i, v := range d.vols {
		// The extended boot partition is not recognized by its type here: entries on a volume count if their kernels
		// are on it.
		one, err := d.entriesIn(i, "loader/entries")
		if err != nil {
			return nil, err
		}
		for _, e := range one {
			if e.linux == "" || d.isFile(i, e.linux) {
				all = append(all, e)
			}
		}
		ukis, err := d.ukisIn(i)
		if err != nil {
			return nil, err
		}
		all = append(all, ukis...)
		if !v.ESP {
			continue
		}
		if len(d.list(i, "loader/addons", ".addon.efi")) > 0 {
			return nil, errors.New(
				"there are add-ons in /loader/addons, which change the kernel's command line in ways that are not known here")
		}
		b, err := d.read(i, "loader/loader.conf", 64<<10)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "default" {
				pattern = f[1]
			}
		}
	}
	if len(all) == 0 {
		return nil, fs.ErrNotExist
	}
	slices.SortStableFunc(all, systemdOrder)
	chosen := all[0]
	if pattern != "" && pattern[0] != '@' {
		for _, e := range all {
			if matches(pattern, e) {
				chosen = e
				break
			}
		}
	}
	from := "systemd-boot"
	if chosen.uki != nil {
		from = "UKI"
		if len(d.list(chosen.vol, chosen.file+".extra.d", ".addon.efi")) > 0 {
			return nil, fmt.Errorf(
				"%s has add-ons, which change the kernel's command line in ways that are not known here", chosen.file)
		}
	}
	return d.blsOf(chosen, from, chosen.options, nil)
}

// systemdOrder compares entries in systemd-boot's menu order; the first is the default.
func systemdOrder(a, b *blsEntry) int {
	if a.spent != b.spent {
		if a.spent {
			return 1
		}
		return -1
	}
	if (a.sortKey == "") != (b.sortKey == "") {
		if a.sortKey == "" {
			return 1
		}
		return -1
	}
	if a.sortKey != "" {
		if c := cmp.Or(strings.Compare(a.sortKey, b.sortKey), strings.Compare(a.machine, b.machine),
			compareVersions(b.version, a.version)); c != 0 {
			return c
		}
	}
	return compareVersions(b.id, a.id)
}

// matches matches loader.conf's default: a shell pattern for the name with or without its suffix.
func matches(pattern string, e *blsEntry) bool {
	for _, name := range []string{e.id, e.id + ".conf", e.id + ".efi"} {
		if name == e.id+".conf" && e.uki != nil || name == e.id+".efi" && e.uki == nil {
			continue
		}
		if ok, err := path.Match(strings.ToLower(pattern), strings.ToLower(name)); err == nil && ok {
			return true
		}
	}
	return false
}
