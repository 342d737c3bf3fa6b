package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/images/gpt"
)

// layout describes a disk to make: the content of its root file system and the sizes of its parts.
type layout struct {
	image    string // name, from which all identifiers are derived
	root     string // directory that becomes the root file system
	label    string // of the root file system
	espSize  int64
	rootSize int64
	sector   int64 // of the disk; 0 is 512. Others boot by UEFI only
	// sets the same time on all files; without it they keep theirs, and unsettable times differ between builds
	fixTimes bool
}

func (l layout) rootUUID() string { return named(l.image, "root file system").String() }

// parts returns the partitions and the size of the disk.
func (l layout) parts() ([]partition, int64) {
	esp := partition{gpt.ESP, "esp", 2 * mib, l.espSize}
	root := partition{gpt.LinuxRoot, "root", esp.start + esp.size, l.rootSize}
	return []partition{{gpt.BIOSBoot, "bios", mib, mib}, esp, root}, root.start + root.size + mib
}

// write writes the disk as a raw file.
func (l layout) write(ctx context.Context, raw string) error {
	if err := l.try(ctx, raw); err != nil {
		return fmt.Errorf("make the disk of image %s: %w", l.image, err)
	}
	return nil
}

func (l layout) try(ctx context.Context, raw string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(raw), ".disk-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	parts, size := l.parts()
	disk, err := os.OpenFile(raw, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer disk.Close()
	if err := disk.Truncate(size); err != nil {
		return err
	}
	at := max(l.sector, sector)
	if err := writeGPT(disk, size, at, l.image, parts); err != nil {
		return err
	}
	if at == sector {
		if err := embedGRUB(ctx, disk, parts[0], l.rootUUID(), tmp); err != nil {
			return err
		}
	}
	if err := writeESP(disk, parts[1], at, l.image, l.rootUUID()); err != nil {
		return err
	}
	root := parts[2]
	var blocks []string
	if at > 1024 { // small file systems have smaller blocks, and can't be mounted from such a disk
		blocks = []string{"-b", fmt.Sprint(at)}
	}
	// metadata_csum_seed and orphan_file are unknown to GRUB 2.06 and older kernels; a fixed hash seed makes
	// directories reproducible.
	err = run(ctx, nil, "mke2fs",
		append(blocks, "-q", "-F", "-t", "ext4", "-O", "^metadata_csum_seed,^orphan_file", "-U", l.rootUUID(), "-L",
			l.label, "-d", l.root, "-E",
			fmt.Sprintf("offset=%d,hash_seed=%s,root_owner=0:0,lazy_itable_init=0", root.start,
				named(l.image, "hash seed")),
			raw, fmt.Sprintf("%dk", root.size/1024))...)
	if err != nil {
		return err
	}
	if l.fixTimes {
		if err := l.setTimes(ctx, fmt.Sprintf("%s?offset=%d", raw, root.start)); err != nil {
			return err
		}
	}
	return disk.Close()
}

// setTimes sets the times of all files of the root file system, including those that can't be set on a mounted one.
func (l layout) setTimes(ctx context.Context, fs string) error {
	var script strings.Builder
	err := filepath.WalkDir(l.root, func(file string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(l.root, file)
		if err != nil {
			return err
		}
		for _, field := range []string{"atime", "ctime", "mtime", "crtime"} {
			fmt.Fprintf(&script, "sif %q %s @%d\nsif %q %s_extra 0\n", "/"+rel, field, epoch, "/"+rel, field)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return run(ctx, strings.NewReader(script.String()), "debugfs", "-w", "-f", "-", fs)
}
